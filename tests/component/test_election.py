"""Who is the auditor, where answers are slow and leadership changes hands meanwhile.

The production Election on the store in memory, whose answers a test can keep on their way. That the
auditor works while it leads is test_auditor's. Found by the simulator, seed 2513.
"""

from __future__ import annotations

import asyncio

import pytest

from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.runtime.stores.metadata_store import Stored, Watch
from duramen.wire.metadata_json import Paths, encode_node
from duramen_sequencer.repair.election import Election
from tests.waiting import wait_for
from tests.zookeeper_fixture import run

PATH = Paths("elections").auditor


class SlowStore(MemoryStore):
    """A store whose answers can be kept on their way."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(tree)
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.kept_count = 0

    async def get(self, path: str, watch: Watch | None = None) -> Stored | None:
        found = await super().get(path, watch)
        self.kept_count += 1
        await self.may_answer.wait()
        self.kept_count -= 1
        return found


async def hold_leadership(tree: MemoryTree, name: str) -> MemoryStore:
    """Another sequencer that is the auditor until its session ends."""
    store = MemoryStore(tree)
    await store.start()
    fields = encode_node({"sequencer": name})
    await store.create(PATH, fields, ephemeral=True, make_parents=True)
    return store


@pytest.mark.parametrize("is_late", [False, True], ids=["in time", "late"])
def test_a_leadership_that_falls_vacant_is_taken(is_late: bool) -> None:
    """Late: it passed on while the answer that named the holder before was on its way."""

    async def scenario() -> None:
        tree = MemoryTree()
        first = await hold_leadership(tree, "s1")
        store, changes = SlowStore(tree), list[bool]()
        await store.start()
        election = Election(store, PATH, {"sequencer": "s0"}, changes.append)
        await election.start()
        assert election.holder == {"sequencer": "s1"}
        if is_late:
            store.may_answer.clear()
            store.disconnect()
            store.reconnect()
            await wait_for(lambda: store.kept_count == 1)
        await first.close()
        second = await hold_leadership(tree, "s2")
        store.may_answer.set()
        await wait_for(lambda: election.holder == {"sequencer": "s2"})
        assert changes == []
        await second.close()
        await wait_for(lambda: election.is_held)
        assert changes == [True]
        await election.stop()
        assert changes == [True, False] and tree.get(PATH) is None
        await store.close()

    run(scenario())
