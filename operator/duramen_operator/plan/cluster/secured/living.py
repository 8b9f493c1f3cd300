"""Every node that is to have an identity now: those that are wished, and bookies that are there.

A bookie whose set has gone or cannot be read still runs on its disk, so it goes on having one.

Called by the operator's issuer and by `cert_manager`. Pure.
Source: docs/kubernetes/security.md "Renewal".
"""

from __future__ import annotations

from collections.abc import Iterator

from duramen_operator.names import BOOKIE
from duramen_operator.plan.cluster.bookies import SetFrame, read_set
from duramen_operator.plan.cluster.frame import ClusterFrame
from duramen_operator.plan.cluster.nodes import Node, list_hosts, list_nodes, name_pod_service
from duramen_operator.resources import ResourceError


def list_living(frame: ClusterFrame) -> tuple[Node, ...]:
    """All of them; none twice."""
    named = list_nodes(frame, tuple(_read_sets(frame)))
    known = {(node.role, node.name) for node in named}
    more = (node for node in _list_bookies(frame) if (node.role, node.name) not in known)
    return (*named, *more)


def _read_sets(frame: ClusterFrame) -> Iterator[SetFrame]:
    for item in frame.observed.list("BookieSet"):
        try:
            yield read_set(frame, item)
        except ResourceError:
            continue  # its bookies are those that are there


def _list_bookies(frame: ClusterFrame) -> Iterator[Node]:
    """Those that are there, of whatever set: one that drains, or whose set cannot be read."""
    service = name_pod_service(frame.name, BOOKIE)
    for item in frame.observed.list("Bookie"):
        yield Node(BOOKIE, item.name, list_hosts(item.name, service, frame.namespace))
