"""The life of logs over a store in memory, with a clock that the test sets.

`World` runs the sequencer's rounds of retention and its operations; bookies hold what it is told.
Used by `test_log_life`, `test_namespaces`, `test_release` and `test_tombstones`.
Source: docs/protocol/retention.md.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from duramen.core.log_node import LogNode
from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment, Totals
from duramen.core.sequencer.context import SequencerContext
from duramen.errors import DuramenError
from duramen.ids import (
    BookieId,
    EntryId,
    Incarnation,
    LogId,
    Member,
    SequencerId,
)
from duramen.runtime.cluster_node import ensure_cluster
from duramen.runtime.http_client import PeerClient
from duramen.runtime.registry import Roster
from duramen.runtime.sequencer.bookie_lanes import BookieLanes
from duramen.runtime.sequencer.metadata_link import MetadataLink
from duramen.runtime.sequencer.node_watch import NodeWatch
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.units import HOUR, MS
from duramen.wire.metadata_json import Paths, encode_log, encode_node, read_log, read_node
from duramen.wire.metadata_json import encode_segment as spell
from duramen_sequencer.control import Control
from duramen_sequencer.life.boundaries import Boundaries
from duramen_sequencer.life.operations import LifeOperations
from duramen_sequencer.life.retention import RetentionRounds
from duramen_sequencer.log_host import LogHost
from tests.component.moved_segments import MovedSegments

PATHS = Paths("c")
HOUR_MS = HOUR // MS
MEMBER = Member(BookieId("b0"), Incarnation("0" * 32))
Act = Callable[["World"], Awaitable[None]]


class World:
    """One sequencer, `s0`, with its control operations and its retention, and a clock."""

    def __init__(self) -> None:
        self.clock_pace_ms = 0
        """How much later it is at each look of retention at the clock."""
        self.tree = MemoryTree()
        self.store = MemoryStore(self.tree)
        self.now_ms = 0
        sequencer_id = SequencerId("s0")
        context = SequencerContext(sequencer_id, random.Random(1), lambda *_, **__: b"")
        self.client, self.sequencers = PeerClient(), Roster(self.store, PATHS.sequencers)
        self.link = MetadataLink(self.store, PATHS, sequencer_id, "http://s0")
        lanes = BookieLanes(self.client, lambda _: None, NodeWatch(context.nodes))
        self.host = LogHost(sequencer_id, context, lanes, self.link, self.sequencers)
        self.moved = MovedSegments(self.store, PATHS, LogId(1))
        segments = self.moved.open_nodes()
        boundaries = Boundaries(segments, lanes)
        life = LifeOperations(self.host, self.link, boundaries, now_unix_ms=lambda: self.now_ms)
        self.control = Control(self.store, PATHS, life.by_name)
        self.retention = RetentionRounds(
            self.link, segments, self.host.looks_after, context.rng,
            now_unix_ms=self._look_at_clock,
        )  # fmt: skip

    def _look_at_clock(self) -> int:
        now_ms = self.now_ms
        self.now_ms += self.clock_pace_ms
        return now_ms

    async def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        return await self.control.handle(json.dumps({"op": op, **fields}).encode())

    async def refused(self, op: str, **fields: Any) -> DuramenError:
        with pytest.raises(DuramenError) as caught:
            await self.ask(op, **fields)
        return caught.value

    async def create(self, config: dict[str, Any] | None = None) -> str:
        """The log `ns/log`; its id."""
        made = await self.ask("create_log", namespace="ns", log="log", config=config or {})
        assert made["created"] is True
        return str(made["log_id"])

    async def log(self, log_id: str) -> LogNode:
        stored = await self.store.get(PATHS.log(LogId(int(log_id))))
        assert stored is not None
        return read_log(stored.data)

    async def change(self, log: LogNode) -> None:
        stored = await self.store.get(PATHS.log(log.log_id))
        assert stored is not None
        await self.store.set(PATHS.log(log.log_id), encode_log(log), version=stored.version)

    async def name(self) -> dict[str, Any] | None:
        stored = await self.store.get(PATHS.name("ns", "log"))
        return None if stored is None else read_node(stored.data)

    async def change_name(self, **fields: Any) -> None:
        """Write fields into the name's node, as a newer version might."""
        stored = await self.store.get(PATHS.name("ns", "log"))
        assert stored is not None
        data = encode_node({**read_node(stored.data), **fields})
        await self.store.set(PATHS.name("ns", "log"), data, version=stored.version)

    async def add_segments(self, log_id: str, *counts: int) -> None:
        """Closed segments of so many records, one an entry."""
        log = await self.log(log_id)
        for count in counts:
            epoch = log.next_epoch
            fragments = (Fragment(EntryId(0), (MEMBER,)),)
            closed = Segment(log.log_id, epoch, Quorum(1, 1, 1), fragments).closed(
                last_entry=EntryId(count - 1), totals=Totals(count, 10 * count),
                start_seq_num=log.totals.record_count, completed_unix_ms=self.now_ms, nonce="n",
            )  # fmt: skip
            log = log.with_new_epoch("n").with_clean(closed, "n").with_stateless()
            await self.store.create(PATHS.segment(log.log_id, epoch), spell(closed))
        await self.change(log)

    async def segments(self, log_id: str) -> tuple[str, ...]:
        return await self.store.children(PATHS.segments(LogId(int(log_id)))) or ()

    async def run_rounds(self, count: int = 2) -> None:
        for _ in range(count):
            await self.retention.run_round()


@asynccontextmanager
async def make_world() -> AsyncIterator[World]:
    world = World()
    await world.store.start()
    await ensure_cluster(world.store, PATHS)
    await world.store.create(f"{PATHS.sequencers}/s0", encode_node({}), make_parents=True)
    await world.sequencers.start()
    await world.ask("create_namespace", namespace="ns", config={})
    try:
        yield world
    finally:
        await world.host.stop()
        await world.sequencers.stop()
        await world.client.close()
        await world.store.close()


def run(act: Act) -> None:
    async def play() -> None:
        async with make_world() as world, asyncio.timeout(30):
            await act(world)

    asyncio.run(play())
