"""The grants of a cluster in a process: followed by a watch, changed by compare-and-set.

On the in-memory store, whose watches and outcomes are held to the port's contract.
Source: docs/protocol/rights.md "How grants change", docs/protocol/rights.md "How grants reach
processes".
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable

import pytest

from duramen.core.rights.grants import GrantScope, Principal, parse_scope
from duramen.core.rights.judgement import GrantTable, Rights
from duramen.core.rights.token_scopes import parse_token_scope
from duramen.core.rights.verbs import Verb
from duramen.errors import DuramenError
from duramen.limits import GRANTS_AGE_MAX_US
from duramen.runtime.credentials.access_tokens.token_stock import TokenStock
from duramen.runtime.credentials.principals import Bearer
from duramen.runtime.rights import grant_changes
from duramen.runtime.rights.grant_cache import GrantCache
from duramen.runtime.rights.grant_changes import GrantChanges, SeenGrants, StrangeRows
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree, WriteFate
from duramen.runtime.stores.metadata_store import Rejected, Unavailable
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


FAR_S = 2**40
BY_OPERATOR = Bearer(OPERATOR, FAR_S)


class World:
    """A process that follows and changes grants, and somebody else who writes the node."""

    def __init__(self) -> None:
        self.tree = MemoryTree()
        self.store, self.others = MemoryStore(self.tree), MemoryStore(self.tree)
        self.cache = GrantCache(self.store, PATHS)
        self.changes = GrantChanges(self.store, PATHS, TokenStock(self.store, PATHS))

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

    async def replace(
        self,
        *lines: str,
        version: int,
        scope: GrantScope = SHOP,
        caller: Bearer = BY_OPERATOR,
        nonce: str | None = None,
        strange: StrangeRows | None = None,
    ) -> SeenGrants:
        wanted = [grant(line) for line in lines]
        return await self.changes.replace_within(
            scope, wanted, caller,
            version=version, nonce=nonce or secrets.token_hex(12), strange=strange,
        )  # fmt: skip


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


def test_what_needs_no_grant_is_judged_while_grants_are_unknown() -> None:
    async def scenario(world: World) -> None:
        reading = (parse_token_scope(["read"], "shop"),)

        def see(*principals: Principal) -> Rights:
            return world.cache.rights_of(*principals, scopes=reading)

        async def check() -> None:
            assert see(OPERATOR).judge(Verb.GRANT) and see(OPERATOR).holds(list(Verb), EVERYTHING)
            assert see(ANN).judge(Verb.READ, "shop", "orders") and see(ANN).reaches(
                Verb.READ, "shop"
            )
            unknown: list[Callable[[], bool]] = [
                lambda: see(ANN).judge(Verb.APPEND, "shop", "orders"),
                lambda: see(ANN).reaches(Verb.LIST, "shop"),
                lambda: see(ANN).holds((Verb.READ, Verb.LIST), SHOP),
                lambda: world.cache.rights_of(ANN).judge(Verb.READ, "shop"),
            ]
            for ask in unknown:
                with pytest.raises(DuramenError) as raised:
                    ask()
                assert raised.value.code == "metadata_unavailable"

        await check()
        await world.write(b"broken")
        await world.cache.start()
        await check()
        await world.give()
        await wait_for(lambda: not world.cache.statistics()["is_refused"])
        assert not see(ANN).judge(Verb.APPEND, "shop", "orders"), "now it is known"
        assert see(ANN).judge(Verb.READ, "shop", "orders"), "scopes come on top"
        assert not world.cache.rights_of(ANN).judge(Verb.READ, "shop"), "and are nobody else's"
        world.store.disconnect()
        await pass_time(GRANTS_AGE_MAX_US + SECOND)
        await check()

    run(scenario)


def test_a_look_that_fails_while_the_session_lasts_makes_the_table_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        await world.give("ann reader shop")
        await world.cache.start()

        async def fail(*_: object) -> None:
            raise Unavailable("no answer")

        with monkeypatch.context() as patch:
            patch.setattr(world.store, "get", fail)
            await world.give("ann producer shop")
            await wait_for(lambda: world.cache.statistics()["old_s"] is not None)
            assert world.may_read()
            await pass_time(GRANTS_AGE_MAX_US + SECOND)
            with pytest.raises(DuramenError, match="older than 1h"):
                world.cache.get_table()
        await wait_for(lambda: world.cache.statistics()["old_s"] is None)
        assert not world.may_read()

    run(scenario)


def test_a_start_goes_on_where_the_node_may_not_be_read_and_looks_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        await world.give("ann reader shop")

        async def forbid(*_: object) -> None:
            raise Rejected("no access")

        with monkeypatch.context() as patch:
            patch.setattr(world.store, "get", forbid)
            await world.cache.start()
            await pass_time(60 * SECOND)
            with pytest.raises(DuramenError, match="grants: no access") as raised:
                world.cache.get_table()
            assert raised.value.code == "metadata_unavailable"
        await wait_for(lambda: world.cache.statistics()["grants"] == 1)
        assert world.may_read()

    run(scenario)


# --- Changes -------------------------------------------------------------------------------------


def test_the_first_change_makes_the_node_and_the_next_one_names_its_version() -> None:
    async def scenario(world: World) -> None:
        assert await world.changes.list_within(EVERYTHING, BY_OPERATOR) == SeenGrants(0, ())
        made = await world.replace("ann owner shop", version=0)
        assert made.version == 1
        assert made.grants == world.stored().grants
        (only,) = made.grants
        assert (only.grant, only.by) == (grant("ann owner shop"), OPERATOR)
        team = Bearer(BOB, FAR_S, (ANN,))
        changed = await world.replace(
            "ann owner shop", "bob reader shop/a*", version=1, caller=team
        )
        assert changed.version == 2
        assert [given.by for given in changed.grants] == [OPERATOR, BOB]
        listed = await world.changes.list_within(parse_scope("shop/a*"), Bearer(ANN, FAR_S))
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
        with pytest.raises(DuramenError) as raised:
            await world.replace("ann owner shop", version=2, caller=Bearer(ANN, FAR_S))
        assert raised.value.code == "forbidden"
        with pytest.raises(DuramenError) as raised:
            await world.changes.list_within(SHOP, Bearer(ANN, FAR_S))
        assert raised.value.code == "forbidden"
        team = Bearer(ANN, FAR_S, (TEAM,))
        seen = await world.replace("ann owner shop", version=2, caller=team)
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


def test_rows_that_are_not_understood_outlive_a_change_that_does_not_name_them() -> None:
    async def scenario(world: World) -> None:
        await world.write(encode_grants(GrantsNode((), "", (STRANGE,), {"later": 1})))
        await world.replace("bob reader shop", version=1)
        await world.replace("bob reader shop", "bob producer shop", version=2, scope=EVERYTHING)
        assert world.stored().not_understood == (STRANGE,)
        assert world.stored().extra == {"later": 1}

    run(scenario)


def test_rows_that_are_not_understood_are_seen_and_removed_by_who_grants_everywhere() -> None:
    async def scenario(world: World) -> None:
        second = {**STRANGE, "scope": "shop2"}
        everywhere = Bearer(BOB, FAR_S)
        strange = (STRANGE, second)
        granted = (given("bob owner *"), given("ann owner shop"))
        await world.write(encode_grants(GrantsNode(granted, "", strange)))
        seen = await world.changes.list_within(EVERYTHING, everywhere)
        assert seen.not_understood == strange
        assert (await world.changes.list_within(SHOP, Bearer(ANN, FAR_S))).not_understood == ()
        lines = ("bob owner *", "ann owner shop")
        for scope, caller, wrong in (
            (EVERYTHING, everywhere, [{**STRANGE, "role": "owner"}]),
            (SHOP, everywhere, []),
            (SHOP, Bearer(ANN, FAR_S), [STRANGE]),
        ):
            given_lines = lines if scope == EVERYTHING else lines[1:]
            with pytest.raises(DuramenError) as raised:
                await world.replace(
                    *given_lines, version=1, scope=scope, caller=caller, strange=wrong
                )
            assert code_of(raised) == ("invalid_argument", "not_understood")
        left = await world.replace(
            *lines, version=1, scope=EVERYTHING, caller=everywhere, strange=[second]
        )
        assert (left.version, left.not_understood) == (2, (second,))
        assert world.stored().not_understood == (second,)
        again = await world.replace(
            *lines, version=2, scope=EVERYTHING, caller=everywhere, strange=[second]
        )
        assert again == left, "the same again changes nothing"

    run(scenario)


def test_a_try_whose_answer_was_lost_is_known_by_the_next_one() -> None:
    async def scenario(world: World) -> None:
        await world.give("ann owner shop")
        owner = Bearer(ANN, FAR_S)
        first = await world.replace("bob owner shop", version=1, caller=owner, nonce="n1")
        assert await world.replace("bob owner shop", version=1, caller=owner, nonce="n1") == first
        with pytest.raises(DuramenError) as raised:
            await world.replace("ann owner shop", version=1, caller=owner, nonce="n2")
        assert raised.value.code == "forbidden", "it gave its own right away"

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


def test_a_broken_node_is_replaced_by_an_operator_alone_and_by_its_version() -> None:
    async def scenario(world: World) -> None:
        await world.write(b"broken")
        everywhere = Bearer(ANN, FAR_S, scopes=(parse_token_scope(["grant", "read"], "*"),))
        for scope, caller in ((EVERYTHING, everywhere), (SHOP, BY_OPERATOR), (SHOP, everywhere)):
            with pytest.raises(DuramenError, match="an operator's identity has to") as raised:
                await world.changes.list_within(scope, caller)
            assert raised.value.code == "metadata_unavailable"
            with pytest.raises(DuramenError, match="an operator's identity has to"):
                await world.replace("bob owner shop", version=1, scope=scope, caller=caller)
        seen = await world.changes.list_within(EVERYTHING, BY_OPERATOR)
        assert (seen.version, seen.grants, seen.unreadable) == (1, (), "the node is no JSON")
        with pytest.raises(DuramenError) as raised:
            await world.replace("bob owner shop", version=2, scope=EVERYTHING)
        assert raised.value.code == "config_conflict"
        for version in (1, 2):
            made = await world.replace("bob owner shop", version=version, scope=EVERYTHING)
            assert (made.version, made.unreadable) == (2, None)
        assert [each.grant for each in world.stored().grants] == [grant("bob owner shop")]
        await world.write(b"broken")
        emptied = await world.replace(version=3, scope=EVERYTHING)
        assert (emptied.version, world.stored().grants) == (4, ())

    run(scenario)


def test_an_absent_zookeeper_is_told() -> None:
    async def scenario(world: World) -> None:
        world.store.disconnect()
        with pytest.raises(DuramenError, match="ZooKeeper") as raised:
            await world.changes.list_within(SHOP, BY_OPERATOR)
        assert raised.value.code == "metadata_unavailable"

    run(scenario)
