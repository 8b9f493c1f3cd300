"""`duramen balance` on real processes: logs move under load, until one more round moves none.

One sequencer is given every log; each log has a writer at an even pace. A dry run shows moves and
makes none, a round makes them, the last one finds nothing to do. Nothing is lost, doubled or even
refused meanwhile. Which moves a plan makes of which loads is tests/unit/test_balance.py's: what a
machine shared with others measures is not always even.
Source: docs/protocol/ownership.md "Balancing", 06-testing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from duramen.client.rest_client import RestClient
from tests.process.cluster import LocalCluster, create_log, run, running_cluster
from tests.process.history import History
from tests.process.owners import give_all, owned_rows, owners_of
from tests.process.test_ownership import check, statistics
from tests.process.test_rolling import duramen

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]

LOG_COUNT = 9
BALANCED = {4, 5}
"""Of nine even logs: five and four differ by less than the quarter that balancing leaves alone."""

ROUND_COUNT_MAX = 8
"""Two do where loads are even: one that moves, one that finds nothing."""

PACE_S = 0.03
KNOWN_S = 120.0
"""Loads are known after two windows of 5 s; a busy machine may take longer."""


def test_rounds_of_balancing_move_logs_under_load_until_one_moves_none(tmp_path: Path) -> None:
    flags = ("--sequencers", "2", "--write-proxies", "2", "--no-restart")
    with running_cluster(tmp_path / "c", *flags) as cluster:

        async def scenario() -> None:
            histories = [History(f"load-{i}") for i in range(LOG_COUNT)]
            for history in histories:
                await create_log(cluster, history.log, {})
            giver, taker = cluster.ids("sequencer")
            async with appending(cluster, histories):
                await give_all(cluster, giver)
                await wait_even_rates(cluster)
                planned = await balance(cluster, "--dry-run")
                assert planned["dry_run"]
                assert {(m["from"], m["to"]) for m in planned["moves"]} == {(giver, taker)}
                expected = {history.log: giver for history in histories}
                assert await owners_of(cluster) == {log: {giver} for log in expected}
                for _ in range(ROUND_COUNT_MAX):
                    await wait_even_rates(cluster)
                    moves = (await balance(cluster))["moves"]
                    assert {move["outcome"] for move in moves} <= {"moved"}, moves
                    expected |= {m["name"].partition("/")[2]: m["to"] for m in moves}
                    # With loads that are uneven for a moment there may be nothing to do too early.
                    if not moves and set(Counter(expected.values()).values()) == BALANCED:
                        break
                else:
                    pytest.fail(f"not balanced after {ROUND_COUNT_MAX} rounds: {expected}")
                await wait_even_rates(cluster)
                assert await owners_of(cluster) == {log: {name} for log, name in expected.items()}
            for history in histories:
                assert not history.codes, (history.log, history.codes)
                await check(cluster, history)
            for node_id in (giver, taker):
                assert (await statistics(cluster, node_id))["recoveries"] == 0

        run(scenario())


@asynccontextmanager
async def appending(cluster: LocalCluster, histories: list[History]) -> AsyncIterator[None]:
    """Every log gets appends at one pace, through both proxies in turns."""
    stop = asyncio.Event()
    clients = [
        RestClient(cluster.process(node_id)["data_url"]) for node_id in cluster.ids("writeproxy")
    ]

    async def write(index: int, history: History) -> None:
        stopped = asyncio.create_task(stop.wait())
        while not stopped.done():
            await history.append(clients[index % len(clients)])
            await asyncio.wait([stopped], timeout=PACE_S)

    writers = [asyncio.create_task(write(i, history)) for i, history in enumerate(histories)]
    try:
        for history in histories:
            await history.wait_acknowledged(3)
        yield
        for history in histories:
            await history.wait_acknowledged(len(history.acknowledged) + 5)
    finally:
        stop.set()
        await asyncio.gather(*writers)
        for client in clients:
            await client.close()


async def balance(cluster: LocalCluster, *flags: str) -> dict[str, Any]:
    return await asyncio.to_thread(duramen, cluster, "balance", *flags)


async def wait_even_rates(cluster: LocalCluster) -> None:
    """Until what the sequencers know of the loads is what they are: nearly the same for all."""
    async with asyncio.timeout(KNOWN_S):
        while True:
            rates = sorted(row["appends_per_s"] for row in await owned_rows(cluster))
            if len(rates) == LOG_COUNT and rates[0] > 0.85 * rates[-1] > 1:
                return
