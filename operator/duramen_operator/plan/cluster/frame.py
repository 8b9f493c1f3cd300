"""What the manifests of one cluster share: its object, its spec, and where its ZooKeeper is.

Read once for a plan. Called by the modules beside it. Pure.
"""

from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

from duramen_operator.names import (
    ZOOKEEPER,
    ZOOKEEPER_CLIENT_PORT,
    make_labels,
    name_component,
    name_zookeeper_client,
)
from duramen_operator.plan.observed import KubeObject, Observed
from duramen_operator.resources import LogCluster, LogClusterSpec
from duramen_operator.resources.reading import parse_as


@dataclass(frozen=True, slots=True)
class Frame:
    """One cluster, as its parts need to know it."""

    observed: Observed
    cluster: KubeObject
    spec: LogClusterSpec

    @classmethod
    def read(cls, observed: Observed, cluster: KubeObject) -> Self:
        """The cluster's frame.

        Raises:
            ResourceError: the LogCluster is not valid.
        """
        return cls(observed, cluster, parse_as(LogCluster, cluster.body).spec)

    @property
    def name(self) -> str:
        return self.cluster.name

    @property
    def namespace(self) -> str:
        return self.observed.namespace

    @property
    def image(self) -> str:
        return self.spec.image or self.observed.images.services

    @property
    def zookeeper_image(self) -> str:
        return self.spec.zookeeper.image or self.observed.images.zookeeper

    @property
    def is_bundled(self) -> bool:
        """Whether its ZooKeeper is the bundled one."""
        return self.zookeeper_servers == self._bundled_servers

    @property
    def zookeeper_servers(self) -> str:
        """Where its metadata is: the bundled ensemble's service, or the external servers.

        What exists counts before what is wished: a cluster cannot move from one kind to the other,
        and services that looked into an empty ensemble would found a second cluster there.
        """
        external = self.spec.zookeeper.external
        there = self._find_servers()
        if there == self._bundled_servers:
            return there
        if external is None:
            return there or self._bundled_servers
        return external.servers

    @property
    def metadata_name(self) -> str:
        """What the cluster is called in its ZooKeeper.

        An ensemble of somebody else's may serve several namespaces of Kubernetes, in each of which
        a LogCluster may have this name: two clusters under one name would be one. Once services
        run under a name, it stays: under another one they would found a second cluster.
        """
        there = self._find_argument("--cluster")
        if there:
            return there
        external = self.spec.zookeeper.external
        if self.is_bundled or external is None:
            return self.name
        return external.cluster or f"{self.namespace}.{self.name}"

    @property
    def cold_folder(self) -> str:
        """Where the cold store's claim is mounted; "" where it needs none."""
        cold = self.spec.cold_store
        if cold is None or cold.claim_name is None or not cold.url.startswith("file:"):
            return ""
        return urlsplit(cold.url).path

    def make_labels(self, component: str) -> dict[str, str]:
        """The labels of an object of this cluster."""
        return make_labels(self.name, component)

    @property
    def _bundled_servers(self) -> str:
        host = f"{name_zookeeper_client(self.name)}.{self.namespace}.svc"
        return f"{host}:{ZOOKEEPER_CLIENT_PORT}"

    def _find_servers(self) -> str:
        """The servers that the cluster's services use now; "" where there are none yet."""
        if self.observed.find("StatefulSet", name_component(self.name, ZOOKEEPER)):
            return self._bundled_servers
        return self._find_argument("--zookeeper")

    def _find_argument(self, flag: str) -> str:
        """What the cluster's StatefulSets are started with."""
        found = (read_argument(s, flag) for s in self.observed.list("StatefulSet"))
        return next((value for value in found if value), "")


def read_argument(workload: KubeObject, flag: str) -> str:
    """What a workload's first container is started with; "" without that flag."""
    containers: Any = workload.spec.get("template", {}).get("spec", {}).get("containers") or ({},)
    arguments = [*(containers[0].get("args") or ())]
    index = arguments.index(flag) + 1 if flag in arguments else len(arguments)
    return str(arguments[index]) if index < len(arguments) else ""
