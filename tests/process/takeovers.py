"""Logs that change hands while they are appended to: who has them, and that nothing is lost.

Used by the tests of takeovers with real processes. Source: docs/protocol/ownership.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

import httpx

from duramen.client.rest_client import RestClient
from tests.pauses import look_again_soon
from tests.process.cluster import LocalCluster
from tests.process.history import History, read_log
from tests.process.owners import owners_of
from tests.process.times import HANG_S

PAIR = ("--sequencers", "2", "--no-restart")


async def statistics(cluster: LocalCluster, node_id: str) -> dict[str, Any]:
    async with httpx.AsyncClient(timeout=30, verify=cluster.trust_admin_ports()) as http:
        answer = await http.get(cluster.process(node_id)["admin_url"] + "/v1/statistics")
        found: dict[str, Any] = answer.json()
        return found


async def owner_of(cluster: LocalCluster, log: str) -> str:
    """Whose the log is, once one sequencer alone says that it has it."""
    async with asyncio.timeout(HANG_S):
        while len(names := (await owners_of(cluster)).get(log, set())) != 1:
            await look_again_soon()
    return names.pop()


async def append_while(
    cluster: LocalCluster, histories: list[History], fault: Coroutine[Any, Any, None]
) -> None:
    """Append to every log without a pause while the fault runs, and until each got further."""
    stop = asyncio.Event()
    async with AsyncExitStack() as stack:
        clients = [RestClient(cluster.state()["write_url"]) for _ in histories]
        for client in clients:
            stack.push_async_callback(client.close)
        pairs = zip(histories, clients, strict=True)
        writers = [asyncio.create_task(h.append_until(client, stop)) for h, client in pairs]
        try:
            for history in histories:
                await history.wait_acknowledged(5)
            await fault
            marks = [len(history.acknowledged) for history in histories]
            for history, mark in zip(histories, marks, strict=True):
                await history.wait_acknowledged(mark + 5)
        finally:
            stop.set()
            await asyncio.gather(*writers)


async def check(cluster: LocalCluster, history: History) -> None:
    expected = max(end for _, end in history.acknowledged.values())
    url = cluster.state()["read_url"]
    history.check(await read_log(url, history.log, expect_count=expected))
