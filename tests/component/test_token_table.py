"""API tokens in a cluster: issued, followed by watch, revoked, and what counts without ZooKeeper.

On the in-memory store, whose watches are held to the port's contract (`tests/contract`).
Source: docs/protocol/credentials.md "API tokens".
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from duramen.errors import DuramenError
from duramen.runtime.credentials.access_tokens.issuing import LIFE_S_MAX, TokenIssuer
from duramen.runtime.credentials.access_tokens.token_table import AWAY_S_MAX, TokenTable
from duramen.runtime.credentials.access_tokens.token_text import make_token
from duramen.runtime.credentials.principals import CredentialRefusedError
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree, WriteFate
from duramen.runtime.stores.metadata_store import OutcomeUnknown
from duramen.wire.metadata_json import encode_node, read_node
from duramen.wire.nodes.access_tokens import Scope, read_access_token
from tests.component.credential_world import ALICE, PATHS, READING, CredentialWorld, play
from tests.unit.web_token_forge import NOW_S
from tests.waiting import wait_for

DAY_S = 86_400


async def issue_known(world: CredentialWorld, **more: Any) -> tuple[str, str]:
    text, token_id = await world.issue(**more)
    await wait_for(lambda: world.knows(token_id))
    return text, token_id


def test_a_token_opens_what_its_scopes_say_until_it_ends(tmp_path: Path) -> None:
    async def scenario(world: CredentialWorld) -> None:
        text, token_id = await issue_known(world)
        bearer = await world.judge(text, NOW_S + 3_599)
        assert str(bearer.principal) == f"token:{token_id}"
        assert (bearer.scopes, bearer.until_s, bearer.groups) == (READING, NOW_S + 3_600, ())
        with pytest.raises(CredentialRefusedError, match="ended"):
            await world.judge(text, NOW_S + 3_600)

    play(tmp_path, scenario)


def test_what_is_stored_opens_nothing(tmp_path: Path) -> None:
    async def scenario(world: CredentialWorld) -> None:
        text, token_id = await issue_known(world)
        found = await world.store.get(PATHS.access_token(token_id))
        assert found is not None
        assert text.encode() not in found.data
        assert text[22:].encode() not in found.data
        token = read_access_token(found.data)
        assert token.issued_by == "user:corp/alice"
        with pytest.raises(CredentialRefusedError):
            await world.judge(f"{text[:22]}{token.secret_hash.hex()[:52]}")

    play(tmp_path, scenario)


def test_a_revoked_token_is_refused_everywhere_at_the_next_look(tmp_path: Path) -> None:
    async def scenario(world: CredentialWorld) -> None:
        elsewhere = TokenTable(MemoryStore(world.tree), PATHS)
        await elsewhere._store.start()
        await elsewhere.start()
        text, token_id = await issue_known(world)
        await wait_for(lambda: len(elsewhere.list_tokens()) == 1)
        assert elsewhere.find(text, NOW_S).scopes == READING
        assert await world.issuer.revoke(token_id)
        await wait_for(lambda: not world.table.list_tokens() and not elsewhere.list_tokens())
        for find in (elsewhere.find, world.table.find):
            with pytest.raises(CredentialRefusedError, match="not known, or revoked"):
                find(text, NOW_S)
        assert not await world.issuer.revoke(token_id), "it is gone"
        await elsewhere.stop()

    play(tmp_path, scenario)


def test_another_cluster_s_token_is_a_stranger_s(tmp_path: Path) -> None:
    async def scenario(world: CredentialWorld) -> None:
        (tmp_path / "b").mkdir()
        other = CredentialWorld(tmp_path / "b", MemoryTree())
        await other.store.start()
        await other.table.start()
        text, _ = await issue_known(other)
        with pytest.raises(CredentialRefusedError, match="not known"):
            await world.judge(text)
        await other.table.stop()

    play(tmp_path, scenario)


def test_a_token_that_was_there_before_is_known_once_the_table_has_started(tmp_path: Path) -> None:
    async def scenario(world: CredentialWorld) -> None:
        texts = [(await issue_known(world))[0] for _ in range(3)]
        later = TokenTable(world.store, PATHS)
        await later.start()
        assert [len(later.find(text, NOW_S).scopes) for text in texts] == [1, 1, 1]
        assert later.statistics()["api_tokens"] == 3
        await later.stop()

    play(tmp_path, scenario)


# --- What is read --------------------------------------------------------------------------------


@pytest.mark.parametrize("spoil", ["version", "field", "id", "bytes"])
def test_a_node_that_cannot_be_read_opens_nothing_and_is_told(tmp_path: Path, spoil: str) -> None:
    async def scenario(world: CredentialWorld) -> None:
        text, token_id = await issue_known(world)
        path = PATHS.access_token(token_id)
        found = await world.store.get(path)
        assert found is not None
        fields = read_node(found.data)
        data = {
            "version": found.data.replace(b'"v":1', b'"v":2'),
            "field": encode_node(fields | {"only_from": "10.0.0.0/8"}),
            "id": encode_node(fields | {"id": make_token().token_id}),
            "bytes": b"{",
        }[spoil]
        await world.store.set(path, data, version=0)
        fresh = TokenTable(world.store, PATHS)
        await fresh.start()
        with pytest.raises(CredentialRefusedError):
            fresh.find(text, NOW_S)
        told = fresh.statistics()
        assert (told["api_tokens"], told["api_tokens_unreadable"]) == (0, 1)
        await world.store.delete(path, version=1)
        await wait_for(lambda: fresh.statistics()["api_tokens_unreadable"] == 0)
        await fresh.stop()

    play(tmp_path, scenario)


def test_of_too_many_tokens_those_with_the_highest_ids_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = "duramen.runtime.credentials.access_tokens.token_table.TOKEN_COUNT_TAKEN"
    monkeypatch.setattr(where, 2)

    async def scenario(world: CredentialWorld) -> None:
        ids = sorted([(await world.issue())[1] for _ in range(4)])

        def count() -> tuple[list[str], int]:
            taken = [one.token_id for one in world.table.list_tokens()]
            return taken, world.table.statistics()["api_tokens_left_out"]

        await wait_for(lambda: count() == (ids[:2], 2))
        await world.issuer.revoke(ids[0])
        await wait_for(lambda: count() == (ids[1:3], 1))

    play(tmp_path, scenario)


def test_each_node_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: CredentialWorld) -> None:
        read: list[str] = []
        get = world.store.get

        async def counted(path: str, *more: Any) -> Any:
            read.append(path)
            return await get(path, *more)

        monkeypatch.setattr(world.store, "get", counted)
        ids = [(await issue_known(world))[1] for _ in range(8)]
        assert sorted(read) == sorted(map(PATHS.access_token, ids))

    play(tmp_path, scenario)


# --- Without ZooKeeper ---------------------------------------------------------------------------


def test_tokens_count_for_an_hour_while_zookeeper_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert AWAY_S_MAX == 3_600
    where = "duramen.runtime.credentials.access_tokens.token_table.AWAY_S_MAX"

    async def scenario(world: CredentialWorld) -> None:
        text, token_id = await issue_known(world)
        others = MemoryStore(world.tree)
        await others.start()
        world.store.disconnect()
        await others.delete(PATHS.access_token(token_id), version=0)
        await wait_for(lambda: world.table._away_since_s is not None)
        assert (await world.judge(text)).scopes == READING, "nobody could say that it was revoked"
        monkeypatch.setattr(where, -1)
        with pytest.raises(CredentialRefusedError, match="ZooKeeper has been away"):
            await world.judge(text)
        assert str((await world.judge_web()).principal) == "user:corp/alice"
        world.store.reconnect()
        await wait_for(lambda: not world.knows(token_id))
        second, _ = await issue_known(world)
        assert (await world.judge(second)).scopes == READING, "it is back"

    play(tmp_path, scenario)


# --- Issuing -------------------------------------------------------------------------------------


def test_nobody_gives_more_than_he_has(tmp_path: Path) -> None:
    async def scenario(world: CredentialWorld) -> None:
        held = (Scope(frozenset({"read"}), "events"),)
        for target, verb in (("events", "append"), ("other", "read"), ("*", "read")):
            with pytest.raises(DuramenError, match=f"{verb} on") as refusal:
                await world.issue(held=held, scopes=(Scope(frozenset({verb}), target),))
            assert (refusal.value.code, refusal.value.field) == ("forbidden", "scopes")
        assert await world.store.children(PATHS.access_tokens) is None
        await world.issue(held=held, scopes=(Scope(frozenset({"read"}), "events/web-*"),))

    play(tmp_path, scenario)


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"scopes": ()}, "scopes"),
        ({"scopes": READING * 33}, "scopes"),
        ({"scopes": (Scope(frozenset(), "events"),)}, "scopes"),
        ({"scopes": (Scope(frozenset({"READ"}), "events"),)}, "scopes"),
        ({"scopes": (Scope(frozenset({"read"}), "events/a/b"),)}, "scopes"),
        ({"life_s": LIFE_S_MAX + 1}, "expires"),
        ({"life_s": 59}, "expires"),
        ({"life_s": -1}, "expires"),
        ({"note": "a\nb"}, "note"),
        ({"note": "a" * 401}, "note"),
    ],
)
def test_a_request_of_another_form_is_refused_with_its_field(
    tmp_path: Path, asked: dict[str, Any], field: str
) -> None:
    async def scenario(world: CredentialWorld) -> None:
        with pytest.raises(DuramenError) as refusal:
            await world.issue(**asked)
        assert refusal.value.field == field

    play(tmp_path, scenario)


def test_what_a_token_makes_dies_with_it_and_before_it(tmp_path: Path) -> None:
    async def scenario(world: CredentialWorld) -> None:
        text, token_id = await issue_known(world)
        first = await world.judge(text)
        line = [text]
        for _ in range(3):
            made, _ = await issue_known(
                world, issuer=await world.judge(line[-1]), held=READING, life_s=DAY_S
            )
            line.append(made)
        for made in line:
            assert (await world.judge(made)).until_s == first.until_s, "none outlives the first"
        ends = {one.expires_s for one in world.table.list_tokens()}
        assert ends == {first.until_s}, "and lists say so"
        with pytest.raises(DuramenError, match="made with too many others") as refusal:
            await world.issue(issuer=await world.judge(line[-1]), held=READING)
        assert refusal.value.code == "forbidden"
        await world.issuer.revoke(token_id)
        await wait_for(lambda: not world.knows(token_id))
        for made in line:
            with pytest.raises(CredentialRefusedError):
                await world.judge(made)

    play(tmp_path, scenario)


@pytest.mark.parametrize("token_id", ["", "../cluster", "x/y", "dur1_abcdefghijkl2345", "A" * 16])
def test_only_an_id_is_revoked(tmp_path: Path, token_id: str) -> None:
    async def scenario(world: CredentialWorld) -> None:
        await world.store.create("/duramen/c1/cluster", b"", make_parents=True)
        with pytest.raises(DuramenError, match="no token's id"):
            await world.issuer.revoke(token_id)
        assert await world.store.get("/duramen/c1/cluster") is not None

    play(tmp_path, scenario)


def test_tokens_that_ended_a_day_ago_are_swept_and_no_others(tmp_path: Path) -> None:
    async def scenario(world: CredentialWorld) -> None:
        _, old = await issue_known(world, life_s=60)
        _, newer = await issue_known(world, life_s=120)
        now_s = NOW_S + DAY_S + 61
        _, last = await issue_known(world, now_s=now_s)
        await wait_for(lambda: not world.knows(old))
        kept = {one.token_id for one in world.table.list_tokens()}
        assert kept == {newer, last}

    play(tmp_path, scenario)


def test_there_is_room_for_so_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = "duramen.runtime.credentials.access_tokens.issuing.TOKEN_COUNT_MAX"
    monkeypatch.setattr(where, 2)

    async def scenario(world: CredentialWorld) -> None:
        await issue_known(world)
        _, token_id = await issue_known(world)
        with pytest.raises(DuramenError, match="revoke some"):
            await world.issue()
        await world.issuer.revoke(token_id)
        await wait_for(lambda: not world.knows(token_id))
        await issue_known(world)

    play(tmp_path, scenario)


@pytest.mark.parametrize("fate", WriteFate)
def test_a_write_of_unknown_fate_is_read_back(tmp_path: Path, fate: WriteFate) -> None:
    async def scenario(world: CredentialWorld) -> None:
        await issue_known(world)
        issuer = TokenIssuer(world.store, PATHS, world.table)
        world.store.doom_next_write(fate)
        try:
            made, token = await issuer.issue(
                ALICE, READING, READING, life_s=60, note="", now_s=NOW_S
            )
        except OutcomeUnknown:
            assert fate is not WriteFate.APPLIED
            world.store.deliver_late_writes()
            return
        assert fate is WriteFate.APPLIED
        await wait_for(lambda: world.knows(token.token_id))
        assert (await world.judge(made.text)).scopes == READING

    play(tmp_path, scenario)
