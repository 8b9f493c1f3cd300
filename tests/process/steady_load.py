"""Appends at a steady pace to logs, whatever becomes of each, and when each was acknowledged.

A fault that lasts shows in the answers, and not in fewer questions. Nothing is sent again: what is
not acknowledged is left out of what is judged.

Used by the tests of frozen and of suspected owners.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from duramen.client.rest_client import RestClient
from duramen.errors import DuramenError
from duramen.runtime.http_client import PeerError
from duramen.wire.record_batch import encode_batch
from tests.pauses import let_pass, look_again_soon
from tests.process.cluster import LocalCluster
from tests.process.times import HANG_S

EVERY_S: Final = 0.05
OPEN_COUNT_MAX: Final = 300
"""Appends of one log whose answer is awaited: those that were sent to a frozen one wait long."""


class Load:
    """Appends to one log at a steady pace, and when each was acknowledged."""

    def __init__(self, client: RestClient, log: str, *, first: int = 0) -> None:
        self.log = log
        self.acked: set[bytes] = set()
        self.acked_s: list[tuple[float, float]] = []
        """(when it was sent, when it was acknowledged) of each, in the order of answers."""
        self.failed_count = 0
        self._client = client
        self._open: set[asyncio.Task[None]] = set()
        self._count = first

    async def run(self) -> None:
        while True:
            if len(self._open) < OPEN_COUNT_MAX:
                task = asyncio.create_task(self._append())
                self._open.add(task)
                task.add_done_callback(self._open.discard)
            await let_pass(EVERY_S, what="the pace of the load")

    async def stop(self) -> None:
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        await self._client.close()

    async def wait_acked_since(self, since_s: float) -> float:
        """When one that was sent after a moment was acknowledged first."""
        async with asyncio.timeout(HANG_S):
            while True:
                for sent_s, acked_s in reversed(self.acked_s):
                    if sent_s > since_s:
                        return acked_s
                await look_again_soon()

    async def _append(self) -> None:
        body = f"{self.log}/{self._count}".encode()
        self._count += 1
        sent_s = time.monotonic()
        try:
            await self._client.append("default", self.log, encode_batch([body], timestamp_ms=1))
        except (DuramenError, PeerError):
            self.failed_count += 1
            return
        self.acked.add(body)
        self.acked_s.append((sent_s, time.monotonic()))


@asynccontextmanager
async def running_loads(
    cluster: LocalCluster, logs: list[str], *, first: int = 0
) -> AsyncIterator[list[Load]]:
    """A load for each log, until the end of the block; bodies are numbered from `first`."""
    loads = [Load(cluster.open_client("write_url"), log, first=first) for log in logs]
    tasks = [asyncio.create_task(load.run()) for load in loads]
    try:
        yield loads
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for load in loads:
            await load.stop()
