"""Which write proxies of a secured cluster are asked, and where.

A Service's name stands in no node's certificate, so each pod is called by its own name in DNS, as
Kubernetes gives it: host name and subdomain of the pod. The pod's name is that of its identity.

Called by `serving.cluster_admin`. Pure. Source: docs/kubernetes/security.md "Which key lies where".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from duramen_operator.names import COMPONENT_LABEL, FOUNDATION, WRITE_PROXY, name_component
from duramen_operator.plan.cluster.foundation import Foundation
from duramen_operator.plan.cluster.frame import ClusterFrame
from duramen_operator.plan.evictions.lives import is_ready
from duramen_operator.plan.observed import Observed
from duramen_operator.resources import ResourceError
from duramen_operator.settings import Settings


class WriteProxyPod(NamedTuple):
    """One write proxy: the name of its identity, and the URLs of its ports."""

    pod: str
    public_url: str
    admin_url: str


class NotFoundedError(Exception):
    """A cluster is to be secured, and nothing says yet which cluster it is."""


def find_domain(seen: Observed) -> str | None:
    """The uuid that identities of this cluster name; None: it asks nobody who calls.

    What the cluster is for good says so, not its spec, which anybody who edits it may change.

    Raises:
        NotFoundedError: the spec says `on`, and there is no record of the cluster.
    """
    cluster = seen.cluster
    assert cluster is not None, "only what has a LogCluster is looked at"
    record = seen.find("ConfigMap", name_component(cluster.name, FOUNDATION))
    found = None
    if record is not None and cluster.uid in record.owner_uids:
        found = Foundation.read(record)
    if found is not None:
        return found.uuid or None
    if cluster.spec.get("security") != "none":
        raise NotFoundedError
    return None


def find_trust(seen: Observed) -> str:
    """The ConfigMap with what the cluster's processes trust; "" where that lies beside keys."""
    try:
        frame = None if seen.cluster is None else ClusterFrame.read(seen, seen.cluster)
    except ResourceError:
        frame = None  # then the Secret has it, or what it has is refused
    return "" if frame is None else frame.trust


def list_places(seen: Observed, settings: Settings) -> tuple[WriteProxyPod, ...]:
    """The write proxies that are ready, by name."""
    return tuple(_list_places(seen, settings))


def _list_places(seen: Observed, settings: Settings) -> Iterator[WriteProxyPod]:
    for pod in seen.list("Pod"):
        is_proxy = pod.labels.get(COMPONENT_LABEL) == WRITE_PROXY
        if not is_proxy or pod.is_leaving or not is_ready(seen, pod.name):
            continue
        host, service = pod.spec.get("hostname"), pod.spec.get("subdomain")
        if host and service:
            name = f"{host}.{service}.{seen.namespace}.svc"
            urls = settings.find_pod_urls(seen.cluster_name, pod.name, name)
            yield WriteProxyPod(pod.name, *urls)
