"""Who closes a log that nobody drives: the host of one sequencer, on a store in memory.

No bookie is there, so nothing is recovered here: each test waits until the host has begun, or has
looked and left the log alone. Source: docs/protocol/recovery.md "Orphans"; what a takeover does
then is in the unit tests and the simulator.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from duramen.core.hashing import rank_nodes
from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment
from duramen.core.sequencer.context import SequencerContext
from duramen.core.sequencer.log_state import LogState
from duramen.ids import BookieId, EntryId, Epoch, Incarnation, Member, SequencerId
from duramen.runtime.http_client import PeerClient
from duramen.runtime.registry import Roster
from duramen.runtime.sequencer.bookie_lanes import BookieLanes
from duramen.runtime.sequencer.metadata_link import MetadataLink
from duramen.runtime.sequencer.node_watch import NodeWatch
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.wire.metadata_json import Paths, encode_log, encode_node, encode_segment
from duramen_sequencer.log_host import LogHost
from tests.unit.core_fakes import LOG_ID
from tests.unit.nodes import make_log
from tests.waiting import wait_for

PATHS = Paths("test")
FIRST, SECOND = rank_nodes("ns/log", {"s0": 1.0, "s1": 1.0})
"""The sequencer that the hash names for the log, and the other one."""


@asynccontextmanager
async def hosted(name: str, owner: str | None) -> AsyncIterator[LogHost]:
    """The host of sequencer `name`, beside a log with an open segment; `owner` is on its node."""
    store = MemoryStore(MemoryTree())
    await store.start()
    ensemble = (Member(BookieId("b0"), Incarnation("0" * 32)),)
    fragments = (Fragment(EntryId(0), ensemble),)
    segment = Segment(LOG_ID, Epoch(1), Quorum(1, 1, 1), fragments, nonce="n")
    log = replace(make_log(), next_epoch=Epoch(2))
    await store.create(PATHS.log(LOG_ID), encode_log(log), make_parents=True)
    await store.create(PATHS.segment(LOG_ID, Epoch(1)), encode_segment(segment), make_parents=True)
    for each in (FIRST, SECOND):
        await store.create(f"{PATHS.sequencers}/{each}", encode_node({}), make_parents=True)
    client, sequencers = PeerClient(), Roster(store, PATHS.sequencers)
    context = SequencerContext(SequencerId(name), random.Random(1), lambda *_, **__: b"")
    link = MetadataLink(store, PATHS, SequencerId(name), f"http://{name}")
    if owner is not None:
        left_by = MetadataLink(store, PATHS, SequencerId(owner), f"http://{owner}")
        await left_by.keep_owner(LOG_ID, Epoch(1))
    host = LogHost(
        SequencerId(name),
        context,
        BookieLanes(client, lambda _: None, NodeWatch(context.nodes)),
        link,
        sequencers,
    )
    await sequencers.start()
    host.start()
    try:
        yield host
    finally:
        host.drivers.clear()  # nothing that was begun here can end: there is no bookie
        await host.stop()
        await sequencers.stop()
        await client.close()
        await store.close()


def is_closing(host: LogHost) -> bool:
    driver = host.drivers.get(LOG_ID)
    return driver is not None and driver.core.state is not LogState.IDLE


def test_a_log_without_owner_is_closed_by_the_one_that_the_hash_names() -> None:
    async def scenario() -> None:
        async with hosted(FIRST, None) as host:
            await wait_for(lambda: is_closing(host))
        async with hosted(SECOND, None) as host:
            await wait_for(lambda: host.scan_count > 0)
            assert LOG_ID not in host.drivers

    asyncio.run(scenario())


def test_a_log_that_carries_our_name_is_closed_whomever_the_hash_names() -> None:
    async def scenario() -> None:
        async with hosted(SECOND, SECOND) as host:
            await wait_for(lambda: is_closing(host))

    asyncio.run(scenario())


def test_a_log_of_another_owner_is_left_alone() -> None:
    async def scenario() -> None:
        async with hosted(FIRST, SECOND) as host:
            await wait_for(lambda: host.scan_count > 0)
            assert LOG_ID not in host.drivers

    asyncio.run(scenario())
