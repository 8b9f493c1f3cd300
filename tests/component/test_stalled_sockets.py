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

from duramen.runtime.edge.port_sockets import count_connections
from tests.component.raw_http import PREFACE
from tests.pauses import let_pass
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.quiet,
    pytest.mark.usefixtures("many_files"),
    pytest.mark.timeout(1_200),
]

ROOT: Final = Path(__file__).resolve().parents[2]
SOCKET_COUNT: Final = int(os.environ.get("DURAMEN_STALLED_SOCKETS", "100"))
AT_ONCE: Final = 50
CALL_COUNT: Final = 100
ROUND_COUNT: Final = 3
ROUND_COUNT_MAX: Final = 10
"""The quietest round counts: other work on the machine makes one slower, never quicker."""

NOISE_S: Final = 0.005
SERVED_S: Final = SOCKET_COUNT * 5e-6
"""Taken from a call while all of them come, and deaf ones are sent what a connection takes."""

NEW_PEER_S: Final = 1.0
NEW_PEER_COUNT: Final = 5
FLAT_BYTES: Final = 4 << 20
EACH_BYTES: Final = 1 << 20
"""Held by the process for one of them: pieces in the HTTP library, and one entry."""

SHARED_BYTES: Final = 40 << 20
"""Held for all of them: encodings (32 MiB), and what a connection's first call makes."""

OBSERVED_S: Final = 5.0
START_S: Final = 60.0
STILL_COUNT: Final = 20
STILL_WITHIN_S: Final = 600.0
"""2,000 deaf readers are first sent what a connection buffers: 2 GB."""

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

    def count_connections(self, name: str) -> int:
        """Those that it has accepted and not closed."""
        counts = count_connections(self.told[name])
        assert counts is not None, "only Linux tells"
        return counts[0]

    async def wait_accepted(self, name: str) -> int:
        """Until it has accepted all that stall: a connection is made before it is accepted."""
        await wait_for(
            lambda: self.count_connections(name) >= SOCKET_COUNT,
            what=lambda: f"{SOCKET_COUNT} accepted connections: {self.count_connections(name)}",
            rest_s=0.01,
        )
        return self.count_connections(name)

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
    # What all of them announce is less than one client may have in flight: none is refused.
    "slow body": Kind(
        sent=head("POST", RECORDS, "content-type: text/plain", "content-length: 50000") + b"slow"
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
    stack.callback(_abort, writer)
    cast(asyncio.Transport, writer.transport).pause_reading()
    writer.write(kind.sent.replace(b"{credential}", ports.told["credential"].encode()))


def _abort(writer: asyncio.StreamWriter) -> None:
    """The stack holds the writer for this: one that nobody holds closes its connection."""
    writer.transport.abort()


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
            least_bytes = ports.read_memory_bytes()
            await stall_many(ports, kind, stack)
            held_count = await ports.wait_accepted(kind.port)
            served_s = await measure_least_s(client, enough_s + SERVED_S)
            for _ in range(NEW_PEER_COUNT):
                async with open_client(ports, kind.port) as other, asyncio.timeout(NEW_PEER_S):
                    assert (await other.get(PATH)).status_code == 200
            await ports.wait_still()
            stalled_s = await measure_least_s(client, enough_s)
            held_bytes = ports.read_memory_bytes()
            await let_pass(OBSERVED_S, what="memory that does not grow")
            grown_bytes = ports.read_memory_bytes() - held_bytes
        print(
            f"{SOCKET_COUNT} x {name}: p99 {before_s * 1e3:.1f} ms before, {served_s * 1e3:.1f} ms "
            f"when {held_count} of them had come, {stalled_s * 1e3:.1f} ms when all stood still, "
            f"{held_bytes - least_bytes >> 20} MiB held for them, {grown_bytes >> 10} KiB later"
        )
        assert held_count >= SOCKET_COUNT
        assert held_bytes - least_bytes < SOCKET_COUNT * EACH_BYTES + SHARED_BYTES
        assert served_s < enough_s + SERVED_S
        assert stalled_s < enough_s
        assert grown_bytes < FLAT_BYTES

    asyncio.run(scenario())
