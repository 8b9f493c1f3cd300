"""The bookie's core and ranges of flexible segments: incarnation, seal, cut, doubt and long polls.

Not here: what is said of each entry of a range (`test_range_reads`). Source:
docs/protocol/envelopes.md "Read: `POST /b/read`, version 2", R1, R14, R15, R30, V9.
"""

from __future__ import annotations

import pytest

from duramen.core.bookie.bookie_state import RangePlan, RequestId, SealRecord
from duramen.core.status import BookieStatus
from duramen.ids import LAST_ENTRY_ID, LAST_EPOCH, NOTHING, EntryId, Epoch
from duramen.wire.bookie_calls import ServiceClass
from duramen.wire.flexible.filtered_reads import FilteredRange
from tests.unit.bookie_driver import (
    LEDGER,
    LOG,
    NEXT_LEDGER,
    OTHER_LIFE,
    Driver,
    row,
    seal,
    span,
    write_lac,
)

OK = BookieStatus.OK
GONE = BookieStatus.GONE
NOT_RELEASED = BookieStatus.NOT_RELEASED
CUT = [ServiceClass.TAIL_READ, ServiceClass.CATCH_UP_READ]
UNCUT = [ServiceClass.RECOVERY, ServiceClass.REPAIR]


def wish(
    first: int, last: int, service: ServiceClass = ServiceClass.TAIL_READ, bound: int = -1
) -> FilteredRange:
    return FilteredRange(span(first, last)._replace(service=service), bound=EntryId(bound))


def poll(
    first: int, *, service: ServiceClass = ServiceClass.TAIL_READ, wait_for: int = 99
) -> FilteredRange:
    """A row that waits; nobody's LAC gets to where it waits for, unless a test says so."""
    asked = wish(first, first + 4, service)
    return asked._replace(
        wanted=asked.wanted._replace(wait_ms=500, wait_for=EntryId(wait_for))
    )  # fmt: skip


def waiting(driver: Driver, row: FilteredRange) -> int:
    request = driver.look(row)
    assert driver.timers == [request] and request not in driver.answers
    return request


def ranges(driver: Driver, request: int) -> list[RangePlan]:
    return [plan for plan in driver.answers[request] if isinstance(plan, RangePlan)]


# --- What is looked up ---------------------------------------------------------------------------


def test_r1_another_incarnation_is_refused_before_anything_else() -> None:
    driver = Driver()
    request = driver.look(wish(0, 3), wish(5, 2), life=OTHER_LIFE)
    wrong = BookieStatus.WRONG_INCARNATION
    assert [(p.status, p.end) for p in ranges(driver, request)] == [(wrong, 0), (wrong, 5)]
    assert not driver.journal


def test_ranges_with_wrong_numbers_are_invalid() -> None:
    driver = Driver()
    request = driver.look(wish(3, 2), wish(0, -1), wish(0, LAST_ENTRY_ID + 1))
    found = [(plan.status, plan.end) for plan in ranges(driver, request)]
    invalid = BookieStatus.INVALID
    assert found == [(invalid, 3), (invalid, 0), (invalid, 0)]


def test_a_range_may_end_at_the_last_entry_that_can_be() -> None:
    driver = Driver()
    plan = driver.range(driver.look(wish(7, LAST_ENTRY_ID, ServiceClass.RECOVERY)))
    assert (plan.status, plan.end) == (OK, LAST_ENTRY_ID + 1)


@pytest.mark.parametrize("service", UNCUT)
def test_r14_a_range_under_a_seal_is_looked_up_when_the_seal_is_durable(
    service: ServiceClass,
) -> None:
    driver = Driver()
    driver.add(row(0))
    asked = wish(0, 3, service)
    request = driver.look(asked._replace(wanted=asked.wanted._replace(seal_epoch=3)))
    assert driver.journal[1].records == (SealRecord(LOG, Epoch(3)),)
    driver.persist(1)
    assert request not in driver.answers
    driver.persist()
    plan = driver.range(request)
    assert (plan.status, list(plan.hot.rows()), plan.is_sealed) == (OK, [(0, 1_000)], True)
    assert driver.answers[driver.add(row(1))] == [BookieStatus.SEALED]


def test_a_far_seal_makes_every_range_invalid() -> None:
    driver = Driver()
    asked = wish(0, 3, ServiceClass.RECOVERY)
    far = asked._replace(wanted=asked.wanted._replace(seal_epoch=LAST_EPOCH))
    invalid = BookieStatus.INVALID
    assert [plan.status for plan in ranges(driver, driver.look(asked, far))] == [invalid] * 2
    assert driver.core.sealed_epoch(LOG) == 0 and not driver.journal


@pytest.mark.parametrize("service", CUT)
def test_v9_r30_clients_are_told_of_nothing_above_lac_and_bound(service: ServiceClass) -> None:
    driver = Driver()
    driver.stored(*[row(n, lac=min(n - 1, 2)) for n in range(8)])
    assert [driver.range(driver.look(wish(0, 9, service, bound))).end for bound in (-1, 1, 5)] == [
        3, 3, 6,
    ]  # fmt: skip
    assert driver.range(driver.look(wish(3, 9, service, 5))).end == 6
    refused = driver.range(driver.look(wish(3, 9, service)))
    assert (refused.status, refused.end, refused.lac, refused.highest) == (NOT_RELEASED, 3, 2, 7)
    assert not refused.met_count


def test_v9_r30_a_bound_is_used_and_forgotten() -> None:
    driver = Driver()
    driver.stored(*[row(n) for n in range(4)])
    bounded = driver.range(driver.look(wish(0, 9, bound=3)))
    assert (bounded.end, bounded.lac) == (4, NOTHING)
    assert driver.range(driver.look(wish(0, 9))).status is NOT_RELEASED
    two = ranges(driver, driver.look(wish(0, 9, bound=3), wish(0, 9)))
    assert [plan.status for plan in two] == [OK, NOT_RELEASED], "it is of its row alone"
    assert driver.core.marks_of(LEDGER) == (NOTHING, 3)
    sealing = driver.seal(seal(3))
    driver.persist()
    assert driver.mark(sealing).lac == NOTHING


@pytest.mark.parametrize("service", UNCUT)
def test_recovery_and_repair_look_at_all_that_is_here(service: ServiceClass) -> None:
    driver = Driver()
    driver.stored(row(0), row(5))
    plan = driver.range(driver.look(wish(0, 9, service)))
    assert (plan.status, plan.end, list(plan.hot.rows())) == (OK, 10, [(0, 1_000), (5, 1_005)])


def test_what_was_dropped_is_gone_whether_or_not_it_may_be_shown() -> None:
    driver = Driver()
    driver.stored(row(0))
    driver.drop(3)
    driver.persist()
    for service in ServiceClass:
        assert driver.range(driver.look(wish(0, 3, service))).status is GONE


def test_what_is_settled_is_told_apart_from_what_is_hot() -> None:
    driver = Driver()
    driver.stored(*[row(n, lac=n - 1) for n in range(8)])
    driver.settle(0, 1, 2, 4)
    found: list[RangePlan] = []
    asked = wish(0, 9, ServiceClass.REPAIR)
    while not found or found[-1].end < 10:
        found.append(driver.range(driver.look(asked)))
        asked = wish(found[-1].end, 9, ServiceClass.REPAIR)
    assert [(p.settled, [n for n, _ in p.hot.rows()], p.end) for p in found] == [
        (((0, 2),), [], 3), ((), [3], 4), (((4, 4),), [], 5), ((), [5, 6, 7], 10),
    ]  # fmt: skip


def test_r15_damage_is_unvouched_and_doubt_asks_for_its_proof() -> None:
    driver = Driver()
    driver.stored(*[row(n, lac=n - 1) for n in range(4)])
    driver.lose(1)
    plan = driver.range(driver.look(wish(0, 2)))
    assert (plan.unvouched, plan.is_doubtful) == (((1, 1),), False)
    driver.core.on_recovered_damage()
    driver.core.on_doubt_bounded(5)
    assert driver.range(driver.look(wish(0, 2))).is_doubtful
    assert driver.checks == [LEDGER]


def test_rows_share_what_one_request_meets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duramen.core.bookie.ledger_reads.FILTERED_ENTRY_COUNT_MAX", 3)
    driver = Driver()
    driver.stored(*[row(n) for n in range(9)])
    asked = wish(0, 8, ServiceClass.REPAIR)
    rows = [wish(0, 1, ServiceClass.REPAIR), asked, asked, wish(9, 8, ServiceClass.REPAIR)]
    found = ranges(driver, driver.look(*rows))
    assert [(p.status, p.met_count, p.end) for p in found] == [
        (OK, 2, 2), (OK, 2, 2), (BookieStatus.OVERLOADED, 0, 0), (BookieStatus.INVALID, 0, 9),
    ]  # fmt: skip
    assert found[2].highest == 8, "what is known is told"


# --- Long polls ----------------------------------------------------------------------------------


@pytest.mark.parametrize("service", CUT)
def test_v9_an_entry_that_may_not_be_shown_yet_wakes_nobody(service: ServiceClass) -> None:
    driver = Driver()
    request = waiting(driver, poll(1, service=service))
    driver.stored(row(0), row(1), row(2, lac=0))
    driver.lose(1)
    assert request not in driver.answers
    driver.stored(row(3, lac=1))
    plan = driver.range(request)
    assert (plan.status, plan.end, plan.unvouched) == (OK, 2, ((1, 1),))


def test_a_poll_is_woken_by_a_lac_that_comes_alone() -> None:
    driver = Driver()
    request = waiting(driver, poll(1))
    driver.lac(write_lac(0))
    driver.persist()
    assert request not in driver.answers
    driver.lac(write_lac(1))
    assert request not in driver.answers
    driver.persist()
    assert (driver.range(request).status, driver.range(request).end) == (OK, 2)


def test_a_poll_ends_at_the_lac_that_it_waits_for_as_in_version_1() -> None:
    driver = Driver()
    request = waiting(driver, poll(5, wait_for=2))
    driver.stored(row(3, lac=2))
    assert driver.range(request).status is NOT_RELEASED


def test_a_poll_does_not_wait_for_what_its_bound_shows() -> None:
    driver = Driver()
    asked = poll(4)._replace(bound=EntryId(4))
    assert (driver.range(driver.look(asked)).end, driver.timers) == (5, [])
    waiting(driver, poll(5)._replace(bound=EntryId(4)))


@pytest.mark.parametrize("service", UNCUT)
def test_in_classes_that_are_not_cut_the_entry_is_waited_for(service: ServiceClass) -> None:
    driver = Driver()
    request = waiting(driver, poll(1, service=service))
    driver.stored(row(0), row(2))
    assert request not in driver.answers
    driver.stored(row(1))
    assert [n for n, _ in driver.range(request).hot.rows()] == [1, 2]
    driver.lose(1)
    assert driver.range(driver.look(poll(1, service=service))).unvouched == ((1, 1),)


def test_a_seal_a_drop_and_time_end_a_poll() -> None:
    driver = Driver()
    sealed = waiting(driver, poll(1))
    driver.seal(seal(3))
    driver.persist()
    assert driver.range(sealed).is_sealed and driver.range(sealed).status is NOT_RELEASED
    driver.timers.clear()
    late = waiting(driver, poll(1))
    driver.core.on_wait_over(RequestId(late))
    driver.drain()
    assert driver.range(late).status is NOT_RELEASED
    driver.timers.clear()
    dropped = waiting(driver, poll(1))
    driver.drop(3)
    driver.persist()
    assert driver.range(dropped).status is GONE
    assert driver.range(driver.look(poll(1))).status is GONE
    assert driver.core.statistics()["waiters"] == 0


def test_an_abandoned_poll_is_forgotten_and_other_ledgers_wake_nobody() -> None:
    driver = Driver()
    request = waiting(driver, poll(1))
    driver.stored(row(5, lac=4, ledger=NEXT_LEDGER))
    driver.core.on_abandoned(RequestId(request))
    driver.stored(row(5, lac=4))
    assert request not in driver.answers and driver.core.statistics()["waiters"] == 0
