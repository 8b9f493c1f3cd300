"""Ports of a process that turns security on: two of each kind, and everybody is served.

Real servers over loopback; the door of a public port by hand. Source: docs/protocol/turning-on.md
"Two ports of each kind", "Which way a call takes", "What is judged, and only counted".
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from duramen.cluster.layout import pick_free_port
from duramen.core.reading.replica_order import Place
from duramen.core.rights.verbs import Verb
from duramen.errors import DuramenError
from duramen.ids import LogId
from duramen.runtime.admin import make_admin_app
from duramen.runtime.admission.callers import CALL_KEY, AdmittedCall
from duramen.runtime.admission.public_door import PublicDoor
from duramen.runtime.audit.by_write_proxies import AuditByWriteProxies
from duramen.runtime.audit.recorded_admin import RecordedAdmin
from duramen.runtime.http_client import PeerClient, UnreachableError
from duramen.runtime.http_server import AdminServer, Answer, DataServer, make_guard
from duramen.runtime.identity.folder import read_folder
from duramen.runtime.identity.names import Identity, Role
from duramen.runtime.security.admin_calls import AdminPortCalls
from duramen.runtime.security.permitted_roles import BOOKIE_PATHS
from duramen.runtime.security.process_security import ProcessSecurity
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.runtime.turning.open_ports import PORT_COUNT_MAX
from duramen.runtime.turning.tally import RefusalTally
from duramen.units import SECOND
from duramen.wire.metadata_json import Paths, encode_node
from duramen_readproxy.following.homes import Homes
from duramen_writeproxy import rest
from duramen_writeproxy.elsewhere import Elsewhere
from tests.component.admin_world import (
    THROUGH,
    AdminPort,
    make_options,
    make_service,
    serving,
)
from tests.component.admission_world import as_user
from tests.component.audit_world import AuditLogTwin, make_trail, record_nowhere
from tests.component.door_world import DOCUMENTS, World, play
from tests.component.issuing_world import IssuingWorld, read_time
from tests.unit.identities import DOMAIN
from tests.waiting import wait_for

_WAIT_US: Final = 10 * SECOND
CALLER: Final = f"spiffe://{DOMAIN}/sequencer/sequencer-0"


def turn(folder: Path, *, is_turning: bool = True) -> ProcessSecurity:
    return ProcessSecurity(folder, read_folder(folder, read_time()), print, is_turning=is_turning)


def find(security: ProcessSecurity) -> list[tuple[str, str, str, str]]:
    assert security.tally is not None
    rows = security.tally.describe("migrate").rows or []
    return [(row.port, row.who, row.verb, row.why) for row in rows]


def run(work: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await work

    asyncio.run(bounded())


class Node:
    """A bookie's two data ports, which say who called."""

    def __init__(self, world: IssuingWorld) -> None:
        self.security = turn(world.server)
        self.tls_port = pick_free_port()
        guard = make_guard(self.security, BOOKIE_PATHS, self.tls_port)
        self.server = DataServer("127.0.0.1", 0, self._answer, self._stream, guard=guard)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    def fields(self, host: str = "127.0.0.1") -> dict[str, str]:
        return {"data_url": self.url, "tls_data_url": f"https://{host}:{self.tls_port}"}

    async def _answer(self, _path: str, _body: bytes, caller: Identity | None) -> Answer:
        return 200, "text/plain", str(caller).encode()

    def _stream(
        self, path: str, body: bytes, send: Callable[[bytes], Awaitable[None]]
    ) -> Awaitable[None] | None:
        return send(b"piece") if path == "/b/lac" and not body else None


def test_a_call_goes_by_tls_where_there_is_some_and_by_the_plain_port_else(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = IssuingWorld(tmp_path)
        node, on = Node(world), turn(world.caller, is_turning=False)
        await node.server.start()
        clients = {"on": PeerClient(on), "none": PeerClient()}

        async def call(kind: str) -> str:
            return (await clients[kind].call(f"{node.url}/b/read", b"x", _WAIT_US)).decode()

        assert await call("none") == "None"
        assert find(node.security) == [("data", "127.0.0.1", "/b/read", "unknown")]
        learn = on.peers.learn_role(Role.BOOKIE)
        learn({"bookie-0": {"data_url": node.url}})
        assert await call("on") == "None", "it is not registered with TLS, or not known yet"
        learn({"bookie-0": node.fields()})
        assert await call("on") == CALLER
        pieces = [p async for p in clients["on"].stream(f"{node.url}/b/lac", b"", _WAIT_US)]
        assert pieces == [b"piece"]
        assert len(find(node.security)) == 1, "who is known and may is no finding"
        for client in clients.values():
            await client.close()
        await node.server.stop()
        for security in (on, node.security):
            await security.stop()

    run(scenario())


@pytest.mark.parametrize("is_turning", [True, False])
def test_who_turns_is_served_in_plain_text_where_tls_leads_nowhere(
    tmp_path: Path, is_turning: bool
) -> None:
    async def scenario() -> None:
        world = IssuingWorld(tmp_path)
        node, security = Node(world), turn(world.caller, is_turning=is_turning)
        await node.server.start()
        client = PeerClient(security)
        # Its certificate names 127.0.0.1 alone.
        security.peers.learn_role(Role.BOOKIE)({"bookie-0": node.fields("localhost")})
        if is_turning:
            assert await client.call(f"{node.url}/b/read", b"x", _WAIT_US) == b"None"
            pieces = [p async for p in client.stream(f"{node.url}/b/lac", b"", _WAIT_US)]
            assert pieces == [b"piece"]
            assert find(security) == [("peer", CALLER, "connect", "unreached")]
        else:
            with pytest.raises(UnreachableError, match="certificate is refused"):
                await client.call(f"{node.url}/b/read", b"x", _WAIT_US)
            with pytest.raises(UnreachableError, match="certificate is refused"):
                [p async for p in client.stream(f"{node.url}/b/lac", b"", _WAIT_US)]
        await node.server.stop()
        counted = find(security) if is_turning else []
        with pytest.raises(UnreachableError):
            await client.call(f"{node.url}/b/read", b"x", _WAIT_US)
        assert not is_turning or find(security) == counted, "who is dead is no finding"
        await client.close()
        for one in (security, node.security):
            await one.stop()

    run(scenario())


def test_an_admin_port_answers_in_plain_text_and_by_tls_and_counts(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = IssuingWorld(tmp_path)
        security, on = turn(world.server), turn(world.caller, is_turning=False)
        app = make_admin_app(
            make_service("bookie"), make_options("bookie"), lambda: None, security.tally
        )
        plain, tls = (
            AdminServer("127.0.0.1", 0, app, security=security, has_tls=has_tls)
            for has_tls in (False, True)
        )
        await plain.start()
        await tls.start()
        fields = {
            "admin_url": f"http://127.0.0.1:{plain.port}",
            "tls_admin_url": f"https://127.0.0.1:{tls.port}",
        }
        known, nobody = AdminPortCalls(on), AdminPortCalls(None)
        route = "/v1/security/would-refuse"
        assert (await known.ask_node(fields, route))["rows"] == [], "a sequencer may observe"
        rows = (await nobody.ask_node(fields, route))["rows"]
        assert [(row["who"], row["verb"], row["why"]) for row in rows] == [
            ("127.0.0.1", "observe", "unknown")
        ]
        await nobody.ask_node(fields, "/healthz")
        with pytest.raises(UnreachableError, match="no TLS"):
            await known.ask_node({"admin_url": fields["admin_url"]}, route)
        wrong = fields | {
            "tls_admin_url": fields["tls_admin_url"].replace("127.0.0.1", "localhost")
        }
        turning = AdminPortCalls(turn(world.caller))
        assert (await turning.ask_node(wrong, route))["rows"], "in plain text"
        assert find(security) == [("admin", "127.0.0.1", "observe", "unknown")]
        for calls in (known, nobody, turning):
            await calls.close()
        for server in (plain, tls):
            await server.stop()

    run(scenario())


def test_a_public_port_serves_everybody_and_knows_whom_it_would_refuse(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        port, tally = world.ports[0], RefusalTally()
        path = "/v1/namespaces/shop/logs/orders"

        def list_found() -> list[tuple[str, str, str, str]]:
            rows = tally.describe("migrate").rows or []
            return [(row.who, row.verb, row.why, row.target) for row in rows]

        async def is_known() -> bool:
            return (await port.call("GET", path, as_user("reader"))).status == 200

        await world.callers.give("reader reader shop/orders")
        await wait_for(is_known)
        port._door = PublicDoor(
            port._serve, world.admissions[0], DOCUMENTS, record_nowhere(), tally
        )
        assert await is_known()
        assert list_found() == []
        for name in ("/v1/openapi.json", "/v1/namespaces/shop/logs/Bad%20name"):
            assert (await port.call("GET", name)).status == 200, "the route says what is wrong"
        assert [row[1:3] for row in list_found()] == [], "no credential is judged of these"
        assert (await port.call("POST", f"{path}/records")).status == 200
        assert list_found()[0] == ("?", "append", "unauthenticated", "shop/orders")
        assert CALL_KEY not in port.reached[-1], "as with none"
        assert (await port.call("POST", f"{path}/records", as_user("reader"))).status == 200
        reader = "user:corp/reader"
        assert list_found()[0] == (reader, "append", "forbidden", "shop/orders")
        call: AdmittedCall = port.reached[-1][CALL_KEY]
        call.demand(Verb.CREATE, "shop", "orders")
        assert list_found()[0] == (reader, "create", "forbidden", "shop/orders")
        asked = cast(Any, SimpleNamespace(scope=port.reached[-1]))
        rest._check_limits(asked, {"auto_create": True})
        assert list_found()[0][1] == "create"
        rest._check_limits(asked, {"limits": {}})
        assert list_found()[0] == (reader, "operate", "forbidden", "")
        assert call.find_rights().judge(Verb.LIST, "stock"), "a list is not cut"
        call.end(DuramenError("unauthenticated", "gone"))
        call.check()
        assert list_found()[0] == (reader, "append", "unauthenticated", "shop/orders")

    play(tmp_path, scenario)


def test_a_tls_port_that_says_nothing_costs_a_call_half_of_its_time_at_most(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        world, half_us = IssuingWorld(tmp_path), SECOND // 2
        node, security = Node(world), turn(world.caller)
        await node.server.start()
        client = PeerClient(security)
        with contextlib.ExitStack() as held:
            silent = held.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
            for _ in range(4):  # whoever comes after these is not answered, as by a firewall
                waiting = held.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(silent.getsockname())
            port = silent.getsockname()[1]
            fields = node.fields() | {"tls_data_url": f"https://127.0.0.1:{port}"}
            security.peers.learn_role(Role.BOOKIE)({"bookie-0": fields})
            # A connection is given up after 1 s, which is more than this call has.
            assert await client.call(f"{node.url}/b/read", b"x", half_us) == b"None"
            assert find(security) == [], "it had too little time to know"
            await wait_for(lambda: security.open_ports.statistics()["silent"] == 1)
            for _ in range(20):
                assert await client.call(f"{node.url}/b/read", b"x", half_us) == b"None"
            assert security.open_ports.statistics() == {
                "known": 1, "known_max": PORT_COUNT_MAX, "silent": 1, "trying": 0,
            }  # fmt: skip
            assert find(security) == [("peer", CALLER, "connect", "unreached")]
        await client.close()
        await node.server.stop()
        for one in (security, node.security):
            await one.stop()

    run(scenario())


def test_audit_records_go_by_tls_to_a_write_proxy_that_turns(tmp_path: Path) -> None:
    async def scenario() -> None:
        world, store, paths = IssuingWorld(tmp_path), MemoryStore(MemoryTree()), Paths("c")
        security = turn(world.issue("readproxy", "rp-0"))
        await store.start()
        closed = pick_free_port()
        # On another host its plain port would show the records to whoever is on the way.
        urls = {"data_url": "http://10.0.0.7:1", "tls_data_url": f"https://127.0.0.1:{closed}"}
        path = f"{paths.write_proxies}/wp-0"
        await store.create(path, encode_node(urls), ephemeral=True, make_parents=True)
        sink = AuditByWriteProxies(store, paths, Place("", ""), security, None)
        await sink.start()
        with pytest.raises(UnreachableError, match=f"cannot connect to https://127.0.0.1:{closed}"):
            await sink.append([b"{}"])
        await sink.stop()
        await security.stop()

    run(scenario())


def test_what_would_be_refused_at_an_admin_port_is_recorded_and_shows_no_path(
    tmp_path: Path,
) -> None:
    world, log = IssuingWorld(tmp_path), AuditLogTwin()
    monitor = read_folder(world.issue("monitor", "monitor-9"), read_time())

    async def scenario() -> None:
        trail = make_trail(log)
        async with serving(AdminPort(world, "writeproxy")) as port:
            port.security.tally = RefusalTally()
            port.security.admin_records = RecordedAdmin(trail)
            await trail.start()
            drain = "/v1/cluster/bookies/secret/drain?token=secret"
            async with port.open_client(monitor) as client:
                assert (await client.post(drain)).status_code == THROUGH
            async with port.open_client(None) as client:
                assert (await client.post(drain)).status_code == THROUGH
                await client.get("/secret")
            rows = port.security.tally.describe("migrate").rows or []
        await trail.stop()
        assert [(row.verb, row.target) for row in rows] == [
            ("other", ""),
            ("operate", "/v1/cluster/bookies/{bookie}/drain"),
            ("operate", "/v1/cluster/bookies/{bookie}/drain"),
        ]
        assert not any("secret" in row.detail for row in rows)
        told = [(call["who"], call["call"], call["outcome"]) for call in log.records("call")]
        assert told == [
            ("service:monitor/monitor-9", "POST /v1/cluster/bookies/{bookie}/drain", "ok")
        ], "of whom nobody knows there is nothing to record"

    run(scenario())


def test_who_came_by_tls_is_sent_on_by_tls() -> None:
    log_id = LogId(7)
    there = {"region": "there", "data_url": "http://a:1", "tls_data_url": "https://a:2"}
    owner = SimpleNamespace(sequencer_id="s-0")

    async def scenario() -> None:
        store, paths = MemoryStore(MemoryTree()), Paths("c")
        await store.start()
        for parent in (paths.write_proxies, paths.read_proxies):
            node = encode_node(there)
            await store.create(f"{parent}/n-0", node, ephemeral=True, make_parents=True)
        router = cast(Any, SimpleNamespace(find_owner=lambda _: owner))
        elsewhere = Elsewhere(
            store, paths.write_proxies, "here", router, lambda: {"s-0": {"region": "there"}}
        )
        homes = Homes(store, paths.read_proxies, "there")
        for one in (elsewhere, homes):
            await one.start()
        records = "/v1/namespaces/shop/logs/orders/records"
        for scheme, url in (("http", "http://a:1"), ("https", "https://a:2")):
            assert homes.find("shop", "orders", scheme) == url
            assert elsewhere.find("shop", "orders", log_id, scheme) == f"{url}{records}"
        for one in (elsewhere, homes):
            await one.stop()

    run(scenario())
