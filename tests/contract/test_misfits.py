"""One side with an identity and the other without: a clear word, and no endless wait.

Source: docs/protocol/metadata-access.md "Who connects".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from duramen.cluster.layout import pick_free_port
from duramen.runtime.cluster_node import wait_cluster, wait_own_cluster, wait_session
from duramen.runtime.embedded_zookeeper import EmbeddedZooKeeper
from duramen.runtime.role import StartRefusedError
from duramen.runtime.stores.guarding import found_tree, walk_rights
from duramen.runtime.stores.metadata_store import MetadataStore, Unavailable
from duramen.runtime.stores.misfits import find_misfit
from duramen.runtime.stores.zookeeper_store import ZooKeeperStore
from duramen.wire.metadata_json import Paths
from tests.secured_zookeeper import CALL_TIMEOUT_S, REFUSED_S, Issuer, SecuredServer
from tests.unit.identities import DOMAIN
from tests.zookeeper_fixture import run

pytestmark = pytest.mark.zookeeper

PATHS = Paths("c1")


async def refused(
    store: ZooKeeperStore, begin: Callable[[MetadataStore], Awaitable[object]]
) -> str:
    """What a process says that cannot start."""
    try:
        with pytest.raises(StartRefusedError) as caught:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                await begin(store)
    finally:
        await store.close()
    return str(caught.value)


def test_each_is_told_that_the_other_has_an_identity_or_has_none(tmp_path: Path) -> None:
    async def scenario() -> None:
        secured = SecuredServer(tmp_path / "secured")
        plain = EmbeddedZooKeeper(
            tmp_path / "plain", pick_free_port(), log_file=tmp_path / "plain.log"
        )
        folder = secured.issuer.issue("sequencer", "sequencer-0")
        for server in (secured, plain):
            await server.start()
        try:
            without = ZooKeeperStore(secured.address, call_timeout_s=REFUSED_S)
            said = await refused(without, wait_session)
            assert said.startswith(f"ZooKeeper at {secured.address} speaks TLS and asks who")
            within = ZooKeeperStore(plain.address, call_timeout_s=REFUSED_S, identity_dir=folder)
            said = await refused(within, wait_session)
            assert said.startswith(f"ZooKeeper at {plain.address} speaks plain text, and who has")
            for server, has_identity in ((secured, True), (plain, False)):
                assert await find_misfit(server.address, has_identity=has_identity) is None
        finally:
            for server in (secured, plain):
                await server.stop()

    run(scenario())


@pytest.mark.parametrize("has_identity", [False, True])
def test_who_finds_nobody_waits_for_him(tmp_path: Path, has_identity: bool) -> None:
    """A server that starts may take a connection and say nothing."""

    async def scenario() -> None:
        folder = Issuer(tmp_path).issue("sequencer", "s") if has_identity else None
        silent = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = silent.sockets[0].getsockname()[1]

        async def look(address: str) -> None:
            store = ZooKeeperStore(address, call_timeout_s=REFUSED_S, identity_dir=folder)
            with pytest.raises(Unavailable):
                await store.start()
            await store.close()

        addresses = (f"127.0.0.1:{port}", f"127.0.0.1:{pick_free_port()}")
        await asyncio.gather(*map(look, addresses))
        silent.close()

    run(scenario())


def test_a_tree_with_rights_says_to_whom_it_belongs(tmp_path: Path) -> None:
    """What is left where TLS was turned off again, and where nobody founded the cluster yet."""

    async def scenario() -> None:
        secured = SecuredServer(tmp_path)
        await secured.start()
        try:
            async with secured.opened("operator", "admin") as operator:
                assert [one async for one in walk_rights(operator, DOMAIN, is_mending=True)]
            bookie = secured.store("bookie", "bookie-0")
            said = await refused(bookie, lambda store: wait_cluster(store, PATHS, DOMAIN))
            assert "is founded by an operator, with `duramen access apply`" in said
            async with secured.opened("operator", "admin") as operator:
                await found_tree(operator, PATHS, DOMAIN)
        finally:
            await secured.stop()
        plain = EmbeddedZooKeeper(secured.data_dir, secured.port, log_file=secured.log_file)
        await plain.start()
        try:
            for wait in (wait_cluster, wait_own_cluster):
                store = ZooKeeperStore(plain.address, call_timeout_s=CALL_TIMEOUT_S)
                said = await refused(store, partial(wait, paths=PATHS, domain=None))
                assert said.startswith("this process has no identity, and the nodes of the cluster")
        finally:
            await plain.stop()

    run(scenario())
