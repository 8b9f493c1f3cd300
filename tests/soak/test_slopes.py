"""A leak of a known slope is found and told; noise, a warm start and a saw's teeth are none.

Pure: samples are made up, one each three seconds. What the verdicts are of is in `samples`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from tests.soak.slopes import Sample, Tolerance, find_slope, judge_all, judge_slope

MIB = 1 << 20
RSS = Tolerance(16.0, 0.05, "MiB")
PERIOD_S = 3.0
HOUR = 1200
"""Samples of an hour."""


def series(count: int, value: Callable[[float], float]) -> list[Sample]:
    return [Sample(n * PERIOD_S, value(n * PERIOD_S)) for n in range(count)]


def noisy(seed: int, sigma: float) -> Callable[[float], float]:
    rng = random.Random(seed)
    return lambda _at_s: rng.gauss(0, sigma)


@pytest.mark.parametrize("per_hour", [-90.0, 0.0, 60.0, 1e-3])
def test_a_slope_is_found_as_it_is(per_hour: float) -> None:
    samples = series(200, lambda at_s: 100 + per_hour * at_s / 3600)
    assert find_slope(samples) * 3600 == pytest.approx(per_hour, abs=1e-9)


def test_outliers_do_not_move_it() -> None:
    rng = random.Random(1)
    samples = series(300, lambda at_s: 100 + at_s / 60 + (500 if rng.random() < 0.1 else 0))
    assert find_slope(samples) == pytest.approx(1 / 60, rel=0.05)


@pytest.mark.parametrize("seed", range(5))
def test_a_leak_under_noise_is_found_with_its_slope(seed: int) -> None:
    noise = noisy(seed, 3.0)
    verdict = judge_slope(
        "rss", series(HOUR, lambda at_s: 120 + 60 * at_s / 3600 + noise(at_s)), RSS
    )
    assert verdict.per_hour == pytest.approx(60, rel=0.1)
    assert verdict.fault is not None and "grew by " in verdict.fault
    assert verdict.growth > verdict.most


@pytest.mark.parametrize("period_s", [47, 150, 300, 470])
def test_a_leak_under_a_saw_is_found(period_s: int) -> None:
    leak = series(HOUR, lambda at_s: 120 + (at_s % period_s) / 5 + 100 * at_s / 3600)
    assert judge_slope("rss", leak, RSS).fault is not None


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_no_leak(seed: int) -> None:
    noise = noisy(seed, 20.0)
    verdict = judge_slope("rss", series(HOUR, lambda at_s: 120 + noise(at_s)), RSS)
    assert verdict.fault is None and abs(verdict.growth) < 6


@pytest.mark.parametrize(
    "shape",
    [
        lambda at_s: 120 + min(at_s, 1500) / 10,
        lambda at_s: 120 - at_s / 60,
        lambda at_s: 120 + (at_s % 300) / 3,
        lambda at_s: 120 + (at_s % 470) / 3,
        lambda at_s: 120.0,
        lambda at_s: 120 + 14 * max(at_s - 1800, 0) / 1800,
    ],
    ids=["warms up", "shrinks", "saw", "another saw", "flat", "within the tolerance"],
)
def test_what_does_not_go_on_growing_is_good(shape: Callable[[float], float]) -> None:
    assert judge_slope("rss", series(HOUR, shape), RSS).fault is None


def test_a_longer_run_finds_a_smaller_leak() -> None:
    def grows(at_s: float) -> float:
        return 120 + 20 * at_s / 3600

    assert judge_slope("rss", series(HOUR, grows), RSS).fault is None
    verdicts = [judge_slope("rss", series(hours * HOUR, grows), RSS) for hours in (1, 4)]
    assert verdicts[1].fault is not None
    assert all(later.most_per_hour < earlier.most_per_hour for earlier, later in pairwise(verdicts))


def test_a_small_leak_of_a_count_is_found() -> None:
    descriptors = Tolerance(10, 0, "")
    leaking = series(HOUR, lambda at_s: 60 + int(at_s / 100))
    assert judge_slope("fd", leaking, descriptors).fault is not None
    assert (
        judge_slope("fd", series(HOUR, lambda at_s: 60 + int(at_s / 400)), descriptors).fault
        is None
    )


def test_too_few_samples_prove_nothing() -> None:
    for count in (0, 1, 10):
        fault = judge_slope("rss", series(count, lambda _: 1.0), RSS).fault
        assert fault is not None and "samples" in fault
    at_once = [Sample(1.0, 2.0)] * 50
    assert judge_slope("rss", at_once, RSS).fault is not None


def test_each_quantity_has_the_tolerance_of_its_name() -> None:
    found = judge_all(
        {name: series(40, lambda _: 5.0) for name in ("rss bookie-0", "rss zookeeper-0")},
        {"rss": RSS, "rss zookeeper": RSS._replace(floor=64.0)},
    )
    assert [(verdict.name, verdict.most) for verdict in found] == [
        ("rss bookie-0", 16.25), ("rss zookeeper-0", 64.25),
    ]  # fmt: skip
    with pytest.raises(KeyError):
        judge_all({"disk": series(40, lambda _: 5.0)}, {"rss": RSS})
