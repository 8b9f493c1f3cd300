"""The limits of a data server: sizes, room for bodies and connections, before anything is kept.

Real sockets and HTTP/1.1 by hand, so that a test decides what arrives when. Not here: what the
handlers of services do with a body.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from duramen.limits import BODY_SMALL_BYTES
from duramen.runtime.edge.embedded_server import ServerLimits
from duramen.runtime.edge.port_sockets import copy_socket
from duramen.runtime.http_client import NoAnswerError, OverloadedError, PeerClient
from duramen.runtime.http_server import (
    Answer,
    BodyRoom,
    DataServer,
    NoRoomError,
    PeerServer,
    refuse_overloaded,
)
from duramen.units import MIB, SECOND
from duramen.wire.frame import FRAME_BYTES_HARD_MAX, RETRY_AFTER_HEADER, FrameError
from tests.component.own_sockets import copy_own_sockets
from tests.waiting import wait_for

LARGE = BODY_SMALL_BYTES + 1
DEFAULTS = ServerLimits()


async def measure(_path: str, body: bytes, _caller: object) -> Answer:
    return 200, "text/plain", str(len(body)).encode()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await scenario()

    asyncio.run(bounded())


@asynccontextmanager
async def serving(limits: ServerLimits = DEFAULTS) -> AsyncIterator[DataServer]:
    server = DataServer("127.0.0.1", 0, measure, limits=limits)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


class Connection:
    """One HTTP/1.1 connection, a request on it piece by piece."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, server: DataServer) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", server.port))

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def announce(self, size_bytes: int | None) -> None:
        length = "transfer-encoding: chunked"
        if size_bytes is not None:
            length = f"content-length: {size_bytes}"
        await self.send(f"POST /x HTTP/1.1\r\nhost: 127.0.0.1\r\n{length}\r\n\r\n".encode())

    async def status(self) -> int:
        line = await self._reader.readline()
        return int(line.split()[1])

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        status = await self.status()
        headers = {}
        while line := (await self._reader.readline()).decode().strip():
            name, _, value = line.partition(": ")
            headers[name] = value
        return status, headers, await self._reader.readexactly(int(headers["content-length"]))

    def close(self) -> None:
        self._writer.close()


# --- Room for bodies -----------------------------------------------------------------------------


def enter(room: BodyRoom, size_bytes: int) -> asyncio.Task[None]:
    return asyncio.create_task(room.enter(size_bytes))


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_bodies_that_do_not_fit_wait_in_the_order_of_their_arrival() -> None:
    async def scenario() -> None:
        room = BodyRoom(3 * LARGE, waiting_count_max=8)
        await room.enter(2 * LARGE)
        second, third = enter(room, 2 * LARGE), enter(room, LARGE)
        await settle()
        assert not second.done() and not third.done(), "the third would fit and must not overtake"
        assert room.statistics()["bodies_waiting"] == 2
        room.leave(2 * LARGE)
        await asyncio.gather(second, third)
        assert room.statistics()["bodies_bytes"] == 3 * LARGE

    run(scenario)


def test_small_bodies_never_wait() -> None:
    async def scenario() -> None:
        room = BodyRoom(LARGE, waiting_count_max=8)
        await room.enter(LARGE)
        waiting = enter(room, LARGE)
        await settle()
        await room.enter(BODY_SMALL_BYTES)
        assert room.statistics()["bodies_bytes"] == LARGE + BODY_SMALL_BYTES
        room.leave(BODY_SMALL_BYTES)
        room.leave(LARGE)
        await waiting

    run(scenario)


def test_a_body_larger_than_the_room_gets_in_alone() -> None:
    async def scenario() -> None:
        room = BodyRoom(LARGE, waiting_count_max=8)
        await room.enter(LARGE)
        waiting = enter(room, 9 * LARGE)
        await settle()
        assert not waiting.done()
        room.leave(LARGE)
        await waiting

    run(scenario)


def test_only_so_many_bodies_wait() -> None:
    async def scenario() -> None:
        room = BodyRoom(LARGE, waiting_count_max=2)
        await room.enter(LARGE)
        waiting = [enter(room, LARGE) for _ in range(2)]
        await settle()
        with pytest.raises(NoRoomError):
            await room.enter(LARGE)
        assert room.statistics()["bodies_refused"] == 1
        for task in waiting:
            room.leave(LARGE)
            await task

    run(scenario)


def test_who_goes_away_while_waiting_holds_nobody_up() -> None:
    async def scenario() -> None:
        room = BodyRoom(LARGE, waiting_count_max=8)
        await room.enter(LARGE)
        gone, late, last = (enter(room, LARGE) for _ in range(3))
        await settle()
        gone.cancel()
        await settle()
        room.leave(LARGE)
        late.cancel()  # its turn had come just now
        await asyncio.wait([gone, late, last])
        assert last.exception() is None
        room.leave(LARGE)
        statistics = room.statistics()
        assert (statistics["bodies_bytes"], statistics["bodies_waiting"]) == (0, 0)

    run(scenario)


# --- On the socket -------------------------------------------------------------------------------


def test_a_body_that_is_too_large_is_refused_before_it_is_sent() -> None:
    async def scenario() -> None:
        async with serving() as server:
            client = await Connection.open(server)
            await client.announce(FRAME_BYTES_HARD_MAX + 1)
            assert await client.status() == 413
            assert server.statistics()["bodies_bytes"] == 0
            client.close()

    run(scenario)


def test_a_body_of_unknown_length_is_refused_as_soon_as_it_is_too_large() -> None:
    async def scenario() -> None:
        async with serving() as server:
            client = await Connection.open(server)
            await client.announce(None)
            status = asyncio.create_task(client.status())
            piece = b"%x\r\n%b\r\n" % (MIB, bytes(MIB))
            for _ in range(FRAME_BYTES_HARD_MAX // MIB + 1):
                await client.send(piece)
            assert await status == 413
            client.close()

    run(scenario)


def test_bodies_wait_for_room_and_small_ones_pass() -> None:
    async def scenario() -> None:
        limits = ServerLimits(bodies_bytes=LARGE, bodies_waiting_count=1)
        async with serving(limits) as server:
            first, second, third, small = [await Connection.open(server) for _ in range(4)]
            await first.announce(LARGE)
            await wait_for(lambda: server.statistics()["bodies_bytes"] == LARGE)
            await second.announce(LARGE)
            await second.send(bytes(LARGE))
            await wait_for(lambda: server.statistics()["bodies_waiting"] == 1)
            await third.announce(LARGE)
            status, headers, sentence = await third.answer()
            assert (status, headers["retry-after"], headers[RETRY_AFTER_HEADER]) == (
                503,
                "1",
                "200",
            )
            assert b"too many frames" in sentence
            await small.announce(3)
            await small.send(b"abc")
            assert await small.status() == 200
            await first.send(bytes(LARGE))
            for client in (first, second):
                assert (await client.answer())[2] == str(LARGE).encode()
            for client in (first, second, third, small):
                client.close()

    run(scenario)


def test_a_body_that_does_not_arrive_gives_its_room_back() -> None:
    async def scenario() -> None:
        async with serving(ServerLimits(body_timeout_us=1)) as server:
            client = await Connection.open(server)
            await client.announce(LARGE)
            assert await client.status() == 408
            assert server.statistics()["bodies_bytes"] == 0
            client.close()

    run(scenario)


def test_connections_above_the_limit_wait_until_one_closes() -> None:
    async def scenario() -> None:
        async with serving(ServerLimits(connection_count=2)) as server:
            await wait_for(lambda: server.statistics()["connections"] == 0)
            clients = [await Connection.open(server) for _ in range(3)]
            for client in clients:
                await client.announce(1)
                await client.send(b"a")
            assert [await client.status() for client in clients[:2]] == [200, 200]
            statistics = server.statistics()
            if statistics["connections"] is not None:
                assert (statistics["connections"], statistics["connections_waiting"]) == (2, 1)
            assert statistics["connections_max"] == 2
            waiting = asyncio.create_task(clients[2].status())
            clients[0].close()
            assert await waiting == 200

    run(scenario)


@pytest.mark.parametrize("named", [{}, {"duramen-process": "somebody"}], ids=["none", "odd"])
def test_a_process_that_does_not_name_itself_is_its_connection(named: dict[str, str]) -> None:
    async def scenario() -> None:
        peers: list[str] = []

        async def note(_path: str, _body: bytes, peer: str, _caller: object) -> Answer:
            peers.append(peer)
            return 200, "text/plain", b""

        server = PeerServer("127.0.0.1", 0, note)
        await server.start()
        async with httpx.AsyncClient() as client:
            await client.post(f"http://127.0.0.1:{server.port}/x", headers=named)
        await server.stop()
        assert [peer.partition(":")[0] for peer in peers] == ["127.0.0.1"]

    run(scenario)


def test_a_refusal_for_overload_promises_that_nothing_was_done() -> None:
    async def scenario() -> None:
        async def refuse(path: str, _body: bytes, peer: str, caller: object) -> Answer:
            assert caller is None
            assert peer == client.process, "by whichever connection"
            if path == "/full":
                return refuse_overloaded("full", 1_500)
            if path == "/bad":
                raise FrameError("no frame")
            return 503, "text/plain", b"stopping"

        server = PeerServer("127.0.0.1", 0, refuse)
        await server.start()
        client = PeerClient()
        url = f"http://127.0.0.1:{server.port}"
        try:
            with pytest.raises(OverloadedError, match="HTTP 503") as caught:
                await client.call(f"{url}/full", b"", SECOND)
            assert caught.value.retry_after_us == 1_500_000
            with pytest.raises(OverloadedError):
                [piece async for piece in client.stream(f"{url}/full", b"", SECOND)]
            for path, status in (("/stop", 503), ("/bad", 400)):
                with pytest.raises(NoAnswerError, match=f"HTTP {status}") as other:
                    await client.call(url + path, b"", SECOND)
                assert not isinstance(other.value, OverloadedError)
        finally:
            await client.close()
            await server.stop()

    run(scenario)


def test_a_port_that_somebody_listens_on_is_refused() -> None:
    """The HTTP library would share it, and calls would reach either server."""

    async def scenario() -> None:
        async with serving() as first:
            with pytest.raises(OSError, match="in use"):
                DataServer("127.0.0.1", first.port, measure)
        again = DataServer("127.0.0.1", first.port, measure)
        await again.start()
        assert await exchange(again, b"abc") == b"3"
        await again.stop()

    run(scenario)


def test_a_server_that_has_ended_holds_no_socket() -> None:
    """The HTTP library binds one more than it listens on."""

    async def scenario() -> None:
        ports = []
        for _ in range(5):
            async with serving() as server:
                ports.append(server.port)
                assert _count_sockets(server.port) == 1
        assert [_count_sockets(port) for port in ports] == [0] * 5

    run(scenario)


def test_what_is_no_socket_is_not_copied(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        with pytest.raises(OSError, match="on non-socket"):
            copy_socket(file.fileno())
        held = [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]
        assert held.count(file.name) == 1


def _count_sockets(port: int) -> int:
    """How many sockets of this process are bound to a port, and go nowhere."""
    found = 0
    for copy in copy_own_sockets():
        is_bound = copy.family == socket.AF_INET and copy.getsockname()[1] == port
        found += is_bound and not _has_peer(copy)
    return found


def _has_peer(connection: socket.socket) -> bool:
    try:
        connection.getpeername()
    except OSError:
        return False
    return True


def test_servers_that_were_made_and_do_not_listen_yet_have_ports_of_their_own() -> None:
    async def scenario() -> None:
        servers = [DataServer("127.0.0.1", 0, measure) for _ in range(400)]
        assert len({server.port for server in servers}) == len(servers)
        for server in servers:
            await server.stop()

    run(scenario)


async def exchange(server: DataServer, body: bytes) -> bytes:
    client = PeerClient()
    try:
        return await client.call(f"http://127.0.0.1:{server.port}/x", body, SECOND)
    finally:
        await client.close()
