"""The bookie's core, rule by rule: events in, effects out, the journal played by the test.

Each test names the rule that it guards and fails when the rule is broken in `core.bookie`. What
upkeep does to a bookie (settling, dropping, checkpoints) is in `test_bookie_life`.
"""

from __future__ import annotations

import random

import pytest

from duramen.core.bookie import WAITER_COUNT_MAX, BookieCore
from duramen.core.bookie.bookie_state import LacRecord, MarksAnswer, ReadPlan, RequestId, SealRecord
from duramen.core.entry_ranges import EntryRanges
from duramen.core.entry_table import EntryTable
from duramen.core.status import BookieStatus
from duramen.ids import LAST_EPOCH, NOTHING, EntryId, Epoch, LedgerId, LogId, ledger_of
from duramen.limits import SEAL_LEAD_EPOCH_COUNT_MAX
from duramen.wire.bookie_calls import Seal
from tests.unit.bookie_driver import (
    LEDGER,
    LIFE,
    LOG,
    NEXT_LEDGER,
    OTHER_LIFE,
    Driver,
    read_lac,
    row,
    seal,
    span,
    write_lac,
)

OK = BookieStatus.OK
SEALED = BookieStatus.SEALED
NO_ENTRY = BookieStatus.NO_ENTRY
UNKNOWN = BookieStatus.UNKNOWN
DIFFERENT = BookieStatus.DIFFERENT
INVALID = BookieStatus.INVALID
WRONG = BookieStatus.WRONG_INCARNATION
OVERLOADED = BookieStatus.OVERLOADED

# --- R1 ------------------------------------------------------------------------------------------


def test_r1_another_incarnation_is_refused_before_anything_else() -> None:
    driver = Driver()
    added = driver.add(row(0), row(1, valid=False), life=OTHER_LIFE, has_room=False)
    sealed = driver.seal(seal(3), seal(0), life=OTHER_LIFE)
    marked = driver.lac(write_lac(5), life=OTHER_LIFE)
    read = driver.read(span(0)._replace(seal_epoch=3), span(5, 2), life=OTHER_LIFE)
    assert driver.answers[added] == [WRONG, WRONG]
    assert driver.answers[sealed] == [MarksAnswer(WRONG, NOTHING, NOTHING)] * 2
    assert driver.mark(marked).status is WRONG
    assert [plan.status for plan in driver.answers[read] if isinstance(plan, ReadPlan)] == [
        WRONG
    ] * 2
    assert not driver.journal and driver.core.statistics()["logs"] == 0


# --- Adds ----------------------------------------------------------------------------------------


def test_r10_an_add_is_answered_only_when_its_record_is_durable() -> None:
    driver = Driver()
    first, second = driver.add(row(0)), driver.add(row(1), row(2))
    assert [len(unit.records) for unit in driver.journal] == [1, 2]
    assert not driver.answers
    driver.persist(1)
    assert driver.answers == {first: [OK]}
    driver.persist(1)
    assert driver.answers[second] == [OK, OK]


def test_a_frame_is_one_unit_whose_records_name_their_rows() -> None:
    driver = Driver()
    driver.add(row(0, valid=False), row(1), row(2))
    (unit,) = driver.journal
    assert [record[0] for record in unit.records] == [1, 2]


def test_invalid_rows_are_refused_and_their_neighbours_are_stored() -> None:
    driver = Driver()
    no_ledgers = [LedgerId(LOG << 32), LedgerId(5), LedgerId(1 << 63 | 1)]
    rows = [row(0, valid=False), row(1), row(2, lac=2), *[row(0, ledger=it) for it in no_ledgers]]
    request = driver.add(*rows)
    driver.persist()
    assert driver.answers[request] == [INVALID, OK, INVALID, INVALID, INVALID, INVALID]
    assert driver.plan(driver.read(span(0))).status is NO_ENTRY


def test_r10_a_repeated_add_is_ok_only_when_the_first_is_durable() -> None:
    driver = Driver()
    first, again = driver.add(row(0)), driver.add(row(0))
    assert len(driver.journal) == 1 and not driver.answers
    driver.persist()
    assert driver.answers == {first: [OK], again: [OK]}
    later = driver.add(row(0))
    assert driver.answers[later] == [OK] and not driver.journal


def test_an_entry_with_another_checksum_is_different() -> None:
    driver = Driver()
    pending = (driver.add(row(0)), driver.add(row(0, crc=5)))
    driver.persist()
    stored = driver.add(row(0, crc=5))
    assert [driver.answers[r] for r in (*pending, stored)] == [[OK], [DIFFERENT], [DIFFERENT]]


def test_the_same_entry_twice_in_a_frame_is_stored_once() -> None:
    driver = Driver()
    request = driver.add(row(0), row(0), row(0, crc=5))
    assert len(driver.journal[0].records) == 1
    driver.persist()
    assert driver.answers[request] == [OK, OK, DIFFERENT]


def test_without_room_only_what_needs_room_is_refused() -> None:
    driver = Driver()
    driver.stored(row(0))
    request = driver.add(row(0), row(1), has_room=False)
    assert driver.answers[request] == [OK, OVERLOADED] and not driver.journal
    driver.stored(row(1))


# --- Seals ---------------------------------------------------------------------------------------


def test_r11_a_pending_seal_refuses_adds_and_lacs_and_lets_recovery_in() -> None:
    driver = Driver()
    driver.seal(seal(3))
    added = driver.add(row(0))
    marked = driver.lac(write_lac(0))
    recovered = driver.add(row(0, recovery=True))
    newer = driver.add(row(0, ledger=NEXT_LEDGER))
    assert not driver.answers, "even a refusal rests on a seal that is not durable"
    driver.persist()
    assert driver.answers[added] == [SEALED]
    assert driver.mark(marked).status is SEALED
    assert driver.answers[recovered] == driver.answers[newer] == [OK]


def test_r10_a_seal_is_answered_only_when_durable_also_a_repeated_one() -> None:
    driver = Driver()
    first, again, lower = driver.seal(seal(3)), driver.seal(seal(3)), driver.seal(seal(2))
    assert [unit.records for unit in driver.journal] == [(SealRecord(LOG, Epoch(3)),)]
    assert not driver.answers
    driver.persist()
    assert sorted(driver.answers) == [first, again, lower]
    assert driver.mark(driver.seal(seal(3))).status is OK and not driver.journal


def test_seals_are_monotone_per_log() -> None:
    driver = Driver()
    driver.seal(seal(4))
    driver.seal(seal(2))
    driver.persist()
    assert driver.core.sealed_epoch(LOG) == 4
    assert driver.answers[driver.add(row(0, ledger=NEXT_LEDGER))] == [SEALED]
    other = ledger_of(LogId(8), Epoch(1))
    driver.stored(row(0, ledger=other))


def test_a_higher_seal_goes_on_after_a_lower_one_that_is_in_flight() -> None:
    driver = Driver()
    low, high = driver.seal(seal(3)), driver.seal(seal(4, NEXT_LEDGER))
    driver.persist(1)
    assert low in driver.answers and high not in driver.answers
    assert driver.core.sealed_epoch(LOG) == 3
    driver.persist(1)
    assert driver.mark(high).status is OK


def test_a_seals_answer_includes_adds_that_were_pending_before_it() -> None:
    driver = Driver()
    driver.stored(row(0))
    added = driver.add(row(1, lac=0), row(2, lac=0))
    sealed = driver.seal(seal(3))
    driver.persist()
    assert driver.answers[added] == [OK, OK]
    assert driver.mark(sealed) == MarksAnswer(OK, EntryId(0), EntryId(2))


def test_a_seal_of_a_ledger_of_another_log_is_invalid() -> None:
    driver = Driver()
    request = driver.seal(Seal(LogId(8), Epoch(3), LEDGER))
    assert driver.mark(request).status is INVALID and not driver.journal


LEAD = SEAL_LEAD_EPOCH_COUNT_MAX
FAR = LAST_EPOCH


@pytest.mark.parametrize("epoch", [LEAD + 1, FAR])
def test_a_seal_far_above_what_metadata_has_shown_is_not_taken(epoch: int) -> None:
    """Seals never fall: one of the last epoch would be the end of the log."""
    driver = Driver()
    request = driver.seal(seal(LEAD), seal(epoch))
    read = driver.read(span(0)._replace(seal_epoch=epoch), span(1))
    driver.persist()
    assert driver.statuses(request) == [OK, INVALID]
    assert driver.statuses(read) == [INVALID, INVALID]
    assert driver.core.sealed_epoch(LOG) == LEAD


def test_what_anybody_may_send_is_no_reason_to_believe_a_higher_seal() -> None:
    """Neither entries and LACs of a far epoch nor seals, each a little above the last one."""
    driver = Driver()
    far = ledger_of(LOG, Epoch(FAR))
    driver.stored(row(0, ledger=far), row(1, ledger=far, recovery=True))
    driver.lac(write_lac(0, ledger=far))
    for step in (1, 2, 3):
        driver.seal(*[seal(step * LEAD - number) for number in range(5)])
        driver.persist()
    driver.seal(seal(FAR, ledger=far))
    driver.persist()
    assert driver.core.sealed_epoch(LOG) == LEAD


def test_a_seal_is_taken_as_far_as_the_logs_node_shows() -> None:
    driver = Driver()
    driver.core.on_epochs_shown(LOG, Epoch(50_001))
    taken = driver.seal(seal(50_000), seal(50_000 + LEAD), seal(50_001 + LEAD))
    driver.persist()
    assert driver.statuses(taken) == [OK, OK, INVALID]
    driver.core.on_epochs_shown(LOG, Epoch(2))  # an older look comes late
    assert not driver.core.needs_proof(LOG, 50_000 + LEAD)


def test_a_seal_that_was_not_taken_is_not_answered_as_one() -> None:
    """Although its proof comes before the answer, which waits for the seal beside it."""
    driver = Driver()
    request = driver.seal(seal(1), seal(5_000))
    driver.core.on_epochs_shown(LOG, Epoch(6_000))
    driver.persist()
    assert driver.statuses(request) == [OK, INVALID]
    assert driver.core.sealed_epoch(LOG) == 1


def test_drops_show_epochs_and_a_restart_keeps_what_is_sealed_and_dropped() -> None:
    driver = Driver()
    driver.core.on_epochs_shown(LOG, Epoch(5_001))
    driver.seal(seal(5_000))
    driver.drop(4_000, below=True)
    driver.drop(7_000)
    driver.persist()
    assert not driver.core.needs_proof(LOG, 7_000 + LEAD)
    assert driver.core.needs_proof(LOG, 7_001 + LEAD)
    for dropped, shown in ((False, 5_000), (True, 7_000)):
        again = BookieCore(LIFE)
        snapshot = driver.core.snapshot()
        logs = snapshot.logs if dropped else (snapshot.logs[0]._replace(gone=EntryRanges()),)
        again.restore(snapshot._replace(logs=logs))
        again.validate()
        assert [again.needs_proof(LOG, shown + LEAD + more) for more in (0, 1)] == [False, True]
    replayed = BookieCore(LIFE)
    replayed.on_recovered_seal(LOG, Epoch(FAR))  # of a bookie that took any
    replayed.on_recovered_drop(LogId(8), Epoch(3_000), True)
    replayed.validate()
    assert not replayed.needs_proof(LogId(8), 2_999 + LEAD)


# --- LAC -----------------------------------------------------------------------------------------


def test_the_lac_of_an_add_counts_once_the_add_is_durable_and_never_falls() -> None:
    driver = Driver()
    driver.add(row(5, lac=4))
    assert driver.mark(driver.lac(read_lac())) == MarksAnswer(OK, NOTHING, NOTHING)
    driver.persist()
    assert driver.mark(driver.lac(read_lac())) == MarksAnswer(OK, EntryId(4), EntryId(5))
    driver.stored(row(6, lac=2))
    assert driver.mark(driver.lac(read_lac())).lac == 4


def test_r13_recovery_adds_never_raise_the_lac() -> None:
    driver = Driver()
    driver.stored(row(5, lac=4, recovery=True))
    assert driver.mark(driver.lac(read_lac())) == MarksAnswer(OK, NOTHING, EntryId(5))


def test_a_lac_write_is_answered_and_seen_only_when_durable() -> None:
    driver = Driver()
    request = driver.lac(write_lac(9))
    assert driver.journal[0].records == (LacRecord(LEDGER, EntryId(9)),)
    assert request not in driver.answers
    assert driver.mark(driver.lac(read_lac())).lac == NOTHING
    driver.persist()
    assert driver.mark(request) == MarksAnswer(OK, EntryId(9), NOTHING)
    assert driver.mark(driver.lac(write_lac(8))).lac == 9 and not driver.journal


def test_a_lac_write_that_is_overtaken_does_not_lower_the_lac() -> None:
    driver = Driver()
    driver.lac(write_lac(9))
    lower = driver.lac(write_lac(5))
    driver.persist()
    assert driver.mark(lower) == MarksAnswer(OK, EntryId(9), NOTHING)


def test_a_lac_write_that_raises_nothing_is_still_refused_under_a_seal() -> None:
    driver = Driver()
    driver.lac(write_lac(9))
    driver.seal(seal(3))
    driver.persist()
    assert driver.mark(driver.lac(write_lac(8))).status is SEALED


# --- Reads ---------------------------------------------------------------------------------------


def test_reads_see_what_is_durable_without_gaps() -> None:
    driver = Driver()
    driver.stored(*[row(entry, lac=0) for entry in (1, 2, 3, 5)])
    driver.add(row(4))
    plan = driver.plan(driver.read(span(2, 9)))
    assert (plan.status, plan.entry_count, plan.lac, plan.highest) == (OK, 2, 0, 5)
    assert driver.plan(driver.read(span(4))).status is NO_ENTRY
    driver.persist()
    assert driver.plan(driver.read(span(2, 9))).entry_count == 4
    assert driver.plan(driver.read(span(2, 3))).entry_count == 2


def test_r14_a_read_with_a_seal_seals_first_and_sees_all_before_it() -> None:
    driver = Driver()
    driver.add(row(0))
    request = driver.read(span(0)._replace(seal_epoch=3))
    assert driver.journal[1].records == (SealRecord(LOG, Epoch(3)),)
    refused = driver.add(row(1))
    driver.persist(1)
    assert request not in driver.answers
    driver.persist()
    plan = driver.plan(request)
    assert (plan.status, plan.entry_count, plan.is_sealed) == (OK, 1, True)
    assert driver.answers[refused] == [SEALED]


def test_r14_an_absence_under_a_seal_is_answered_after_the_seal_is_durable() -> None:
    driver = Driver()
    request = driver.read(span(0)._replace(seal_epoch=3))
    assert request not in driver.answers
    driver.persist()
    assert driver.plan(request).status is NO_ENTRY and driver.plan(request).is_sealed


def test_reads_with_wrong_numbers_are_invalid() -> None:
    driver = Driver()
    plans = driver.answers[driver.read(span(3, 2), span(0, -1), span(0, ledger=LedgerId(5)))]
    assert [plan.status for plan in plans if isinstance(plan, ReadPlan)] == [INVALID] * 3


# --- Long polls ----------------------------------------------------------------------------------


def waiting(driver: Driver, first: int, wait_for: int) -> int:
    request = driver.read(span(first)._replace(wait_ms=500, wait_for=EntryId(wait_for)))
    assert driver.timers == [request] and request not in driver.answers
    return request


def test_a_long_poll_is_woken_by_its_entry_once_that_is_durable() -> None:
    driver = Driver()
    request = waiting(driver, 1, 1)
    driver.stored(row(0))
    driver.add(row(1))
    assert request not in driver.answers
    driver.persist()
    assert driver.plan(request).status is OK


def test_a_long_poll_is_woken_by_the_lac() -> None:
    driver = Driver()
    request = waiting(driver, 1, 1)
    driver.lac(write_lac(0))
    driver.persist()
    assert request not in driver.answers
    driver.lac(write_lac(1))
    driver.persist()
    assert (driver.plan(request).status, driver.plan(request).lac) == (NO_ENTRY, 1)


def test_a_long_poll_is_woken_by_the_lac_of_another_entry() -> None:
    driver = Driver()
    request = waiting(driver, 1, 1)
    driver.stored(row(2, lac=1))
    assert driver.plan(request).lac == 1


def test_a_long_poll_is_woken_by_a_durable_seal_of_its_epoch() -> None:
    driver = Driver()
    request = waiting(driver, 0, 0)
    driver.seal(seal(2))
    driver.persist()
    assert request not in driver.answers
    driver.seal(seal(3))
    assert request not in driver.answers
    driver.persist()
    assert driver.plan(request).is_sealed


def test_a_long_poll_does_not_wait_for_what_is_there() -> None:
    driver = Driver()
    driver.stored(row(0), row(1, lac=0))
    stored = driver.read(span(1)._replace(wait_ms=500, wait_for=EntryId(5)))
    confirmed = driver.read(span(2)._replace(wait_ms=500, wait_for=EntryId(0)))
    assert driver.plan(stored).status is OK and driver.plan(confirmed).status is NO_ENTRY
    assert not driver.timers


def test_a_long_poll_whose_time_is_over_is_answered_once() -> None:
    driver = Driver()
    request = waiting(driver, 0, 0)
    driver.core.on_wait_over(RequestId(request))
    driver.drain()
    assert driver.plan(request).status is NO_ENTRY
    driver.core.on_wait_over(RequestId(request))
    driver.stored(row(0))
    assert driver.core.statistics()["waiters"] == 0


def test_an_abandoned_long_poll_is_forgotten() -> None:
    driver = Driver()
    request = waiting(driver, 0, 0)
    driver.core.on_abandoned(RequestId(request))
    driver.stored(row(0))
    assert request not in driver.answers and driver.core.statistics()["waiters"] == 0


def test_long_polls_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert WAITER_COUNT_MAX == 10_000
    monkeypatch.setattr("duramen.core.bookie.ledger_reads.WAITER_COUNT_MAX", 1)
    driver = Driver()
    waiting(driver, 0, 0)
    request = driver.read(span(0)._replace(wait_ms=500, wait_for=EntryId(0)))
    assert driver.plan(request).status is NO_ENTRY


# --- Restart and damage --------------------------------------------------------------------------


def test_what_was_replayed_is_known() -> None:
    driver = Driver()
    driver.core.on_recovered_add(LEDGER, EntryId(0), NOTHING, 1000, is_recovery=False)
    driver.core.on_recovered_add(LEDGER, EntryId(2), EntryId(1), 1002, is_recovery=False)
    driver.core.on_recovered_add(LEDGER, EntryId(4), EntryId(3), 1004, is_recovery=True)
    driver.core.on_recovered_lac(LEDGER, EntryId(0))
    driver.core.on_recovered_seal(LOG, Epoch(3))
    driver.core.on_recovered_seal(LOG, Epoch(2))
    assert driver.mark(driver.lac(read_lac())) == MarksAnswer(OK, EntryId(1), EntryId(4))
    assert driver.core.list_ranges(LEDGER) == [(0, 0), (2, 2), (4, 4)]
    assert driver.answers[driver.add(row(5))] == [SEALED]
    assert driver.answers[driver.add(row(4, recovery=True))] == [OK]


def test_r15_a_damaged_entry_is_unknown_until_it_is_added_again() -> None:
    driver = Driver()
    driver.core.on_recovered_damage(LEDGER, EntryId(3))
    assert driver.plan(driver.read(span(3))).status is UNKNOWN
    assert driver.plan(driver.read(span(4))).status is NO_ENTRY
    assert driver.mark(driver.lac(read_lac())) == MarksAnswer(OK, NOTHING, EntryId(3))
    driver.stored(row(3, recovery=True))
    assert driver.plan(driver.read(span(3))).status is OK


def test_r15_damage_of_a_ledger_leaves_no_absence_vouched_for() -> None:
    driver = Driver()
    driver.core.on_recovered_add(LEDGER, EntryId(0), NOTHING, 1000, is_recovery=False)
    driver.core.on_recovered_damage(LEDGER)
    assert driver.plan(driver.read(span(0))).status is OK
    assert driver.plan(driver.read(span(1))).status is UNKNOWN
    assert driver.mark(driver.lac(read_lac())).status is UNKNOWN
    assert driver.plan(driver.read(span(0, ledger=NEXT_LEDGER))).status is NO_ENTRY


def test_a_seal_of_a_damaged_ledger_stands_and_says_that_entries_may_hide() -> None:
    driver = Driver()
    driver.core.on_recovered_damage(LEDGER)
    sealed = driver.seal(seal(3))
    driver.persist()
    assert driver.mark(sealed).status is BookieStatus.UNKNOWN
    assert driver.core.sealed_epoch(LOG) == 3


def test_r15_damage_of_unknown_kind_makes_every_absence_unknown() -> None:
    driver = Driver()
    driver.core.on_recovered_damage()
    assert driver.plan(driver.read(span(0))).status is UNKNOWN
    assert driver.mark(driver.lac(read_lac())).status is UNKNOWN
    waits = driver.read(span(0)._replace(wait_ms=500, wait_for=EntryId(0)))
    assert driver.plan(waits).status is UNKNOWN, "doubt is answered at once"


def test_r10_after_damage_that_may_have_held_a_seal_the_owner_is_refused() -> None:
    driver = Driver()
    driver.core.on_recovered_damage()
    assert driver.answers[driver.add(row(0))] == [UNKNOWN]
    assert driver.mark(driver.lac(write_lac(0))).status is UNKNOWN
    assert driver.checks == [LEDGER], "asked once"
    driver.core.on_segment_checked(LEDGER, is_open=False)
    assert driver.answers[driver.add(row(0))] == [UNKNOWN]
    assert driver.checks == [LEDGER, LEDGER]
    driver.stored(row(0, recovery=True))
    driver.core.on_segment_checked(LEDGER, is_open=True)
    driver.stored(row(1))


# --- What began after the damage -----------------------------------------------------------------


def doubtful_driver() -> Driver:
    """A bookie after damage that hid what it held; what was made up to 20 may be in it."""
    driver = Driver()
    driver.core.on_recovered_damage()
    driver.core.on_doubt_bounded(20)
    return driver


def test_a_ledger_that_began_after_the_damage_is_vouched_for_and_older_ones_are_not() -> None:
    driver = doubtful_driver()
    assert driver.plan(driver.read(span(0, ledger=NEXT_LEDGER))).status is UNKNOWN
    assert driver.checks == [NEXT_LEDGER], "asked because it was asked for"
    driver.core.on_segment_checked(NEXT_LEDGER, is_open=False, made=21)
    assert driver.plan(driver.read(span(0, ledger=NEXT_LEDGER))).status is NO_ENTRY
    assert driver.core.list_unknown(NEXT_LEDGER, EntryId(0), EntryId(9)) == []
    assert driver.plan(driver.read(span(0))).status is UNKNOWN
    assert driver.core.list_unknown(LEDGER, EntryId(0), EntryId(9)) == [(0, 9)]
    later, earlier = ledger_of(LOG, Epoch(9)), ledger_of(LogId(LOG + 1), Epoch(4))
    assert driver.plan(driver.read(span(0, ledger=later))).status is NO_ENTRY, "later still"
    assert driver.plan(driver.read(span(0, ledger=earlier))).status is UNKNOWN, "another log"


def test_recovery_is_told_on_its_second_question_that_a_newer_ledger_is_whole() -> None:
    driver = doubtful_driver()
    first = driver.seal(seal(3))
    driver.persist()
    assert driver.mark(first).status is UNKNOWN and driver.checks == [LEDGER]
    driver.core.on_segment_checked(LEDGER, is_open=False, made=21)
    assert driver.mark(driver.seal(seal(3))).status is OK
    assert driver.mark(driver.lac(read_lac())).status is OK


def test_r10_no_seal_of_a_newer_ledger_was_in_the_damage_so_its_owner_is_served() -> None:
    driver = doubtful_driver()
    assert driver.answers[driver.add(row(0))] == [UNKNOWN]
    driver.core.on_segment_checked(LEDGER, is_open=False, made=21)
    driver.stored(row(0))
    driver.stored(row(0, ledger=NEXT_LEDGER))
    assert driver.checks == [LEDGER], "the next epochs are newer still"


def test_a_ledger_that_is_as_old_as_the_damage_stays_in_doubt_and_is_asked_about_once() -> None:
    driver = doubtful_driver()
    driver.read(span(0))
    driver.core.on_segment_checked(LEDGER, is_open=False, made=20)
    assert driver.plan(driver.read(span(0))).status is UNKNOWN
    older = ledger_of(LOG, Epoch(2))
    assert driver.plan(driver.read(span(0, ledger=older))).status is UNKNOWN
    assert driver.checks == [LEDGER], "the epochs below are older still"
    driver.core.on_segment_checked(LEDGER, is_open=False)
    assert driver.plan(driver.read(span(0))).status is UNKNOWN, "a node that tells nothing"


def test_a_doubt_without_a_bound_asks_nothing_and_believes_nothing() -> None:
    driver = Driver()
    driver.core.on_recovered_damage()
    driver.core.on_segment_checked(LEDGER, is_open=False, made=21)
    assert driver.plan(driver.read(span(0))).status is UNKNOWN and not driver.checks
    sound = Driver()
    sound.core.on_doubt_bounded(20)
    assert not sound.core.is_doubt_bounded, "there is no doubt to be bounded"


def test_a_second_start_keeps_the_first_bound_and_a_second_damage_voids_it() -> None:
    driver = doubtful_driver()
    driver.core.on_segment_checked(LEDGER, is_open=False, made=21)
    again = Driver()
    again.core.restore(driver.core.snapshot())
    again.core.on_doubt_bounded(99)
    assert again.plan(again.read(span(0))).status is NO_ENTRY
    again.core.on_segment_checked(ledger_of(LogId(LOG + 1), Epoch(1)), is_open=False, made=30)
    between = span(0, ledger=ledger_of(LogId(LOG + 1), Epoch(1)))
    assert again.plan(again.read(between)).status is NO_ENTRY, "made between the starts"
    again.core.on_recovered_damage()
    assert again.plan(again.read(span(0))).status is UNKNOWN, "it may be in this one"
    again.core.validate()


def test_an_entry_found_unreadable_is_unknown_and_can_be_added_again() -> None:
    driver = Driver()
    driver.stored(row(0), row(1))
    driver.core.on_unreadable(LEDGER, EntryId(1))
    driver.core.on_unreadable(LEDGER, EntryId(7))
    assert driver.plan(driver.read(span(0, 1))).entry_count == 1
    plan = driver.plan(driver.read(span(1)))
    assert (plan.status, plan.highest) == (UNKNOWN, 1)
    driver.stored(row(1))
    assert driver.plan(driver.read(span(0, 1))).entry_count == 2
    assert driver.core.statistics()["entries"] == 2


# --- Order ---------------------------------------------------------------------------------------


def test_persisting_out_of_order_is_a_broken_promise() -> None:
    driver = Driver()
    driver.add(row(0))
    driver.add(row(1))
    with pytest.raises(AssertionError):
        driver.core.on_persisted(driver.journal[1].token)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_order_of_events_a_sealed_answer_is_final(seed: int) -> None:
    """No add without the recovery flag is acknowledged that a seal's answer did not include."""
    rng = random.Random(seed)
    driver = Driver()
    adds: dict[int, int] = {}
    seals: list[int] = []
    for entry in range(60):
        adds[driver.add(row(entry, lac=entry - 1))] = entry
        if rng.random() < 0.1:
            seals.append(driver.seal(seal(rng.choice([2, 3]))))
        if rng.random() < 0.4:
            driver.persist(rng.randrange(len(driver.journal) + 1))
    seals.append(driver.seal(seal(3)))
    driver.persist()
    acknowledged = [entry for request, entry in adds.items() if driver.answers[request] == [OK]]
    assert driver.mark(seals[-1]).highest == max(acknowledged, default=NOTHING)
    assert "entries=" in repr(driver.core)


# --- The table -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_the_entry_table_behaves_like_a_dictionary(seed: int) -> None:
    rng = random.Random(seed)
    table, model = EntryTable("IQ"), dict[int, tuple[int, ...]]()
    for _ in range(300):
        entry = rng.randrange(60)
        if rng.random() < 0.2:
            table.remove(entry)
            model.pop(entry, None)
        elif rng.random() < 0.05:
            table.remove_ranges([(entry, entry + 2), (entry + 4, entry + 4), (80, 90)])
            for removed in (0, 1, 2, 4):
                model.pop(entry + removed, None)
        else:
            model[entry] = (rng.randrange(1 << 32), rng.randrange(1 << 40))
            table.put(entry, *model[entry])
        table.validate()
    assert len(table) == len(model) and table.last() == max(model)
    for entry in range(-2, 64):
        assert table.get(entry) == model.get(entry) and (entry in table) == (entry in model)
        run = next(count for count in range(99) if entry + count not in model)
        assert table.count_run(entry, 63) == run and table.count_run(entry, entry) == min(run, 1)
    listed = [entry for first, last in table.list_ranges() for entry in range(first, last + 1)]
    assert listed == sorted(model) == table.list_ids()
