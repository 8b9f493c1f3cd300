"""Core clients of a cluster of processes, and what is checked beside them.

Used by `test_core_client` and `test_core_leaving`. Source: docs/sdk.md.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from duramen.client import Client, ReadRecord
from duramen.client.core import CoreClient
from tests.process.cluster import LocalCluster


def connect(cluster: LocalCluster) -> CoreClient:
    return CoreClient(cluster.state()["zookeeper"])


async def read_by_rest(cluster: LocalCluster, name: str) -> list[ReadRecord]:
    async with Client(cluster.state()["read_url"]) as client:
        log = client["default"][name]
        return [record async for batch in log.read() for record in batch]


@contextmanager
def paused(cluster: LocalCluster, *roles: str) -> Iterator[None]:
    """Nobody of these roles runs."""
    names = [name for role in roles for name in cluster.ids(role)]
    for name in names:
        cluster.send(name, signal.SIGSTOP)
    try:
        yield
    finally:
        for name in names:
            cluster.send(name, signal.SIGCONT)
