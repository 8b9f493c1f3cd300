"""A frozen, a slow and a full bookie cost a flexible log neither a write of metadata nor an epoch.

Nothing is refused meanwhile, and nothing acknowledged is missing. A striped log beside it shows
that faults are there: a frozen and a full bookie cost it changes. With little load and no word
about time; figures of a real one: `flexible_figures`. Source: docs/protocol/waves.md, R27.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.process.cluster import LocalCluster, run, running_plain_cluster
from tests.process.flexible_figures import FAULTS, FLAGS, LEAD_S, SIDES, figures_of
from tests.process.times import HANG_S

pytestmark = [
    pytest.mark.process, pytest.mark.zookeeper, pytest.mark.night, pytest.mark.timeout(3 * HANG_S),
]  # fmt: skip

RATE_PER_S = 40.0
SECONDS = 8.0 + LEAD_S


def test_a_bookie_in_trouble_costs_a_flexible_log_no_metadata(tmp_path: Path) -> None:
    with running_plain_cluster(tmp_path / "c", *FLAGS) as cluster:
        run(scenario(cluster), timeout_s=2 * HANG_S)


async def scenario(cluster: LocalCluster) -> None:
    appended = dict.fromkeys(SIDES, 0)
    striped_writes = {}
    async with figures_of(cluster, RATE_PER_S) as figures:
        for fault in FAULTS:
            victim = await figures.choose_victim()
            before = await figures.count_flexible()
            struck = await figures.strike(victim, fault, SECONDS)
            mine = struck["flexible"]
            assert (mine.failed_count, mine.write_count, mine.epoch_count) == (0, 0, 0), mine
            after = await figures.count_flexible()
            given = {name: after[name] - before[name] for name in after}
            # Whether the newest entry is there says little: a second wave may come to anybody.
            assert 2 * given[victim] < max(given.values()), f"{fault}: {victim} of {given}"
            striped_writes[fault] = struck["striped"].write_count
            for side in SIDES:
                appended[side] += len(struck[side].latencies_s)
        missing = await figures.count_missing(appended)
    assert not any(missing.values()), missing
    assert striped_writes["frozen"] and striped_writes["full"], striped_writes
