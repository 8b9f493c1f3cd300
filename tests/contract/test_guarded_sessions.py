"""What is there of processes in a ZooKeeper with identities: sessions, and nodes that only seem so.

What a thief with one node's key can do to sessions and to the view of others is tried here, and
stands in the page. Source: docs/protocol/metadata-access.md "Rights", "When it is wrong".
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from duramen.runtime.registry import Registration, Roster
from duramen.runtime.stores.guarding import Strayed, found_tree, is_guarded, walk_rights
from duramen.runtime.stores.metadata_store import Rejected
from duramen.runtime.stores.secure_connection import SecureConnections
from duramen.runtime.stores.zookeeper_store import ZooKeeperStore
from duramen.wire.metadata_json import Paths, encode_node
from tests.secured_zookeeper import CALL_TIMEOUT_S, SecuredServer, running_secured
from tests.unit.identities import DOMAIN
from tests.waiting import wait_for
from tests.zookeeper_fixture import run

pytestmark = pytest.mark.zookeeper

PATHS: Final = Paths("c1")
_THIEF: Final = "bookie-9"
_THIEF_ID: Final = f"spiffe://{DOMAIN}/bookie/{_THIEF}"
_CREATE: Final = 1
_CREATE_CONTAINER: Final = 19
_DELETE: Final = 2
_SUPER_SECRET: Final = 0xB3415C00
"""Of `ZooKeeperServer`: a session's password is made of its id and this."""

_CLOSE: Final = struct.pack(">ii", 1, -11)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SecuredServer]:
    """With a tree that is founded."""

    async def found() -> None:
        async with running.opened("operator", "admin") as operator:
            await found_tree(operator, PATHS, DOMAIN)
            assert not await is_guarded(operator, DOMAIN), "before anybody walked"
            await mend(operator)
            assert await is_guarded(operator, DOMAIN)

    with running_secured(tmp_path) as running:
        run(found())
        yield running


async def mend(operator: ZooKeeperStore) -> list[Strayed]:
    return [one async for one in walk_rights(operator, DOMAIN, is_mending=True)]


# --- Nodes that no process keeps -----------------------------------------------------------------


def make_lasting(server: SecuredServer, path: str, *, is_container: bool = False) -> None:
    """A node that stays, which nobody but its maker may read; with one of his below it."""
    folder = server.issuer.issue("bookie", _THIEF)
    create, mode = (_CREATE_CONTAINER, 4) if is_container else (_CREATE, 0)
    rights = struct.pack(">ii", 1, 31) + _pack("x509") + _pack(_THIEF_ID)
    requests = [
        struct.pack(">ii", number, create) + _pack(one) + _pack("{}") + rights
        + struct.pack(">i", mode)
        for number, one in enumerate((path, f"{path}/below"), start=1)
    ]  # fmt: skip
    speak(server, folder, 0, *requests)


def _pack(text: str) -> bytes:
    return struct.pack(">i", len(text)) + text.encode()


@pytest.mark.parametrize("is_container", [False, True])
def test_apply_removes_what_says_that_a_process_is_there_and_is_kept_by_none(
    server: SecuredServer, is_container: bool
) -> None:
    path = f"{PATHS.available}/bookie-1"

    async def scenario() -> None:
        async with (
            server.opened("bookie", "bookie-1") as honest,
            server.opened("operator", "admin") as operator,
        ):
            await asyncio.to_thread(make_lasting, server, path, is_container=is_container)
            with pytest.raises(Rejected):
                await honest.get(path)
            own = Registration(honest, path, {"data_url": "http://127.0.0.1:1"})
            registering = asyncio.create_task(own.start())
            checked = [one async for one in walk_rights(operator, DOMAIN, is_mending=False)]
            assert [(one.path, one.is_stale) for one in checked] == [(path, True)]
            assert await mend(operator) == checked
            await asyncio.wait_for(registering, CALL_TIMEOUT_S)
            stored = await operator.get(path)
            assert stored is not None and stored.ephemeral_session == honest.session_id
            assert not await mend(operator), "who lives is left alone"
            await own.stop()

    run(scenario())


def test_a_roster_passes_over_what_it_may_not_read(server: SecuredServer) -> None:
    async def scenario() -> None:
        async with (
            server.opened("bookie", "bookie-1") as honest,
            server.opened("operator", "admin") as operator,
            server.opened("sequencer", "sequencer-0") as watcher,
        ):
            await asyncio.to_thread(make_lasting, server, f"{PATHS.available}/squatted")
            roster = Roster(watcher, PATHS.available)
            await asyncio.wait_for(roster.start(), CALL_TIMEOUT_S)
            assert roster.nodes == {}
            node = encode_node({})
            await honest.create(f"{PATHS.available}/bookie-1", node, ephemeral=True)
            await wait_for(lambda: list(roster.nodes) == ["bookie-1"])
            await mend(operator)
            assert await operator.children(PATHS.available) == ("bookie-1",)
            await roster.stop()

    run(scenario())


# --- The sessions of others ----------------------------------------------------------------------


def derive_password(session_id: int) -> bytes:
    """As `java.util.Random(id ^ secret).nextBytes` makes it."""
    mask = (1 << 48) - 1
    seed = ((session_id & ((1 << 64) - 1)) ^ _SUPER_SECRET ^ 0x5DEECE66D) & mask
    words = []
    for _ in range(4):
        seed = (seed * 0x5DEECE66D + 0xB) & mask
        words.append((seed >> 16) & 0xFFFFFFFF)
    return struct.pack("<4I", *words)


def speak(server: SecuredServer, folder: Path, session_id: int, *requests: bytes) -> int:
    """Connect by one's own identity in a session, whosesoever it is; gives the one that is had.

    Args:
        session_id: 0: a new one.
        requests: sent in it, each answered.
    """
    address = ("127.0.0.1", server.port)
    with SecureConnections(folder).open(address, "127.0.0.1", CALL_TIMEOUT_S) as connection:
        password = derive_password(session_id)
        greeting = struct.pack(">iqiqi16s?", 0, 0, 6_000, session_id, 16, password, False)
        connection.sendall(struct.pack(">i", len(greeting)) + greeting)
        _, _, _, had = struct.unpack_from(">iiiq", connection.recv(1_000))
        for request in requests:
            connection.sendall(struct.pack(">i", len(request)) + request)
            connection.recv(1_000)
    return int(had)


def test_who_reads_the_id_of_a_session_can_end_it_and_is_still_himself(
    server: SecuredServer,
) -> None:
    """A fault of ZooKeeper's that the page names: it costs availability, and no record."""
    path = f"{PATHS.sequencers}/sequencer-0"

    async def scenario() -> None:
        async with (
            server.opened("sequencer", "sequencer-0") as victim,
            server.opened("bookie", _THIEF) as thief,
        ):
            await victim.create(path, b"{}", ephemeral=True)
            seen = await thief.get(path)
            assert seen is not None
            folder, session = server.issuer.folder / f"bookie-{_THIEF}", seen.ephemeral_session
            erase = struct.pack(">ii", 1, _DELETE) + _pack(path) + struct.pack(">i", 0)
            had = await asyncio.to_thread(speak, server, folder, session, erase)
            assert had == session
            assert await thief.get(path) is not None, "rights are of who connects, not of sessions"
            await asyncio.to_thread(speak, server, folder, session, _CLOSE)

            async def is_gone() -> bool:
                return await thief.get(path) is None

            await wait_for(is_gone, what="the node to vanish with its session")

    run(scenario())
