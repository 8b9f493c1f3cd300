"""An owner that is frozen under load among six sequencers: nobody waits for its session to end.

Appends come every 50 ms to each log, whatever became of the ones before. Each round all logs are
one sequencer's, which is stopped. The time until each log was acknowledged again by somebody else
is measured without the machine's stalls, and on a quiet machine: one that gives every process a
third less delays the six calls that follow one another here, and no stall shows it. The last round
stops the successor at once: what it has by a hint no hint takes from it, so its session decides.
Nothing that was acknowledged is lost.
Source: docs/protocol/members.md "What a confirmed suspicion does".
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import httpx
import pytest

from duramen.core.ownership.loss_pauses import FORGOTTEN_AFTER_US
from duramen.units import SECOND
from tests.pauses import let_pass, look_again_soon
from tests.process.cluster import LocalCluster, create_log, run, running_plain_cluster
from tests.process.history import read_log
from tests.process.owners import give_all, owners_of
from tests.process.steady_load import EVERY_S, Load, running_loads
from tests.process.takeovers import statistics
from tests.process.times import HANG_S, HINT_FAILOVER_S, SESSION_FAILOVER_S
from tests.ticker import Ticker, running_ticker

pytestmark = [pytest.mark.process, pytest.mark.zookeeper, pytest.mark.quiet]

LOGS = ["log-0", "log-1", "log-2", "log-3"]
ROUND_COUNT = int(os.environ.get("DURAMEN_FREEZES", "5"))
FORGOTTEN_S = FORGOTTEN_AFTER_US / SECOND + 1.0
"""Whoever loses a log again before that leaves it alone for longer, up to 7.5 s, and is late as a
successor: that is meant, and not what is measured."""

_TIMEOUT_S = 2 * HANG_S + 20 * ROUND_COUNT
SEQUENCER_COUNT = 6
"""One is frozen, one asks, three are asked; one more, since the successor is frozen as well."""


@pytest.mark.timeout(_TIMEOUT_S + HANG_S)
def test_a_frozen_owner_is_succeeded_before_its_session_ends(tmp_path: Path) -> None:
    flags = ("--sequencers", str(SEQUENCER_COUNT), "--no-restart")
    with (
        running_plain_cluster(tmp_path / "c", *flags) as cluster,
        running_ticker(tmp_path) as ticker,
    ):
        run(scenario(cluster, ticker), timeout_s=_TIMEOUT_S)


async def scenario(cluster: LocalCluster, ticker: Ticker) -> None:
    for log in LOGS:
        await create_log(cluster, log, {})
    *victims, keeper = cluster.ids("sequencer")
    async with running_loads(cluster, LOGS) as loads:
        for load in loads:
            await load.wait_acked_since(0.0)
        took_s = []
        back_s: dict[str, float] = {}
        for number in range(ROUND_COUNT):
            victim = victims[number % len(victims)]
            forgotten_s = back_s.get(victim, 0.0) + FORGOTTEN_S - time.monotonic()
            await let_pass(forgotten_s, what="until its last loss makes no pause longer")
            # An successor that keeps its logs has them by a hint; who is given them has not.
            await give_all(cluster, keeper)
            await give_all(cluster, victim)
            took_s.append(await freeze_one(cluster, loads, victim, ticker))
            cluster.send(victim, signal.SIGCONT)
            await wait_back(cluster, victim)
            back_s[victim] = time.monotonic()
        print("each freeze, sorted:", [f"{one:.2f}" for one in sorted(took_s)])
        assert max(took_s) < HINT_FAILOVER_S, f"at most {HINT_FAILOVER_S} s are allowed: {took_s}"
        await freeze_the_next_too(cluster, loads, keeper, victims[0])
    for load in loads:
        read = await read_log(cluster.state()["read_url"], load.log)
        missing = load.acked - set(read)
        assert not missing, f"{load.log}: {len(missing)} acknowledged appends are lost"


async def freeze_one(
    cluster: LocalCluster, loads: list[Load], victim: str, ticker: Ticker
) -> float:
    """Stop the owner of all logs, until somebody else acknowledges what was sent since; how long
    that took, without the machine's stalls."""
    stopped_s = time.monotonic()
    cluster.send(victim, signal.SIGSTOP)
    times = [await load.wait_acked_since(stopped_s) for load in loads]
    took_s = ticker.product_s(stopped_s, max(times))
    each = sorted(round(at - stopped_s, 2) for at in times)
    print(f"{victim} is frozen, all logs go on: {took_s:.2f} s; each log after {each}")
    return took_s


async def wait_back(cluster: LocalCluster, name: str) -> None:
    """Until nobody takes it for away any more, and it has given up what it lost."""
    async with asyncio.timeout(HANG_S):
        for other in [*cluster.ids("sequencer"), *cluster.ids("writeproxy")]:
            while _is_any_away(await statistics(cluster, other)):
                await look_again_soon()
        while any(name in owners for owners in (await owners_of(cluster)).values()):
            await look_again_soon()


def _is_any_away(found: dict[str, object]) -> bool:
    members = found["members"]
    assert isinstance(members, dict)
    return bool(members["away"])


async def freeze_the_next_too(
    cluster: LocalCluster, loads: list[Load], keeper: str, first: str
) -> None:
    """What an successor has by a hint is taken from it when its session ends, and not before."""
    for name in (keeper, first):
        await give_all(cluster, name)
    stopped_s = time.monotonic()
    cluster.send(first, signal.SIGSTOP)
    load = loads[0]
    await load.wait_acked_since(stopped_s)
    others = [name for name in cluster.ids("sequencer") if name != first]
    successor = await find_owner(cluster, load.log, others)
    again_s = time.monotonic()
    cluster.send(successor, signal.SIGSTOP)
    try:
        acked_s = await load.wait_acked_since(again_s + EVERY_S)
        print(f"{successor} had it by a hint: taken after {acked_s - again_s:.1f} s")
        assert acked_s - again_s > 2 * HINT_FAILOVER_S, "a hint took what a hint had given"
        assert acked_s - again_s < 2 * SESSION_FAILOVER_S
    finally:
        for name in (first, successor):
            cluster.send(name, signal.SIGCONT)
    for name in (first, successor):
        await wait_back(cluster, name)


async def find_owner(cluster: LocalCluster, log: str, names: list[str]) -> str:
    """Who of these has a log; the others may be frozen."""
    async with httpx.AsyncClient(timeout=30) as http, asyncio.timeout(HANG_S):
        while True:
            for name in names:
                rows = (await http.get(cluster.process(name)["admin_url"] + "/v1/logs")).json()
                if any(row.get("name") == f"default/{log}" for row in rows):
                    return name
            await look_again_soon()
