"""The production driver of a log, watched: what checkers must know is read off its core.

Entries acknowledged, covers and conclusions are noted after each batch of events, before the
effects leave. Nothing is decided here: what a log does is `log_driver.LogDriver`'s alone.

Made by `hosting`'s hosts in the place of `LogDriver`. Documented in docs/testing.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from duramen.core.flexible.recovery import FlexibleRecovery
from duramen.core.flexible.segment import AnySegment
from duramen.core.sequencer import effects as fx
from duramen.core.sequencer.epoch.segment_writer import SegmentWriter
from duramen.core.sequencer.ledger_writer import WriterState
from duramen.core.sequencer.log_state import LogState
from duramen.core.sequencer.recovery import RecoveryState
from duramen.core.sequencer.takeover.older_epochs import AnyRecovery
from duramen.ids import (
    NOTHING,
    EntryId,
    Epoch,
    LedgerId,
    LogId,
    Member,
    SequencerId,
    is_metadata_log,
)
from duramen.runtime.sequencer.log_driver import LogDriver, stops_at_faults
from duramen.units import MIB

if TYPE_CHECKING:
    from tests.sim.metadata import StoreSession
    from tests.sim.sequencers import SequencerNode

_BEFORE_COVER: Final = (RecoveryState.MARK, RecoveryState.SEAL)


class InjectedFault(Exception):
    """What a core is made to raise by the nemesis: no finding."""


class Watcher(Protocol):
    """What is told of the decisions that sequencers take."""

    def on_entry_acknowledged(
        self, now_us: int, segment: AnySegment, entry_id: EntryId, crc: int
    ) -> None:
        """The writer has acknowledged an entry."""

    def on_sealed_by_cover(
        self, author: str, log_id: LogId, epoch: Epoch, responders: tuple[Member, ...]
    ) -> None:
        """A recovery's seals cover every ack set."""

    def on_conclusion(self, segment: AnySegment, sequencer_id: SequencerId) -> None:
        """A sequencer knows that its own close is in force."""

    def on_recovered(self, recovery: FlexibleRecovery) -> None:
        """A recovery of a flexible segment is about to close it."""

    def on_metadata_entry(self, ledger_id: LedgerId, entry_id: EntryId, payload: bytes) -> None:
        """A keeper has an entry of a metadata log stored."""

    def on_memory(self, now_us: int, what: str, size: int, bound: int) -> None:
        """Something that is bounded."""


class WatchedDriver(LogDriver):
    """One log of a simulated sequencer."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # A metadata log's driver has another home than those of its process.
        self._node = cast("SequencerNode", cast("StoreSession", self._link.store).node)
        self._world = self._node.world
        self._watcher = self._node.watcher
        self._is_acting = False
        self._writer: SegmentWriter | None = None
        self._writer_state: WriterState | None = None
        self._seen_lac = NOTHING
        self._seen_changes = 0
        self._suspended_count = 0
        self._crcs: dict[EntryId, int] = {}
        self._recoveries: dict[AnyRecovery, str] = {}
        """Recoveries under way and the state in which each was seen last."""
        self._seen_state = LogState.IDLE

    @stops_at_faults
    def flush(self) -> None:
        """End a batch of events, and look at what it left."""
        self._is_acting = False
        super().flush()
        if self.fault is None:
            self._observe()

    def _act(self, effect: fx.Effect) -> None:
        if not self._is_acting:
            self._is_acting = True
            self._observe()
        counts = self._world.counts
        match effect:
            case fx.SendAdd() | fx.SendWave():
                if not effect.is_recovery:
                    self._crcs[effect.entry] = int.from_bytes(effect.payload[4:8], "little")
                if is_metadata_log(self.log_id):
                    self._watcher.on_metadata_entry(effect.ledger_id, effect.entry, effect.payload)
            case fx.Complete():
                counts["append was there before"] += effect.is_duplicate
            case fx.CompleteEarly():
                counts["append acknowledged early"] += 1
            case fx.OldDuplicate():
                counts["append was there long before"] += 1
            case fx.Fail():
                counts[f"append {effect.code}"] += 1
            case fx.Yield():
                counts["append yielded"] += 1
            case fx.PersistOwed():
                counts["owed noted"] += 1
            case fx.ReadHistory():
                counts["history read"] += 1
            case fx.ReadSegment():
                counts["stalled appends looked up"] += not self.core.pipeline.stalled.is_settled
            case _:
                pass
        super()._act(effect)

    def validate(self) -> None:
        """Assert the core's invariants and report its bounded sizes."""
        if self.fault is not None:
            return
        core, now_us = self.core, self._world.now_us
        core.validate()
        if core.view is None:
            return
        config = core.view.log.config
        queued_count = core.pipeline.queued_count
        self._watcher.on_memory(now_us, "queued appends", queued_count, config.window.entries)
        if core.writer is not None:
            bound = 2 * config.owed_bytes_max + 8 * MIB
            self._watcher.on_memory(now_us, "owed bytes", core.writer.owed_bytes, bound)

    # --- What the checkers and counters see ------------------------------------------------------

    def _observe(self) -> None:
        core, world = self.core, self._world
        if self._writer is not None:
            self._observe_writer(self._writer)
        if core.writer is not None and core.writer is not self._writer:
            self._writer, self._seen_lac, self._seen_changes = core.writer, NOTHING, 0
            self._suspended_count = 0
            self._crcs = {}
            self._writer_state = None
            self._observe_writer(core.writer)
        elif core.writer is None and self._writer is not None:
            self._writer = None
        if core.older.recoveries or self._recoveries:
            self._observe_recoveries()
        if core.state is not self._seen_state:
            world.counts[f"log {self._seen_state.value} → {core.state.value}"] += 1
            self._seen_state = core.state
            world.note(self._node.name, f"log {self.log_id} {core.state.value}", repr(core))

    def _observe_writer(self, writer: SegmentWriter) -> None:
        world = self._world
        state, before = writer.state, self._writer_state
        if state is not before:
            seen = "new" if before is None else before.value
            world.counts[f"writer {seen} → {state.value}"] += 1
            self._writer_state = state
            if state is WriterState.FENCED:
                world.note(self._node.name, "fenced", writer.fence_reason)
        if writer.change_count != self._seen_changes:
            world.counts["ensemble change"] += writer.change_count - self._seen_changes
            self._seen_changes = writer.change_count
            world.note(self._node.name, "ensemble changed", repr(writer.segment))
        segment = writer.segment
        while self._seen_lac < writer.lac:
            self._seen_lac = EntryId(self._seen_lac + 1)
            self._watcher.on_entry_acknowledged(
                world.now_us, segment, self._seen_lac, self._crcs.pop(self._seen_lac)
            )
        suspended_count = len(writer.suspended)
        if suspended_count != self._suspended_count:
            name = "suspended" if suspended_count > self._suspended_count else "resumed"
            world.counts[f"member {name}"] += 1
            self._suspended_count = suspended_count

    def _observe_recoveries(self) -> None:
        world, watcher = self._world, self._watcher
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
            if recovery.state is RecoveryState.CLOSE and isinstance(recovery, FlexibleRecovery):
                watcher.on_recovered(recovery)
            self._recoveries[recovery] = state
