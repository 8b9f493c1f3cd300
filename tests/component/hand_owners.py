"""The owners of logs in a test's hands, as feeds ask them for LACs.

Used by the tests of `duramen_readproxy.following`. Source: docs/protocol/owner-lac.md.
"""

from __future__ import annotations

import asyncio

from duramen.ids import LogId
from duramen.wire.sequencer_calls import LacWait, OpenLac


class HandOwners:
    """Says who owns the log, and answers a wait when the test does."""

    def __init__(self) -> None:
        self.url: str | None = "http://s0"
        self.find_count = 0
        self.asked: list[tuple[str, LacWait]] = []
        self.answers: asyncio.Queue[OpenLac | None] = asyncio.Queue()

    async def find(self, _log_id: LogId, /) -> str | None:
        self.find_count += 1
        return self.url

    async def wait_lac(self, url: str, wait: LacWait, /) -> OpenLac | None:
        self.asked.append((url, wait))
        return await self.answers.get()
