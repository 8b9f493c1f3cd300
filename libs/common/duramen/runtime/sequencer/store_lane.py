"""One lane of entries to one bookie incarnation: frames of what arrived meanwhile.

Logs take turns, an add each. What an answer or its absence says of the bookie goes to the lists
(`node_watch`), what it says of an entry to whoever asked.

A *patient* lane insists: who is overloaded is asked again, when it says, and only one that stays so
for the whole time-out fails its member, since a striped log has no other bookie for the entry. A
lane of waves does not: its logs have other nodes. What did not leave it in time has surely stored
nothing, and what would wait behind too much is refused at once, while the bookie counts as slow.

Called by `bookie_lanes`. Source: docs/protocol/write.md "Window and flush", docs/protocol/waves.md
"What the window bounds".
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Coroutine
from typing import Any, Final, NamedTuple, Protocol

from duramen.core.status import BookieStatus
from duramen.ids import EntryId, Epoch, LogId, Member, epoch_of, log_of
from duramen.limits import OVERLOADED_PAUSE_US, STORE_TIMEOUT_US
from duramen.runtime.http_client import NoAnswerError, OverloadedError, UnreachableError
from duramen.runtime.sequencer.node_watch import NodeWatch
from duramen.units import MIB, SECOND
from duramen.wire import bookie_calls as calls
from duramen.wire.frame import FrameError

_FRAME_BYTES: Final = 4 * MIB
"""A frame is closed here: larger ones gain no throughput and delay the acks of the first adds."""

_FRAMES_IN_FLIGHT: Final = 3
"""Enough that the journal of a bookie never waits for the network."""

WAVE_BYTES_MAX: Final = 32 * MIB
"""What waits of all logs' waves for one bookie: beyond it is slow, whatever it answers."""

_OVERLOADED: Final = BookieStatus.OVERLOADED
_NOT_SENT: Final = BookieStatus.UNREACHABLE


class AddSink(Protocol):
    """Who asked for a store. `flush` ends a batch of events."""

    def on_add(self, member: Member, epoch: Epoch, entry: EntryId, status: BookieStatus) -> None:
        """An add was answered."""

    def flush(self) -> None:
        """Act on what the events led to."""


class Network(Protocol):
    """What a lane needs of all of them; raises as `PeerClient.call`."""

    watch: NodeWatch

    async def post(self, member: Member, path: str, body: bytes, timeout_us: int) -> bytes:
        """One call to a bookie."""

    async def insist(self, member: Member, path: str, body: bytes, timeout_us: int) -> bytes:
        """As `post`, but asks an overloaded bookie again."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a call beside the loop."""


class WaitingAdd(NamedTuple):
    """An entry on its way to one bookie."""

    add: calls.Add
    sink: AddSink
    asked_us: int


_Answer = tuple[WaitingAdd, BookieStatus]


class StoreLane:
    """Entries to one bookie incarnation."""

    def __init__(self, member: Member, network: Network, *, is_patient: bool) -> None:
        self.member = member
        self._network = network
        self._is_patient = is_patient
        self._waiting: dict[LogId, deque[WaitingAdd]] = {}
        """Per log in the order of its turns; no log without adds."""
        self._waiting_count = 0
        self._waiting_bytes = 0
        self._in_flight = 0
        self._is_kicked = False
        self._frame_count = 0
        self._add_count = 0
        self._refused_count = 0
        self._unsent_count = 0

    def push(self, waiting: WaitingAdd) -> None:
        """Queue an entry behind those of its log."""
        size = len(waiting.add.entry)
        if not self._is_patient and self._waiting_bytes + size > WAVE_BYTES_MAX:
            self._network.watch.on_late(self.member, self._oldest_us())
            self._unsent_count += 1
            # Not at once: its log is in the middle of what made it ask.
            asyncio.get_running_loop().call_soon(self._report, [(waiting, _NOT_SENT)])
            return
        self._waiting.setdefault(log_of(waiting.add.ledger_id), deque()).append(waiting)
        self._waiting_count += 1
        self._waiting_bytes += size
        if not self._is_kicked and self._in_flight < _FRAMES_IN_FLIGHT:
            # Adds of other logs that this round of the loop brings share the frame.
            self._is_kicked = True
            asyncio.get_running_loop().call_soon(self._kick)

    def statistics(self) -> dict[str, int]:
        """What waits and is under way, and what was sent."""
        return {
            "waiting_count": self._waiting_count,
            "waiting_logs": len(self._waiting),
            "waiting_bytes": self._waiting_bytes,
            "frames_in_flight": self._in_flight,
            "frames": self._frame_count,
            "adds": self._add_count,
            "adds_overloaded": self._refused_count,
            "adds_not_sent": self._unsent_count,
        }

    def _oldest_us(self) -> int:
        return min(adds[0].asked_us for adds in self._waiting.values())

    def _kick(self) -> None:
        self._is_kicked = False
        if not self._is_patient:
            self._drop_late()
        while self._waiting and self._in_flight < _FRAMES_IN_FLIGHT:
            self._in_flight += 1
            self._network.spawn(self._send(self._take()))

    def _drop_late(self) -> None:
        """Give back what waited for too long: it is stored nowhere, and its log knows others."""
        since_us = _read_clock_us() - STORE_TIMEOUT_US
        late = [
            adds.popleft()
            for adds in list(self._waiting.values())
            for _ in range(sum(waiting.asked_us <= since_us for waiting in adds))
        ]
        if not late:
            return
        self._waiting = {log_id: adds for log_id, adds in self._waiting.items() if adds}
        self._waiting_count -= len(late)
        self._waiting_bytes -= sum(len(waiting.add.entry) for waiting in late)
        self._unsent_count += len(late)
        self._report([(waiting, _NOT_SENT) for waiting in late])

    def _take(self) -> list[WaitingAdd]:
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

    async def _send(self, frame: list[WaitingAdd]) -> None:
        """Send a frame; a patient lane sends again, after a pause, what there was no room for."""
        deadline_us = _read_clock_us() + STORE_TIMEOUT_US
        watch = self._network.watch
        while frame:
            sent_us = _read_clock_us()
            try:
                statuses = await self._ask(frame, deadline_us - sent_us)
            except (UnreachableError, NoAnswerError, FrameError) as error:
                watch.on_failed(self.member, status_of(error), sent_us)
                self._fail(frame, error)
                break
            watch.on_answered(self.member, statuses, sent_us)
            refused: list[WaitingAdd] = []
            if self._is_patient and _read_clock_us() + OVERLOADED_PAUSE_US < deadline_us:
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

    async def _ask(self, frame: list[WaitingAdd], timeout_us: int) -> list[BookieStatus]:
        """One status for each add; raises as `insist`, and FrameError."""
        body = calls.pack_adds(self.member.incarnation, [waiting.add for waiting in frame])
        ask = self._network.insist if self._is_patient else self._network.post
        answer = await ask(self.member, "/b/add", body, timeout_us)
        statuses = calls.parse_statuses(answer)
        if len(statuses) != len(frame):
            raise FrameError("the answer has another number of rows")
        return statuses

    def _fail(self, frame: list[WaitingAdd], error: Exception) -> None:
        """Nobody answered for these adds."""
        if isinstance(error, UnreachableError):
            # Nobody is there: what waits behind would only wait for the same answer.
            frame = [*frame, *(add for adds in self._waiting.values() for add in adds)]
            self._waiting.clear()
            self._waiting_count = self._waiting_bytes = 0
        status = status_of(error)
        self._report([(waiting, status) for waiting in frame])

    def _report(self, answers: list[_Answer]) -> None:
        sinks: dict[int, AddSink] = {}
        for (add, sink, _), status in answers:
            sink.on_add(self.member, epoch_of(add.ledger_id), add.entry_id, status)
            sinks[id(sink)] = sink
        for sink in sinks.values():
            sink.flush()


def status_of(error: Exception) -> BookieStatus:
    """What a failed call says of what it carried: UNREACHABLE alone says that nobody had it."""
    if isinstance(error, UnreachableError):
        return BookieStatus.UNREACHABLE
    if isinstance(error, OverloadedError):
        return BookieStatus.OVERLOADED
    return BookieStatus.TIMEOUT


def _read_clock_us() -> int:
    return time.monotonic_ns() // 1_000
