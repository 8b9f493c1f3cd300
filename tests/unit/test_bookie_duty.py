"""What a bookie that is to leave accepts: nothing new, then nothing at all; reads and seals go on.

The duty and accepting an add are one step in the core (as R11); what was accepted before is stored.
Source: docs/protocol/repair.md "Drain".
"""

from __future__ import annotations

import pytest

from duramen.core.bookie.bookie_state import MarksAnswer
from duramen.core.duty import Duty
from duramen.core.status import BookieStatus
from duramen.ids import EntryId, Epoch, LogId, ledger_of
from tests.unit.bookie_driver import (
    NEXT_LEDGER,
    Driver,
    add_again,
    holding,
    read,
    row,
    seal,
    write_lac,
)

OK, READ_ONLY = BookieStatus.OK, BookieStatus.READ_ONLY
ELSEWHERE = ledger_of(LogId(8), Epoch(1))
GONE_FOR_GOOD = [Duty.LEAVING, Duty.DRAINED]


def lac_status(driver: Driver, lac: int, **more: int) -> BookieStatus:
    asked = driver.lac(write_lac(lac, **more))  # type: ignore[arg-type]
    driver.persist()
    return driver.mark(asked).status


def test_a_draining_bookie_goes_on_with_the_ledgers_that_it_knows() -> None:
    driver = holding(0)
    driver.core.set_duty(Duty.DRAINING)
    assert add_again(driver, 1) is OK and lac_status(driver, 0) is OK
    assert driver.core.statistics()["duty"] == "draining"


@pytest.mark.parametrize("ledger", [NEXT_LEDGER, ELSEWHERE], ids=["of a known log", "of none"])
def test_a_draining_bookie_begins_no_ledger_for_an_owner(ledger: int) -> None:
    driver = holding(0)
    driver.core.set_duty(Duty.DRAINING)
    assert add_again(driver, 0, ledger=ledger) is READ_ONLY
    assert lac_status(driver, 0, ledger=ledger) is READ_ONLY, "or the next add would find it known"
    assert add_again(driver, 0, ledger=ledger) is READ_ONLY
    assert add_again(driver, 0, ledger=ledger, recovery=True) is OK


def test_what_was_accepted_before_the_drain_is_stored_and_makes_its_ledger_known() -> None:
    driver = Driver()
    in_flight = driver.add(row(0))
    driver.core.set_duty(Duty.DRAINING)
    later = driver.add(row(1))
    driver.persist()
    assert driver.statuses(in_flight) == driver.statuses(later) == [OK]


@pytest.mark.parametrize("duty", GONE_FOR_GOOD)
def test_a_leaving_bookie_acknowledges_nothing_any_more(duty: Duty) -> None:
    driver = holding(0)
    in_flight = driver.add(row(1))
    driver.core.set_duty(duty)
    for recovery in (False, True):
        assert add_again(driver, 2, recovery=recovery) is READ_ONLY
        assert add_again(driver, 0, recovery=recovery) is READ_ONLY, "not even what it has"
    assert lac_status(driver, 0) is READ_ONLY
    assert driver.statuses(in_flight) == [OK], "accepted before"


@pytest.mark.parametrize("duty", list(Duty))
def test_reads_and_seals_go_on_in_every_duty(duty: Duty) -> None:
    driver = holding(0, 1)
    driver.core.set_duty(duty)
    assert read(driver, 0, 5) == (OK, 2)
    sealed = driver.seal(seal(3))
    driver.persist()
    assert driver.mark(sealed) == MarksAnswer(OK, EntryId(-1), EntryId(1))
    assert add_again(driver, 2) is BookieStatus.SEALED, "a fenced writer learns that it is fenced"


def test_a_drain_that_is_cancelled_leaves_nothing_behind() -> None:
    driver = holding(0)
    for duty in (Duty.DRAINING, Duty.DRAINED, Duty.SERVING):
        driver.core.set_duty(duty)
    assert add_again(driver, 0, ledger=ELSEWHERE) is OK and driver.core.duty is Duty.SERVING
