"""Connections that somebody opened and left open shut no port to those who come later.

1,100 of them to a sequencer, and 4,200 to a proxy, once did. They speak HTTP/2 as far as its
preface and then nothing, so that only the limits count. Source: docs/protocol/wire.md "Limits".
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest

from duramen.client.rest_client import RestClient
from duramen.runtime.edge.port_sockets import count_connections
from tests.component.raw_http import PREFACE
from tests.process.cluster import create_log, run, running_plain_cluster
from tests.process.history import History

# Quiet: what looks connections up in /proc has ten thousand more to read meanwhile.
pytestmark = [
    pytest.mark.process,
    pytest.mark.zookeeper,
    pytest.mark.quiet,
    pytest.mark.usefixtures("many_files"),
]

IDLE: Final = {"sequencer-0": 1_200, "writeproxy-0": 4_300, "readproxy-0": 4_300}
AT_ONCE: Final = 100


@asynccontextmanager
async def idle_connections(url: str, count: int) -> AsyncIterator[None]:
    """So many connections, whose server has answered the preface of each."""
    at = urlsplit(url)
    room = asyncio.Semaphore(AT_ONCE)
    writers: list[asyncio.StreamWriter] = []

    async def open_one() -> None:
        async with room:
            reader, writer = await asyncio.open_connection(at.hostname, at.port)
            writers.append(writer)
            writer.write(PREFACE)
            await reader.readexactly(9)

    try:
        await asyncio.gather(*(open_one() for _ in range(count)))
        yield
    finally:
        for writer in writers:
            writer.close()


def test_idle_connections_shut_nobody_out(tmp_path: Path) -> None:
    with running_plain_cluster(tmp_path / "c", "--sequencers", "1") as cluster:

        async def scenario() -> None:
            await create_log(cluster, "busy", {})
            history = History("busy")
            async with contextlib.AsyncExitStack() as stack:
                for node_id, count in IDLE.items():
                    url = cluster.process(node_id)["data_url"]
                    await stack.enter_async_context(idle_connections(url, count))
                client = RestClient(cluster.process("writeproxy-0")["data_url"])
                assert await history.append(client), history.failed
                await client.close()
                for node_id, count in IDLE.items():
                    url = urlsplit(cluster.process(node_id)["data_url"])
                    assert url.port is not None
                    accepted, waiting = count_connections(url.port) or (0, 0)
                    assert accepted >= count and waiting == 0, (node_id, accepted, waiting)
                reader = RestClient(cluster.process("readproxy-0")["data_url"])
                assert await reader.find_tail("default", "busy") == 3
                await reader.close()

        run(scenario())
