"""The four services with what their admin ports need, and admin ports that have an identity.

Nothing of a service is started. Used by the tests of verbs and of who is let in at admin ports.
Source: docs/protocol/admin.md "Every service", docs/protocol/identity.md "TLS".
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import httpx
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from duramen.runtime.admin import make_admin_app
from duramen.runtime.edge.admin_connections import AdminConnections
from duramen.runtime.http_server import AdminServer
from duramen.runtime.identity.certificates import Authority, issue_leaf, make_key
from duramen.runtime.identity.folder import HeldIdentity, read_folder, read_key
from duramen.runtime.identity.names import Identity
from duramen.runtime.identity.zookeeper_files import load_identity, make_client_context
from duramen.runtime.role import RoleService, ServiceOptions
from duramen.runtime.security.process_security import ProcessSecurity
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen_bookie.service import BookieService
from duramen_readproxy.service import ReadProxy
from duramen_sequencer.service import SequencerService
from duramen_writeproxy.service import WriteProxy
from tests.component.issuing_world import IssuingWorld, read_time

ROLES: Final = ("bookie", "sequencer", "writeproxy", "readproxy")
THROUGH: Final = 299
"""What `answer_all` says of a request that reached the application."""


def make_options(role: str) -> ServiceOptions:
    return ServiceOptions(
        role, "c", "n-0", "127.0.0.1", 0, 0, "zk:2181", "local", "r0", "none", 4.0, Path("/data")
    )


def make_service(role: str) -> RoleService:
    options, store = make_options(role), MemoryStore(MemoryTree())
    match role:
        case "bookie":
            return BookieService(options, lambda _: None, store)
        case "sequencer":
            return SequencerService(options, store)
        case "writeproxy":
            return WriteProxy(options, store)
        case _:
            return ReadProxy(options, store, registry=CollectorRegistry())


def answer_all(app: FastAPI) -> None:
    """Let the application answer THROUGH before any of its routes does something."""

    class Answering:
        def __init__(self, _app: Any) -> None: ...

        async def __call__(self, _scope: Any, _receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": THROUGH, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    app.add_middleware(Answering)


class AdminPort:
    """The admin port of a bookie that has an identity, and clients of it.

    Args:
        change: the application, before it is served.
    """

    def __init__(
        self,
        world: IssuingWorld,
        role: str = "bookie",
        *,
        change: Callable[[FastAPI], None] = answer_all,
        connections: AdminConnections | None = None,
    ) -> None:
        self.world = world
        self.failures: list[str] = []
        held = read_folder(world.server, read_time())
        self.security = ProcessSecurity(world.server, held, self.failures.append)
        self.app = make_admin_app(make_service(role), make_options(role), lambda: None)
        change(self.app)
        self.server = AdminServer(
            "127.0.0.1", 0, self.app, connections=connections, security=self.security
        )

    @property
    def url(self) -> str:
        """Its address."""
        return f"https://127.0.0.1:{self.server.port}"

    def trust(self, held: HeldIdentity | None = None) -> ssl.SSLContext:
        """TLS of a client that shows this identity, or none, and trusts the cluster's CA."""
        return make_context(self.world, held)

    def open_client(self, held: HeldIdentity | None = None) -> httpx.AsyncClient:
        """A client of the port."""
        return httpx.AsyncClient(base_url=self.url, verify=self.trust(held), trust_env=False)

    async def connect(
        self, held: HeldIdentity | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """One connection, over which nothing was sent yet."""
        return await asyncio.open_connection(
            "127.0.0.1", self.server.port, ssl=self.trust(held), server_hostname="127.0.0.1"
        )

    async def look(self) -> None:
        """Look at the folder, as the process does every two seconds."""
        await self.security._watched.look()


def make_context(world: IssuingWorld, held: HeldIdentity | None = None) -> ssl.SSLContext:
    """TLS of a client that shows this identity, or none, and trusts the cluster's CA."""
    context = make_client_context((world.ca / "ca.crt").read_text())
    # What a port refuses it has to refuse by itself.
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if held is not None:
        load_identity(context, held)
    return context


def read_held(folder: Path) -> HeldIdentity:
    """The identity in a folder, as it is now."""
    return read_folder(folder, read_time())


def issue_by_hand(
    world: IssuingWorld, identity: Identity, begins: dt.datetime, life: dt.timedelta
) -> HeldIdentity:
    """What a CA might issue that ours refuses to."""
    bundle = read_held(world.server).bundle
    authority = Authority(read_key(world.ca / "ca.key"), bundle.anchors[0])
    key = make_key()
    leaf = issue_leaf(authority, identity, key.public_key(), begins, life=life)
    return HeldIdentity(identity, key, leaf, bundle)


@contextlib.asynccontextmanager
async def serving(port: AdminPort) -> AsyncIterator[AdminPort]:
    """The port, while it serves."""
    await port.server.start()
    try:
        yield port
    finally:
        await port.server.stop()
        await port.security.rights.stop()
        await port.security.stop()


def run(scenario: Awaitable[None]) -> None:
    """Run a scenario, for a minute at most."""

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await scenario

    asyncio.run(bounded())
