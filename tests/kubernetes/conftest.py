"""Fixtures: a real Kubernetes for the tests of this folder, one of each size for a whole run.

`api_server` stores and checks objects; `kwok_cluster` has controllers and nine fake nodes too;
`kubelet` is the cluster of real nodes that `python -m tests.kubernetes.cluster` started and runs
these tests in. What the machine lacks skips the test with that reason; where the environment has
DURAMEN_KUBERNETES_REQUIRED, as in CI, it fails instead. CONTRIBUTING.md says how to run them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kubernetes.cluster import binaries, inside
from tests.kubernetes.cluster.control_plane import ControlPlane, Tier
from tests.kubernetes.cluster.handle import ClusterHandle


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`make test` leaves out what needs controllers: it runs for minutes."""
    for item in items:
        if "kwok_cluster" in getattr(item, "fixturenames", ()):
            item.add_marker("kwok")


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterHandle]:
    """etcd and kube-apiserver: ready in four seconds, 0.3 GB, no root."""
    require(binaries.reason_missing(binaries.COMMANDS))
    with running(tmp_path_factory.mktemp("api"), Tier.API) as handle:
        yield handle


@pytest.fixture(scope="session")
def kwok_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterHandle]:
    """Controllers, scheduler and nine fake nodes as well: six seconds, 0.5 GB, no root."""
    require(binaries.reason_missing((*binaries.COMMANDS, *binaries.CONTROLLERS)))
    with running(tmp_path_factory.mktemp("kwok"), Tier.KWOK) as handle:
        yield handle


@pytest.fixture(scope="session")
def kubelet() -> inside.RealCluster:
    """The cluster of real nodes around this run of pytest."""
    found = inside.find_cluster()
    if found is None:
        # Not `require`: only what runs inside such a cluster can have one.
        pytest.skip("not inside a cluster of real nodes: make test-kubernetes starts one")
    return found


@contextmanager
def running(folder: Path, tier: Tier) -> Iterator[ClusterHandle]:
    """A cluster that ends with the block."""
    plane = ControlPlane(folder, tier)
    try:
        plane.start()
        yield ClusterHandle(
            plane.kubeconfig, plane.url, plane.token, plane.certificate, plane.folder
        )
    finally:
        plane.stop()


def require(reason: str | None) -> None:
    """Skip, or fail where nothing may be skipped, for this reason; go on when there is none."""
    if reason is not None:
        if os.environ.get("DURAMEN_KUBERNETES_REQUIRED"):
            pytest.fail(reason)
        pytest.skip(reason)
