"""The wires of a chaos run: what a cut holds back, what comes late, what is refused.

A server that echoes stands behind a forwarder in this process, on both event loops that runs use.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager, suppress

import pytest
import uvloop

from duramen.cluster.layout import HOST, pick_free_port
from tests.chaos.links import Cut, Links, list_owners

ME, SERVER = frozenset({"me"}), frozenset({"server"})
WAIT_S = 30
HELD_S = 0.2
"""How long nothing may come where nothing can come: no guess about speed."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1000):
        writer.write(data)
    writer.close()


@asynccontextmanager
async def echo() -> AsyncIterator[tuple[Links, int]]:
    """A forwarder to a server that echoes; gives its port."""
    real_port, port = pick_free_port(), pick_free_port()
    links = Links(lambda: {os.getpid(): "me"})
    server = await asyncio.start_server(serve, HOST, real_port)
    links.open_when_served("server", port, real_port)
    try:
        yield links, port
    finally:
        await links.stop()
        server.close()


async def connect(port: int) -> Streams:
    """A connection, as soon as the forwarder listens."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                return await asyncio.open_connection(HOST, port)
            except ConnectionRefusedError:
                await asyncio.sleep(0)


async def receive(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(WAIT_S):
        return await reader.read(1000)


async def assert_silent(reader: asyncio.StreamReader) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1000), HELD_S)


async def silent_cut_holds_and_delivers_late() -> None:
    async with echo() as (links, port):
        reader, writer = await connect(port)
        writer.write(b"before")
        assert await receive(reader) == b"before"
        cut = Cut(ME, SERVER)
        links.cut(cut)
        writer.write(b"late")
        await assert_silent(reader)
        links.heal(cut)
        assert await receive(reader) == b"late"
        assert cut.withheld_count == 1 and links.unknown_count == 0


async def connection_during_a_cut_waits() -> None:
    async with echo() as (links, port):
        await connect(port)
        cut = Cut(SERVER, ME)
        links.cut(cut)
        reader, writer = await connect(port)
        writer.write(b"hello")
        await assert_silent(reader)
        links.heal(cut)
        assert await receive(reader) == b"hello"
        assert cut.withheld_count == 1


async def one_way_cut_lets_the_other_way_through() -> None:
    async with echo() as (links, port):
        reader, writer = await connect(port)
        writer.write(b"request")
        assert await receive(reader) == b"request"
        cut = Cut(SERVER, ME, is_one_way=True)
        links.cut(cut)
        writer.write(b"arrives")
        await assert_silent(reader)
        links.heal(cut)
        assert await receive(reader) == b"arrives" and cut.withheld_count == 1


async def cut_between_others_holds_nothing() -> None:
    async with echo() as (links, port):
        reader, writer = await connect(port)
        cut = Cut(frozenset({"other"}), SERVER)
        links.cut(cut)
        writer.write(b"through")
        assert await receive(reader) == b"through"
        links.heal(cut)
        assert cut.withheld_count == 0


async def resetting_cut_breaks_connections() -> None:
    async with echo() as (links, port):
        reader, writer = await connect(port)
        writer.write(b"x")
        await receive(reader)
        cut = Cut(ME, SERVER, mode="reset")
        links.cut(cut)
        with suppress(ConnectionResetError):
            assert await receive(reader) == b""
        links.heal(cut)
        assert cut.withheld_count == 1
        reader, writer = await connect(port)
        writer.write(b"again")
        assert await receive(reader) == b"again"


async def nobody_asks_who_came_without_a_cut() -> None:
    async with echo() as (links, port):
        reader, writer = await connect(port)
        writer.write(b"before")
        assert await receive(reader) == b"before"
        (pair,) = [one for one in links._pairs if one.source is None]
        cut = Cut(ME, SERVER)
        links.cut(cut)
        assert pair.source == "me"
        links.heal(cut)


async def dead_server_refuses() -> None:
    async with echo() as (links, port):
        await connect(port)
        links.close("server")
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(HOST, port)


async def ports_of_one_process_are_cut_and_closed_together() -> None:
    async with echo() as (links, port):
        streams, real_port = pick_free_port(), pick_free_port()
        links.open_when_served("server", streams, real_port)
        assert not links.is_open({"server": streams}), "nobody listens there"
        async with await asyncio.start_server(serve, HOST, real_port):
            both = [await connect(one) for one in (port, streams)]
            assert links.is_open({"server": port}) and links.is_open({"server": streams})
            cut = Cut(ME, SERVER)
            links.cut(cut)
            for reader, writer in both:
                writer.write(b"late")
                await assert_silent(reader)
            links.heal(cut)
            for reader, _ in both:
                assert await receive(reader) == b"late"
            assert cut.withheld_count == 2
            links.close("server")
            for one in (port, streams):
                with pytest.raises(ConnectionRefusedError):
                    await asyncio.open_connection(HOST, one)


def test_connections_from_one_port_to_several_are_told_apart() -> None:
    """The kernel gives a local port to connections of several processes at a time."""
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(3)]
        clients = [stack.enter_context(socket.socket()) for _ in servers]
        for client in clients:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        clients[0].bind((HOST, 0))
        for client in clients[1:]:
            client.bind(clients[0].getsockname())
        for client, server in zip(clients, servers, strict=True):
            client.connect(server.getsockname())
        port, last = clients[0].getsockname()[1], clients[-1].fileno()
        waiting = [sys.executable, "-c", "import sys; sys.stdin.read()"]
        with subprocess.Popen(waiting, stdin=subprocess.PIPE, pass_fds=[last]) as child:
            clients.pop().close()
            pids = {os.getpid(): "me", child.pid: "child"}
            owners = list_owners(pids)
            child.communicate()
        found = [owners[port, server.getsockname()[1]] for server in servers]
        assert found == ["me", "me", "child"]


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize(
    "scenario",
    [
        silent_cut_holds_and_delivers_late,
        connection_during_a_cut_waits,
        one_way_cut_lets_the_other_way_through,
        cut_between_others_holds_nothing,
        resetting_cut_breaks_connections,
        nobody_asks_who_came_without_a_cut,
        dead_server_refuses,
        ports_of_one_process_are_cut_and_closed_together,
    ],
)
def test_links(
    scenario: Callable[[], Awaitable[None]], run: Callable[[Awaitable[None]], None]
) -> None:
    run(scenario())
