"""Benches: a metadata store of either kind, with the faults that its contract speaks of.

The twin has its faults built in; for ZooKeeper each store goes through a TCP proxy of its own,
and a session is ended by a second client that takes it over and closes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import pytest
from kazoo.client import KazooClient

from duramen.runtime.embedded_zookeeper import EmbeddedZooKeeper
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree, WriteFate
from duramen.runtime.stores.metadata_store import MetadataStore, SessionState, Unavailable
from duramen.runtime.stores.zookeeper_store import ZooKeeperStore
from tests.secured_zookeeper import Issuer, SecuredServer, running_secured
from tests.zookeeper_fixture import FaultyProxy, running_zookeeper

CALL_TIMEOUT_S = 20.0
"""No case runs into it: what is cut or lost is told at once. A busy machine may need as long."""


class Bench(Protocol):
    """What a contract test may do beside using the port."""

    root: str

    async def open_store(self) -> MetadataStore: ...
    async def expire(self, store: MetadataStore) -> None: ...
    def cut(self, store: MetadataStore) -> None: ...
    def heal(self, store: MetadataStore) -> None: ...
    def lose_next_reply(self, store: MetadataStore) -> None: ...


class Story:
    """Collects the states that a store reports and waits for one of them."""

    def __init__(self, store: MetadataStore) -> None:
        self.states: list[SessionState] = []
        self._news = asyncio.Event()
        store.on_session(self._on_session)

    def _on_session(self, state: SessionState) -> None:
        self.states.append(state)
        self._news.set()

    async def wait_states(self, *expected: SessionState) -> None:
        """Until the states end with those that are expected."""
        while tuple(self.states[-len(expected) :]) != expected:
            self._news.clear()
            await self._news.wait()


async def wait_reads(store: MetadataStore) -> None:
    """Until the store answers again."""
    is_moved = asyncio.Event()
    store.on_session(lambda _state: is_moved.set())
    while True:
        while store.session is not SessionState.CONNECTED:
            is_moved.clear()
            await is_moved.wait()
        try:
            await store.sync("/")
            return
        except Unavailable:  # the loss of the connection is about to be reported
            await asyncio.sleep(0)


OpenBench = Callable[[], AbstractAsyncContextManager[Bench]]


class MemoryBench:
    def __init__(self) -> None:
        self.root = "/contract"
        self._tree = MemoryTree()
        self._stores: list[MemoryStore] = []

    async def open_store(self) -> MetadataStore:
        store = MemoryStore(self._tree)
        await store.start()
        self._stores.append(store)
        return store

    async def expire(self, store: MetadataStore) -> None:
        self._tree.expire(store.session_id)

    def cut(self, store: MetadataStore) -> None:
        self._of(store).disconnect()

    def heal(self, store: MetadataStore) -> None:
        self._of(store).reconnect()

    def lose_next_reply(self, store: MetadataStore) -> None:
        self._of(store).doom_next_write(WriteFate.APPLIED)

    async def close(self) -> None:
        for store in self._stores:
            await store.close()

    def _of(self, store: MetadataStore) -> MemoryStore:
        return next(mine for mine in self._stores if mine is store)


class ZooKeeperBench:
    def __init__(self, address: str, identity_dir: Path | None = None) -> None:
        self.root = f"/contract-{uuid4().hex}"
        self._address = address
        self._identity_dir = identity_dir
        self._stores: list[tuple[ZooKeeperStore, FaultyProxy]] = []

    async def open_store(self) -> MetadataStore:
        proxy = FaultyProxy(self._address, is_sealed=self._identity_dir is not None)
        await proxy.start()
        store = ZooKeeperStore(
            proxy.address, call_timeout_s=CALL_TIMEOUT_S, identity_dir=self._identity_dir
        )
        self._stores.append((store, proxy))
        await store.start()
        return store

    async def expire(self, store: MetadataStore) -> None:
        zookeeper_store, proxy = self._of(store)
        session_id, password = store.session_id, zookeeper_store.session_password
        proxy.cut()  # else the store would take its session back before it is closed
        await asyncio.to_thread(
            _close_session, self._address, session_id, password, self._identity_dir
        )
        proxy.heal()

    def cut(self, store: MetadataStore) -> None:
        self._of(store)[1].cut()

    def heal(self, store: MetadataStore) -> None:
        self._of(store)[1].heal()

    def lose_next_reply(self, store: MetadataStore) -> None:
        self._of(store)[1].lose_next_reply()

    async def close(self) -> None:
        for store, proxy in self._stores:
            proxy.heal()
            await store.close()
            await proxy.stop()

    def _of(self, store: MetadataStore) -> tuple[ZooKeeperStore, FaultyProxy]:
        return next(pair for pair in self._stores if pair[0] is store)


def _close_session(
    address: str, session_id: int, password: bytes, identity_dir: Path | None
) -> None:
    tls: dict[str, Any] = {}
    if identity_dir is not None:
        names = {"ca": "ca.crt", "certfile": "tls.crt", "keyfile": "tls.key"}
        tls = {"use_ssl": True} | {key: str(identity_dir / name) for key, name in names.items()}
    thief = KazooClient(hosts=address, client_id=(session_id, password), **tls)
    thief.start(timeout=30)
    assert thief.client_id[0] == session_id
    thief.stop()
    thief.close()


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    """One server for all contract tests; who stops a server starts one of its own."""
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def own_zookeeper(tmp_path: Path) -> Iterator[EmbeddedZooKeeper]:
    with running_zookeeper(tmp_path) as server:
        yield server


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServer]:
    """As `zookeeper`, for who has an identity; its tree is nobody's in particular."""
    with running_secured(tmp_path_factory.mktemp("secured")) as server:
        yield server


@pytest.fixture(
    params=[
        "memory",
        pytest.param("zookeeper", marks=pytest.mark.zookeeper),
        pytest.param("secured", marks=pytest.mark.zookeeper),
    ]
)
def open_bench(request: pytest.FixtureRequest) -> OpenBench:
    """Opens a bench of either kind with its root node in place."""
    address, identity_dir = "", None
    if request.param != "memory":
        address = request.getfixturevalue(request.param).address
    if request.param == "secured":
        issuer: Issuer = request.getfixturevalue("secured").issuer
        identity_dir = issuer.issue("sequencer", "sequencer-0")

    @asynccontextmanager
    async def opened() -> AsyncIterator[Bench]:
        bench = ZooKeeperBench(address, identity_dir) if address else MemoryBench()
        try:
            founder = await bench.open_store()
            await founder.create(bench.root, b"")
            yield bench
        finally:
            await bench.close()

    return opened
