"""Pings of sequencers get lost for minutes: owners keep their logs, and appends are as quick.

Four logs of six sequencers are appended to every 50 ms, first without loss, then each sequencer
loses a part of its pings in both directions. A twentieth moves no log: three relays and a second
ping would have to be lost with the first, so nobody is even confirmed. No append fails, none that
was acknowledged is lost, and p99 is not twice what it was. With more lost (`DURAMEN_STORM_LOST`) a
log may move once in 10 s.

A night's test: `DURAMEN_STORM_S` is how long it lasts.
Source: docs/protocol/members.md "When it is wrong".
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from tests.pauses import let_pass
from tests.process import deaf_member
from tests.process.cluster import LocalCluster, create_log, run, running_plain_cluster
from tests.process.history import read_log
from tests.process.steady_load import Load, running_loads
from tests.process.takeovers import statistics
from tests.process.times import HANG_S

pytestmark = [pytest.mark.process, pytest.mark.zookeeper, pytest.mark.quiet, pytest.mark.night]

MODULE: Final = "duramen_sequencer.main"
ROOT: Final = Path(__file__).resolve().parents[2]
LOGS: Final = ["log-0", "log-1", "log-2", "log-3"]
SEQUENCER_COUNT: Final = 6
STORM_S: Final = float(os.environ.get("DURAMEN_STORM_S", "600"))
CALM_S: Final = min(STORM_S, 60.0)
"""Before the storm: what appends take without it."""

LOST: Final = float(os.environ.get("DURAMEN_STORM_LOST", "0.05"))
SLOWER_MAX: Final = 2.0
HINT_EVERY_S: Final = 10.0
MILD: Final = 0.05
_SETTLED_S: Final = 5.0
"""From the start of processes until what they do first is done."""

_TIMEOUT_S: Final = CALM_S + STORM_S + 2 * HANG_S


@pytest.mark.timeout(_TIMEOUT_S + HANG_S)
def test_lost_pings_take_no_log_and_slow_nothing_down(tmp_path: Path) -> None:
    flags = ("--sequencers", str(SEQUENCER_COUNT), "--no-restart")
    with running_plain_cluster(tmp_path / "c", *flags) as cluster:
        run(scenario(cluster), timeout_s=_TIMEOUT_S)


async def scenario(cluster: LocalCluster) -> None:
    for log in LOGS:
        await create_log(cluster, log, {})
    p99_s: list[float] = []
    acked: dict[str, set[bytes]] = {log: set() for log in LOGS}
    for number, (lost, lasts_s) in enumerate(((0.0, CALM_S), (LOST, STORM_S))):
        cluster.start_anew(*cluster.ids("sequencer"), wrap=partial(lose, lost))
        async with running_loads(cluster, LOGS, first=number * 10**9) as loads:
            await let_pass(_SETTLED_S, what="until every log has an owner")
            before, begun_s = await count(cluster), time.monotonic()
            await let_pass(lasts_s, what="the storm, or what comes before it")
            counts = await count(cluster) - before
            p99_s.append(find_p99_s(loads, begun_s))
            counts["failed"] = sum(load.failed_count for load in loads)
        for load in loads:
            acked[load.log] |= load.acked
        print(f"{lost:.0%} lost: p99 {p99_s[-1] * 1e3:.0f} ms, {dict(counts)}")
        if lost <= MILD:
            assert not any(counts[name] for name in ("confirmed", "takeovers", "failed"))
        else:
            assert counts["takeovers"] <= len(LOGS) * lasts_s / HINT_EVERY_S
    assert p99_s[1] <= SLOWER_MAX * p99_s[0], p99_s
    for log in LOGS:
        missing = acked[log] - set(await read_log(cluster.state()["read_url"], log))
        assert not missing, f"{log}: {len(missing)} acknowledged appends are lost"


async def count(cluster: LocalCluster) -> Counter[str]:
    """What gossip came to so far, and what came of it, at all sequencers."""
    counts: Counter[str] = Counter()
    for name in cluster.ids("sequencer"):
        found = await statistics(cluster, name)
        counts["takeovers"] += int(found["away_takeovers"])
        for what in ("pings", "unanswered", "suspected", "confirmed"):
            counts[what] += int(found["members"][what])
    return counts


def lose(lost: float, line: list[str]) -> list[str]:
    """The command line of a sequencer that loses this part of its pings."""
    module = line.index(MODULE)
    places = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    program = ["env", f"PYTHONPATH={places}", sys.executable, "-m", deaf_member.__name__]
    return [*program, str(lost), *line[module:]]


def find_p99_s(loads: list[Load], since_s: float) -> float:
    """Of all appends that were sent since; one that was not acknowledged is none of them."""
    took_s = sorted(
        acked_s - sent_s for load in loads for sent_s, acked_s in load.acked_s if sent_s > since_s
    )
    assert len(took_s) >= 100, "too few appends to judge"
    return took_s[len(took_s) * 99 // 100]
