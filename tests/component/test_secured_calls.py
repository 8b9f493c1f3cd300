"""Calls between processes that have identities: over TLS, named by header, through renewals.

A server as a bookie's data port has it and the client of the data planes, over loopback.
Source: docs/protocol/identity.md "TLS", "The caller's header".
"""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from pyreqwest.client import ClientBuilder
from pyreqwest.exceptions import PyreqwestError

from duramen.runtime.edge import embedded_server
from duramen.runtime.http_client import (
    DeniedError,
    NoAnswerError,
    PeerClient,
    PeerError,
    UnreachableError,
)
from duramen.runtime.http_server import Answer, DataServer, make_guard
from duramen.runtime.identity.callers import OwnHeaders
from duramen.runtime.identity.folder import read_folder
from duramen.runtime.identity.names import Identity, Role, make_identity
from duramen.runtime.security import process_security
from duramen.runtime.security.permitted_roles import BOOKIE_PATHS
from duramen.runtime.security.private_copies import PrivateCopies
from duramen.runtime.security.process_security import ProcessSecurity
from duramen.units import SECOND
from tests.component.issuing_world import IssuingWorld, read_time
from tests.pauses import let_pass
from tests.unit.identities import DOMAIN
from tests.waiting import wait_for

BOOKIE: Final = make_identity(DOMAIN, "bookie", "bookie-0")
_WAIT_US: Final = 10 * SECOND


def secure(folder: Path) -> ProcessSecurity:
    ends: list[str] = []
    return ProcessSecurity(folder, read_folder(folder, read_time()), ends.append)


class Node:
    """A server that says who called, and what it has to do with."""

    def __init__(self, folder: Path) -> None:
        self.security = secure(folder)
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()
        guard = make_guard(self.security, BOOKIE_PATHS)
        self.server = DataServer("127.0.0.1", 0, self._answer, self.stream, guard=guard)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.server.port}"

    async def _answer(self, _path: str, body: bytes, caller: Identity | None) -> Answer:
        assert caller is not None
        if body == b"slow":
            self.begun.set()
            await self.may_end.wait()
        return 200, "text/plain", str(caller).encode()

    def stream(
        self, path: str, body: bytes, send: Callable[[bytes], Awaitable[None]]
    ) -> Awaitable[None] | None:
        """Answer one path in pieces."""
        return send(b"piece") if path == "/b/lac" and not body else None


class Pair:
    """A node and who calls it."""

    def __init__(self, world: IssuingWorld, caller: Path | None = None) -> None:
        self.world = world
        self.node = Node(world.server)
        self.security = secure(caller or world.caller)
        self.client = PeerClient(self.security)
        self.learn = self.security.peers.learn_role(Role.BOOKIE)

    async def call(self, body: bytes = b"x", path: str = "/b/read") -> str:
        return (await self.client.call(self.node.url + path, body, _WAIT_US)).decode()


@asynccontextmanager
async def pair(world: IssuingWorld, caller: Path | None = None) -> AsyncIterator[Pair]:
    both = Pair(world, caller)
    await both.node.server.start()
    both.learn({"bookie-0": {"data_url": both.node.url}})
    try:
        yield both
    finally:
        await both.client.close()
        await both.node.server.stop()
        await both.security.stop()
        await both.node.security.stop()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(bounded())


def test_a_call_names_its_caller_whole_or_in_pieces(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with pair(IssuingWorld(tmp_path)) as both:
            assert await both.call() == f"spiffe://{DOMAIN}/sequencer/sequencer-0"
            pieces = both.client.stream(both.node.url + "/b/lac", b"", _WAIT_US)
            assert [piece async for piece in pieces] == [b"piece"]
            counts = both.node.security.statistics()["callers"]
            assert (counts["verified"], counts["headers"]) == (1, 1), "one header, found again"

    run(scenario)


def test_who_may_not_call_is_told_and_nothing_is_done(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = IssuingWorld(tmp_path)
        async with pair(world, world.issue("readproxy", "readproxy-0")) as both:
            assert (await both.call()).endswith("/readproxy/readproxy-0")
            with pytest.raises(DeniedError):
                await both.call(path="/b/seal")
            status, body = await both.client.request_json(
                "POST", both.node.url + "/b/add", b"{}", _WAIT_US
            )
            assert (status, b'"forbidden"' in body) == (403, True)

    run(scenario)


def test_nobody_is_called_who_is_not_known(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with pair(IssuingWorld(tmp_path)) as both:
            both.security.peers.learn_role(Role.BOOKIE)({})
            both.security.peers.hear(Role.BOOKIE, "bookie-1", both.node.url)
            with pytest.raises(DeniedError):
                await both.call()
            with pytest.raises(UnreachableError, match="nobody is known"):
                await both.client.call("https://127.0.0.1:1/b/read", b"", _WAIT_US)

    run(scenario)


def test_who_names_nobody_or_speaks_plainly_gets_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = IssuingWorld(tmp_path)
        async with pair(world) as both:
            nobody = PeerClient()
            for url in (both.node.url, both.node.url.replace("https", "http")):
                with pytest.raises(PeerError):
                    await nobody.call(url + "/b/read", b"", _WAIT_US)
            await nobody.close()
            trusting = ClientBuilder().http2_prior_knowledge().no_proxy()
            anchors = (world.caller / "ca.crt").read_bytes()
            client = trusting.add_root_certificate_pem(anchors).build()
            with pytest.raises(PyreqwestError):
                await client.post(both.node.url + "/b/read").body_bytes(b"").build().send()
            await client.close()
            # The certificate without the header proves the process, and no caller.
            silent: Any = both.security
            silent.find_receiver = lambda _url: None
            with pytest.raises(DeniedError):
                await both.call()

    run(scenario)


def test_a_header_for_one_node_is_worth_nothing_at_another(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = IssuingWorld(tmp_path)
        async with pair(world) as both:
            stolen = OwnHeaders(read_folder(world.caller, read_time()))
            other = make_identity(DOMAIN, "bookie", "bookie-1")
            header = stolen.give(other, read_time())
            thief: Any = both.security
            thief.name_to = lambda _receiver: header
            with pytest.raises(DeniedError):
                await both.call()

    run(scenario)


@pytest.mark.parametrize("off_s", [-3_600, 3_600])
def test_a_caller_whose_clock_is_off_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off_s: int
) -> None:
    async def scenario() -> None:
        async with pair(IssuingWorld(tmp_path)) as both:
            off = dt.timedelta(seconds=off_s)
            monkeypatch.setattr(process_security, "_now", lambda: read_time() + off)
            assert await both.call()
            assert both.node.security.statistics()["callers"]["refused"] == 1
            assert await both.call()
            assert both.node.security.statistics()["callers"]["refused"] == 1, "it is remembered"

    run(scenario)


def test_many_calls_at_once_with_a_wrong_clock_need_one_header_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with pair(IssuingWorld(tmp_path)) as both:
            off = dt.timedelta(hours=1)
            monkeypatch.setattr(process_security, "_now", lambda: read_time() + off)
            await asyncio.gather(*(both.call() for _ in range(100)))
            assert both.node.security.statistics()["callers"]["verified"] == 1

    run(scenario)


@pytest.mark.parametrize("told", ["9" * 400, "9" * 12, "0", "-1", "x", "1e9", ""])
def test_no_time_that_a_peer_tells_keeps_it_from_being_called(tmp_path: Path, told: str) -> None:
    async def scenario() -> None:
        async with pair(IssuingWorld(tmp_path)) as both:
            refused = both.security.name_to(BOOKIE)
            both.security.reconsider(BOOKIE, refused, told)
            assert await both.call()

    run(scenario)


def test_a_renewal_that_fails_is_tried_again_and_the_old_server_serves_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(embedded_server, "_RETRY_S", 0.05)
        world = IssuingWorld(tmp_path)
        async with pair(world) as both:
            copies: Any = both.node.security._copies
            write, failures = copies.write, [OSError(28, "full"), OSError(28, "full")]

            def write_when_there_is_room(held: Any) -> Any:
                if failures:
                    raise failures.pop()
                return write(held)

            monkeypatch.setattr(copies, "write", write_when_there_is_room)
            world.issue("bookie", "bookie-0")
            await both.node.security._watched.look()
            while failures:
                assert await both.call()
            folder: Path = copies._folder
            await wait_for(lambda: [p.name for p in folder.glob("[0-9]*")] == ["2"])
            assert await both.call()

    run(scenario)


def test_a_renewal_of_either_side_loses_no_call(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = IssuingWorld(tmp_path)
        async with pair(world) as both:
            stopping = asyncio.Event()
            counts = [0, 0]

            async def call_on(index: int) -> None:
                while not stopping.is_set():
                    await both.call()
                    counts[index] += 1

            slow = asyncio.create_task(both.call(b"slow"))
            await both.node.begun.wait()
            callers = [asyncio.create_task(call_on(index)) for index in (0, 1)]
            for _ in range(4):
                for security, role, name in (
                    (both.node.security, "bookie", "bookie-0"),
                    (both.security, "sequencer", "sequencer-0"),
                ):
                    world.issue(role, name)
                    await security._watched.look()
                    await let_pass(0.2, what="calls on both sides of a renewal")
            both.node.may_end.set()
            assert await slow, "a call that was there is answered"
            stopping.set()
            await asyncio.gather(*callers)
            assert min(counts) > 20
            assert both.node.security.statistics()["folder"]["changes"] == 4

    run(scenario)


def test_one_ca_takes_the_place_of_another_and_back_without_a_lost_call(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = IssuingWorld(tmp_path)
        async with pair(world) as both:
            stopping = asyncio.Event()
            count = 0

            async def call_on() -> None:
                nonlocal count
                while not stopping.is_set():
                    await both.call()
                    count += 1

            async def look() -> None:
                for security in (both.node.security, both.security):
                    await security._watched.look()
                    await let_pass(0.1, what="calls between two steps")

            async def renew() -> None:
                for role, name in (("bookie", "bookie-0"), ("sequencer", "sequencer-0")):
                    world.issue(role, name)
                    await look()

            calling = asyncio.create_task(call_on())
            for step in ("announce", "switch", "switch", "switch", "retire"):
                world.step(step)
                await look()
                await renew()
            stopping.set()
            await calling
            told = [one.statistics() for one in (both.node.security, both.security)]
            assert [(len(one["anchors"]), one["issuer"]) for one in told] == [
                (1, one["anchors"][0]) for one in told
            ]
            assert count > 20

    run(scenario)


def test_who_is_revoked_is_refused_once_the_node_knows(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = IssuingWorld(tmp_path)
        async with pair(world) as both:
            assert await both.call()
            world.revoke("sequencer-0", world.server)
            await both.node.security._watched.look()
            with pytest.raises((DeniedError, NoAnswerError, UnreachableError)):
                await both.call()

            async def is_refused() -> bool:
                try:
                    await both.call()
                except PeerError:
                    return True
                return False

            await wait_for(is_refused, rest_s=0.05)

    run(scenario)


def test_no_other_anchor_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        world, other = IssuingWorld(tmp_path / "a"), IssuingWorld(tmp_path / "b")
        monkeypatch.setenv("SSL_CERT_FILE", str(world.server / "ca.crt"))
        node = Node(world.server)
        await node.server.start()
        security = secure(other.caller)
        client = PeerClient(security)
        security.peers.hear(Role.BOOKIE, "bookie-0", node.url)
        with pytest.raises(PeerError):
            await client.call(node.url + "/b/read", b"", _WAIT_US)
        await client.close()
        await node.server.stop()
        await security.stop()
        await node.security.stop()
        trusted = os.environ["SSL_CERT_FILE"]
        assert trusted == str(world.server / "ca.crt"), "for others it is as it was"

    run(scenario)


def test_private_copies_are_ours_alone_and_do_not_stay(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with pair(IssuingWorld(tmp_path)) as both:
            copies: Any = both.node.security._copies
            folder: Path = copies._folder
            assert folder.stat().st_mode & 0o077 == 0
            assert len(list(folder.glob("*/tls.key"))) == 1
            both.world.issue("bookie", "bookie-0")
            await both.node.security._watched.look()
            await wait_for(lambda: [p.name for p in folder.glob("[0-9]*")] == ["2"])
        assert not folder.exists()

    run(scenario)


def test_copies_of_a_process_that_was_killed_are_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = "from duramen.runtime.security.private_copies import PrivateCopies as P; made = P(); "
    command = [sys.executable, "-c", f"{made}print(made._folder, flush=True); input()"]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as killed, subprocess.Popen(command, **pipes) as living:
        left, held = (Path(next(iter(one.stdout or ())).strip()) for one in (killed, living))
        (left / "tls.key").write_text("a key")
        (strange := tmp_path / "duramen-identity-strange").mkdir()
        killed.kill()
        killed.wait()
        copies = PrivateCopies()
        assert not left.exists()
        assert held.exists() and strange.exists() and copies._folder.exists()
        copies.close()
        living.communicate("\n")
