"""Nodes kept in view: the follower's looks, its watches, and the roster that is made of it.

On the in-memory store, whose watches are held to the port's contract (`tests/contract`).
Source: `duramen.runtime.registry`, docs/protocol/metadata.md "Nodes".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from duramen.runtime.registry import Follower, Registration, Roster
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.runtime.stores.metadata_store import Stored, Unavailable, Watch
from duramen.wire.metadata_json import encode_node
from duramen.wire.nodes.formats import PROCESS_FORMATS
from tests.waiting import wait_for

PARENT = "/duramen/c1/available"


class World:
    """A tree of nodes, a store that follows, and one that others write by."""

    def __init__(self) -> None:
        self.tree = MemoryTree()
        self.store, self.others = MemoryStore(self.tree), MemoryStore(self.tree)

    async def write(self, name: str, **fields: int) -> None:
        path = f"{PARENT}/{name}"
        found = await self.others.get(path)
        if found is None:
            await self.others.create(path, encode_node(fields), make_parents=True)
        else:
            await self.others.set(path, encode_node(fields), version=found.version)

    async def remove(self, name: str) -> None:
        found = await self.others.get(f"{PARENT}/{name}")
        assert found is not None
        await self.others.delete(f"{PARENT}/{name}", version=found.version)


def run(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        world = World()
        await world.store.start()
        await world.others.start()
        async with asyncio.timeout(30):
            await scenario(world)

    asyncio.run(main())


def is_there(world: World, path: str, data: bytes | None = None) -> bool:
    found = world.tree.get(path)
    return found is not None and data in (None, found.data)


def free_of(roster: Roster) -> dict[str, int]:
    return {name: fields["free"] for name, fields in roster.nodes.items()}


def test_an_own_node_is_made_again_whoever_deleted_it() -> None:
    """A deletion sent on a connection that broke is applied when the node is there anew.

    Seen by the simulator (seed 783): the bookie lived, and nobody knew it any more.
    """

    async def scenario(world: World) -> None:
        path = f"{PARENT}/b1"
        registration = Registration(world.store, path, {"free": 1})
        await registration.start()
        for free in (2, 3):
            await world.remove("b1")
            await wait_for(lambda: is_there(world, path))
            registration.update({"free": free})
            data = encode_node({"free": free, "formats": dict(PROCESS_FORMATS)})
            await wait_for(partial(is_there, world, path, data))
        await registration.stop()

    run(scenario)


def test_the_node_of_a_life_before_is_replaced_before_its_session_ends() -> None:
    """Else it goes with that session, some seconds later, and nobody knows who lives there."""

    async def scenario(world: World) -> None:
        path = f"{PARENT}/b1"
        before = Registration(world.others, path, {"free": 1})
        await before.start()
        await before.stop()
        registration = Registration(world.store, path, {"free": 1})
        await registration.start()
        await world.others.close()
        assert is_there(world, path)
        await registration.stop()

    run(scenario)


def test_a_roster_shows_who_comes_changes_and_goes() -> None:
    async def scenario(world: World) -> None:
        await world.write("b1", free=1)
        roster = Roster(world.store, PARENT)
        await roster.start()
        assert free_of(roster) == {"b1": 1}
        await world.write("b2", free=2)
        await wait_for(lambda: free_of(roster) == {"b1": 1, "b2": 2})
        await world.write("b1", free=3)
        await wait_for(lambda: free_of(roster) == {"b1": 3, "b2": 2})
        await world.remove("b2")
        await wait_for(lambda: free_of(roster) == {"b1": 3})
        await world.write("b2", free=4)
        await wait_for(lambda: free_of(roster) == {"b1": 3, "b2": 4})
        await roster.stop()

    run(scenario)


def test_watches_on_nodes_that_stay_the_same_do_not_pile_up() -> None:
    async def scenario(world: World) -> None:
        for name in ("b1", "b2", "b3"):
            await world.write(name, free=0)
        roster = Roster(world.store, PARENT)
        await roster.start()
        armed = world.store.statistics()["watches"]
        assert armed == 4, "the parent and its three children"
        for free in range(1, 21):
            await world.write("b1", free=free)
            await wait_for(lambda free=free: free_of(roster)["b1"] == free)  # type: ignore[misc]
        assert world.store.statistics()["watches"] == armed
        await roster.stop()

    run(scenario)


def test_a_roster_is_right_again_after_a_cut_and_after_a_lost_session() -> None:
    async def scenario(world: World) -> None:
        await world.write("b1", free=1)
        roster = Roster(world.store, PARENT)
        await roster.start()
        world.store.disconnect()
        await world.write("b1", free=2)
        await asyncio.sleep(0)
        assert free_of(roster) == {"b1": 1}, "what cannot be read stays what it was"
        world.store.reconnect()
        await wait_for(lambda: free_of(roster) == {"b1": 2})
        world.tree.expire(world.store.session_id)
        await world.write("b1", free=3)
        await wait_for(lambda: free_of(roster) == {"b1": 3})
        await world.write("b1", free=4)
        await wait_for(lambda: free_of(roster) == {"b1": 4})
        await roster.stop()

    run(scenario)


def test_a_look_that_failed_is_repeated_without_any_other_news() -> None:
    class Failing(MemoryStore):
        """A store whose next read gets no answer, while its session goes on."""

        is_failing = False

        async def get(self, path: str, watch: Watch | None = None) -> Stored | None:
            if self.is_failing:
                self.is_failing = False
                raise Unavailable("no answer in time")
            return await super().get(path, watch)

    async def scenario(world: World) -> None:
        world.store = store = Failing(world.tree)
        await world.store.start()
        await world.write("b1", free=1)
        roster = Roster(world.store, PARENT)
        await roster.start()
        store.is_failing = True
        await world.write("b1", free=2)
        await wait_for(lambda: free_of(roster) == {"b1": 2})
        assert not store.is_failing
        await roster.stop()

    run(scenario)


def test_a_change_during_a_look_leads_to_another_look() -> None:
    async def scenario(world: World) -> None:
        await world.write("b1", free=1)
        looks: list[Stored | None] = []

        async def look() -> None:
            found = await follower.get(f"{PARENT}/b1")
            looks.append(found)
            if len(looks) == 1:
                await world.write("b1", free=2)  # after it was read, before the look has ended

        follower = Follower(world.store, "a test", look)
        await follower.start()
        await wait_for(lambda: len(looks) >= 2)
        assert looks[-1] is not None
        assert looks[-1].data == encode_node({"free": 2})
        await follower.stop()
        await world.write("b1", free=3)
        await asyncio.sleep(0)
        assert len(looks) == 2, "nobody looks after a stop"

    run(scenario)


def test_no_watch_is_trusted_beyond_its_session() -> None:
    class Forgetful(MemoryStore):
        """A store that loses its watches with the session and tells nobody."""

        def _fire_all(self) -> None:
            self._watches.clear()

    async def scenario(world: World) -> None:
        world.store = Forgetful(world.tree)
        await world.store.start()
        await world.write("b1", free=1)
        roster = Roster(world.store, PARENT)
        await roster.start()
        world.tree.expire(world.store.session_id)
        await wait_for(lambda: world.store.statistics()["sessions"] == 2)
        await wait_for(lambda: world.store.statistics()["watches"] == 2)
        await world.write("b1", free=2)
        await wait_for(lambda: free_of(roster) == {"b1": 2})
        await roster.stop()

    run(scenario)
