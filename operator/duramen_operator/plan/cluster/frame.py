"""What the manifests of one cluster share: its object, its spec, and what it is for good.

Read once for a plan. Called by the modules beside it. Pure.
"""

from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from duramen_operator.names import SECURITY_LABEL, make_labels
from duramen_operator.plan.cluster.foundation import (
    FoundationState,
    find_foundation,
    format_bundled_servers,
)
from duramen_operator.plan.observed import KubeObject, Observed
from duramen_operator.resources import LogCluster, LogClusterSpec
from duramen_operator.resources.clusters import CERT_MANAGER
from duramen_operator.resources.reading import parse_as


@dataclass(frozen=True, slots=True)
class ClusterFrame:
    """One cluster, as its parts need to know it."""

    observed: Observed
    cluster: KubeObject
    spec: LogClusterSpec
    found: FoundationState

    @classmethod
    def read(cls, observed: Observed, cluster: KubeObject) -> Self:
        """The cluster's frame.

        Raises:
            ResourceError: the LogCluster is not valid.
        """
        spec = parse_as(LogCluster, cluster.body).spec
        return cls(observed, cluster, spec, find_foundation(observed, cluster, spec))

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
    def is_held(self) -> bool:
        """Whether nothing may be made or changed: it is not clear, or cannot be kept, what cluster
        this is, its ZooKeeper is somebody else's and no longer named, it would let anybody in
        without having been told to, or it is to be secured, or no longer, while it runs."""
        is_lost = not self.is_bundled and self.spec.zookeeper.external is None
        is_unclear = bool(self.found.doubt) or self.found.is_taken or is_lost
        return is_unclear or self.is_open_unasked or self.is_security_changed

    @property
    def is_open_unasked(self) -> bool:
        """Whether nobody said that anybody may be let in. The API server asks for it where a spec
        is written; what was written before it asked runs on, and nothing of it is changed."""
        return not self.is_secured and not self.spec.accept_anybody

    @property
    def is_security_changed(self) -> bool:
        """Whether the spec says another `security` than the cluster has for good."""
        return self.spec.security != self.found.foundation.security

    @property
    def is_secured(self) -> bool:
        """Whether its processes have identities."""
        return bool(self.uuid)

    @property
    def trust(self) -> str:
        """The ConfigMap with what processes trust; "" where that lies beside their keys."""
        tls = self.spec.tls
        return tls.trust.name if tls.issuer == CERT_MANAGER and tls.trust is not None else ""

    @property
    def uuid(self) -> str:
        """The cluster's uuid, which its identities name; "" where it is not secured."""
        return self.found.foundation.uuid

    @property
    def is_bundled(self) -> bool:
        """Whether its ZooKeeper is the bundled one."""
        return self.found.foundation.is_bundled

    @property
    def members(self) -> int:
        """Of the bundled ensemble; 0 where it is somebody else's."""
        return self.found.foundation.members

    @property
    def zookeeper_servers(self) -> str:
        """Where its metadata is: the bundled ensemble, or the external servers, which may change
        their addresses. "" where those are no longer named."""
        if self.is_bundled:
            return format_bundled_servers(self.namespace, self.name, self.found.foundation)
        external = self.spec.zookeeper.external
        return external.servers if external is not None else ""

    @property
    def metadata_name(self) -> str:
        """What the cluster is called in its ZooKeeper."""
        return self.found.foundation.cluster

    @property
    def security(self) -> str:
        """What its processes are told by `--security`."""
        return self.found.foundation.security

    @property
    def anybody_arguments(self) -> list[str]:
        """What a process without an identity is told, which others reach."""
        is_told = self.spec.accept_anybody and not self.is_secured
        return ["--accept-anybody"] if is_told else []

    @property
    def cold_folder(self) -> str:
        """Where the cold store's claim is mounted; "" where it needs none."""
        cold = self.spec.cold_store
        if cold is None or cold.claim_name is None or not cold.url.startswith("file:"):
            return ""
        return urlsplit(cold.url).path

    def make_labels(self, component: str) -> dict[str, str]:
        """The labels of an object of this cluster."""
        secured = {SECURITY_LABEL: "on"} if self.is_secured else {}
        return make_labels(self.name, component) | secured
