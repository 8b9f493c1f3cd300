"""Standing streams between processes that have identities: TLS, who calls, renewal, revocation.

Source: docs/protocol/standing-streams.md "Rules" 8 and 11, docs/protocol/identity.md "TLS".
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from duramen.runtime.http_client import DeniedError, NoAnswerError
from duramen.runtime.http_server import make_guard
from duramen.runtime.identity.folder import read_folder
from duramen.runtime.identity.names import Role
from duramen.runtime.security.permitted_roles import BOOKIE_PATHS
from duramen.runtime.security.process_security import ProcessSecurity
from tests.component.issuing_world import IssuingWorld, read_time
from tests.component.stream_world import (
    HOST,
    Caller,
    Peer,
    calling,
    run_as_services_do,
    running_peer,
)
from tests.waiting import wait_for


def _secure(folder: Path) -> ProcessSecurity:
    ends: list[str] = []
    return ProcessSecurity(folder, read_folder(folder, read_time()), ends.append)


class _SecuredPair:
    """A bookie and a sequencer with identities."""

    def __init__(self, world: IssuingWorld, peer: Peer, caller: Caller, theirs: Any) -> None:
        self.world = world
        self.peer = peer
        self.caller = caller
        self.bookie, self.sequencer = theirs

    async def renew(self, security: ProcessSecurity) -> None:
        identity = security.identity
        self.world.issue(identity.role, identity.name)
        watched: Any = security
        await watched._watched.look()


@asynccontextmanager
async def _secured(world: IssuingWorld, caller: Path | None = None) -> AsyncIterator[_SecuredPair]:
    bookie, sequencer = _secure(world.server), _secure(caller or world.caller)
    guard = make_guard(bookie, BOOKIE_PATHS)
    async with running_peer(guard) as peer, calling(peer, security=sequencer) as made:
        sequencer.peers.learn_role(Role.BOOKIE)({"bookie-0": peer.describe()})
        yield _SecuredPair(world, peer, made, (bookie, sequencer))
    await sequencer.stop()
    await bookie.stop()


def test_a_stream_names_its_caller(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with _secured(IssuingWorld(tmp_path)) as both:
            await both.caller.open(both.peer)
            assert await both.caller.call(both.peer, b"x") == b"/b/add x"
            assert both.peer.count("stream") == 1
            assert both.peer.callers == {both.sequencer.identity}
            assert both.peer.peers == {str(both.sequencer.identity)}

    run_as_services_do(scenario())


def test_what_a_role_may_not_call_it_may_not_call_by_a_stream(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = IssuingWorld(tmp_path)
        async with _secured(world, world.issue("readproxy", "readproxy-0")) as both:
            # It may ask for a LAC and may not add.
            assert await both.caller.call(both.peer, b"x", "/b/lac") == b"/b/lac x"
            await wait_for(lambda: both.caller.streams.statistics()["streams"] == 1)
            assert await both.caller.call(both.peer, b"y", "/b/lac") == b"/b/lac y"
            with pytest.raises(DeniedError):
                await both.caller.call(both.peer, b"z")
            assert [(way, path) for way, path, _ in both.peer.asked] == [
                ("call", "/b/lac"), ("stream", "/b/lac"),
            ]  # fmt: skip

    run_as_services_do(scenario())


def test_who_may_ask_for_nothing_there_gets_no_stream(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = IssuingWorld(tmp_path)
        async with _secured(world, world.issue("archive", "archive-0")) as both:
            with pytest.raises(DeniedError):
                await both.caller.call(both.peer, b"x", "/b/lac")
            await wait_for(lambda: both.caller.streams.statistics()["not_opened"] == 1)
            assert both.peer.asked == []

    run_as_services_do(scenario())


def test_who_is_revoked_is_not_heard_on_a_stream_that_stands(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = IssuingWorld(tmp_path)
        async with _secured(world) as both:
            await both.caller.open(both.peer)
            assert await both.caller.call(both.peer, b"before")
            world.revoke("sequencer-0", world.server)
            watched: Any = both.bookie
            await watched._watched.look()
            with pytest.raises(DeniedError):
                await both.caller.call(both.peer, b"behind")
            assert [body for _, _, body in both.peer.asked] == [b"opening", b"before"]

    run_as_services_do(scenario())


def test_a_header_that_ends_is_renewed_within_the_stream(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with _secured(IssuingWorld(tmp_path)) as both:
            await both.caller.open(both.peer)
            assert await both.caller.call(both.peer, b"one")
            receiver = both.bookie.identity
            named = both.sequencer.name_to(receiver)
            both.sequencer.reconsider(receiver, named, str(int(read_time().timestamp()) + 2))
            assert both.sequencer.name_to(receiver) != named
            assert await both.caller.call(both.peer, b"two")
            assert both.peer.count("stream") == 2
            assert both.caller.streams.statistics()["opened"] == 1

    run_as_services_do(scenario())


def test_a_header_of_another_ends_the_stream(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = IssuingWorld(tmp_path)
        async with _secured(world) as both:
            await both.caller.open(both.peer)
            other = _secure(world.issue("sequencer", "sequencer-1"))
            (stream,) = both.caller.streams._list_streams()
            handed: Any = stream
            handed._name = lambda: other.name_to(both.bookie.identity)
            with pytest.raises(NoAnswerError):
                await both.caller.call(both.peer, b"x")
            assert both.peer.count("stream") == 0
            await other.stop()

    run_as_services_do(scenario())


@pytest.mark.parametrize("side", ["bookie", "sequencer"])
def test_a_renewed_certificate_costs_no_request(tmp_path: Path, side: str) -> None:
    async def scenario() -> None:
        async with _secured(IssuingWorld(tmp_path)) as both:
            await both.caller.open(both.peer)
            held = asyncio.create_task(both.caller.call(both.peer, b"hold"))
            await wait_for(lambda: both.peer.count("stream") == 1)
            await both.renew(getattr(both, side))
            assert await both.caller.call(both.peer, b"meanwhile")
            both.peer.released.set()
            assert await held == b"/b/add hold"

            async def goes_by_another() -> bool:
                before = both.peer.count("stream")
                await both.caller.call(both.peer, b"again")
                return both.peer.count("stream") > before

            await wait_for(goes_by_another, rest_s=0.05)
            assert both.caller.streams.statistics()["opened"] == 2

    run_as_services_do(scenario())


def test_a_stream_that_was_opening_at_a_renewal_is_not_used(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with _secured(IssuingWorld(tmp_path)) as both:
            streams: Any = both.caller.streams
            connect, may_end = streams._connect, asyncio.Event()

            async def connect_slowly(*args: Any) -> Any:
                made = await connect(*args)
                await may_end.wait()
                return made

            streams._connect = connect_slowly
            await both.caller.call(both.peer, b"opening")
            await wait_for(lambda: both.peer.streams.statistics()["streams"] == 1)
            await both.renew(both.sequencer)
            may_end.set()
            await wait_for(lambda: both.peer.streams.statistics()["streams"] == 0)
            assert both.caller.streams.statistics()["streams"] == 0

    run_as_services_do(scenario())


def test_a_stranger_is_not_let_in_and_gets_no_request(tmp_path: Path) -> None:
    async def scenario() -> None:
        world, elsewhere = IssuingWorld(tmp_path / "a"), IssuingWorld(tmp_path / "b")
        async with _secured(world) as both:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            port = both.peer.streams.port
            reader, writer = await asyncio.open_connection(HOST, port, ssl=context)
            with contextlib.suppress(OSError):  # an alert, or just the end
                assert await reader.read(100) == b"", "nothing was said to it"
            writer.close()
            assert both.peer.streams.statistics()["streams"] == 0
            # And who is called shows a certificate of the cluster, or is sent nothing.
            stranger = _secure(elsewhere.server)
            async with running_peer(make_guard(stranger, BOOKIE_PATHS)) as other:
                fields = both.peer.describe() | {"stream_url": other.describe()["stream_url"]}
                both.caller.streams.learn({"bookie-0": fields})
                assert await both.caller.call(both.peer, b"x")
                await wait_for(lambda: both.caller.streams.statistics()["not_opened"] == 1)
                assert both.peer.count("stream") == 0
                assert other.asked == []
            await stranger.stop()

    run_as_services_do(scenario())
