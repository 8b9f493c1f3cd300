"""Fake bookie and fake metadata store for tests of the cores: the rules, without bytes or disks.

The bookie keeps the rules that recovery stands on (incarnation, seals per log, a LAC that only the
owner moves); the store compares versions and asserts that nobody ever asks for an illegal change.
Not fakes of a runtime port: `core_world.py` and the directed tests call them directly.

Source: docs/protocol/metadata.md "Rules for every change", docs/protocol/recovery.md "Seal",
docs/protocol/wire.md "what an answer's status allows one to conclude".
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

from duramen.core.flexible.nodeset import ServingBookie
from duramen.core.flexible.recovery import Digest
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.flexible.segment_changes import find_frozen_faults
from duramen.core.log_node import LogNode
from duramen.core.placement import Candidate
from duramen.core.segment import TRANSITIONS, SegmentState
from duramen.core.sequencer import effects as fx
from duramen.core.sequencer.effects import LogView, Owner
from duramen.core.status import BookieStatus
from duramen.ids import (
    NOTHING,
    BookieId,
    EntryId,
    Epoch,
    Incarnation,
    LedgerId,
    LogId,
    Member,
    SequencerId,
    epoch_of,
    ledger_of,
)

LOG_ID = LogId(9)


@dataclass(slots=True)
class FakeBookie:
    """Durable state and the rules of the data plane; a crash only makes it unreachable."""

    name: str
    life: int = 1
    is_up: bool = True
    is_listed: bool = True
    slow_us: int = 0
    doubt_ratio: float = 0.0
    sealed: int = 0
    entries: dict[LedgerId, dict[EntryId, bytes]] = field(default_factory=dict)
    lacs: dict[LedgerId, EntryId] = field(default_factory=dict)

    @property
    def member(self) -> Member:
        """Name and present incarnation."""
        return Member(BookieId(self.name), Incarnation(f"{self.life:032x}"))

    @property
    def candidate(self) -> Candidate:
        """Every bookie has its own rack."""
        return Candidate(self.member, "r", f"rack-{self.name}")

    def add(self, effect: fx.SendAdd) -> BookieStatus:
        """Store an entry unless the writer is fenced; only its owner's adds move the LAC."""
        if epoch_of(effect.ledger_id) <= self.sealed and not effect.is_recovery:
            return BookieStatus.SEALED
        held = self.entries.setdefault(effect.ledger_id, {})
        assert held.setdefault(effect.entry, effect.payload) == effect.payload, "entry rewritten"
        if not effect.is_recovery:
            self._raise_lac(effect.ledger_id, effect.lac)
        return BookieStatus.OK

    def add_wave(self, effect: fx.SendWave) -> BookieStatus:
        """The same of an entry of a flexible segment."""
        return self.add(
            fx.SendAdd(
                effect.member, effect.ledger_id, effect.entry, effect.lac, effect.payload,
                is_recovery=effect.is_recovery,
            )
        )  # fmt: skip

    def digest(self, effect: fx.SendDigest) -> Digest:
        """Seal, and tell what is there of a range."""
        self.seal(epoch_of(effect.ledger_id))
        held = self.entries.get(effect.ledger_id, {})
        return Digest({
            entry: zlib.crc32(payload)
            for entry, payload in held.items() if effect.first <= entry <= effect.last
        })  # fmt: skip

    @property
    def serving(self) -> ServingBookie:
        """As a nodeset has it."""
        name, life = self.member
        return ServingBookie(name, "r", f"rack-{self.name}", life, is_absent=not self.is_up)

    def lac(self, effect: fx.SendLac) -> BookieStatus:
        """Write the LAC."""
        if epoch_of(effect.ledger_id) <= self.sealed:
            return BookieStatus.SEALED
        self._raise_lac(effect.ledger_id, effect.lac)
        return BookieStatus.OK

    def _raise_lac(self, ledger_id: LedgerId, lac: EntryId) -> None:
        self.lacs[ledger_id] = max(self.lacs.get(ledger_id, NOTHING), lac)

    def seal(self, epoch: Epoch) -> tuple[EntryId, EntryId]:
        """Seal, and tell LAC and highest entry."""
        self.sealed = max(self.sealed, epoch)
        ledger_id = ledger_of(LOG_ID, epoch)
        held = self.entries.get(ledger_id, {})
        return self.lacs.get(ledger_id, NOTHING), max(held, default=NOTHING)


class FakeStore:
    """Log node, segments and owner with versions; every change is judged before it is applied."""

    def __init__(self, log: LogNode) -> None:
        self.log, self.log_version = log, 0
        self.segments: dict[Epoch, tuple[Any, int]] = {}
        """Of either kind: a test knows which."""
        self.owner: Owner | None = None

    def commit(self, writes: tuple[fx.Write, ...], author: SequencerId) -> bool:
        """All or nothing; asserts that nobody ever asks for an illegal transition."""
        if not all(self._holds(write) for write in writes):
            return False
        before = self.log
        for write in writes:
            match write:
                case fx.SetSegment(segment, version):
                    old = self.segments[segment.epoch][0]
                    is_bounded = old.bound is None and segment.bound is not None
                    is_recovering = segment.state is old.state is SegmentState.IN_RECOVERY
                    has_guests = isinstance(old, FlexibleSegment) and segment.nonce != old.nonce
                    assert segment.state is old.state is SegmentState.OPEN or (
                        segment.state in TRANSITIONS[old.state]
                        or (is_recovering and (is_bounded or has_guests))
                    ), (old, segment)
                    assert is_bounded or segment.bound == old.bound, (old, segment)
                    if isinstance(old, FlexibleSegment):
                        assert isinstance(segment, FlexibleSegment), segment
                        assert not find_frozen_faults(old, segment), (old, segment)
                    self.segments[segment.epoch] = (segment.validated(), version + 1)
                case fx.CreateSegment(segment):
                    assert segment.epoch == before.next_epoch, (segment, before)
                    self.segments[segment.epoch] = (segment.validated(), 0)
                case fx.SetLog(log, version):
                    self.log, self.log_version = log.validated(), version + 1
                case fx.ReplaceOwner(epoch, _):
                    self.owner = None if epoch is None else Owner(author, epoch, "url", 0)
        self._check(before)
        return True

    def view(self) -> LogView:
        """Everything as it is now, as after a sync."""
        segments = tuple(self.segments[epoch] for epoch in self.log.unclosed_epochs)
        return LogView(self.log, self.log_version, segments, self.owner)

    def _holds(self, write: fx.Write) -> bool:
        match write:
            case fx.SetSegment(segment, version):
                return self.segments[segment.epoch][1] == version
            case fx.CreateSegment(segment):
                return segment.epoch not in self.segments
            case fx.SetLog(_, version):
                return self.log_version == version
            case fx.ReplaceOwner(_, replaces):
                return self.owner == replaces

    def _check(self, before: LogNode) -> None:
        log = self.log
        assert sorted(self.segments) == list(range(1, log.next_epoch)), "R2: epochs have a gap"
        for epoch, (segment, _) in self.segments.items():
            assert segment.is_closed == (epoch <= log.last_clean_epoch), "LCE and CLOSED differ"
        assert 0 <= log.last_clean_epoch - before.last_clean_epoch <= 1
