"""The pods of a cluster that have an identity: role, name, hosts; and the Secrets that hold keys.

One list for whoever issues and for whoever mounts: what stands here has a certificate, and what
does not has none. Proxies are listed up to the most that an autoscaler may make, since an identity
has to be there before its pod is.

Called by the modules beside it that make pods, and by the operator's issuer. Pure.
Source: docs/kubernetes/security.md "Which key lies where".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from duramen_operator.names import (
    ARCHIVE,
    BOOKIE,
    CLUSTER_DOMAIN,
    READ_PROXY,
    SEQUENCER,
    WRITE_PROXY,
    ZOOKEEPER,
    name_component,
    shorten,
)
from duramen_operator.plan.cluster.frame import ClusterFrame
from duramen_operator.plan.cluster.spread import DomainShare
from duramen_operator.resources.clusters import Proxies

CA: Final = "ca"
PUBLIC: Final = "public"
OPERATOR_IDENTITY: Final = "operator"
MONITOR: Final = "monitor"
SECRET_OF_ROLE: Final[Mapping[str, str]] = {
    BOOKIE: "bookies",
    SEQUENCER: "sequencers",
    ZOOKEEPER: "zookeeper",
    WRITE_PROXY: "writeproxies",
    READ_PROXY: "readproxies",
}
"""Which Secret holds the keys of a role's pods."""
SOLE_IDENTITIES: Final = (OPERATOR_IDENTITY, MONITOR, ARCHIVE)
"""Secrets of one identity each, of which role and name are the Secret's word."""
SECRETS: Final = (CA, *SECRET_OF_ROLE.values(), PUBLIC, *SOLE_IDENTITIES)
"""What a cluster's Secrets are called behind its name."""


class Node(NamedTuple):
    """A pod that has an identity: its role, its name (`--id`), and how others call it."""

    role: str
    name: str
    hosts: tuple[str, ...]


class SharedSet(Protocol):
    """A BookieSet, as far as its bookies are asked for."""

    @property
    def shares(self) -> tuple[DomainShare, ...]: ...


def list_nodes(frame: ClusterFrame, sets: Sequence[SharedSet]) -> tuple[Node, ...]:
    """Every pod of the cluster that needs an identity; none twice."""
    return tuple(
        Node(role, name, list_hosts(name, name_pod_service(frame.name, role), frame.namespace))
        for role, name in _list_pods(frame, sets)
    )


def list_hosts(pod: str, service: str, namespace: str) -> tuple[str, ...]:
    """How a pod is called by those inside, from the shortest name to the whole one."""
    whole = f".{namespace}.svc.{CLUSTER_DOMAIN}"
    ends = ("", f".{namespace}", f".{namespace}.svc", whole)
    return tuple(f"{pod}.{service}{end}" for end in ends)


def list_public_hosts(frame: ClusterFrame) -> tuple[str, ...]:
    """What the certificate of the proxies' public ports has to name: their Services, each proxy by
    the name that it is registered with, and what people call them."""
    hosts: list[str] = []
    for role in (WRITE_PROXY, READ_PROXY):
        service = name_component(frame.name, role)
        hosts += [host.removeprefix("*.") for host in list_hosts("*", service, frame.namespace)]
        hosts.append(f"*.{name_pod_service(frame.name, role)}.{frame.namespace}.svc")
    # People come by a port-forward.
    return (*hosts, "localhost", *frame.spec.public_names)


def name_secret(cluster: str, which: str) -> str:
    """The name of one of a cluster's Secrets; `which` is one of SECRETS."""
    assert which in SECRETS, which
    return shorten(f"{cluster}-{which}")


def name_own_secret(node: str) -> str:
    """The Secret of one node, where each has one: what cert-manager issues."""
    return f"{node}-tls"


def name_pod_service(cluster: str, role: str) -> str:
    """The headless Service that gives the pods of a role their names in DNS.

    The Services of proxies are for clients, so their pods have another one.
    """
    if role in (WRITE_PROXY, READ_PROXY):
        return shorten(f"{cluster}-{role}-pods")
    return name_component(cluster, role)


def name_pods(frame: ClusterFrame, role: str, count: int | None = None) -> tuple[str, ...]:
    """The pods of a role but bookies, as many as there may be, or so many."""
    spec = frame.spec
    counts = {
        SEQUENCER: spec.sequencers.replicas,
        ZOOKEEPER: frame.members,
        WRITE_PROXY: _count_most(spec.write_proxies),
        READ_PROXY: _count_most(spec.read_proxies),
    }
    workload = name_component(frame.name, role)
    return tuple(f"{workload}-{index}" for index in range(counts[role] if count is None else count))


def _list_pods(frame: ClusterFrame, sets: Sequence[SharedSet]) -> Iterator[tuple[str, str]]:
    for own in sets:
        for share in own.shares:
            yield from ((BOOKIE, name) for name in share.bookies)
    for role in (SEQUENCER, ZOOKEEPER, WRITE_PROXY, READ_PROXY):
        yield from ((role, name) for name in name_pods(frame, role))


def _count_most(proxies: Proxies) -> int:
    scaling = proxies.autoscaling
    return proxies.replicas if scaling is None else scaling.max_replicas
