"""Which appends of a client share a session, and which go by calls of their own.

A session pays where several appends of one log are on their way at once, small ones above all. It
opens beside them. Where it did not open, or broke, the log has calls alone for a while: an old
proxy, an ingress that keeps requests back, a proxy whose sessions are used up.

Called by `sdk.session`. Source: docs/sdk.md "Appending".
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

from duramen.client.rest_client import Appended, RestClient
from duramen.client.sdk.homes import LogName
from duramen.client.sharing.append_stream import AppendStream, NotTakenError
from duramen.units import KIB
from duramen.wire.edge.batch_stream import StreamedBatch

SHARED_COUNT_MIN: Final = 4
"""Appends of a log on their way at which a session pays: a few go faster by themselves."""
BATCH_BYTES_MAX: Final = 64 * KIB
"""A larger batch costs more than its request, and would hold up those behind it."""
STREAM_COUNT_MAX: Final = 64
"""Sessions of one client: a proxy has 1,024 for all of them."""
REST_S: Final = 30.0
"""After a session that did not open, or broke, a log has none for so long."""
_REST_COUNT_MAX: Final = 4_096


class AppendStreams:
    """The sessions of one client.

    Args:
        proxy: where they are opened.
        timeout_s: of each append.
    """

    def __init__(self, proxy: RestClient, timeout_s: float) -> None:
        self._proxy = proxy
        self._timeout_s = timeout_s
        self._under_way: Counter[LogName] = Counter()
        self._streams: dict[LogName, AppendStream] = {}
        self._live: set[AppendStream] = set()
        self._rests: dict[LogName, float] = {}
        """Logs that have no session until then, in the loop's time."""
        self._is_closed = False
        self._counts = {"opened": 0, "failed": 0, "appended": 0, "not_taken": 0}

    async def append(
        self, log: LogName, streamed: StreamedBatch, call: Callable[[], Awaitable[Appended]]
    ) -> Appended:
        """Append a batch in the log's session, where that pays; else by `call`. Raises as it."""
        self._under_way[log] += 1
        try:
            stream = self._find(log) if len(streamed.batch) <= BATCH_BYTES_MAX else None
            if stream is not None:
                try:
                    appended = await stream.append(streamed)
                except NotTakenError:
                    self._counts["not_taken"] += 1
                else:
                    self._counts["appended"] += 1
                    return appended
            return await call()
        finally:
            self._under_way[log] -= 1
            if not self._under_way[log]:
                del self._under_way[log]

    async def close(self) -> None:
        """End all sessions; none is opened any more."""
        self._is_closed = True
        await asyncio.gather(*(stream.wait_closed() for stream in self._live))

    def statistics(self) -> dict[str, int]:
        """Sessions that take appends now, and what came of all of them so far."""
        return {"open": len(self._streams), **self._counts}

    def _find(self, log: LogName) -> AppendStream | None:
        """The session that takes an append now; None: a call does, and one may be opening."""
        stream = self._streams.get(log)
        if stream is not None and stream.is_closing:
            del self._streams[log]
            stream = None
        if stream is None:
            if self._under_way[log] >= SHARED_COUNT_MIN and self._may_open(log):
                self._open(log)
            return None
        return stream if stream.has_room() else None

    def _may_open(self, log: LogName) -> bool:
        is_resting = self._rests.get(log, 0.0) > asyncio.get_running_loop().time()
        return not is_resting and not self._is_closed and len(self._live) < STREAM_COUNT_MAX

    def _open(self, log: LogName) -> None:
        stream = AppendStream(self._proxy, log, self._timeout_s)
        self._counts["opened"] += 1
        self._streams[log] = stream
        self._live.add(stream)
        stream.task.add_done_callback(lambda _: self._on_ended(log, stream))

    def _on_ended(self, log: LogName, stream: AppendStream) -> None:
        self._live.discard(stream)
        if self._streams.get(log) is stream:
            del self._streams[log]
        if stream.has_failed:
            self._counts["failed"] += 1
            if len(self._rests) >= _REST_COUNT_MAX:
                del self._rests[next(iter(self._rests))]
            self._rests[log] = asyncio.get_running_loop().time() + REST_S
