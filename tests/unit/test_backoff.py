"""Pauses double from the first to the longest, and are spread within their bounds.

That each place has its own figures is shown where it is tested.
"""

import random

import pytest

from duramen.backoff import Backoff
from duramen.limits import REPAIR_BACKOFF, RETRY_BACKOFF
from duramen.units import MINUTE, MS, SECOND

BACKOFF = Backoff(first_us=50, limit_us=300)
EXPECTED = [50, 100, 200, 300, 300, 300]


def test_pauses_double_up_to_the_longest() -> None:
    assert [BACKOFF.pause_us(index) for index in range(6)] == EXPECTED


def test_a_pause_follows_from_the_one_before() -> None:
    found, last_us = [], 0
    for _ in range(6):
        last_us = BACKOFF.next_us(last_us)
        found.append(last_us)
    assert found == EXPECTED


def test_a_try_that_is_repeated_for_years_has_the_longest_pause() -> None:
    assert BACKOFF.pause_us(10**9) == 300
    assert Backoff(first_us=1, limit_us=10**6).pause_us(10**9) == 10**6


def test_the_first_pause_is_no_longer_than_the_longest() -> None:
    short = Backoff(first_us=500, limit_us=300)
    assert (short.pause_us(0), short.next_us(0)) == (300, 300)


@pytest.mark.parametrize("spread", [(0.5, 1.5), (1.0, 1.25)])
def test_a_pause_is_spread_evenly_within_its_bounds(spread: tuple[float, float]) -> None:
    backoff, rng = Backoff(1_000, 1_000, spread), random.Random(1)
    found = [backoff.spread_us(1_000, rng) for _ in range(1_000)]
    least, most = (int(1_000 * bound) for bound in spread)
    quarter = (most - least) // 4
    assert least <= min(found) < least + quarter
    assert most - quarter < max(found) <= most


def test_a_pause_that_is_not_spread_stays_as_it_is() -> None:
    assert BACKOFF.spread_us(100, random.Random(1)) == 100


def test_the_same_randomness_gives_the_same_pauses() -> None:
    """A simulated run is replayed from its seed: one draw a pause, and no other."""
    backoff = Backoff(1_000, 1_000, (0.5, 1.5))
    ours, other = random.Random(7), random.Random(7)
    assert backoff.spread_us(1_000, ours) == int(1_000 * other.uniform(0.5, 1.5))
    assert ours.getstate() == other.getstate()


def test_the_figures_that_places_share() -> None:
    assert (RETRY_BACKOFF.first_us, RETRY_BACKOFF.limit_us) == (200 * MS, 2 * SECOND)
    assert (REPAIR_BACKOFF.first_us, REPAIR_BACKOFF.limit_us) == (SECOND, MINUTE)
