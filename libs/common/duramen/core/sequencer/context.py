"""What the cores of a sequencer are given: a shared context, and the ports of one log's parts.

A core gets everything here that it must not fetch by itself: randomness, nonces, the encoding of
entries, which bookies there are. The driver keeps `SequencerContext` current.

Called by `log_sequencer`, `ledger_writer` and its parts, `recovery`, and their driver.
Source: ARCHITECTURE.md "Three layers".
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from duramen.core.flexible.nodeset import ServingBookie
from duramen.core.flexible.writing.surplus import SurplusBudget
from duramen.core.ownership.hints import HintedLogs
from duramen.core.placement import Candidate
from duramen.core.placement.node_states import NodeStates
from duramen.core.placement.store_times import StoreTimes
from duramen.core.segment import Totals
from duramen.core.sequencer.effects import Effect
from duramen.core.sequencer.exactly_once.stamps import ControlRecord
from duramen.core.sequencer.roll_policy import RollQueue
from duramen.ids import EntryId, LedgerId, Member, SequencerId

_STALLS_AT_ONCE: Final = 4


class EncodeEntry(Protocol):
    """Encodes an entry."""

    def __call__(  # noqa: PLR0917 - the fields of an entry's header
        self,
        ledger_id: LedgerId,
        entry: EntryId,
        before: Totals,
        batches: Sequence[bytes],
        record_count: int,
        after: Totals,
        *,
        is_control: bool = False,
        has_state: bool = False,
        is_compressing: bool = False,
    ) -> bytes:
        """The totals are the segment's around the entry; a control entry has one record at most.

        It is called once an entry: what it gives is what is sent, and sent again.
        """


def _refuse_control(record: ControlRecord) -> bytes:
    raise AssertionError(f"nobody gave the core a way to encode {record}")


@dataclass(slots=True)
class SequencerContext:
    """What all logs of one sequencer process share and see."""

    sequencer_id: SequencerId
    rng: random.Random
    encode_entry: EncodeEntry
    unix_offset_us: int = 0
    """Unix time = the driver's monotonic time + this; shown, and compared in days alone."""
    candidates: Sequence[Candidate] = ()
    """Bookies that take new data, as they say."""
    nodes: NodeStates = field(default_factory=NodeStates)
    """Who of them is silent or refuses it, as the logs of this process found."""
    locations: Mapping[Member, Candidate] | None = None
    serving: Sequence[ServingBookie] = ()
    """Bookies that a flexible epoch may use, those that are away too."""
    roster: Mapping[Member, bool] = field(default_factory=dict)
    """Bookies that are registered now, with whether they take new data."""
    times: StoreTimes = field(default_factory=StoreTimes)
    """How long they take to store an entry."""
    surplus: SurplusBudget = field(default_factory=SurplusBudget)
    """What waves after the first may cost all logs of this process."""
    owed_bytes: int = 0
    """What all logs keep in memory for members that missed it (R9)."""
    is_metadata_reachable: bool = True
    is_rolling_suspended: bool = False
    """ZooKeeper is being worked on: no log rolls and none changes its ensemble."""
    holds_logs: bool = False
    """An owned log is not given up while nobody appends: its segment stays open (an embedded writer
    is its log's one writer until it says otherwise)."""
    hints: HintedLogs = field(default_factory=HintedLogs)
    """Logs that were taken over by a hint alone."""
    rolls: RollQueue = field(default_factory=RollQueue)
    stalls: RollQueue = field(default_factory=lambda: RollQueue(_STALLS_AT_ONCE))
    """Logs that their owner takes over by itself (R28)."""
    encode_control: Callable[[ControlRecord], bytes] = _refuse_control

    def list_candidates(self) -> Sequence[Candidate]:
        """The candidates; who is listed comes last in a choice (R27)."""
        return self.nodes.mark(self.candidates)

    def new_nonce(self) -> str:
        """A nonce that nobody else will ever draw."""
        return f"{self.sequencer_id}.{self.rng.getrandbits(96):024x}"

    def unix_ms(self, now_us: int) -> int:
        """Wall-clock time for people."""
        return (now_us + self.unix_offset_us) // 1000


@dataclass(frozen=True, slots=True)
class Ports:
    """What the parts of one log's core are given."""

    put: Callable[[Effect], None]
    new_token: Callable[[], int]
    new_nonce: Callable[[], str]
    rng: random.Random
    locations: Callable[[], Mapping[Member, Candidate]]
    candidates: Callable[[], Sequence[Candidate]]
    shunned: Callable[[], frozenset[Member]] = frozenset
    """Members that writers leave (R27); none while no change could be stored."""
    may_change_ensemble: Callable[[], bool] = lambda: True
    owed_by_all: Callable[[], int] = lambda: 0
    """Bytes that all logs of the process keep for members that missed them."""
    states: NodeStates = field(default_factory=NodeStates)
    times: StoreTimes = field(default_factory=StoreTimes)
    surplus: SurplusBudget = field(default_factory=SurplusBudget)
    roster: Callable[[], Mapping[Member, bool]] = dict
    """As of the context; the same object until that changes."""


def make_ports(context: SequencerContext, put: Callable[[Effect], None]) -> Ports:
    """The ports of one log's parts; they see what the context is at each moment."""
    return Ports(
        put=put,
        new_token=itertools.count(1).__next__,
        new_nonce=context.new_nonce,
        rng=context.rng,
        locations=lambda: context.locations or {},
        candidates=context.list_candidates,
        shunned=lambda: context.nodes.shunned if context.is_metadata_reachable else frozenset(),
        may_change_ensemble=lambda: not context.is_rolling_suspended,
        owed_by_all=lambda: context.owed_bytes,
        states=context.nodes,
        times=context.times,
        surplus=context.surplus,
        roster=lambda: context.roster,
    )
