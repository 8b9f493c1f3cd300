"""Mutants of one epoch: its writer, its recovery, where its members lie.

Part of `tests.sim.mutants`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from duramen.core.placement.search import Ring
from duramen.core.sequencer import recovery as recovery_module
from duramen.core.sequencer.effects import Commit, CommitOutcome, SetSegment
from duramen.core.sequencer.ledger_writer import LedgerWriter, WriterState
from duramen.core.sequencer.recovery import Recovery, RecoveryState
from duramen.core.sequencer.writing.window import EntryWindow
from duramen.core.status import BookieStatus
from duramen.ids import EntryId, Member
from tests.sim.focus import Focus
from tests.sim.mutants.mutant import Mutant

# --- writer --------------------------------------------------------------------------------------

_advance = LedgerWriter._advance
_adopt = LedgerWriter._adopt
_on_stored = LedgerWriter._on_stored
_acknowledge = EntryWindow.acknowledge


def _advance_while_changing(self: LedgerWriter, now_us: int) -> Any:
    if self.state is not WriterState.CHANGING:
        return _advance(self, now_us)
    self.state = WriterState.OPEN
    try:
        return _advance(self, now_us)
    finally:
        self.state = WriterState.CHANGING


def _adopt_with_stale_acks(self: LedgerWriter, segment: Any, version: int, now_us: int) -> Any:
    stale = {entry.entry: list(entry.holders) for entry in self.window}
    result = _adopt(self, segment, version, now_us)
    for entry in self.window:
        entry.holders += [m for m in stale[entry.entry] if m not in entry.holders]
    return result + self._advance(now_us)


def _acknowledge_below_the_quorum(self: EntryWindow, segment: Any) -> Any:
    fewer = replace(segment.quorum, ack_quorum=max(segment.quorum.ack_quorum - 1, 1))
    return _acknowledge(self, replace(segment, quorum=fewer))


def _acknowledge_over_a_gap(self: EntryWindow, segment: Any) -> Any:
    return _acknowledge(self, replace(segment, ack_mode="out_of_order"))


def _count_any_member(self: LedgerWriter, member: Member, entry_id: EntryId) -> None:
    index = entry_id - self.lac - 1
    if 0 <= index < len(self.window) and member not in self.window[index].holders:
        self.window[index].holders.append(member)
    _on_stored(self, member, entry_id)


def _drop_every_ack(self: LedgerWriter, segment: Any, version: int, now_us: int) -> Any:
    for entry in self.window:
        entry.holders = []
        entry.is_sent = True
    delivery = self._delivery
    send, delivery.send = delivery.send, lambda *_: None  # type: ignore[method-assign]
    try:
        return _adopt(self, segment, version, now_us)
    finally:
        delivery.send = send  # type: ignore[method-assign]


_propose = LedgerWriter._propose


def _propose_out_of_order(self: LedgerWriter) -> None:
    """As if the segment were `ordered`, for the length of the proposal."""
    change, mode = self._change, self.segment.ack_mode
    ports = change._ports

    def put(effect: Any) -> None:
        if isinstance(effect, Commit):
            assert change._proposal is not None
            proposed = replace(change._proposal.segment, ack_mode=mode)
            change._proposal = SetSegment(proposed, self.version)
            effect = replace(effect, writes=(change._proposal,))
        ports.put(effect)

    change._ports = replace(ports, put=put)
    self.segment = replace(self.segment, ack_mode="ordered")
    _propose(self)
    self.segment = replace(self.segment, ack_mode=mode)
    change._ports = ports


_on_change = LedgerWriter.on_commit


def _adopt_what_may_be_in_force(
    self: LedgerWriter, token: int, outcome: CommitOutcome, now_us: int
) -> Any:
    is_unknown = outcome is CommitOutcome.UNKNOWN
    return _on_change(self, token, CommitOutcome.APPLIED if is_unknown else outcome, now_us)


def _suspend_whatever_is_unknown(self: LedgerWriter) -> None:
    """Nothing can be placed: the writer goes on though an earlier change may be in force."""
    self._change._has_unknown_commit = False
    _propose(self)


# --- recovery ------------------------------------------------------------------------------------

_begin_reading = Recovery._begin_reading
_replace_lost = Recovery._replace_lost
_on_commit = Recovery.on_commit


def _majority(responders: Any, sets: Any, _: int) -> bool:
    return all(2 * sum(m in responders for m in members) > len(members) for members in sets)


def _read_below_the_last_fragment(self: Recovery, now_us: int) -> None:
    """From the highest LAC on, wherever the last fragment begins; always in its ensemble."""
    first = self._frozen.first_entry
    self._frozen = replace(self._frozen, first_entry=EntryId(min(first, self._lac + 1)))
    _begin_reading(self, now_us)


_on_seal = Recovery.on_seal


def _take_damaged_marks(self: Recovery, member: Member, status: Any, *marks: Any) -> None:
    """Of a segment that acknowledges out of order, too."""
    is_damaged = status is BookieStatus.UNKNOWN
    _on_seal(self, member, BookieStatus.OK if is_damaged else status, *marks)


def _write_ensemble_early(self: Recovery, position: Any, now_us: int) -> None:
    before = list(self._fragments)
    _replace_lost(self, position, now_us)
    if self._fragments != before:
        early = replace(
            self.segment, fragments=tuple(self._fragments), nonce=self._ports.new_nonce()
        )
        self._ports.put(Commit(self._ports.new_token(), (SetSegment(early, self.version),)))
        self.segment, self.version = early, self.version + 1


def _close_whatever_the_answer(
    self: Recovery, token: int, outcome: CommitOutcome, now_us: int
) -> None:
    if token == self._token and self.state is RecoveryState.CLOSE:
        outcome = CommitOutcome.APPLIED
    _on_commit(self, token, outcome, now_us)


def _holds_for_the_ensemble(self: Ring, _at: int) -> bool:
    size = sum(self.in_rack.values())
    return size < self.size or (
        len(+self.in_rack) >= self.rule.min_racks and len(+self.in_region) >= self.rule.min_regions
    )


_UNKNOWN_CHANGES: Final = Focus(
    ("bookie killed", "bookie killed", "bookie paused", "rolling suspended", "rolling suspended"),
    ack_mode="ordered", unknown_ratio=0.6,
)  # fmt: skip

MUTANTS: Final[dict[str, Mutant]] = {
    "ack-before-ensemble-cas": Mutant(
        "R6", "entries are acknowledged while the ensemble changes",
        ((LedgerWriter, "_advance", _advance_while_changing),),
    ),
    "stale-acks-kept": Mutant(
        "R7", "acks of replaced members count after a change",
        ((LedgerWriter, "_adopt", _adopt_with_stale_acks),),
    ),
    "ack-below-the-ack-quorum": Mutant(
        "R5", "an entry is acknowledged with one copy less than Qa",
        ((EntryWindow, "acknowledge", _acknowledge_below_the_quorum),),
    ),
    "ack-over-a-gap": Mutant(
        "R5", "an entry of an `ordered` segment is acknowledged before a lower one",
        ((EntryWindow, "acknowledge", _acknowledge_over_a_gap),),
    ),
    "ack-of-any-member": Mutant(
        "R8", "an ack counts from a member that is not in the write set",
        ((LedgerWriter, "_on_stored", _count_any_member),),
    ),
    "ack-of-unchanged-refused": Mutant(
        "R8", "acks of unchanged members are dropped at a change, and not asked for again",
        ((LedgerWriter, "_adopt", _drop_every_ack),),
    ),
    "ensemble-change-out-of-order": Mutant(
        "R8", "an out_of_order segment changes its ensemble",
        ((LedgerWriter, "_propose", _propose_out_of_order),),
    ),
    "change-counted-while-unknown": Mutant(
        "R6", "a change of unknown fate is taken for applied",
        ((LedgerWriter, "on_commit", _adopt_what_may_be_in_force),),
    ),
    "suspended-under-an-unknown-change": Mutant(
        "R6", "a member is suspended while an earlier change may be in force",
        ((LedgerWriter, "_propose", _suspend_whatever_is_unknown),), focus=_UNKNOWN_CHANGES,
    ),
    "damage-at-an-out-of-order-end": Mutant(
        "R13", "who may have lost entries tells where an out_of_order segment ends",
        ((Recovery, "on_seal", _take_damaged_marks),),
        focus=Focus(("last commit rots",), ack_mode="out_of_order"),
    ),
    "recovery-below-last-fragment": Mutant(
        "R13", "recovery reads earlier fragments in the last ensemble",
        ((Recovery, "_begin_reading", _read_below_the_last_fragment),),
    ),
    "fence-by-majority": Mutant(
        "R12", "a majority of the ensemble fences", ((recovery_module, "covers", _majority),)
    ),
    "ensemble-of-recovery-written-early": Mutant(
        "R16", "recovery writes its ensembles before the close",
        ((Recovery, "_replace_lost", _write_ensemble_early),),
    ),
    "close-ignores-other-recoverer": Mutant(
        "R3", "a close that was refused counts as one's own",
        ((Recovery, "on_commit", _close_whatever_the_answer),),
    ),
    "regions-on-the-ensemble": Mutant(
        "R20", "racks and regions are checked on the ensemble",
        ((Ring, "holds", _holds_for_the_ensemble),),
    ),
}  # fmt: skip
