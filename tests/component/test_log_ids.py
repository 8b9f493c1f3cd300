"""Log ids come in blocks, and none is given twice: by one process, by several, or after a restart.

Source: docs/protocol/metadata.md "cluster", duramen_sequencer.log_ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from duramen.errors import DuramenError
from duramen.ids import LAST_LOG_ID, LogId
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.wire.metadata_json import Paths, encode_node, read_node
from duramen_sequencer.log_ids import BLOCK_COUNT, LogIds

PATHS = Paths("c")
OpenIds = Callable[[], Awaitable[LogIds]]


def play(scenario: Callable[[OpenIds, MemoryStore], Awaitable[None]], last_log_id: int = 0) -> None:
    """With any number of processes on one store, whose counter stands at `last_log_id`."""

    async def work() -> None:
        tree = MemoryTree()

        async def connect() -> MemoryStore:
            store = MemoryStore(tree)
            await store.start()
            return store

        async def open_ids() -> LogIds:
            return LogIds(await connect(), PATHS)

        setup = await connect()
        node = encode_node({"uuid": "0" * 32, "format": 1, "last_log_id": last_log_id})
        await setup.create(PATHS.cluster, node, make_parents=True)
        await scenario(open_ids, setup)

    asyncio.run(asyncio.wait_for(work(), 20))


async def read_counter(store: MemoryStore) -> int:
    stored = await store.get(PATHS.cluster)
    assert stored is not None
    node = read_node(stored.data)
    assert (node["uuid"], node["format"]) == ("0" * 32, 1), "the rest of the node stays"
    return int(node["last_log_id"])


def test_many_creations_at_several_sequencers_get_different_ids_at_few_writes() -> None:
    async def scenario(open_ids: OpenIds, store: MemoryStore) -> None:
        processes = [await open_ids() for _ in range(3)]
        taken = await asyncio.gather(*(ids.take() for ids in processes for _ in range(500)))
        assert len(set(taken)) == len(taken) == 1500
        assert min(taken) == 8 and max(taken) <= await read_counter(store)
        found = await store.get(PATHS.cluster)
        assert found is not None and found.version == 3 * -(-500 // BLOCK_COUNT)

    play(scenario, last_log_id=7)


def test_what_a_process_did_not_use_is_never_given_again() -> None:
    async def scenario(open_ids: OpenIds, store: MemoryStore) -> None:
        first = await (await open_ids()).take()
        again = await (await open_ids()).take()
        assert (first, again) == (1, 1 + BLOCK_COUNT)
        assert await read_counter(store) == 2 * BLOCK_COUNT

    play(scenario)


def test_the_last_id_is_given_and_none_after_it() -> None:
    async def scenario(open_ids: OpenIds, store: MemoryStore) -> None:
        ids = await open_ids()
        assert [await ids.take() for _ in range(3)] == [
            LogId(LAST_LOG_ID - 2), LogId(LAST_LOG_ID - 1), LAST_LOG_ID,
        ]  # fmt: skip
        with pytest.raises(DuramenError, match="used all its log ids"):
            await ids.take()
        assert await read_counter(store) == LAST_LOG_ID

    play(scenario, last_log_id=LAST_LOG_ID - 3)
