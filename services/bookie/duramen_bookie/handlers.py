"""The bookie's data plane: frames in, frames out, the core in between.

One request is one event for the core, one unit for the journal and one future: nothing here is done
per row but checking and spelling it. The outbox is drained after every event. Bytes that are no
frame are refused (400) and touch nothing.

    POST /b/add  /b/read  /b/seal  /b/lac      frames of `wire.bookie_calls`

Called by the data server. Source: 03-api "Data-plane calls", 02-storage "Adds and reads".
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, assert_never

from duramen.core.bookie import BookieCore
from duramen.core.bookie_state import (
    AddRow,
    CheckSegment,
    Effect,
    MarksAnswer,
    Persist,
    ReadEntries,
    ReplyMarks,
    ReplyStatuses,
    RequestId,
    StartTimer,
)
from duramen.core.status import BookieStatus
from duramen.ids import LedgerId
from duramen.runtime.http_server import Answer
from duramen.wire.bookie_calls import (
    Add,
    Marks,
    ReadAnswer,
    pack_marks,
    pack_read_answers,
    pack_statuses,
    parse_adds,
    parse_lacs,
    parse_reads,
    parse_seals,
)
from duramen.wire.entry import EntryError, check_entry
from duramen.wire.frame import FrameError
from duramen.wire.journal_format import record_bytes
from duramen_bookie.journal import JournalPoisoned
from duramen_bookie.storage import ReadResult, Storage

_FRAME: Final = "application/octet-stream"
_TEXT: Final = "text/plain; charset=utf-8"


class StoppingError(Exception):
    """The bookie stops: the request's fate is open, its records may or may not become durable."""


class DataPlane:
    """Carries requests to the core and its effects out.

    Args:
        core: of this incarnation, already replayed.
        storage: journal and index, started; tells `drain` when something became durable.
        check_segment: read a segment node for the core (R10), report to `on_segment_checked`.
    """

    def __init__(
        self, core: BookieCore, storage: Storage, check_segment: Callable[[LedgerId], None]
    ) -> None:
        self._core = core
        self._storage = storage
        self._check_segment = check_segment
        self._numbers = itertools.count(1)
        self._waiting: dict[RequestId, asyncio.Future[Any]] = {}
        self._timers: dict[RequestId, asyncio.TimerHandle] = {}
        self._stopped: str | None = None
        self._request_counts = dict.fromkeys(("/b/add", "/b/read", "/b/seal", "/b/lac"), 0)
        self._refused_count = 0

    async def handle(self, path: str, body: bytes) -> Answer:
        """Answer one POST."""
        if path not in self._request_counts:
            return 404, _TEXT, b"no such call"
        if self._stopped is not None:
            return 503, _TEXT, self._stopped.encode()
        self._request_counts[path] += 1
        try:
            if path == "/b/add":
                return 200, _FRAME, await self._add(body)
            if path == "/b/read":
                return 200, _FRAME, await self._read(body)
            if path == "/b/seal":
                return 200, _FRAME, await self._seal(body)
            return 200, _FRAME, await self._lac(body)
        except FrameError as error:
            self._refused_count += 1
            return 400, _TEXT, str(error).encode()
        except StoppingError as error:
            return 503, _TEXT, str(error).encode()

    def on_segment_checked(self, ledger_id: LedgerId, *, is_open: bool) -> None:
        """A segment node was read for the core."""
        self._core.on_segment_checked(ledger_id, is_open=is_open)
        self.drain()

    def stop(self, sentence: str) -> None:
        """Refuse everything from now on, and end what waits; its fate is open."""
        self._stopped = self._stopped or sentence
        for future in list(self._waiting.values()):
            if not future.done():
                future.set_exception(StoppingError(self._stopped))
        for timer in self._timers.values():
            timer.cancel()

    def drain(self) -> None:
        """Carry out what the core has left in its outbox."""
        self._drain((), ())

    def statistics(self) -> dict[str, Any]:
        """Requests by call, and what waits."""
        return {
            "requests": dict(self._request_counts),
            "requests_waiting": len(self._waiting),
            "frames_refused": self._refused_count,
        }

    # --- Calls -----------------------------------------------------------------------------------

    async def _add(self, body: bytes) -> bytes:
        incarnation, adds = parse_adds(body)
        entries = [bytes(add.entry) for add in adds]
        rows = list(map(_check_add, adds, entries))
        size = sum([record_bytes(len(entry)) for entry in entries])
        is_urgent = all(add.is_recovery for add in adds)
        has_room = self._storage.has_room(size, is_urgent=is_urgent)
        request, future = self._open_request()
        self._core.on_adds(request, incarnation, rows, has_room=has_room)
        self._drain(adds, entries)
        statuses: Sequence[BookieStatus] = await self._wait(request, future)
        return pack_statuses(statuses)

    async def _read(self, body: bytes) -> bytes:
        incarnation, reads = parse_reads(body)
        self._require_room(sum([read.seal_epoch > 0 for read in reads]))
        request, future = self._open_request()
        self._core.on_reads(request, incarnation, reads)
        self.drain()
        answers: Sequence[ReadAnswer] = await self._wait(request, future)
        return pack_read_answers(answers)

    async def _seal(self, body: bytes) -> bytes:
        incarnation, seals = parse_seals(body)
        self._require_room(len(seals))
        request, future = self._open_request()
        self._core.on_seals(request, incarnation, seals)
        self.drain()
        marks: Sequence[MarksAnswer] = await self._wait(request, future)
        return pack_marks(b"DSLR", [Marks(*mark) for mark in marks])

    async def _lac(self, body: bytes) -> bytes:
        incarnation, updates = parse_lacs(body)
        self._require_room(len(updates))
        request, future = self._open_request()
        self._core.on_lacs(request, incarnation, updates)
        self.drain()
        marks: Sequence[MarksAnswer] = await self._wait(request, future)
        return pack_marks(b"DLCR", [Marks(*mark) for mark in marks])

    def _require_room(self, record_count: int) -> None:
        """Raises StoppingError before the core sees what the journal's reserve could not take."""
        size = record_count * record_bytes(0)
        if size and not self._storage.has_room(size, is_urgent=True):
            raise StoppingError("the journal's queue is full")

    def _open_request(self) -> tuple[RequestId, asyncio.Future[Any]]:
        request = RequestId(next(self._numbers))
        future = asyncio.get_running_loop().create_future()
        self._waiting[request] = future
        return request, future

    async def _wait(self, request: RequestId, future: asyncio.Future[Any]) -> Any:
        try:
            return await future
        finally:
            del self._waiting[request]
            timer = self._timers.pop(request, None)
            if timer is not None:
                timer.cancel()
                self._core.on_abandoned(request)  # nothing, unless the client went away

    # --- Effects ---------------------------------------------------------------------------------

    def _drain(self, adds: Sequence[Add], entries: Sequence[bytes]) -> None:
        """`adds` and `entries`: of the request that was just given to the core, if it is an add."""
        while self._core.outbox:
            effects, self._core.outbox = self._core.outbox, []
            for effect in effects:
                self._carry_out(effect, adds, entries)

    def _carry_out(self, effect: Effect, adds: Sequence[Add], entries: Sequence[bytes]) -> None:
        match effect:
            case Persist():
                self._persist(effect, adds, entries)
            case ReplyStatuses(request=request, statuses=statuses):
                self._reply(request, statuses)
            case ReplyMarks(request=request, marks=marks):
                self._reply(request, marks)
            case ReadEntries():
                self._read_entries(effect)
            case StartTimer(request=request, wait_ms=wait_ms):
                loop = asyncio.get_running_loop()
                self._timers[request] = loop.call_later(wait_ms / 1e3, self._on_timer, request)
            case CheckSegment(ledger_id=ledger_id):
                self._check_segment(ledger_id)
            case _:
                assert_never(effect)

    def _persist(self, persist: Persist, adds: Sequence[Add], entries: Sequence[bytes]) -> None:
        try:
            is_queued = self._storage.append_nowait(persist, adds, entries)
        except JournalPoisoned as error:
            self.stop(f"the journal has failed: {error}")
            return
        if not is_queued:
            self.stop("the bookie is stopping")

    def _reply(self, request: RequestId, answer: object) -> None:
        future = self._waiting.get(request)
        if future is not None and not future.done():
            future.set_result(answer)

    def _read_entries(self, effect: ReadEntries) -> None:
        readings, is_short = self._storage.select(effect.plans)
        if is_short:
            self._on_read(effect.request, self._storage.read(readings))
            return
        loop = asyncio.get_running_loop()
        reading = loop.run_in_executor(self._storage.readers, self._storage.read, readings)
        reading.add_done_callback(partial(self._on_read_done, effect.request))

    def _on_read_done(self, request: RequestId, reading: asyncio.Future[ReadResult]) -> None:
        if not reading.cancelled():
            self._on_read(request, reading.result())

    def _on_read(self, request: RequestId, result: ReadResult) -> None:
        for ledger_id, entry_id in result.unreadable:
            self._core.on_unreadable(ledger_id, entry_id)
        self._reply(request, result.answers)

    def _on_timer(self, request: RequestId) -> None:
        self._core.on_wait_over(request)
        self.drain()


def _check_add(add: Add, entry: bytes) -> AddRow:
    """Verify an entry before the core sees it (BK#1046)."""
    try:
        info = check_entry(entry)
    except EntryError:
        return AddRow(add.ledger_id, add.entry_id, add.lac, 0, add.is_recovery, False)
    is_valid = info.ledger_id == add.ledger_id and info.entry_id == add.entry_id
    return AddRow(add.ledger_id, add.entry_id, add.lac, info.crc, add.is_recovery, is_valid)
