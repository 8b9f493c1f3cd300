"""A change of the ensemble by itself: every outcome of its compare-and-set and of its reads.

What waits meanwhile, and what is sent afterwards, is in `test_ledger_writer.py`. Source:
docs/protocol/write.md "Ensemble change", R3, R6.
"""

from __future__ import annotations

import pytest

from duramen.config import parse_log_config
from duramen.core.log_node import LogNode
from duramen.core.placement import PlacementRule
from duramen.core.segment import Segment, Totals
from duramen.core.sequencer import effects as fx
from duramen.core.sequencer.effects import CommitOutcome, LogView
from duramen.core.sequencer.writing.ensemble_change import (
    ChangeEnd,
    EnsembleChange,
    StoredSegment,
)
from duramen.ids import EntryId, Member
from duramen.limits import RETRY_DELAY_US
from tests.unit.core_fakes import LOG_ID
from tests.unit.writing_parts import B0, B1, B2, B3, Recorder, make_segment

News = StoredSegment | ChangeEnd | None


class World:
    """A change of b0, b1, b2, whose node has version 4; b3 is to spare."""

    def __init__(self, *spare: str) -> None:
        self.recorder = Recorder(*spare)
        self.segment = make_segment()
        self.change = EnsembleChange(PlacementRule(), self.recorder.ports)

    def propose(self, *absent: Member, lac: int = 1, version: int = 4) -> bool:
        is_proposed = self.change.propose(
            self.segment, version, absent, EntryId(lac), Totals(lac + 1)
        )
        self.change.validate()
        assert is_proposed == self.change.is_under_way
        return is_proposed

    def proposed(self) -> StoredSegment:
        """The segment of the one change that is proposed, with the version that it replaces."""
        (commit,) = self.recorder.take(fx.Commit)
        (write,) = commit.writes
        self.token = commit.token
        assert isinstance(write, fx.SetSegment) and isinstance(write.segment, Segment)
        return StoredSegment(write.segment, write.version, is_ours=True)

    def outcome(self, outcome: CommitOutcome, now_us: int = 0) -> News:
        news = self.change.on_commit(self.token, outcome, now_us)
        self.change.validate()
        return news

    def read(self, *segments: tuple[Segment, int], is_there: bool = True) -> News:
        """Answer the one read under way."""
        (asked,) = self.recorder.take(fx.ReadMetadata)
        log = LogNode(LOG_ID, "ns", "log", parse_log_config({}))
        view = LogView(log.with_new_epoch("x"), 1, segments, None)
        return self.change.on_metadata(asked.token, view if is_there else None, 0)


def test_a_proposal_replaces_who_failed_from_the_entry_behind_the_lac_on() -> None:
    world = World("b3")
    assert world.propose(B2)
    write = world.proposed()
    assert write.version == 4
    assert write.segment.last_fragment.ensemble == (B0, B1, B3)
    first_entries = [(f.first_entry, f.totals_before) for f in write.segment.fragments]
    assert first_entries == [(0, Totals()), (2, Totals(2))]


def test_nothing_is_proposed_where_nobody_can_take_the_place() -> None:
    world = World()
    assert not world.propose(B2)
    world = World("b3")
    assert not world.propose(B2, B3), "it failed itself"
    world.recorder.may_change = False
    assert not world.propose(B2), "no ensemble is changed now"
    assert not world.recorder.outbox


def test_what_is_applied_is_in_force() -> None:
    world = World("b3")
    world.propose(B2)
    write = world.proposed()
    news = world.outcome(CommitOutcome.APPLIED)
    assert news == StoredSegment(write.segment, 5, is_ours=True)
    assert not world.change.is_under_way and world.change.change_count == 1


def test_what_was_never_sent_is_called_off() -> None:
    world = World("b3")
    world.propose(B2)
    world.proposed()
    assert world.outcome(CommitOutcome.UNAVAILABLE) is ChangeEnd.CALLED_OFF
    assert not world.change.is_under_way and world.change.change_count == 0


def test_an_answer_to_something_else_changes_nothing() -> None:
    world = World("b3")
    world.propose(B2)
    world.proposed()
    assert world.change.on_commit(world.token + 1, CommitOutcome.APPLIED, 0) is None
    assert world.change.on_metadata(world.token, None, 0) is None
    world.change.validate()
    assert world.change.is_under_way


def test_r3_after_a_conflict_the_change_is_to_be_proposed_on_what_is_there() -> None:
    world = World("b3")
    world.propose(B2)
    world.proposed()
    assert world.outcome(CommitOutcome.CONFLICT) is None
    repaired = make_segment(later=(B0, B1, B2))
    assert world.read((repaired, 6)) == StoredSegment(repaired, 6, is_ours=False)
    world.segment = repaired
    world.propose(B2, version=6)
    assert world.proposed().version == 6


@pytest.mark.parametrize("is_marked", [True, False])
def test_r3_a_segment_that_is_not_open_any_more_is_lost(is_marked: bool) -> None:
    world = World("b3")
    world.propose(B2)
    world.proposed()
    world.outcome(CommitOutcome.CONFLICT)
    segments = [(world.segment.marked("other"), 5)] if is_marked else []
    assert world.read(*segments) is ChangeEnd.LOST
    world.change.validate()


def test_r6_an_unknown_outcome_is_read_back_after_a_pause_until_the_read_succeeds() -> None:
    world = World("b3")
    world.propose(B2)
    write = world.proposed()
    assert world.outcome(CommitOutcome.UNKNOWN, now_us=7) is None
    assert world.change.retry_at_us == 7 + RETRY_DELAY_US
    world.change.on_timer(6 + RETRY_DELAY_US)
    assert not world.recorder.outbox
    world.change.on_timer(7 + RETRY_DELAY_US)
    assert world.read(is_there=False) is None
    world.change.validate()
    world.change.on_timer(RETRY_DELAY_US)
    assert world.read((write.segment, 5)) == StoredSegment(write.segment, 5, is_ours=True)


def test_r6_any_proposal_of_the_change_may_turn_out_to_be_in_force() -> None:
    world = World("b3")
    world.propose(B2)
    first = world.proposed()
    world.outcome(CommitOutcome.UNKNOWN)
    world.change.on_timer(RETRY_DELAY_US)
    world.read((world.segment, 4))
    world.propose(B2)
    world.proposed()
    world.outcome(CommitOutcome.CONFLICT)
    assert world.read((first.segment, 5)) == StoredSegment(first.segment, 5, is_ours=True)


def test_r6_after_an_unknown_outcome_only_a_success_ends_the_change() -> None:
    world = World("b3")
    world.propose(B2)
    world.proposed()
    world.outcome(CommitOutcome.UNKNOWN)
    world.change.on_timer(RETRY_DELAY_US)
    world.read((world.segment, 4))
    world.recorder.candidates.clear()
    assert world.propose(B2), "the ensemble as it is, written again"
    assert world.proposed().segment.last_fragment.ensemble == (B0, B1, B2)
    assert world.outcome(CommitOutcome.UNAVAILABLE) is None, "not called off"
    world.read((world.segment, 4))
    world.propose(B2)
    world.proposed()
    assert isinstance(world.outcome(CommitOutcome.APPLIED), StoredSegment)
    assert not world.propose(B2), "the next change may be given up again"


@pytest.mark.parametrize("outcome", [None, CommitOutcome.CONFLICT, CommitOutcome.UNKNOWN])
def test_what_was_abandoned_hears_of_nothing(outcome: CommitOutcome | None) -> None:
    world = World("b3")
    world.propose(B2)
    write = world.proposed()
    if outcome is not None:
        world.outcome(outcome)
    world.change.abandon()
    assert world.outcome(CommitOutcome.APPLIED) is None
    world.change.on_timer(RETRY_DELAY_US)
    for asked in world.recorder.take(fx.ReadMetadata):
        log = LogNode(LOG_ID, "ns", "log", parse_log_config({}))
        view = LogView(log, 1, ((write.segment, 5),), None)
        assert world.change.on_metadata(asked.token, view, 0) is None
    assert not world.change.is_under_way and not world.recorder.outbox


@pytest.mark.parametrize("fault", ["nothing under way", "two under way", "foreign nonce"])
def test_a_change_that_breaks_an_invariant_is_found(fault: str) -> None:
    world = World("b3")
    world.propose(B2)
    change = world.change
    match fault:
        case "nothing under way":
            change._commit_token = None
        case "two under way":
            change.retry_at_us = 1
        case _:
            change._own_nonces.clear()
    with pytest.raises(AssertionError):
        change.validate()
