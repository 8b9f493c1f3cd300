"""Two bookies of two racks are killed under a flexible log that wants a copy in each of three.

One bookie of two is left in those racks: that is enough for each entry. Appends go on in the same
epoch and without a change of metadata, also at a new owner, whose recovery needs one whole rack.
With the two still dead, every acknowledged record is read at its place. Six bookies in three racks
are the fewest of which it is true. Source: R22, R23, docs/protocol/waves.md "The next wave".
"""

from __future__ import annotations

from pathlib import Path

import pytest

from duramen.ids import LogId
from tests.process.cluster import LocalCluster, create_log, run, running_plain_cluster
from tests.process.history import History
from tests.process.log_changes import read_versions
from tests.process.owners import wait_owned_by
from tests.process.takeovers import append_while, check
from tests.process.times import HANG_S

pytestmark = [pytest.mark.process, pytest.mark.zookeeper, pytest.mark.timeout(3 * HANG_S)]

LOG = "kept"
FLEXIBLE = {"copysets": "flexible", "replication": {"node": 3, "rack": 3}}
FLAGS = ("--bookies", "6", "--sequencers", "1", "--no-restart", "--racks", "a,b,c")
APPENDS_COUNT = 100


def test_two_bookies_of_two_racks_are_killed_and_nothing_is_lost(tmp_path: Path) -> None:
    with running_plain_cluster(tmp_path / "c", *FLAGS) as cluster:
        run(scenario(cluster), timeout_s=2 * HANG_S)


async def scenario(cluster: LocalCluster) -> None:
    log_id = LogId(int(await create_log(cluster, LOG, FLEXIBLE)))
    history = History(LOG)
    (owner,) = cluster.ids("sequencer")
    racks = {name: cluster.process(name)["rack"] for name in cluster.ids("bookie")}
    first, second = (next(n for n in racks if racks[n] == rack) for rack in ("a", "b"))

    async def kill_both() -> None:
        await history.wait_acknowledged(APPENDS_COUNT)
        before = await read_versions(cluster, log_id)
        assert before.epoch_count == 1, before
        mark = len(history.acknowledged)
        for name in (first, second):
            cluster.kill(name)
        await history.wait_acknowledged(mark + APPENDS_COUNT)
        assert await read_versions(cluster, log_id) == before, "a write for a bookie that is away"
        assert not history.codes, history.codes

    async def kill_the_owner() -> None:
        cluster.kill(owner)
        cluster.revive(owner)
        await wait_owned_by(cluster, owner)

    await append_while(cluster, [history], kill_both())
    await check(cluster, history)
    await append_while(cluster, [history], kill_the_owner())
    await check(cluster, history)
