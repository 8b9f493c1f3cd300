"""What upkeep does to a bookie's core: settling, damage, leftovers, drops, full disks.

Each test names the rule that it guards. Checkpoints, and lives in which all of this happens in any
order, are in `test_bookie_checkpoint`. Source: R4, R10, R15, R17, docs/bookie.md "Space".
"""

from __future__ import annotations

import pytest

from duramen.core.bookie import BookieCore
from duramen.core.bookie.bookie_state import (
    NO_REQUEST,
    RUN_PIECE_COUNT_MAX,
    DropRecord,
    LogSnapshot,
    MarksAnswer,
    Persist,
    SpaceLevel,
)
from duramen.core.entry_ranges import EntryRanges
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, EntryId, Epoch, LedgerId, LogId, ledger_of
from tests.unit.bookie_driver import (
    LEDGER,
    LIFE,
    LOG,
    NEXT_LEDGER,
    Driver,
    add_again,
    holding,
    read,
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
OVERLOADED = BookieStatus.OVERLOADED
GONE = BookieStatus.GONE
READ_ONLY = BookieStatus.READ_ONLY

NO_MARKS = MarksAnswer(GONE, NOTHING, NOTHING)
OLDER_LEDGER = ledger_of(LOG, Epoch(2))

# --- Settling ------------------------------------------------------------------------------------


def test_a_settled_entry_is_read_as_before_and_is_not_hot_any_more() -> None:
    driver = holding(0, 1, 2)
    driver.settle(0, 1)
    assert driver.core.hot_entries(LEDGER) == [2]
    assert driver.core.list_ranges(LEDGER) == [(0, 2)]
    assert driver.core.statistics()["entries"] == 3
    assert driver.mark(driver.lac(read_lac())) == MarksAnswer(OK, NOTHING, EntryId(2))


def test_a_run_crosses_from_settled_to_hot_and_back() -> None:
    driver = holding(*range(10), 11)
    driver.settle(0, 1, 2, 5, 6)
    assert read(driver, 0, 20) == (OK, 10)
    assert read(driver, 1, 5) == (OK, 5)
    assert read(driver, 4, 4) == (OK, 1)
    assert read(driver, 10) == (NO_ENTRY, 0)


def test_a_run_that_changes_sides_all_the_time_is_cut_short() -> None:
    driver = holding(*range(4 * RUN_PIECE_COUNT_MAX))
    driver.settle(*range(0, 4 * RUN_PIECE_COUNT_MAX, 2))
    assert read(driver, 0, 4 * RUN_PIECE_COUNT_MAX) == (OK, RUN_PIECE_COUNT_MAX)


def test_a_repeated_add_of_a_settled_entry_asks_the_entry_log() -> None:
    driver = holding(0, 1)
    driver.settle(0)
    assert add_again(driver, 0) is OK
    assert add_again(driver, 0, crc=5) is DIFFERENT
    assert add_again(driver, 0, crc=5, recovery=True) is DIFFERENT
    driver.entry_log[LEDGER, EntryId(0)] = None
    assert add_again(driver, 0) is UNKNOWN
    assert not driver.journal and driver.core.hot_entries(LEDGER) == [1]


def test_a_settled_entry_that_is_damaged_is_stored_again_hot() -> None:
    driver = holding(0, 1)
    driver.settle(0, 1)
    driver.lose(0)
    assert read(driver, 0) == (UNKNOWN, 0) and read(driver, 1) == (OK, 1)
    assert driver.core.statistics()["entries"] == 1
    assert add_again(driver, 0, recovery=True) is OK
    assert driver.core.hot_entries(LEDGER) == [0]
    assert read(driver, 0, 1) == (OK, 2) and driver.core.statistics()["entries"] == 2


def test_an_entry_that_is_lost_while_it_is_settled_is_there_again_with_its_copy() -> None:
    driver = holding(0)
    driver.lose(0)
    driver.settle(0)
    assert read(driver, 0) == (OK, 1)


def test_a_copy_of_an_entry_that_is_being_stored_again_leaves_it_to_the_journal() -> None:
    driver = holding(0)
    driver.lose(0)
    driver.add(row(0))
    driver.settle(0)
    assert read(driver, 0) == (UNKNOWN, 0)
    driver.persist()
    assert driver.core.hot_entries(LEDGER) == [0] and read(driver, 0) == (OK, 1)


def test_settling_nothing_changes_nothing_and_settling_a_dropped_ledger_neither() -> None:
    driver = holding(0)
    driver.settle()
    driver.drop(3)
    driver.persist()
    driver.core.on_settled(LEDGER, [EntryId(0)])
    assert driver.core.list_ledgers() == []


def test_copies_of_what_was_purged_meanwhile_are_not_settled() -> None:
    driver = holding(*range(6))
    entries = [EntryId(entry) for entry in range(6)]
    assert driver.core.purge_beyond(LEDGER, EntryId(3)) == [4, 5]
    (kept,) = driver.core.snapshot({LEDGER: entries}).ledgers
    driver.core.on_settled(LEDGER, entries)
    assert kept.settled.list_ranges() == driver.core.list_ranges(LEDGER) == [(0, 3)]
    assert driver.core.statistics()["entries"] == 4


# --- Leftovers -----------------------------------------------------------------------------------


def test_r17_leftovers_beyond_the_last_entry_are_forgotten_wherever_they_are() -> None:
    driver = holding(*range(8))
    driver.settle(0, 1, 2, 4, 6)
    driver.lose(4)
    assert driver.core.purge_beyond(LEDGER, EntryId(2)) == [3, 5, 7]
    driver.core.validate()
    assert driver.core.list_ranges(LEDGER) == [(0, 2)] and driver.core.hot_entries(LEDGER) == []
    assert read(driver, 4) == (NO_ENTRY, 0)
    assert driver.mark(driver.lac(read_lac())).highest == 2
    assert driver.core.statistics()["entries"] == 3
    assert driver.core.purge_beyond(LEDGER, EntryId(2)) == []


def test_purging_what_ends_higher_or_is_not_known_changes_nothing() -> None:
    driver = holding(0, 1)
    assert driver.core.purge_beyond(LEDGER, EntryId(5)) == []
    assert driver.core.purge_beyond(NEXT_LEDGER, NOTHING) == []
    assert driver.mark(driver.lac(read_lac())).highest == 1


def test_a_ledger_of_leftovers_alone_stays_empty_over_a_restart_and_a_compaction() -> None:
    driver = holding(0, 1)
    driver.settle(0, 1)
    assert driver.core.purge_beyond(LEDGER, NOTHING) == []
    restored = BookieCore(LIFE)
    restored.restore(driver.core.snapshot())
    for core in (driver.core, restored):  # the entry log still had the bytes, and copied them
        core.on_settled(LEDGER, [EntryId(0), EntryId(1)])
        core.validate()
        assert core.statistics()["entries"] == 0


# --- Drops ---------------------------------------------------------------------------------------


def test_r4_a_dropped_ledger_answers_gone_whatever_is_asked() -> None:
    driver = holding(0, 1)
    driver.settle(0)
    driver.drop(3)
    driver.persist()
    assert read(driver, 0) == (GONE, 0) and read(driver, 7) == (GONE, 0)
    for recovery in (False, True):
        assert add_again(driver, 0, recovery=recovery) is GONE
        assert add_again(driver, 7, recovery=recovery) is GONE
    assert driver.mark(driver.lac(read_lac())) == NO_MARKS
    assert driver.mark(driver.lac(write_lac(0))) == NO_MARKS
    assert not driver.core.is_alive(LEDGER) and driver.core.list_ranges(LEDGER) is None
    assert driver.core.statistics()["entries"] == 0
    driver.stored(row(0, ledger=NEXT_LEDGER), row(0, ledger=OLDER_LEDGER))


def test_nothing_is_forgotten_before_the_drop_is_durable() -> None:
    driver = holding(0)
    driver.drop(3)
    (unit,) = driver.journal
    assert unit == Persist(2, NO_REQUEST, (DropRecord(LOG, Epoch(3), False),))
    assert read(driver, 0) == (OK, 1) and driver.core.is_alive(LEDGER)
    assert driver.mark(driver.lac(read_lac())).status is OK


def test_behind_a_pending_drop_adds_and_lacs_are_refused_once_it_is_durable() -> None:
    driver = holding(0)
    driver.drop(3)
    added = driver.add(row(0), row(1, recovery=True))
    marked = driver.lac(write_lac(5))
    assert added not in driver.answers and marked not in driver.answers
    driver.persist()
    assert driver.statuses(added) == [GONE, GONE] and driver.mark(marked) == NO_MARKS
    assert driver.core.list_ledgers() == []


def test_adds_in_flight_before_a_drop_are_answered_and_never_bring_the_ledger_back() -> None:
    driver = Driver()
    added, marked = driver.add(row(0)), driver.lac(write_lac(0))
    driver.drop(3)
    driver.persist()
    assert driver.statuses(added) == [OK] and driver.mark(marked).status is OK
    assert driver.core.list_ledgers() == [] and read(driver, 0) == (GONE, 0)


def test_a_lac_that_is_read_in_a_request_that_waits_is_answered_as_of_its_answer() -> None:
    driver = holding(0)
    driver.drop(3)
    request = driver.lac(read_lac(), write_lac(0, NEXT_LEDGER))
    driver.persist()
    gone, other = driver.answers[request]
    assert gone == NO_MARKS and isinstance(other, MarksAnswer) and other.status is OK


def test_a_seal_for_a_dropped_ledger_is_answered_gone_and_holds_all_the_same() -> None:
    driver = holding(0)
    driver.drop(3)
    driver.persist()
    sealed = driver.seal(seal(4))
    assert sealed not in driver.answers, "R10: also this answer rests on the seal"
    driver.persist()
    assert driver.mark(sealed) == NO_MARKS
    assert driver.core.sealed_epoch(LOG) == 4
    assert add_again(driver, 0, ledger=NEXT_LEDGER) is SEALED


def test_a_read_of_a_dropped_ledger_seals_as_it_says() -> None:
    driver = Driver()
    driver.drop(3)
    driver.persist()
    request = driver.read(span(0)._replace(seal_epoch=3))
    driver.persist()
    assert driver.plan(request).status is GONE and driver.plan(request).is_sealed
    assert driver.core.sealed_epoch(LOG) == 3


def test_a_seal_outlives_the_ledgers_of_its_log() -> None:
    driver = holding(0)
    driver.seal(seal(5))
    driver.drop(5, below=True)
    driver.persist()
    assert add_again(driver, 0, ledger=ledger_of(LOG, Epoch(5))) is SEALED
    assert add_again(driver, 0) is GONE


def test_every_ledger_below_an_epoch_is_dropped_and_only_of_that_log() -> None:
    driver = holding(0)
    other = ledger_of(LogId(LOG + 1), Epoch(1))
    driver.stored(*[row(0, ledger=it) for it in (OLDER_LEDGER, NEXT_LEDGER, other)])
    driver.drop(4, below=True)
    driver.persist()
    assert [ledger for ledger, _ in driver.core.list_ledgers()] == [NEXT_LEDGER, other]
    assert driver.core.list_ledgers_of(LOG) == [NEXT_LEDGER]
    assert not driver.core.is_alive(ledger_of(LOG, Epoch(1))), "also if it never was here"
    assert driver.core.is_alive(NEXT_LEDGER) and driver.core.is_alive(other)


def test_a_drop_is_recorded_once() -> None:
    driver = Driver()
    for _ in range(2):
        driver.drop(3)
        driver.drop(3, below=True)
        driver.drop(2, below=True)
        driver.drop(1)
    assert len(driver.journal) == 2
    driver.persist()
    driver.drop(3)
    driver.drop(3, below=True)
    driver.drop(2)
    assert not driver.journal
    driver.drop(4, below=True)
    driver.persist()
    assert driver.core.snapshot().logs == (LogSnapshot(LOG, 0, Epoch(4), EntryRanges()),)


def test_long_polls_of_a_dropped_ledger_are_woken_with_gone() -> None:
    driver = Driver()
    waits = span(0)._replace(wait_ms=500, wait_for=EntryId(0))
    known, other = driver.read(waits), driver.read(waits._replace(ledger_id=NEXT_LEDGER))
    driver.drop(3)
    assert known not in driver.answers
    driver.persist()
    assert driver.plan(known).status is GONE and other not in driver.answers
    late = driver.read(waits)
    assert driver.plan(late).status is GONE, "and nobody waits there again"


def test_a_dropped_ledger_is_gone_also_where_everything_is_in_doubt() -> None:
    driver = Driver()
    driver.core.on_recovered_drop(LOG, Epoch(3), False)
    driver.core.on_recovered_damage()
    driver.core.on_recovered_damage(LEDGER)
    driver.core.on_recovered_damage(LEDGER, EntryId(4))
    sealed = driver.seal(seal(2))
    driver.persist()
    assert read(driver, 0) == (GONE, 0) and add_again(driver, 0) is GONE
    assert driver.mark(driver.lac(read_lac())) == driver.mark(sealed) == NO_MARKS
    assert not driver.checks


def test_a_proof_that_a_ledger_is_open_ends_with_the_ledger() -> None:
    driver = Driver()
    driver.core.on_recovered_damage()
    for ledger in (LEDGER, NEXT_LEDGER):
        driver.core.on_segment_checked(ledger, is_open=True)
    driver.drop(3)
    driver.persist()
    driver.stored(row(0, ledger=NEXT_LEDGER))
    assert driver.core._proved_open == {NEXT_LEDGER}


def test_a_replayed_drop_voids_what_came_before_it_and_what_a_copy_brings_after_it() -> None:
    driver = Driver()
    core = driver.core
    for _ in range(2):
        core.on_recovered_add(LEDGER, EntryId(0), NOTHING, 1000, is_recovery=False)
        core.on_recovered_add(OLDER_LEDGER, EntryId(0), NOTHING, 1000, is_recovery=True)
        core.on_recovered_lac(LEDGER, EntryId(7))
        if core.is_alive(LEDGER):
            core.on_recovered_drop(LOG, Epoch(3), False)
            core.on_recovered_drop(LOG, Epoch(3), True)
    assert core.list_ledgers() == [] and core.statistics()["entries"] == 0
    assert read(driver, 0) == (GONE, 0)


def test_an_invalid_row_stays_invalid_in_a_log_whose_ledgers_were_dropped() -> None:
    driver = Driver()
    driver.drop(3, below=True)
    driver.persist()
    zeroth = LedgerId(LOG << 32)
    assert driver.mark(driver.lac(read_lac(zeroth))).status is INVALID
    assert driver.mark(driver.seal(seal(3, zeroth))).status is INVALID
    assert driver.statuses(driver.add(row(0, ledger=zeroth))) == [INVALID]
    assert driver.plan(driver.read(span(0, ledger=zeroth))).status is INVALID


# --- Space ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "owner", "recovery", "lac"),
    [
        (SpaceLevel.WRITABLE, OK, OK, OK),
        (SpaceLevel.READ_ONLY, READ_ONLY, OK, OK),
        (SpaceLevel.FULL, READ_ONLY, READ_ONLY, READ_ONLY),
    ],
)
def test_space_decides_what_is_stored(
    level: SpaceLevel, owner: BookieStatus, recovery: BookieStatus, lac: BookieStatus
) -> None:
    driver = holding(0)
    driver.core.set_read_only(level)
    assert add_again(driver, 1) is owner
    assert add_again(driver, 2, recovery=True) is recovery
    marked = driver.lac(write_lac(0))
    driver.persist()
    assert driver.mark(marked).status is lac
    assert driver.core.statistics()["space"] == level.value


@pytest.mark.parametrize("level", [SpaceLevel.READ_ONLY, SpaceLevel.FULL])
def test_without_space_what_is_stored_is_served_and_seals_are_kept(level: SpaceLevel) -> None:
    driver = holding(0, 1)
    driver.settle(0)
    marked = driver.lac(write_lac(1))
    in_flight = driver.add(row(2))
    driver.core.set_read_only(level)
    again = driver.add(row(2))
    driver.persist()
    assert driver.statuses(in_flight) == driver.statuses(again) == [OK]
    assert [add_again(driver, entry) for entry in (0, 1, 2)] == [OK, OK, OK]
    assert add_again(driver, 1, crc=5) is DIFFERENT
    assert read(driver, 0, 5) == (OK, 3)
    assert driver.mark(marked).status is OK and driver.mark(driver.lac(write_lac(1))).status is OK
    sealed = driver.seal(seal(3))
    driver.persist()
    assert driver.mark(sealed) == MarksAnswer(OK, EntryId(1), EntryId(2))
    driver.core.set_read_only(SpaceLevel.WRITABLE)
    driver.stored(row(0, ledger=NEXT_LEDGER))


def test_without_space_a_fenced_writer_still_learns_that_it_is_fenced() -> None:
    driver = Driver()
    driver.seal(seal(3))
    driver.persist()
    driver.core.set_read_only(SpaceLevel.READ_ONLY)
    assert add_again(driver, 0) is SEALED
    assert driver.statuses(driver.add(row(0, recovery=True), has_room=False)) == [OVERLOADED]
