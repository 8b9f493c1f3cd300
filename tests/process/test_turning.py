"""Security is turned on and off again while a cluster runs, and no append fails.

Real processes, started anew one by one under a producer whose clients move with them. Source:
docs/protocol/turning-on.md.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from duramen.cli.main import main
from duramen.client import Client
from tests.pauses import let_pass
from tests.process.cluster import run
from tests.process.times import HANG_S
from tests.process.turning_cluster import NAME, NODES, TurningCluster

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TurningCluster]:
    made = TurningCluster(tmp_path / "c")
    try:
        yield made
    finally:
        made.stop()


class Load:
    """What was acknowledged; whatever fails ends the test."""

    def __init__(self) -> None:
        self.acked: list[bytes] = []

    @asynccontextmanager
    async def by(self, client: Client) -> AsyncIterator[None]:
        """Append by one client, as long as the block lasts, and on until its last append."""
        stop = asyncio.Event()
        appending = asyncio.create_task(self._append(client, stop))
        try:
            yield
        finally:
            stop.set()
            await appending
            await client.close()

    async def _append(self, client: Client, stop: asyncio.Event) -> None:
        async with client["default"]["log"].producer() as producer:
            while not stop.is_set():
                body = b"%d" % len(self.acked)
                await (await producer.send(body))
                self.acked.append(body)
                await let_pass(0.01, what="the pace of appends")


async def _call(cluster: TurningCluster, *arguments: str) -> int:
    """A command of an operator; it has an event loop of its own."""
    where = ("--zookeeper", cluster.zookeeper("tls"), "--cluster", NAME)
    return await asyncio.to_thread(main, [*arguments, str(cluster.identity("op")), *where])


def _report(cluster: TurningCluster, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    url = f"http://127.0.0.1:{cluster.ports['writeproxy-0']['admin']}"
    main(["security", "report", "--url", url, "--json"])
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def _list_rows(told: dict[str, Any]) -> set[tuple[str, str, str, str]]:
    return {
        (node["node"], row["port"], row["verb"], row["why"])
        for node in told["nodes"]
        for row in node["rows"] or ()
    }


@pytest.mark.timeout(HANG_S * 10)
def test_a_cluster_turns_security_on_and_off_under_appends_and_none_fails(
    cluster: TurningCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token = tmp_path / "token"
    plain = f"http://127.0.0.1:{cluster.ports['writeproxy-0']['data']}"
    secure = f"https://127.0.0.1:{cluster.ports['writeproxy-0']['tls-data']}"
    load = Load()

    def open_client(url: str) -> Client:
        return Client(url, token_file=token, ca=cluster.ca) if url == secure else Client(url)

    async def turn_all(security: Any, *but: str) -> None:
        for node in NODES:
            if node not in but:
                await asyncio.to_thread(cluster.turn, node, security)

    async def turn_on() -> None:
        async with load.by(open_client(plain)):
            await asyncio.to_thread(cluster.turn_zookeeper, "both")
            await turn_all("migrate", "readproxy-0")
            said = await asyncio.to_thread(cluster.refuse, "on")
            assert "readproxy-0 is registered with no port with TLS" in said
            told = await asyncio.to_thread(_report, cluster, capsys)
            assert ("writeproxy-0", "public", "append", "unauthenticated") in _list_rows(told)
            assert [n["node"] for n in told["nodes"] if n["security"] == "none"] == ["readproxy-0"]
            await turn_all("migrate", *[node for node in NODES if node != "readproxy-0"])
            assert await _call(cluster, "access", "apply") == 2, (
                "it would shut nobody out, and miss nodes"
            )
            assert await _call(cluster, "access", "token", "--out", str(token)) == 0
        async with load.by(open_client(secure)):
            # Once more, now that all others have TLS: each counts from its start on.
            anew = ("bookie-1", "sequencer-0", "writeproxy-0")
            await turn_all("migrate", *[node for node in NODES if node not in anew])
            told = await asyncio.to_thread(_report, cluster, capsys)
            own = ("writeproxy-0", "admin", "observe", "unknown")
            rows = {row for row in _list_rows(told) if row[0] in anew}
            assert rows <= {own}, "nobody would be refused, but who asks this"
            await turn_all("on")
            assert await _call(cluster, "access", "apply") == 0
            assert await _call(cluster, "access", "check") == 0
            await asyncio.to_thread(cluster.turn_zookeeper, "tls")

    async def turn_off() -> None:
        async with load.by(open_client(secure)):
            await asyncio.to_thread(cluster.turn_zookeeper, "both")
            said = await asyncio.to_thread(cluster.refuse, "none")
            assert "this process has no identity" in said
            assert await _call(cluster, "access", "open") == 2
            await turn_all("migrate")
            assert await _call(cluster, "access", "open") == 0
        async with load.by(open_client(plain)):
            await turn_all("none")
            await asyncio.to_thread(cluster.turn_zookeeper, "plain")

    async def scenario() -> None:
        await asyncio.to_thread(cluster.turn_zookeeper, "plain")
        await turn_all("none")
        await asyncio.to_thread(cluster.issue_all)
        async with Client(plain) as client:
            await client["default"].ensure()
            await client["default"]["log"].ensure()
        await turn_on()
        await turn_off()
        async with Client(plain) as client:
            bodies = []
            async for batch in client["default"]["log"].read("head"):
                bodies += batch.bodies
        assert bodies == load.acked, "each once, and in order"
        assert len(load.acked) > 500

    run(scenario(), timeout_s=HANG_S * 9)
