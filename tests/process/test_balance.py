"""`duramen balance` on real processes: logs move under load, and what moved stays where it is.

One sequencer is given every log; each log has a writer whose appends are due by the clock, so that
every log has one rate on any machine. A dry run shows exactly the moves and makes none, a round
makes them, a second round finds nothing to do. Nothing is lost, doubled or even refused meanwhile.
Which moves a plan makes of which loads is tests/unit/test_balance.py's.
Source: docs/protocol/ownership.md "Balancing", docs/testing.md "Real processes and disks".
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from duramen.client.rest_client import RestClient
from tests.pauses import let_pass
from tests.process.cluster import LocalCluster, create_log, run, running_plain_cluster
from tests.process.commands import duramen
from tests.process.history import History
from tests.process.owners import give_all, owned_rows, owners_of
from tests.process.takeovers import check, statistics
from tests.process.times import HANG_S

pytestmark = [pytest.mark.process, pytest.mark.zookeeper, pytest.mark.quiet, pytest.mark.night]

LOG_COUNT = 9
MOVE_COUNT = 4
"""Of nine even logs: five and four differ by less than the quarter that balancing leaves alone."""

PACE_S = 0.2
"""Far longer than an append takes: a log's rate is then its clock's and not the machine's."""


def test_a_round_of_balancing_moves_logs_under_load_and_a_second_one_none(tmp_path: Path) -> None:
    flags = ("--sequencers", "2", "--write-proxies", "2", "--no-restart")
    with running_plain_cluster(tmp_path / "c", *flags) as cluster:

        async def scenario() -> None:
            histories = [History(f"load-{i}") for i in range(LOG_COUNT)]
            for history in histories:
                await create_log(cluster, history.log, {})
            giver, taker = cluster.ids("sequencer")
            async with appending(cluster, histories):
                await give_all(cluster, giver)
                await wait_even_rates(cluster)
                planned = await balance(cluster, "--dry-run")
                assert planned["dry_run"] and len(planned["moves"]) == MOVE_COUNT, planned
                assert {(m["from"], m["to"]) for m in planned["moves"]} == {(giver, taker)}
                expected = {history.log: giver for history in histories}
                assert await owners_of(cluster) == {log: {giver} for log in expected}
                await wait_even_rates(cluster)
                moves = (await balance(cluster))["moves"]
                assert {move["outcome"] for move in moves} == {"moved"}, moves
                assert {(m["from"], m["to"]) for m in moves} == {(giver, taker)}
                expected |= {m["name"].partition("/")[2]: taker for m in moves}
                assert Counter(expected.values())[taker] == len(moves) == MOVE_COUNT, moves
                await wait_even_rates(cluster)
                assert await owners_of(cluster) == {log: {name} for log, name in expected.items()}
                assert (await balance(cluster))["moves"] == []
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
        due_s = time.monotonic() + PACE_S * index / len(histories)
        while not stop.is_set():
            await let_pass(due_s - time.monotonic(), what="the pace of the load", until=stop)
            due_s += PACE_S
            await history.append(clients[index % len(clients)])

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
    async with asyncio.timeout(HANG_S):
        while True:
            rates = sorted(row["appends_per_s"] for row in await owned_rows(cluster))
            if len(rates) == LOG_COUNT and rates[0] > 0.85 * rates[-1] > 1:
                return
