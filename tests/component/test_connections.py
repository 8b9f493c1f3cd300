"""Connections that say nothing, or too little: who gives its place up, and who keeps it.

Real sockets. That a connection outlives a bound is seen by another one that the same bound has
ended. How many there may be at once on data ports is in `test_http_server` too.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi import FastAPI

from duramen.limits import CONNECTION_COUNT_MAX
from duramen.runtime.admission.quotas import Quotas
from duramen.runtime.edge.admin_connections import AdminConnections
from duramen.runtime.edge.embedded_server import ServerLimits, fit_connections
from duramen.runtime.edge.port_sockets import count_connections
from duramen.runtime.http_server import AdminServer, Answer, DataServer, PublicServer
from duramen.runtime.public.serving import make_public_server
from duramen.runtime.role import ServiceOptions
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.units import MS, SECOND
from duramen_bookie.service import BookieService
from duramen_sequencer.service import SequencerService
from tests.component.bookie_world import options
from tests.component.raw_http import PREFACE
from tests.pauses import look_again_soon
from tests.waiting import wait_for

PING, ACK = 6, 1
GET = b"GET /now HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
PUT = (
    b"PUT /slow HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    b"content-length: 9\r\n\r\n"
)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(bounded())


async def answer_nothing(_path: str, _body: bytes, _caller: object) -> Answer:
    return 200, "text/plain", b""


# --- HTTP/2 ---


async def answer_pings(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
    """Acknowledge every ping until the connection ends; how many there were."""
    count = 0
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = await reader.readexactly(9)
            length, kind, flags = int.from_bytes(head[:3]), head[3], head[4]
            body = await reader.readexactly(length)
            if kind == PING and not flags & ACK:
                count += 1
                writer.write(struct.pack(">I", 8)[1:] + bytes([PING, ACK, 0, 0, 0, 0]) + body)
    return count


@pytest.mark.parametrize("kind", ["data", "public"])
def test_a_peer_of_http2_that_gives_no_sign_of_life_loses_its_connection(kind: str) -> None:
    limits = ServerLimits(keep_alive_interval_us=100 * MS, keep_alive_timeout_us=SECOND)

    async def scenario() -> None:
        server = (
            DataServer("127.0.0.1", 0, answer_nothing, limits=limits)
            if kind == "data"
            else PublicServer("127.0.0.1", 0, FastAPI(), limits=limits)
        )
        await server.start()
        alive, its_writer = await asyncio.open_connection("127.0.0.1", server.port)
        its_writer.write(PREFACE)
        answering = asyncio.create_task(answer_pings(alive, its_writer))
        silent, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(PREFACE)
        assert await silent.read()  # until it ends
        assert not answering.done(), "who answers stays"
        its_writer.close()
        await server.stop()
        assert await answering > 0

    run(scenario)


def test_connections_are_as_many_as_descriptors_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    for files, count in (
        (resource.RLIM_INFINITY, CONNECTION_COUNT_MAX),
        (65_536, CONNECTION_COUNT_MAX),
        (1_024, 512),
        (1, 1),
    ):
        monkeypatch.setattr(resource, "getrlimit", lambda _, files=files: (files, files))
        assert fit_connections(CONNECTION_COUNT_MAX) == count


def make_options(role: str) -> ServiceOptions:
    """A service that may have two connections."""
    return ServiceOptions(
        role,
        "c",
        "x",
        "127.0.0.1",
        0,
        0,
        "",
        "r",
        "r",
        "none",
        4.0,
        None,
        connection_count=2,
    )


def test_sequencers_and_bookies_have_as_many_connections_as_they_are_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        sequencer = SequencerService(make_options("sequencer"), MemoryStore(MemoryTree()))
        assert sequencer.statistics()["server"]["connections_max"] == 2
        failures: list[str] = []
        given = replace(options(tmp_path), connection_count=2)
        bookie = BookieService(given, failures.append, MemoryStore(MemoryTree()))
        await bookie.start()
        assert bookie.statistics()["server"]["connections_max"] == 2
        await bookie.stop()
        assert not failures

    run(scenario)


def test_a_public_port_has_as_many_connections_as_it_is_told() -> None:
    async def scenario() -> None:
        app = FastAPI()

        @app.get("/now")
        async def answer_now() -> str:
            return "now"

        options = make_options("readproxy")
        server = make_public_server(app, options, Quotas(options, MemoryStore(MemoryTree())))
        await server.start()
        ends = []
        for _ in range(3):
            ends.append(await asyncio.open_connection("127.0.0.1", server.port))
            ends[-1][1].write(GET)
        for reader, _ in ends[:2]:
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        await wait_for(lambda: count_connections(server.port) in (None, (2, 1)))
        ends[0][1].close()
        assert (await ends[2][0].readline()).startswith(b"HTTP/1.1 200")
        for _, writer in ends:
            writer.close()
        await server.stop()

    run(scenario)


# --- Administration ---


class Admin:
    """An admin port with a call that is answered when the test says so."""

    def __init__(self, connections: AdminConnections) -> None:
        app = FastAPI()
        self.begun, self.release = asyncio.Event(), asyncio.Event()

        @app.get("/now")
        async def answer_now() -> str:
            return "now"

        @app.get("/late")
        async def answer_late() -> str:
            self.begun.set()
            await self.release.wait()
            return "late"

        @app.put("/slow")
        async def take(body: dict[str, int]) -> str:
            return str(body)

        self.server = AdminServer("127.0.0.1", 0, app, connections=connections)

    async def open(self, sent: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        writer.write(sent)
        return reader, writer


@asynccontextmanager
async def serving(connections: AdminConnections) -> AsyncIterator[Admin]:
    admin = Admin(connections)
    await admin.server.start()
    try:
        yield admin
    finally:
        await admin.server.stop()


async def read_answer(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    [length] = [line for line in head.split(b"\r\n") if line.startswith(b"content-length:")]
    return head + await reader.readexactly(int(length.split(b":")[1]))


@pytest.mark.parametrize(
    "sent",
    [b"", GET[:9], PUT, PUT + b'{"a"', GET + GET[:9], GET + PUT],
    ids=["nothing", "head", "body", "part of a body", "second head", "second body"],
)
def test_a_request_that_does_not_arrive_ends_its_connection(sent: bytes) -> None:
    async def scenario() -> None:
        async with serving(AdminConnections(request_timeout_us=200 * MS)) as admin:
            reader, writer = await admin.open(sent)
            if sent.startswith(GET):
                assert b" 200 " in await read_answer(reader)
            assert await reader.read() == b""
            writer.close()

    run(scenario)


def test_a_request_that_comes_slowly_has_no_more_time_for_it() -> None:
    async def scenario() -> None:
        async with serving(AdminConnections(request_timeout_us=500 * MS)) as admin:
            reader, writer = await admin.open(b"GET /now HTTP/1.1\r\nx: ")
            ended = asyncio.create_task(reader.read())

            async def drip() -> None:
                while not ended.done():
                    writer.write(b"y")
                    await look_again_soon()

            with contextlib.suppress(ConnectionError):
                await drip()
                assert await ended == b""

    run(scenario)


def test_an_answer_may_take_longer_than_its_request() -> None:
    async def scenario() -> None:
        async with serving(AdminConnections(request_timeout_us=200 * MS)) as admin:
            late, its_writer = await admin.open(GET.replace(b"now", b"late"))
            await admin.begun.wait()
            for _ in range(2):
                reader, writer = await admin.open(b"GET")
                assert await reader.read() == b"", "the time is over for who came later"
                writer.close()
            admin.release.set()
            assert b"late" in await read_answer(late)
            its_writer.close()

    run(scenario)


def test_one_address_has_so_many_connections_to_an_admin_port() -> None:
    async def scenario() -> None:
        connections = AdminConnections(per_peer_count=2)
        async with serving(connections) as admin:
            kept = [await admin.open(GET) for _ in range(2)]
            for reader, _ in kept:
                assert b"now" in await read_answer(reader)
            third, writer = await admin.open(b"")
            assert await third.read() == b""
            writer.close()
            kept[0][1].close()
            await wait_for(lambda: connections.count_of["127.0.0.1"] == 1)
            fourth, writer = await admin.open(GET)
            assert b"now" in await read_answer(fourth)
            for one in (kept[1][1], writer):
                one.close()

    run(scenario)
