"""What a broken connection proves: a refused one that nothing was processed, a lost one nothing.

The distinction decides whether an append may be sent again. The library's own exception classes do
not make it (a connection that breaks after the request was sent is its ConnectError too), which
once doubled an append when a sequencer was killed.
"""

from __future__ import annotations

import _thread
import asyncio
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from duramen.client.rest_client import RestClient
from duramen.cluster.layout import pick_free_port
from duramen.runtime import http_client
from duramen.runtime.http_client import (
    NoAnswerError,
    PeerClient,
    PeerError,
    UnreachableError,
    close_client,
)
from tests.zookeeper_fixture import run

_SERVER = """
import asyncio, sys
from duramen.runtime.http_server import DataServer

async def main():
    async def swallow(path, body, caller):
        print("taken", flush=True)
        await asyncio.Event().wait()

    server = DataServer("127.0.0.1", int(sys.argv[1]), swallow)
    await server.start()
    print("up", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def _start_server(port: int, program: str = _SERVER) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, str(port)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


Call = Callable[[PeerClient, str], Awaitable[object]]


async def _call(client: PeerClient, url: str) -> object:
    return await client.call(url, b"body", 5_000_000)


async def _stream(client: PeerClient, url: str) -> object:
    return [piece async for piece in client.stream(url, b"body", 5_000_000)]


async def _request(client: PeerClient, url: str) -> object:
    return await client.request_json("POST", url, b"{}", 5_000_000)


async def _fault_of(call: Call, client: PeerClient, url: str) -> type[PeerError]:
    with pytest.raises(PeerError) as caught:
        await call(client, url)
    return caught.type


@pytest.mark.parametrize("call", [_call, _stream, _request])
def test_a_server_killed_after_it_took_the_request_proves_nothing(call: Call) -> None:
    async def scenario() -> None:
        port = pick_free_port()
        server = _start_server(port)
        assert server.stdout is not None
        client = PeerClient()
        try:
            assert await asyncio.to_thread(server.stdout.readline) == "up\n"
            fault = asyncio.create_task(_fault_of(call, client, f"http://127.0.0.1:{port}/x"))
            assert await asyncio.to_thread(server.stdout.readline) == "taken\n"
            server.kill()
            assert await fault is NoAnswerError
        finally:
            server.kill()
            server.wait()
            server.stdout.close()
            await client.close()

    run(scenario())


@pytest.mark.parametrize("call", [_call, _stream, _request])
def test_a_refused_connection_proves_that_nothing_was_processed(call: Call) -> None:
    async def scenario() -> None:
        client = PeerClient()
        try:
            url = f"http://127.0.0.1:{pick_free_port()}/x"
            assert await _fault_of(call, client, url) is UnreachableError
        finally:
            await client.close()

    run(scenario())


_ANSWERING = """
import asyncio, sys
from duramen.runtime.http_server import DataServer

async def main():
    async def answer(path, body, caller):
        print("answering", flush=True)
        return 200, "application/json", b'{"x": "%b"}' % (b"x" * 1000)

    server = DataServer("127.0.0.1", int(sys.argv[1]), answer)
    await server.start()
    print("up", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def _ask_rest(client: RestClient, url: str) -> object:
    return await client.post_json(url.removeprefix(client.url), {})


@pytest.mark.parametrize("call", [_call, _request, _ask_rest])
def test_a_call_that_is_cancelled_never_returns(call: Any) -> None:
    """Nor if its answer is there by then: a task that was told to stop must not go on."""

    async def scenario() -> None:
        port = pick_free_port()
        server = _start_server(port, _ANSWERING)
        assert server.stdout is not None
        url = f"http://127.0.0.1:{port}"
        client = RestClient(url) if call is _ask_rest else PeerClient()
        try:
            assert await asyncio.to_thread(server.stdout.readline) == "up\n"
            for round_ in range(60):
                asked = asyncio.create_task(call(client, f"{url}/x"))
                for _ in range(2 + round_ % 4):
                    await asyncio.sleep(0)
                # The loop stands still while the answer comes, as it does under load.
                assert server.stdout.readline() == "answering\n"
                sum(range(40_000 * (round_ % 5)))
                if asked.cancel():
                    with pytest.raises(asyncio.CancelledError):
                        await asked
        finally:
            server.kill()
            server.wait()
            server.stdout.close()
            await client.close()

    run(scenario())


class _Closable:
    """A client of the library that closes at once."""

    async def close(self) -> None:
        return


class _StandingLoop(asyncio.SelectorEventLoop):
    """A loop that is told something by a thread of the library, which stays in the telling."""

    def __init__(self) -> None:
        self.is_told, self.may_leave, self.has_left = (threading.Event() for _ in range(3))
        super().__init__()

    def _write_to_self(self) -> None:
        self.is_told.set()
        self.may_leave.wait(60)
        self.has_left.set()


@contextmanager
def closing_loop() -> Iterator[_StandingLoop]:
    """A loop that nobody runs; closed once nobody is in it."""
    loop = _StandingLoop()
    try:
        yield loop
    finally:
        loop.close()


@pytest.mark.parametrize("is_stuck", [False, True], ids=["it leaves", "it stays"])
def test_closing_waits_for_a_thread_of_the_library_to_leave(is_stuck: bool) -> None:
    """A process that ends while such a thread is inside the interpreter aborts."""

    async def scenario() -> None:
        # As the library's: not started by `threading`, and in no Python code but the loop's.
        _thread.start_new_thread(loop.call_soon_threadsafe, (print,))
        assert loop.is_told.wait(60)
        closing = asyncio.create_task(close_client(_Closable()))  # type: ignore[arg-type]
        try:
            if is_stuck:
                await closing
                assert not loop.has_left.is_set(), "not for ever"
            else:
                assert not (await asyncio.wait([closing], timeout=0.05))[0]
        finally:
            loop.may_leave.set()
        await closing
        assert await asyncio.to_thread(loop.has_left.wait, 60)

    with closing_loop() as loop:
        run(scenario())


def test_closing_waits_for_no_thread_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of other libraries are unknown to `threading` too, and stay: xdist's, for one."""
    monkeypatch.setattr(http_client, "_LEAVE_MAX_S", 600.0)
    entered, may_leave, has_left = (threading.Event() for _ in range(3))

    def stay() -> None:
        entered.set()
        may_leave.wait(60)
        has_left.set()

    async def scenario() -> None:
        _thread.start_new_thread(stay, ())
        assert entered.wait(60)
        await asyncio.wait_for(close_client(_Closable()), 30)  # type: ignore[arg-type]
        assert not has_left.is_set()

    try:
        run(scenario())
    finally:
        may_leave.set()
        assert has_left.wait(60)
