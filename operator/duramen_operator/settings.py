"""What the operator is told at its start, by flags or the environment; constant while it runs.

No defaults that name a place: the chart gives namespace and images. Read by `main.py`.
"""

import os
import socket
from dataclasses import dataclass, field

from duramen_operator.names import (
    ADMIN_PORTS,
    DATA_PORTS,
    OPERATOR_HEALTH_PORT,
    OPERATOR_METRICS_PORT,
    WRITE_PROXY,
    name_component,
)
from duramen_operator.plan.observed import Images

RESYNC_S = 30.0
"""A pass at least this often, whether or not anything woke the worker: what a lost event costs."""


def name_process() -> str:
    """A name that no other process has at the same time, off Kubernetes."""
    return f"{socket.gethostname()}_{os.getpid()}"


@dataclass(frozen=True, slots=True)
class Settings:
    """What the operator serves, and how."""

    namespace: str
    identity: str = field(default_factory=name_process)
    """Who it is in the Lease. The name of its pod, so that a container that is started again in
    the same pod need not wait for itself."""
    images: Images = Images()
    write_url: str = ""
    """Where the write proxies of a cluster are, with `{cluster}` in it, and `{pod}` where it has
    identities; empty: their service, or the pods' own names."""
    admin_url: str = ""
    """The same for their admin port."""
    resync_s: float = RESYNC_S
    host: str = "0.0.0.0"
    health_port: int = OPERATOR_HEALTH_PORT
    metrics_port: int = OPERATOR_METRICS_PORT

    def find_write_url(self, cluster: str) -> str:
        """Where appends, namespaces and logs of a cluster are served."""
        port = DATA_PORTS[WRITE_PROXY]
        given = self.write_url.format(cluster=cluster, pod="")
        return given or self._name_service(cluster, port)

    def find_admin_url(self, cluster: str) -> str:
        """Where `/v1/cluster/…` of a cluster is served."""
        port = ADMIN_PORTS[WRITE_PROXY]
        given = self.admin_url.format(cluster=cluster, pod="")
        return given or self._name_service(cluster, port)

    def find_pod_urls(self, cluster: str, pod: str, host: str) -> tuple[str, str]:
        """Where one write proxy with an identity is: its public port and its admin port.

        Args:
            host: its own name in DNS.
        """
        public = f"https://{host}:{DATA_PORTS[WRITE_PROXY]}"
        admin = f"https://{host}:{ADMIN_PORTS[WRITE_PROXY]}"
        return (
            self.write_url.format(cluster=cluster, pod=pod) or public,
            self.admin_url.format(cluster=cluster, pod=pod) or admin,
        )

    def _name_service(self, cluster: str, port: int) -> str:
        return f"http://{name_component(cluster, WRITE_PROXY)}.{self.namespace}.svc:{port}"
