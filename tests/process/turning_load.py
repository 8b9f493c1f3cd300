"""Who appends to a cluster while it turns, and what was acknowledged.

Used by `test_turning` and `test_mixed_versions`. Source: docs/protocol/turning-on.md "The order".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from duramen.client import Client
from tests.pauses import let_pass


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
