"""Security is turned on and off again while a cluster runs, and no append fails.

Real processes, started anew one by one under a producer whose clients move with them: fifty starts,
four minutes of the gate, so it is played at night. Source: docs/protocol/turning-on.md.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from duramen.cli.cluster.reach import reach
from duramen.cli.main import main
from duramen.client import Client
from duramen.runtime.turning.fitting import find_parents
from duramen.wire.metadata_json import Paths
from tests.process.cluster import run
from tests.process.times import HANG_S
from tests.process.turning_cluster import NAME, NODES, Ports, Security, TurningCluster
from tests.process.turning_load import Load
from tests.waiting import comes_true

pytestmark = [pytest.mark.process, pytest.mark.zookeeper, pytest.mark.night]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TurningCluster]:
    made = TurningCluster(tmp_path / "c")
    try:
        yield made
    finally:
        made.stop()


class Turns:
    """A cluster, who appends to it, and what is asked of it on the way."""

    def __init__(self, cluster: TurningCluster, token: Path) -> None:
        self.cluster = cluster
        self.load = Load()
        self.token = token
        ports = cluster.ports["writeproxy-0"]
        self.plain = f"http://127.0.0.1:{ports['data']}"
        self.secure = f"https://127.0.0.1:{ports['tls-data']}"
        self._admin = f"http://127.0.0.1:{ports['admin']}"

    def open_client(self, url: str) -> Client:
        if url == self.plain:
            return Client(url)
        return Client(url, token_file=self.token, ca=self.cluster.ca)

    async def turn(self, security: Security, *nodes: str) -> None:
        for node in nodes:
            await asyncio.to_thread(self.cluster.turn, node, security)

    async def turn_zookeeper(self, ports: Ports) -> None:
        await asyncio.to_thread(self.cluster.turn_zookeeper, ports)

    async def refuse(self, security: Security) -> str:
        return await asyncio.to_thread(self.cluster.refuse, security)

    async def call(self, *arguments: str) -> int:
        """A command of an operator; it has an event loop of its own."""
        where = ("--zookeeper", self.cluster.zookeeper("tls"), "--cluster", NAME)
        operator = str(self.cluster.identity("op"))
        return await asyncio.to_thread(main, [*arguments, operator, *where])

    async def wait_registered(self) -> None:
        """Until ZooKeeper knows every process again."""
        hosts, operator = self.cluster.zookeeper("tls"), self.cluster.identity("op")
        async with reach(hosts, operator) as (store, _):

            async def are_there() -> bool:
                parents = find_parents(Paths(NAME)).values()
                found = [await store.children(parent) or () for parent in parents]
                return {name for names in found for name in names} >= set(NODES)

            assert await comes_true(are_there, HANG_S), "a process is not registered"

    async def report(self, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
        capsys.readouterr()
        command = ["security", "report", "--url", self._admin, "--json"]
        await asyncio.to_thread(main, command)
        told: dict[str, Any] = json.loads(capsys.readouterr().out)
        return told

    async def read_whole(self, url: str) -> list[bytes]:
        """By the write proxy, which sends it on to the read proxy."""
        bodies: list[bytes] = []
        async with self.open_client(url) as client:
            async for batch in client["default"]["log"].read("head"):
                bodies += batch.bodies
        return bodies


def _list_rows(told: dict[str, Any]) -> set[tuple[str, str, str, str]]:
    return {
        (node["node"], row["port"], row["verb"], row["why"])
        for node in told["nodes"]
        for row in node["rows"] or ()
    }


async def _begin(turns: Turns) -> None:
    await turns.turn_zookeeper("plain")
    await turns.turn("none", *NODES)
    await asyncio.to_thread(turns.cluster.issue_all)
    async with Client(turns.plain) as client:
        await client["default"].ensure()
        await client["default"]["log"].ensure()


async def _migrate(turns: Turns, capsys: pytest.CaptureFixture[str]) -> None:
    *first, last = NODES
    await turns.turn_zookeeper("both")
    await turns.turn("migrate", *first)
    assert f"{last} is registered with no port with TLS" in await turns.refuse("on")
    told = await turns.report(capsys)
    assert ("writeproxy-0", "public", "append", "unauthenticated") in _list_rows(told)
    assert [node["node"] for node in told["nodes"] if node["security"] == "none"] == [last]
    await turns.turn("migrate", last)
    assert await turns.call("access", "apply") == 2, "what is made next would be left open"
    assert await turns.call("access", "token", "--out", str(turns.token)) == 0


async def _turn_on(turns: Turns, capsys: pytest.CaptureFixture[str]) -> None:
    # Once more, now that all others have TLS: each counts from its start on.
    anew = ("bookie-1", "sequencer-0", "writeproxy-0")
    await turns.turn("migrate", *anew)
    told = await turns.report(capsys)
    own = ("writeproxy-0", "admin", "observe", "unknown")
    rows = {row for row in _list_rows(told) if row[0] in anew}
    assert rows <= {own}, "nobody would be refused, but who asks this"
    assert await turns.read_whole(turns.plain) and await turns.read_whole(turns.secure)
    await turns.turn("on", *NODES)
    assert await turns.call("access", "apply") == 0
    assert await turns.call("access", "check") == 0
    assert await turns.read_whole(turns.secure)
    await turns.turn_zookeeper("tls")


async def _turn_back(turns: Turns) -> None:
    await turns.turn_zookeeper("both")
    assert "this process has no identity" in await turns.refuse("none")
    # It goes by who is registered, and sessions may end while a slow machine starts ZooKeeper anew.
    await turns.wait_registered()
    assert await turns.call("access", "open") == 2
    await turns.turn("migrate", *NODES)
    assert await turns.call("access", "open") == 0


async def _turn_off(turns: Turns) -> None:
    await turns.turn("none", *NODES)
    await turns.turn_zookeeper("plain")


@pytest.mark.timeout(HANG_S * 10)
def test_a_cluster_turns_security_on_and_off_under_appends_and_none_fails(
    cluster: TurningCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turns = Turns(cluster, tmp_path / "token")
    load = turns.load

    async def scenario() -> None:
        await _begin(turns)
        async with load.by(turns.open_client(turns.plain)):
            await _migrate(turns, capsys)
        async with load.by(turns.open_client(turns.secure)):
            await _turn_on(turns, capsys)
            await _turn_back(turns)
        async with load.by(turns.open_client(turns.plain)):
            await _turn_off(turns)
        assert await turns.read_whole(turns.plain) == load.acked, "each once, and in order"
        assert len(load.acked) > 500

    run(scenario(), timeout_s=HANG_S * 9)
