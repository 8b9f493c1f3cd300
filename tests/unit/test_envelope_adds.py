"""The core's judgement of rows with envelopes: the table of "Store", row by row.

Source: docs/protocol/envelopes.md "Store: POST /b/add, version 2", V2, V3.
"""

from __future__ import annotations

import pytest

from duramen.core.bookie.bookie_state import AddRow, LacRecord, SpaceLevel
from duramen.core.duty import Duty
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, EntryId
from duramen.wire.bookie_calls import LacUpdate
from tests.unit.bookie_driver import LEDGER, OTHER_LIFE, Driver, row, seal

OK = BookieStatus.OK


def store(entry: int, lac: int = -1, *, crc: int = 7, recovery: bool = False) -> AddRow:
    return row(entry, lac=lac, crc=crc, recovery=recovery)._replace(has_envelope=True)


def lac_of(driver: Driver) -> int:
    return driver.core.marks_of(LEDGER)[0]


def test_what_is_here_is_ok_when_its_lac_is_durable() -> None:
    driver = Driver()
    driver.stored(store(5, lac=1))
    asked = driver.add(store(5, lac=4))
    assert asked not in driver.answers, "the LAC is not durable yet"
    [persist] = driver.journal
    assert persist.records == (LacRecord(LEDGER, EntryId(4)),)
    driver.persist()
    assert driver.answers[asked] == [OK] and lac_of(driver) == 4


def test_what_is_settled_is_ok_when_its_lac_is_durable() -> None:
    driver = Driver()
    driver.stored(store(5, lac=1))
    driver.settle(5)
    asked = driver.add(store(5, lac=4))
    assert asked not in driver.answers
    driver.persist()
    assert driver.answers[asked] == [OK] and lac_of(driver) == 4


def test_what_is_on_its_way_takes_a_lac_along() -> None:
    driver = Driver()
    first = driver.add(store(5, lac=1))
    second = driver.add(store(5, lac=3))
    driver.persist(1)
    assert driver.answers[first] == [OK] and second not in driver.answers
    driver.persist()
    assert driver.answers[second] == [OK] and lac_of(driver) == 3


def test_two_rows_of_one_entry_in_a_request_bring_the_higher_lac() -> None:
    driver = Driver()
    asked = driver.add(store(5, lac=1), store(5, lac=3))
    [persist] = driver.journal
    assert len(persist.records) == 2
    driver.persist()
    assert driver.answers[asked] == [OK, OK] and lac_of(driver) == 3


def test_a_lac_that_is_not_above_costs_no_record() -> None:
    driver = Driver()
    driver.stored(store(5, lac=4))
    asked = driver.add(store(5, lac=4), store(5, lac=2))
    assert driver.answers[asked] == [OK, OK] and not driver.journal


def test_rows_of_recovery_and_of_version_1_move_no_lac() -> None:
    driver = Driver()
    driver.stored(store(5, lac=1))
    asked = driver.add(store(5, lac=4, recovery=True), row(5, lac=4, crc=7))
    assert driver.answers[asked] == [OK, OK] and not driver.journal
    assert lac_of(driver) == 1


def test_sealed_comes_before_here_and_moves_no_lac() -> None:
    driver = Driver()
    driver.stored(store(5, lac=1))
    driver.seal(seal(3))
    driver.persist()
    asked = driver.add(store(5, lac=4), store(5, lac=4, crc=8), store(6, lac=4))
    assert driver.answers[asked] == [BookieStatus.SEALED] * 3
    assert not driver.journal and lac_of(driver) == 1
    recovered = driver.add(store(5, lac=4, recovery=True))
    assert driver.answers[recovered] == [OK]


def test_another_identity_is_different_whatever_the_lac() -> None:
    driver = Driver()
    driver.stored(store(5, lac=1))
    asked = driver.add(store(5, lac=4, crc=8))
    assert driver.answers[asked] == [BookieStatus.DIFFERENT] and not driver.journal


@pytest.mark.parametrize(
    ("level", "status"),
    [(SpaceLevel.READ_ONLY, OK), (SpaceLevel.FULL, BookieStatus.READ_ONLY)],
)
def test_a_full_disk_refuses_the_lac_and_so_the_row(
    level: SpaceLevel, status: BookieStatus
) -> None:
    driver = Driver()
    driver.stored(store(5, lac=1))
    driver.core.set_read_only(level)
    asked = driver.add(store(5, lac=4))
    driver.persist()
    assert driver.answers[asked] == [status]
    same = driver.add(store(5, lac=1))
    assert driver.answers[same] == [OK], "nothing is to be written"


def test_without_room_the_lac_is_overloaded_and_what_needs_none_is_ok() -> None:
    driver = Driver()
    driver.stored(store(5, lac=1))
    asked = driver.add(store(5, lac=4), store(5, lac=1), store(6, lac=1), has_room=False)
    overloaded = BookieStatus.OVERLOADED
    assert driver.answers[asked] == [overloaded, OK, overloaded] and not driver.journal


def test_the_other_refusals_come_first_as_ever() -> None:
    driver = Driver()
    driver.stored(store(5, lac=1))
    asked = driver.add(store(5, lac=4), life=OTHER_LIFE)
    assert driver.answers[asked] == [BookieStatus.WRONG_INCARNATION]
    invalid = driver.add(store(5, lac=4)._replace(is_valid=False))
    assert driver.answers[invalid] == [BookieStatus.INVALID]
    driver.core.set_duty(Duty.LEAVING)
    left = driver.add(store(5, lac=4))
    assert driver.answers[left] == [BookieStatus.READ_ONLY]
    driver.core.set_duty(Duty.SERVING)
    driver.drop(3)
    driver.persist()
    gone = driver.add(store(5, lac=4))
    assert driver.answers[gone] == [BookieStatus.GONE] and not driver.journal


def test_what_was_damaged_is_stored_again_with_its_lac() -> None:
    driver = Driver()
    driver.stored(store(5, lac=1))
    driver.lose(5)
    asked = driver.add(store(5, lac=4))
    [persist] = driver.journal
    assert len(persist.records) == 1, "the record carries the LAC"
    driver.persist()
    assert driver.answers[asked] == [OK] and lac_of(driver) == 4


def test_it_tells_what_the_lac_call_tells() -> None:
    driver = Driver()
    driver.stored(store(5, lac=1))
    driver.add(store(5, lac=4))
    driver.persist()
    read = driver.lac(LacUpdate(LEDGER, NOTHING, is_write=False))
    assert driver.mark(read) == (OK, 4, 5)
