"""A namespace with an operator, for tests of clusters in tier kwok: restricted pods alone.

Used by `test_clusters`, `test_secured` and `test_two_operators`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from tests.kubernetes.cluster.handle import ClusterHandle
from tests.kubernetes.controllers.admin_twin import AdminTwin, running_twin
from tests.kubernetes.controllers.mortals import operated
from tests.kubernetes.controllers.operators import (
    RESYNC_S,
    SETTLE_S,
    Objects,
    install_definitions,
    wait_for_objects,
)

RESTRICTED = {"pod-security.kubernetes.io__enforce": "restricted"}
ZONES = [{"region": f"r{region}", "zone": f"r{region}-k{region}"} for region in range(3)]
SIZES = {"journal": {"size": "1Gi"}, "ledgers": {"size": "2Gi"}}
MADE = "statefulsets,deployments,services,poddisruptionbudgets,horizontalpodautoscalers,bookies"


CALLS_OF_THREE_PASSES = 9
"""The twin is asked three times a pass and more."""


class Ground(Objects):
    """A namespace with an operator."""

    def __init__(self, cluster: ClusterHandle, namespace: str, twin: AdminTwin) -> None:
        super().__init__(cluster, namespace)
        self.twin = twin

    def install(self, name: str = "main", *, replicas: int = 3, **spec: Any) -> None:
        """A LogCluster with a BookieSet, and wait until it is ready."""
        wanted = {"security": "none", "acceptAnybody": True, "domains": ZONES, **spec}
        self.apply("LogCluster", name, wanted)
        self.apply("BookieSet", name, {"clusterName": name, "replicas": replicas, **SIZES})
        self.wait("LogCluster", name, "True/AsWanted")

    def pods(self, component: str = "bookie") -> list[dict[str, Any]]:
        """The pods of a component."""
        selector = f"app.kubernetes.io/component={component}"
        return self.cluster.list("pods", self.namespace, selector)

    def uids(self, kind: str) -> dict[str, str]:
        """Name to uid of everything of these kinds."""
        return {
            f"{one['kind']}/{one['metadata']['name']}": one["metadata"]["uid"]
            for one in self.list(kind)
        }

    def wait_another(self, kind: str, name: str, old: str) -> None:
        """Until an object of that name is there again, and not the old one."""
        wait_for_objects(lambda: self.uids(kind).get(name, old) != old, SETTLE_S, f"a new {name}")

    def message(self, kind: str, name: str, condition: str) -> str:
        """What a condition says."""
        item = self.find(kind, name) or {}
        conditions = item["status"]["conditions"]
        return next(str(one["message"]) for one in conditions if one["type"] == condition)


@contextmanager
def ground(
    cluster: ClusterHandle, *, resync_s: float = RESYNC_S, spared: Collection[str] = ()
) -> Iterator[Ground]:
    """A fresh namespace with an operator; `spared`: as of `operated`."""
    install_definitions(cluster)
    with (
        cluster.namespace(**RESTRICTED) as namespace,
        running_twin() as twin,
        operated(cluster, namespace, twin.url, resync_s=resync_s, spared=spared),
    ):
        yield Ground(cluster, namespace, twin)
