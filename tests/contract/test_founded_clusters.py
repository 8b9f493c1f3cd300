"""What `duramen run` does in ZooKeeper before its services start: found, give rights, and be quick.

Source: docs/protocol/metadata-access.md "A local cluster", "Founding, and a tree that is there".
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from duramen.cluster import local_identities
from duramen.cluster.layout import CLUSTER_NAME, ClusterSize, plan_cluster
from duramen.cluster.local_identities import LocalIdentities, refuse_guarded
from duramen.runtime.embedded_zookeeper import EmbeddedZooKeeper
from duramen.runtime.identity.folder import read_folder
from duramen.runtime.identity.names import IdentityError
from duramen.runtime.stores.guarding import found_tree, is_guarded, walk_rights
from duramen.runtime.stores.zookeeper_store import ZooKeeperStore
from duramen.wire.metadata_json import Paths
from tests.component.issuing_world import read_time
from tests.zookeeper_fixture import run

pytestmark = pytest.mark.zookeeper

PATHS = Paths(CLUSTER_NAME)


class Cluster:
    """A local cluster of which ZooKeeper alone runs."""

    def __init__(self, folder: Path) -> None:
        plans = plan_cluster(
            folder, ClusterSize(), base_port=0, has_zookeeper=True, remembered={}, is_secure=True
        )
        self.plans = plans
        self.identities = LocalIdentities(folder)
        self.identities.prepare(plans)
        held = read_folder(self.identities.operator_folder, read_time())
        self.domain = held.identity.domain
        server = plans[0]
        assert server.data_dir is not None
        self.server = EmbeddedZooKeeper(
            server.data_dir, server.ports.data, log_file=folder / "zookeeper.log",
            identity_dir=self.identities.folder_of(server.node_id),
        )  # fmt: skip

    async def guard(self) -> None:
        await self.identities.guard_tree(self.server.address)

    def open_store(self) -> ZooKeeperStore:
        return ZooKeeperStore(
            self.server.address, identity_dir=self.identities.operator_folder, call_timeout_s=20
        )


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    run(made.server.start())
    yield made
    run(made.server.stop())


def test_a_tree_is_walked_until_it_was_done_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        store = cluster.open_store()
        await store.start()
        # A walk that is cut off, as by Ctrl-C: what it came to is mended.
        await found_tree(store, PATHS, cluster.domain)
        async for _ in walk_rights(store, cluster.domain, is_mending=True):
            break
        assert not await is_guarded(store, cluster.domain)
        refuse_guarded(cluster.plans)
        await cluster.guard()
        with pytest.raises(IdentityError, match="as it ran with --security on"):
            refuse_guarded(cluster.plans)
        refuse_guarded(cluster.plans[1:])
        assert await is_guarded(store, cluster.domain)
        assert not [one async for one in walk_rights(store, cluster.domain, is_mending=False)]
        for name in ("walk_rights", "found_tree"):
            monkeypatch.delattr(local_identities, name)
        await cluster.guard()
        await store.close()

    run(scenario())


def test_the_cluster_of_another_ca_is_left_alone(cluster: Cluster) -> None:
    async def scenario() -> None:
        store = cluster.open_store()
        await store.start()
        await found_tree(store, PATHS, "f" * 32)
        with pytest.raises(IdentityError, match=r"has the uuid f+, .*: move it away, with "):
            await cluster.guard()
        refuse_guarded(cluster.plans)
        await store.close()

    run(scenario())
