"""Security is turned on where half of the processes are of the version before `migrate`, and back.

Those with `none` are taken out of git, as they were before; what is turned is of this tree. A
cluster is upgraded process by process by `migrate` itself, and no append fails on the way; nor on
the way back to the older version. Not in the gate: `pytest tests/process/test_mixed_versions.py`.
Source: docs/protocol/turning-on.md "What is registered".
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from duramen.cli.main import main
from duramen.client import Client
from tests.bench.compare.sides import ROOT, check_out, find_commit, find_roots
from tests.process.cluster import run
from tests.process.times import HANG_S
from tests.process.turning_cluster import NAME, NODES, Security, TurningCluster
from tests.process.turning_load import Load

pytestmark = [
    pytest.mark.night,
    pytest.mark.process,
    pytest.mark.zookeeper,
    pytest.mark.timeout(HANG_S * 10),
]

_FIRST_OF_MIGRATE: Final = "libs/common/duramen/runtime/turning/tally.py"


def find_older() -> str:
    """The last commit that knows no `migrate`."""
    command = ["git", "-C", str(ROOT), "log", "--diff-filter=A", "--format=%H", "HEAD", "--"]
    told = subprocess.run([*command, _FIRST_OF_MIGRATE], capture_output=True, text=True, check=True)
    return find_commit(f"{told.stdout.split()[-1]}^")


class MixedCluster(TurningCluster):
    """With `none` its processes are older."""

    def __init__(self, folder: Path, older: Path) -> None:
        super().__init__(folder)
        roots = os.pathsep.join(map(str, find_roots(older)))
        self.older = {"PYTHONPATH": roots, "PYTHONSAFEPATH": "1"}

    def knows_streams(self, security: Security) -> bool:
        return security != "none"

    def environment(self, security: Security) -> dict[str, str]:
        return self.older if security == "none" else {}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MixedCluster]:
    check_out(find_older(), tmp_path / "older")
    made = MixedCluster(tmp_path / "c", tmp_path / "older")
    try:
        yield made
    finally:
        made.stop()


def test_an_older_version_is_turned_on_and_back_and_no_append_fails(
    cluster: MixedCluster, tmp_path: Path
) -> None:
    code = "import duramen.runtime.service as frame; print(frame.__file__)"
    told = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | cluster.older,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    frame = Path(told.stdout.strip())
    assert frame.is_relative_to(tmp_path / "older") and "migrate" not in frame.read_text()
    ports, token = cluster.ports["writeproxy-0"], tmp_path / "token"
    plain, secure = (
        f"{s}://127.0.0.1:{ports[k]}" for s, k in (("http", "data"), ("https", "tls-data"))
    )
    load = Load()

    def open_client(url: str) -> Client:
        if url == plain:
            return Client(url)
        return Client(url, token_file=token, ca=cluster.ca)

    async def read_whole(url: str) -> list[bytes]:
        async with open_client(url) as client:
            reading = client["default"]["log"].read("head")
            return [body async for batch in reading for body in batch.bodies]

    async def turn(security: Security, *nodes: str) -> None:
        """One after the other; what is acknowledged is read, by old and new ones together."""
        for node in nodes:
            await asyncio.to_thread(cluster.turn, node, security)
            acked = len(load.acked)
            # In plain text a proxy with `migrate` names no client to one with `on`.
            is_named = token.exists() and cluster.security["writeproxy-0"] != "none"
            url = secure if is_named else plain
            assert (await read_whole(url))[:acked] == load.acked[:acked], (node, security)

    async def call(*words: str) -> int:
        where = ("--zookeeper", cluster.zookeeper("tls"), "--cluster", NAME)
        return await asyncio.to_thread(main, [*words, str(cluster.identity("op")), *where])

    async def scenario() -> None:
        await asyncio.to_thread(cluster.turn_zookeeper, "plain")
        for node in NODES:
            await asyncio.to_thread(cluster.turn, node, "none")
        await asyncio.to_thread(cluster.issue_all)
        async with Client(plain) as client:
            await client["default"].ensure()
            await client["default"]["log"].ensure()
        async with load.by(open_client(plain)):
            await asyncio.to_thread(cluster.turn_zookeeper, "both")
            first = "bookie-0"
            await turn("migrate", first, "sequencer-0")
            await turn("none", first, "sequencer-0")  # an upgrade that is given up for now
            await turn("migrate", *NODES)
            assert await call("access", "token", "--out", str(token)) == 0
        async with load.by(open_client(secure)):
            await turn("on", *NODES)
            assert await call("access", "apply") == 0
            await turn("migrate", *NODES)
            assert await call("access", "open") == 0
        async with load.by(open_client(plain)):
            await turn("none", *NODES)
        assert await read_whole(plain) == load.acked, "each once, and in order"
        assert len(load.acked) > 500

    run(scenario(), timeout_s=HANG_S * 9)
