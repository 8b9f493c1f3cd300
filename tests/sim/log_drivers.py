"""Simulated driver of one log and its lanes: `log_driver` and `bookie_lanes` in virtual time.

`SimDriver` runs a production LogSequencer: effects in order, one flush a batch of events, append
answers final. `SimLane` sends frames of what waits, three under way; UNREACHABLE spares what waits
behind. What checkers must know (entries acknowledged, covers, conclusions) is read off the cores
after each batch of events, before the effects leave.

Called by `sequencers`. Documented in docs/testing.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from duramen.core.segment import Segment
from duramen.core.sequencer import effects as fx
from duramen.core.sequencer.ledger_writer import LedgerWriter, WriterState
from duramen.core.sequencer.log_sequencer import LogSequencer, LogState
from duramen.core.sequencer.recovery import Recovery, RecoveryState
from duramen.core.sequencer.surroundings import Surroundings
from duramen.core.sequencer.transmit import QueuedAppend
from duramen.core.status import BookieStatus
from duramen.errors import DuramenError
from duramen.ids import (
    NOTHING,
    EntryId,
    Epoch,
    LedgerId,
    LogId,
    Member,
    SequencerId,
    epoch_of,
    ledger_of,
)
from duramen.limits import ENTRY_BYTES_MAX, READ_TIMEOUT_US, SEAL_TIMEOUT_US, STORE_TIMEOUT_US
from duramen.runtime.sequencer import log_driver as production
from duramen.runtime.sequencer.history import range_of, read_whole
from duramen.runtime.sequencer.metadata_link import MetadataLink
from duramen.units import MIB, SECOND
from duramen.wire.bookie_calls import Add, LacUpdate, ReadRange, Seal, Service
from duramen.wire.entry import EntryError, check_entry
from duramen.wire.sequencer_calls import AlreadyStored, AppendedEarly, AppendResult
from tests.sim.network import OnAnswer
from tests.sim.node_loop import Promise
from tests.sim.world import World

_FRAME_BYTES: Final = 4 * MIB
_FRAMES_IN_FLIGHT: Final = 3
_OWED_RETRY_US: Final = 1 * SECOND
_BEFORE_COVER: Final = (RecoveryState.MARK, RecoveryState.SEAL)
Answer = Callable[[AppendResult], None]


class Host(Protocol):
    """What a driver needs of its sequencer process."""

    name: str
    world: World
    sequencer_id: SequencerId
    around: Surroundings
    watcher: Watcher
    link: MetadataLink

    def add(self, effect: fx.SendAdd, driver: SimDriver) -> None:
        """Queue an add for its bookie."""

    def post(
        self, member: Member, kind: str, rows: Any, timeout_us: int, on_answer: OnAnswer
    ) -> None:
        """One call to a bookie."""

    def kick(self) -> None:
        """The end of an event: frames and answers leave."""

    def resubmit(self, log_id: LogId, append: QueuedAppend, answer: Answer) -> None:
        """Route anew what a log gave back unsent."""

    def on_idle(self, driver: SimDriver) -> None:
        """The log is nobody's here any more."""

    def on_broken(self, driver: SimDriver) -> None:
        """An invariant of the log's core is broken."""

    def after(self, delay_us: int, action: Callable[..., None], *args: Any) -> None:
        """An event of this process later on."""

    def spawn(self, work: Any, on_done: Callable[[Any], None] | None = None) -> None:
        """Run a production coroutine."""


class Watcher(Protocol):
    """What is told of the decisions that sequencers take."""

    def on_entry_acknowledged(
        self, now_us: int, segment: Segment, entry_id: EntryId, crc: int
    ) -> None:
        """The writer has acknowledged an entry."""

    def on_sealed_by_cover(
        self, author: str, log_id: LogId, epoch: Epoch, responders: tuple[Member, ...]
    ) -> None:
        """A recovery's seals cover every ack set."""

    def on_conclusion(self, segment: Segment, sequencer_id: SequencerId) -> None:
        """A sequencer knows that its own close is in force."""

    def on_memory(self, now_us: int, what: str, size: int, bound: int) -> None:
        """Something that is bounded."""


class Waiting(NamedTuple):
    add: Add
    driver: SimDriver


class SimLane:
    """Adds to one bookie incarnation, as `bookie_lanes._Lane`."""

    def __init__(self, node: Host, member: Member) -> None:
        self._node = node
        self._member = member
        self._waiting: deque[Waiting] = deque()
        self._in_flight = 0

    def push(self, waiting: Waiting) -> None:
        self._waiting.append(waiting)

    def kick(self) -> None:
        """Send what waits, as far as frames may be under way."""
        while self._waiting and self._in_flight < _FRAMES_IN_FLIGHT:
            frame: list[Waiting] = []
            size = 0
            while self._waiting and size < _FRAME_BYTES:
                size += len(self._waiting[0].add.entry)
                frame.append(self._waiting.popleft())
            self._in_flight += 1
            if len(frame) > 1 and len({w.driver.log_id for w in frame}) > 1:
                self._node.world.counts["shared frame"] += 1
            is_counted = [True]

            def on_answer(
                status: BookieStatus,
                value: Any,
                frame: list[Waiting] = frame,
                is_counted: list[bool] = is_counted,
            ) -> None:
                self._report(frame, status, value, is_counted)

            self._node.post(
                self._member, "add", [w.add for w in frame], STORE_TIMEOUT_US, on_answer
            )

    def _report(
        self, frame: list[Waiting], status: BookieStatus, value: Any, is_counted: list[bool]
    ) -> None:
        statuses = value if status is BookieStatus.OK else [status] * len(frame)
        if status is BookieStatus.UNREACHABLE:
            frame = [*frame, *self._waiting]
            statuses = [status] * len(frame)
            self._waiting.clear()
        if is_counted[0]:
            is_counted[0] = False
            self._in_flight -= 1
        drivers: dict[LogId, SimDriver] = {}
        world = self._node.world
        for (add, driver), row_status in zip(frame, statuses, strict=True):
            epoch = epoch_of(add.ledger_id)
            driver.core.on_add(self._member, epoch, add.entry_id, row_status, world.now_us)
            if row_status is BookieStatus.SEALED:
                world.counts["zombie add refused"] += 1
            drivers[driver.log_id] = driver
        for driver in drivers.values():
            driver.flush()
        self.kick()
        self._node.kick()


class SimDriver:
    """One log of a sequencer, as `log_driver.LogDriver`."""

    def __init__(self, node: Host, log_id: LogId) -> None:
        self.log_id = log_id
        self.core = LogSequencer(log_id, node.around)
        self._node = node
        self._waiting: dict[int, tuple[QueuedAppend, Answer]] = {}
        self._owed: dict[tuple[LedgerId, Member], fx.PersistOwed] = {}
        self._owed_bytes = 0
        self._timer_at_us: int | None = None
        self._writer: LedgerWriter | None = None
        self._writer_state: WriterState | None = None
        self._seen_lac = NOTHING
        self._change_count = 0
        self._suspended_count = 0
        self._crcs: dict[EntryId, int] = {}
        self._recoveries: dict[Recovery, str] = {}
        """Recoveries under way and the state in which each was seen last."""
        self._state = self._told_state = LogState.IDLE
        self._losses_taken = 0
        self._is_settled = False
        self._awaited: list[tuple[bool, Promise[None]]] = []
        """Who waits for the log to be idle (True) or settled (False)."""

    def append(self, append: QueuedAppend, answer: Answer) -> None:
        """Queue an append; its answer comes after some `flush`."""
        self._waiting[append.append_id] = (append, answer)
        self.core.append(append, self._node.world.now_us)

    def flush(self) -> None:
        """End a batch of events."""
        core = self.core
        core.pump(self._node.world.now_us)
        self._observe()
        if core.outbox:
            while effects := core.take_effects():
                for effect in effects:
                    self._act(effect)
            self._observe()
        if core.state is not self._told_state:
            self._tell_state()
        self._count_owed()
        self._set_timer()

    def stop_at(self) -> None:
        """As `log_driver.LogDriver.stop_at`: an invariant is broken, and what comes is dropped."""
        node = self._node
        node.world.note(node.name, f"log {self.log_id} stopped", repr(self.core))
        node.world.counts["log stopped by a broken invariant"] += 1
        # One that nobody asks for anything: to it, all answers are somebody else's.
        self.core = LogSequencer(self.log_id, node.around)
        self._writer, self._timer_at_us = None, None
        self._recoveries.clear()
        self._count_owed()
        node.around.rolls.leave(self.log_id)
        node.on_broken(self)
        waiting, self._waiting = self._waiting, {}
        for _, answer in waiting.values():
            answer(DuramenError("append_uncertain", "the log was stopped"))
        self._tell_state()

    # --- Ownership -------------------------------------------------------------------------------

    def take_over(self, *, close_only: bool = False, is_owner_gone: bool = False) -> None:
        """Begin to own the log, or to close what was left."""
        if self.core.state is LogState.IDLE:
            self._is_settled = False
        now_us = self._node.world.now_us
        unless_owned = close_only and not is_owner_gone
        self.core.take_over(now_us, close_only=close_only, unless_owned=unless_owned)

    @property
    def is_done(self) -> bool:
        """Nothing is under way and nobody waits for an answer."""
        return self.core.state is LogState.IDLE and not self._waiting

    def tried(self) -> frozenset[str]:
        """Every sequencer that one of the unanswered appends has been to in vain."""
        return frozenset(name for append, _ in self._waiting.values() for name in append.tried)

    def take_loss(self) -> bool:
        """Whether another sequencer took the log since the last question."""
        is_lost = self.core.loss_count > self._losses_taken
        self._losses_taken = self.core.loss_count
        return is_lost

    def until_idle(self, timeout_us: int) -> Promise[None]:
        """The log is nobody's here, or the time is over."""
        return self._until(True, self.core.state is LogState.IDLE, timeout_us)

    def until_settled(self, timeout_us: int) -> Promise[None]:
        """A takeover has come to an end, or the time is over."""
        return self._until(False, self._is_settled, timeout_us)

    def _until(self, is_idle: bool, is_so: bool, timeout_us: int) -> Promise[None]:
        promise: Promise[None] = Promise()
        if is_so:
            promise.settle(None)
        else:
            self._awaited.append((is_idle, promise))
            self._node.after(timeout_us, promise.settle, None)
        return promise

    def _tell_state(self) -> None:
        """As `log_driver.LogDriver._note_state`."""
        state = self._told_state = self.core.state
        if state not in (LogState.IDLE, LogState.ACTIVE):
            return
        self._is_settled = True
        awaited, self._awaited = self._awaited, []
        for is_idle, promise in awaited:
            if is_idle and state is not LogState.IDLE:
                self._awaited.append((is_idle, promise))
            else:
                # In the loop's next turn, like whoever waits for an event there.
                self._node.after(0, promise.settle, None)
        if state is LogState.IDLE:
            self._node.on_idle(self)

    # --- What the checkers and counters see ------------------------------------------------------

    def _observe(self) -> None:
        core, world = self.core, self._node.world
        if self._writer is not None:
            self._observe_writer(self._writer)
        if core.writer is not None and core.writer is not self._writer:
            self._writer, self._seen_lac, self._change_count = core.writer, NOTHING, 0
            self._suspended_count = 0
            self._crcs = {}
            self._writer_state = None
            self._observe_writer(core.writer)
        elif core.writer is None and self._writer is not None:
            self._writer = None
        if core.older.recoveries or self._recoveries:
            self._observe_recoveries()
        if core.state is not self._state:
            world.counts[f"log {self._state.value} → {core.state.value}"] += 1
            self._state = core.state
            world.note(self._node.name, f"log {self.log_id} {core.state.value}", repr(core))

    def _observe_writer(self, writer: LedgerWriter) -> None:
        world = self._node.world
        state, before = writer.state, self._writer_state
        if state is not before:
            seen = "new" if before is None else before.value
            world.counts[f"writer {seen} → {state.value}"] += 1
            self._writer_state = state
            if state is WriterState.FENCED:
                world.note(self._node.name, "fenced", writer.fence_reason)
        if writer.change_count != self._change_count:
            world.counts["ensemble change"] += writer.change_count - self._change_count
            self._change_count = writer.change_count
            world.note(self._node.name, "ensemble changed", repr(writer.segment))
        while self._seen_lac < writer.lac:
            self._seen_lac = EntryId(self._seen_lac + 1)
            self._node.watcher.on_entry_acknowledged(
                world.now_us, writer.segment, self._seen_lac, self._crcs.pop(self._seen_lac)
            )
        suspended_count = len(writer.suspended)
        if suspended_count != self._suspended_count:
            name = "suspended" if suspended_count > self._suspended_count else "resumed"
            world.counts[f"member {name}"] += 1
            self._suspended_count = suspended_count

    def _observe_recoveries(self) -> None:
        world, watcher = self._node.world, self._node.watcher
        under_way = self.core.older.recoveries
        for recovery in [r for r in self._recoveries if r not in under_way]:
            state = self._recoveries.pop(recovery)
            if recovery.is_done:
                world.counts[f"recovery {state} → done"] += 1
            if recovery.is_done and recovery.segment.is_closed:
                watcher.on_conclusion(recovery.segment, self._node.sequencer_id)
            else:
                world.counts["recovery overtaken"] += 1
            world.counts["entries written back"] += recovery.recovered_count
        for recovery in under_way:
            state, seen = recovery.state.value, self._recoveries.get(recovery, "")
            if state == seen:
                continue
            world.counts[f"recovery {seen or 'new'} → {state}"] += 1
            world.note(self._node.name, f"recovery {state}", repr(recovery))
            is_covered = recovery.state not in _BEFORE_COVER
            if is_covered and seen in ("", *(before.value for before in _BEFORE_COVER)):
                watcher.on_sealed_by_cover(
                    self._node.name, self.log_id, recovery.epoch, tuple(recovery._sealed)
                )
            self._recoveries[recovery] = state

    # --- Effects ---------------------------------------------------------------------------------

    def _act(self, effect: fx.Effect) -> None:
        node = self._node
        match effect:
            case fx.SendAdd():
                if not effect.is_recovery:
                    self._crcs[effect.entry] = int.from_bytes(effect.payload[4:8], "little")
                node.add(effect, self)
            case fx.Complete():
                node.world.counts["append was there before"] += effect.is_duplicate
                self._answer(effect.append_id, production._appended(effect))
            case fx.CompleteEarly(append_id, start, record_count, timestamp_ms):
                node.world.counts["append acknowledged early"] += 1
                self._answer(append_id, AppendedEarly(start, record_count, timestamp_ms))
            case fx.AlreadyStored(append_id):
                node.world.counts["append was there long before"] += 1
                self._answer(append_id, AlreadyStored())
            case fx.Fail():
                node.world.counts[f"append {effect.code}"] += 1
                self._answer(effect.append_id, production._failed(effect))
            case fx.Yield(append_id):
                node.world.counts["append yielded"] += 1
                append, answer = self._waiting.pop(append_id)
                node.resubmit(self.log_id, append, answer)
            case fx.SendLac():
                self._send_lac(effect)
            case fx.SendSeal():
                self._send_seal(effect)
            case fx.SendRead():
                self._send_read(effect)
            case fx.ReadMetadata():
                node.spawn(node.link.read_view(self.log_id), bind(self._on_view, effect.token))
            case fx.Commit():
                node.spawn(
                    node.link.commit(self.log_id, effect.writes),
                    bind(self._on_commit, effect.token),
                )
            case fx.PersistOwed():
                self._note_owed(effect)
            case fx.ReadSegment():
                node.spawn(
                    node.link.read_segment(self.log_id, effect.epoch),
                    bind(self._on_segment, effect.token),
                )
            case fx.ReadHistory():
                node.world.counts["history read"] += 1
                self._read_history(effect, list(effect.segment.write_set_of(effect.first)))

    def _answer(self, append_id: int, result: AppendResult) -> None:
        _, answer = self._waiting.pop(append_id)
        answer(result)

    def _on_view(self, token: int, view: fx.LogView | None) -> None:
        self.core.on_metadata(token, view, self._node.world.now_us)
        self._end_event()

    def _on_commit(self, token: int, outcome: fx.CommitOutcome) -> None:
        self._node.world.note(self._node.name, f"commit {outcome.value}", self.log_id)
        self._node.world.counts[f"outcome {outcome.value}"] += 1
        self.core.on_commit(token, outcome, self._node.world.now_us)
        self._end_event()

    def _on_segment(self, token: int, segment: Segment | None) -> None:
        self.core.on_segment(token, segment, self._node.world.now_us)
        self._end_event()

    def _read_history(self, effect: fx.ReadHistory, members: list[Member]) -> None:
        """As `duramen.runtime.sequencer.history`: one replica after the other."""
        if not members:
            self.core.on_history(effect.token, None, self._node.world.now_us)
            self._end_event()
            return
        member, *others = members
        wanted = range_of(effect)

        def on_answer(status: BookieStatus, value: Any) -> None:
            if status is BookieStatus.OK and value[0].status is BookieStatus.OK:
                entries = read_whole(
                    wanted.ledger_id, value[0].entries, is_headers_only=wanted.headers_only
                )
                if entries and entries[0].entry == effect.first:
                    self.core.on_history(effect.token, entries, self._node.world.now_us)
                    self._end_event()
                    return
            self._read_history(effect, others)

        self._node.post(member, "read", [wanted], READ_TIMEOUT_US, on_answer)

    def _end_event(self) -> None:
        self.flush()
        self._node.kick()

    def _send_lac(self, effect: fx.SendLac) -> None:
        is_write = effect.lac > NOTHING or effect.round_id > 0
        update = LacUpdate(effect.ledger_id, effect.lac, is_write=is_write)

        def on_answer(status: BookieStatus, value: Any) -> None:
            found = value[0].status if status is BookieStatus.OK else status
            epoch = epoch_of(effect.ledger_id)
            now_us = self._node.world.now_us
            self.core.on_lac(effect.member, epoch, found, now_us, effect.round_id)
            self._end_event()

        self._node.post(effect.member, "lac", [update], STORE_TIMEOUT_US, on_answer)

    def _send_seal(self, effect: fx.SendSeal) -> None:
        seal = Seal(effect.log_id, effect.epoch, ledger_of(effect.log_id, effect.epoch))

        def on_answer(status: BookieStatus, value: Any) -> None:
            found, lac, highest = status, NOTHING, NOTHING
            if status is BookieStatus.OK:
                found, lac, highest = value[0]
            self.core.on_seal(
                effect.member, effect.epoch, found, lac, highest, self._node.world.now_us
            )
            self._end_event()

        self._node.post(effect.member, "seal", [seal], SEAL_TIMEOUT_US, on_answer)

    def _send_read(self, effect: fx.SendRead) -> None:
        epoch = epoch_of(effect.ledger_id)
        wanted = ReadRange(
            effect.ledger_id, effect.entry, effect.entry, ENTRY_BYTES_MAX, seal_epoch=epoch,
            service=Service.RECOVERY,
        )  # fmt: skip

        def on_answer(status: BookieStatus, value: Any) -> None:
            found, stored = status, None
            if status is BookieStatus.OK:
                found = value[0].status
                if found is BookieStatus.OK:
                    found, stored = _check_read(effect, value[0].entries)
            self.core.on_read(
                effect.member, epoch, effect.entry, found, stored, self._node.world.now_us
            )
            self._end_event()

        self._node.post(effect.member, "read", [wanted], READ_TIMEOUT_US, on_answer)

    # --- Owed copies (R9) ------------------------------------------------------------------------

    def _count_owed(self) -> None:
        """As `log_driver.LogDriver._count_owed`."""
        owed_bytes = 0 if self.core.writer is None else self.core.writer.owed_bytes
        self._node.around.owed_bytes += owed_bytes - self._owed_bytes
        self._owed_bytes = owed_bytes

    def _note_owed(self, owed: fx.PersistOwed) -> None:
        key = (owed.ledger_id, owed.member)
        known = self._owed.get(key)
        self._node.world.counts["owed noted"] += 1
        if known is None:
            self._owed[key] = owed
            self._persist_owed(key)
        else:
            first, last = min(known.first, owed.first), max(known.last, owed.last)
            self._owed[key] = fx.PersistOwed(owed.ledger_id, owed.member, first, last)

    def _persist_owed(self, key: tuple[LedgerId, Member]) -> None:
        owed = self._owed[key]

        def on_done(is_persisted: bool) -> None:
            if not is_persisted:
                self._node.after(_OWED_RETRY_US, self._persist_owed, key)
            elif self._owed[key] != owed:
                self._persist_owed(key)
            else:
                del self._owed[key]
                self.core.on_owed_persisted(owed)
                self._end_event()

        self._node.spawn(self._node.link.persist_owed(owed), on_done)

    # --- Time ------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        now_us = self._node.world.now_us
        at_us = self.core.wakeup_at_us(now_us)
        if at_us is None:
            self._timer_at_us = None
            return
        at_us = max(at_us, now_us + 1)
        if self._timer_at_us is not None and now_us < self._timer_at_us <= at_us:
            return  # that one comes first and sets the next
        self._timer_at_us = at_us
        self._node.after(at_us - now_us, self._on_timer, at_us)

    def _on_timer(self, at_us: int) -> None:
        if self._timer_at_us == at_us:
            self._timer_at_us = None
            self.core.on_timer(self._node.world.now_us)
            self._end_event()

    def validate(self) -> None:
        """Assert the core's invariants and report its bounded sizes."""
        self.core.validate()
        writer, watcher, now_us = self.core.writer, self._node.watcher, self._node.world.now_us
        window = self.core.view.log.config.window if self.core.view is not None else None
        if window is not None:
            queued = len(self.core.transmit.queue)
            watcher.on_memory(now_us, "queued appends", queued, window.entries)
        if writer is not None and self.core.view is not None:
            bound = 2 * self.core.view.log.config.owed_bytes_max + 8 * MIB
            watcher.on_memory(now_us, "owed bytes", writer.owed_bytes, bound)


def bind(action: Callable[[Any, Any], None], first: Any) -> Callable[[Any], None]:
    """A completion with a first argument."""

    def bound(second: Any) -> None:
        action(first, second)

    return bound


def _check_read(effect: fx.SendRead, entries: Any) -> tuple[BookieStatus, fx.StoredEntry | None]:
    try:
        ((entry_id, view),) = entries
        payload = bytes(view)
        info = check_entry(payload)
        if (entry_id, info.ledger_id) != (effect.entry, effect.ledger_id):
            raise EntryError("another entry was returned")
    except (EntryError, ValueError):
        return BookieStatus.UNKNOWN, None
    return BookieStatus.OK, fx.StoredEntry(payload, info.totals, info.has_state)
