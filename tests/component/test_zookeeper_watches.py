"""A watch of the metadata store rings after the call that set it, whatever the client's order.

kazoo's threads give answers and events in an order that no real server can be made to take each
time: here a client stands for it that the test plays by hand. What watches ring for is in
`tests/contract/test_metadata_store`. Source: duramen.runtime.stores.zookeeper_store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss, NoNodeError
from kazoo.protocol.states import KazooState

from duramen.runtime.stores import zookeeper_store
from duramen.runtime.stores.metadata_store import Unavailable
from duramen.runtime.stores.zookeeper_store import ZooKeeperStore
from tests.waiting import wait_for

STAT = SimpleNamespace(version=3, ephemeralOwner=0, numChildren=0, czxid=7, mtime=0)


class HandRequest:
    """A read that was sent, with its watch; answered when the test says so."""

    def __init__(self, watch: Callable[[object], None] | None) -> None:
        self.watch = watch
        self._on_result: Callable[[Any], None] = lambda _: None

    def rawlink(self, on_result: Callable[[Any], None]) -> None:
        self._on_result = on_result

    def answer(self, value: Any, exception: Exception | None = None) -> None:
        self._on_result(SimpleNamespace(value=value, exception=exception))

    def ring(self) -> None:
        assert self.watch is not None
        self.watch(SimpleNamespace(type="CHANGED"))


class HandKazoo:
    """What the store asks of a kazoo client; connected at once."""

    made: list[HandKazoo]

    def __init__(self, **_: Any) -> None:
        self.client_id = (1, b"")
        self.requests: list[HandRequest] = []
        self._listeners: list[Callable[[str], None]] = []
        HandKazoo.made.append(self)

    def add_listener(self, listener: Callable[[str], None]) -> None:
        self._listeners.append(listener)

    def start_async(self) -> None:
        for listener in self._listeners:
            listener(KazooState.CONNECTED)

    def get_async(self, _path: str, watch: Callable[[object], None] | None = None) -> HandRequest:
        self.requests.append(HandRequest(watch))
        return self.requests[-1]

    exists_async = get_async

    def _reset(self) -> None: ...
    def stop(self) -> None: ...

    def close(self) -> None: ...


class World:
    """A store, its client, and how often the watch has rung."""

    def __init__(self) -> None:
        self.store = ZooKeeperStore("nowhere:1")
        self.ring_count = 0

    def ring(self) -> None:
        self.ring_count += 1

    async def get(self, number: int) -> tuple[asyncio.Task[Any], HandRequest]:
        """A watched read that was sent as the client's request of that number."""
        task = asyncio.create_task(self.store.get("/node", self.ring))
        return task, await self.wait_request(number)

    async def wait_request(self, number: int) -> HandRequest:
        [client] = HandKazoo.made
        await wait_for(lambda: len(client.requests) == number)
        return client.requests[-1]

    async def settle(self) -> None:
        """Let everything happen that was posted to the loop."""
        for _ in range(10):
            await asyncio.sleep(0)


def run(monkeypatch: pytest.MonkeyPatch, scenario: Callable[[World], Awaitable[None]]) -> None:
    monkeypatch.setattr(zookeeper_store, "KazooClient", HandKazoo)
    HandKazoo.made = []

    async def work() -> None:
        world = World()
        await world.store.start()
        await scenario(world)
        await world.store.close()

    asyncio.run(work())


def test_a_change_that_comes_before_the_answer_is_told_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who is told first looks again in vain, and once more never: the watch is gone."""

    async def scenario(world: World) -> None:
        task, request = await world.get(1)
        request.ring()
        await world.settle()
        assert world.ring_count == 0 and not task.done()
        request.answer((b"data", STAT))
        assert (await task).data == b"data"
        await world.settle()
        assert world.ring_count == 1
        request.ring()
        await world.settle()
        assert world.ring_count == 1, "once"

    run(monkeypatch, scenario)


def test_so_is_the_creation_of_a_node_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        task, read = await world.get(1)
        read.answer(None, NoNodeError())
        exists = await world.wait_request(2)
        exists.ring()
        await world.settle()
        assert world.ring_count == 0
        exists.answer(None)
        assert await task is None
        await world.settle()
        assert world.ring_count == 1

    run(monkeypatch, scenario)


def test_a_read_that_failed_has_armed_no_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        task, request = await world.get(1)
        request.ring()
        request.answer(None, ConnectionLoss())
        with pytest.raises(Unavailable):
            await task
        request.ring()
        await world.settle()
        assert world.ring_count == 0

    run(monkeypatch, scenario)
