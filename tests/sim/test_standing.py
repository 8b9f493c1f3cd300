"""Standing faults in the test suite: a log goes on while links stay cut, at night for an hour.

A failure names the seed; `python -m tests.sim.standing --first X --seeds 1 --trace` plays it again.
Source: docs/testing.md "Standing faults".
"""

from __future__ import annotations

from typing import Final

import pytest

from duramen.units import MINUTE
from tests.sim.run import Result
from tests.sim.standing import play_standing
from tests.tiers import Tier, read_tier

HOUR_SEED: Final = 44
"""An hour without bookies for one of the sequencers."""

CHURN_SEED: Final = 85
"""Answers alone are lost, so that the owner replaces one bookie by another all the time."""

BROKEN_SEED: Final = 21
"""Nothing is cut, and invariants of logs are broken again and again (fail-stop)."""

GATE_SEEDS: Final = (2, 3, 4, 5, 7, 9, 10, 11, 15, 16)
"""With those singled out each kind of cut in two seeds: recoverers are deposed in 2 and 16, owners
in 5 and 9, the store is cut too in 4 and 11, everybody is without bookies in 10 and 15; in 3 and 7
logs are given up. An hour of simulated time takes as long as all of them: the night plays it."""

SEEDS: Final = {
    Tier.FAST: (2, 3), Tier.GATE: GATE_SEEDS, Tier.NIGHT: tuple(range(2, 152)),
}[read_tier()]  # fmt: skip
"""Without the first, which is an hour in which nothing happens to any log."""

SINGLED_OUT: Final = {
    Tier.FAST: (), Tier.GATE: (CHURN_SEED, BROKEN_SEED),
    Tier.NIGHT: (HOUR_SEED, CHURN_SEED, BROKEN_SEED),
}[read_tier()]  # fmt: skip

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def sweep() -> list[Result]:
    """The seeds of this suite, played once."""
    return [play_standing(seed) for seed in sorted({*SEEDS, *SINGLED_OUT})]


@pytest.mark.timeout(max(1_800, 60 * len(SEEDS)))
def test_every_log_goes_on_while_one_sequencer_reaches_all(sweep: list[Result]) -> None:
    failed = [f"seed {result.seed}: {result.violation}" for result in sweep if result.violation]
    assert not failed, "\n".join(["", *failed])


@pytest.mark.skipif(read_tier() is Tier.FAST, reason="a few seeds do not meet everything")
def test_the_sweep_met_what_it_must_meet(sweep: list[Result]) -> None:
    met = [name for result in sweep for name in result.counts]
    for kind in ("bookies", "both", "bookies, everybody", "deposed", "broken invariants"):
        assert f"standing: {kind}" in met
    total = {name: sum(result.counts[name] for result in sweep) for name in met}
    assert total["log given up for want of bookies"] >= 5
    assert total["deposed recoverer looked at"] >= 1
    assert total["deposed owner looked at"] >= 1
    assert total["log stopped by a broken invariant"] >= 5
    if read_tier() is Tier.NIGHT:
        assert max(result.simulated_us for result in sweep) >= 60 * MINUTE
