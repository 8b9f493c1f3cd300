"""The grants of a cluster in a process: followed by a watch, changed by compare-and-set.

On the in-memory store, whose watches and outcomes are held to the port's contract.
Source: docs/protocol/rights.md "How grants change", docs/protocol/rights.md "How grants reach
processes".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from duramen.core.rights.grants import GrantScope, parse_scope
from duramen.core.rights.judgement import GrantTable
from duramen.core.rights.verbs import Verb
from duramen.errors import DuramenError
from duramen.limits import GRANTS_AGE_MAX_US
from duramen.runtime.rights import grant_changes
from duramen.runtime.rights.grant_cache import GrantCache
from duramen.runtime.rights.grant_changes import GrantChanges, SeenGrants
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree, WriteFate
from duramen.units import SECOND
from duramen.wire.metadata_json import Paths
from duramen.wire.nodes.grants import GrantsNode, encode_grants, read_grants
from tests.component.still_clock import run_still
from tests.pauses import let_pass
from tests.unit.grants import ANN, BOB, OPERATOR, TEAM, given, grant
from tests.waiting import wait_for

PATHS = Paths("c")
EVERYTHING = GrantScope()
SHOP = parse_scope("shop")
STRANGE = {"who": "user:corp/ann", "role": "reader", "scope": "shop", "by": "user:corp/bob",
           "given_unix_ms": 7, "only_from": "10.0.0.0/8"}  # fmt: skip


class World:
    """A process that follows and changes grants, and somebody else who writes the node."""

    def __init__(self) -> None:
        self.tree = MemoryTree()
        self.store, self.others = MemoryStore(self.tree), MemoryStore(self.tree)
        self.cache = GrantCache(self.store, PATHS)
        self.changes = GrantChanges(self.store, PATHS)

    async def write(self, data: bytes) -> None:
        found = await self.others.get(PATHS.grants)
        if found is None:
            await self.others.create(PATHS.grants, data, make_parents=True)
        else:
            await self.others.set(PATHS.grants, data, version=found.version)

    async def give(self, *lines: str) -> None:
        await self.write(encode_grants(GrantsNode(tuple(given(line) for line in lines))))

    def may_read(self) -> bool:
        return self.cache.get_table().rights_of(ANN).judge(Verb.READ, "shop", "orders")

    def stored(self) -> GrantsNode:
        found = self.tree.get(PATHS.grants)
        return GrantsNode() if found is None else read_grants(found.data)

    async def replace(self, *lines: str, version: int, scope: GrantScope = SHOP) -> SeenGrants:
        wanted = [grant(line) for line in lines]
        return await self.changes.replace_within(scope, wanted, (OPERATOR,), version=version)


def run(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        world = World()
        await world.store.start()
        await world.others.start()
        await scenario(world)
        await world.cache.stop()

    run_still(main())


def code_of(raised: pytest.ExceptionInfo[DuramenError]) -> tuple[str, str | None]:
    return raised.value.code, raised.value.field


async def pass_time(length_us: int) -> None:
    """Of the clock that stands still while anything can run."""
    await let_pass(length_us / SECOND, what="grants grow old")


# --- The cache -----------------------------------------------------------------------------------


def test_what_is_given_and_taken_counts_at_once() -> None:
    async def scenario(world: World) -> None:
        await world.cache.start()
        assert not world.may_read(), "no node: nobody has anything"
        await world.give("ann reader shop")
        await wait_for(world.may_read)
        before = world.cache.get_table()
        await world.give("ann producer shop", "bob reader shop")
        await wait_for(lambda: not world.may_read())
        assert world.cache.get_table() is not before
        assert world.cache.statistics()["grants"] == 2
        found = await world.others.get(PATHS.grants)
        assert found is not None
        await world.others.delete(PATHS.grants, version=found.version)
        await wait_for(lambda: world.cache.statistics()["grants"] == 0)

    run(scenario)


def test_nobody_is_judged_before_the_node_was_read() -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(DuramenError, match="grants: not read yet") as raised:
            world.cache.get_table()
        assert raised.value.code == "metadata_unavailable"
        assert world.cache.statistics()["grants"] is None
        await world.write(b"broken")
        await world.cache.start()
        with pytest.raises(DuramenError, match="grants: the node is no JSON"):
            world.cache.get_table()

    run(scenario)


def test_while_zookeeper_is_away_the_last_table_counts_for_so_long_and_no_longer() -> None:
    async def scenario(world: World) -> None:
        await world.give("ann reader shop")
        await world.cache.start()
        world.store.disconnect()
        await pass_time(GRANTS_AGE_MAX_US - SECOND)
        assert world.may_read()
        assert world.cache.statistics()["old_s"] == GRANTS_AGE_MAX_US // SECOND - 1
        await pass_time(2 * SECOND)
        with pytest.raises(DuramenError, match="older than 1h: ZooKeeper cannot be") as raised:
            world.cache.get_table()
        assert raised.value.code == "metadata_unavailable"
        await world.give("ann producer shop")
        world.store.reconnect()
        await wait_for(lambda: world.cache.statistics()["old_s"] is None)
        assert not world.may_read(), "what was taken meanwhile is gone"

    run(scenario)


def test_short_absences_do_not_add_up_and_a_session_that_is_back_is_not_yet_read() -> None:
    async def scenario(world: World) -> None:
        await world.give("ann reader shop")
        await world.cache.start()
        for _ in range(3):
            world.store.disconnect()
            await pass_time(GRANTS_AGE_MAX_US // 2)
            world.store.reconnect()
            await wait_for(lambda: world.cache.statistics()["old_s"] is None)
        world.store.disconnect()
        await pass_time(GRANTS_AGE_MAX_US + SECOND)
        world.store.reconnect()
        await asyncio.sleep(0)
        with pytest.raises(DuramenError, match="older than"):
            world.cache.get_table()
        await wait_for(lambda: world.cache.statistics()["old_s"] is None)

    run(scenario)


def test_a_broken_node_changes_nothing_for_so_long_and_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(world: World) -> None:
        await world.give("ann reader shop")
        await world.cache.start()
        for data in (b"broken", b" broken"):
            await world.write(data)
            await wait_for(lambda: world.cache.statistics()["is_refused"] is True)
            await pass_time(SECOND)
        assert world.may_read()
        assert len([row for row in caplog.records if "is not understood" in row.message]) == 1
        await pass_time(GRANTS_AGE_MAX_US)
        with pytest.raises(DuramenError, match="older than 1h: the node is no JSON"):
            world.cache.get_table()
        await world.give("ann reader shop")
        await wait_for(lambda: not world.cache.statistics()["is_refused"])
        assert world.may_read()

    run(scenario)


def test_a_row_that_is_not_understood_is_counted_and_gives_nothing() -> None:
    async def scenario(world: World) -> None:
        await world.write(encode_grants(GrantsNode((given("bob reader shop"),), "", (STRANGE,))))
        await world.cache.start()
        assert not world.may_read()
        assert world.cache.statistics()["not_understood"] == 1
        await world.give("ann reader shop")
        await wait_for(world.may_read)
        assert world.cache.statistics()["not_understood"] == 0

    run(scenario)


# --- Changes -------------------------------------------------------------------------------------


def test_the_first_change_makes_the_node_and_the_next_one_names_its_version() -> None:
    async def scenario(world: World) -> None:
        assert await world.changes.list_within(EVERYTHING, (OPERATOR,)) == SeenGrants(0, ())
        made = await world.replace("ann owner shop", version=0)
        assert made.version == 1
        assert made.grants == world.stored().grants
        (only,) = made.grants
        assert (only.grant, only.by) == (grant("ann owner shop"), OPERATOR)
        wanted = [grant("ann owner shop"), grant("bob reader shop/a*")]
        team = (BOB, ANN)
        changed = await world.changes.replace_within(SHOP, wanted, team, version=1)
        assert changed.version == 2
        assert [given.by for given in changed.grants] == [OPERATOR, BOB]
        listed = await world.changes.list_within(parse_scope("shop/a*"), (ANN,))
        assert listed == SeenGrants(2, changed.grants[1:])
        await world.cache.start()
        assert world.cache.get_table().rights_of(BOB).judge(Verb.READ, "shop", "ab")

    run(scenario)


def test_who_has_seen_another_version_changes_nothing() -> None:
    async def scenario(world: World) -> None:
        await world.replace("ann reader shop", "bob reader shop", version=0)
        await world.replace("bob reader shop", version=1)
        before = world.stored()
        for version in (0, 1, 3):
            with pytest.raises(DuramenError, match="which has version 2 now") as raised:
                await world.replace("ann reader shop", "bob reader shop", version=version)
            assert code_of(raised) == ("config_conflict", "version")
        assert world.stored() == before

    run(scenario)


def test_the_same_again_writes_nothing() -> None:
    async def scenario(world: World) -> None:
        first = await world.replace("ann reader shop", version=0)
        before = world.stored()
        assert await world.replace("ann reader shop", version=1) == first
        assert world.stored() == before

    run(scenario)


def test_a_change_that_comes_between_is_a_conflict() -> None:
    async def scenario(world: World) -> None:
        await world.replace("ann reader shop", version=0)
        read = world.changes._read

        async def read_late() -> object:
            found = await read()
            await world.give("bob owner shop")
            return found

        world.changes._read = read_late  # type: ignore[method-assign, assignment]
        with pytest.raises(DuramenError) as raised:
            await world.replace(version=1)
        assert code_of(raised) == ("config_conflict", "version")
        assert [each.grant for each in world.stored().grants] == [grant("bob owner shop")]

    run(scenario)


def test_the_caller_is_judged_by_the_node_and_not_by_what_the_process_remembers() -> None:
    async def scenario(world: World) -> None:
        await world.give("ann owner shop", "group:corp/team owner shop")
        await world.cache.start()
        await world.cache.stop()
        await world.give("group:corp/team owner shop")
        table: GrantTable = world.cache.get_table()
        assert table.rights_of(ANN).judge(Verb.GRANT, "shop"), "the process is behind"
        wanted = [grant("ann owner shop")]
        with pytest.raises(DuramenError) as raised:
            await world.changes.replace_within(SHOP, wanted, (ANN,), version=2)
        assert raised.value.code == "forbidden"
        with pytest.raises(DuramenError) as raised:
            await world.changes.list_within(SHOP, (ANN,))
        assert raised.value.code == "forbidden"
        seen = await world.changes.replace_within(SHOP, wanted, (ANN, TEAM), version=2)
        assert [each.by for each in seen.grants] == [ANN]

    run(scenario)


@pytest.mark.parametrize("is_there", [False, True])
def test_a_change_whose_answer_was_lost_is_known_by_its_nonce(*, is_there: bool) -> None:
    async def scenario(world: World) -> None:
        await world.others.create(PATHS.root, b"", make_parents=True)
        if is_there:
            await world.give("bob reader shop2")
        world.store.doom_next_write(WriteFate.APPLIED)
        made = await world.replace("ann reader shop", version=int(is_there))
        assert made.version == 1 + is_there
        assert len(world.stored().grants) == 1 + is_there

    run(scenario)


@pytest.mark.parametrize("fate", [WriteFate.DROPPED, WriteFate.LATE])
def test_a_change_that_may_still_come_is_said_to_be_uncertain(fate: WriteFate) -> None:
    async def scenario(world: World) -> None:
        await world.give("bob reader shop2")
        world.store.doom_next_write(fate)
        with pytest.raises(DuramenError, match="may still take effect") as raised:
            await world.replace("ann reader shop", version=1)
        assert (raised.value.code, raised.value.uncertain) == ("metadata_unavailable", True)
        assert len(world.stored().grants) == 1
        # Another change moves the version: what is late finds it, and nothing comes of it.
        await world.replace("bob producer shop", version=1)
        world.store.deliver_late_writes()
        assert [each.grant.role.value for each in world.stored().grants] == ["producer", "reader"]

    run(scenario)


def test_rows_that_are_not_understood_outlive_a_change() -> None:
    async def scenario(world: World) -> None:
        await world.write(encode_grants(GrantsNode((), "", (STRANGE,), {"later": 1})))
        await world.replace("bob reader shop", version=1)
        assert world.stored().not_understood == (STRANGE,)
        assert world.stored().extra == {"later": 1}

    run(scenario)


def test_what_is_too_long_is_refused_and_may_shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        await world.give("ann reader shop", "bob reader shop")
        monkeypatch.setattr(grant_changes, "GRANTS_BYTES_MAX", 200)
        with pytest.raises(DuramenError, match="have 200 bytes at most") as raised:
            await world.replace("ann reader shop", "bob reader shop", "ann producer shop",
                                version=1)  # fmt: skip
        assert code_of(raised) == ("invalid_argument", "grants")
        await world.replace("ann reader shop", version=1)

    run(scenario)


def test_a_broken_node_and_an_absent_zookeeper_are_told_apart() -> None:
    async def scenario(world: World) -> None:
        await world.write(b"broken")
        with pytest.raises(DuramenError, match="the grants are to be mended") as raised:
            await world.replace(version=1)
        assert raised.value.code == "internal"
        world.store.disconnect()
        with pytest.raises(DuramenError, match="ZooKeeper") as raised:
            await world.changes.list_within(SHOP, (OPERATOR,))
        assert raised.value.code == "metadata_unavailable"

    run(scenario)
