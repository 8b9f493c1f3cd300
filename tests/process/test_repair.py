"""Repair and drain among real processes: a bookie is lost for good, another is emptied by the CLI.

What is where is asked of the auditor through a write proxy, as the CLI does; that nothing is lost
is seen by a complete read at the end. Source: docs/protocol/repair.md.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from duramen.client.rest_client import RestClient
from duramen.errors import DuramenError
from duramen.runtime.http_client import PeerError
from tests.pauses import look_again_soon
from tests.process.cluster import LocalCluster, create_log, run, running_plain_cluster
from tests.process.copies import close_segment
from tests.process.history import History, read_log
from tests.process.times import HANG_S, SETTLED_S
from tests.ticker import running_ticker
from tests.waiting import wait_in_thread

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]

LOG = "kept"
FLAGS = ("--bookies", "5", "--no-restart")
HURRIED = ["--lost-bookie-grace", "2s", "--audit-interval", "1s"]


async def ask(cluster: LocalCluster, path: str) -> dict[str, Any]:
    client = RestClient(cluster.state()["admin_url"])
    try:
        return await client.get_json(f"/v1/cluster/{path}")
    finally:
        await client.close()


async def ask_for(cluster: LocalCluster, path: str, condition: Any) -> dict[str, Any]:
    """Ask until the answer is as wanted; what cannot be asked now is asked again."""
    async with asyncio.timeout(HANG_S):
        while True:
            try:
                answer = await ask(cluster, path)
                if condition(answer):
                    return answer
            except (DuramenError, PeerError):
                pass
            await look_again_soon()


async def write(cluster: LocalCluster, history: History, rounds: int) -> None:
    """Some appends and a roll, so many times."""
    client = RestClient(cluster.state()["write_url"])
    try:
        for _ in range(rounds):
            mark = len(history.acknowledged)
            while len(history.acknowledged) < mark + 5:
                await history.append(client)
            await close_segment(cluster, history.log)
    finally:
        await client.close()


def copies_of(answer: dict[str, Any], name: str) -> int:
    return next(int(one["copies"]) for one in answer["bookies"] if one["bookie"] == name)


def command(cluster: LocalCluster, *words: str) -> subprocess.CompletedProcess[str]:
    url = cluster.state()["admin_url"]
    line = [sys.executable, "-m", "duramen.cli.main", *words, "--url", url]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=90)


async def wait_quiet(cluster: LocalCluster) -> None:
    """Everything that has ended by now is proved, and nothing waits."""
    since_ms = time.time_ns() // 1_000_000
    await ask_for(
        cluster,
        "repair",
        lambda a: (
            a["last_round"] is not None
            and a["last_round"]["began_unix_ms"] > since_ms
            and a["last_round"]["whole"]
            and a["last_round"]["unproved_fragments"] == 0
            and a["backlog"]["tasks"] == 0
        ),
    )


def check_grants(cluster: LocalCluster, first: str, second: str) -> None:
    """Of two bookies one may be restarted, and then the other."""
    ask = ("--kind", "restart", "--take", "--json")
    taken = command(cluster, "disruption", first, *ask)
    assert taken.returncode == 0, taken.stdout + taken.stderr
    denied = command(cluster, "disruption", second, *ask)
    assert denied.returncode == 1
    assert [one["code"] for one in json.loads(denied.stdout)["reasons"]] == ["granted"]
    token = json.loads(taken.stdout)["grant"]["token"]
    listed = command(cluster, "disruptions", "--json")
    assert [one["token"] for one in json.loads(listed.stdout)["grants"]] == [token]
    assert command(cluster, "disruptions", "--end", token).returncode == 0
    granted = command(cluster, "disruption", second, *ask)
    assert granted.returncode == 0, granted.stdout
    ended = command(cluster, "disruptions", "--end", json.loads(granted.stdout)["grant"]["token"])
    assert ended.returncode == 0


def test_a_lost_bookie_is_replaced_and_another_is_emptied(tmp_path: Path) -> None:
    with (
        running_plain_cluster(tmp_path / "c", *FLAGS) as cluster,
        running_ticker(tmp_path) as ticker,
    ):
        history = History(LOG)
        (sequencer,) = cluster.ids("sequencer")
        lost, emptied = cluster.ids("bookie")[:2]

        async def lose_one() -> None:
            await create_log(cluster, LOG, {})
            cluster.kill(sequencer)
            cluster.revive(sequencer, lambda line: [*line, *HURRIED])
            await write(cluster, history, 8)
            await wait_quiet(cluster)
            before = await ask(cluster, "repair/bookies")
            assert sum(one["copies"] for one in before["bookies"]) >= 8 * 3
            check_grants(cluster, lost, emptied)
            cluster.kill(lost)
            killed_s = time.monotonic()
            await ask_for(cluster, "repair/bookies", lambda a: copies_of(a, lost) == 0)
            ticker.require_within(killed_s, SETTLED_S, "all copies of a lost bookie made anew")
            await wait_quiet(cluster)

        run(lose_one())
        denied = command(cluster, "disruption", emptied, "--kind", "remove", "--json")
        assert denied.returncode == 1 and not json.loads(denied.stdout)["allowed"]
        run(write(cluster, history, 1))
        drained = command(cluster, "drain", emptied, "--wait", "--json")
        assert drained.returncode == 0, drained.stderr
        assert json.loads(drained.stdout)["duty"] == "drained"

        def is_allowed() -> bool:
            return command(cluster, "disruption", emptied, "--kind", "remove").returncode == 0

        wait_in_thread(is_allowed, HANG_S, "an auditor that is sure of it")
        cluster.kill(emptied)

        async def read_all() -> list[bytes]:
            expected = max(end for _, end in history.acknowledged.values())
            return await read_log(cluster.state()["read_url"], LOG, expect_count=expected)

        history.check(run(read_all()))
