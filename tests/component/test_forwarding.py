"""Calls that one proxy forwards to another: nearest first, streamed, ended together, never twice.

The forwarder is the real one behind a real port; its peers are small ASGI applications on real
ports whose behaviour each test writes down. Source: docs/protocol/rest.md "Either proxy".
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
import uvloop
from pyreqwest.client import ClientBuilder

from duramen.core.reading.replica_order import Place
from duramen.errors import DuramenError
from duramen.runtime.http_server import PublicServer
from duramen.runtime.public import forwarding
from duramen.runtime.public.forwarding import FORWARDED_HEADER, Forwarder
from duramen.runtime.public.serving import complete_app
from duramen.runtime.rest import make_public_app
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.wire.metadata_json import encode_node
from tests.waiting import wait_for

PARENT = "/duramen/c/readproxies"
LOG = "/v1/namespaces/a/logs/l"
RECORDS = f"{LOG}/records"
RAW = {"content-type": "application/octet-stream"}
Scenario = Callable[["World"], Awaitable[None]]
Answer = Callable[[Any, Any, Any], Awaitable[None]]


async def answer_json(
    send: Any, document: Any, status: int = 200, media: str = "application/json"
) -> None:
    """A whole answer."""
    body = json.dumps(document).encode()
    pairs = [(b"content-type", media.encode()), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})


async def begin_lines(send: Any) -> None:
    """The head of an answer without end."""
    pairs = [(b"content-type", b"application/x-ndjson")]
    await send({"type": "http.response.start", "status": 200, "headers": pairs})


class Peer:
    """A proxy of the other kind; `answer` is an ASGI application."""

    def __init__(self, name: str, region: str, rack: str) -> None:
        self.name, self.region, self.rack = name, region, rack
        self.calls: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []
        self.gone_count = 0
        self.answer: Answer = self.take_all
        self.server = PublicServer("127.0.0.1", 0, self._serve)

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        self.calls.append(scope)
        await self.answer(scope, receive, send)

    async def take_all(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "GET":  # the body of a read stays open for as long as its client
            await answer_json(send, {"from": self.name})
            return
        body = b""
        while (message := await receive()).get("more_body"):
            body += message["body"]
        self.bodies.append(body + message.get("body", b""))
        await answer_json(send, {"from": self.name})

    async def break_off(self, _scope: Any, _receive: Any, _send: Any) -> None:
        """Take the call and end without an answer of ours."""
        raise RuntimeError("a peer that breaks, on purpose")

    async def drain(self, _scope: Any, _receive: Any, send: Any) -> None:
        await answer_json(send, {"code": "server_draining"}, 503, "application/problem+json")

    async def refuse_header(self, _scope: Any, _receive: Any, send: Any) -> None:
        told = {"code": "rate_limited", "field": "duramen-identity"}
        await answer_json(send, told, 429, "application/problem+json")

    async def wait_gone(self, _scope: Any, receive: Any, send: Any) -> None:
        """Begin an answer and never end it; counts who goes."""
        await begin_lines(send)
        await send({"type": "http.response.body", "body": b"{}\n", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        self.gone_count += 1


class World:
    """A proxy in region `eu`, rack `a`, and three peers: far, near, and in its own rack."""

    def __init__(self) -> None:
        tree = MemoryTree()
        self.setup, self.store = MemoryStore(tree), MemoryStore(tree)
        self.far, self.near, self.own = peers = [
            Peer("far", "us", "a"), Peer("near", "eu", "b"), Peer("own", "eu", "a"),
        ]  # fmt: skip
        self.peers = peers
        self.is_draining = False
        self.forwarder = Forwarder(
            self.store, PARENT, Place("eu", "a"), "w-0", lambda: self.is_draining
        )
        self.app = make_public_app("test")
        complete_app(self.app, self.forwarder)
        self.server = PublicServer("127.0.0.1", 0, self.app)
        self.http = httpx.AsyncClient(timeout=20, trust_env=False)

    async def __aenter__(self) -> "World":
        await self.setup.start()
        await self.store.start()
        for peer in self.peers:
            await peer.server.start()
            fields = {
                "data_url": f"http://127.0.0.1:{peer.server.port}",
                "region": peer.region,
                "rack": peer.rack,
            }
            await self.setup.create(f"{PARENT}/{peer.name}", encode_node(fields), make_parents=True)
        await self.forwarder.start()
        await self.server.start()
        self.http.base_url = httpx.URL(f"http://127.0.0.1:{self.server.port}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()
        await self.forwarder.stop()
        await self.server.stop()
        for peer in self.peers:
            await peer.server.stop()

    async def close(self, *peers: Peer) -> None:
        """Their ports refuse connections from now on; their registrations stay for a while."""
        for peer in peers:
            await peer.server.stop()

    def called(self) -> list[str]:
        return [peer.name for peer in self.peers for _ in peer.calls]

    def count(self, name: str) -> int:
        return self.forwarder.statistics()[name]


def play(scenario: Scenario) -> None:
    async def run() -> None:
        async with asyncio.timeout(40), World() as world:
            await scenario(world)

    uvloop.run(run())


def check_problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    problem: dict[str, Any] = answer.json()
    assert (answer.status_code, problem["code"]) == (status, code), problem
    assert answer.headers["content-type"] == "application/problem+json"
    return problem


def test_a_peer_is_not_asked_about_the_page() -> None:
    """The proxy that was called has judged it: to the peer, at another address, it is strange."""

    async def scenario(world: World) -> None:
        own = str(world.http.base_url).removesuffix("/")
        headers = {**RAW, "origin": own, "sec-fetch-site": "same-origin"}
        answer = await world.http.post(RECORDS, content=b"body", headers=headers)
        assert (answer.status_code, answer.json()) == (200, {"from": "own"})
        strange = {**RAW, "origin": "http://stranger.example"}
        check_problem(
            await world.http.post(RECORDS, content=b"body", headers=strange), 403, "forbidden"
        )
        (scope,) = world.own.calls
        assert not {b"origin", b"sec-fetch-site"} & dict(scope["headers"]).keys()

    play(scenario)


def test_the_nearest_peer_is_asked_and_the_call_arrives_as_it_was() -> None:
    async def scenario(world: World) -> None:
        headers: dict[str, Any] = {
            **RAW,
            "Duramen-Fencing-Token": "té".encode(),
            "X-Own": "1",
            "Connection": "x-hop",
            "X-Hop": "1",
        }
        answer = await world.http.post(f"{RECORDS}?a=%20%2F&b", content=b"body", headers=headers)
        assert answer.json() == {"from": "own"}
        (scope,) = world.own.calls
        given = dict(scope["headers"])
        assert (scope["path"], scope["query_string"]) == (RECORDS, b"a=%20%2F&b")
        assert world.own.bodies == [b"body"]
        assert given[b"duramen-fencing-token"] == "té".encode()
        assert given[b"x-own"] == b"1"
        assert given[FORWARDED_HEADER.encode()] == b"w-0"
        assert b"x-hop" not in given
        assert world.called() == ["own"]

    play(scenario)


def test_a_peer_that_refuses_connections_is_passed_over_and_asked_last_for_a_while() -> None:
    async def scenario(world: World) -> None:
        await world.close(world.own)
        for _ in range(2):
            answer = await world.http.post(RECORDS, content=b"x", headers=RAW)
            assert answer.json() == {"from": "near"}
        assert world.count("unreachable") == 1

    play(scenario)


def test_no_peer_is_a_refusal_that_may_be_repeated() -> None:
    async def scenario(world: World) -> None:
        await world.close(*world.peers)
        answer = await world.http.post(RECORDS, content=b"x", headers=RAW)
        problem = check_problem(answer, 503, "overloaded")
        assert problem["retryable"] and not problem["uncertain"]
        assert int(answer.headers["retry-after"]) >= 1

    play(scenario)


def test_who_is_sent_elsewhere_goes_there_by_himself() -> None:
    """The proxy between does not: a body would cross regions that the client need not cross."""
    place = f"http://w.there:7301{RECORDS}".encode()

    async def send_elsewhere(_scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        pairs = [(b"location", place), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 307, "headers": pairs})
        await send({"type": "http.response.body", "body": b""})

    async def scenario(world: World) -> None:
        world.own.answer = send_elsewhere
        path = f"{RECORDS}?redirect=owner_region"
        answer = await world.http.post(path, content=b"x", headers=RAW)
        assert (answer.status_code, answer.content) == (307, b"")
        assert answer.headers["location"].encode() == place
        assert world.own.calls[0]["query_string"] == b"redirect=owner_region"

    play(scenario)


def test_a_peer_that_drains_is_passed_over() -> None:
    async def scenario(world: World) -> None:
        world.own.answer = world.own.drain
        answer = await world.http.post(RECORDS, content=b"x", headers=RAW)
        assert answer.json() == {"from": "near"}

    play(scenario)


@pytest.mark.parametrize(
    ("method", "path", "code", "uncertain"),
    [
        ("POST", RECORDS, "append_uncertain", True),
        ("POST", f"{LOG}:fence", "append_uncertain", True),
        ("PUT", LOG, "log_unavailable", False),
        ("POST", f"{LOG}:truncate", "log_unavailable", False),
        ("DELETE", LOG, "log_unavailable", False),
    ],
)
def test_what_changes_something_is_not_sent_twice(
    method: str, path: str, code: str, uncertain: bool
) -> None:
    async def scenario(world: World) -> None:
        world.own.answer = world.own.break_off
        answer = await world.http.request(method, path, json={})
        problem = check_problem(answer, 503, code)
        assert problem["uncertain"] is uncertain
        assert world.called() == ["own"]

    play(scenario)


def test_a_read_that_is_not_answered_is_asked_of_the_next_peer() -> None:
    async def scenario(world: World) -> None:
        world.own.answer = world.own.break_off
        answer = await world.http.get(RECORDS)
        assert answer.json() == {"from": "near"}
        assert world.count("unanswered") == 1

    play(scenario)


def test_both_bodies_pass_piece_by_piece_at_the_same_time() -> None:
    """Each line up is answered by a line down before the next one is sent."""

    async def echo(_scope: Any, receive: Any, send: Any) -> None:
        await begin_lines(send)
        while True:
            message = await receive()
            if message.get("body"):
                piece = message["body"].upper()
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            if not message.get("more_body"):
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return

    async def scenario(world: World) -> None:
        world.own.answer = echo
        reader, writer = await asyncio.open_connection("127.0.0.1", world.server.port)
        head = (
            f"POST {RECORDS} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/x-ndjson\r\n"
            "transfer-encoding: chunked\r\n\r\n"
        )
        writer.write(head.encode())
        for index in range(3):
            writer.write(b"7\r\nline %d\n\r\n" % index)
            await reader.readuntil(b"LINE %d\n" % index)
        writer.write(b"0\r\n\r\n")
        await reader.readuntil(b"0\r\n\r\n")
        writer.close()
        await wait_for(lambda: world.count("open") == 0)

    play(scenario)


def test_one_connection_carries_any_number_of_streamed_answers() -> None:
    """HTTP/2 clients take a hundred empty frames in a connection's life for an attack."""

    async def lines(_scope: Any, _receive: Any, send: Any) -> None:
        await begin_lines(send)
        for _ in range(2):
            await send({"type": "http.response.body", "body": b"{}\n", "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def scenario(world: World) -> None:
        world.own.answer = lines
        async with ClientBuilder().http2_prior_knowledge().no_proxy().build() as client:
            for _ in range(150):
                request = client.get(f"http://127.0.0.1:{world.server.port}{RECORDS}")
                answer = await request.build().send()
                assert await answer.text() == "{}\n{}\n"

    play(scenario)


def test_a_client_that_goes_ends_the_call_at_the_peer() -> None:
    async def scenario(world: World) -> None:
        world.own.answer = world.own.wait_gone
        async with world.http.stream("GET", RECORDS) as answer:
            assert await anext(answer.aiter_bytes()) == b"{}\n"
            assert world.count("open") == 1
        await wait_for(lambda: world.own.gone_count == 1 and world.count("open") == 0)

    play(scenario)


def test_a_client_that_goes_before_the_answer_ends_the_call_at_the_peer() -> None:
    async def never(_scope: Any, receive: Any, _send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()

    gone = asyncio.Event()

    async def scenario(world: World) -> None:
        world.own.answer = never
        call = asyncio.create_task(world.http.get(RECORDS))
        await wait_for(lambda: world.called() == ["own"])
        call.cancel()
        await gone.wait()
        await wait_for(lambda: world.count("open") == 0)

    play(scenario)


def test_an_answer_that_breaks_off_at_the_peer_breaks_off_here() -> None:
    async def break_off(_scope: Any, _receive: Any, send: Any) -> None:
        await begin_lines(send)
        await send({"type": "http.response.body", "body": b"{}\n", "more_body": True})
        raise RuntimeError("a peer that breaks, on purpose")

    async def scenario(world: World) -> None:
        world.own.answer = break_off
        with pytest.raises(httpx.RemoteProtocolError):
            await world.http.get(RECORDS)
        await wait_for(lambda: world.count("open") == 0)

    play(scenario)


def test_a_large_body_goes_up_as_it_comes_and_is_not_kept() -> None:
    """The peer takes nothing: far less than the body arrives here."""

    async def hold(_scope: Any, _receive: Any, send: Any) -> None:
        await taking.wait()
        await answer_json(send, {})

    taking = asyncio.Event()
    sent = [0]

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(1_024):
            sent[0] += 1
            yield bytes(64 << 10)

    async def scenario(world: World) -> None:
        world.own.answer = hold
        call = asyncio.create_task(world.http.post(RECORDS, content=pieces(), headers=RAW))
        await wait_for(lambda: world.called() == ["own"])
        before = -1
        while before != sent[0]:
            before = sent[0]
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(call), 0.3)
        assert sent[0] < 1_024
        call.cancel()
        taking.set()

    play(scenario)


def test_the_rest_of_a_body_is_sent_to_nobody() -> None:
    """The first piece is with a peer that then drains: a second peer would take half a batch."""

    async def take_one_and_drain(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        taken.set()
        await answer_json(send, {"code": "server_draining"}, 503, "application/problem+json")

    async def pieces() -> AsyncIterator[bytes]:
        yield b"first"
        await taken.wait()
        yield b"second"

    taken = asyncio.Event()

    async def scenario(world: World) -> None:
        world.own.answer = take_one_and_drain
        answer = await world.http.post(RECORDS, content=pieces(), headers=RAW)
        check_problem(answer, 503, "server_draining")
        assert world.called() == ["own"]

    play(scenario)


def test_a_peer_that_takes_no_more_headers_now_is_passed_over() -> None:
    async def scenario(world: World) -> None:
        world.own.answer = world.own.refuse_header
        answer = await world.http.post(RECORDS, content=b"x", headers=RAW)
        assert (answer.status_code, world.called()) == (200, ["near", "own"])
        for peer in world.peers:
            peer.answer = peer.refuse_header
        answer = await world.http.post(RECORDS, content=b"x", headers=RAW)
        check_problem(answer, 503, "overloaded")
        assert answer.headers["retry-after"] and world.count("too_many_there") == 4

    play(scenario)


def test_more_calls_than_peers_carry_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "CALL_COUNT_MAX", 4)

    async def scenario(world: World) -> None:
        world.own.answer = world.own.wait_gone
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(4):
                answer = await stack.enter_async_context(world.http.stream("GET", RECORDS))
                assert answer.status_code == 200
            check_problem(await world.http.get(RECORDS), 503, "overloaded")
            assert (world.count("open"), world.count("refused")) == (4, 1)
        await wait_for(lambda: world.count("open") == 0)
        async with world.http.stream("GET", RECORDS) as answer:
            assert answer.status_code == 200, "there is room again"

    play(scenario)


def test_a_fault_of_the_body_is_the_answer_and_ends_the_call() -> None:
    """As a decoder of bodies before the routes finds it."""

    class Decoder:
        def __init__(self, app: Any) -> None:
            self._app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            async def decode() -> Any:
                message = await receive()
                if b"bad" in message.get("body", b""):
                    raise DuramenError("invalid_argument", "the body is damaged", field="body")
                return message

            await self._app(scope, decode, send)

    async def pieces() -> AsyncIterator[bytes]:
        yield b"good"
        await arrived.wait()
        yield b"bad"

    async def take(_scope: Any, receive: Any, _send: Any) -> None:
        while (message := await receive())["type"] == "http.request":
            taken.append(message["body"])
            arrived.set()
        gone.set()

    arrived, gone = asyncio.Event(), asyncio.Event()
    taken: list[bytes] = []

    async def scenario(world: World) -> None:
        world.app.add_middleware(Decoder)
        world.own.answer = take
        answer = await world.http.post(RECORDS, content=pieces(), headers=RAW)
        assert check_problem(answer, 400, "invalid_argument")["field"] == "body"
        await gone.wait()
        assert b"bad" not in b"".join(taken)

    play(scenario)


def test_a_call_is_forwarded_once() -> None:
    async def scenario(world: World) -> None:
        answer = await world.http.get(RECORDS, headers={FORWARDED_HEADER: "r-1"})
        assert check_problem(answer, 404, "invalid_argument")["field"] == "path"
        assert world.called() == []

    play(scenario)


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/namespaces/a/logs/{}/records"), ("DELETE", "/v1/access-tokens/{}")],
)
@pytest.mark.parametrize("name", ["%2e%2e", "..", "a%2Fb", "%00", "b%3Fx", "l%23"])
def test_no_name_makes_another_call_of_it(name: str, method: str, path: str) -> None:
    async def scenario(world: World) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.server.port)
        first = f"{method} {path.format(name)} HTTP/1.1"
        writer.write(f"{first}\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n".encode())
        answer = await reader.read()
        assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 404")), answer
        assert world.called() == []
        writer.close()

    play(scenario)


def test_a_stop_ends_reads_at_once_and_refuses_what_comes() -> None:
    async def scenario(world: World) -> None:
        world.own.answer = world.own.wait_gone
        async with world.http.stream("GET", RECORDS) as answer:
            lines = answer.aiter_bytes()
            await anext(lines)
            world.is_draining = True
            stop = asyncio.create_task(world.forwarder.stop())
            with pytest.raises(httpx.RemoteProtocolError):
                await anext(lines)
            await stop
        check_problem(await world.http.get(RECORDS), 503, "server_draining")

    play(scenario)


def test_separated_proxies_do_not_know_the_others_calls() -> None:
    async def scenario(world: World) -> None:
        app = make_public_app("test")
        complete_app(app, None)
        server = PublicServer("127.0.0.1", 0, app)
        await server.start()
        url = f"http://127.0.0.1:{server.port}"
        check_problem(await world.http.get(url + RECORDS), 404, "invalid_argument")
        document = await world.http.get(url + "/v1/openapi.json")
        assert document.json()["openapi"] == "3.1.0"
        await server.stop()

    play(scenario)
