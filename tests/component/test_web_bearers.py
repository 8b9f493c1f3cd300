"""Web tokens that are good, what is kept of them, and keys that come and go.

By files, and by an https server of loopback. Source: docs/protocol/credentials.md
"JSON web tokens", "Keys of issuers", "What is kept".
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from duramen.runtime.credentials.issuers import Issuer, read_issuers
from duramen.runtime.credentials.key_holder import AGE_S_MAX, ASK_AGAIN_S, REFRESH_S
from duramen.runtime.credentials.key_sets import SET_BYTES_MAX, KeySet, read_key_set
from duramen.runtime.credentials.key_sources import KeysUnreadableError, read_keys
from duramen.runtime.credentials.principals import CredentialRefusedError, NothingKnownError
from duramen.runtime.credentials.web_bearers import WebBearers
from tests.component.credential_world import CredentialWorld, play, write_issuers
from tests.component.key_server import KeyServer, serving_keys
from tests.pauses import let_pass
from tests.unit.web_token_forge import (
    AUDIENCE,
    CORP_SET,
    EC,
    ED,
    LIFE_S,
    NOW_S,
    SIGNERS,
    STRANGER,
    forge,
    forge_account,
    to_jwk,
    to_set,
)
from tests.waiting import wait_for


@pytest.mark.parametrize("algorithm", SIGNERS)
def test_a_good_token_of_each_algorithm_names_a_user(tmp_path: Path, algorithm: str) -> None:
    async def scenario(world: CredentialWorld) -> None:
        for header in ({}, {"typ": "at+jwt"}, {"x5t": "abc"}):
            bearer = await world.judge(forge(header, algorithm=algorithm))
            assert str(bearer.principal) == "user:corp/alice"
            assert (bearer.groups, bearer.scopes) == ((), ())
            assert bearer.until_s == NOW_S + LIFE_S + 30

    play(tmp_path, scenario)


@pytest.mark.parametrize(
    "body",
    [
        {"aud": [AUDIENCE]},
        {"iat": NOW_S + 30, "nbf": NOW_S + 30},
        {"iat": NOW_S - 3_600, "exp": NOW_S - 29},
        {"exp": NOW_S + 86_400},
        {"groups": []},
        {"x": {"y": [1.5, None, True]}, "jti": "1"},
    ],
)
def test_what_is_just_allowed_is_allowed(tmp_path: Path, body: dict[str, Any]) -> None:
    async def scenario(world: CredentialWorld) -> None:
        assert str((await world.judge(forge(body=body))).principal) == "user:corp/alice"

    play(tmp_path, scenario)


def test_a_scheme_may_be_written_in_any_case(tmp_path: Path) -> None:
    async def scenario(world: CredentialWorld) -> None:
        bearer = await world.credentials.judge([f"bEARER {forge()}"], NOW_S)
        assert str(bearer.principal) == "user:corp/alice"

    play(tmp_path, scenario)


def test_groups_are_those_of_their_issuer_each_once(tmp_path: Path) -> None:
    async def scenario(world: CredentialWorld) -> None:
        body = {"groups": ["admins", "Café Ω", "a/b:c", "admins"]}
        bearer = await world.judge(forge(body=body))
        told = [str(group) for group in bearer.groups]
        assert told == ["group:corp/admins", "group:corp/Café Ω", "group:corp/a/b:c"]

    play(tmp_path, scenario)


def test_a_subject_that_looks_like_an_account_is_a_user_of_its_issuer(tmp_path: Path) -> None:
    async def scenario(world: CredentialWorld) -> None:
        subject = "system:serviceaccount:shop:cart"
        bearer = await world.judge(forge(body={"sub": subject}))
        assert str(bearer.principal) == f"user:corp/{subject}"
        account = await world.judge(forge_account({"groups": ["admins"]}))
        assert str(account.principal) == "serviceaccount:k8s/shop/cart"
        assert account.groups == (), "an API server puts nobody into groups of ours"

    play(tmp_path, scenario)


def test_a_decision_is_kept_until_its_token_ends(tmp_path: Path) -> None:
    async def scenario(world: CredentialWorld) -> None:
        text = forge()
        assert await world.judge(text) == await world.judge(text, NOW_S + LIFE_S + 29)
        assert world.web.statistics()["verified"] == 1, "the second one is a look"
        with pytest.raises(CredentialRefusedError, match="expired"):
            await world.judge(text, NOW_S + LIFE_S + 30)
        assert world.web.statistics()["web_tokens"] == 0

    play(tmp_path, scenario)


def test_the_table_is_bounded_and_the_one_used_last_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duramen.runtime.credentials.web_bearers.ROW_COUNT_MAX", 3)

    async def scenario(world: CredentialWorld) -> None:
        first = forge()
        for number in range(6):
            await world.judge(first)
            await world.judge(forge(body={"sub": f"u{number}"}))
        told = world.web.statistics()
        assert (told["web_tokens"], told["verified"]) == (3, 7)

    play(tmp_path, scenario)


def test_a_key_that_left_its_file_takes_what_was_believed_by_it_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duramen.runtime.credentials.key_holder.FILE_LOOK_S", 0)

    async def refused(world: CredentialWorld, text: str) -> bool:
        try:
            await world.judge(text)
        except CredentialRefusedError:
            return True
        return False

    async def scenario(world: CredentialWorld) -> None:
        old, new = forge(), forge(key=STRANGER)
        await world.judge(old)
        assert await refused(world, new)
        swapped = world.folder / "new.jwks"
        swapped.write_bytes(to_set(to_jwk(STRANGER, "ec-1"), to_jwk(ED, "ed-1")))
        os.replace(swapped, world.folder / "corp.jwks")

        async def is_over() -> bool:
            return await refused(world, old)

        await wait_for(is_over, rest_s=0.01)
        assert str((await world.judge(new)).principal) == "user:corp/alice"
        (world.folder / "corp.jwks").write_bytes(b"{")
        read = world.web.statistics()["keys_unread"]
        await wait_for(lambda: world.web.statistics()["keys_unread"] > read, rest_s=0.01)
        assert not await refused(world, new), "a broken file takes nothing away"

    play(tmp_path, scenario)


def test_a_new_key_in_a_file_is_found_by_its_first_token(tmp_path: Path) -> None:
    """Without waiting for a look: who signs by it at once throws a refused token away."""

    async def scenario(world: CredentialWorld) -> None:
        old, new = forge(), forge({"kid": "ec-9"}, key=STRANGER)
        await world.judge(old)
        for keys in ((to_jwk(EC, "ec-1"), to_jwk(STRANGER, "ec-9")), (to_jwk(STRANGER, "ec-9"),)):
            with pytest.raises(CredentialRefusedError, match="no key"):
                await world.judge(forge({"kid": f"none-of-{len(keys)}"}))
            before = world.web.change_count
            (world.folder / "corp.jwks").write_bytes(to_set(*keys))
            assert str((await world.judge(new)).principal) == "user:corp/alice"
            if len(keys) == 2:
                await world.judge(old)
                assert world.web.change_count > before
                new = forge({"kid": "ec-9"}, {"sub": "alice", "iat": NOW_S - 1}, key=STRANGER)

    play(tmp_path, scenario)


def test_a_look_at_the_file_before_does_not_refuse_a_new_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others' tokens may keep a look under way all the time."""
    monkeypatch.setattr("duramen.runtime.credentials.key_holder.FILE_LOOK_S", 3_600)
    has_read, may_go, looks = asyncio.Event(), asyncio.Event(), list[bytes]()

    async def read_slowly(issuer: Issuer) -> bytes:
        looks.append(await read_keys(issuer))
        has_read.set()
        await may_go.wait()
        return looks[-1]

    async def scenario(world: CredentialWorld) -> None:
        monkeypatch.setattr("duramen.runtime.credentials.key_holder.read_keys", read_slowly)
        strange = asyncio.create_task(world.judge(forge({"kid": "none"})))
        await has_read.wait()
        (world.folder / "corp.jwks").write_bytes(to_set(to_jwk(STRANGER, "ec-9")))
        new = forge({"kid": "ec-9"}, key=STRANGER)
        asking = [asyncio.create_task(world.judge(new)) for _ in range(20)]
        await let_pass(0.05, what="others ask while that look is under way")
        may_go.set()
        assert {str((await one).principal) for one in asking} == {"user:corp/alice"}
        with pytest.raises(CredentialRefusedError, match="no key"):
            await strange
        assert len(looks) == 2, "all that wait have the second look together"

    play(tmp_path, scenario)


def test_a_set_that_is_refused_is_judged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each token of a stranger has the file looked at, and 256 KiB take milliseconds."""
    judged = list[bytes]()

    def judge(content: bytes) -> KeySet:
        judged.append(content)
        return read_key_set(content)

    monkeypatch.setattr("duramen.runtime.credentials.key_holder.read_key_set", judge)
    twice, new = to_set(to_jwk(EC, "k"), to_jwk(STRANGER, "k")), to_set(to_jwk(STRANGER, "ec-9"))

    async def scenario(world: CredentialWorld) -> None:
        file = world.folder / "corp.jwks"
        file.write_bytes(twice)
        for number in range(5):
            with pytest.raises(CredentialRefusedError, match="no key"):
                await world.judge(forge({"kid": f"none-{number}"}))
        assert str((await world.judge(forge())).principal) == "user:corp/alice", "the former set"
        assert world.web.statistics()["keys_unread"] >= 5, "each was a look"
        assert judged.count(twice) == 1
        file.write_bytes(new)
        assert await world.judge(forge({"kid": "ec-9"}, key=STRANGER))

    play(tmp_path, scenario)


def test_a_start_without_a_file_of_keys_is_refused(tmp_path: Path) -> None:
    keys = {"file": str(tmp_path / "none.jwks")}
    row = {"name": "a", "kind": "oidc", "issuer": "i", "audience": "b", "keys": keys}

    async def main() -> None:
        web = WebBearers(read_issuers(write_issuers(tmp_path, [row])))
        with pytest.raises(KeysUnreadableError, match=r"issuer a: .*none\.jwks: No such file"):
            await web.start()
        (tmp_path / "none.jwks").write_bytes(b'{"keys":[]}')
        with pytest.raises(KeysUnreadableError, match="has no key for signatures"):
            await web.start()

    asyncio.run(main())


# --- By a server ---------------------------------------------------------------------------------

DISCOVERY = "/.well-known/openid-configuration"


def put_discovery(server: KeyServer, **more: Any) -> None:
    document = {"issuer": server.url, "jwks_uri": f"{server.url}/keys", "scopes": []} | more
    server.put(DISCOVERY, orjson.dumps(document))


def by_server(
    folder: Path, scenario: Callable[[KeyServer, WebBearers], Awaitable[None]], **keys: Any
) -> None:
    """Run a scenario with one issuer whose keys a server has; the first reading went well."""

    async def main() -> None:
        async with serving_keys(folder) as server:
            put_discovery(server)
            server.put("/keys", CORP_SET)
            web = WebBearers([make_issuer(folder, server, **keys)])
            await web.start()
            try:
                async with asyncio.timeout(30):
                    await scenario(server, web)
            finally:
                await web.stop()

    asyncio.run(main())


def make_issuer(folder: Path, server: KeyServer, **keys: Any) -> Issuer:
    source = keys or {"discovery": True}
    row = {
        "name": "corp", "kind": "oidc", "issuer": server.url, "audience": AUDIENCE,
        "keys": {"ca_file": str(server.ca_file), **source},
    }  # fmt: skip
    return read_issuers(write_issuers(folder, [row]))[0]


def named(server: KeyServer, key_id: str = "ec-1", **more: Any) -> str:
    return forge({"kid": key_id}, {"iss": server.url}, **more)


def test_keys_are_found_by_discovery_and_believed(tmp_path: Path) -> None:
    async def scenario(server: KeyServer, web: WebBearers) -> None:
        assert str((await web.judge(named(server), NOW_S)).principal) == "user:corp/alice"
        assert [path for path, _ in server.requests] == [DISCOVERY, "/keys"]
        assert not any("authorization" in fields for _, fields in server.requests)

    by_server(tmp_path, scenario)


def test_an_unknown_kid_has_the_server_asked_once_in_30_s(tmp_path: Path) -> None:
    async def scenario(server: KeyServer, web: WebBearers) -> None:
        async def refused_at(now_s: float, key_id: str) -> None:
            with pytest.raises(CredentialRefusedError, match="no key"):
                await web.judge(named(server, key_id), now_s)

        for number in range(20):
            await refused_at(time.time(), f"k{number}")
        assert len(server.requests) == 2, "it was asked a moment ago, at the start"
        later_s = time.time() + 2 * ASK_AGAIN_S
        server.may_answer.clear()
        asking = [asyncio.create_task(refused_at(later_s, f"k{number}")) for number in range(20)]
        await wait_for(lambda: len(server.requests) == 3)
        server.may_answer.set()
        await asyncio.gather(*asking)
        for number in range(20):
            await refused_at(later_s + ASK_AGAIN_S - 1, f"k{number}")
        assert len(server.requests) == 4, "twenty that wait for one answer, and twenty too soon"
        server.put("/keys", to_set(to_jwk(STRANGER, "ec-9")))
        await refused_at(later_s + ASK_AGAIN_S - 1, "ec-9")
        new = named(server, "ec-9", key=STRANGER)
        assert await web.judge(new, later_s + ASK_AGAIN_S), "a new key is found by its first token"
        await refused_at(later_s + ASK_AGAIN_S, "ec-1")

    by_server(tmp_path, scenario)


def test_what_cannot_be_a_token_has_nobody_asked(tmp_path: Path) -> None:
    async def scenario(server: KeyServer, web: WebBearers) -> None:
        later_s = time.time() + 100
        for body in ({"aud": "x"}, {"exp": NOW_S - 60, "iat": NOW_S - 90}, {"sub": ""}):
            with pytest.raises(CredentialRefusedError):
                await web.judge(forge({"kid": "k"}, {"iss": server.url, **body}), later_s)
        assert len(server.requests) == 2

    by_server(tmp_path, scenario)


def test_a_caller_that_leaves_takes_nothing_from_the_others(tmp_path: Path) -> None:
    async def scenario(server: KeyServer, web: WebBearers) -> None:
        server.put("/keys", to_set(to_jwk(STRANGER, "ec-9")))
        server.may_answer.clear()
        text, later_s = named(server, "ec-9", key=STRANGER), time.time() + 100
        first, second = (asyncio.create_task(web.judge(text, later_s)) for _ in range(2))
        await wait_for(lambda: len(server.requests) == 3)
        first.cancel()
        server.may_answer.set()
        assert str((await second).principal) == "user:corp/alice"

    by_server(tmp_path, scenario)


def test_keys_count_for_a_day_while_their_server_is_away(tmp_path: Path) -> None:
    async def scenario(server: KeyServer, web: WebBearers) -> None:
        server.put("/keys", b"", "503 Service Unavailable")

        async def ask(now_s: int) -> str:
            body = {"iss": server.url, "iat": now_s, "exp": now_s + 60}
            return str((await web.judge(forge(body=body), now_s)).principal)

        began_s = int(time.time())
        assert await ask(began_s + AGE_S_MAX - 60) == "user:corp/alice"
        with pytest.raises(NothingKnownError, match="HTTP 503"):
            await ask(began_s + AGE_S_MAX + 60)
        assert web.statistics()["keys_unread"] == 1

    by_server(tmp_path, scenario)


def test_a_server_that_is_away_at_the_start_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (ASK_AGAIN_S, REFRESH_S) == (30, 600)
    monkeypatch.setattr("duramen.runtime.credentials.key_holder.ASK_AGAIN_S", 0)

    async def main() -> None:
        async with serving_keys(tmp_path) as server:
            web = WebBearers([make_issuer(tmp_path, server)])
            await web.start()
            with pytest.raises(NothingKnownError, match="HTTP 404"):
                await web.judge(named(server), NOW_S)
            put_discovery(server)
            server.put("/keys", CORP_SET)
            await wait_for(lambda: web.statistics()["keys"] == 3, rest_s=0.01)
            await web.stop()

    asyncio.run(main())


def test_a_server_may_want_a_credential_which_it_alone_is_given(tmp_path: Path) -> None:
    bearer_file = tmp_path / "token"
    bearer_file.write_text("first\n", encoding="utf-8")

    async def main() -> None:
        async with serving_keys(tmp_path) as server:
            server.put("/keys", CORP_SET)
            issuer = make_issuer(
                tmp_path, server, url=f"{server.url}/keys", bearer_file=str(bearer_file)
            )
            assert await read_keys(issuer) == CORP_SET
            bearer_file.write_text("second", encoding="utf-8")
            await read_keys(issuer)
            told = [fields["authorization"] for _, fields in server.requests]
            assert told == ["bearer first", "bearer second"], "read anew each time"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda server: put_discovery(server, issuer=f"{server.url}/"), "another issuer"),
        (lambda server: put_discovery(server, jwks_uri="http://127.0.0.1/keys"), "no https URL"),
        (lambda server: put_discovery(server, jwks_uri="file:///etc/passwd"), "no https URL"),
        (lambda server: put_discovery(server, jwks_uri=None), "no https URL"),
        (
            lambda server: put_discovery(server, jwks_uri=f"https://{'a' * 70}.example/"),
            "ConnectError|InvalidURL",
        ),
        (lambda server: put_discovery(server, jwks_uri="https://a..example/"), "Error|InvalidURL"),
        (lambda server: put_discovery(server, jwks_uri="https://xn--a/"), "InvalidCodepoint"),
        (lambda server: put_discovery(server, jwks_uri="https://[::zz]/"), "Error|https URL"),
        (lambda server: put_discovery(server, jwks_uri="https://127.0.0.1:1/"), "ConnectError"),
        (lambda server: server.put(DISCOVERY, b"[]"), "no JSON object"),
        (lambda server: server.put(DISCOVERY, b"", "404 Not Found"), "HTTP 404"),
        (
            lambda server: server.put("/keys", b"", "302 Found", f"location: {server.url}/b"),
            "HTTP 302",
        ),
        (
            lambda server: server.put("/keys", CORP_SET, "200 OK", "content-encoding: gzip"),
            "not asked for",
        ),
        (lambda server: server.put("/keys", b" " * (SET_BYTES_MAX + 1)), "more than"),
    ],
)
def test_an_answer_of_another_form_is_no_set(
    tmp_path: Path, spoil: Callable[[KeyServer], None], complaint: str
) -> None:
    async def main() -> None:
        async with serving_keys(tmp_path) as server:
            put_discovery(server)
            server.put("/keys", CORP_SET)
            server.put("/b", CORP_SET)
            issuer = make_issuer(tmp_path, server)
            assert await read_keys(issuer) == CORP_SET
            spoil(server)
            with pytest.raises(KeysUnreadableError, match=complaint):
                await read_keys(issuer)
            assert "/b" not in [path for path, _ in server.requests], "nothing is followed"

    asyncio.run(main())


def test_a_server_of_another_authority_is_no_issuer_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the process trusts that authority for its own connections."""
    ours, theirs = tmp_path / "a", tmp_path / "b"
    ours.mkdir()
    theirs.mkdir()

    async def main() -> None:
        async with serving_keys(ours) as known, serving_keys(theirs) as strange:
            monkeypatch.setenv("SSL_CERT_FILE", str(strange.ca_file))
            strange.put("/keys", CORP_SET)
            url = f"{strange.url}/keys"
            with pytest.raises(KeysUnreadableError, match="ConnectError"):
                await read_keys(make_issuer(ours, known, url=url))
            by_name = url.replace("127.0.0.1", "localhost")
            with pytest.raises(KeysUnreadableError, match="ConnectError"):
                await read_keys(make_issuer(theirs, strange, url=by_name))
            assert strange.requests == []

    asyncio.run(main())


def test_a_server_that_does_not_answer_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duramen.runtime.credentials.key_sources.CALL_S_MAX", 0.2)

    async def main() -> None:
        async with serving_keys(tmp_path) as server:
            server.may_answer.clear()
            with pytest.raises(KeysUnreadableError, match="no answer within"):
                await read_keys(make_issuer(tmp_path, server))

    asyncio.run(main())
