"""API tokens as a process knows them: followed by watch, and what counts while looks fail.

On the in-memory store, whose watches are held to the port's contract (`tests/contract`).
Source: docs/protocol/credentials.md "API tokens".
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from duramen.limits import GRANTS_AGE_MAX_US
from duramen.runtime.credentials.access_tokens.token_table import TokenTable
from duramen.runtime.credentials.access_tokens.token_text import make_token
from duramen.runtime.credentials.principals import CredentialRefusedError, NothingKnownError
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.runtime.stores.metadata_store import Rejected, Unavailable
from duramen.wire.metadata_json import encode_node, read_node
from duramen.wire.nodes.access_tokens import read_access_token
from tests.component.credential_world import ALICE, PATHS, READING, CredentialWorld, play
from tests.unit.web_token_forge import NOW_S
from tests.waiting import wait_for

TABLE = "duramen.runtime.credentials.access_tokens.token_table"


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
        token = read_access_token(found.data, token_id)
        assert token.issued_by == ALICE.principal
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
        assert await world.issuer.revoke(ALICE, token_id, NOW_S)
        await wait_for(lambda: not world.table.list_tokens() and not elsewhere.list_tokens())
        for find in (elsewhere.find, world.table.find):
            with pytest.raises(CredentialRefusedError, match="not known, or revoked") as refusal:
                find(text, NOW_S)
            assert not isinstance(refusal.value, NothingKnownError)
        assert not await world.issuer.revoke(ALICE, token_id, NOW_S), "it is gone"
        await elsewhere.stop()

    play(tmp_path, scenario)


def test_another_cluster_s_token_is_a_stranger_s(tmp_path: Path) -> None:
    async def scenario(world: CredentialWorld) -> None:
        (tmp_path / "b").mkdir()
        other = CredentialWorld(tmp_path / "b", MemoryTree())
        await other.store.start()
        await other.grant("user:corp/alice owner *")
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
    monkeypatch.setattr(f"{TABLE}.TOKEN_COUNT_TAKEN", 2)

    async def scenario(world: CredentialWorld) -> None:
        texts = {token_id: text for text, token_id in [await world.issue() for _ in range(4)]}
        ids = sorted(texts)

        def count() -> tuple[list[str], int]:
            taken = [one.token_id for one in world.table.list_tokens()]
            return taken, world.table.statistics()["api_tokens_left_out"]

        await wait_for(lambda: count() == (ids[:2], 2))
        with pytest.raises(NothingKnownError, match="2 of them are not read here"):
            await world.judge(texts[ids[3]])
        await world.issuer.revoke(ALICE, ids[0], NOW_S)
        await wait_for(lambda: count() == (ids[1:3], 1))

    play(tmp_path, scenario)


def test_each_node_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: CredentialWorld) -> None:
        other = MemoryStore(world.tree)
        await other.start()
        table, read, get = TokenTable(other, PATHS), list[str](), other.get

        async def counted(path: str, *more: Any) -> Any:
            read.append(path)
            return await get(path, *more)

        monkeypatch.setattr(other, "get", counted)
        await table.start()
        ids = [(await issue_known(world))[1] for _ in range(8)]
        await wait_for(lambda: len(table.list_tokens()) == len(ids))
        assert sorted(read) == sorted(map(PATHS.access_token, ids))
        await table.stop()

    play(tmp_path, scenario)


# --- What is unknown -----------------------------------------------------------------------------


def test_nobody_is_refused_before_the_tokens_were_read(tmp_path: Path) -> None:
    async def scenario(world: CredentialWorld) -> None:
        text, _ = await issue_known(world)
        table = TokenTable(world.store, PATHS)
        for shown in (text, make_token().text):
            with pytest.raises(NothingKnownError, match="not read yet"):
                table.find(shown, NOW_S)
        with pytest.raises(CredentialRefusedError, match="of another form") as refusal:
            table.find("dur1_x", NOW_S)
        assert not isinstance(refusal.value, NothingKnownError), "no token has that form"

    play(tmp_path, scenario)


def test_tokens_count_for_an_hour_while_zookeeper_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert GRANTS_AGE_MAX_US == 3_600_000_000

    async def scenario(world: CredentialWorld) -> None:
        text, token_id = await issue_known(world)
        others = MemoryStore(world.tree)
        await others.start()
        world.store.disconnect()
        await others.delete(PATHS.access_token(token_id), version=0)
        await wait_for(lambda: world.table._old_since_s is not None)
        assert (await world.judge(text)).scopes == READING, "nobody could say that it was revoked"
        for shown in (make_token().text, text[:-2] + "aa"):
            # It may have been made a moment ago; and an id that is there must not show itself.
            with pytest.raises(NothingKnownError, match="ZooKeeper cannot be reached"):
                await world.judge(shown)
        monkeypatch.setattr(f"{TABLE}._AGE_S_MAX", -1)
        for shown in (text, make_token().text, text[:-2] + "aa"):
            with pytest.raises(NothingKnownError, match="ZooKeeper cannot be reached"):
                await world.judge(shown)
        assert str((await world.judge_web()).principal) == "user:corp/alice"
        world.store.reconnect()
        await wait_for(lambda: not world.knows(token_id))
        second, _ = await issue_known(world)
        assert (await world.judge(second)).scopes == READING, "it is back"

    play(tmp_path, scenario)


def test_a_look_that_fails_while_the_session_lasts_makes_the_table_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(world: CredentialWorld) -> None:
        text, token_id = await issue_known(world)
        children = world.store.children

        async def fail(*_: Any) -> Any:
            raise Unavailable("no answer")

        monkeypatch.setattr(world.store, "children", fail)
        others = MemoryStore(world.tree)
        await others.start()
        await others.delete(PATHS.access_token(token_id), version=0)
        await wait_for(lambda: world.table._old_since_s is not None)
        assert (await world.judge(text)).scopes == READING
        monkeypatch.setattr(f"{TABLE}._AGE_S_MAX", -1)
        with pytest.raises(NothingKnownError, match="no answer"):
            await world.judge(text)
        monkeypatch.setattr(world.store, "children", children)
        await wait_for(lambda: world.table._old_since_s is None)
        with pytest.raises(CredentialRefusedError, match="revoked"):
            await world.judge(text)

    play(tmp_path, scenario)


def forbid(monkeypatch: pytest.MonkeyPatch, store: MemoryStore, paths: set[str]) -> None:
    """Have these nodes unreadable for one client, as ZooKeeper's access lists do."""
    for name in ("get", "children"):
        read = getattr(store, name)

        def judge(path: str, *more: Any, read: Any = read) -> Any:
            if path in paths:
                raise Rejected(f"no access to {path}")
            return read(path, *more)

        monkeypatch.setattr(store, name, judge)


def test_a_node_that_may_not_be_read_hides_no_other_and_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{TABLE}._FORBIDDEN_RETRY_S", 0.01)

    async def scenario(world: CredentialWorld) -> None:
        texts = {token_id: text for text, token_id in [await issue_known(world) for _ in range(3)]}
        first, *others = sorted(texts)
        store = MemoryStore(world.tree)
        await store.start()
        paths = {PATHS.access_token(first)}
        forbid(monkeypatch, store, paths)
        table = TokenTable(store, PATHS)
        await table.start()
        assert [table.find(texts[name], NOW_S).scopes for name in others] == [READING] * 2
        with pytest.raises(NothingKnownError, match="1 of them are not read here"):
            table.find(texts[first], NOW_S)
        assert table.statistics()["api_tokens_forbidden"] == 1
        paths.clear()
        await wait_for(lambda: table.statistics()["api_tokens_forbidden"] == 0)
        assert table.find(texts[first], NOW_S).scopes == READING, "it was looked for again"
        await table.stop()

    play(tmp_path, scenario)


def test_a_start_goes_on_where_no_token_may_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{TABLE}._FORBIDDEN_RETRY_S", 0.01)

    async def scenario(world: CredentialWorld) -> None:
        text, _ = await issue_known(world)
        store = MemoryStore(world.tree)
        await store.start()
        paths = {PATHS.access_tokens}
        forbid(monkeypatch, store, paths)
        table = TokenTable(store, PATHS)
        await table.start()
        with pytest.raises(NothingKnownError, match="no access"):
            table.find(text, NOW_S)
        paths.clear()
        await wait_for(lambda: len(table.list_tokens()) == 1)
        assert table.find(text, NOW_S).scopes == READING
        await table.stop()

    play(tmp_path, scenario)
