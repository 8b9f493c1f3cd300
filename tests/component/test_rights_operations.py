"""A sequencer's operations about grants and access tokens, and what goes with a namespace.

As a write proxy asks them, by JSON, on the in-memory store.
Source: docs/protocol/wire.md "Sequencer: POST /s/control", docs/protocol/rights.md "How grants
change".
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from duramen.core.rights.grants import parse_principal
from duramen.errors import DuramenError
from duramen.runtime.cluster_node import ensure_cluster
from duramen.runtime.credentials.access_tokens.token_text import TokenText, make_token
from duramen.runtime.credentials.principals import Bearer, encode_bearer
from duramen.runtime.identity.names import Identity, Role
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.runtime.stores.metadata_store import Op
from duramen.runtime.turning.tally import RefusalTally
from duramen.wire.metadata_json import Paths
from duramen.wire.nodes.grants import GrantsNode, encode_grants, read_grants
from duramen_sequencer.control import Control
from tests.unit.grants import ANN, BOB, OPERATOR, given

PATHS = Paths("c")
PROXY = Identity("a" * 32, Role.WRITEPROXY, "wp-0")
STRANGE = {"who": "user:corp/ann", "role": "reader", "scope": "shop/a", "by": "user:corp/bob",
           "given_unix_ms": 7, "only_from": "10.0.0.0/8"}  # fmt: skip
READING = [{"verbs": ["read"], "target": "shop"}]


def bearer_of(who: str = str(OPERATOR), **more: Any) -> dict[str, Any]:
    return encode_bearer(Bearer(parse_principal(who), int(time.time()) + 900)) | more


class Sequencer:
    """One sequencer's control calls; `is_turning`: it refuses nobody, but for what is lasting."""

    def __init__(self, *, is_turning: bool = False) -> None:
        self.tree = MemoryTree()
        self.store = MemoryStore(self.tree)
        self.tally = RefusalTally() if is_turning else None
        self.control = Control(self.store, PATHS, {}, tally=self.tally)

    async def ask(self, op: str, *, by: Identity | None = PROXY, **fields: Any) -> dict[str, Any]:
        return await self.control.handle(json.dumps({"op": op, **fields}).encode(), by)

    async def refused(self, op: str, **fields: Any) -> DuramenError:
        with pytest.raises(DuramenError) as refusal:
            await self.ask(op, **fields)
        return refusal.value

    async def issue(self, who: str = str(OPERATOR), **more: Any) -> tuple[TokenText, Any]:
        made = make_token()
        told: dict[str, Any] = {
            "caller": bearer_of(who), "id": made.token_id, "sha256": made.hash.hex(),
            "scopes": READING, "life_s": 3_600, "note": "",
        }  # fmt: skip
        return made, await self.ask("issue_token", **told | more)

    async def write_grants(self, node: GrantsNode) -> None:
        found = self.tree.get(PATHS.grants)
        if found is None:
            await self.store.create(PATHS.grants, encode_grants(node), make_parents=True)
        else:
            await self.store.set(PATHS.grants, encode_grants(node), version=found.version)

    def stored_grants(self) -> GrantsNode:
        found = self.tree.get(PATHS.grants)
        assert found is not None
        return read_grants(found.data)

    def tokens(self) -> tuple[str, ...]:
        return self.tree.children(PATHS.access_tokens) or ()


def run(scenario: Callable[[Sequencer], Awaitable[None]], *, is_turning: bool = False) -> None:
    async def play() -> None:
        sequencer = Sequencer(is_turning=is_turning)
        await sequencer.store.start()
        await ensure_cluster(sequencer.store, PATHS)
        async with asyncio.timeout(30):
            await scenario(sequencer)

    asyncio.run(play())


# --- Who may ask ---------------------------------------------------------------------------------

OPERATIONS = ("list_grants", "replace_grants", "issue_token", "list_tokens", "revoke_token")


@pytest.mark.parametrize("is_turning", [False, True], ids=["on", "migrate"])
@pytest.mark.parametrize("op", OPERATIONS)
def test_only_a_write_proxy_asks_and_only_where_it_is_known(op: str, is_turning: bool) -> None:
    async def scenario(sequencer: Sequencer) -> None:
        for role in Role:
            if role is not Role.WRITEPROXY:
                error = await sequencer.refused(op, by=PROXY._replace(role=role))
                assert (error.code, str(role) in error.detail) == ("forbidden", True)
        error = await sequencer.refused(op, by=None, caller=bearer_of())
        assert error.code == "forbidden"
        assert "nobody is known here until this has --security migrate or on" in error.detail
        error = await sequencer.refused(op)
        assert error.code == "invalid_argument", "it asks for the caller, and for all the rest"

    run(scenario, is_turning=is_turning)


@pytest.mark.parametrize(
    "wrong",
    [None, [], {}, bearer_of(principal="alice"), bearer_of(until_unix_s=True),
     bearer_of(groups=["x"]), bearer_of(groups=["group:c/g"] * 129),
     bearer_of("group:corp/team"),
     bearer_of("user:corp/eve", groups=["service:operator/op"]),
     bearer_of("user:corp/eve", groups=["user:corp/ann"]),
     bearer_of("user:corp/eve", groups=["group:corp/team", "group:other/team"]),
     bearer_of("service:client/till", groups=["group:client/team"]),
     bearer_of("serviceaccount:corp/shop/till", groups=["group:corp/team"]),
     bearer_of("token:aaaaaaaaaaaaaaaa", groups=["group:aaaaaaaaaaaaaaaa/team"])],
)  # fmt: skip
def test_a_caller_of_another_form_is_nobody(wrong: Any) -> None:
    async def scenario(sequencer: Sequencer) -> None:
        error = await sequencer.refused("list_grants", scope="*", caller=wrong)
        assert (error.code, error.field) == ("invalid_argument", "caller")

    run(scenario)


@pytest.mark.parametrize("who", ["user:corp/eve", "service:client/till"])
def test_scopes_that_a_proxy_tells_give_nothing(who: str) -> None:
    async def scenario(sequencer: Sequencer) -> None:
        told = bearer_of(who, scopes=EVERYTHING)
        error = await sequencer.refused("list_grants", scope="*", caller=told)
        assert (error.code, error.detail) == ("forbidden", "grant on *: you may not")
        bare = {name: value for name, value in bearer_of().items() if name != "scopes"}
        assert await sequencer.ask("list_grants", scope="*", caller=bare)

    assert bearer_of()["scopes"] == [], "older sequencers miss it otherwise"
    run(scenario)


# --- Grants --------------------------------------------------------------------------------------


def test_grants_are_listed_and_replaced_in_the_caller_s_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    async def scenario(sequencer: Sequencer) -> None:
        asked: dict[str, Any] = {"caller": bearer_of(), "scope": "*"}
        assert await sequencer.ask("list_grants", **asked) == {"version": 0, "grants": []}
        rows = [{"who": "user:corp/ann", "role": "owner", "scope": "shop"}]
        change: dict[str, Any] = {
            **asked,
            "version": 0,
            "grants": rows,
            "nonce": "n",
            "request_id": "r-7",
        }
        made = await sequencer.ask("replace_grants", **change)
        assert [row | {"given_unix_ms": 0} for row in made["grants"]] == [
            {**rows[0], "by": "service:operator/op", "given_unix_ms": 0}
        ]
        assert await sequencer.ask("replace_grants", **change) == made, "another try of the same"
        told = [row.getMessage() for row in caplog.records if "request r-7" in row.getMessage()]
        assert told[0] == "grants of * are 1 now, version 1: by service:operator/op, request r-7"
        within: dict[str, Any] = {"caller": bearer_of("user:corp/ann"), "scope": "shop/a*"}
        assert (await sequencer.ask("list_grants", **within))["version"] == 1
        error = await sequencer.refused("list_grants", caller=bearer_of("user:corp/bob"), scope="*")
        assert (error.code, error.detail) == ("forbidden", "grant on *: you may not")
        await sequencer.write_grants(GrantsNode((given("group:corp/team owner shop"),)))
        grouped = bearer_of("user:corp/eve", groups=["group:corp/team"])
        assert await sequencer.ask("list_grants", caller=grouped, scope="shop")

    run(scenario)


def test_what_is_not_understood_is_told_and_chosen() -> None:
    async def scenario(sequencer: Sequencer) -> None:
        await sequencer.write_grants(GrantsNode((), "", (STRANGE,)))
        asked: dict[str, Any] = {"caller": bearer_of(), "scope": "*"}
        seen = await sequencer.ask("list_grants", **asked)
        assert seen == {"version": 1, "grants": [], "not_understood": [STRANGE]}
        left = await sequencer.ask(
            "replace_grants", **asked, version=1, grants=[], not_understood=[]
        )
        assert left == {"version": 2, "grants": []}
        await sequencer.store.set(PATHS.grants, b"{", version=1)
        seen = await sequencer.ask("list_grants", **asked)
        assert seen == {"version": 3, "grants": [], "unreadable": "the node is no JSON"}

    run(scenario)


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"scope": 1}, "scope"),
        ({"scope": "shop/*"}, "scope"),
        ({"version": True}, "version"),
        ({"version": -1}, "version"),
        ({"version": None}, "version"),
        ({"grants": None}, "grants"),
        ({"grants": ["x"]}, "grants"),
        ({"grants": [{"who": "user:corp/ann", "role": "owner"}]}, "grants"),
        ({"grants": [{"who": "user:corp/ann", "role": "king", "scope": "shop"}]}, "grants"),
        ({"grants": [{"who": "user:corp/ann", "role": "owner", "scope": "shop", "if": 1}]},
         "grants"),
        ({"grants": [{}] * 8_193}, "grants"),
        ({"not_understood": "all"}, "not_understood"),
        ({"nonce": ""}, "nonce"),
        ({"request_id": "a\nb"}, "request_id"),
        ({"request_id": "a" * 65}, "request_id"),
    ],
)  # fmt: skip
def test_a_change_of_another_form_is_refused_with_its_field(
    changed: dict[str, Any], field: str
) -> None:
    async def scenario(sequencer: Sequencer) -> None:
        asked: dict[str, Any] = {"caller": bearer_of(), "scope": "shop", "version": 0, "grants": []}
        error = await sequencer.refused("replace_grants", **asked | changed)
        assert (error.code, error.field) in (("invalid_argument", field), ("unknown_field", field))
        assert sequencer.tree.get(PATHS.grants) is None

    run(scenario)


GRANTING = [{"verbs": ["grant", "list", "read"], "target": "shop"}]
EVERYTHING = [{"verbs": ["grant", "list", "read"], "target": "*"}]


def change_of(**more: Any) -> dict[str, Any]:
    """Of the grants of shop, of which there are none yet."""
    rows = [{"who": "user:corp/ann", "role": "reader", "scope": "shop"}]
    return {"scope": "shop", "version": 0, "grants": rows, "nonce": "n", **more}


@pytest.mark.parametrize("op", ["list_grants", "replace_grants"])
def test_whose_credential_has_ended_sees_and_gives_no_grants(op: str) -> None:
    async def scenario(sequencer: Sequencer) -> None:
        ended = bearer_of(until_unix_s=int(time.time()))
        error = await sequencer.refused(op, **change_of(caller=ended))
        assert (error.code, error.detail) == ("forbidden", "your credential has ended meanwhile")
        assert sequencer.tree.get(PATHS.grants) is None

    run(scenario)


@pytest.mark.parametrize("op", ["list_grants", "replace_grants"])
def test_a_token_is_judged_by_its_own_node_about_grants(op: str) -> None:
    async def scenario(sequencer: Sequencer) -> None:
        made, _ = await sequencer.issue(scopes=GRANTING)
        who = f"token:{made.token_id}"
        wider = change_of(caller=bearer_of(who, scopes=EVERYTHING), scope="*")
        error = await sequencer.refused(op, **wider)
        assert (error.code, error.detail) == ("forbidden", "grant on *: you may not")
        assert sequencer.tree.get(PATHS.grants) is None
        assert await sequencer.ask(op, **change_of(caller=bearer_of(who))), "its node says enough"

    run(scenario)


@pytest.mark.parametrize("op", ["list_grants", "replace_grants"])
@pytest.mark.parametrize("gone", ["the token", "its maker", "its maker's maker"])
def test_a_token_whose_line_was_revoked_sees_and_gives_no_grants(op: str, gone: str) -> None:
    async def scenario(sequencer: Sequencer) -> None:
        first, _ = await sequencer.issue(scopes=GRANTING)
        second, _ = await sequencer.issue(f"token:{first.token_id}", scopes=GRANTING)
        third, _ = await sequencer.issue(f"token:{second.token_id}", scopes=GRANTING)
        line = {"the token": third, "its maker": second, "its maker's maker": first}
        await sequencer.ask("revoke_token", caller=bearer_of(), id=line[gone].token_id)
        caller = bearer_of(f"token:{third.token_id}", scopes=GRANTING)
        error = await sequencer.refused(op, **change_of(caller=caller))
        said = f"token:{third.token_id} was revoked"
        assert (error.code, error.detail) == ("forbidden", said)
        assert sequencer.tree.get(PATHS.grants) is None

    run(scenario)


def test_a_token_ends_with_its_own_node_whatever_is_told() -> None:
    async def scenario(sequencer: Sequencer) -> None:
        made, told = await sequencer.issue(scopes=GRANTING)
        path = PATHS.access_token(made.token_id)
        found = sequencer.tree.get(path)
        assert found is not None
        await sequencer.store.delete(path, version=0)
        ends = json.dumps(told["ends_unix_s"]).encode()
        ended = json.dumps(told["created_unix_s"]).encode()
        await sequencer.store.create(path, found.data.replace(ends, ended))
        caller = bearer_of(f"token:{made.token_id}")
        error = await sequencer.refused("replace_grants", **change_of(caller=caller))
        assert (error.code, error.detail) == ("forbidden", "your credential has ended meanwhile")

    run(scenario)


@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize("gone", ["the token", "its maker"])
def test_a_token_that_is_revoked_in_between_gives_no_grants(gone: str, *, is_there: bool) -> None:
    """Its node, or its maker's, goes when the grants are about to be written."""

    async def scenario(sequencer: Sequencer) -> None:
        if is_there:
            await sequencer.write_grants(GrantsNode())
        first, _ = await sequencer.issue(scopes=GRANTING)
        second, _ = await sequencer.issue(f"token:{first.token_id}", scopes=GRANTING)
        before = sequencer.tree.get(PATHS.grants)
        path = PATHS.access_token((second if gone == "the token" else first).token_id)
        commit = sequencer.store.commit

        async def revoke_first(ops: Sequence[Op]) -> tuple[int, ...]:
            if sequencer.tree.get(path) is not None:
                other = MemoryStore(sequencer.tree)
                await other.start()
                await other.delete(path, version=0)
            return await commit(ops)

        sequencer.store.commit = revoke_first  # type: ignore[method-assign]
        asked = change_of(caller=bearer_of(f"token:{second.token_id}"), version=int(is_there))
        error = await sequencer.refused("replace_grants", **asked)
        said = f"token:{second.token_id} was revoked"
        assert (error.code, error.detail) == ("forbidden", said)
        assert sequencer.tree.get(PATHS.grants) == before

    run(scenario)


def test_another_try_of_what_was_done_is_answered_though_the_credential_has_ended() -> None:
    async def scenario(sequencer: Sequencer) -> None:
        made = await sequencer.ask("replace_grants", **change_of(caller=bearer_of()))
        ended = bearer_of(until_unix_s=1)
        assert await sequencer.ask("replace_grants", **change_of(caller=ended)) == made

    run(scenario)


# --- Tokens --------------------------------------------------------------------------------------


def test_a_token_is_made_shown_and_revoked_without_its_secret(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    async def scenario(sequencer: Sequencer) -> None:
        made, told = await sequencer.issue(note="the till", request_id="r-8")
        assert told["id"] == made.token_id
        assert told["ends_unix_s"] - told["created_unix_s"] == 3_600
        assert (told["scopes"], told["note"], told["by"]) == (
            READING, "the till", "service:operator/op",
        )  # fmt: skip
        child = Bearer(parse_principal(f"token:{made.token_id}"), int(time.time()) + 900)
        _, second = await sequencer.issue(caller=encode_bearer(child))
        assert second["parent"] == made.token_id
        page = await sequencer.ask("list_tokens", caller=bearer_of(), start_after="", limit=10)
        assert sorted(page["tokens"], key=lambda row: row["id"] != made.token_id) == [told, second]
        assert page["has_more"] is False
        page = await sequencer.ask("list_tokens", caller=bearer_of(), start_after="", limit=1)
        assert (len(page["tokens"]), page["has_more"]) == (1, True)
        asked: dict[str, Any] = {"caller": bearer_of(), "id": made.token_id}
        assert await sequencer.ask("revoke_token", **asked) == {"changed": True}
        assert await sequencer.ask("revoke_token", **asked) == {"changed": False}
        log = "\n".join(row.getMessage() for row in caplog.records)
        assert f"access token dur1_{made.token_id} made, ends {told['ends_unix_s']}: by " in log
        assert "request r-8" in log
        assert made.text[22:] not in log

    run(scenario)


def test_a_page_of_tokens_has_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duramen_sequencer.rights.token_operations._PAGE_BYTES_MAX", 700)

    async def scenario(sequencer: Sequencer) -> None:
        ids = sorted([(await sequencer.issue(note="x" * 200))[0].token_id for _ in range(3)])
        asked: dict[str, Any] = {"caller": bearer_of(), "limit": 10}
        page = await sequencer.ask("list_tokens", **asked, start_after="")
        assert ([row["id"] for row in page["tokens"]], page["has_more"]) == (ids[:1], True)
        page = await sequencer.ask("list_tokens", **asked, start_after=ids[1])
        assert ([row["id"] for row in page["tokens"]], page["has_more"]) == (ids[2:], False)

    run(scenario)


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"id": "../cluster"}, "id"), ({"id": None}, "id"), ({"sha256": "00"}, "sha256"),
        ({"scopes": []}, "scopes"), ({"scopes": READING * 33}, "scopes"),
        ({"scopes": [{"verbs": ["peek"], "target": "shop"}]}, "scopes"),
        ({"scopes": [{"verbs": ["read"], "target": "shop/*"}]}, "scopes"),
        ({"scopes": [{"verbs": ["read"], "target": "shop", "if": 1}]}, "scopes"),
        ({"life_s": True}, "life_s"), ({"life_s": 5}, "expires"),
        ({"note": "a\nb"}, "note"), ({"note": "a" * 401}, "note"), ({"note": None}, "note"),
    ],
)  # fmt: skip
def test_a_token_of_another_form_is_refused_with_its_field(
    changed: dict[str, Any], field: str
) -> None:
    async def scenario(sequencer: Sequencer) -> None:
        with pytest.raises(DuramenError) as refusal:
            await sequencer.issue(**changed)
        assert (refusal.value.code, refusal.value.field) == ("invalid_argument", field)
        assert not sequencer.tokens()

    run(scenario)


@pytest.mark.parametrize(
    "changed", [{"limit": 0}, {"limit": 1_001}, {"limit": "1"}, {"start_after": 1}]
)
def test_a_page_of_another_form_is_refused(changed: dict[str, Any]) -> None:
    async def scenario(sequencer: Sequencer) -> None:
        asked: dict[str, Any] = {"caller": bearer_of(), "start_after": "", "limit": 10}
        error = await sequencer.refused("list_tokens", **asked | changed)
        assert (error.code, error.field) == ("invalid_argument", next(iter(changed)))

    run(scenario)


# --- What goes with a namespace ------------------------------------------------------------------


async def make_namespaces(sequencer: Sequencer) -> None:
    for name in ("shop", "shop2"):
        await sequencer.ask("create_namespace", namespace=name, config={})


def test_grants_and_tokens_go_with_their_namespace_in_one_step() -> None:
    async def scenario(sequencer: Sequencer) -> None:
        await make_namespaces(sequencer)
        lines = ("ann owner shop", "bob reader shop/a*", "bob reader shop2", "bob writer *")
        kept = {**STRANGE, "scope": "shop2/a"}
        await sequencer.write_grants(
            GrantsNode(tuple(map(given, lines)), "", (STRANGE, kept), {"later": 1})
        )
        both = [*READING, {"verbs": ["read"], "target": "shop2"}]
        await sequencer.issue("user:corp/ann")
        await sequencer.issue(scopes=both)
        left = [
            (await sequencer.issue(scopes=[{"verbs": ["read"], "target": target}]))[0].token_id
            for target in ("shop2", "*")
        ]
        commit, commits = sequencer.store.commit, []

        async def note(ops: Sequence[Op]) -> tuple[int, ...]:
            commits.append(ops)
            return await commit(ops)

        sequencer.store.commit = note  # type: ignore[method-assign]
        assert (await sequencer.ask("delete_namespace", namespace="shop"))["changed"]
        assert len(commits) == 1, "it is one change"
        node = sequencer.stored_grants()
        assert [str(each.grant.scope) for each in node.grants] == ["*", "shop2"]
        assert (node.not_understood, node.extra) == ((kept,), {"later": 1})
        assert sorted(sequencer.tokens()) == sorted(left)

    run(scenario)


@pytest.mark.parametrize("is_there", [False, True])
def test_a_grant_that_comes_in_between_goes_as_well(*, is_there: bool) -> None:
    """Somebody gives the first grant on the namespace when its deletion is about to be written."""

    async def scenario(sequencer: Sequencer) -> None:
        await make_namespaces(sequencer)
        if is_there:
            await sequencer.write_grants(GrantsNode((given("bob writer *"),)))
        commit, is_given = sequencer.store.commit, False
        other = MemoryStore(sequencer.tree)
        await other.start()

        async def commit_late(ops: Sequence[Op]) -> tuple[int, ...]:
            nonlocal is_given
            if not is_given:
                is_given = True
                data = encode_grants(GrantsNode((given("ann owner shop"),)))
                if is_there:
                    await other.set(PATHS.grants, data, version=0)
                else:
                    await other.create(PATHS.grants, data)
            return await commit(ops)

        sequencer.store.commit = commit_late  # type: ignore[method-assign]
        assert (await sequencer.ask("delete_namespace", namespace="shop"))["changed"]
        assert sequencer.stored_grants().grants == ()

    run(scenario)


def test_a_token_that_its_owner_makes_meanwhile_goes_as_well() -> None:
    async def scenario(sequencer: Sequencer) -> None:
        await make_namespaces(sequencer)
        await sequencer.write_grants(GrantsNode((given("ann owner shop"),)))
        elsewhere = Control(MemoryStore(sequencer.tree), PATHS, {})
        await elsewhere._store.start()
        commit, is_made = sequencer.store.commit, False

        async def commit_late(ops: Sequence[Op]) -> tuple[int, ...]:
            nonlocal is_made
            if not is_made:
                is_made, made = True, make_token()
                told = {
                    "op": "issue_token", "caller": bearer_of(str(ANN)), "id": made.token_id,
                    "sha256": made.hash.hex(), "scopes": READING, "life_s": 60, "note": "",
                }  # fmt: skip
                await elsewhere.handle(json.dumps(told).encode(), PROXY)
                assert sequencer.tokens() == (made.token_id,)
            return await commit(ops)

        sequencer.store.commit = commit_late  # type: ignore[method-assign]
        assert (await sequencer.ask("delete_namespace", namespace="shop"))["changed"]
        assert not sequencer.tokens()

    run(scenario)


def test_a_namespace_stays_while_nobody_understands_the_grants() -> None:
    async def scenario(sequencer: Sequencer) -> None:
        await make_namespaces(sequencer)
        await sequencer.store.create(PATHS.grants, b"{")
        error = await sequencer.refused("delete_namespace", namespace="shop")
        assert error.code == "metadata_unavailable"
        assert sequencer.tree.get(PATHS.namespace("shop")) is not None
        asked: dict[str, Any] = {"caller": bearer_of(), "scope": "*", "version": 1, "grants": []}
        await sequencer.ask("replace_grants", **asked)
        assert (await sequencer.ask("delete_namespace", namespace="shop"))["changed"]

    run(scenario)


def test_a_deletion_leaves_the_grants_of_others_as_they_are() -> None:
    async def scenario(sequencer: Sequencer) -> None:
        await make_namespaces(sequencer)
        await sequencer.write_grants(GrantsNode((given("bob owner shop2", by=BOB),)))
        before = sequencer.tree.get(PATHS.grants)
        assert (await sequencer.ask("delete_namespace", namespace="shop"))["changed"]
        assert sequencer.tree.get(PATHS.grants) == before, "nobody's list is out of date by it"

    run(scenario)
