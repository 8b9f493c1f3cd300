"""The ledger writer, rule by rule: every answer of every bookie is given by hand.

Each test names the rule (R5 to R9, R19) and fails when that rule is broken in the writer.
`Driver` validates the core's invariants after each event. What is left out here is found by the
random runs of `test_log_sequencer.py`. Source: docs/protocol/write.md.
"""

from __future__ import annotations

import pytest

from duramen.core.placement import Candidate, PlacementRule
from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment
from duramen.core.sequencer import effects as fx
from duramen.core.sequencer import ledger_writer
from duramen.core.sequencer.effects import CommitOutcome
from duramen.core.sequencer.ledger_writer import WriterState
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, EntryId, Epoch
from duramen.limits import (
    OWED_BYTES_MAX_PER_SEQUENCER,
    PROBE_INTERVAL_US,
    RETRY_DELAY_US,
)
from tests.unit.core_fakes import LOG_ID
from tests.unit.writer_driver import COMMIT_DELAY_US, OK, Driver, member

TIMEOUT = BookieStatus.TIMEOUT


def ensemble(segment: Segment) -> list[str]:
    return [one.bookie for one in segment.last_fragment.ensemble]


# --- R5 ------------------------------------------------------------------------------------------


def test_r5_an_entry_is_acknowledged_when_qa_members_hold_it() -> None:
    driver = Driver()
    driver.add()
    assert driver.sent() == [("b0", 0), ("b1", 0), ("b2", 0)]
    assert driver.ok(0, "b2") == []
    assert driver.ok(0, "b2") == [], "one member counts once"
    assert driver.ok(0, "b0") == [0]
    assert driver.ok(0, "b1") == []


def test_r5_entries_are_acknowledged_in_order() -> None:
    driver = Driver()
    driver.add(3)
    assert driver.ok(2, "b0", "b1") == []
    assert driver.ok(1, "b0", "b1") == []
    assert driver.ok(0, "b0", "b1") == [0, 1, 2]
    assert driver.writer.lac == 2


def test_r5_a_striped_entry_goes_to_its_own_write_set() -> None:
    driver = Driver(quorum=Quorum(4, 2, 2))
    driver.add(4)
    assert driver.sent() == [
        ("b0", 0), ("b1", 0), ("b1", 1), ("b2", 1), ("b2", 2), ("b3", 2), ("b3", 3), ("b0", 3),
    ]  # fmt: skip
    assert driver.ok(0, "b2", "b3") == [], "members outside its write set do not count"
    assert driver.ok(0, "b0", "b1") == [0]


def test_the_lac_beside_an_add_is_below_its_entry_and_acknowledged() -> None:
    driver = Driver()
    driver.add(2)
    assert [add.lac for add in driver.take(fx.SendAdd)] == [-1] * 6
    driver.ok(0, "b0", "b1")
    driver.add()
    assert [add.lac for add in driver.take(fx.SendAdd)] == [0] * 3
    driver.ok(1, "b0", "b1")
    driver.answer(1, "b2", TIMEOUT)
    driver.pass_time(PROBE_INTERVAL_US)
    assert [(add.entry, add.lac) for add in driver.take(fx.SendAdd)] == [(0, -1)]


# --- R6 ------------------------------------------------------------------------------------------


def test_r6_nothing_is_acknowledged_while_the_ensemble_changes() -> None:
    driver = Driver("b3")
    driver.add()
    driver.answer(0, "b2", TIMEOUT)
    token, proposal = driver.proposed()
    assert driver.writer.state is WriterState.CHANGING
    assert driver.ok(0, "b0", "b1") == []
    assert driver.writer.lac == -1
    driver.sent()
    assert driver.outcome(token, CommitOutcome.APPLIED) == [0]
    assert ensemble(proposal) == ["b0", "b1", "b3"]
    assert driver.sent() == [("b3", 0)]


def test_r6_an_unknown_outcome_is_no_success_until_it_is_read_back_by_nonce() -> None:
    driver = Driver("b3")
    driver.add()
    driver.answer(0, "b2", TIMEOUT)
    token, proposal = driver.proposed()
    assert driver.outcome(token, CommitOutcome.UNKNOWN) == []
    assert driver.ok(0, "b0", "b1") == []
    driver.pass_time(RETRY_DELAY_US)
    assert driver.read(None) == []
    driver.pass_time(RETRY_DELAY_US)
    assert driver.read(proposal, version=5) == [0]
    assert driver.writer.version == 5


def test_r6_after_an_unknown_outcome_the_old_ensemble_is_written_again() -> None:
    driver = Driver("b3")
    driver.add()
    driver.answer(0, "b2", TIMEOUT)
    token, _ = driver.proposed()
    driver.outcome(token, CommitOutcome.UNKNOWN)
    driver.ok(0, "b0", "b1")
    driver.candidates.clear()
    driver.pass_time(RETRY_DELAY_US)
    assert driver.read(driver.segment) == [], "not applied now; it may be applied later"
    token, again = driver.proposed()
    assert ensemble(again) == ["b0", "b1", "b2"]
    assert driver.outcome(token, CommitOutcome.UNAVAILABLE) == []
    assert driver.read(driver.segment) == []
    token, _ = driver.proposed()
    assert driver.outcome(token, CommitOutcome.APPLIED) == [0]


def test_r6_a_change_that_was_never_sent_leaves_the_member_suspended() -> None:
    driver = Driver("b3")
    driver.add()
    driver.answer(0, "b2", TIMEOUT)
    token, _ = driver.proposed()
    driver.ok(0, "b0", "b1")
    driver.add()
    assert driver.outcome(token, CommitOutcome.UNAVAILABLE) == [0]
    assert [m.bookie for m in driver.writer.suspended] == ["b2"]
    assert driver.sent()[-2:] == [("b0", 1), ("b1", 1)], "what waited is sent"


def test_r3_a_conflict_keeps_what_repair_changed_in_earlier_fragments() -> None:
    driver = Driver("b3")
    driver.add()
    driver.ok(0, "b0", "b1", "b2")
    driver.add()
    driver.answer(1, "b2", TIMEOUT)
    token, proposal = driver.proposed()
    driver.outcome(token, CommitOutcome.APPLIED)
    assert [f.first_entry for f in proposal.fragments] == [0, 1]
    driver.candidates[:] = [Candidate(member("b4"), "r", "b4")]
    driver.answer(1, "b1", TIMEOUT)
    token, _ = driver.proposed()
    first, last = proposal.fragments
    repaired = Fragment(first.first_entry, (*first.ensemble[:2], member("b9")))
    stored = Segment(LOG_ID, Epoch(1), proposal.quorum, (repaired, last), nonce="repair")
    driver.outcome(token, CommitOutcome.CONFLICT)
    driver.read(stored, version=6)
    _, again = driver.proposed()
    assert again.fragments[0] == repaired
    assert ensemble(again) == ["b0", "b4", "b3"]
    assert driver.writer.version == 6


def test_r3_a_segment_that_is_recovered_meanwhile_makes_the_rest_uncertain() -> None:
    driver = Driver("b3")
    driver.add()
    driver.answer(0, "b2", TIMEOUT)
    token, _ = driver.proposed()
    driver.ok(0, "b0", "b1")
    driver.outcome(token, CommitOutcome.CONFLICT)
    assert driver.read(driver.segment.marked("other"), version=5) == []
    assert driver.writer.state is WriterState.FENCED
    assert driver.writer.lac == -1


# --- R7, R8 --------------------------------------------------------------------------------------


def test_r7_a_complete_but_unacknowledged_entry_loses_the_acks_of_replaced_members() -> None:
    driver = Driver("b3")
    driver.add(2)
    driver.ok(1, "b1", "b2")
    driver.answer(0, "b2", TIMEOUT)
    token, _ = driver.proposed()
    driver.sent()
    assert driver.outcome(token, CommitOutcome.APPLIED) == []
    assert ("b3", 1) in driver.sent(), "the new member gets it"
    assert driver.ok(0, "b0", "b1") == [0], "entry 1 lies at b1 alone"
    assert driver.ok(1, "b3") == [1]


def test_r8_acks_of_replaced_members_are_ignored_and_those_of_others_stay_valid() -> None:
    driver = Driver("b3")
    driver.add(2)
    driver.answer(0, "b2", TIMEOUT)
    token, _ = driver.proposed()
    driver.outcome(token, CommitOutcome.APPLIED)
    assert driver.ok(0, "b0", "b2") == [], "b2 was replaced"
    assert driver.ok(0, "b1") == [0], "sent before the change, and still a member"
    late = driver.writer.on_add(member("b3", 2), EntryId(1), OK, 0)
    assert driver.ok(1, "b0") == [] == late, "another incarnation is another node (R1)"


def test_a_change_begins_after_the_lac_and_replaces_a_fragment_that_begins_there() -> None:
    driver = Driver("b3")
    driver.add(2)
    driver.ok(0, "b0", "b1")
    driver.answer(1, "b2", TIMEOUT)
    token, proposal = driver.proposed()
    assert [(f.first_entry, f.totals_before.record_count) for f in proposal.fragments] == [
        (0, 0), (1, 1),
    ]  # fmt: skip
    driver.outcome(token, CommitOutcome.APPLIED)
    driver.candidates[:] = [Candidate(member("b4"), "r", "b4")]
    driver.answer(1, "b3", TIMEOUT)
    _, proposal = driver.proposed()
    assert [f.first_entry for f in proposal.fragments] == [0, 1]
    assert ensemble(proposal) == ["b0", "b1", "b4"]


def test_a_second_failure_during_a_change_is_handled_after_it() -> None:
    driver = Driver("b3", "b4")
    driver.add()
    driver.answer(0, "b2", TIMEOUT)
    token, _ = driver.proposed()
    driver.answer(0, "b1", BookieStatus.WRONG_INCARNATION)
    assert driver.take(fx.Commit) == [], "one change at a time"
    driver.outcome(token, CommitOutcome.APPLIED)
    _, proposal = driver.proposed()
    assert ensemble(proposal)[0] == "b0" and sorted(ensemble(proposal)) == ["b0", "b3", "b4"]


def test_a_member_that_failed_just_now_is_not_chosen_again() -> None:
    """Regression: two members owed something were exchanged for one another without a pause."""
    driver = Driver("b3")
    driver.add(2)
    driver.ok(0, "b0", "b1")
    driver.answer(0, "b2", TIMEOUT)
    token, _ = driver.proposed()
    driver.outcome(token, CommitOutcome.APPLIED)
    driver.candidates[:] = [Candidate(member(name), "r", name) for name in ("b2", "b3")]
    driver.answer(1, "b3", TIMEOUT)
    assert driver.take(fx.Commit) == []
    assert [m.bookie for m in driver.writer.suspended] == ["b3"]


def test_the_replaced_disk_of_a_failed_member_may_take_its_place() -> None:
    """Regression: with as many bookies as members nothing could ever replace a lost disk (R1)."""
    driver = Driver()
    driver.candidates = [Candidate(member("b2", 2), "r", "b2")]
    driver.add()
    driver.answer(0, "b2", BookieStatus.WRONG_INCARNATION)
    _, proposal = driver.proposed()
    assert proposal.last_fragment.ensemble[2] == member("b2", 2)


def test_r5_what_lay_on_a_disk_that_was_replaced_acknowledges_nothing() -> None:
    """Seed 2152: the entry waits for its second copy, and the first one goes meanwhile."""
    driver = Driver()
    driver.add()
    assert driver.ok(0, "b0") == []
    driver.answer(0, "b0", BookieStatus.WRONG_INCARNATION)
    assert driver.ok(0, "b1") == []
    assert driver.ok(0, "b0") == [], "a late answer of the disk that is gone"
    assert driver.ok(0, "b2") == [0]


def test_r5_a_lac_too_tells_of_a_disk_that_was_replaced() -> None:
    driver = Driver()
    driver.add()
    driver.ok(0, "b0")
    driver.writer.on_lac(member("b0"), BookieStatus.WRONG_INCARNATION, driver.now_us)
    assert driver.ok(0, "b1") == []


def test_what_is_acknowledged_stays_so_when_a_disk_is_replaced() -> None:
    driver = Driver(ack_mode="out_of_order")
    driver.add(2)
    assert driver.ok(1, "b0", "b1") == [1]
    driver.answer(0, "b0", BookieStatus.WRONG_INCARNATION)
    assert driver.ok(0, "b1", "b2") == [0]
    assert driver.writer.lac == 1


# --- R9 and suspended members --------------------------------------------------------------------


def test_a_suspended_member_resumes_and_gets_what_it_missed() -> None:
    driver = Driver()
    driver.add(2)
    driver.answer(0, "b2", TIMEOUT)
    assert driver.take(fx.Commit) == [], "nothing can take its place"
    assert driver.ok(0, "b0", "b1") == [0], "acks go on (R5)"
    driver.sent()
    driver.add()
    assert driver.sent() == [("b0", 2), ("b1", 2)]
    driver.pass_time(PROBE_INTERVAL_US)
    assert driver.sent() == [("b2", 0)], "a probe is the oldest entry that it misses"
    driver.pass_time(PROBE_INTERVAL_US)
    assert driver.sent() == [], "one probe at a time"
    driver.ok(0, "b2")
    assert driver.sent() == [("b2", 1), ("b2", 2)]
    assert driver.writer.suspended == [] and 0 not in driver.writer.owed


def test_who_is_behind_takes_no_entries_or_misses_one_that_was_acknowledged() -> None:
    driver = Driver()
    writer = driver.writer

    def behind() -> list[str]:
        return [m.bookie for m in writer.list_behind(writer.lap)]

    driver.add(2)
    assert not writer.owes_up_to(writer.lap) and behind() == [], "nothing is acknowledged"
    driver.ok(0, "b0", "b1")
    assert writer.owes_up_to(writer.lap) and behind() == ["b2"], "the third copy is under way"
    assert writer.list_behind(NOTHING) == [] and not writer.owes_up_to(NOTHING)
    driver.ok(0, "b2")
    assert not writer.owes_up_to(writer.lap) and behind() == []
    driver.answer(1, "b2", TIMEOUT)
    assert behind() == ["b2"], "it takes no entries"
    driver.ok(1, "b0", "b1")
    assert not writer.owes_up_to(writer.lap), "nothing is under way to who takes none"


def test_what_is_acknowledged_above_the_lac_may_lack_a_copy_too() -> None:
    driver = Driver(ack_mode="out_of_order")
    driver.add(2)
    driver.ok(1, "b0", "b1")
    assert driver.writer.lac == NOTHING
    behind = driver.writer.list_behind(driver.writer.lap)
    assert [m.bookie for m in behind] == ["b2"] and driver.writer.owes_up_to(driver.writer.lap)


def test_of_very_many_owed_entries_the_whole_ensemble_is_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = Driver()
    driver.add(3)
    for entry in range(3):
        driver.ok(entry, "b0", "b1")
    monkeypatch.setattr(ledger_writer, "_LOOKED_THROUGH_MAX", 2)
    behind = driver.writer.list_behind(driver.writer.lap)
    assert [m.bookie for m in behind] == ["b0", "b1", "b2"]


def test_a_suspended_member_is_replaced_when_another_bookie_comes() -> None:
    driver = Driver()
    driver.add()
    driver.answer(0, "b2", BookieStatus.UNREACHABLE)
    driver.candidates.append(Candidate(member("b3"), "r", "b3"))
    driver.writer.on_bookies_changed(driver.now_us)
    _, proposal = driver.proposed()
    assert ensemble(proposal) == ["b0", "b1", "b3"]


# --- R27 -----------------------------------------------------------------------------------------


def test_r27_a_member_that_another_log_found_silent_is_replaced_while_a_copy_is_under_way() -> None:
    driver = Driver("b3")
    driver.add()
    driver.ok(0, "b0", "b1")  # the copy of b2 is owed
    driver.shun("b2")
    token, proposal = driver.proposed()
    assert ensemble(proposal) == ["b0", "b1", "b3"]
    driver.outcome(token, CommitOutcome.APPLIED)
    assert driver.writer.suspended == []


def test_r27_who_waits_for_nothing_of_it_replaces_it_with_the_next_entry() -> None:
    driver = Driver("b3")
    driver.shun("b2")
    assert driver.take(fx.Commit) == []
    driver.take(fx.SendAdd)
    driver.add()
    assert driver.sent() == [], "R6: not while the ensemble changes"
    token, proposal = driver.proposed()
    assert ensemble(proposal) == ["b0", "b1", "b3"]
    driver.outcome(token, CommitOutcome.APPLIED)
    assert driver.sent() == [("b0", 0), ("b1", 0), ("b3", 0)]


def test_r27_nobody_is_left_for_somebody_who_is_silent_too() -> None:
    driver = Driver("b3")
    driver.add()
    driver.sent()
    driver.shun("b2", "b3")
    assert driver.take(fx.Commit) == [] and driver.writer.suspended == []
    assert driver.ok(0, "b0", "b2") == [0]


def test_r27_of_two_that_are_silent_one_stays_where_one_bookie_is_left() -> None:
    driver = Driver("b3")
    driver.add()
    driver.shun("b1", "b2")
    _, proposal = driver.proposed()
    left = {"b1", "b2"} - set(ensemble(proposal))
    assert len(left) == 1 and "b3" in ensemble(proposal)
    assert [m.bookie for m in driver.writer.suspended] == list(left)


def test_r27_who_is_found_silent_while_the_ensemble_changes_is_left_after_that() -> None:
    driver = Driver("b3", "b4")
    driver.add()
    driver.shun("b1")
    token, proposal = driver.proposed()
    (new,) = {"b3", "b4"} & set(ensemble(proposal))
    driver.shun("b1", "b2")
    assert driver.take(fx.Commit) == []
    driver.outcome(token, CommitOutcome.APPLIED)
    _, proposal = driver.proposed()
    assert set(ensemble(proposal)) == {"b0", "b3", "b4"}, new


def test_r27_who_comes_when_nobody_was_there_takes_the_place() -> None:
    driver = Driver()
    driver.add()
    driver.shun("b2")
    assert driver.take(fx.Commit) == []
    driver.candidates = [Candidate(member("b3"), "r", "b3")]
    driver.writer.on_bookies_changed(driver.now_us)
    _, proposal = driver.proposed()
    assert ensemble(proposal) == ["b0", "b1", "b3"]


def test_r27_no_rule_is_broken_for_somebody_who_may_be_back_in_a_second() -> None:
    driver = Driver("b3", rule=PlacementRule(min_racks=2, is_strict=False), quorum=Quorum(2, 2, 2))
    for name, rack in (("b0", "k0"), ("b1", "k1"), ("b3", "k0")):
        driver.locations[member(name)] = Candidate(member(name), "r", rack)
    driver.candidates = [driver.locations[member("b3")]]
    driver.add()
    driver.shun("b1")
    assert driver.take(fx.Commit) == []
    driver.answer(0, "b1", TIMEOUT)
    _, proposal = driver.proposed()
    assert ensemble(proposal) == ["b0", "b3"], "one that failed may be replaced by anybody"


def test_r27_nothing_is_replaced_while_the_segment_is_held() -> None:
    driver = Driver("b3")
    driver.add()
    driver.ok(0, "b0", "b1")
    driver.writer.hold()
    driver.shun("b2")
    assert driver.take(fx.Commit) == [] and driver.writer.suspended == []


@pytest.mark.parametrize(
    "status", [BookieStatus.READ_ONLY, BookieStatus.GONE, BookieStatus.OVERLOADED]
)
def test_a_member_that_takes_no_entries_is_replaced_like_any_that_fails(
    status: BookieStatus,
) -> None:
    driver = Driver("b3")
    driver.add()
    assert driver.answer(0, "b2", status) == []
    token, proposal = driver.proposed()
    assert ensemble(proposal) == ["b0", "b1", "b3"]
    assert driver.ok(0, "b0", "b1") == [], "R6: not while the ensemble changes"
    assert driver.outcome(token, CommitOutcome.APPLIED) == [0]
    assert driver.sent()[-1] == ("b3", 0)


def test_a_read_only_member_that_cannot_be_replaced_is_probed_until_it_takes_entries() -> None:
    driver = Driver()
    driver.add()
    driver.answer(0, "b2", BookieStatus.READ_ONLY)
    assert driver.ok(0, "b0", "b1") == [0]
    for _ in range(3):
        driver.sent()
        driver.pass_time(PROBE_INTERVAL_US)
        assert driver.sent() == [("b2", 0)]
        driver.answer(0, "b2", BookieStatus.READ_ONLY)
        assert [one.bookie for one in driver.writer.suspended] == ["b2"]
    driver.pass_time(PROBE_INTERVAL_US)
    driver.ok(0, "b2")
    assert driver.writer.suspended == [] and not driver.writer.owed


@pytest.mark.parametrize("status", [BookieStatus.READ_ONLY, BookieStatus.GONE])
def test_a_lac_that_is_not_taken_fails_its_member_and_fences_nothing(status: BookieStatus) -> None:
    driver = Driver("b3")
    driver.add()
    driver.ok(0, "b0", "b1", "b2")
    driver.writer.on_lac(member("b2"), status, driver.now_us)
    assert driver.writer.state is WriterState.CHANGING
    assert ensemble(driver.proposed()[1]) == ["b0", "b1", "b3"]


def test_r9_copies_beyond_qa_stay_owed_until_qw_hold_them() -> None:
    driver = Driver()
    driver.add()
    driver.ok(0, "b0", "b1")
    assert list(driver.writer.owed) == [0]
    assert driver.writer.is_drained
    driver.ok(0, "b2")
    assert driver.writer.owed == {} and driver.writer.owed_bytes == 0


def test_r9_a_replaced_member_stays_owed_what_the_older_fragment_promises() -> None:
    driver = Driver("b3")
    driver.add(2)
    driver.ok(0, "b0", "b1")
    driver.answer(1, "b2", TIMEOUT)
    token, _ = driver.proposed()
    driver.outcome(token, CommitOutcome.APPLIED)
    driver.sent()
    assert list(driver.writer.owed) == [0]
    driver.pass_time(PROBE_INTERVAL_US)
    assert driver.sent() == [("b2", 0)]
    driver.ok(0, "b2")
    assert driver.writer.owed == {}


def test_r9_owed_ranges_are_recorded_and_then_forgotten() -> None:
    driver = Driver()
    driver.add(5)
    for entry in (0, 1, 3, 4):
        driver.ok(entry, "b0", "b1")
    driver.ok(2, "b0", "b2")
    assert list(driver.writer.owed) == [0, 1, 2, 3, 4]
    driver.writer.persist_owed()
    owed = driver.take(fx.PersistOwed)
    assert [(o.member.bookie, o.first, o.last) for o in owed] == [
        ("b2", 0, 1), ("b2", 3, 4), ("b1", 2, 2),
    ]  # fmt: skip
    for one in owed:
        driver.writer.on_owed_persisted(one)
        driver.writer.validate()
    assert driver.writer.owed == {} and driver.writer.owed_bytes == 0


def test_r9_memory_stays_bounded_with_one_member_slow() -> None:
    driver = Driver(owed_bytes_max=20)
    driver.answer(0, "b2", TIMEOUT)
    for entry in range(6):
        driver.add()
        driver.ok(entry, "b0", "b1")
    assert not driver.writer.has_room_for_owed()
    owed = driver.take(fx.PersistOwed)
    assert owed, "past the budget, what is owed is recorded"
    for one in owed:
        driver.writer.on_owed_persisted(one)
    assert driver.writer.has_room_for_owed()


def test_r9_what_is_owed_is_recorded_as_often_as_it_is_too_much() -> None:
    """Regression: recorded every 2 s at most, a fast log filled its window with ZooKeeper there."""
    driver = Driver(owed_bytes_max=20)
    driver.answer(0, "b2", TIMEOUT)
    for entry in range(40):
        driver.add()
        driver.ok(entry, "b0", "b1")
        assert driver.writer.has_room_for_owed()
        for one in driver.take(fx.PersistOwed):
            driver.writer.on_owed_persisted(one)
    assert driver.writer.owed_bytes <= 40


def test_r9_all_logs_of_a_sequencer_together_owe_no_more_than_memory_may_hold() -> None:
    driver = Driver()
    driver.add()
    driver.ok(0, "b0", "b1")
    driver.answer(0, "b2", TIMEOUT)
    driver.owed_by_all = OWED_BYTES_MAX_PER_SEQUENCER // 2 + 1
    driver.now_us += PROBE_INTERVAL_US
    driver.writer.on_timer(driver.now_us)
    (owed,) = driver.take(fx.PersistOwed)
    assert (owed.member.bookie, owed.first, owed.last) == ("b2", 0, 0), "quiet logs record too"
    driver.owed_by_all = OWED_BYTES_MAX_PER_SEQUENCER + 1
    assert not driver.writer.has_room_for_owed()
    driver.writer.on_owed_persisted(owed)
    assert driver.writer.has_room_for_owed(), "a log that owes nothing is not held up by others"


# --- Fenced, held, LAC ---------------------------------------------------------------------------


def test_r9_a_sealed_member_fences_the_writer() -> None:
    driver = Driver()
    driver.add()
    driver.ok(0, "b0")
    driver.answer(0, "b1", BookieStatus.SEALED)
    assert driver.writer.state is WriterState.FENCED
    assert driver.ok(0, "b2") == []
    assert driver.writer.lac == -1 and driver.writer.wakeup_at_us() is None


def test_a_sealed_lac_fences_the_writer() -> None:
    driver = Driver()
    driver.writer.on_lac(member("b0"), BookieStatus.SEALED, 0)
    assert driver.writer.state is WriterState.FENCED


def test_a_held_writer_that_hears_of_a_seal_is_fenced() -> None:
    driver = Driver()
    driver.add()
    driver.ok(0, "b0", "b1")
    driver.writer.hold()
    driver.answer(0, "b2", BookieStatus.SEALED)
    assert driver.writer.state is WriterState.FENCED


def test_r19_a_held_writer_sends_nothing_and_changes_nothing() -> None:
    """Regression: a copy that was owed and timed out changed the ensemble during the close."""
    driver = Driver("b3")
    driver.add()
    driver.ok(0, "b0", "b1")
    driver.take(fx.SendAdd)
    driver.writer.hold()
    assert len(driver.take(fx.SendLac)) == 3, "the tail is shown before the close"
    driver.answer(0, "b2", TIMEOUT)
    driver.pass_time(10 * PROBE_INTERVAL_US)
    driver.ok(0, "b2")
    driver.writer.on_bookies_changed(driver.now_us)
    assert driver.outbox == [] and driver.writer.wakeup_at_us() is None
    driver.writer.release()
    _, proposal = driver.proposed()
    assert ensemble(proposal) == ["b0", "b1", "b3"]


def test_a_member_that_answers_while_the_writer_is_held_is_probed_after_it() -> None:
    driver = Driver()
    driver.add()
    driver.answer(0, "b2", TIMEOUT)
    driver.ok(0, "b0", "b1")
    driver.pass_time(PROBE_INTERVAL_US)
    driver.take(fx.SendAdd)
    driver.writer.hold()
    driver.ok(0, "b2")
    driver.writer.release()
    driver.pass_time(PROBE_INTERVAL_US)
    assert member("b2") in [lac.member for lac in driver.take(fx.SendLac)]
    driver.writer.on_lac(member("b2"), OK, driver.now_us)
    assert driver.writer.suspended == []


def test_a_lac_that_nothing_carries_is_told_to_the_whole_fragment_once() -> None:
    driver = Driver()
    driver.add()
    driver.ok(0, "b0", "b1")
    driver.pass_time(COMMIT_DELAY_US - 1)
    assert driver.take(fx.SendLac) == []
    driver.pass_time(1)
    assert [(lac.member.bookie, lac.lac) for lac in driver.take(fx.SendLac)] == [
        ("b0", 0), ("b1", 0), ("b2", 0),
    ]  # fmt: skip
    driver.pass_time(COMMIT_DELAY_US)
    assert driver.take(fx.SendLac) == []


def test_later_acknowledgements_do_not_put_off_what_an_earlier_one_waits_for() -> None:
    """Regression: each began the delay anew, so readers waited for twice as long and more."""
    driver = Driver()
    driver.add()
    driver.add()
    driver.ok(0, "b0", "b1")
    driver.pass_time(COMMIT_DELAY_US - 1)
    driver.ok(1, "b0", "b1")
    driver.pass_time(1)
    assert [lac.lac for lac in driver.take(fx.SendLac)] == [1, 1, 1]
    driver.pass_time(COMMIT_DELAY_US)
    assert driver.take(fx.SendLac) == []


# --- out_of_order --------------------------------------------------------------------------------


def test_out_of_order_acknowledges_by_quorum_alone_and_the_lac_stays_dense() -> None:
    driver = Driver(ack_mode="out_of_order")
    driver.add(3)
    assert driver.ok(2, "b0", "b1") == [2]
    assert driver.writer.lac == NOTHING
    assert driver.ok(0, "b0", "b1") == [0]
    assert driver.writer.lac == 0
    assert driver.ok(1, "b0", "b2") == [1]
    assert driver.writer.lac == 2
    assert driver.ok(2, "b2") == []


def test_an_out_of_order_segment_never_changes_its_ensemble_but_asks_for_a_roll() -> None:
    driver = Driver("b3", ack_mode="out_of_order")
    driver.add()
    driver.answer(0, "b2", TIMEOUT)
    assert driver.take(fx.Commit) == []
    assert driver.writer.wants_roll and not driver.writer.must_roll_now, "acks go on (R5)"
    assert driver.ok(0, "b0", "b1") == [0]


def test_an_out_of_order_segment_rolls_now_where_some_entries_have_no_ack_set() -> None:
    driver = Driver(quorum=Quorum(4, 2, 2), ack_mode="out_of_order")
    driver.add()
    assert not driver.writer.must_roll_now
    driver.answer(0, "b0", TIMEOUT)
    assert driver.writer.must_roll_now, "b1 and b2 take entry 1 still, and nobody entry 0"
