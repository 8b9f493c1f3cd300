"""What must hold when processes die: nothing acknowledged is lost, doubled or out of order.

Each test starts its own cluster, appends through the public REST while it kills, and reads the log
back whole. A run in which the fault or the load did not happen fails: it would prove nothing.
"""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from duramen.client.rest_client import RestClient
from tests.pauses import let_pass, look_again_soon
from tests.process.cluster import LocalCluster, create_log, run, running_plain_cluster
from tests.process.history import History, read_log
from tests.process.times import FAILOVER_S, HANG_S, SILENCE_S
from tests.ticker import running_ticker

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]

PACE_S = 0.02
"""Of a load that is to see every gap of a second, and need not keep a processor busy for that."""


async def _append_while(
    cluster: LocalCluster, history: History, fault: Any, *, rest_s: float = 0.0
) -> None:
    """Append while `fault` (a coroutine) runs, and a little before and after."""
    client = RestClient(cluster.state()["write_url"])
    stop = asyncio.Event()
    writer = asyncio.create_task(history.append_until(client, stop, rest_s=rest_s))
    try:
        await history.wait_acknowledged(20)
        await fault
        await history.wait_acknowledged(len(history.acknowledged) + 20)
    finally:
        stop.set()
        await writer
        await client.close()


async def _check(cluster: LocalCluster, history: History) -> list[bytes]:
    expected = max(end for _, end in history.acknowledged.values())
    bodies = await read_log(cluster.state()["read_url"], history.log, expect_count=expected)
    history.check(bodies)
    return bodies


async def _segments(cluster: LocalCluster, log: str) -> list[dict[str, Any]]:
    client = RestClient(cluster.state()["read_url"])
    try:
        segments: list[dict[str, Any]] = (await client.list_segments("default", log))["segments"]
        return segments
    finally:
        await client.close()


def _ensemble(segment: dict[str, Any]) -> list[str]:
    return [member["bookie"] for member in segment["fragments"][-1]["ensemble"]]


def test_bookie_killed_with_a_spare_changes_the_ensemble(tmp_path: Path) -> None:
    with running_plain_cluster(tmp_path / "c", "--bookies", "4", "--no-restart") as cluster:

        async def scenario() -> None:
            await create_log(cluster, "spare", {})
            history = History("spare")

            async def fault() -> None:
                victim = _ensemble((await _segments(cluster, "spare"))[-1])[0]
                await asyncio.to_thread(cluster.kill, victim)
                await history.wait_acknowledged(len(history.acknowledged) + 50)
                async with asyncio.timeout(HANG_S):
                    while victim in _ensemble((await _segments(cluster, "spare"))[-1]):
                        await look_again_soon()

            await _append_while(cluster, history, fault())
            assert not history.uncertain, history.codes
            assert not history.refused, history.codes
            await _check(cluster, history)
            segments = await _segments(cluster, "spare")
            assert len(segments) == 1
            assert len(segments[0]["fragments"]) >= 2

        run(scenario())


def test_bookie_killed_without_a_spare_is_suspended_and_catches_up(tmp_path: Path) -> None:
    with running_plain_cluster(tmp_path / "c", "--no-restart") as cluster:

        async def held(ledger_id: int) -> list[list[list[int]]]:
            ranges = []
            async with httpx.AsyncClient(timeout=30) as http:
                for node_id in cluster.ids("bookie"):
                    url = cluster.process(node_id)["admin_url"]
                    answer = await http.get(f"{url}/v1/ledgers/{ledger_id}/entries")
                    ranges.append(answer.json()["ranges"])
            return ranges

        async def scenario() -> None:
            log_id = int(await create_log(cluster, "suspended", {}))
            history = History("suspended")

            async def fault() -> None:
                await asyncio.to_thread(cluster.kill, "bookie-1")
                await history.wait_acknowledged(len(history.acknowledged) + 200)
                cluster.revive("bookie-1")
                await asyncio.to_thread(cluster.wait_ready, "bookie-1")

            await _append_while(cluster, history, fault())
            assert not history.uncertain, history.codes
            assert not history.refused, history.codes
            async with asyncio.timeout(HANG_S):
                while True:
                    ranges = await held(log_id << 32 | 1)
                    if ranges[0] == ranges[1] == ranges[2] and len(ranges[0]) == 1:
                        break
            assert ranges[0][0][0] == 0
            await _check(cluster, history)
            segments = await _segments(cluster, "suspended")
            assert [len(s["fragments"]) for s in segments] == [1]

        run(scenario())


def test_two_of_three_bookies_killed_waits_fails_clearly_and_goes_on(tmp_path: Path) -> None:
    with running_plain_cluster(tmp_path / "c", "--no-restart") as cluster:

        async def scenario() -> None:
            await create_log(cluster, "two", {})
            history = History("two")

            async def fault() -> None:
                await asyncio.to_thread(cluster.kill, "bookie-0")
                await asyncio.to_thread(cluster.kill, "bookie-2")
                await history.wait_failed(len(history.codes) + 1)
                assert set(history.codes) <= {"append_uncertain", "not_enough_bookies"}
                cluster.revive("bookie-2")

            await _append_while(cluster, history, fault())
            assert history.codes, "no append failed: the fault had no effect"
            await _check(cluster, history)

        run(scenario())


@pytest.mark.parametrize("sequencers", [pytest.param(1, marks=pytest.mark.night), 2])
def test_sequencer_killed_in_mid_run(tmp_path: Path, sequencers: int) -> None:
    flags = ["--sequencers", str(sequencers)]
    if sequencers == 2:
        flags.append("--no-restart")
    with (
        running_plain_cluster(tmp_path / "c", *flags) as cluster,
        running_ticker(tmp_path) as ticker,
    ):

        async def owner(log_id: str) -> str:
            async with httpx.AsyncClient(timeout=30) as http:
                for node_id in cluster.ids("sequencer"):
                    logs = await http.get(cluster.process(node_id)["admin_url"] + "/v1/logs")
                    if any(x["log_id"] == log_id and x["epoch"] for x in logs.json()):
                        return node_id
            raise AssertionError("nobody owns the log")

        async def scenario() -> None:
            log_id = await create_log(cluster, "owner", {})
            history, killed_s = History("owner"), []

            async def fault() -> None:
                victim = await owner(log_id)
                killed_s.append(time.monotonic())
                await asyncio.to_thread(cluster.kill, victim)

            await _append_while(cluster, history, fault())
            silent_s = ticker.longest_s(history.silences(killed_s[0], history.acked_s[-1]))
            print(f"{sequencers} sequencers, one killed: {silent_s:.2f} s without acknowledgement")
            if sequencers == 2:  # a process that starts again needs the CPU that it needs
                assert silent_s < FAILOVER_S
            bodies = await _check(cluster, history)
            assert len(bodies) >= 3 * len(history.acknowledged)
            segments = await _segments(cluster, "owner")
            assert len(segments) >= 2, "no new epoch: the fault had no effect"
            assert [s["epoch"] for s in segments] == list(range(1, len(segments) + 1))
            assert all(s["state"] == "CLOSED" for s in segments[:-1])
            closed = [s for s in segments if s["state"] == "CLOSED"]
            counts = [s["records"] for s in closed]
            assert [s["start_seq_num"] for s in segments] == [
                sum(counts[:i]) for i in range(len(segments))
            ]

        run(scenario())


def test_everything_killed_at_once_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "c", "--security", "none")
    cluster.start()
    histories = [History(f"all-{i}") for i in range(3)]

    async def before() -> None:
        client = RestClient(cluster.state()["write_url"])
        stop = asyncio.Event()
        for history in histories:
            await create_log(cluster, history.log, {})
        writers = [asyncio.create_task(h.append_until(client, stop)) for h in histories]
        for history in histories:
            await history.wait_acknowledged(100)
        await asyncio.to_thread(cluster.kill_everything)
        stop.set()
        await asyncio.gather(*writers)
        await client.close()

    run(before())
    with running_plain_cluster(tmp_path / "c") as again:

        async def after() -> None:
            for history in histories:
                await _check(again, history)
                client = RestClient(again.state()["write_url"])
                async with asyncio.timeout(HANG_S):
                    while not await history.append(client):
                        await look_again_soon()
                await client.close()
                await _check(again, history)

        run(after())


def test_zookeeper_stopped_for_20_s_does_not_stop_appends(tmp_path: Path) -> None:
    with running_plain_cluster(tmp_path / "c") as cluster, running_ticker(tmp_path) as ticker:

        async def scenario() -> None:
            await create_log(cluster, "zookeeper", {})
            history = History("zookeeper")

            async def fault() -> None:
                cluster.send("zookeeper-0", signal.SIGSTOP)
                began_s = time.monotonic()
                try:
                    await let_pass(20, what="ZooKeeper stands still, beyond every session")
                finally:
                    ended_s = time.monotonic()
                    cluster.send("zookeeper-0", signal.SIGCONT)
                silent_s = ticker.longest_s(history.silences(began_s, ended_s))
                print(f"longest time without an acknowledgement: {silent_s:.3f} s")
                assert silent_s < SILENCE_S

            await _append_while(cluster, history, fault(), rest_s=PACE_S)
            assert not history.uncertain, history.codes
            assert not history.refused, history.codes
            await _check(cluster, history)
            assert len(await _segments(cluster, "zookeeper")) == 1

        run(scenario())
