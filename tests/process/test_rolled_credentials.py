"""API tokens are replaced and an issuer rolls its keys, while whoever shows them goes on.

A producer and a reader of the SDK, with a `token_file` that is written anew, on a cluster of real
processes of which one of each role dies between two steps: no append fails, and each record is
read once, in order. Of the night; chaos runs do the same between other faults.
Source: docs/protocol/credentials.md "How clients show it", "Keys of issuers".
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import pytest
import uvloop

from duramen.client import Client
from duramen.cluster.layout import ClusterSize
from tests.chaos.cluster import ChaosCluster
from tests.chaos.layout import FLAT
from tests.chaos.schedule import Step
from tests.chaos.turning import Turning
from tests.pauses import let_pass
from tests.process.times import HANG_S
from tests.waiting import wait_for

pytestmark = [pytest.mark.process, pytest.mark.zookeeper, pytest.mark.night]

LAYOUT: Final = replace(FLAT, size=ClusterSize(3, 2, 1, 1), session_s=12.0)
"""Sessions that outlive a busy machine: what ends them is no matter of this test."""

KILLED: Final = (0x012, 0x234, 0x340, 0x765)
"""For each turn, whom its three numbers name: every role, two at least."""


class Load:
    """What was acknowledged, and what was read."""

    def __init__(self, write: Client, read: Client) -> None:
        self._write = write
        self._read = read
        self.acked: list[bytes] = []
        self.found: list[bytes] = []

    async def append(self, stop: asyncio.Event) -> None:
        """Until it is stopped; whatever fails ends the test."""
        async with self._write["default"]["log"].producer() as producer:
            while not stop.is_set():
                body = b"%d" % len(self.acked)
                await (await producer.send(body))
                self.acked.append(body)
                await let_pass(0.02, what="the pace of appends")

    def has(self, count: int) -> bool:
        """Whether so many were acknowledged."""
        return len(self.acked) >= count

    async def follow(self) -> None:
        """From the head on, for ever."""
        async for batch in self._read["default"]["log"].read("head", follow=True):
            self.found += batch.bodies


async def play(folder: Path, turns: list[str]) -> None:
    broken: list[str] = []
    cluster = ChaosCluster(folder / "cluster", LAYOUT, lambda _text: None, is_secure=True)
    keys = cluster.keys
    assert keys is not None
    try:
        await cluster.start()
        turning = Turning(cluster, keys, lambda _code, text: broken.append(text))
        await turning.begin()
        write = Client(cluster.url("writeproxy-0"), token_file=keys.token_file)
        read = Client(cluster.url("readproxy-0"), token_file=keys.token_file)
        async with write, read:
            await write["default"].ensure()
            await write["default"]["log"].ensure()
            load, stop = Load(write, read), asyncio.Event()
            appending = asyncio.create_task(load.append(stop))
            following = asyncio.create_task(load.follow())
            for kind, number in zip(turns, KILLED, strict=True):
                enough = len(load.acked) + 50
                step = Step("turn", kind, (), 0.0, 0.0, overlaps=False, number=number)
                told = await turning.turn(step)
                assert told["done"] and len(told["killed"]) == 3, told
                assert not appending.done() and not following.done()
                await wait_for(partial(load.has, enough), rest_s=0.05)
            stop.set()
            await appending
            await wait_for(lambda: len(load.found) >= len(load.acked), rest_s=0.05)
            following.cancel()
            assert load.found == load.acked, "each once, and in order"
    finally:
        await cluster.stop()
    assert not broken


@pytest.mark.timeout(HANG_S * 10)
def test_no_append_fails_and_no_read_is_lost_while_tokens_and_keys_are_replaced(
    tmp_path: Path,
) -> None:
    uvloop.run(play(tmp_path, ["token", "issuer", "issuer", "token"]))
