"""Flexible segments in small worlds: a nodeset, the writer that makes waves, their recovery.

`Nodeset` says which bookies there are, in which racks, and which property copies have to satisfy.
`WaveMachine` runs the `WaveWriter`, `FlexibleRecoveryMachine` the `FlexibleRecovery`. Envelopes are
left out: they say who sends to readers, and are evidence of nothing. What of the two may go first
or be dropped in a reduced world (`eager`, `stale`, quiet) is argued in docs/explorer.md, and
compared with whole worlds by `test_explore.py`.

Not here: bookies and store (`nodes.py`), which step comes next (`model.py`). Called by `worlds.py`
and mutants. Source: docs/protocol/waves.md, docs/protocol/recovery.md "Recovery of a
flexible segment", docs/explorer.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import MutableSequence
from dataclasses import dataclass
from typing import Any, Final

from duramen.config import LogConfig, parse_log_config
from duramen.core.flexible.nodeset import ServingBookie
from duramen.core.flexible.property import ReplicationProperty
from duramen.core.flexible.recovery import Digest, FlexibleRecovery
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.flexible.selector import CopysetSelector
from duramen.core.flexible.writing.wave_writer import WaveWriter
from duramen.core.placement import Candidate
from duramen.core.placement.store_times import StoreTimes
from duramen.core.sequencer.effects import LogView
from duramen.core.sequencer.takeover.older_epochs import AnyRecovery
from duramen.core.sequencer.takeover.segment_recovery import RecoveryState
from duramen.core.status import BookieStatus
from duramen.ids import BookieId, EntryId, Epoch, Member
from tests.explore.machines import (
    COMMIT_DELAY_US,
    ProcessFacts,
    RecoveryMachine,
    WriterMachine,
    member_of,
)
from tests.explore.model import Budget, Scenario
from tests.explore.nodes import LIFE, AnyShape, WriteTable
from tests.explore.state import Event, ScriptedRandom
from tests.unit.core_fakes import LOG_ID


@dataclass(frozen=True, slots=True)
class Nodeset:
    """Bookies by rack, how copies have to lie, and how many entries the writer has to append.

    `spare_racks`: bookies outside of the nodeset, which recovery may take in as guests.
    """

    racks: tuple[int, ...]
    replication: ReplicationProperty
    entry_count: int = 1
    ack_mode: str = "ordered"
    spare_racks: tuple[int, ...] = ()
    early_append: bool = False

    @property
    def bookie_count(self) -> int:
        """Of the nodeset and beside it."""
        return sum(self.racks) + len(self.spare_racks)

    @property
    def members(self) -> tuple[Member, ...]:
        """Every bookie; the nodeset's are the first ones."""
        return tuple(Member(BookieId(f"b{n}"), LIFE) for n in range(self.bookie_count))

    @property
    def _places(self) -> list[str]:
        own = [rack for rack, count in enumerate(self.racks) for _ in range(count)]
        return [f"k{rack}" for rack in (*own, *self.spare_racks)]

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """Every bookie."""
        return tuple(
            Candidate(member, "r", rack)
            for member, rack in zip(self.members, self._places, strict=True)
        )

    def config(self) -> LogConfig:
        """A log of this shape that never rolls by itself."""
        wanted = self.replication
        return parse_log_config({
            "copysets": "flexible", "ack_mode": self.ack_mode,
            "replication": {"node": wanted.node, "rack": wanted.rack, "extras": wanted.extras},
            "nodeset": {"tolerate": 0},
            "early_append": self.early_append,
            "roll": {"interval": "1000h", "idle_close": "1000h", "size": "1GiB"},
        })  # fmt: skip

    def first_segment(self) -> FlexibleSegment:
        """Epoch 1, open and empty."""
        nodes = [
            ServingBookie(member.bookie, "r", rack, LIFE)
            for member, rack in zip(self.members, self._places, strict=True)
        ]
        return FlexibleSegment.opened(
            LOG_ID, Epoch(1), self.replication, nodes[: sum(self.racks)], ack_mode=self.ack_mode,
            placement="strict", created_unix_ms=0, nonce="first",
        )  # fmt: skip


_OF_STORE: Final = frozenset({"commit!", "view!"})
_OF_BOOKIES: Final = frozenset({"seal!", "digest!", "fetch!", "wave!"})
_EAGER: Final = {
    RecoveryState.DIGEST: frozenset({"digest!"}),
    RecoveryState.READ: frozenset({"fetch!"}),
    RecoveryState.WRITE_BACK: frozenset({"wave!"}),
}


class _StillTimes(StoreTimes):
    """Nobody is found slow or fast: how long stores took decides nothing but instants."""

    def observe(self, member: Member, took_us: int) -> None:
        """Nothing."""


class WaveMachine(WriterMachine):
    """The owner of epoch 1: a `WaveWriter` that pushes entries when told.

    The lists stay empty (R27): they say which waves are tried first, and any may be needed.
    """

    waves: type[WaveWriter] = WaveWriter

    def make_core(self, shape: AnyShape) -> WaveWriter:
        """Of the nodeset."""
        segment = shape.first_segment()
        assert isinstance(segment, FlexibleSegment), segment
        self._entry_count = shape.entry_count
        ports = dataclasses.replace(self.make_ports(shape), times=_StillTimes())
        selector = CopysetSelector(segment.nodes, segment.replication, self.rng, is_sticky=False)
        return self.waves(segment, 0, selector, commit_delay_us=COMMIT_DELAY_US, ports=ports)

    def facts(self) -> ProcessFacts:
        """Quiet once all is acknowledged that it will ever push."""
        core = self.core
        assert isinstance(core, WaveWriter), core
        is_quiet = self.started == self._entry_count and not core.window
        return super().facts()._replace(is_quiet=is_quiet)


class _ShufflingRandom(ScriptedRandom):
    """Orders are choices too: nodes that recovery may write to are not alike."""

    def shuffle(self, x: MutableSequence[Any]) -> None:
        """Any order."""
        for at in range(len(x) - 1):
            other = at + self.randrange(len(x) - at)
            x[at], x[other] = x[other], x[at]


class FlexibleRecoveryMachine(RecoveryMachine):
    """One recoverer of epoch 1, which begins with the nodes as they are when it is started."""

    flexible: type[FlexibleRecovery] = FlexibleRecovery

    def __init__(self, name: str, shape: AnyShape, writes: WriteTable) -> None:
        super().__init__(name, shape, writes)
        self.rng = _ShufflingRandom()
        self.ports = self.make_ports(shape)

    def make_core(self, view: LogView) -> FlexibleRecovery:
        """Of the segment as it is when the recoverer begins."""
        ((segment, version),) = view.segments
        assert isinstance(segment, FlexibleSegment), segment
        return self.flexible(
            segment, version, view.log, view.log_version, ports=self.ports, unix_ms=lambda _: 0
        )

    def answer(self, core: AnyRecovery, event: Event) -> None:
        """Digests are asked of flexible segments alone."""
        match event:
            case (bookie, "digest!", _, status, told):
                assert isinstance(core, FlexibleRecovery), core
                is_told = status == BookieStatus.OK
                digest = Digest({EntryId(n): crc for n, crc in told}) if is_told else None
                core.on_digest(member_of(bookie), BookieStatus(status), digest, self.now_us)
            case (bookie, "wave!", _, entry, status):
                core.on_add(member_of(bookie), entry, BookieStatus(status), self.now_us)
            case _:
                super().answer(core, event)

    def facts(self) -> ProcessFacts:
        """With what need not wait: it has asked one thing, or needs all that it has asked for."""
        facts, core = super().facts(), self.core
        if core is None or core.state is RecoveryState.SEAL:
            return facts
        assert isinstance(core, FlexibleRecovery), core
        eager = _EAGER.get(core.state, _OF_STORE)
        position = core._position
        if core.state is RecoveryState.WRITE_BACK and position and len(position.pending) > 1:
            eager = frozenset()
        stale = _OF_BOOKIES if core.state is RecoveryState.CLOSE else frozenset({"seal!"})
        return facts._replace(eager=eager, stale=stale)


@dataclass(frozen=True, slots=True)
class FlexibleScenario(Scenario):
    """A world of flexible copysets; with one timer of the writer, so one more wave, and reduced."""

    budget: Budget = Budget(waves=1)
    is_reduced: bool = True
    writer: type[WriterMachine] = WaveMachine
    recovery: type[RecoveryMachine] = FlexibleRecoveryMachine
