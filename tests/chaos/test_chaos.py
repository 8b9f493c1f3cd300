"""Short chaos runs: everything that was acknowledged is there, once, in order, for everybody.

The schedules are of fixed seeds: an owner that loses its session, is paused and killed, beside
readers who wait at quiet logs, in a cluster with identities; everything killed at once and
ZooKeeper paused, without, of logs of a kind that is drawn (`tests.combinations`), those that are
ordered with producers; at night, on three regions, a disk wiped while its writer sleeps, then a
region killed with its ZooKeeper member, of logs of each kind. `make chaos` has the long runs. A
run that proves nothing is repeated twice, then it is a failure; one that saw a violation is the
last.
Source: docs/testing.md "Chaos".
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import uvloop

from tests.chaos.layout import REGIONS
from tests.chaos.run import ChaosOptions, RunError
from tests.chaos.trials import run_until_valid
from tests.combinations import FIRST, OTHERS, choose_combinations

SECONDS = 40
EXPECTS_REPAIRED = True
"""Whether every entry has to have its Qw good copies again at the end of a run on regions."""

pytestmark = [pytest.mark.process, pytest.mark.zookeeper, pytest.mark.long]


FLAT_OPTIONS = ChaosOptions(
    seed=92, seconds=SECONDS, logs=6, writers=8, readers=4, think_ms=60, pause_s_max=8.0
)
WAITED_OPTIONS = replace(FLAT_OPTIONS, seed=57, has_waiters=True, is_secure=True)
REGIONS_OPTIONS = ChaosOptions(
    seed=3, seconds=SECONDS, layout=REGIONS, logs=4, writers=6, readers=3, think_ms=80,
    pause_s_max=8.0, only=("disk wipe", "kill region"), expects_repaired=EXPECTS_REPAIRED,
)  # fmt: skip


@pytest.mark.timeout(900)
def test_nothing_is_lost_doubled_reordered_or_invented(capsys: pytest.CaptureFixture[str]) -> None:
    judge(WAITED_OPTIONS, capsys)


@pytest.mark.timeout(3600)
def test_nothing_is_lost_of_logs_of_any_kind(capsys: pytest.CaptureFixture[str]) -> None:
    for combination in choose_combinations("chaos", (FIRST, *OTHERS)):
        has_producers = combination.ack_mode == "ordered"
        options = replace(FLAT_OPTIONS, combination=combination, has_producers=has_producers)
        judge(replace(options, has_waiters=True), capsys)


@pytest.mark.night
@pytest.mark.timeout(4500)
def test_nothing_is_lost_of_any_kind_with_a_disk_and_a_region(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for combination in choose_combinations("chaos on regions", (FIRST, *OTHERS)):
        judge(replace(REGIONS_OPTIONS, combination=combination), capsys)


def judge(options: ChaosOptions, capsys: pytest.CaptureFixture[str]) -> None:
    events: list[str] = []
    try:
        summary = uvloop.run(run_until_valid(options, say=events.append))
    except RunError as error:
        pytest.fail("\n".join([str(error), *events]))
    with capsys.disabled():
        counts = summary.counts
        kind = options.combination
        print(f"\nchaos {options.seed}, {kind}: {counts['ok']} appends, faults {summary.faults}")
        for reasons in summary.voids_before:
            print(f"  void before it: {'; '.join(reasons)}")
    assert summary.is_good, "\n".join([summary.format(), *events])
