"""Fixtures: a real Kubernetes for the tests of this folder, one of each size for a whole run.

`api_server` stores and checks objects; `kwok_cluster` has controllers and nine fake nodes too;
`kubelet` is the cluster of real nodes that `python -m tests.kubernetes.cluster` started and runs
these tests in. What needs one of them, or a program that is built with them, gets the mark
`kubernetes`: `make test-kubernetes` runs it, and `make test` the others. CONTRIBUTING.md says how.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kubernetes.cluster import binaries, inside
from tests.kubernetes.cluster.control_plane import ControlPlane, Tier
from tests.kubernetes.cluster.handle import ClusterHandle
from tests.requirements import Need, leave_out, leave_out_if

CHART = Path(__file__).resolve().parent / "chart"
BUILT = frozenset({"api_server", "kwok_cluster", "kubelet"})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a built Kubernetes, or the helm, promtool and checkov that come with it."""
    for item in items:
        is_charted = CHART in item.path.parents
        if is_charted or not BUILT.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker("kubernetes")


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterHandle]:
    """etcd and kube-apiserver: ready in four seconds, 0.3 GB, no root."""
    leave_out_if(Need.KUBERNETES, binaries.reason_missing(binaries.COMMANDS))
    with running(tmp_path_factory.mktemp("api"), Tier.API) as handle:
        yield handle


@pytest.fixture(scope="session")
def kwok_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterHandle]:
    """Controllers, scheduler and nine fake nodes as well: six seconds, 0.5 GB, no root."""
    programs = (*binaries.COMMANDS, *binaries.CONTROLLERS)
    leave_out_if(Need.KUBERNETES, binaries.reason_missing(programs))
    with running(tmp_path_factory.mktemp("kwok"), Tier.KWOK) as handle:
        yield handle
        assert not list_lost_nodes(handle), "pods of then stay unready: any test may fail for it"


@pytest.fixture(scope="session")
def kubelet() -> inside.RealCluster:
    """The cluster of real nodes around this run of pytest."""
    found = inside.find_cluster()
    if found is None:
        leave_out(Need.REAL_NODES, "this run is not inside a cluster of them")
    return found


def list_lost_nodes(cluster: ClusterHandle) -> list[str]:
    """Fake nodes that were called lost at some time in the last hour."""
    events = cluster.list("events.events.k8s.io", "default")
    return [one["regarding"]["name"] for one in events if one["reason"] == "NodeNotReady"]


@contextmanager
def running(folder: Path, tier: Tier) -> Iterator[ClusterHandle]:
    """A cluster that ends with the block."""
    plane = ControlPlane(folder, tier)
    try:
        plane.start()
        handle = ClusterHandle(
            plane.kubeconfig, plane.url, plane.token, plane.certificate, plane.folder
        )
        with contextlib.closing(handle):
            yield handle
    finally:
        plane.stop()
