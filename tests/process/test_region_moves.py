"""A region is closed, emptied and taken away under appends, then another is added and used.

Of a region that is lost under load: `test_regions`. What placement makes of closed regions:
`tests/unit/test_placement.py`. Source: docs/protocol/placement.md "Places and regions, live".
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from duramen.client.rest_client import RestClient
from tests.process.cluster import LocalCluster, create_log, run, running_plain_cluster
from tests.process.commands import duramen
from tests.process.copies import (
    append_slowly,
    ask,
    ask_until,
    close_segment,
    copies_of,
    post,
    wait_settled,
    wait_whole,
)
from tests.process.drain_figures import judge, wait_drained
from tests.process.history import History, read_log
from tests.process.times import HANG_S

pytestmark = [pytest.mark.process, pytest.mark.zookeeper, pytest.mark.night]

FLAGS = ("--bookies", "7", "--regions", "x,y,z", "--no-restart")


def bookies_of(cluster: LocalCluster, region: str) -> list[str]:
    return [name for name in cluster.ids("bookie") if cluster.process(name)["region"] == region]


def test_a_region_is_closed_emptied_and_removed_and_another_is_added(tmp_path: Path) -> None:
    with running_plain_cluster(tmp_path / "c", *FLAGS) as cluster:
        leaving, coming = bookies_of(cluster, "y"), bookies_of(cluster, "z")
        for name in coming:
            cluster.kill(name)  # they hold nothing yet, and come later
        history = History("moved")

        async def scenario() -> None:
            await ask_until(lambda: takes(cluster, "z", 0), HANG_S, "z to be seen no more")
            await create_log(cluster, history.log, {})
            client, stop = RestClient(cluster.state()["write_url"]), asyncio.Event()
            writer = asyncio.create_task(append_slowly(history, client, stop))
            try:
                for _ in range(3):
                    await history.wait_acknowledged(len(history.acknowledged) + 5)
                    await close_segment(cluster, history.log)
                await fill(cluster, history, leaving)
                await remove(cluster, "y", leaving)
                await history.wait_acknowledged(len(history.acknowledged) + 5)
                await wait_whole(cluster, [history.log])
                for name in coming:
                    cluster.revive(name)
                await ask_until(lambda: takes(cluster, "z", 2), HANG_S, "z to come")
                await ask_until(lambda: is_steady(cluster, coming), HANG_S, "z to be steady")
                for _ in range(2):  # the open segment has its bookies, the next one has those of z
                    await close_segment(cluster, history.log)
                    await history.wait_acknowledged(len(history.acknowledged) + 5)
            finally:
                stop.set()
                await writer
                await client.close()
            await close_segment(cluster, history.log)
            await wait_settled(cluster)
            assert sum([await copies_of(cluster, name) for name in coming]) > 0
            await wait_whole(cluster, [history.log])
            assert history.codes == []
            expected = max(end for _, end in history.acknowledged.values())
            url = cluster.state()["read_url"]
            history.check(await read_log(url, history.log, expect_count=expected))

        run(scenario())


async def fill(cluster: LocalCluster, history: History, names: list[str]) -> None:
    """Segments until these hold something: on a busy machine they may be listed as silent (R27)."""

    async def is_filled() -> bool:
        if sum([await copies_of(cluster, name) for name in names]) > 0:
            return True
        await close_segment(cluster, history.log)
        await history.wait_acknowledged(len(history.acknowledged) + 5)
        return False

    await ask_until(is_filled, HANG_S, "the region to hold something")


async def remove(cluster: LocalCluster, region: str, names: list[str]) -> None:
    """Close a region, empty its bookies, stop them and wipe their disks."""
    closed = await asyncio.to_thread(duramen, cluster, "regions", "close", region)
    assert closed["closed"] == [region]
    held = sum([await copies_of(cluster, name) for name in names])
    assert held > 0, "closing moves nothing by itself"
    for name in names:
        await post(cluster, f"bookies/{name}/drain")
    for name in names:
        await wait_drained(cluster, name)
        assert (await judge(cluster, name))["allowed"]
    for name in names:
        await asyncio.to_thread(cluster.kill, name)
        shutil.rmtree(cluster.process(name)["data_dir"])


async def takes(cluster: LocalCluster, region: str, count: int) -> bool:
    """Whether so many bookies of a region take new data."""
    rows = (await ask(cluster, "regions"))["regions"]
    return any(row["region"] == region and row["takes_new_data"] == count for row in rows)


async def is_steady(cluster: LocalCluster, names: list[str]) -> bool:
    """Whether bookies that came back have stayed long enough to be chosen as any other."""
    rows = (await ask(cluster, "bookies"))["bookies"]
    return all(row["steady_in_s"] == 0 for row in rows if row["id"] in names)
