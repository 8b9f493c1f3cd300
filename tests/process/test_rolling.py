"""Rolls under load, changed configurations and work on ZooKeeper, against real processes.

Nothing acknowledged may be lost, doubled or out of order while segments end; the figures that the
tests print (longest time without an acknowledgement, rolls a second) are not judged. Longer runs:
DURAMEN_ROLLS=1000, DURAMEN_ZOOKEEPER_OUTAGE_S=600. Source: docs/protocol/write.md "Roll", R19.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from duramen.client.rest_client import RestClient
from duramen.errors import DuramenError
from tests.pauses import let_pass, look_again_soon
from tests.process.cluster import LocalCluster, create_log, run, running_plain_cluster
from tests.process.commands import duramen, run_duramen
from tests.process.copies import close_segment
from tests.process.history import NAMESPACE, History, read_log
from tests.process.times import HANG_S, SILENCE_S
from tests.ticker import running_ticker

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]

ROLL_COUNT = int(os.environ.get("DURAMEN_ROLLS", "60"))
OUTAGE_S = int(os.environ.get("DURAMEN_ZOOKEEPER_OUTAGE_S", "15"))
LOG_COUNT = 4
DELIVERED_S = 3.0
"""Who asks anew while ZooKeeper is frozen, and nobody knows yet, waits 2 s for the end
(REACH_WAIT_S) and then reads on; besides a frozen bookie's poll is doubled after 250 ms."""


class Load:
    """One writer per log that appends without a pause and notes how long each append took."""

    def __init__(self, cluster: LocalCluster, logs: list[str]) -> None:
        self.histories = [History(log) for log in logs]
        self.waits_ms: list[float] = []
        self._cluster = cluster
        self._stop = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Load]:
        """Append while the body runs; whole reads are checked at the end."""
        client = self._cluster.open_client("write_url")
        writers = [asyncio.create_task(self._write(client, h)) for h in self.histories]
        try:
            for history in self.histories:
                await history.wait_acknowledged(10)
            self.waits_ms.clear()
            yield self
            for history in self.histories:
                await history.wait_acknowledged(len(history.acknowledged) + 10)
        finally:
            self._stop.set()
            await asyncio.gather(*writers)
            await client.close()
        await asyncio.gather(*map(self._check, self.histories))

    @property
    def append_count(self) -> int:
        return sum(len(history.acknowledged) for history in self.histories)

    async def _check(self, history: History) -> None:
        assert not history.refused and not history.uncertain, history.codes
        expected = max(end for _, end in history.acknowledged.values())
        reader = self._cluster.open_client("read_url")
        bodies = await read_log(reader, history.log, expect_count=expected)
        history.check(bodies)
        assert len(bodies) == expected

    def format_waits(self) -> str:
        """Times without an acknowledgement in a log, which are those of its appends."""
        waits = sorted(self.waits_ms)
        p50, p99 = waits[len(waits) // 2], waits[len(waits) * 99 // 100]
        return (
            f"{len(waits)} appends; without an acknowledgement: "
            f"p50 {p50:.0f} ms, p99 {p99:.0f} ms, at most {waits[-1]:.0f} ms"
        )

    async def _write(self, client: RestClient, history: History) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            assert await history.append(client), history.codes
            self.waits_ms.append(1000 * (time.monotonic() - began))


class Waiter:
    """Reads a log on from its newest record and waits there; notes when it got each record."""

    def __init__(self, cluster: LocalCluster, log: str) -> None:
        self.got_s: dict[int, float] = {}
        self.refusals: list[str] = []
        self._url = f"{cluster.state()['read_url']}/v1/namespaces/{NAMESPACE}/logs/{log}/records"
        self._headers = cluster.read_headers()
        self._stop = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Waiter]:
        """Read while the body runs."""
        client = httpx.AsyncClient(timeout=HANG_S, trust_env=False, headers=self._headers)
        async with client as http:
            reading = asyncio.create_task(self._read(http))
            try:
                yield self
            finally:
                self._stop.set()
                await reading

    async def _read(self, http: httpx.AsyncClient) -> None:
        begin = "tail"
        while not self._stop.is_set():
            answer = await http.get(self._url, params={"from": begin, "wait": "1s"})
            if answer.status_code != 200:
                self.refusals.append(answer.text)
                await look_again_soon()
                continue
            begin = answer.json()["next"]
            now_s = time.monotonic()
            for record in answer.json()["records"]:
                self.got_s[record["seq_num"]] = now_s


class Roller:
    """Rolls logs through the public REST and waits for each roll at the owner."""

    def __init__(self, cluster: LocalCluster, ids: dict[str, str]) -> None:
        self._ids = ids
        self._client = cluster.open_client("write_url")
        self._http = httpx.AsyncClient(timeout=30, verify=cluster.trust_admin_ports())
        self._admin_url = cluster.process("sequencer-0")["admin_url"]

    async def roll(self, log: str, count: int) -> None:
        for _ in range(count):
            epoch = await self._client.roll_log(NAMESPACE, log)
            assert epoch is not None, "no segment is open: there was no load"
            while await self._is_open(log, epoch):
                await look_again_soon()

    async def close(self) -> None:
        await self._client.close()
        await self._http.aclose()

    async def _is_open(self, log: str, epoch: int) -> bool:
        answer = await self._http.get(f"{self._admin_url}/v1/logs/{self._ids[log]}")
        return answer.json()["epoch"] in (epoch, None)


async def _segments(cluster: LocalCluster, log: str) -> list[dict[str, Any]]:
    client = cluster.open_client("read_url")
    try:
        segments: list[dict[str, Any]] = (await client.list_segments(NAMESPACE, log))["segments"]
        return segments
    finally:
        await client.close()


@pytest.mark.timeout(300 + ROLL_COUNT)
def test_rolls_under_load_lose_double_and_stall_nothing(shared_cluster: LocalCluster) -> None:
    cluster = shared_cluster

    async def scenario() -> None:
        logs = [f"rolled-{i}" for i in range(LOG_COUNT)]
        ids = {log: await create_log(cluster, log, {}) for log in logs}
        load = Load(cluster, logs)
        roller = Roller(cluster, ids)
        async with load.running():
            began = time.monotonic()
            await asyncio.gather(*(roller.roll(log, ROLL_COUNT // LOG_COUNT) for log in logs))
            took_s = time.monotonic() - began
            print(
                f"{ROLL_COUNT} rolls of {LOG_COUNT} logs in {took_s:.1f} s "
                f"({ROLL_COUNT / took_s:.1f}/s), {load.format_waits()}"
            )
        await roller.close()
        segment_count = sum([len(await _segments(cluster, log)) for log in logs])
        assert segment_count >= ROLL_COUNT

    run(scenario(), timeout_s=250 + ROLL_COUNT)


def test_a_changed_configuration_is_in_force_after_a_roll_of_its_own(tmp_path: Path) -> None:
    with running_plain_cluster(tmp_path / "c", "--sequencers", "2") as cluster:

        async def scenario() -> None:
            await create_log(cluster, "changed", {})
            client = cluster.open_client("write_url")
            async with Load(cluster, ["changed"]).running() as load:
                answer = await client.reconfigure_log(
                    NAMESPACE, "changed", {"replication": {"ack_quorum": 3}}, version=1
                )
                assert answer["config"]["replication"]["ack_quorum"] == 3
                assert answer["config_version"] == 2 and answer["changed"]
                async with asyncio.timeout(HANG_S):
                    while (await _segments(cluster, "changed"))[-1]["ack_quorum"] != 3:
                        await look_again_soon()
                with pytest.raises(DuramenError, match="config_conflict"):
                    await client.reconfigure_log(NAMESPACE, "changed", {}, version=1)
                patch = '{"retention": {"age": null}}'
                log = "default/changed"
                again = await asyncio.to_thread(
                    duramen, cluster, "log", "reconfigure", log, "--config", patch
                )
                assert again["config_version"] == 3 and again["config"]["retention"]["age"] is None
                count = len(load.histories[0].acknowledged)
                await load.histories[0].wait_acknowledged(count + 50)
                assert [s["ack_quorum"] for s in await _segments(cluster, "changed")] == [2, 3]
                done = await asyncio.to_thread(duramen, cluster, "log", "roll", log)
                assert done == {"log": log, "epoch": 2}
                async with asyncio.timeout(HANG_S):
                    while len(await _segments(cluster, "changed")) != 3:
                        await look_again_soon()
            await client.close()

        run(scenario())


def test_a_log_that_commits_by_control_entries_is_read_whole(shared_cluster: LocalCluster) -> None:
    cluster = shared_cluster

    async def scenario() -> None:
        config = {"commit": "control", "flush": {"policy": "periodic"}}
        await create_log(cluster, "control", config)
        client = cluster.open_client("write_url")
        history = History("control")
        for _ in range(20):
            # A reader that waits is woken by the control entry, for nothing else follows.
            assert await history.append(client), history.codes
            expected = max(end for _, end in history.acknowledged.values())
            bodies = await read_log(
                cluster.open_client("read_url"), "control", expect_count=expected
            )
            history.check(bodies)
            assert len(bodies) == expected
        await close_segment(cluster, "control")
        assert await history.append(client)
        history.check(await read_log(cluster.open_client("read_url"), "control", expect_count=63))
        first = (await _segments(cluster, "control"))[0]
        assert first["records"] == 60 and first["last_entry"] >= 30, "control entries are there"
        reader = cluster.open_client("read_url")
        for number, (start, _) in history.acknowledged.items():
            answer = await reader.read(NAMESPACE, "control", f"seq:{start}", most_bytes=1)
            assert answer.batches[0].seq_num == start, number
        await reader.close()
        await client.close()

    run(scenario())


@pytest.mark.quiet
@pytest.mark.night
@pytest.mark.timeout(300 + OUTAGE_S)
def test_with_rolling_suspended_a_log_goes_on_without_zookeeper(tmp_path: Path) -> None:
    """Appends, and who waits for them: both need nothing that ZooKeeper has to say."""
    flags = ("--bookies", "4", "--no-restart")
    with (
        running_plain_cluster(tmp_path / "c", *flags) as cluster,
        running_ticker(tmp_path) as ticker,
    ):

        async def scenario() -> None:
            await create_log(cluster, "maintained", {"roll": {"interval": "5s"}})
            async with (
                Load(cluster, ["maintained"]).running() as load,
                Waiter(cluster, "maintained").running() as waiter,
            ):
                answer = await _maintenance(cluster, "on")
                assert answer["is_settled"] and answer["rolling_suspended"], answer
                (segment,) = (await _segments(cluster, "maintained"))[-1:]
                cluster.send("zookeeper-0", signal.SIGSTOP)
                try:
                    victim = segment["fragments"][-1]["ensemble"][0]["bookie"]
                    await asyncio.to_thread(cluster.kill, victim)
                    load.waits_ms.clear()
                    began_s = time.monotonic()
                    await let_pass(OUTAGE_S, what="no ZooKeeper and one bookie less")
                finally:
                    ended_s = time.monotonic()
                    cluster.send("zookeeper-0", signal.SIGCONT)
                # Both other members must have every append now: a slow sync is the machine's.
                silences = load.histories[0].silences(began_s, ended_s)
                assert ticker.longest_s(silences) < SILENCE_S
                assert not waiter.refusals
                history = load.histories[0]
                acked_s = zip(history.acknowledged.values(), history.acked_s, strict=True)
                waits = [
                    (at_s, waiter.got_s.get(end - 1, math.inf))
                    for (_, end), at_s in acked_s
                    if began_s < at_s < ended_s - DELIVERED_S
                ]
                assert max(ticker.longest_s(wait) for wait in waits) < DELIVERED_S
                print(f"{OUTAGE_S} s without ZooKeeper, a bookie killed: {load.format_waits()}")
                segments = await _wait_segments(cluster, "maintained")
                assert segments[-1]["epoch"] == segment["epoch"], "nothing has rolled"
                assert len(segments[-1]["fragments"]) == len(segment["fragments"])
                answer = await _resume_rolling(cluster)
                assert not answer["rolling_suspended"], answer
                async with asyncio.timeout(HANG_S):
                    while len(await _wait_segments(cluster, "maintained")) == segment["epoch"]:
                        await look_again_soon()

        run(scenario(), timeout_s=250 + OUTAGE_S)


async def _maintenance(cluster: LocalCluster, state: str) -> dict[str, Any]:
    return await asyncio.to_thread(duramen, cluster, "maintenance", state)


async def _resume_rolling(cluster: LocalCluster) -> dict[str, Any]:
    """As told to whoever is answered "not settled", repeat it: sequencers are registering anew."""
    async with asyncio.timeout(HANG_S):
        while True:
            done = await asyncio.to_thread(run_duramen, cluster, "maintenance", "off")
            assert done.returncode in {0, 1}, done.stderr.decode()
            answer: dict[str, Any] = json.loads(done.stdout)
            if answer["is_settled"]:
                return answer
            assert done.returncode == 1, answer


async def _wait_segments(cluster: LocalCluster, log: str) -> list[dict[str, Any]]:
    """The segments, once the read proxy has its session again."""
    async with asyncio.timeout(HANG_S):
        while True:
            try:
                return await _segments(cluster, log)
            except DuramenError as error:
                if error.code != "metadata_unavailable":
                    raise
