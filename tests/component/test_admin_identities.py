"""Who is let in at an admin port that has an identity: by TLS, by certificate, and by verb.

Real sockets, the routes of all four services, and certificates as a CA issues them, or as it never
should. Source: docs/protocol/identity.md "TLS", docs/protocol/rights.md "Verbs".
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import errno
import random
import socket
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop
from fastapi import FastAPI

from duramen.cluster import health
from duramen.core.rights.judgement import BUILT_IN
from duramen.core.rights.verbs import Verb
from duramen.errors import DuramenError
from duramen.runtime.edge import port_listener
from duramen.runtime.edge.admin_connections import AdminConnections
from duramen.runtime.http_client import PeerError
from duramen.runtime.identity.certificates import make_authority
from duramen.runtime.identity.folder import HeldIdentity
from duramen.runtime.identity.names import Role, make_identity
from duramen.runtime.rights.route_verbs import list_verbs
from duramen.runtime.security.admin_calls import AdminPortCalls
from duramen.runtime.security.process_security import ProcessSecurity
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.units import MS, SECOND
from duramen.wire.metadata_json import Paths
from duramen.wire.nodes.grants import GrantsNode, encode_grants
from tests.component.admin_world import (
    ROLES,
    THROUGH,
    AdminPort,
    issue_by_hand,
    read_held,
    run,
    serving,
)
from tests.component.issuing_world import IssuingWorld, read_time
from tests.pauses import look_again_soon
from tests.unit.grants import given
from tests.unit.identities import DOMAIN
from tests.waiting import wait_for

WEEK = dt.timedelta(days=7)
GET = b"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"


def fill(path: str) -> str:
    """A path of a route, with something in the place of each part that varies."""
    return "/".join("1" if part.startswith("{") else part for part in path.split("/"))


@pytest.mark.parametrize("service", ROLES)
def test_each_identity_makes_those_requests_whose_verb_it_has_and_nobody_else_any(
    tmp_path: Path, service: str
) -> None:
    world = IssuingWorld(tmp_path)
    shown: dict[str, HeldIdentity | None] = {
        role: read_held(world.issue(role, f"{role}-9")) for role in Role
    }

    async def scenario() -> None:
        async with serving(AdminPort(world, service)) as port:
            await follow(port)
            routes = list_verbs(port.app)
            assert len(routes) >= 8, "the routes are those of the service"
            for role, held in [("nobody", None), *shown.items()]:
                may = {verb for granted in BUILT_IN.get(role, ()) for verb in granted.verbs}
                # What is recorded is handed on by who recorded it, whatever else others may.
                may -= {Verb.APPEND}
                may |= {Verb.APPEND} if role in ("bookie", "sequencer") else set()
                async with port.open_client(held) as client:
                    for (method, path), verb in routes.items():
                        answer = await client.request(method, fill(path))
                        expected = THROUGH if verb is None or verb in may else 403
                        if held is None and verb is not None:
                            expected = 401
                        assert answer.status_code == expected, (role, method, path)
                        if expected == 403:
                            assert answer.json()["code"] == "forbidden"
                            assert answer.json()["detail"] == f"{verb} on the cluster: you may not"

    run(scenario())


async def follow(port: AdminPort, *lines: str) -> None:
    """Let the port know the grants of its cluster."""
    store = MemoryStore(MemoryTree())
    await store.start()
    paths = Paths("c")
    if lines:
        data = encode_grants(GrantsNode(tuple(given(line) for line in lines)))
        await store.create(paths.grants, data, make_parents=True)
    port.security.rights.follow(store, paths)
    await wait_for(
        lambda: (port.security.statistics()["grants"] or {}).get("grants") is not None,
        what="the grants to be read",
    )


def test_built_in_rights_need_no_zookeeper_and_others_wait_for_it(tmp_path: Path) -> None:
    world = IssuingWorld(tmp_path)
    client = read_held(world.issue("client", "ann"))
    monitor = read_held(world.issue("monitor", "m-0"))

    async def scenario() -> None:
        async with (
            serving(AdminPort(world)) as port,
            port.open_client(client) as ann,
            port.open_client(monitor) as watching,
        ):
            assert (await watching.get("/metrics")).status_code == THROUGH
            answer = await ann.get("/metrics")
            assert (answer.status_code, answer.json()["code"]) == (503, "metadata_unavailable")
            await follow(port, "service:client/ann monitor *")
            assert (await ann.get("/metrics")).status_code == THROUGH
            assert (await ann.post("/v1/drain-and-stop")).status_code == 403

    run(scenario())


def test_who_is_nobody_learns_of_no_route(tmp_path: Path) -> None:
    world = IssuingWorld(tmp_path)
    client = read_held(world.issue("client", "ann"))

    async def scenario() -> None:
        async with serving(AdminPort(world, change=lambda _: None)) as port:
            for held, missing, wrong in ((None, 401, 401), (client, 404, 405)):
                async with port.open_client(held) as calls:
                    assert (await calls.get("/v1/nothing")).status_code == missing
                    assert (await calls.delete("/metrics")).status_code == wrong
                    answer = await calls.get("/healthz")
                    assert answer.json() == {"status": "ok"}
                    assert (await calls.head("/readyz")).status_code == 503
                    answer = await calls.head("/metrics")
                    assert answer.status_code == (401 if held is None else 503)
                    if held is None:
                        assert answer.headers["www-authenticate"] == "TLS-Certificate"

    run(scenario())


def test_a_refusal_waits_for_no_body(tmp_path: Path) -> None:
    world = IssuingWorld(tmp_path)
    put = (
        b"PUT /v1/read-only HTTP/1.1\r\nhost: 127.0.0.1\r\n"
        b"content-type: application/json\r\ncontent-length: 10\r\n\r\n"
    )

    async def scenario() -> None:
        async with serving(AdminPort(world, change=lambda _: None)) as port:
            for held, status in ((None, b" 401 "), (read_held(world.caller), b" 503 ")):
                reader, writer = await port.connect(held)
                writer.write(put)
                assert status in await reader.readuntil(b"\r\n")
                writer.close()

    run(scenario())


# --- TLS -----------------------------------------------------------------------------------------


async def ask(port: AdminPort, context: ssl.SSLContext | None, path: str = "/healthz") -> str:
    """What an answer begins with, or `refused`."""
    scheme = "http" if context is None else "https"
    verify: ssl.SSLContext | bool = False if context is None else context
    async with httpx.AsyncClient(verify=verify, trust_env=False) as client:
        try:
            answer = await client.get(f"{scheme}://127.0.0.1:{port.server.port}{path}")
        except httpx.TransportError:
            return "refused"
        return str(answer.status_code)


def test_tls_1_3_alone_and_no_certificate_that_the_cluster_did_not_issue(tmp_path: Path) -> None:
    world, other = IssuingWorld(tmp_path / "a"), IssuingWorld(tmp_path / "b")
    identity = make_identity(DOMAIN, "operator", "op")

    def make(begins: dt.datetime) -> HeldIdentity:
        return issue_by_hand(world, identity, begins, WEEK)

    async def scenario() -> None:
        async with serving(AdminPort(world)) as port:
            assert await ask(port, port.trust(make(read_time())), "/metrics") == str(THROUGH)
            assert await ask(port, None) == "refused", "plain text"
            old = port.trust()
            old.maximum_version = ssl.TLSVersion.TLSv1_2
            assert await ask(port, old) == "refused"
            for shown in (
                read_held(other.caller),
                make(read_time() - 2 * WEEK),
                make(read_time() + WEEK),
            ):
                # A certificate that is bad is worse than none, also where none is asked for.
                assert await ask(port, port.trust(shown)) == "refused", shown.leaf
            assert await ask(port, port.trust()) == str(THROUGH)
            stranger = AdminPort(other)
            assert await ask(port, stranger.trust()) == "refused", "its CA is not trusted"
            await stranger.server.stop()
            await stranger.security.stop()

    run(scenario())


def test_what_openssl_lets_in_our_own_code_judges(tmp_path: Path) -> None:
    world = IssuingWorld(tmp_path)
    stranger = make_identity("e" * 32, "operator", "op")
    held = issue_by_hand(world, stranger, read_time(), WEEK)

    async def scenario() -> None:
        async with serving(AdminPort(world)) as port:
            assert await ask(port, port.trust(held), "/metrics") == "401"

    run(scenario())


def test_a_ca_that_a_parent_signed_is_the_anchor_of_an_admin_port(tmp_path: Path) -> None:
    world = IssuingWorld(tmp_path, make_authority("e" * 32, read_time()))

    async def scenario() -> None:
        async with serving(AdminPort(world)) as port:
            held = read_held(world.caller)
            assert await ask(port, port.trust(held), "/metrics") == str(THROUGH)

    run(scenario())


def test_who_is_revoked_is_refused_on_a_connection_that_is_there(tmp_path: Path) -> None:
    world = IssuingWorld(tmp_path)

    async def scenario() -> None:
        async with (
            serving(AdminPort(world)) as port,
            port.open_client(read_held(world.caller)) as client,
        ):
            assert (await client.get("/metrics")).status_code == THROUGH
            world.revoke("sequencer-0", world.server)
            assert (await client.get("/metrics")).status_code == THROUGH, "nobody has looked"
            await port.look()
            answer = await client.get("/metrics")
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
            assert (await client.get("/healthz")).status_code == THROUGH
            made = client._transport._pool.connections  # type: ignore[attr-defined]
            assert len(made) == 1, "all that was one connection"

    run(scenario())


def test_a_certificate_counts_no_longer_than_it_lives(tmp_path: Path) -> None:
    world = IssuingWorld(tmp_path)
    identity = make_identity(DOMAIN, "monitor", "m-0")
    held = issue_by_hand(world, identity, read_time(), dt.timedelta(seconds=2))

    async def scenario() -> None:
        async with serving(AdminPort(world)) as port, port.open_client(held) as client:
            assert (await client.get("/metrics")).status_code == THROUGH

            async def is_refused() -> bool:
                return (await client.get("/metrics")).status_code == 401

            await wait_for(is_refused, 10, "the certificate to end", rest_s=0.05)

    run(scenario())


def test_a_renewal_shows_itself_to_the_next_connection_and_no_call_fails(tmp_path: Path) -> None:
    world = IssuingWorld(tmp_path)

    async def show(port: AdminPort) -> int:
        reader, writer = await port.connect(read_held(world.caller))
        tls = writer.get_extra_info("ssl_object")
        writer.write(GET)
        assert b" 299 " in await reader.readuntil(b"\r\n")
        writer.close()
        leaf = tls.getpeercert()
        assert leaf is not None
        return int(leaf["serialNumber"], 16)

    async def scenario() -> None:
        async with (
            serving(AdminPort(world)) as port,
            port.open_client(read_held(world.caller)) as kept,
        ):
            serials: list[int] = []
            may_end = asyncio.Event()

            async def ask_on() -> None:
                while not may_end.is_set():
                    serials.append(await show(port))
                    assert (await kept.get("/metrics")).status_code == THROUGH

            asking = [asyncio.create_task(ask_on()) for _ in range(3)]
            for _ in range(5):
                expected = read_held(world.issue("bookie", "bookie-0")).leaf.serial_number
                await port.look()
                assert await show(port) == expected
                await wait_for(lambda: serials[-1:] == [expected])  # noqa: B023 - of this turn
            may_end.set()
            await asyncio.gather(*asking)
            assert len(set(serials)) >= 5
            assert port.failures == []

    run(scenario())


# --- Handshakes ----------------------------------------------------------------------------------


LOOPS: list[Callable[[Coroutine[Any, Any, None]], None]] = [run, uvloop.run]


@pytest.mark.parametrize("run_on", LOOPS, ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["silent", "half"])
def test_a_handshake_that_does_not_end_has_its_place_and_its_time(
    tmp_path: Path, run_on: Callable[[Coroutine[Any, Any, None]], None], sent: bytes
) -> None:
    world = IssuingWorld(tmp_path)

    async def scenario() -> None:
        connections = AdminConnections(per_peer_count=4, request_timeout_us=1 * SECOND)
        async with serving(AdminPort(world, connections=connections)) as port:
            address = ("127.0.0.1", port.server.port)
            waiting = [await asyncio.open_connection(*address) for _ in range(4)]
            for _, writer in waiting:
                writer.write(sent)
            await wait_for(lambda: connections.count_of["127.0.0.1"] == 4)
            reader, writer = await asyncio.open_connection(*address)
            assert await reader.read() == b"", "there is no fifth place"
            writer.close()
            for one, writer in waiting:
                with contextlib.suppress(ConnectionError):
                    await one.read()
                writer.close()
            await wait_for(lambda: not connections.count_of)
            assert await ask(port, port.trust()) == str(THROUGH)
            await wait_for(lambda: not connections.count_of, what="all places to be free")

    run_on(scenario())


def test_silent_handshakes_of_others_hold_up_nobody(tmp_path: Path) -> None:
    world = IssuingWorld(tmp_path)

    async def scenario() -> None:
        async with serving(AdminPort(world)) as port:
            silent = [socket.create_connection(("127.0.0.1", port.server.port)) for _ in range(100)]
            begun_s = asyncio.get_running_loop().time()
            assert await ask(port, port.trust()) == str(THROUGH)
            assert asyncio.get_running_loop().time() - begun_s < 5
            for one in silent:
                one.close()

    run(scenario())


@pytest.mark.parametrize("run_on", LOOPS, ids=["asyncio", "uvloop"])
def test_who_hangs_up_in_the_middle_gives_its_place_back(
    tmp_path: Path, run_on: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    world = IssuingWorld(tmp_path)

    async def scenario() -> None:
        connections = AdminConnections(per_peer_count=2)
        async with serving(AdminPort(world, connections=connections)) as port:
            for sent in (b"", b"\x16\x03", b"GET / HTTP/1.1\r\n\r\n"):
                _, writer = await asyncio.open_connection("127.0.0.1", port.server.port)
                writer.write(sent)
                await look_again_soon()
                writer.close()
                await wait_for(lambda: not connections.count_of, what=repr(sent))
            reader, writer = await port.connect()
            writer.write(GET)
            assert b" 401 " in await reader.readuntil(b"\r\n")
            writer.transport.abort()
            await wait_for(lambda: not connections.count_of)

    run_on(scenario())


@pytest.mark.parametrize("run_on", LOOPS, ids=["asyncio", "uvloop"])
def test_bytes_of_any_kind_end_their_own_connection_and_nothing_else(
    tmp_path: Path, run_on: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    world, rng = IssuingWorld(tmp_path), random.Random(7)

    async def scenario() -> None:
        connections = AdminConnections(request_timeout_us=1 * SECOND)
        async with serving(AdminPort(world, connections=connections)) as port:
            for number in range(60):
                # A record of a handshake begins with 22, 3, 1 and its length.
                begun = (b"", b"\x16\x03\x01\x02\x00", b"\x16\x03\x01\xff\xff")[number % 3]
                _, writer = await asyncio.open_connection("127.0.0.1", port.server.port)
                writer.write(begun + rng.randbytes(rng.randrange(1, 2_000)))
                writer.close()
            await wait_for(lambda: not connections.count_of, what="all places to be free")
            assert await ask(port, port.trust()) == str(THROUGH)

    run_on(scenario())


def test_a_request_that_does_not_arrive_ends_its_connection_in_tls_too(tmp_path: Path) -> None:
    world = IssuingWorld(tmp_path)

    async def scenario() -> None:
        connections = AdminConnections(request_timeout_us=200 * MS)
        async with serving(AdminPort(world, connections=connections)) as port:
            for sent in (b"", GET[:9]):
                reader, writer = await port.connect()
                writer.write(sent)
                assert await reader.read() == b""
                writer.close()
            await wait_for(lambda: not connections.count_of)

    run(scenario())


def test_the_end_of_the_port_waits_for_no_handshake(tmp_path: Path) -> None:
    world = IssuingWorld(tmp_path)

    async def scenario() -> None:
        connections = AdminConnections()
        async with serving(AdminPort(world, connections=connections)) as port:
            silent = socket.create_connection(("127.0.0.1", port.server.port))
            await wait_for(lambda: connections.count_of["127.0.0.1"] == 1)
        await wait_for(lambda: not connections.count_of)
        silent.close()

    run(scenario())


def test_a_port_goes_on_after_a_time_without_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = IssuingWorld(tmp_path)
    monkeypatch.setattr(port_listener, "_REST_S", 0.05)
    failures = [OSError(errno.EMFILE, "too many open files"), ConnectionAbortedError("gone")]

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        accept = loop.sock_accept

        async def fail_first(listening: socket.socket) -> Any:
            if failures:
                raise failures.pop()
            return await accept(listening)

        monkeypatch.setattr(loop, "sock_accept", fail_first)
        async with serving(AdminPort(world)) as port:
            assert await ask(port, port.trust()) == str(THROUGH)
            assert not failures

    run(scenario())


# --- Asking others -------------------------------------------------------------------------------


def test_who_asks_admin_ports_shows_itself_and_believes_its_own_cluster_alone(
    tmp_path: Path,
) -> None:
    world, other = IssuingWorld(tmp_path / "a"), IssuingWorld(tmp_path / "b")

    def answer(app: FastAPI) -> None:
        app.get("/v1/who", openapi_extra={"x-duramen-verb": "observe"})(tell)

    async def tell() -> dict[str, str]:
        return {"who": "bookie-0"}

    async def refused(calls: AdminPortCalls, url: str) -> bool:
        try:
            await calls.get_object(url)
        except PeerError:
            return True
        return False

    async def scenario() -> None:
        async with (
            serving(AdminPort(world, change=answer)) as port,
            serving(AdminPort(other, change=answer)) as stranger,
        ):
            security = ProcessSecurity(world.caller, read_held(world.caller), print)
            calls, nobody = AdminPortCalls(security), AdminPortCalls(None)
            assert await calls.get_object(f"{port.url}/v1/who") == {"who": "bookie-0"}
            assert await refused(nobody, f"{port.url}/v1/who")
            assert await refused(calls, f"{stranger.url}/v1/who"), "another cluster's"
            by_name = port.url.replace("127.0.0.1", "localhost")
            assert await refused(calls, f"{by_name}/v1/who"), "its certificate names an address"
            assert await refused(calls, f"{port.url}/v1/nothing")
            plain = port.url.replace("https", "http")
            with pytest.raises(PeerError, match="no TLS"):
                await calls.get_object(f"{plain}/v1/who")
            await calls.close()
            await nobody.close()
            await security.stop()

    run(scenario())


def test_a_probe_that_executes_needs_the_ca_and_no_certificate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world, other = IssuingWorld(tmp_path / "a"), IssuingWorld(tmp_path / "b")

    async def scenario() -> None:
        async with serving(AdminPort(world, change=lambda _: None)) as port:

            async def probe(*flags: str) -> int:
                # A node need not be called by the address of its probes.
                arguments = [str(port.server.port), "--host", "localhost", *flags]
                return await asyncio.to_thread(health.main, arguments)

            ca, strange = str(world.ca / "ca.crt"), str(other.ca / "ca.crt")
            assert await probe("--alive", "--ca", ca) == 0
            assert await probe("--ca", ca) == 1, "it is not ready"
            assert '503 {"ready":false}' in capsys.readouterr().err
            for flags in ((), ("--ca", strange), ("--ca", str(tmp_path / "none"))):
                assert await probe("--alive", *flags) == 1
                assert "no answer on port" in capsys.readouterr().err

    run(scenario())


def test_rights_that_are_not_known_are_no_refusal(tmp_path: Path) -> None:
    world = IssuingWorld(tmp_path)

    async def scenario() -> None:
        security = ProcessSecurity(world.server, read_held(world.server), print)
        assert security.rights.may(make_identity(DOMAIN, "operator", "op"), Verb.OPERATE)
        with pytest.raises(DuramenError, match="metadata_unavailable"):
            security.rights.may(make_identity(DOMAIN, "bookie", "b"), Verb.OBSERVE)
        await security.stop()

    run(scenario())
