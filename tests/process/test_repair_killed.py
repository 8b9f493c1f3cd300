"""Repair is killed again and again, at both of its ends, and all that is lost is time.

Twice the fullest bookie comes back with empty disks. While its copies are made anew, every bookie
is killed once, at random moments and those that copy first, and so is the auditor. At the end every
copy is counted, everything is proved, and nothing is left under `repair`. Each moment by itself:
`tests/component/test_auditor_cut`. Source: docs/protocol/repair.md, R21.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from pathlib import Path

import pytest

from duramen.client.rest_client import RestClient
from tests.pauses import let_pass
from tests.process.cluster import LocalCluster, create_log, run, running_plain_cluster
from tests.process.copies import (
    ask,
    ask_until,
    close_segment,
    wait_settled,
    wait_whole,
)
from tests.process.drain_figures import fill
from tests.process.history import History, read_log
from tests.process.times import HANG_S

pytestmark = [
    pytest.mark.process, pytest.mark.zookeeper, pytest.mark.night, pytest.mark.timeout(900),
]  # fmt: skip

SEED = int(os.environ.get("DURAMEN_KILL_SEED", "7"))
ROUNDS = 2
KILL_PAUSE_MAX_S = 0.4
PACE_S = 0.02
"""It is repair that has work to do."""
FLAGS = ("--bookies", "5", "--sequencers", "2", "--no-restart")
FILLED_BYTES = 48 << 20


def test_repair_that_is_killed_at_any_moment_is_done_by_another(tmp_path: Path) -> None:
    with running_plain_cluster(tmp_path / "c", *FLAGS) as cluster:
        history, filled = History("told"), ["filled-0", "filled-1"]
        rng = random.Random(SEED)

        async def scenario() -> None:
            for log in (history.log, *filled):
                await create_log(cluster, log, {"roll": {"size": "1MiB"}})
            await fill(cluster, filled, FILLED_BYTES)
            client, stop = RestClient(cluster.state()["write_url"]), asyncio.Event()
            writer = asyncio.create_task(history.append_until(client, stop, rest_s=PACE_S))
            try:
                for _ in range(ROUNDS):
                    # Only when nothing lacks a copy may a bookie be lost again.
                    await wait_settled(cluster)
                    await wipe(cluster, await find_fullest(cluster))
                    await kill_all(cluster, rng)
                    await history.wait_acknowledged(len(history.acknowledged) + 3)
            finally:
                stop.set()
                await writer
                await client.close()
            await close_segment(cluster, history.log)
            answer = await wait_settled(cluster)
            assert answer["unrepairable"] == []
            await wait_whole(cluster, [history.log, *filled])
            expected = max(end for _, end in history.acknowledged.values())
            url = cluster.state()["read_url"]
            history.check(await read_log(url, history.log, expect_count=expected))

        run(scenario(), timeout_s=850)


async def find_fullest(cluster: LocalCluster) -> str:
    """The bookie of which most is to be made anew."""
    rows = (await ask(cluster, "repair/bookies"))["bookies"]
    return max((int(row["bytes"]), str(row["bookie"])) for row in rows)[1]


async def wipe(cluster: LocalCluster, bookie: str) -> None:
    """The bookie's disks are lost: it comes back as another incarnation."""
    await asyncio.to_thread(cluster.kill, bookie)
    shutil.rmtree(cluster.process(bookie)["data_dir"])
    cluster.revive(bookie, lambda line: [*line, "--accept-new-incarnation"])
    await asyncio.to_thread(cluster.wait_ready, bookie)


async def kill_all(cluster: LocalCluster, rng: random.Random) -> None:
    """Kill every bookie and the auditor while they repair; all are back when this returns."""
    busy: list[str] = []
    auditor = ""

    async def is_repairing() -> bool:
        nonlocal auditor
        answer = await ask(cluster, "repair")
        busy[:], auditor = answer["backlog"]["targets"], answer["auditor"]
        return bool(busy)

    await ask_until(is_repairing, HANG_S, "repair to begin")
    others = [bookie for bookie in cluster.ids("bookie") if bookie not in busy]
    victims = rng.sample(busy, len(busy)) + rng.sample(others, len(others))
    victims.insert(rng.randint(1, len(victims)), auditor)
    for victim in victims:
        await let_pass(
            rng.uniform(0.0, KILL_PAUSE_MAX_S),
            what="repair goes on until it is killed at some moment",
        )
        await asyncio.to_thread(cluster.kill, victim)
        cluster.revive(victim)
    await asyncio.to_thread(cluster.wait_ready, *victims)
