"""What `duramen run` does in ZooKeeper before its services start: found, give rights, and be quick.

Source: docs/protocol/metadata-access.md "A local cluster", "Founding, and a tree that is there".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from duramen.cluster import local_identities
from duramen.cluster.layout import CLUSTER_NAME, ClusterSize, plan_cluster
from duramen.cluster.local_identities import LocalIdentities
from duramen.runtime.cluster_node import find_cluster, repeat_until_answered
from duramen.runtime.embedded_zookeeper import EmbeddedZooKeeper
from duramen.runtime.identity.folder import read_folder
from duramen.runtime.identity.names import IdentityError
from duramen.runtime.stores.access import open_rights
from duramen.runtime.stores.guarding import found_tree, is_guarded, open_tree, walk_rights
from duramen.runtime.stores.metadata_store import MetadataError, OutcomeUnknown, Unavailable
from duramen.runtime.stores.zookeeper_store import ZooKeeperStore
from duramen.wire.metadata_json import Paths
from tests.component.issuing_world import read_time
from tests.zookeeper_fixture import run

pytestmark = pytest.mark.zookeeper

PATHS = Paths(CLUSTER_NAME)
OTHER = "f" * 32


class Cluster:
    """A local cluster of which ZooKeeper alone runs."""

    def __init__(self, folder: Path) -> None:
        plans = plan_cluster(
            folder, ClusterSize(), base_port=0, has_zookeeper=True, remembered={}, security="on"
        )
        self.plans = plans
        self.identities = LocalIdentities(folder)
        self.identities.prepare(plans)
        held = read_folder(self.identities.operator_folder, read_time())
        self.domain = held.identity.domain
        server = plans[0]
        assert server.data_dir is not None
        self.mark = server.data_dir / "guarded"
        self.server = EmbeddedZooKeeper(
            server.data_dir, server.ports.data, log_file=folder / "zookeeper.log",
            identity_dir=self.identities.folder_of(server.node_id),
        )  # fmt: skip

    async def guard(self) -> None:
        await self.identities.guard_tree(self.server.address)

    def is_marked(self) -> bool:
        """Whether the next start with `none` is told that there is something to be opened."""
        return self.mark.exists()

    def open_store(self) -> ZooKeeperStore:
        return ZooKeeperStore(
            self.server.address, identity_dir=self.identities.operator_folder, call_timeout_s=20
        )

    async def found_other(self) -> ZooKeeperStore:
        """A store that is open, and in ZooKeeper the cluster of another CA."""
        store = self.open_store()
        await repeat_until_answered(store, lambda: found_tree(store, PATHS, OTHER))
        return store


def losing(step: Callable[..., Awaitable[Any]], errors: list[Exception]) -> Callable[..., Any]:
    """The step, of which the first answers are lost after it was done."""

    async def take(*args: Any) -> Any:
        result = await step(*args)
        if errors:
            raise errors.pop(0)
        return result

    return take


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
        assert not cluster.is_marked()
        await cluster.guard()
        assert cluster.is_marked()
        assert await is_guarded(store, cluster.domain)
        assert not [one async for one in walk_rights(store, cluster.domain, is_mending=False)]
        for name in ("walk_rights", "found_tree"):
            monkeypatch.delattr(local_identities, name)
        cluster.mark.unlink()
        await cluster.guard()
        assert cluster.is_marked(), "a start mends what somebody removed"
        await store.close()

    run(scenario())


def test_a_tree_that_was_opened_in_part_is_opened_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        await cluster.guard()
        store = cluster.open_store()
        await store.start()

        async def cut_off(_: ZooKeeperStore) -> int:
            raise MetadataError("nobody answers")

        with monkeypatch.context() as patched:
            patched.setattr(local_identities, "open_tree", cut_off)
            with pytest.raises(MetadataError):
                await cluster.identities.open_tree(cluster.server.address)
        assert cluster.is_marked(), "the next start begins again"
        assert await cluster.identities.open_tree(cluster.server.address) > 5
        assert not cluster.is_marked()
        assert not await is_guarded(store, cluster.domain)
        await cluster.guard()
        assert cluster.is_marked() and await is_guarded(store, cluster.domain)
        await store.close()

    run(scenario())


def test_a_tree_that_was_opened_for_migrate_is_walked_by_the_next_on(cluster: Cluster) -> None:
    """Else what is made meanwhile would be anybody's for ever."""

    async def scenario() -> None:
        assert not cluster.is_marked()
        cluster.identities.expect_guarded()
        assert cluster.is_marked(), "a writer's identity is enough to make nodes with rights"
        await cluster.guard()
        await cluster.identities.open_tree(cluster.server.address, is_last=False)
        assert cluster.is_marked()
        store = cluster.open_store()
        await store.start()
        await store.set_rights(PATHS.logs, open_rights(PATHS.logs))
        await cluster.guard()
        assert not [one async for one in walk_rights(store, cluster.domain, is_mending=False)]
        await store.close()

    run(scenario())


def test_answers_that_are_lost_end_no_start(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a disk stands still for longer than a session: nothing is wrong."""

    async def scenario() -> None:
        lost: list[Exception] = [OutcomeUnknown("lost"), Unavailable("lost"), OutcomeUnknown("")]
        monkeypatch.setattr(local_identities, "found_tree", losing(found_tree, lost))
        await cluster.guard()
        assert not lost and cluster.is_marked()
        store = cluster.open_store()
        await store.start()
        assert await is_guarded(store, cluster.domain)
        lost += [Unavailable("lost"), OutcomeUnknown("lost")]
        monkeypatch.setattr(local_identities, "open_tree", losing(open_tree, lost))
        await cluster.identities.open_tree(cluster.server.address)
        assert not lost and not cluster.is_marked()
        assert not await is_guarded(store, cluster.domain)
        await store.close()

    run(scenario())


def test_the_cluster_of_another_ca_is_left_alone(cluster: Cluster) -> None:
    async def scenario() -> None:
        store = await cluster.found_other()
        with pytest.raises(IdentityError, match=r"has the uuid f+, .*: move it away, with "):
            await cluster.guard()
        assert not cluster.is_marked()
        await store.close()

    run(scenario())


def test_what_is_opened_is_the_cluster_of_the_ca(cluster: Cluster) -> None:
    """Else the first service to come makes another, and the folder never asks again who calls."""

    async def scenario() -> None:
        store = cluster.open_store()
        await store.start()
        assert await cluster.identities.open_tree(cluster.server.address) == 0
        assert await find_cluster(store, PATHS) == cluster.domain
        assert set(await store.get_rights(PATHS.logs) or ()) == set(open_rights(PATHS.logs))
        await cluster.guard()
        await store.close()

    run(scenario())


def test_migrate_says_that_the_ca_is_anothers_and_none_goes_on(cluster: Cluster) -> None:
    async def scenario() -> None:
        store = await cluster.found_other()
        with pytest.raises(IdentityError, match=r"has the uuid f+, .*: move it away, with "):
            await cluster.identities.open_tree(cluster.server.address, is_last=False)
        await cluster.identities.open_tree(cluster.server.address)
        assert await find_cluster(store, PATHS) == OTHER
        await store.close()

    run(scenario())
