"""`POST /s/append`: a frame of batches of many logs in, a stream of results out.

Each batch is checked once (header and CRC, never its records), queued at its log, and answered in
the frame of whatever results are ready together; a log that is slow delays only its own rows.

Called by the data server. Source: docs/protocol/wire.md "Sequencer: POST /s/append",
docs/protocol/write.md "Window and flush".
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import prometheus_client

from duramen.errors import DuramenError
from duramen.limits import APPEND_TIMEOUT_MAX_US
from duramen.runtime.sequencer.appends import make_append
from duramen.runtime.sequencer.log_driver import LogDriver, now_us
from duramen.units import MS
from duramen.wire.record_batch import BatchError
from duramen.wire.sequencer_calls import (
    AlreadyStored,
    Append,
    AppendedBatch,
    AppendedEarly,
    AppendResult,
    pack_results,
    parse_appends,
)
from duramen_sequencer.log_host import LogHost

_SECONDS = prometheus_client.Histogram(
    "duramen_sequencer_append_seconds",
    "From the arrival of a frame to the answer of one of its batches.",
    ["stage"],
    buckets=(0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1, 2, 5, 10),
)
_APPENDS = prometheus_client.Counter(
    "duramen_sequencer_appends_total", "Batches by outcome.", ["outcome"]
)
_BYTES = prometheus_client.Counter(
    "duramen_sequencer_append_bytes_total", "Bytes of batches taken."
)

Send = Callable[[bytes], Awaitable[None]]


class AppendFrames:
    """Takes append frames for a host of logs."""

    def __init__(self, host: LogHost) -> None:
        self._host = host
        self._append_count = 0
        self.open_frames = 0

    def on_call(self, path: str, body: bytes, send: Send) -> Awaitable[None] | None:
        """Take `/s/append`; every other path is left to others.

        Raises:
            FrameError: the body is no append frame; nothing was done.
        """
        if path != "/s/append":
            return None
        return self._answer_frame(parse_appends(body), send)

    async def _answer_frame(self, appends: list[Append], send: Send) -> None:
        results = _Results(len(appends))
        touched: dict[int, LogDriver] = {}
        for index, append in enumerate(appends):
            driver = self._submit(index, append, results)
            if driver is not None:
                touched[driver.log_id] = driver
        for driver in touched.values():
            driver.flush()
        self.open_frames += 1
        try:
            while (ready := await results.take()) is not None:
                await send(pack_results(ready))
        finally:
            self.open_frames -= 1

    def _submit(self, index: int, append: Append, results: _Results) -> LogDriver | None:
        batch = bytes(append.batch)
        deadline_us = now_us() + min(append.deadline_ms * MS, APPEND_TIMEOUT_MAX_US)
        try:
            queued = make_append(self._append_count + 1, batch, deadline_us, append.options)
        except BatchError as error:
            results.put(index, DuramenError(error.code, str(error), field="batch"))
            return None
        self._append_count += 1
        _BYTES.inc(len(batch))
        return self._host.submit(append.log_id, queued, lambda result: results.put(index, result))

    def statistics(self) -> dict[str, Any]:
        """Frames that are open and appends taken so far."""
        return {"open_frames": self.open_frames, "appends": self._append_count}


class _Results:
    """Results of one frame, taken in groups as they become ready."""

    def __init__(self, count: int) -> None:
        self._missing = count
        self._ready: list[tuple[int, AppendResult]] = []
        self._event = asyncio.Event()
        self._began_s = time.monotonic()

    def put(self, index: int, result: AppendResult) -> None:
        self._missing -= 1
        self._ready.append((index, result))
        self._event.set()
        match result:
            case AlreadyStored() | AppendedBatch(is_duplicate=True):
                outcome = "duplicate"
            case AppendedBatch() | AppendedEarly():
                outcome = "ok" if isinstance(result, AppendedBatch) else "early"
                _SECONDS.labels("total").observe(time.monotonic() - self._began_s)
            case DuramenError():
                outcome = result.code
            case _:
                outcome = "redirect"
        _APPENDS.labels(outcome).inc()

    async def take(self) -> list[tuple[int, AppendResult]] | None:
        """What is ready, at least one; None when every row was given."""
        if not self._ready:
            if self._missing == 0:
                return None
            self._event.clear()
            await self._event.wait()
        ready, self._ready = self._ready, []
        return ready
