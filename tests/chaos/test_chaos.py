"""Short chaos runs: everything that was acknowledged is there, once, in order, for everybody.

The schedules are of fixed seeds: an owner that loses its session, is paused and killed, beside
readers who wait at quiet logs; everything killed at once and ZooKeeper paused; on three regions a
disk wiped while its writer sleeps, then a region killed with its ZooKeeper member. `make chaos` has
the long runs. The same with logs of another kind, which is drawn (`tests.combinations`), those
that are ordered with producers. A run that proves nothing is repeated twice, then it is a failure;
one that saw a violation is the last.
Source: docs/testing.md "Chaos".
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import uvloop

from tests.chaos.layout import REGIONS
from tests.chaos.run import ChaosOptions
from tests.chaos.trials import run_until_valid
from tests.combinations import OTHERS, choose_combinations

SECONDS = 40
EXPECTS_REPAIRED = True
"""Whether every entry has to have its Qw good copies again at the end of a run on regions."""

pytestmark = [pytest.mark.process, pytest.mark.zookeeper, pytest.mark.long]


FLAT_OPTIONS = ChaosOptions(
    seed=92, seconds=SECONDS, logs=6, writers=8, readers=4, think_ms=60, pause_s_max=8.0
)
REGIONS_OPTIONS = ChaosOptions(
    seed=3, seconds=SECONDS, layout=REGIONS, logs=4, writers=6, readers=3, think_ms=80,
    pause_s_max=8.0, only=("disk wipe", "kill region"), expects_repaired=EXPECTS_REPAIRED,
)  # fmt: skip


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("seed", "has_waiters"), [(57, True), (92, False)])
def test_nothing_is_lost_doubled_reordered_or_invented(
    seed: int, has_waiters: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    judge(replace(FLAT_OPTIONS, seed=seed, has_waiters=has_waiters), capsys)


@pytest.mark.timeout(1500)
def test_nothing_is_lost_with_a_disk_and_a_region(capsys: pytest.CaptureFixture[str]) -> None:
    judge(REGIONS_OPTIONS, capsys)


@pytest.mark.timeout(2700)
def test_nothing_is_lost_of_logs_of_another_kind(capsys: pytest.CaptureFixture[str]) -> None:
    for combination in choose_combinations("chaos", OTHERS):
        has_producers = combination.ack_mode == "ordered"
        options = replace(FLAT_OPTIONS, combination=combination, has_producers=has_producers)
        judge(replace(options, has_waiters=True), capsys)


@pytest.mark.timeout(4500)
def test_nothing_is_lost_of_another_kind_with_a_disk_and_a_region(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for combination in choose_combinations("chaos on regions", OTHERS):
        judge(replace(REGIONS_OPTIONS, combination=combination), capsys)


def judge(options: ChaosOptions, capsys: pytest.CaptureFixture[str]) -> None:
    events: list[str] = []
    summary = uvloop.run(run_until_valid(options, say=events.append))
    with capsys.disabled():
        counts = summary.counts
        kind = options.combination
        print(f"\nchaos {options.seed}, {kind}: {counts['ok']} appends, faults {summary.faults}")
        for reasons in summary.voids_before:
            print(f"  void before it: {'; '.join(reasons)}")
    assert summary.is_good, "\n".join([*events, summary.format()])
