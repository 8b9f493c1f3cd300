"""What is known of a cluster: its objects, its pods, and what its own administration answers.

Every source gives its answer or a sentence why there is none, and one that fails leaves the others
shown. Only the LogCluster itself must be there. Sources are asked at the same time. The services'
administration is reached through the API server's proxy, which needs `get` on `services/proxy`.

Called by `status` and `bundle`. Source: docs/kubernetes/kubectl.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from duramen_operator.names import ADMIN_PORTS, CLUSTER_LABEL, WRITE_PROXY, name_component
from kubectl_duramen.access import AccessError, Kubectl, Trouble
from kubectl_duramen.serving_operator import find_silence

Document = dict[str, Any]

CUSTOM: Final = (
    "bookiesets", "bookies", "lognamespaces", "logs", "loggrants", "archivepolicies",
)  # fmt: skip
ADMIN: Final[Mapping[str, str]] = {
    "owners": "/v1/cluster/owners",
    "registered": "/v1/cluster/bookies",
    "repair": "/v1/cluster/repair",
}
"""Name of the source → path on a write proxy's administration."""

OPERATOR: Final = "operator"
"""The source that says whether one serves."""

ASKS_WHO_CALLS: Final = (
    "it asks who calls, and the API server's proxy shows no certificate; objects are a moment older"
)

_THREADS: Final = 6


@dataclass
class Snapshot:
    """A cluster at one moment, and what could not be learnt.

    Attributes:
        objects: plural → the objects of this cluster; `pods` among them.
        admin: source → answer.
        unknown: source → why there is no answer.
        silence: why no operator writes what the objects say; None: one does, or it is unknown.
    """

    cluster: Document
    objects: dict[str, list[Document]] = field(default_factory=dict)
    admin: dict[str, Document] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    silence: str | None = None

    @property
    def name(self) -> str:
        """The LogCluster's."""
        return str(self.cluster["metadata"]["name"])


def find_cluster(kubectl: Kubectl, name: str | None) -> Document:
    """The LogCluster of that name, or the only one.

    Raises:
        AccessError: there is none, or more than one and no name.
    """
    found = kubectl.list_custom("logclusters")
    names = [cluster["metadata"]["name"] for cluster in found]
    if name is not None:
        for cluster in found:
            if cluster["metadata"]["name"] == name:
                return cluster
        there = f"there {'is' if len(names) == 1 else 'are'} {', '.join(names)}" if names else ""
        text = f"no LogCluster {name} in namespace {kubectl.namespace}; {there}".rstrip("; ")
        raise AccessError(Trouble.NOT_FOUND, text, None if not names else "choose with --cluster")
    if not found:
        raise AccessError(
            Trouble.NOT_FOUND,
            f"no LogCluster in namespace {kubectl.namespace}",
            "choose with --namespace; kubectl get logclusters --all-namespaces shows where one is",
        )
    if len(found) > 1:
        text = f"{len(found)} LogClusters in namespace {kubectl.namespace}: {', '.join(names)}"
        raise AccessError(Trouble.OTHER, text, "choose with --cluster")
    return found[0]


def is_secured(cluster: Document) -> bool:
    """Whether a LogCluster asks who calls; the API server writes it out where it was left out."""
    return bool(cluster.get("spec", {}).get("security") == "on")


def look(kubectl: Kubectl, cluster: Document) -> Snapshot:
    """Ask every source about a cluster."""
    snapshot = Snapshot(cluster)
    name, namespace = snapshot.name, kubectl.namespace
    service = quote(name_component(name, WRITE_PROXY))
    port = ADMIN_PORTS[WRITE_PROXY]
    root = f"/api/v1/namespaces/{quote(namespace)}/services/http:{service}:{port}/proxy"
    wanted: dict[str, Callable[[], Any]] = {
        plural: partial(_list_mine, kubectl, plural, name) for plural in CUSTOM
    }
    wanted[OPERATOR] = partial(find_silence, kubectl)
    label = f"{CLUSTER_LABEL}={name}"
    wanted["pods"] = partial(kubectl.list_plain, "pods", labelSelector=label)
    if is_secured(cluster):
        snapshot.unknown["administration"] = ASKS_WHO_CALLS
    else:
        for source, path in ADMIN.items():
            wanted[source] = partial(kubectl.get, root + path)
    for source, answer in ask_all(wanted).items():
        if isinstance(answer, AccessError):
            snapshot.unknown[source] = str(answer)
        elif source == OPERATOR:
            snapshot.silence = answer
        elif source in ADMIN:
            snapshot.admin[source] = answer
        else:
            snapshot.objects[source] = answer
    return snapshot


def ask_all(wanted: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """The answer of each, or its `AccessError`; several are under way at a time."""

    def ask(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except AccessError as error:
            return error

    with ThreadPoolExecutor(_THREADS) as pool:
        return dict(zip(wanted, pool.map(ask, wanted.values()), strict=True))


def _list_mine(kubectl: Kubectl, plural: str, cluster: str) -> list[Document]:
    found = kubectl.list_custom(plural)
    return [one for one in found if one.get("spec", {}).get("clusterName") == cluster]
