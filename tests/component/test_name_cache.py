"""What a write proxy remembers of names: not for ever, not too many, and never against a refusal.

What it reads and when, and what it does without ZooKeeper, is in `test_writeproxy`.
Source: docs/protocol/wire.md "Identities", docs/protocol/metadata.md "namespaces/<ns> and
names/<ns>/<log>".
"""

from __future__ import annotations

import asyncio

import pytest

from duramen.errors import DuramenError
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.runtime.stores.metadata_store import Stored, Watch
from duramen.wire.metadata_json import Paths, encode_node
from duramen.wire.sequencer_calls import Append, AppendResult
from duramen_writeproxy.logs import names
from duramen_writeproxy.logs.names import NameCache
from tests.component.writeproxy_world import PATHS, World, run


@pytest.mark.parametrize("code", ["log_not_found", "log_deleted"])
def test_a_name_whose_log_is_gone_is_read_again_though_no_watch_has_fired(code: str) -> None:
    """A watch may be late: what the sequencer says of the log comes first."""

    async def scenario(world: World) -> None:
        name_path, get = PATHS.name("a", "l"), world.store.get

        async def get_unwatched(path: str, watch: Watch | None = None) -> Stored | None:
            return await get(path, None if path == name_path else watch)

        async def decide(append: Append) -> AppendResult:
            if append.log_id == 5:
                return DuramenError(code, "it was deleted")
            return await world.first.accept(append)

        world.store.get = get_unwatched  # type: ignore[method-assign]
        assert (await world.append())[0] == 200
        await world.setup.set(name_path, encode_node({"log_id": "7"}), version=0)
        world.first.decide = decide
        assert (await world.append())[1]["code"] == code
        assert (await world.append())[0] == 200
        assert [row.log_id for row in world.rows] == [5, 5, 7]

    run(scenario)


def test_so_many_names_are_kept_and_the_oldest_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(names, "NAME_COUNT_MAX", 3)
    paths = Paths("test")

    async def scenario() -> None:
        store = MemoryStore(MemoryTree())
        await store.start()
        for number in range(1, 9):
            data = encode_node({"log_id": str(number)})
            await store.create(paths.name("ns", f"l{number}"), data, make_parents=True)
        cache = NameCache(store, paths)
        for number in range(1, 9):
            assert await cache.find("ns", f"l{number}") == number
        known = [cache.find_nowait("ns", f"l{number}") for number in range(1, 9)]
        assert known == [None] * 5 + [6, 7, 8]
        assert await cache.find("ns", "l1") == 1
        assert cache.find_nowait("ns", "l6") is None
        assert cache.statistics()["names"] == 3
        await store.close()

    asyncio.run(scenario())


def test_a_look_up_that_began_before_a_log_was_made_does_not_call_it_missing() -> None:
    """Two appends may create one log: the second one asks while the first one's look-up ends."""

    async def scenario() -> None:
        paths, asked, made = Paths("test"), asyncio.Event(), asyncio.Event()
        store = MemoryStore(MemoryTree())
        await store.start()
        await store.create(paths.namespace("ns"), encode_node({}), make_parents=True)
        get = store.get

        async def get_late(path: str, watch: Watch | None = None) -> Stored | None:
            if path == paths.namespace("ns"):
                asked.set()
                await made.wait()
            return await get(path, watch)

        store.get = get_late  # type: ignore[method-assign]
        cache = NameCache(store, paths)
        early = asyncio.create_task(cache.find("ns", "l"))
        await asked.wait()  # the name was read, and was not there
        name = encode_node({"log_id": "9"})
        await store.create(paths.name("ns", "l"), name, make_parents=True)
        late = [asyncio.create_task(cache.find("ns", "l")) for _ in range(3)]
        asyncio.get_running_loop().call_soon(made.set)
        with pytest.raises(DuramenError) as raised:
            await early
        assert raised.value.code == "log_not_found"
        assert await asyncio.gather(*late) == [9, 9, 9]
        assert cache.statistics() == {"names": 1, "lookups": 0, "reads": 2}
        await store.close()

    asyncio.run(scenario())
