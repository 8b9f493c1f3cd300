"""Bookies and sequencers hand audit records on: to whom, whose, how much at once, and in time.

Real admin ports with certificates, a log that is faked, real folders.
Source: docs/protocol/audit.md "Bookies and sequencers".
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from duramen.backoff import Backoff
from duramen.core.audit.chain import AuditChain
from duramen.runtime.admin import add_problem_handler
from duramen.runtime.audit import by_admin_ports, trail
from duramen.runtime.audit.by_admin_ports import RECORDS_PATH, HandedTrail
from duramen.runtime.audit.recorded_admin import RecordedAdmin
from duramen.runtime.audit.spool import AuditSpool
from duramen.runtime.http_server import AdminServer
from duramen.runtime.identity.folder import HeldIdentity
from duramen.runtime.role import ServiceOptions
from duramen.runtime.security.admin_calls import AdminPortCalls
from duramen.runtime.security.process_security import ProcessSecurity
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.runtime.turning.tally import RefusalTally
from duramen.units import MS
from duramen.wire.edge.audit_records import encode_handed, find_foreign, seal_record
from duramen.wire.metadata_json import Paths, encode_node
from duramen_writeproxy.logs import handed_records
from duramen_writeproxy.logs.handed_records import HandedRecords, add_audit_routes
from tests.component.admin_world import make_context, make_options, read_held, run
from tests.component.audit_world import AuditLogTwin, make_trail
from tests.component.issuing_world import IssuingWorld
from tests.waiting import wait_for

PATHS = Paths("c")
SCOPE = {"client": ("10.0.0.9", 1)}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that is away is asked often; what is new is gathered for a moment."""
    monkeypatch.setattr(trail, "_GATHER_S", 0.01)
    monkeypatch.setattr(trail, "_BACKOFF", Backoff(10 * MS, 10 * MS))


class TakingPort:
    """A write proxy's admin port, with the one route, in front of a log that is faked."""

    def __init__(self, world: IssuingWorld, log: AuditLogTwin) -> None:
        self.world, self.log = world, log
        self.failures: list[str] = []
        held = read_held(world.server)
        self.security = ProcessSecurity(world.server, held, self.failures.append)
        app = FastAPI(openapi_url=None)
        add_problem_handler(app)
        add_audit_routes(app, HandedRecords(log, self.security))
        self.server = AdminServer("127.0.0.1", 0, app, security=self.security)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.server.port}"

    def open_client(self, held: HeldIdentity | None) -> httpx.AsyncClient:
        verify = make_context(self.world, held)
        return httpx.AsyncClient(base_url=self.url, verify=verify, trust_env=False)


@contextlib.asynccontextmanager
async def taking(world: IssuingWorld, log: AuditLogTwin) -> AsyncIterator[TakingPort]:
    port = TakingPort(world, log)
    await port.server.start()
    try:
        yield port
    finally:
        await port.server.stop()
        await port.security.stop()


class Node:
    """A bookie that records, and the write proxies that it finds registered."""

    def __init__(self, world: IssuingWorld, folder: Path | None, name: str = "bookie-7") -> None:
        held_folder = world.issue("bookie", name)
        self.failures: list[str] = []
        held = read_held(held_folder)
        self.security = ProcessSecurity(held_folder, held, self.failures.append)
        self.store = MemoryStore(MemoryTree())
        options: ServiceOptions = dataclasses.replace(
            make_options("bookie"), node_id=name, data_dir=folder
        )
        self.trail = HandedTrail(options, self.store, PATHS, self.security)

    async def start(self, **urls: dict[str, str]) -> None:
        await self.store.start()
        for name, fields in urls.items():
            path = f"{PATHS.write_proxies}/{name}"
            data = encode_node({"data_url": "http://127.0.0.1:1", **fields})
            await self.store.create(path, data, ephemeral=True, make_parents=True)
        await self.trail.start()

    def refuse(self) -> None:
        """Somebody was refused at its admin port."""
        records = self.security.admin_records
        assert records is not None, "the trail has begun"
        records.refuse(SCOPE, "service:monitor/m", "operate", 403)

    async def stop(self) -> None:
        await self.trail.stop()
        await self.security.stop()
        await self.store.close()


def seal_for(node: str, count: int = 1) -> list[bytes]:
    """So many whole records of a chain of this node."""
    chain = AuditChain(f"{node}/1")
    lines = []
    for kind in ("start", "call", "end")[:count]:
        record = seal_record(chain.find_next(), kind, {})
        chain.advance(record.digest)
        lines.append(record.line)
    return lines


async def hand(client: httpx.AsyncClient, *lines: bytes) -> int:
    """Hand lines on; the status."""
    return await hand_body(client, encode_handed(lines))


async def hand_body(client: httpx.AsyncClient, body: bytes) -> int:
    headers = {"content-type": "application/json"}
    return (await client.post(RECORDS_PATH, content=body, headers=headers)).status_code


def test_what_an_admin_port_does_reaches_the_log_in_its_nodes_chain(tmp_path: Path) -> None:
    world, log = IssuingWorld(tmp_path / "w"), AuditLogTwin()

    async def scenario() -> None:
        async with taking(world, log) as port:
            node = Node(world, tmp_path / "d")
            await node.start(wp={"admin_url": port.url})
            node.refuse()
            await wait_for(lambda: len(log.records("call")) == 1, what="the record to be stored")
            await node.stop()
            again = Node(world, tmp_path / "d")
            await again.start(wp={"admin_url": port.url})
            await again.stop()
        call = log.records("call")[0]
        assert (call["who"], call["from"]) == ("service:monitor/m", "10.0.0.9")
        assert [told["kind"] for told in log.records()] == ["start", "call", "end", "start", "end"]
        assert {told["chain"].rpartition("/")[0] for told in log.records()} == {"bookie/bookie-7"}
        assert log.records("start")[1]["former"] is not None, "the folder knows the chain before"
        assert log.check() == []

    run(scenario())


def test_a_node_makes_one_client_for_each_of_its_certificates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, log, made = IssuingWorld(tmp_path / "w"), AuditLogTwin(), list[AdminPortCalls]()

    def make(security: ProcessSecurity) -> AdminPortCalls:
        made.append(AdminPortCalls(security))
        return made[-1]

    monkeypatch.setattr(by_admin_ports, "AdminPortCalls", make)

    async def scenario() -> None:
        async with taking(world, log) as port:
            node = Node(world, tmp_path / "d")
            await node.start(wp={"admin_url": port.url})
            node.refuse()
            await wait_for(lambda: len(log.records("call")) == 1)
            node.refuse()
            await wait_for(lambda: len(log.records("call")) == 2)
            assert len(made) == 1
            node.security._on_change()
            node.refuse()
            await wait_for(lambda: len(log.records("call")) == 3)
            await node.stop()
        assert len(made) == 2

    run(scenario())
    assert log.check() == []


def test_records_wait_in_the_folder_until_a_write_proxy_takes_them(tmp_path: Path) -> None:
    world, log = IssuingWorld(tmp_path / "w"), AuditLogTwin()

    async def scenario() -> None:
        async with taking(world, log) as port:
            log.is_away = True
            node = Node(world, tmp_path / "d")
            # One that is not there, one in plain text, one that turns, by its TLS port.
            await node.start(
                gone={"admin_url": "https://127.0.0.1:1"},
                plain={"admin_url": port.url.replace("https", "http")},
                turning={"admin_url": "http://127.0.0.1:1", "tls_admin_url": port.url},
            )
            node.refuse()
            await wait_for(lambda: log.try_count > 1, what="the log to be tried again")
            await node.stop()
            assert b'"kind":"call"' in (tmp_path / "d" / "audit" / "pending").read_bytes()
            log.is_away = False
            again = Node(world, tmp_path / "d")
            await again.start(wp={"admin_url": port.url})
            await again.stop()
        # A call that was broken off by the stop may have stored it as well.
        assert len({told["hash"] for told in log.records("call")}) == 1
        assert log.check() == []

    run(scenario())


def test_a_folder_that_cannot_be_used_keeps_no_node_from_its_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world, log = IssuingWorld(tmp_path / "w"), AuditLogTwin()
    held = AuditSpool(tmp_path / "d")
    held.open()

    async def scenario() -> None:
        async with taking(world, log) as port:
            node = Node(world, tmp_path / "d")
            await node.start(wp={"admin_url": port.url})
            node.refuse()
            await wait_for(lambda: len(log.records("call")) == 1, what="the record to be stored")
            await node.stop()
        assert log.check() == []

    run(scenario())
    held.close()
    assert "audit records wait in memory alone" in caplog.text


def test_a_record_of_another_node_in_the_folder_keeps_out_none_of_this_one(tmp_path: Path) -> None:
    world, log = IssuingWorld(tmp_path / "w"), AuditLogTwin()
    (tmp_path / "d" / "audit").mkdir(parents=True)
    (tmp_path / "d" / "audit" / "pending").write_bytes(b"%b\n" % seal_for("bookie/former")[0])

    async def scenario() -> None:
        async with taking(world, log) as port:
            node = Node(world, tmp_path / "d")
            await node.start(wp={"admin_url": port.url})
            await node.stop()
        assert {told["chain"].rpartition("/")[0] for told in log.records()} == {"bookie/bookie-7"}
        assert [found.flaw.value for found in log.check()] == ["missing"]

    run(scenario())


def test_who_may_hand_on_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, log = IssuingWorld(tmp_path), AuditLogTwin()
    own = seal_for("bookie/bookie-9", 2)
    of = {role: read_held(world.issue(role, f"{role}-9")) for role in ("bookie", "operator")}
    monkeypatch.setattr(handed_records, "LINE_COUNT_MAX", 3)
    monkeypatch.setattr(handed_records, "BODY_BYTES_MAX", 40_000)
    hostile: list[tuple[str | None, bytes, int]] = [
        (None, encode_handed(own), 401),
        ("operator", encode_handed(own), 403),
        ("operator", encode_handed(seal_for("operator/operator-9")), 403),
        ("bookie", encode_handed([*own, *seal_for("bookie/bookie-8")]), 403),
        ("bookie", encode_handed(seal_for("bookie/bookie-99")), 403),
        ("bookie", encode_handed(seal_for("sequencer/bookie-9")), 403),
        ("bookie", b"{}", 400),
        ("bookie", b'{"lines": []}', 400),
        ("bookie", b'{"lines": [1]}', 400),
        ("bookie", b'{"lines": ["\xc4\x80"]}', 400),
        ("bookie", b'{"lines": ' + b"[" * 20_000, 400),
        ("bookie", b"\xff", 400),
        ("bookie", encode_handed([*own, b""]), 413),
        ("bookie", encode_handed([b"two\nlines"]), 413),
        ("bookie", encode_handed([b"x" * 16_385]), 413),
        ("bookie", encode_handed([b"no record"] * 4), 413),
        ("bookie", b"x" * 40_001, 413),
    ]

    async def scenario() -> None:
        async with taking(world, log) as port:
            for is_turning in (False, True):
                port.security.tally = RefusalTally() if is_turning else None
                for role, body, expected in hostile:
                    async with port.open_client(None if role is None else of[role]) as client:
                        assert await hand_body(client, body) == expected, (role, body[:60])
            assert log.lines == []
            async with port.open_client(of["bookie"]) as client:
                assert await hand(client, *own, b"cut sho\xff") == 200
        assert log.lines == [*own, b"cut sho\xff"]

    run(scenario())


def test_who_hands_on_what_he_may_not_is_told_and_recorded_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Records in another node's name may be all that shows a stolen key."""
    world, log, own_log = IssuingWorld(tmp_path), AuditLogTwin(), AuditLogTwin()
    bookie, operator = (
        read_held(world.issue(role, f"{role}-9")) for role in ("bookie", "operator")
    )
    forged = encode_handed(seal_for("writeproxy/wp-0\nforged"))
    refused = [(bookie, False, 403), (bookie, True, 403), (operator, True, 403), (None, True, 401)]

    async def scenario() -> None:
        own = make_trail(own_log, "writeproxy/wp-1")
        await own.start()
        async with taking(world, log) as port:
            port.security.admin_records = RecordedAdmin(own)
            for held, is_turning, expected in refused:
                port.security.tally = RefusalTally() if is_turning else None
                async with port.open_client(held) as client:
                    assert await hand_body(client, forged) == expected
            async with port.open_client(bookie) as client:
                assert await hand_body(client, b"{}") == 400, "no refusal for who calls"
        await own.stop()

    run(scenario())
    told = [(one["who"], one["verb"], one["status"]) for one in own_log.records("call")]
    assert told == [
        ("service:bookie/bookie-9", "append", 403),
        ("service:bookie/bookie-9", "append", 403),
        ("service:operator/operator-9", "append", 403),
        (None, "append", 401),
    ]
    assert {one["outcome"] for one in own_log.records("call")} == {"refused"}
    assert r"bookie/bookie-9 hands on audit records of 'writeproxy/wp-0\nforged'" in caplog.text


def test_records_are_judged_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 MiB of them take longer than everybody else is to wait."""
    world, log, threads = IssuingWorld(tmp_path), AuditLogTwin(), set[int]()
    bookie = read_held(world.issue("bookie", "bookie-9"))

    def find(line: bytes, node: str) -> str | None:
        threads.add(threading.get_ident())
        return find_foreign(line, node)

    monkeypatch.setattr(handed_records, "find_foreign", find)

    async def scenario() -> None:
        async with taking(world, log) as port, port.open_client(bookie) as client:
            assert await hand(client, *seal_for("bookie/bookie-9", 2)) == 200
        assert threads and threading.get_ident() not in threads

    run(scenario())


def test_a_node_has_one_batch_under_way_and_all_have_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = IssuingWorld(tmp_path)
    monkeypatch.setattr(handed_records, "UNDER_WAY_MAX", 2)
    of = [read_held(world.issue("bookie", f"bookie-{n}")) for n in (1, 2, 3)]

    class Slow(AuditLogTwin):
        def __init__(self) -> None:
            super().__init__()
            self.may_go = asyncio.Event()

        async def append(self, lines: Sequence[bytes]) -> None:
            self.try_count += 1
            await self.may_go.wait()

    async def scenario() -> None:
        log: Any = Slow()
        async with taking(world, log) as port, contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(port.open_client(one)) for one in of]
            first = asyncio.create_task(hand(clients[0], b"a"))
            await wait_for(lambda: log.try_count == 1, what="the first batch")
            assert await hand(clients[0], b"b") == 429
            second = asyncio.create_task(hand(clients[1], b"c"))
            await wait_for(lambda: log.try_count == 2, what="the second node's batch")
            assert await hand(clients[2], b"d") == 429
            log.may_go.set()
            assert [await one for one in (first, second)] == [200, 200]
            assert await hand(clients[0], b"e") == 200

    run(scenario())
