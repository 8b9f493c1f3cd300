"""The surplus budget: what it lets through, and that whatever waits goes some time.

Not here: which waves want it (`test_wave_writer`).
"""

from __future__ import annotations

from duramen.core.flexible.writing.surplus import BYTES_PER_S, SURPLUS_BYTES_MAX, SurplusBudget
from duramen.units import KIB, MIB, SECOND


def test_a_wave_goes_while_there_is_any_and_none_beyond() -> None:
    budget = SurplusBudget()
    assert all(budget.take(MIB, 0) for _ in range(8))
    assert not budget.take(1, 0)
    assert budget.take(1, budget.ready_at_us(0))


def test_completed_entries_earn_half_of_their_first_waves() -> None:
    budget = SurplusBudget()
    assert budget.take(SURPLUS_BYTES_MAX, 0)
    budget.earn(4 * KIB)
    assert budget.take(2 * KIB, 0)
    assert not budget.take(1, 0)
    budget.earn(1_000 * MIB)
    assert budget.statistics()["surplus_left_bytes"] == SURPLUS_BYTES_MAX


def test_a_wave_of_any_size_goes_and_stops_the_others_for_a_second() -> None:
    budget = SurplusBudget()
    assert budget.take(100 * MIB, 0)
    budget.validate()
    ready_us = budget.ready_at_us(0)
    assert ready_us <= SECOND + 1
    assert not budget.take(1, ready_us - 2)
    assert budget.take(1, ready_us)


def test_time_refills_it_and_a_clock_that_stands_does_not() -> None:
    budget = SurplusBudget()
    assert budget.take(SURPLUS_BYTES_MAX, 5 * SECOND)
    assert not budget.take(1, 5 * SECOND)
    later_us = 5 * SECOND + SECOND // 4
    assert budget.take(BYTES_PER_S // 4, later_us)
    assert not budget.take(1, later_us)
