"""A bookie joins a full cluster, and `duramen rebalance` gives it its share while appends go on.

A dry run moves nothing; the auditor is killed in the middle and another goes on; a second
rebalance finds nothing to do; every copy is counted at the end. What is planned, and why:
`tests/unit/test_rebalance`. Source: docs/protocol/repair.md "Rebalance".
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from duramen.client.rest_client import RestClient
from tests.process.cluster import LocalCluster, create_log, run, running_plain_cluster
from tests.process.commands import duramen
from tests.process.copies import (
    append_slowly,
    ask,
    ask_until,
    close_segment,
    wait_settled,
    wait_whole,
)
from tests.process.drain_figures import fill
from tests.process.history import History, read_log
from tests.process.times import HANG_S

pytestmark = [pytest.mark.process, pytest.mark.zookeeper, pytest.mark.timeout(900)]

FLAGS = ("--bookies", "4", "--sequencers", "2", "--no-restart")
FILLED_BYTES = 32 << 20
TOLERANCE = 0.15


def test_a_bookie_that_joins_gets_its_share_and_a_killed_auditor_is_succeeded(
    tmp_path: Path,
) -> None:
    with running_plain_cluster(tmp_path / "c", *FLAGS) as cluster:
        newcomer = cluster.ids("bookie")[-1]
        cluster.kill(newcomer)  # it holds nothing yet, and joins later
        history, filled = History("told"), ["filled-0", "filled-1"]

        async def scenario() -> None:
            for log in (history.log, *filled):
                await create_log(cluster, log, {"roll": {"size": "1MiB"}})
            await fill(cluster, filled, FILLED_BYTES)
            await wait_settled(cluster)
            await wait_gone(cluster, newcomer)
            client, stop = RestClient(cluster.state()["write_url"]), asyncio.Event()
            writer = asyncio.create_task(append_slowly(history, client, stop))
            try:
                cluster.revive(newcomer)
                await ask_until(
                    lambda: takes_data(cluster, newcomer),
                    HANG_S,
                    f"{newcomer} to join",
                )
                await rebalance_all(cluster, newcomer)
                await history.wait_acknowledged(len(history.acknowledged) + 3)
            finally:
                stop.set()
                await writer
                await client.close()
            await close_segment(cluster, history.log)
            await wait_settled(cluster)
            await wait_whole(cluster, [history.log, *filled])
            expected = max(end for _, end in history.acknowledged.values())
            url = cluster.state()["read_url"]
            history.check(await read_log(url, history.log, expect_count=expected))

        run(scenario(), timeout_s=850)


async def rebalance_all(cluster: LocalCluster, newcomer: str) -> None:
    """Dry run, rebalance with the auditor killed in its middle, and one that finds nothing."""
    planned = await rebalance(cluster, "--dry-run")
    assert planned["dry_run"] and {move["to"] for move in planned["moves"]} == {newcomer}
    assert (await ask(cluster, "rebalance"))["request"] is None
    first = (await ask(cluster, "repair"))["auditor"]
    repaired = await count_swaps(cluster)  # of a bookie that was slow for a while
    await rebalance(cluster)

    async def has_moved() -> bool:
        return await count_swaps(cluster) > repaired

    await ask_until(has_moved, HANG_S, "copies to move")
    await asyncio.to_thread(cluster.kill, first)
    left: dict[str, Any] = {}

    async def is_over() -> bool:
        left.update(await ask(cluster, "rebalance"))
        return not left["running"]

    await ask_until(is_over, HANG_S, lambda: f"the end of the rebalance: {left}")
    answer = await ask(cluster, "repair")
    assert answer["auditor"] != first and answer["statistics"]["commits"]["swaps"] > 0, answer
    shares = (await ask(cluster, "rebalance"))["shares"]
    assert max(shares.values()) <= 1 + TOLERANCE and shares[newcomer] >= 1 - 3 * TOLERANCE, shares
    again = await rebalance(cluster, "--dry-run")
    assert again["moves"] == [], again


async def rebalance(cluster: LocalCluster, *flags: str) -> dict[str, Any]:
    words = ("rebalance", "--tolerance", str(TOLERANCE), *flags)
    found: dict[str, Any] = await asyncio.to_thread(duramen, cluster, *words)
    return found


async def count_swaps(cluster: LocalCluster) -> int:
    return int((await ask(cluster, "repair"))["statistics"]["commits"]["swaps"])


async def wait_gone(cluster: LocalCluster, bookie: str) -> None:
    """Until its session has ended: before that, a killed bookie looks like one that has joined."""

    async def is_gone() -> bool:
        return not await takes_data(cluster, bookie)

    await ask_until(is_gone, HANG_S, f"dead {bookie} to take no data")


async def takes_data(cluster: LocalCluster, bookie: str) -> bool:
    return bookie in (await ask(cluster, "rebalance"))["shares"]
