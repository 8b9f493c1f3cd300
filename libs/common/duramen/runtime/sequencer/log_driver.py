"""Driver of one log: runs its core, carries out effects, feeds results back, keeps its timer.

The only place where a `LogSequencer` meets time and I/O. Events arrive as method calls; `flush`
ends a batch of them: the core makes entries, the outbox is emptied, the next timer is set.
Effects go out in the order in which the core put them.

What happened to the log is noted here for its story, by comparing states: the core tells none.
A core that raises is asked nothing more (fail-stop): its log is let go, as if its process had died.
Run by the sequencer's `log_host` and by the writers of `duramen.client.core`, each its `Home`;
called by `bookie_lanes`. Source: ARCHITECTURE.md "Three layers".
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from duramen.config import LogConfig
from duramen.core.flexible.recovery import Digest
from duramen.core.log_node import Ending, LogNode
from duramen.core.sequencer.context import SequencerContext
from duramen.core.sequencer.effects import (
    Commit,
    Complete,
    CompleteEarly,
    Effect,
    Fail,
    OldDuplicate,
    PersistOwed,
    ReadHistory,
    ReadMetadata,
    ReadSegment,
    SendAdd,
    SendDigest,
    SendLac,
    SendRecoveryRead,
    SendSeal,
    SendWave,
    StoredEntry,
    TailMark,
    Yield,
)
from duramen.core.sequencer.epoch.segment_writer import SegmentWriter
from duramen.core.sequencer.log_sequencer import LogSequencer
from duramen.core.sequencer.log_state import LogState
from duramen.core.sequencer.transmit import QueuedAppend
from duramen.core.status import BookieStatus
from duramen.errors import DuramenError
from duramen.ids import EntryId, Epoch, LedgerId, LogId, Member
from duramen.runtime.sequencer.bookie_lanes import BookieLanes
from duramen.runtime.sequencer.history import read_entries
from duramen.runtime.sequencer.loads import LoadMeter
from duramen.runtime.sequencer.metadata_link import MetadataLink
from duramen.runtime.sequencer.story import Stories, explain_nodeset, format_reasons
from duramen.units import SECOND
from duramen.wire import sequencer_calls as calls
from duramen.wire.bookie_calls import Marks
from duramen.wire.record_json import encode_tail
from duramen.wire.sequencer_calls import AppendedBatch, AppendResult, LogMark, OpenLac

_LOG = logging.getLogger(__name__)
_OWED_RETRY_S = 1.0

A = TypeVar("A")
D = TypeVar("D", bound="LogDriver")
P = ParamSpec("P")
Answer = Callable[[AppendResult], None]
"""Gives one append its fate; called exactly once."""


def now_us() -> int:
    """The monotonic clock that every core of this process is given."""
    return time.monotonic_ns() // 1000


class Home(Protocol):
    """What a log's driver needs of whoever runs it."""

    stories: Stories

    def resubmit(self, log_id: LogId, append: QueuedAppend, answer: Answer) -> None:
        """Take an append that was never sent and that another owner should get."""

    def on_fenced(self, driver: LogDriver) -> None:
        """Somebody sealed the open epoch; before anything is read, or claimed anew."""

    def on_idle(self, driver: LogDriver) -> None:
        """The log is nobody's here any more."""

    def on_broken(self, driver: LogDriver) -> None:
        """An invariant of the log's core is broken (`driver.fault`): the driver does nothing more.

        What waits is answered after this.
        """


def stops_at_faults(
    method: Callable[Concatenate[D, P], None],
) -> Callable[Concatenate[D, P], None]:
    """What the core raises ends its log, and nobody else's: lanes carry the rows of many."""

    @functools.wraps(method)
    def guarded(driver: D, /, *args: P.args, **options: P.kwargs) -> None:
        if driver.fault is None:
            try:
                method(driver, *args, **options)
            except Exception as error:
                driver.stop_at(error)

    return cast("Callable[Concatenate[D, P], None]", guarded)


_SETTLED = (LogState.IDLE, LogState.EARLY, LogState.ACTIVE)


class LogDriver:
    """One log of this sequencer process."""

    def __init__(
        self,
        log_id: LogId,
        context: SequencerContext,
        lanes: BookieLanes,
        link: MetadataLink,
        home: Home,
    ) -> None:
        self.log_id = log_id
        self.core = LogSequencer(log_id, context)
        self._context = context
        self._owed_bytes = 0
        self._lanes = lanes
        self._link = link
        self._home = home
        self.load = LoadMeter(now_us())
        self._waiting: dict[int, tuple[QueuedAppend, Answer]] = {}
        self._owed: dict[tuple[LedgerId, Member], PersistOwed] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_us = 0
        self._state = LogState.IDLE
        self._held_since_us: int | None = None
        self.came_for_region = False
        """The log was handed over to be in the region of its writers."""
        self._epoch: Epoch | None = None
        self.opened_by: LogNode | None = None
        """The log node that opened the newest epoch of this driver; None: it has opened none."""
        self._change_count = 0
        self._rewaved_due = 1
        """Entries with another wave at which the story tells of them the next time."""
        self._stall_count = 0
        self._losses_taken = 0
        self.fault: Exception | None = None
        """What the core raised; from then on it is asked nothing."""
        self._lac_waiters: dict[asyncio.Future[None], OpenLac | None] = {}
        """What each knows."""
        self.idle = asyncio.Event()
        self.idle.set()
        self.settled = asyncio.Event()
        self.active = asyncio.Event()
        """Set once an epoch is open and everything older is closed."""

    # --- requests --------------------------------------------------------------------------------

    def append(self, append: QueuedAppend, answer: Answer) -> None:
        """Queue an append; its answer comes after some `flush`."""
        if self.fault is not None:
            answer(DuramenError("log_unavailable", "the log has just been let go here"))
            return
        self._waiting[append.append_id] = (append, answer)
        self._give(append)

    @stops_at_faults
    def _give(self, append: QueuedAppend) -> None:
        at_us = now_us()
        self.load.note(len(append.batch), at_us, append.region)
        self.core.append(append, at_us)

    @stops_at_faults
    def take_over(self, *, close_only: bool = False, is_owner_gone: bool = False) -> None:
        """Begin to own the log, or to close what was left.

        Args:
            is_owner_gone: whoever the log's nodes name as its owner is known not to be there.
        """
        if self.core.state is LogState.IDLE:
            self.settled.clear()
        # A log that another sequencer took meanwhile is no orphan: closing would seal its epoch.
        unless_owned = close_only and not is_owner_gone
        self.core.take_over(now_us(), close_only=close_only, unless_owned=unless_owned)

    @stops_at_faults
    def on_config(self, config: LogConfig, config_version: int) -> None:
        """The log's stored configuration was changed."""
        self.core.on_config(config, config_version, now_us())
        self.flush()

    async def keep(self, epoch: Epoch) -> None:
        """Stay the owner after a lost session, or let go of a log that went on without us.

        Args:
            epoch: that was open when there was a session again.
        """
        by_hint = self._context.hints.has(self.log_id, now_us())
        is_kept = await self._link.keep_owner(self.log_id, epoch, by_hint=by_hint)
        writer = self.core.writer
        # A change that is under way finds out by itself; a later epoch is one of our own.
        is_same = writer is not None and writer.segment.epoch == epoch
        if not is_kept and is_same and not self.core.is_changing:
            self.release("another sequencer took the log over", loss=1)

    @stops_at_faults
    def release(self, reason: str = "the sequencer stops", *, loss: int = 0) -> None:
        """Let the log go at once, as it is; what was never sent goes back to the home."""
        self.core.release(reason, loss=loss)
        self.flush()

    @stops_at_faults
    def finish(self, ending: Ending) -> None:
        """Close the open segment together with the log."""
        self.core.finish(ending, now_us())
        self.flush()

    @stops_at_faults
    def _begin_leaving(self) -> None:
        self.core.stop(now_us())
        self.flush()

    async def leave(self, timeout_s: float) -> bool:
        """Close the segment in peace and let the log go; False: its next owner must recover it."""
        self._begin_leaving()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.idle.wait()
        if not self.is_done:
            self.release()
        return self.fault is None and self.is_done and not self.core.reason

    # --- results (Sink of BookieLanes) -----------------------------------------------------------

    @stops_at_faults
    def on_add(self, member: Member, epoch: Epoch, entry: EntryId, status: BookieStatus) -> None:
        """An add was answered."""
        self.core.on_add(member, epoch, entry, status, now_us())

    @stops_at_faults
    def on_lac(self, member: Member, epoch: Epoch, status: BookieStatus, round_id: int) -> None:
        """A LAC write was answered."""
        self.core.on_lac(member, epoch, status, now_us(), round_id)

    @stops_at_faults
    def on_seal(self, member: Member, epoch: Epoch, marks: Marks) -> None:
        """A seal was answered."""
        self.core.on_seal(member, epoch, marks.status, marks.lac, marks.highest, now_us())

    @stops_at_faults
    def on_read(
        self,
        member: Member,
        epoch: Epoch,
        entry: EntryId,
        status: BookieStatus,
        stored: StoredEntry | None,
    ) -> None:
        """A recovery read was answered."""
        self.core.on_read(member, epoch, entry, status, stored, now_us())

    @stops_at_faults
    def on_digest(
        self, member: Member, epoch: Epoch, status: BookieStatus, digest: Digest | None
    ) -> None:
        """A node told what it has, or did not answer."""
        self.core.on_digest(member, epoch, status, digest, now_us())

    @stops_at_faults
    def on_bookies_changed(self) -> None:
        """Bookies came, went or came back."""
        self.core.on_bookies_changed(now_us())
        self.flush()

    @stops_at_faults
    def on_lists_changed(self) -> None:
        """Other logs of the process found bookies silent or full."""
        self.core.on_lists_changed(now_us())
        self.flush()

    @stops_at_faults
    def flush(self) -> None:
        """End a batch of events: make entries, act on every effect, set the next timer."""
        self.core.pump(now_us())
        while effects := self.core.take_effects():
            for effect in effects:
                self._act(effect)
        if self.core.state is not self._state:
            self._note_state()
        elif self.core.writer is not None:
            self._note_writer(self.core.writer)
        self._count_owed(self.core.writer)
        self._set_timer()
        self._note_lac()

    @property
    def open_lac(self) -> OpenLac | None:
        """The open epoch and its LAC; None: none is open, or what the core says counts no more."""
        ours = self.core.open_epoch
        if ours is None or self.fault is not None:
            return None
        return OpenLac(ours.number, ours.writer.lac)

    @contextlib.contextmanager
    def waking_at_lac(self, waiter: asyncio.Future[None]) -> Iterator[None]:
        """In the block the waiter is done once `open_lac` is another one than at its beginning."""
        self._lac_waiters[waiter] = self.open_lac
        try:
            yield
        finally:
            del self._lac_waiters[waiter]

    def statistics(self) -> dict[str, object]:
        """The core's figures."""
        appends_per_s, bytes_per_s = self.load.rates(now_us())
        log = None if self.core.view is None else self.core.view.log
        return {
            **self.core.statistics(),
            "name": None if log is None else f"{log.namespace}/{log.name}",
            "appends_per_s": round(appends_per_s, 3),
            "bytes_per_s": round(bytes_per_s),
            "held_s": self.held_us // SECOND,
            "unanswered_count": len(self._waiting),
        }

    def counts(self) -> dict[str, int]:
        """What is added up over all logs, also over those that left."""
        core = self.core
        return {
            "takeovers": core.takeover_count,
            "recoveries": core.older.recovery_count,
            "rolls": core.roll_count,
        }

    @property
    def held_us(self) -> int:
        """For how long the log has been here, over all its epochs; 0: it is not."""
        return 0 if self._held_since_us is None else now_us() - self._held_since_us

    @property
    def is_done(self) -> bool:
        """Nothing is under way and nobody waits for an answer."""
        if self.fault is not None:
            return True
        return self.core.state is LogState.IDLE and not self._waiting

    def tried(self) -> frozenset[str]:
        """Every sequencer that one of the unanswered appends has been to in vain."""
        return frozenset(name for append, _ in self._waiting.values() for name in append.tried)

    def take_loss(self) -> bool:
        """Whether another sequencer took the log since the last question."""
        is_lost = self.core.loss_count > self._losses_taken
        self._losses_taken = self.core.loss_count
        return is_lost

    # --- effects ---------------------------------------------------------------------------------

    def _act(self, effect: Effect) -> None:
        match effect:
            case SendAdd() | SendWave():
                self._lanes.add(effect, self)
            case Complete():
                self._answer(effect.append_id, _appended(effect))
            case CompleteEarly(append_id, start, record_count, timestamp_ms):
                self._answer(append_id, calls.AppendedEarly(start, record_count, timestamp_ms))
            case OldDuplicate(append_id):
                self._answer(append_id, calls.AlreadyStored())
            case Fail():
                if effect.code == "window_full" and self.core.state is LogState.ACTIVE:
                    self.load.note_refused(now_us())
                self._answer(effect.append_id, _failed(effect))
            case Yield(append_id):
                append, answer = self._waiting.pop(append_id)
                self._home.resubmit(self.log_id, append, answer)
            case SendLac():
                self._lanes.send_lac(effect, self)
            case SendSeal():
                self._lanes.seal(effect, self)
            case SendRecoveryRead():
                self._lanes.read(effect, self)
            case SendDigest():
                self._lanes.ask_digest(effect, self)
            case ReadMetadata():
                self._spawn(self._read, effect)
            case Commit():
                self._spawn(self._commit, effect)
            case PersistOwed():
                self._note_owed(effect)
            case ReadSegment():
                self._spawn(self._read_segment, effect)
            case ReadHistory():
                self._spawn(self._read_history, effect)

    def _answer(self, append_id: int, result: AppendResult) -> None:
        _, answer = self._waiting.pop(append_id)
        answer(result)

    # --- fail-stop -------------------------------------------------------------------------------

    def stop_at(self, fault: Exception) -> None:
        """Let the log go without another word to its core, whose state nobody knows any more.

        Its epoch stays as a dead owner's would; the next owner seals and recovers it. What waits is
        uncertain: entries of it may be stored.
        """
        self.fault = fault
        _LOG.critical("log %d stops here: a broken invariant", self.log_id, exc_info=fault)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._count_owed(None)
        self._context.rolls.leave(self.log_id)  # else no other log would have its place
        self._home.stories.note(self.log_id, "stopped", 0, f"a broken invariant: {fault!r}")
        self._home.on_broken(self)
        self._note_lac()
        waiting, self._waiting = self._waiting, {}
        detail = (
            "a fault of this sequencer stopped the log here: whether it was stored is not known"
        )
        for _, answer in waiting.values():
            answer(DuramenError("append_uncertain", detail))
        self.settled.set()
        self.idle.set()

    def _spawn(self, work: Callable[[A], Coroutine[Any, Any, None]], given: A) -> None:
        self._lanes.spawn(self._stop_at_fault_of(work, given))

    async def _stop_at_fault_of(
        self, work: Callable[[A], Coroutine[Any, Any, None]], given: A
    ) -> None:
        """What is asked for the core and never answered would leave its log mute.

        The work is made here: a task that is cancelled before it begins leaves nothing unawaited.
        """
        try:
            await work(given)
        except Exception as error:
            if self.fault is None:
                self.stop_at(error)

    # --- answers of the metadata -----------------------------------------------------------------

    async def _read(self, effect: ReadMetadata) -> None:
        read = self._link.look_at_view if effect.is_look else self._link.read_view
        view = await read(self.log_id)
        if self.fault is None:
            self.core.on_metadata(effect.token, view, now_us())
            self.flush()

    async def _read_segment(self, effect: ReadSegment) -> None:
        segment = await self._link.read_segment(self.log_id, effect.epoch)
        if self.fault is None:
            self.core.on_segment(effect.token, segment, now_us())
            self.flush()

    async def _read_history(self, effect: ReadHistory) -> None:
        entries = await read_entries(self._lanes, effect)
        if self.fault is None:
            self.core.on_history(effect.token, entries, now_us())
            self.flush()

    async def _commit(self, effect: Commit) -> None:
        outcome = await self._link.commit(self.log_id, effect.writes)
        if self.fault is None:
            self.core.on_commit(effect.token, outcome, now_us())
            self.flush()

    def _count_owed(self, writer: SegmentWriter | None) -> None:
        """What this log keeps in memory for absent members counts with that of all others."""
        owed_bytes = 0 if writer is None else writer.owed_bytes
        self._context.owed_bytes += owed_bytes - self._owed_bytes
        self._owed_bytes = owed_bytes

    def _note_owed(self, owed: PersistOwed) -> None:
        """Record it until it is recorded (R9), one task per bookie, the ranges joined meanwhile."""
        key = (owed.ledger_id, owed.member)
        known = self._owed.get(key)
        if known is None:
            self._owed[key] = owed
            self._spawn(self._persist_owed, key)
        else:
            first, last = min(known.first, owed.first), max(known.last, owed.last)
            self._owed[key] = PersistOwed(owed.ledger_id, owed.member, first, last)

    async def _persist_owed(self, key: tuple[LedgerId, Member]) -> None:
        while True:
            owed = self._owed[key]
            if not await self._link.persist_owed(owed):
                await asyncio.sleep(_OWED_RETRY_S)
            elif self._owed[key] == owed:
                break
        del self._owed[key]
        if self.fault is None:
            self.core.on_owed_persisted(owed)
            self.flush()

    # --- time ------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        at_us = self.core.wakeup_at_us(now_us())
        if self._timer is not None:
            if at_us is not None and self._timer_at_us <= at_us:
                return  # it comes first, and sets the next one: a batch of events costs no timer
            self._timer.cancel()
            self._timer = None
        if at_us is not None:
            delay_s = max(at_us - now_us(), 0) / 1e6
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(delay_s, self._on_timer)
            self._timer_at_us = at_us

    @stops_at_faults
    def _on_timer(self) -> None:
        self._timer = None
        self.core.on_timer(now_us())
        self.flush()

    def _note_state(self) -> None:
        before, self._state = self._state, self.core.state
        if before is LogState.IDLE:
            self._held_since_us = now_us()
        _LOG.info("%r", self.core)
        self._report_story(before)
        if self._state in _SETTLED:
            self.settled.set()
        if self._state is LogState.ACTIVE:
            self.active.set()
        if self._state is LogState.READING and before is not LogState.IDLE and self.core.reason:
            self._home.on_fenced(self)
        if self._state is LogState.IDLE:
            self._held_since_us = None
            self.came_for_region = False
            self.idle.set()
            self._home.on_idle(self)
        else:
            self.idle.clear()

    def _report_story(self, before: LogState) -> None:
        core, note = self.core, self._home.stories.note
        is_claimed = self._state in (LogState.RECOVERING, LogState.EARLY, LogState.ACTIVE)
        if before is LogState.CLAIMING and is_claimed and core.view is not None:
            note(self.log_id, "claimed", core.view.segments[-1][0].epoch)
        match self._state:
            case LogState.RECOVERING:
                epoch = 0 if core.recovery is None else core.recovery.epoch
                note(self.log_id, "recovers", epoch, "its writer left it unclosed")
            case LogState.EARLY:
                note(self.log_id, "appends early", 0, "older epochs are still being recovered")
            case LogState.READING if before is not LogState.IDLE and core.reason:
                is_stalled = core.stall_count > self._stall_count
                self._stall_count = core.stall_count
                event = "stalled" if is_stalled else "fenced"
                note(self.log_id, event, self._epoch or 0, core.reason)
            case LogState.DRAINING | LogState.CLOSING if before is LogState.ACTIVE:
                self._note_reopening()
                waves = "" if core.writer is None else core.writer.explain_waves()
                note(self.log_id, "closes", self._epoch or 0, waves)
            case LogState.IDLE:
                event = "given up" if core.reason else "closed"
                note(self.log_id, event, self._epoch or 0, core.reason)
            case _:
                pass
        if core.writer is not None:
            self._note_writer(core.writer)

    def _note_reopening(self) -> None:
        """What is another now than when the epoch was opened (R28)."""
        reasons = () if self.core.open_epoch is None else self.core.open_epoch.reopening
        if reasons:
            self._home.stories.note(self.log_id, "rolls", self._epoch or 0, format_reasons(reasons))

    def _note_lac(self) -> None:
        if not self._lac_waiters:
            return
        found = self.open_lac
        for waiter, known in self._lac_waiters.items():
            if known != found and not waiter.done():
                waiter.set_result(None)

    def _note_writer(self, writer: SegmentWriter) -> None:
        """A new epoch, or another ensemble in the same one."""
        if writer.segment.epoch != self._epoch:
            self._epoch, self._change_count, self._rewaved_due = writer.segment.epoch, 0, 1
            self.opened_by = None if self.core.view is None else self.core.view.log
            nodeset = explain_nodeset(writer.segment)
            self._home.stories.note(self.log_id, "appends in", writer.segment.epoch, nodeset)
        if writer.rewaved_count >= self._rewaved_due:
            # Ten times as many each time: a bookie that is slow for long fills no story.
            self._rewaved_due = 10 ** len(str(writer.rewaved_count))
            self._home.stories.note(
                self.log_id, "waves", writer.segment.epoch, writer.explain_waves()
            )
        if writer.change_count != self._change_count:
            self._change_count = writer.change_count
            names = ", ".join(member.bookie for member in writer.segment.members)
            self._home.stories.note(
                self.log_id, "ensemble changed", writer.segment.epoch, f"now {names}"
            )


def _appended(effect: Complete) -> AppendedBatch:
    start = LogMark(effect.start, effect.seq_num, effect.timestamp_ms)
    return AppendedBatch(start, effect.record_count, _mark(effect.tail), effect.is_duplicate)


def _failed(effect: Fail) -> DuramenError:
    facts: dict[str, Any] = {}
    if effect.expected is not None:
        tail, seq_num, producer_seq = effect.expected
        facts["tail"] = encode_tail(tail.seq_num, tail.timestamp_ms, tail.dlsn)
        if seq_num is not None:
            facts["expected_seq_num"] = seq_num
        if producer_seq is not None:
            facts["expected_producer_seq"] = producer_seq
    return DuramenError(effect.code, effect.detail, field=effect.field, facts=facts)


def _mark(mark: TailMark) -> LogMark:
    return LogMark(mark.dlsn, mark.seq_num, mark.timestamp_ms)
