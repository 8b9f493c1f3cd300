"""Lanes to bookies, two per incarnation: frames that carry the adds, or write-backs, of many logs.

The next frame is what arrived while the previous ones were under way, so frames grow with load and
there is no timer; the logs that wait take turns, so that one with much to send (to a member that
catches up, above all) delays the others by one add each. Library failures become statuses here: a
core never sees an exception, only UNREACHABLE (not processed) or TIMEOUT (perhaps processed). A
bookie that is overloaded is alive: it is asked again when it says, and only one that stays so for
the whole time-out fails its member.
Seals, recovery reads and LAC writes are rare and go as calls of their own.

Called by `log_driver`; reports to `Sink`. Source: docs/protocol/write.md "Window and flush", R1.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, Protocol

from duramen.core.sequencer.effects import SendAdd, SendLac, SendRecoveryRead, SendSeal, StoredEntry
from duramen.core.status import BookieStatus
from duramen.ids import (
    NOTHING,
    BookieId,
    EntryId,
    Epoch,
    LogId,
    Member,
    epoch_of,
    ledger_of,
    log_of,
)
from duramen.limits import (
    ENTRY_BYTES_MAX,
    OVERLOADED_PAUSE_US,
    READ_TIMEOUT_US,
    SEAL_TIMEOUT_US,
    STORE_TIMEOUT_US,
)
from duramen.runtime.http_client import (
    NoAnswerError,
    OverloadedError,
    PeerClient,
    UnreachableError,
)
from duramen.runtime.sequencer.node_watch import NodeWatch
from duramen.units import MIB, SECOND
from duramen.wire import bookie_calls as calls
from duramen.wire.entry import EntryError, check_entry
from duramen.wire.frame import FrameError

_FRAME_BYTES = 4 * MIB
"""A frame is closed here: larger ones gain no throughput and delay the acks of the first adds."""

_OVERLOADED = BookieStatus.OVERLOADED

_FRAMES_IN_FLIGHT = 3
"""Enough that the journal of a bookie never waits for the network."""


class Sink(Protocol):
    """Who asked: one log's driver. Every method is one event; `flush` ends a batch of them."""

    def on_add(self, member: Member, epoch: Epoch, entry: EntryId, status: BookieStatus) -> None:
        """An add was answered."""

    def on_lac(self, member: Member, epoch: Epoch, status: BookieStatus, round_id: int) -> None:
        """A LAC write was answered."""

    def on_seal(self, member: Member, epoch: Epoch, marks: calls.Marks) -> None:
        """A seal was answered."""

    def on_read(
        self,
        member: Member,
        epoch: Epoch,
        entry: EntryId,
        status: BookieStatus,
        stored: StoredEntry | None,
    ) -> None:
        """A recovery read was answered."""

    def flush(self) -> None:
        """Act on what the events led to."""


class _WaitingAdd(NamedTuple):
    add: calls.Add
    sink: Sink


class BookieLanes:
    """All lanes of a process that owns logs.

    Args:
        client: shared by all lanes.
        find_url: where a bookie was last seen, or None.
        watch: told what stores meet.
    """

    def __init__(
        self, client: PeerClient, find_url: Callable[[BookieId], str | None], watch: NodeWatch
    ) -> None:
        self.watch = watch
        self._client = client
        self._find_url = find_url
        self._lanes: dict[tuple[Member, calls.ServiceClass], _Lane] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopped = False
        self._overloaded_count = 0

    def add(self, effect: SendAdd, sink: Sink) -> None:
        """Queue an add for its bookie."""
        service = calls.ServiceClass.RECOVERY if effect.is_recovery else calls.ServiceClass.APPEND
        key = (effect.member, service)
        lane = self._lanes.get(key)
        if lane is None:
            # A lane of its own each: a bookie that is full of appends must not hold recovery up.
            lane = self._lanes[key] = _Lane(effect.member, self)
        add = calls.Add(
            effect.ledger_id,
            effect.entry,
            effect.lac,
            effect.payload,
            effect.is_recovery,
            service,
        )
        lane.push(_WaitingAdd(add, sink))

    def seal(self, effect: SendSeal, sink: Sink) -> None:
        """Seal, and report the marks."""
        self.spawn(self._seal(effect, sink))

    def read(self, effect: SendRecoveryRead, sink: Sink) -> None:
        """Read an entry for recovery, sealing on the way."""
        self.spawn(self._read(effect, sink))

    def send_lac(self, effect: SendLac, sink: Sink) -> None:
        """Write a LAC."""
        self.spawn(self._send_lac(effect, sink))

    def statistics(self) -> dict[str, Any]:
        """What waits and is under way per bookie and class, and calls that met an overload."""
        return {
            "calls_overloaded": self._overloaded_count,
            **self.watch.statistics(),
            "by_bookie": {
                f"{member.bookie} {service.name.lower()}": lane.statistics()
                for (member, service), lane in self._lanes.items()
            },
        }

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a call beside the loop, kept until it ends; nothing after `stop`."""
        if self._is_stopped:
            work.close()
            return
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """End what is under way: nobody is told of it, and nothing begins any more."""
        self._is_stopped = True
        self.watch.stop()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def post(self, member: Member, path: str, body: bytes, timeout_us: int) -> bytes:
        """One call to a bookie; raises as PeerClient.call, also if its address is not known."""
        url = self._find_url(member.bookie)
        if url is None:
            raise UnreachableError(f"{member.bookie} has never been seen")
        return await self._client.call(url + path, body, timeout_us)

    async def insist(self, member: Member, path: str, body: bytes, timeout_us: int) -> bytes:
        """As `post`, but asks an overloaded bookie again, when it says and while there is time."""
        deadline_us = _read_clock_us() + timeout_us
        while True:
            try:
                return await self.post(member, path, body, deadline_us - _read_clock_us())
            except OverloadedError as error:
                self._overloaded_count += 1
                if _read_clock_us() + error.retry_after_us >= deadline_us:
                    raise
                await asyncio.sleep(error.retry_after_us / SECOND)

    async def _seal(self, effect: SendSeal, sink: Sink) -> None:
        ledger_id = ledger_of(effect.log_id, effect.epoch)
        body = calls.pack_seals(
            effect.member.incarnation, [calls.Seal(effect.log_id, effect.epoch, ledger_id)]
        )
        try:
            answer = await self.insist(effect.member, "/b/seal", body, SEAL_TIMEOUT_US)
            (marks,) = calls.parse_marks(answer, b"DSLR")
        except (UnreachableError, NoAnswerError, FrameError, ValueError) as error:
            marks = calls.Marks(_status_of(error), NOTHING, NOTHING)
        sink.on_seal(effect.member, effect.epoch, marks)
        sink.flush()

    async def _send_lac(self, effect: SendLac, sink: Sink) -> None:
        # A read proves no round: a member that is sealed answers it.
        is_write = effect.lac > NOTHING or effect.round_id > 0
        update = calls.LacUpdate(effect.ledger_id, effect.lac, is_write=is_write)
        body = calls.pack_lacs(effect.member.incarnation, [update])
        try:
            answer = await self.insist(effect.member, "/b/lac", body, STORE_TIMEOUT_US)
            (marks,) = calls.parse_marks(answer, b"DLCR")
            status = marks.status
        except (UnreachableError, NoAnswerError, FrameError, ValueError) as error:
            status = _status_of(error)
        sink.on_lac(effect.member, epoch_of(effect.ledger_id), status, effect.round_id)
        sink.flush()

    async def _read(self, effect: SendRecoveryRead, sink: Sink) -> None:
        epoch = epoch_of(effect.ledger_id)
        wanted = calls.ReadRange(
            effect.ledger_id,
            effect.entry,
            effect.entry,
            ENTRY_BYTES_MAX,
            seal_epoch=epoch,
            service=calls.ServiceClass.RECOVERY,
        )
        body = calls.pack_reads(effect.member.incarnation, [wanted])
        stored = None
        try:
            answer = await self.post(effect.member, "/b/read", body, READ_TIMEOUT_US)
            (found,) = calls.parse_read_answers(answer)
            status = found.status
            if status is BookieStatus.OK:
                ((entry_id, view),) = found.entries
                payload = bytes(view)
                info = check_entry(payload)
                if (entry_id, info.ledger_id) != (effect.entry, effect.ledger_id):
                    raise EntryError("another entry was returned")
                stored = StoredEntry(payload, info.totals, info.has_state)
        except (UnreachableError, NoAnswerError) as error:
            status = _status_of(error)
        except (FrameError, EntryError, ValueError):
            status = BookieStatus.UNKNOWN
        sink.on_read(effect.member, epoch, effect.entry, status, stored)
        sink.flush()


class _Lane:
    """Adds to one bookie incarnation."""

    def __init__(self, member: Member, lanes: BookieLanes) -> None:
        self.member = member
        self._lanes = lanes
        self._waiting: dict[LogId, deque[_WaitingAdd]] = {}
        """Per log in the order of its turns; no log without adds."""
        self._waiting_count = 0
        self._waiting_bytes = 0
        self._in_flight = 0
        self._is_kicked = False
        self._frame_count = 0
        self._add_count = 0
        self._refused_count = 0

    def push(self, waiting: _WaitingAdd) -> None:
        self._waiting.setdefault(log_of(waiting.add.ledger_id), deque()).append(waiting)
        self._waiting_count += 1
        self._waiting_bytes += len(waiting.add.entry)
        if not self._is_kicked and self._in_flight < _FRAMES_IN_FLIGHT:
            # Adds of other logs that this round of the loop brings share the frame.
            self._is_kicked = True
            asyncio.get_running_loop().call_soon(self._kick)

    def statistics(self) -> dict[str, int]:
        return {
            "waiting_count": self._waiting_count,
            "waiting_logs": len(self._waiting),
            "waiting_bytes": self._waiting_bytes,
            "frames_in_flight": self._in_flight,
            "frames": self._frame_count,
            "adds": self._add_count,
            "adds_overloaded": self._refused_count,
        }

    def _kick(self) -> None:
        self._is_kicked = False
        while self._waiting and self._in_flight < _FRAMES_IN_FLIGHT:
            self._in_flight += 1
            self._lanes.spawn(self._send(self._take()))

    def _take(self) -> list[_WaitingAdd]:
        frame = []
        size = 0
        while self._waiting and size < _FRAME_BYTES:
            log_id = next(iter(self._waiting))
            adds = self._waiting.pop(log_id)
            waiting = adds.popleft()
            if adds:
                self._waiting[log_id] = adds  # behind the others: their turn is next
            size += len(waiting.add.entry)
            frame.append(waiting)
        self._waiting_count -= len(frame)
        self._waiting_bytes -= size
        self._frame_count += 1
        self._add_count += len(frame)
        return frame

    async def _send(self, frame: list[_WaitingAdd]) -> None:
        """Send a frame; the adds for which the bookie has no room are sent again after a pause."""
        deadline_us = _read_clock_us() + STORE_TIMEOUT_US
        watch = self._lanes.watch
        while frame:
            sent_us = _read_clock_us()
            try:
                statuses = await self._ask(frame, deadline_us - sent_us)
            except (UnreachableError, NoAnswerError, FrameError) as error:
                watch.on_failed(self.member, _status_of(error), sent_us)
                self._fail(frame, error)
                break
            watch.on_answered(self.member, statuses, sent_us)
            refused: list[_WaitingAdd] = []
            if _read_clock_us() + OVERLOADED_PAUSE_US < deadline_us:
                refused = [
                    add
                    for add, status in zip(frame, statuses, strict=True)
                    if status is _OVERLOADED
                ]
            answers = zip(frame, statuses, strict=True)
            self._report([pair for pair in answers if not refused or pair[1] is not _OVERLOADED])
            frame = refused
            if refused:
                self._refused_count += len(refused)
                await asyncio.sleep(OVERLOADED_PAUSE_US / SECOND)
        self._in_flight -= 1
        self._kick()

    async def _ask(self, frame: list[_WaitingAdd], timeout_us: int) -> list[BookieStatus]:
        """One status for each add; raises as `insist`, and FrameError."""
        body = calls.pack_adds(self.member.incarnation, [waiting.add for waiting in frame])
        answer = await self._lanes.insist(self.member, "/b/add", body, timeout_us)
        statuses = calls.parse_statuses(answer)
        if len(statuses) != len(frame):
            raise FrameError("the answer has another number of rows")
        return statuses

    def _fail(self, frame: list[_WaitingAdd], error: Exception) -> None:
        """Nobody answered for these adds."""
        if isinstance(error, UnreachableError):
            # Nobody is there: what waits behind would only wait for the same answer.
            frame = [*frame, *(add for adds in self._waiting.values() for add in adds)]
            self._waiting.clear()
            self._waiting_count = self._waiting_bytes = 0
        status = _status_of(error)
        self._report([(waiting, status) for waiting in frame])

    def _report(self, answers: list[tuple[_WaitingAdd, BookieStatus]]) -> None:
        sinks: dict[int, Sink] = {}
        for (add, sink), status in answers:
            sink.on_add(self.member, epoch_of(add.ledger_id), add.entry_id, status)
            sinks[id(sink)] = sink
        for sink in sinks.values():
            sink.flush()


def _status_of(error: Exception) -> BookieStatus:
    if isinstance(error, UnreachableError):
        return BookieStatus.UNREACHABLE
    if isinstance(error, OverloadedError):
        return BookieStatus.OVERLOADED
    return BookieStatus.TIMEOUT


def _read_clock_us() -> int:
    return time.monotonic_ns() // 1_000
