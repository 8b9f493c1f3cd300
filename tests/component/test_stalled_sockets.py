"""Sockets that stall at a public port with TLS: others are served as before, and memory stays flat.

Six kinds, each so many at once that a server which keeps a place, a thread or a buffer for each of
them shows it: 100 in the gate, 2,000 with DURAMEN_STALLED_SOCKETS=2000 (`make stalled`). The ports
are in a process of their own, so that its memory is that of the product.
Source: docs/protocol/limits.md "What is limited", docs/protocol/wire.md "Limits".
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import httpx
import pytest

from tests.component.raw_http import PREFACE
from tests.pauses import let_pass

pytestmark = [pytest.mark.quiet, pytest.mark.usefixtures("many_files")]

ROOT: Final = Path(__file__).resolve().parents[2]
SOCKET_COUNT: Final = int(os.environ.get("DURAMEN_STALLED_SOCKETS", "100"))
AT_ONCE: Final = 50
CALL_COUNT: Final = 100
ROUND_COUNT: Final = 3
ROUND_COUNT_MAX: Final = 10
"""The quietest round counts: other work on the machine makes one slower, never quicker."""

NOISE_S: Final = 0.005
NEW_PEER_S: Final = 1.0
NEW_PEER_COUNT: Final = 5
FLAT_BYTES: Final = 4 << 20
OBSERVED_S: Final = 5.0
START_S: Final = 60.0
STILL_COUNT: Final = 20
STILL_WITHIN_S: Final = 600.0
"""2,000 deaf readers are first sent what a connection buffers: that is work, and no stall."""

HALF_A_HELLO: Final = bytes.fromhex("16030100c8010000c40303")
RECEIVE_BYTES: Final = 4_096
PATH: Final = "/v1/namespaces/ns/logs/log"
RECORDS: Final = f"{PATH}/records"


class Ports(NamedTuple):
    """The proxies of the other process."""

    pid: int
    told: dict[str, Any]

    def trust(self, *protocols: str) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.told["ca"])
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.set_alpn_protocols(protocols)
        return context

    def is_still(self) -> bool:
        """Whether none of its threads computes, or wants to."""
        states = [
            (task / "stat").read_text().rpartition(")")[2].split()[0]
            for task in Path(f"/proc/{self.pid}/task").iterdir()
        ]
        return "R" not in states

    async def wait_still(self) -> None:
        """Until it has taken in, and sent, what it can."""
        still_count = 0
        async with asyncio.timeout(STILL_WITHIN_S):
            while still_count < STILL_COUNT:
                await let_pass(0.02, what="a process that may go on computing")
                still_count = still_count + 1 if self.is_still() else 0

    def read_memory_bytes(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        [line] = [line for line in status.splitlines() if line.startswith("VmRSS:")]
        return int(line.split()[1]) * 1024


@pytest.fixture(scope="module")
def ports() -> Iterator[Ports]:
    running = subprocess.Popen(
        [sys.executable, "-m", "tests.component.stalled_ports"],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert running.stdout is not None and running.stdin is not None
    try:
        yield Ports(running.pid, json.loads(running.stdout.readline()))
    finally:
        running.stdin.close()
        running.wait(START_S)


class Kind(NamedTuple):
    """What a peer sends, and then nothing more."""

    port: str = "write"
    protocol: str | None = "http/1.1"
    """None: no TLS."""

    sent: bytes = b""


def head(method: str, path: str, *lines: str) -> bytes:
    first = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1", "authorization: {credential}"]
    return "\r\n".join([*first, *lines, "", ""]).encode()


KINDS: Final = {
    "silent": Kind(protocol=None),
    "half handshake": Kind(protocol=None, sent=HALF_A_HELLO),
    "half header": Kind(sent=head("POST", RECORDS)[:-9]),
    "idle HTTP/2": Kind(protocol="h2", sent=PREFACE),
    "slow body": Kind(
        sent=head("POST", RECORDS, "content-type: text/plain", "content-length: 100000") + b"slow"
    ),
    "deaf reader": Kind("read", sent=head("GET", RECORDS, "accept: text/event-stream")),
}


async def stall(ports: Ports, kind: Kind, stack: AsyncExitStack) -> None:
    """Open one connection, and leave it at that."""
    bare = socket.socket()
    # A small window, so that what is not read stays with its sender.
    bare.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    bare.setblocking(False)
    await asyncio.get_running_loop().sock_connect(bare, ("127.0.0.1", ports.told[kind.port]))
    secured = None if kind.protocol is None else ports.trust(kind.protocol)
    _, writer = await asyncio.open_connection(
        sock=bare, ssl=secured, server_hostname=None if secured is None else "127.0.0.1"
    )
    stack.callback(writer.transport.abort)
    cast(asyncio.Transport, writer.transport).pause_reading()
    writer.write(kind.sent.replace(b"{credential}", ports.told["credential"].encode()))


async def stall_many(ports: Ports, kind: Kind, stack: AsyncExitStack) -> None:
    room = asyncio.Semaphore(AT_ONCE)

    async def stall_one() -> None:
        async with room:
            await stall(ports, kind, stack)

    await asyncio.gather(*(stall_one() for _ in range(SOCKET_COUNT)))


def open_client(ports: Ports, name: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=f"https://127.0.0.1:{ports.told[name]}", verify=ports.trust("http/1.1"),
        headers={"authorization": ports.told["credential"]}, timeout=30, trust_env=False,
    )  # fmt: skip


async def measure_p99_s(client: httpx.AsyncClient) -> float:
    """Of calls of one client, one after the other."""
    times: list[float] = []
    for _ in range(CALL_COUNT):
        began_s = time.perf_counter()
        assert (await client.get(PATH)).status_code == 200
        times.append(time.perf_counter() - began_s)
    return sorted(times)[CALL_COUNT * 99 // 100 - 1]


async def measure_least_s(client: httpx.AsyncClient, enough_s: float) -> float:
    """In the quietest of some rounds: until one has been quick enough."""
    least_s = await measure_p99_s(client)
    for _ in range(ROUND_COUNT_MAX):
        if least_s < enough_s:
            break
        least_s = min(least_s, await measure_p99_s(client))
    return least_s


@pytest.mark.parametrize("name", KINDS)
def test_who_stalls_takes_nothing_from_others(ports: Ports, name: str) -> None:
    kind = KINDS[name]

    async def scenario() -> None:
        async with AsyncExitStack() as stack, open_client(ports, kind.port) as client:
            before_s = min([await measure_p99_s(client) for _ in range(ROUND_COUNT)])
            enough_s = 2 * before_s + NOISE_S
            await stall_many(ports, kind, stack)
            await ports.wait_still()
            held_bytes = ports.read_memory_bytes()
            during_s = await measure_least_s(client, enough_s)
            for _ in range(NEW_PEER_COUNT):
                async with open_client(ports, kind.port) as other, asyncio.timeout(NEW_PEER_S):
                    assert (await other.get(PATH)).status_code == 200
            await let_pass(OBSERVED_S, what="memory that does not grow")
            grown_bytes = ports.read_memory_bytes() - held_bytes
        print(
            f"{SOCKET_COUNT} x {name}: p99 {before_s * 1e3:.1f} ms before, {during_s * 1e3:.1f} ms "
            f"beside them, {held_bytes >> 20} MiB held, {grown_bytes >> 10} KiB more later"
        )
        assert during_s < enough_s
        assert grown_bytes < FLAT_BYTES

    asyncio.run(scenario())
