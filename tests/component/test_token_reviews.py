"""Tokens of service accounts that an API server reviews on top of their signature.

The API server is an https server of loopback that answers as one would, or otherwise.
Source: docs/protocol/credentials.md "TokenReview".
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from duramen.runtime.admission.identification import name_client
from duramen.runtime.credentials.issuers import read_issuers
from duramen.runtime.credentials.principals import CredentialRefusedError, encode_bearer
from duramen.runtime.credentials.token_reviews import BELIEVED_S_MAX, REFUSED_S
from duramen.runtime.credentials.web_bearers import WebBearers
from tests.component.credential_world import write_issuers
from tests.component.key_server import KeyServer, serving_keys
from tests.unit.web_token_forge import (
    CORP_SET,
    K8S_AUDIENCE,
    K8S_ISSUER,
    LIFE_S,
    NOW_S,
    forge_account,
)
from tests.waiting import wait_for

PATH: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
SUBJECT: Final = "system:serviceaccount:shop:cart"
GOOD: Final[dict[str, Any]] = {
    "authenticated": True,
    "audiences": [K8S_AUDIENCE],
    "user": {"username": SUBJECT, "uid": "u1", "groups": ["system:authenticated"]},
}


def answer(server: KeyServer, status: object, line: str = "201 Created") -> None:
    kind = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview"}
    server.put(PATH, orjson.dumps(kind | {"status": status}), line)


def play(folder: Path, scenario: Callable[[KeyServer, WebBearers], Awaitable[None]]) -> None:
    """Run a scenario with an API server that confirms everything."""
    (folder / "k8s.jwks").write_bytes(CORP_SET)
    (folder / "own-token").write_text("of-the-proxy", encoding="utf-8")

    async def main() -> None:
        async with serving_keys(folder) as server:
            answer(server, GOOD)
            own = {"ca_file": str(server.ca_file), "bearer_file": str(folder / "own-token")}
            row = {
                "name": "k8s", "kind": "kubernetes", "issuer": K8S_ISSUER,
                "audience": K8S_AUDIENCE, "keys": {"file": str(folder / "k8s.jwks")},
                "review": {"url": server.url + PATH, **own},
            }  # fmt: skip
            web = WebBearers(read_issuers(write_issuers(folder, [row])))
            await web.start()
            try:
                async with asyncio.timeout(30):
                    await scenario(server, web)
            finally:
                await web.stop()

    asyncio.run(main())


def test_a_token_is_reviewed_and_believed_for_a_minute(tmp_path: Path) -> None:
    async def scenario(server: KeyServer, web: WebBearers) -> None:
        text, now_s = forge_account(), int(time.time())
        bearer = await web.judge(text, now_s)
        assert str(bearer.principal) == "serviceaccount:k8s/shop/cart"
        assert bearer.until_s == now_s + BELIEVED_S_MAX == now_s + 60
        assert bearer.ends_s == NOW_S + LIFE_S + 30, "what others are told"
        assert name_client(bearer).until_s == encode_bearer(bearer)["until_unix_s"] == bearer.ends_s
        await web.judge(text, now_s + 59)
        assert len(server.requests) == 1
        await web.judge(text, now_s + 60)
        assert len(server.requests) == 2
        asked = orjson.loads(server.bodies[0])
        assert asked["spec"] == {"token": text, "audiences": [K8S_AUDIENCE]}
        assert asked["kind"] == "TokenReview"
        assert server.requests[0][1]["authorization"] == "bearer of-the-proxy"

    play(tmp_path, scenario)


def test_a_token_near_its_end_is_believed_until_then(tmp_path: Path) -> None:
    async def scenario(_server: KeyServer, web: WebBearers) -> None:
        now_s = int(time.time())
        text = forge_account({"exp": now_s + 5})
        bearer = await web.judge(text, now_s)
        assert bearer.until_s == bearer.ends_s == now_s + 35

    play(tmp_path, scenario)


@pytest.mark.parametrize(
    "text",
    [
        forge_account(head={"kid": "ec-9"}),
        forge_account({"aud": ["duramen/events/c2"]}),
        forge_account({"sub": "system:serviceaccount:shop:root"}),
        forge_account({"exp": 9, "iat": 1}),
        forge_account()[:-9] + "AAAAAAAAA",
    ],
)
def test_what_is_not_good_by_itself_is_sent_nowhere(tmp_path: Path, text: str) -> None:
    async def scenario(server: KeyServer, web: WebBearers) -> None:
        with pytest.raises(CredentialRefusedError):
            await web.judge(text, time.time())
        assert server.requests == []

    play(tmp_path, scenario)


@pytest.mark.parametrize(
    "status",
    [
        {**GOOD, "authenticated": False},
        {**GOOD, "authenticated": None},
        {**GOOD, "authenticated": "true"},
        {**GOOD, "authenticated": 1},
        {key: value for key, value in GOOD.items() if key != "authenticated"},
        {**GOOD, "error": "the pod is gone"},
        {**GOOD, "audiences": []},
        {**GOOD, "audiences": None},
        {**GOOD, "audiences": K8S_AUDIENCE},
        {**GOOD, "audiences": ["https://kubernetes.default.svc"]},
        {**GOOD, "user": {"username": "system:serviceaccount:shop:root"}},
        {**GOOD, "user": {}},
        {**GOOD, "user": SUBJECT},
        {},
        None,
        [GOOD],
        "authenticated",
    ],
)
def test_an_answer_that_does_not_confirm_refuses(tmp_path: Path, status: object) -> None:
    async def scenario(server: KeyServer, web: WebBearers) -> None:
        answer(server, status)
        text, now_s = forge_account(), time.time()
        with pytest.raises(CredentialRefusedError, match="API server"):
            await web.judge(text, now_s)
        assert web.statistics()["web_tokens"] == 0

    play(tmp_path, scenario)


def test_a_refused_token_stays_so_for_a_moment_and_is_asked_again_then(tmp_path: Path) -> None:
    async def scenario(server: KeyServer, web: WebBearers) -> None:
        text, now_s = forge_account(), time.time()
        answer(server, {"authenticated": False})
        for later_s in (0, 1, REFUSED_S - 1):
            with pytest.raises(CredentialRefusedError):
                await web.judge(text, now_s + later_s)
        assert len(server.requests) == 1
        answer(server, GOOD)
        assert await web.judge(forge_account({"jti": "2"}), now_s), "another one is not refused"
        assert await web.judge(text, now_s + REFUSED_S)
        assert web.statistics()["reviews_refused"] == 0

    play(tmp_path, scenario)


@pytest.mark.parametrize(
    ("body", "line"),
    [(b"", "500 Internal Server Error"), (b"", "403 Forbidden"), (b"<html>", "200 OK")],
)
def test_an_api_server_that_cannot_say_refuses(tmp_path: Path, body: bytes, line: str) -> None:
    async def scenario(server: KeyServer, web: WebBearers) -> None:
        text, now_s = forge_account(), time.time()
        server.put(PATH, body, line)
        with pytest.raises(CredentialRefusedError, match="review"):
            await web.judge(text, now_s)
        answer(server, GOOD)
        assert await web.judge(text, now_s + REFUSED_S)

    play(tmp_path, scenario)


def test_an_api_server_that_is_slow_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duramen.runtime.credentials.token_reviews.CALL_S_MAX", 0.2)

    async def scenario(server: KeyServer, web: WebBearers) -> None:
        server.may_answer.clear()
        with pytest.raises(CredentialRefusedError, match=r"no answer within 0\.2 s"):
            await web.judge(forge_account(), time.time())

    play(tmp_path, scenario)


def test_calls_with_one_token_ask_once_and_too_many_tokens_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duramen.runtime.credentials.token_reviews.WAITING_COUNT_MAX", 2)

    async def scenario(server: KeyServer, web: WebBearers) -> None:
        now_s = time.time()
        server.may_answer.clear()
        texts = [forge_account({"jti": str(number)}) for number in range(19)]
        calls = [asyncio.create_task(web.judge(text, now_s)) for text in texts[:18] * 2]
        await wait_for(lambda: web.statistics()["reviews_asking"] == 18)
        await wait_for(lambda: len(server.requests) == 16)
        with pytest.raises(CredentialRefusedError, match="too many wait"):
            await web.judge(texts[18], now_s)
        calls[0].cancel()
        server.may_answer.set()
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(end, BaseException) for end in ends) == 1, "the one that left"
        assert len(server.requests) == 18

    play(tmp_path, scenario)
