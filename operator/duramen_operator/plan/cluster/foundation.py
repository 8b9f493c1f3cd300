"""What a cluster is for good: its name in its ZooKeeper, whose ZooKeeper that is, of how many.

Services with another name, or an ensemble of another size, would be a second cluster beside the
first one's data. So none of it is read from what runs, which anybody may edit: it is wished once in
the LogCluster, and stands from then on in a ConfigMap that the API server lets nobody change. While
there is none (an upgrade, a restored backup) one is made if what runs agrees with the LogCluster.

A new bundled ensemble needs a permit as well, another ConfigMap: while it is there, and at no other
time, a member may make an empty database. Nobody gets one where ZooKeeper has a disk already.
Called by `frame` and `plan`. Pure. Explained in ADR 0022.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Self

from duramen_operator.names import (
    FOUNDATION,
    FOUNDING,
    ZOOKEEPER,
    ZOOKEEPER_CLIENT_PORT,
    make_labels,
    name_component,
    name_zookeeper_client,
)
from duramen_operator.plan.manifests import make_manifest
from duramen_operator.plan.observed import Json, KubeObject, Observed
from duramen_operator.resources import LogClusterSpec

CLAIM: Final = "data"
"""The claim template of ZooKeeper's members."""

PERMIT_KEY: Final = "founding"
PERMITTED: Final = "true"
_BUNDLED, _EXTERNAL = "bundled", "external"
_CONFIG_MAP: Final = ("v1", "ConfigMap")


@dataclass(frozen=True, slots=True)
class Foundation:
    """What never changes of a cluster."""

    cluster: str
    """What it is called in its ZooKeeper."""
    members: int
    """Of the bundled ensemble; 0 where the ensemble is somebody else's."""

    @classmethod
    def wish(cls, namespace: str, name: str, spec: LogClusterSpec) -> Self:
        """As the LogCluster says.

        An ensemble of somebody else's may serve several namespaces of Kubernetes, in each of which
        a LogCluster may have this name: two clusters under one name would be one.
        """
        external = spec.zookeeper.external
        if external is None:
            return cls(name, spec.zookeeper.members)
        return cls(external.cluster or f"{namespace}.{name}", 0)

    @classmethod
    def read(cls, record: KubeObject) -> Self | None:
        """As the record says; None where it is no record of ours."""
        data = record.body.get("data") or {}
        cluster, kind = str(data.get("cluster", "")), data.get("zookeeper")
        members = str(data.get("members", "0"))
        if not cluster or not re.fullmatch(r"[0-9]", members):
            return None
        if kind != (_BUNDLED if int(members) else _EXTERNAL):
            return None
        return cls(cluster, int(members))

    @property
    def is_bundled(self) -> bool:
        """Whether its ZooKeeper is the bundled one."""
        return self.members > 0

    def make_record(self, owner: KubeObject) -> Json:
        """The ConfigMap that keeps it."""
        data = {"cluster": self.cluster, "zookeeper": _EXTERNAL}
        if self.is_bundled:
            data |= {"zookeeper": _BUNDLED, "members": str(self.members)}
        name = name_component(owner.name, FOUNDATION)
        labels = make_labels(owner.name, FOUNDATION)
        return make_manifest(_CONFIG_MAP, name, labels, owner, data=data, immutable=True)


@dataclass(frozen=True, slots=True)
class FoundationState:
    """What is known of a cluster's foundation."""

    foundation: Foundation
    doubt: str = ""
    """Why nothing may be made or changed, for people."""
    is_taken: bool = False
    """Whether somebody else has an object of the record's name, so that there can be none."""
    is_new: bool = False
    """Whether nothing of a bundled ensemble is there, and nothing says that there ever was."""


def find_foundation(
    observed: Observed, cluster: KubeObject, spec: LogClusterSpec
) -> FoundationState:
    """The record; where there is none the wish, and whether what runs agrees with it."""
    wished = Foundation.wish(observed.namespace, cluster.name, spec)
    record = observed.find("ConfigMap", name_component(cluster.name, FOUNDATION))
    if record is not None and cluster.uid not in record.owner_uids:
        return FoundationState(wished, is_taken=True)
    if record is None:
        doubts = tuple(_find_differences(observed, cluster, wished))
        if doubts:
            doubt = f"there is no record of what this cluster is, and {'; '.join(doubts)}"
            return FoundationState(wished, doubt)
        is_begun = (
            _find_own(observed, cluster, "ConfigMap", FOUNDING) is not None
            or _find_own(observed, cluster, "StatefulSet", ZOOKEEPER) is not None
            or bool(_list_disks(observed, cluster))
        )
        return FoundationState(wished, is_new=wished.is_bundled and not is_begun)
    recorded = Foundation.read(record)
    if recorded is None:
        return FoundationState(
            wished, f"the ConfigMap {record.name} is no record of a cluster: delete it"
        )
    return FoundationState(recorded)


def make_permit(owner: KubeObject) -> Json:
    """The ConfigMap that lets members of a new ensemble make an empty database."""
    name = name_component(owner.name, FOUNDING)
    labels = make_labels(owner.name, FOUNDING)
    return make_manifest(_CONFIG_MAP, name, labels, owner, data={PERMIT_KEY: PERMITTED})


def find_spent_permit(
    observed: Observed, cluster: KubeObject, foundation: Foundation
) -> KubeObject | None:
    """The permit, when a majority serves and is recorded: who comes later has it to learn from."""
    permit = _find_own(observed, cluster, "ConfigMap", FOUNDING)
    if permit is None or _find_own(observed, cluster, "ConfigMap", FOUNDATION) is None:
        return None
    found = _find_own(observed, cluster, "StatefulSet", ZOOKEEPER)
    ready = int(found.status.get("readyReplicas") or 0) if found is not None else 0
    return permit if ready > foundation.members // 2 else None


def format_bundled_servers(namespace: str, cluster: str) -> str:
    """Where clients reach the bundled ensemble."""
    return f"{name_zookeeper_client(cluster)}.{namespace}.svc:{ZOOKEEPER_CLIENT_PORT}"


def read_argument(workload: KubeObject, flag: str) -> str:
    """What a workload's first container is started with; "" without that flag."""
    containers: Any = workload.spec.get("template", {}).get("spec", {}).get("containers") or ({},)
    arguments = [*(containers[0].get("args") or ())]
    index = arguments.index(flag) + 1 if flag in arguments else len(arguments)
    return str(arguments[index]) if index < len(arguments) else ""


def _find_own(
    observed: Observed, cluster: KubeObject, kind: str, component: str
) -> KubeObject | None:
    found = observed.find(kind, name_component(cluster.name, component))
    return found if found is not None and cluster.uid in found.owner_uids else None


def _list_disks(observed: Observed, cluster: KubeObject) -> list[int]:
    """The numbers of the members that have a claim."""
    name = re.escape(f"{CLAIM}-{name_component(cluster.name, ZOOKEEPER)}-")
    claims = observed.list("PersistentVolumeClaim")
    found = (re.fullmatch(rf"{name}([0-9]+)", claim.name) for claim in claims)
    return sorted(int(one[1]) for one in found if one is not None)


def _find_differences(observed: Observed, cluster: KubeObject, wished: Foundation) -> Iterator[str]:
    """What runs otherwise than wished, each with its way out, for people."""
    owners = {cluster.uid, *(item.uid for item in observed.list("BookieSet"))}
    bundled = format_bundled_servers(observed.namespace, cluster.name)
    for workload in (*observed.list("StatefulSet"), *observed.list("Deployment")):
        if not owners & set(workload.owner_uids):
            continue
        what = f"the {workload.ref.kind} {workload.name} runs with"
        name, servers = read_argument(workload, "--cluster"), read_argument(workload, "--zookeeper")
        if name and name != wished.cluster:
            yield (
                f"{what} --cluster {name}, where the LogCluster says {wished.cluster}: set the one "
                "or the other right"
            )
        if servers and (servers == bundled) != wished.is_bundled:
            yield (
                f"{what} --zookeeper {servers}, where the LogCluster says "
                f"{_BUNDLED if wished.is_bundled else _EXTERNAL}: set the one or the other right"
            )
    found = _find_own(observed, cluster, "StatefulSet", ZOOKEEPER)
    if found is not None:
        yield from _compare_ensemble(found, wished)
    if wished.is_bundled:
        yield from _compare_disks(_list_disks(observed, cluster), wished)


def _compare_ensemble(found: KubeObject, wished: Foundation) -> Iterator[str]:
    replicas = int(found.spec.get("replicas", 1))
    named = [host for host in read_argument(found, "--members").split(",") if host]
    if not {replicas, len(named)} <= {wished.members}:
        yield (
            f"the StatefulSet {found.name} has {replicas} replicas that know of {len(named)} "
            f"members, where the LogCluster says {wished.members}: set zookeeper.members right, or "
            "delete that StatefulSet, which is made anew with the claims that it had"
        )


def _compare_disks(disks: list[int], wished: Foundation) -> Iterator[str]:
    if disks and (disks[-1] >= wished.members or len(disks) <= wished.members // 2):
        yield (
            f"ZooKeeper's members {', '.join(map(str, disks))} have claims, where the LogCluster "
            f"says {wished.members} members: set zookeeper.members right, or bring the others' "
            "claims back"
        )
