"""Rules switched off, one at a time, each with the smallest world in which that is fatal.

A mutant is a subclass of a production core, or of the driver around it, that forgets one rule; the
search must find a counterexample to each. The small worlds are part of the statement: they say how
little it takes (docs/explorer.md has the table). `…-to-loss` lets the broken fence itself pass, to
see what it leads to.

Called by `__main__.py` and `test_explore.py`. Source: docs/protocol/write.md,
docs/protocol/recovery.md, docs/testing.md "Invariants".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Final

from duramen.core.bookie import BookieCore
from duramen.core.bookie.bookie_state import AddRecord, BookieLogState
from duramen.core.flexible.property import ReplicationProperty
from duramen.core.quorum import write_set
from duramen.core.segment import Segment
from duramen.core.sequencer.effects import LogView
from duramen.core.sequencer.exactly_once.producer_table import ProducerTable
from duramen.core.sequencer.ledger_writer import LedgerWriter, SentEntry, WriterState
from duramen.core.sequencer.log_sequencer import LogSequencer
from duramen.core.sequencer.log_state import Outcome, TakenOver
from duramen.core.sequencer.recovery import Recovery, _Position
from duramen.core.sequencer.takeover.older_epochs import OlderEpochs
from duramen.core.sequencer.takeover.takeover import Takeover
from duramen.ids import EntryId, LedgerId, Member
from tests.explore.flexible import FlexibleScenario, Nodeset
from tests.explore.flexible_mutants import (
    ContentedRecoveryMachine,
    CountingRecoveryMachine,
    CountingWriterMachine,
    EndingRecoveryMachine,
    LeapingWriterMachine,
    ObligingBookie,
)
from tests.explore.machines import RecoveryMachine, SequencerMachine, WriterMachine
from tests.explore.model import Budget, Scenario
from tests.explore.nodes import BookieMachine, Shape, WriteTable

# --- R14: recovery reads carry the seal too (BK#2614) --------------------------------------------


class ReadsWithoutSeal(RecoveryMachine):
    """The driver of recovery sends plain reads."""

    def encode_read(self, ledger_id: LedgerId, entry: EntryId) -> tuple[int, int, int]:
        """No seal."""
        epoch, entry_id, _ = super().encode_read(ledger_id, entry)
        return epoch, entry_id, 0


# --- R10: a seal is on disk before any answer to the request that carries it ---------------------


class HastyBookie(BookieCore):
    """Answers to seals, and refusals under them, do not wait for the journal."""

    def _token_of_seal(self, log: BookieLogState, epoch: int) -> int:
        return 0


# --- R13: the LAC moves by the owner alone -------------------------------------------------------


class CredulousBookie(BookieCore):
    """Takes what recovery writes back for acknowledged."""

    def _store(self, add: AddRecord) -> None:
        if add.is_recovery:
            add = add._replace(lac=add.entry_id, is_recovery=False)
        super()._store(add)


# --- R12: every ack set must be hit --------------------------------------------------------------


class MajorityRecovery(Recovery):
    """Fences and concludes by a majority."""

    def _is_sealed_by_cover(self) -> bool:
        return len(self._sealed) > len(self._frozen.ensemble) // 2

    def _judge_absence(self, position: _Position, now_us: int) -> None:
        members = write_set(self._frozen.ensemble, self.segment.quorum, position.entry)
        if len(position.absent) > len(members) // 2:
            position.absent = [*members]
        super()._judge_absence(position, now_us)


class MajorityRecoveryMachine(RecoveryMachine):
    """Runs it."""

    kind = MajorityRecovery


# --- R15: an absence is proved by a cover, not by one answer -------------------------------------


class TrustingRecovery(Recovery):
    """Believes the first bookie that has no entry."""

    def _judge_absence(self, position: _Position, now_us: int) -> None:
        if position.absent:
            members = write_set(self._frozen.ensemble, self.segment.quorum, position.entry)
            position.absent = [*members]
        super()._judge_absence(position, now_us)


class TrustingRecoveryMachine(RecoveryMachine):
    """Runs it."""

    kind = TrustingRecovery


# --- R16: what is found is written back ----------------------------------------------------------


class LazyRecovery(Recovery):
    """Takes what it finds for written back."""

    def _write_back(self, position: _Position, members: Collection[Member]) -> None:
        position.holders = [*members]
        self._complete(position, 0)


class LazyRecoveryMachine(RecoveryMachine):
    """Runs it."""

    kind = LazyRecovery


# --- R6, R7, R8: acknowledgements and ensemble changes -------------------------------------------


class StaleWriter(LedgerWriter):
    """R7: keeps the acknowledgements of members that were replaced."""

    def _adopt(self, segment: Segment, version: int, now_us: int) -> list[SentEntry]:
        kept = [(entry, [*entry.holders]) for entry in self.window]
        acknowledged = super()._adopt(segment, version, now_us)
        for entry, holders in kept:
            entry.holders += [member for member in holders if member not in entry.holders]
        return [*acknowledged, *self._advance(now_us)]


class GullibleWriter(LedgerWriter):
    """R8: counts acknowledgements of whoever sends them."""

    def _on_stored(self, member: Member, entry_id: EntryId) -> None:
        super()._on_stored(member, entry_id)
        index = entry_id - self.lac - 1
        if 0 <= index < len(self.window) and member not in self.window[index].holders:
            self.window[index].holders.append(member)


class HastyWriter(LedgerWriter):
    """R6: goes on acknowledging while a change of the ensemble is under way."""

    def _advance(self, now_us: int) -> list[SentEntry]:
        state = self.state
        if state is WriterState.CHANGING:
            self.state = WriterState.OPEN
        acknowledged = super()._advance(now_us)
        self.state = state
        return acknowledged


class StaleWriterMachine(WriterMachine):
    """Runs it."""

    kind = StaleWriter


class GullibleWriterMachine(WriterMachine):
    """Runs it."""

    kind = GullibleWriter


class HastyWriterMachine(WriterMachine):
    """Runs it."""

    kind = HastyWriter


# --- Chaining: nothing is sent in an epoch before every older one is closed ----------------------


class HastyTakeover(Takeover):
    """Is over as soon as its own epoch is open."""

    def _go_on(self, view: LogView, now_us: int) -> Outcome | None:
        mine = self._changes.find_segment(view)
        if mine is not None and view.segments[-1] == mine:
            self._carried._table = ProducerTable(1)
            return TakenOver(*mine)
        return super()._go_on(view, now_us)


class EarlySequencer(LogSequencer):
    """Appends in its own epoch at once, and does not assert that it should not."""

    def _begin_takeover(self, reason: str) -> Takeover:
        takeover = super()._begin_takeover(reason)
        takeover.__class__ = HastyTakeover
        return takeover

    def validate(self) -> None:
        """Nothing."""


class EarlySequencerMachine(SequencerMachine):
    """Runs it."""

    kind = EarlySequencer


# --- Early appends: every older epoch is sealed and bounded before --------------------------------


class HastyEpochs(OlderEpochs):
    """Takes every older epoch for sealed."""

    @property
    def are_bounded(self) -> bool:
        """Always."""
        return True


class UnsealedMachine(SequencerMachine):
    """Appends early before the older epochs are sealed."""

    def __init__(self, name: str, shape: Shape, writes: WriteTable) -> None:
        super().__init__(name, shape, writes)
        self.core.older.__class__ = HastyEpochs


RP = ReplicationProperty

MUTANTS: Final[Mapping[str, Scenario]] = {
    scenario.name: scenario
    for scenario in (
        Scenario("r14-read-without-seal", Shape(3, 3, 2, 3), recovery=ReadsWithoutSeal),
        Scenario("r10-seal-before-sync", Shape(2, 2, 1, 2), Budget(crashes=1),
                 bookie=partial(BookieMachine, kind=HastyBookie)),
        Scenario("r10-to-loss", Shape(2, 2, 1, 2), Budget(crashes=1), fence="unjudged",
                 bookie=partial(BookieMachine, kind=HastyBookie)),
        Scenario("r12-majority", Shape(3, 3, 1, 3), recovery=MajorityRecoveryMachine),
        Scenario("r12-to-loss", Shape(3, 3, 1, 3), fence="unjudged",
                 recovery=MajorityRecoveryMachine),
        Scenario("r12-majority-striped", Shape(3, 1, 1, 3), recovery=MajorityRecoveryMachine),
        Scenario("r7-stale-acks", Shape(2, 2, 2, 3, 2), Budget(timeouts=1), recoverers=0,
                 writer=StaleWriterMachine),
        Scenario("r8-replaced-member", Shape(1, 1, 1, 2), Budget(timeouts=1), recoverers=0,
                 writer=GullibleWriterMachine),
        Scenario("r6-ack-before-change", Shape(2, 2, 1, 3), Budget(timeouts=1), recoverers=1,
                 writer=HastyWriterMachine),
        Scenario("r13-recovery-moves-lac", Shape(2, 2, 1, 2),
                 bookie=partial(BookieMachine, kind=CredulousBookie)),
        Scenario("r15-one-absence", Shape(2, 2, 1, 2), recovery=TrustingRecoveryMachine),
        Scenario("r16-no-write-back", Shape(2, 2, 2, 2), recovery=LazyRecoveryMachine),
        Scenario("early-append", Shape(1, 1, 1, 1), sequencers=2, sequencer=EarlySequencerMachine),
        Scenario("early-append-unsealed", Shape(1, 1, 1, 1, early_append=True), sequencers=2,
                 sequencer=UnsealedMachine),
        FlexibleScenario("r22-holders-are-counted", Nodeset((2, 2), RP(2, 2)), recoverers=0,
                         writer=CountingWriterMachine),
        FlexibleScenario("r22-lng-over-a-gap", Nodeset((1, 1), RP(2, 2), 2, "out_of_order"),
                         recoverers=0, writer=LeapingWriterMachine),
        FlexibleScenario("v3-here-under-a-seal", Nodeset((1, 1), RP(2, 2)), Budget(),
                         recoverers=2, bookie=partial(BookieMachine, kind=ObligingBookie)),
        FlexibleScenario("v3-to-loss", Nodeset((1, 1), RP(2, 2)), Budget(), recoverers=2,
                         fence="unjudged", bookie=partial(BookieMachine, kind=ObligingBookie)),
        FlexibleScenario("r23-counted-cover", Nodeset((2, 2), RP(2, 2)),
                         recovery=CountingRecoveryMachine),
        FlexibleScenario("r23-to-loss", Nodeset((2, 2), RP(2, 2)), fence="unjudged",
                         recovery=CountingRecoveryMachine),
        FlexibleScenario("r24-silence-is-absence", Nodeset((1, 1), RP(1)), Budget(timeouts=1),
                         is_reduced=False, recovery=EndingRecoveryMachine),
        FlexibleScenario("r24-end-at-a-hole", Nodeset((1, 1), RP(2, 2), 2, "out_of_order"),
                         Budget(), recovery=EndingRecoveryMachine),
        FlexibleScenario("r24-no-write-back", Nodeset((1, 1), RP(2, 2)), Budget(),
                         recovery=ContentedRecoveryMachine),
        Scenario("literal-f1", Shape(1, 1, 1, 1), fence="literal"),
    )
}  # fmt: skip
"""`literal-f1` breaks no rule: it shows why F1 speaks of appends pushed after the cover."""
