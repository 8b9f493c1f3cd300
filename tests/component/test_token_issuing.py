"""API tokens issued, listed and revoked: by whom, for how long, how many, and what outlives what.

On the in-memory store, whose outcomes are held to the port's contract (`tests/contract`).
Source: docs/protocol/credentials.md "Who makes one, and for how long".
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from duramen.core.rights.grants import parse_principal
from duramen.errors import DuramenError
from duramen.runtime.credentials.access_tokens.issuing import LIFE_S_MAX, AskedToken
from duramen.runtime.credentials.access_tokens.token_text import make_token
from duramen.runtime.credentials.principals import Bearer, CredentialRefusedError, name_user
from duramen.runtime.stores.memory_store import MemoryStore, WriteFate
from duramen.runtime.stores.metadata_store import Create, Op
from duramen.wire.nodes.access_tokens import AccessToken, encode_access_token, read_access_token
from tests.component.credential_world import ALICE, PATHS, READING, CredentialWorld, play, scope
from tests.unit.web_token_forge import NOW_S
from tests.waiting import wait_for

ISSUING = "duramen.runtime.credentials.access_tokens.issuing"
DAY_S = 86_400
YEAR_S = 366 * DAY_S
BOB = Bearer(name_user("corp", "bob"), NOW_S + 900)
OPERATOR = Bearer(parse_principal("service:operator/op"), NOW_S + 300)


async def issue_known(world: CredentialWorld, **more: Any) -> tuple[str, str]:
    text, token_id = await world.issue(**more)
    await wait_for(lambda: world.knows(token_id))
    return text, token_id


async def stored(world: CredentialWorld, token_id: str) -> AccessToken:
    found = await world.store.get(PATHS.access_token(token_id))
    assert found is not None
    return read_access_token(found.data, token_id)


async def refused(world: CredentialWorld, **more: Any) -> DuramenError:
    with pytest.raises(DuramenError) as refusal:
        await world.issue(**more)
    return refusal.value


# --- What it may do ------------------------------------------------------------------------------


def test_nobody_gives_more_than_he_has(tmp_path: Path) -> None:
    async def scenario(world: CredentialWorld) -> None:
        await world.grant("user:corp/bob reader events")
        for target, verb in (("events", "append"), ("other", "read"), ("*", "read")):
            error = await refused(world, issuer=BOB, scopes=(scope(target, verb),))
            assert (error.code, error.field) == ("forbidden", "scopes")
            assert error.detail == f"{verb} on {target}: you may not"
        assert await world.store.children(PATHS.access_tokens) is None
        await world.issue(issuer=BOB, scopes=(scope("events/web-*", "read"),))

    play(tmp_path, scenario)


def test_a_right_that_is_taken_in_between_becomes_no_token(tmp_path: Path) -> None:
    """The grants are changed when the token's node is about to be written."""

    async def scenario(world: CredentialWorld) -> None:
        _, first = await world.issue()
        commit, are_taken = world.store.commit, False

        async def commit_late(ops: Sequence[Op]) -> tuple[int, ...]:
            nonlocal are_taken
            if any(isinstance(op, Create) for op in ops) and not are_taken:
                are_taken = True
                other = MemoryStore(world.tree)
                await other.start()
                found = await other.get(PATHS.grants)
                assert found is not None
                await other.set(PATHS.grants, found.data.replace(b"alice", b"carol"), version=0)
            return await commit(ops)

        world.store.commit = commit_late  # type: ignore[method-assign]
        assert (await refused(world)).code == "forbidden"
        assert await world.store.children(PATHS.access_tokens) == (first,)

    play(tmp_path, scenario)


def test_what_a_maker_loses_later_its_token_keeps(tmp_path: Path) -> None:
    async def scenario(world: CredentialWorld) -> None:
        text, _ = await issue_known(world)
        await world.grant("user:corp/bob owner *")
        assert (await world.judge(text)).scopes == READING

    play(tmp_path, scenario)


@pytest.mark.parametrize("life_s", [LIFE_S_MAX + 1, 59, 0])
def test_a_life_that_is_none_is_refused(tmp_path: Path, life_s: int) -> None:
    async def scenario(world: CredentialWorld) -> None:
        error = await refused(world, life_s=life_s)
        assert (error.code, error.field) == ("invalid_argument", "expires")

    play(tmp_path, scenario)


def test_whose_credential_has_ended_asks_for_nothing(tmp_path: Path) -> None:
    async def scenario(world: CredentialWorld) -> None:
        error = await refused(world, now_s=ALICE.ends_s)
        assert (error.code, error.detail) == ("forbidden", "your credential has ended meanwhile")

    play(tmp_path, scenario)


# --- For how long --------------------------------------------------------------------------------


def test_a_token_ends_with_its_maker_s_credential_unless_the_maker_grants_there(
    tmp_path: Path,
) -> None:
    async def scenario(world: CredentialWorld) -> None:
        await world.grant("user:corp/bob writer events", "user:corp/bob owner shop")
        both = (*READING, scope("shop", "read"))
        for scopes, ends_s in (
            (READING, BOB.ends_s),
            (both, BOB.ends_s),
            ((scope("shop/a*", "read"),), NOW_S + YEAR_S),
        ):
            _, token_id = await world.issue(issuer=BOB, scopes=scopes, life_s=YEAR_S)
            assert (await stored(world, token_id)).expires_s == ends_s, scopes
        _, token_id = await world.issue(issuer=OPERATOR, life_s=YEAR_S)
        assert (await stored(world, token_id)).expires_s == NOW_S + YEAR_S
        _, token_id = await world.issue(issuer=BOB, life_s=60)
        assert (await stored(world, token_id)).expires_s == NOW_S + 60

    play(tmp_path, scenario)


def test_a_token_outlives_the_next_review_of_its_maker(tmp_path: Path) -> None:
    async def scenario(world: CredentialWorld) -> None:
        await world.grant("user:corp/bob writer events")
        _, token_id = await world.issue(issuer=BOB._replace(review_s=NOW_S + 5), life_s=YEAR_S)
        assert (await stored(world, token_id)).expires_s == BOB.ends_s

    play(tmp_path, scenario)


def test_what_a_token_makes_dies_with_it_and_before_it(tmp_path: Path) -> None:
    async def scenario(world: CredentialWorld) -> None:
        reading = (scope("events", "read", "grant"),)
        text, token_id = await issue_known(world, scopes=reading)
        first = await world.judge(text)
        line = [text]
        for _ in range(3):
            maker = await world.judge(line[-1])
            made, _ = await issue_known(world, issuer=maker, scopes=reading, life_s=DAY_S)
            line.append(made)
        for made in line:
            assert (await world.judge(made)).ends_s == first.ends_s, "none outlives the first"
        ends = {one.expires_s for one in world.table.list_tokens()}
        assert ends == {first.ends_s}, "and lists say so, whatever it may grant"
        error = await refused(world, issuer=await world.judge(line[-1]))
        assert (error.code, "made with too many others" in error.detail) == ("forbidden", True)
        await world.issuer.revoke(ALICE, token_id, NOW_S)
        await wait_for(lambda: not world.knows(token_id))
        for made in line:
            with pytest.raises(CredentialRefusedError):
                await world.judge(made)

    play(tmp_path, scenario)


def test_a_token_that_was_revoked_makes_no_other(tmp_path: Path) -> None:
    async def scenario(world: CredentialWorld) -> None:
        text, token_id = await issue_known(world)
        maker = await world.judge(text)
        wider = maker._replace(scopes=(scope("*", "read"),))
        error = await refused(world, issuer=wider, scopes=(scope("shop", "read"),))
        assert error.code == "forbidden", "its own node says what it may do, not who tells of it"
        commit = world.store.commit

        async def revoke_first(ops: Sequence[Op]) -> tuple[int, ...]:
            other = MemoryStore(world.tree)
            await other.start()
            if await other.get(PATHS.access_token(token_id)) is not None:
                await other.delete(PATHS.access_token(token_id), version=0)
            return await commit(ops)

        world.store.commit = revoke_first  # type: ignore[method-assign]
        error = await refused(world, issuer=maker)
        assert (error.code, error.detail) == ("forbidden", f"token:{token_id} was revoked")

    play(tmp_path, scenario)


def test_what_a_token_s_own_scopes_give_is_judged_while_nobody_understands_the_grants(
    tmp_path: Path,
) -> None:
    async def scenario(world: CredentialWorld) -> None:
        text, token_id = await issue_known(world)
        maker = await world.judge(text)
        found = await world.store.get(PATHS.grants)
        assert found is not None
        await world.store.set(PATHS.grants, b"broken", version=found.version)
        _, child = await world.issue(maker)
        assert (await stored(world, child)).parent_id == token_id
        told = maker._replace(scopes=(scope("*", "read"),))
        error = await refused(world, issuer=told, scopes=(scope("shop", "read"),))
        assert error.code == "metadata_unavailable", "its node does not say so, and a grant might"

    play(tmp_path, scenario)


# --- How many ------------------------------------------------------------------------------------


def test_there_is_room_for_so_many_that_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{ISSUING}.TOKEN_COUNT_MAX", 2)

    async def scenario(world: CredentialWorld) -> None:
        await world.issue(life_s=60)
        _, token_id = await world.issue()
        error = await refused(world)
        assert (error.code, error.detail) == (
            "invalid_argument", "there are 2 tokens: revoke some",
        )  # fmt: skip
        await world.issuer.revoke(ALICE, token_id, NOW_S)
        await world.issue()
        await world.issue(now_s=NOW_S + 61)

    play(tmp_path, scenario)


def test_one_namespace_has_a_share_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{ISSUING}.NAMESPACE_TOKEN_COUNT_MAX", 2)

    async def scenario(world: CredentialWorld) -> None:
        both = (*READING, scope("shop", "read"))
        await world.issue(scopes=both)
        await world.issue()
        error = await refused(world, scopes=(scope("events/a*", "append"),))
        assert error.detail == "2 tokens name events: revoke some"
        await world.issue(scopes=(scope("shop", "read"),))
        assert (await refused(world, scopes=both)).code == "invalid_argument"
        await world.issue(scopes=(scope("*", "read"),))

    play(tmp_path, scenario)


def test_what_ended_a_day_ago_is_swept_by_zookeeper_s_clock_alone(tmp_path: Path) -> None:
    async def scenario(world: CredentialWorld) -> None:
        _, old = await world.issue(life_s=60)
        _, newer = await world.issue(life_s=120)
        names = {old, newer}
        ahead_s = NOW_S + 10 * DAY_S
        alice = ALICE._replace(ends_s=ahead_s + 60)
        _, token_id = await world.issue(alice, now_s=ahead_s)
        names.add(token_id)
        assert {*(await world.store.children(PATHS.access_tokens) or ())} == names, (
            "a process whose clock is ahead removes nothing that lives"
        )
        world.store_s = NOW_S + DAY_S + 61
        _, last = await world.issue()
        left = {*(await world.store.children(PATHS.access_tokens) or ())}
        assert left == (names - {old}) | {last}

    play(tmp_path, scenario)


def test_what_was_made_with_a_token_that_has_gone_is_swept(tmp_path: Path) -> None:
    async def scenario(world: CredentialWorld) -> None:
        text, token_id = await issue_known(world)
        _, child = await world.issue(await world.judge(text))
        await world.issuer.revoke(ALICE, token_id, NOW_S)
        _, last = await world.issue()
        assert await world.store.children(PATHS.access_tokens) == (last,), child

    play(tmp_path, scenario)


# --- Unknown fate --------------------------------------------------------------------------------


@pytest.mark.parametrize("fate", WriteFate)
def test_a_write_of_unknown_fate_makes_one_token(tmp_path: Path, fate: WriteFate) -> None:
    async def scenario(world: CredentialWorld) -> None:
        await world.issue()
        world.store.doom_next_write(fate)
        text, token_id = await issue_known(world, life_s=60)
        world.store.deliver_late_writes()
        assert len(await world.store.children(PATHS.access_tokens) or ()) == 2
        assert (await world.judge(text)).scopes == READING
        assert (await stored(world, token_id)).expires_s == NOW_S + 60

    play(tmp_path, scenario)


def test_the_same_asked_again_is_the_same_token_and_nobody_else_s(tmp_path: Path) -> None:
    async def scenario(world: CredentialWorld) -> None:
        made = make_token()
        asked = AskedToken(made.token_id, made.hash, READING, 60, "")
        first = await world.issuer.issue(ALICE, asked, NOW_S)
        assert await world.issuer.issue(ALICE, asked, NOW_S + 9) == first
        await world.grant("user:corp/bob owner *", "user:corp/alice owner *")
        for caller, told in ((BOB, asked), (ALICE, asked._replace(secret_hash=make_token().hash))):
            with pytest.raises(DuramenError, match="somebody else's"):
                await world.issuer.issue(caller, told, NOW_S)

    play(tmp_path, scenario)


# --- Who sees and revokes ------------------------------------------------------------------------


def test_a_token_is_seen_and_revoked_by_its_maker_itself_and_who_grants_on_all_of_it(
    tmp_path: Path,
) -> None:
    async def scenario(world: CredentialWorld) -> None:
        both = (*READING, scope("shop/a*", "read"))
        text, token_id = await issue_known(world, scopes=both)
        _, other = await issue_known(world, scopes=(scope("shop", "read"),))
        carol = Bearer(name_user("corp", "carol"), NOW_S + 60)
        await world.grant("user:corp/bob owner events", "user:corp/carol owner events",
                          "user:corp/carol owner shop/a*")  # fmt: skip
        seen = {
            ALICE: {token_id, other}, BOB: set[str](), carol: {token_id},
            await world.judge(text): {token_id}, OPERATOR: {token_id, other},
        }  # fmt: skip
        for caller, expected in seen.items():
            page, has_more = await world.issuer.list_for(caller, "", 10, NOW_S)
            assert {one.token_id for one in page} == expected, caller
            assert not has_more
            if token_id not in expected:
                with pytest.raises(DuramenError, match=r"revoke dur1_.*: you may not") as refusal:
                    await world.issuer.revoke(caller, token_id, NOW_S)
                assert refusal.value.code == "forbidden"
        for caller in (await world.judge(text), carol, OPERATOR):
            assert not await world.issuer.revoke(caller, make_token().token_id, NOW_S)
        assert await world.issuer.revoke(await world.judge(text), token_id, NOW_S)
        assert not await world.issuer.revoke(ALICE, token_id, NOW_S), "it is gone"

    play(tmp_path, scenario)


def test_a_list_comes_in_pages_by_id(tmp_path: Path) -> None:
    async def scenario(world: CredentialWorld) -> None:
        ids = sorted([(await world.issue())[1] for _ in range(5)])
        found: list[str] = []
        has_more = True
        while has_more:
            after = found[-1] if found else ""
            page, has_more = await world.issuer.list_for(ALICE, after, 2, NOW_S)
            found += [one.token_id for one in page]
        assert found == ids

    play(tmp_path, scenario)


def test_what_opens_nothing_is_removed_by_who_grants_on_everything(tmp_path: Path) -> None:
    async def scenario(world: CredentialWorld) -> None:
        _, token_id = await world.issue()
        path = PATHS.access_token(token_id)
        await world.store.set(path, b"{", version=0)
        await world.grant("user:corp/bob owner events", "user:corp/alice owner *")
        with pytest.raises(DuramenError, match="you may not"):
            await world.issuer.revoke(BOB, token_id, NOW_S)
        assert await world.issuer.revoke(ALICE, token_id, NOW_S)

    play(tmp_path, scenario)


@pytest.mark.parametrize("fate", WriteFate)
def test_a_revocation_of_unknown_fate_is_looked_for(tmp_path: Path, fate: WriteFate) -> None:
    async def scenario(world: CredentialWorld) -> None:
        _, token_id = await world.issue()
        world.store.doom_next_write(fate)
        assert await world.issuer.revoke(ALICE, token_id, NOW_S)
        assert not await world.store.children(PATHS.access_tokens)

    play(tmp_path, scenario)


def test_a_full_cluster_is_looked_at_once_for_each_node(tmp_path: Path) -> None:
    async def scenario(world: CredentialWorld) -> None:
        _, token_id = await world.issue()
        token, reads, get = await stored(world, token_id), 0, world.store.get
        for _ in range(300):
            made = make_token()
            data = encode_access_token(
                AccessToken(made.token_id, made.hash, token.issued_by, token.scopes, 0, 2 * NOW_S)
            )
            await world.store.create(PATHS.access_token(made.token_id), data)

        async def count(path: str, *more: Any) -> Any:
            nonlocal reads
            reads += path.startswith(PATHS.access_tokens)
            return await get(path, *more)

        world.store.get = count  # type: ignore[method-assign, assignment]
        assert (await refused(world)).detail == "256 tokens name events: revoke some"
        await wait_for(lambda: len(world.table.list_tokens()) == 301)
        reads = 0
        assert (await refused(world)).detail == "256 tokens name events: revoke some"
        assert reads == 0

    play(tmp_path, scenario)
