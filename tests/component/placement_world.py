"""One sequencer's placement on a store in memory, and the bookies that it sees.

The surveyor and the control calls are the product's; bookies are nodes that the test writes.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from duramen.config import parse_log_config
from duramen.core.sequencer.context import SequencerContext
from duramen.ids import BookieId, Incarnation, Member, SequencerId
from duramen.runtime.sequencer.surveyor import Surveyor
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.runtime.stores.metadata_store import OutcomeUnknown
from duramen.wire.metadata_json import Paths, encode_node
from duramen_sequencer.control import Control
from duramen_sequencer.placement_operations import PlacementOperations

PATHS = Paths("test")
SPOTS = [("x", "a"), ("x", "b"), ("y", "a"), ("y", "b"), ("z", "a"), ("z", "b")]


class World:
    """One sequencer's placement, and six bookies in two racks of three regions."""

    def __init__(self, kind: type[MemoryStore]) -> None:
        self.store = kind(MemoryTree())
        self.context = SequencerContext(SequencerId("s"), random.Random(1), lambda *_, **__: b"")
        self.surveyor = Surveyor(self.store, PATHS, self.context, lambda: None)
        self.placement = PlacementOperations(self.store, PATHS, self.surveyor)
        by_name = self.placement.by_name
        self.control = Control(self.store, PATHS, by_name, self.placement.check_config)

    @property
    def takers(self) -> list[str]:
        return sorted(candidate.member.bookie for candidate in self.context.candidates)

    async def add_bookie(self, index: int, **more: Any) -> None:
        region, rack = SPOTS[index]
        fields = {"incarnation": f"{index:032x}", "region": region, "rack": rack}
        living = {"state": "rw", "draining": False, "data_url": "http://b", "free_bytes": 1}
        own = encode_node({**fields, "weight": 1.0, "later": 5, **more})
        await self.store.create(f"{PATHS.bookies}/b{index}", own, make_parents=True)
        data = encode_node({**fields, **living, **more})
        await self.store.create(f"{PATHS.available}/b{index}", data, make_parents=True)

    async def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        return await self.control.handle(json.dumps({"op": op, **fields}).encode())

    async def create(self, **replication: Any) -> dict[str, Any]:
        config = parse_log_config({"replication": replication}).to_json()
        return await self.ask("create_log", namespace="ns", log="log", config=config)


class Doubtful(MemoryStore):
    """Every change is applied, and nobody is told."""

    async def set(self, path: str, data: bytes, *, version: int) -> int:
        await super().set(path, data, version=version)
        raise OutcomeUnknown("the connection broke")


@asynccontextmanager
async def world_of(kind: type[MemoryStore], bookies: int) -> AsyncIterator[World]:
    world = World(kind)
    await world.store.start()
    cluster = encode_node({"last_log_id": 0})
    await MemoryStore.create(world.store, PATHS.cluster, cluster, make_parents=True)
    for index in range(bookies):
        await world.add_bookie(index)
    await world.surveyor.start()
    try:
        yield world
    finally:
        await world.surveyor.stop()
        await world.store.close()


def with_world(
    scenario: Callable[[World], Awaitable[None]],
    *,
    kind: type[MemoryStore] = MemoryStore,
    bookies: int = 6,
) -> None:
    async def play() -> None:
        async with world_of(kind, bookies) as world:
            await scenario(world)

    asyncio.run(asyncio.wait_for(play(), 30))


def member(index: int) -> Member:
    return Member(BookieId(f"b{index}"), Incarnation(f"{index:032x}"))
