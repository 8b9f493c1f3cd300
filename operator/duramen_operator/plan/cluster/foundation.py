"""What a cluster is for good: its name in its ZooKeeper, whose that is, of how many, if secured.

Services with another name, or an ensemble of another size, would be a second cluster beside the
first one's data. So none of it is read from what runs, which anybody may edit: it is wished once in
the LogCluster, and stands from then on in a ConfigMap that the API server lets nobody change. While
there is none (an upgrade, a restored backup) one is made if what runs agrees with the LogCluster.

A new bundled ensemble needs a permit as well, another ConfigMap: while it is there, and at no other
time, a member may make an empty database. Nobody gets one where ZooKeeper has a disk already.
A cluster with identities has a uuid from the beginning, made of the LogCluster's own uid, which the
API server draws: so two operators, or one that is killed, say the same. Disks keep it as a label.
Called by `frame` and `plan`. Pure. Explained in ADR 0022; docs/kubernetes/security.md.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Self

from duramen.runtime.identity.names import DOMAIN_PATTERN
from duramen_operator.names import (
    FOUNDATION,
    FOUNDING,
    GROUP,
    UUID_LABEL,
    ZOOKEEPER,
    ZOOKEEPER_CLIENT_PORT,
    make_labels,
    name_component,
    name_host,
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
_UUID_LENGTH: Final = 32


@dataclass(frozen=True, slots=True)
class Foundation:
    """What never changes of a cluster."""

    cluster: str
    """What it is called in its ZooKeeper."""
    members: int
    """Of the bundled ensemble; 0 where the ensemble is somebody else's."""
    uuid: str = ""
    """Of a cluster with `security: on`, whose identities name it; "" with `none`."""

    @classmethod
    def wish(cls, namespace: str, name: str, spec: LogClusterSpec, uuid: str) -> Self:
        """As the LogCluster says.

        Args:
            uuid: what it is to have where it is secured.

        An ensemble of somebody else's may serve several namespaces of Kubernetes, in each of which
        a LogCluster may have this name: two clusters under one name would be one.
        """
        external = spec.zookeeper.external
        if external is None:
            return cls(name, spec.zookeeper.members, uuid)
        return cls(external.cluster or f"{namespace}.{name}", 0, uuid)

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
        security, uuid = data.get("security", "none"), str(data.get("uuid", ""))
        if security != ("on" if uuid else "none") or (uuid and not _is_uuid(uuid)):
            return None
        return cls(cluster, int(members), uuid)

    @property
    def is_bundled(self) -> bool:
        """Whether its ZooKeeper is the bundled one."""
        return self.members > 0

    @property
    def security(self) -> str:
        """What its processes are told by `--security`."""
        return "on" if self.uuid else "none"

    def make_record(self, owner: KubeObject) -> Json:
        """The ConfigMap that keeps it."""
        data = {"cluster": self.cluster, "zookeeper": _EXTERNAL}
        if self.is_bundled:
            data |= {"zookeeper": _BUNDLED, "members": str(self.members)}
        if self.uuid:
            data |= {"security": "on", "uuid": self.uuid}
        name = name_component(owner.name, FOUNDATION)
        labels = make_labels(owner.name, FOUNDATION)
        return make_manifest(_CONFIG_MAP, name, labels, owner, data=data, immutable=True)


@dataclass(frozen=True, slots=True)
class FoundationState:
    """What is known of a cluster's foundation."""

    foundation: Foundation
    doubt: str = ""
    """Why nothing may be made or changed, for people."""
    is_recorded: bool = False
    """Whether the record says all of it. Without one it is what is wished."""
    is_taken: bool = False
    """Whether somebody else has an object of the record's name, so that there can be none."""
    is_new: bool = False
    """Whether nothing of a bundled ensemble is there, and nothing says that there ever was."""


def find_foundation(
    observed: Observed, cluster: KubeObject, spec: LogClusterSpec
) -> FoundationState:
    """The record; where there is none the wish, and whether what runs agrees with it."""
    uuid = _choose_uuid(observed, cluster) if spec.security == "on" else ""
    wished = Foundation.wish(observed.namespace, cluster.name, spec, uuid)
    record = observed.find("ConfigMap", name_component(cluster.name, FOUNDATION))
    if record is not None and cluster.uid not in record.owner_uids:
        return FoundationState(wished, is_taken=True)
    if record is None:
        doubts = (
            *_find_differences(observed, cluster, wished),
            *_compare_uuids(observed, cluster, wished),
        )
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
    doubt = _compare_named(cluster, record, recorded)
    return FoundationState(recorded, doubt, is_recorded=True)


def _compare_named(cluster: KubeObject, record: KubeObject, recorded: Foundation) -> str:
    """A uuid that a person says when another one is written down already; "" there is none."""
    named = cluster.annotations.get(UUID_LABEL, "")
    if not recorded.uuid or named in ("", recorded.uuid):
        return ""
    return (
        f"the annotation {UUID_LABEL} says {named}, and the ConfigMap {record.name} "
        f"{recorded.uuid}: take the annotation away; or, if nothing is stored under that uuid yet, "
        "delete that ConfigMap, and the annotation counts"
    )


def _choose_uuid(observed: Observed, cluster: KubeObject) -> str:
    """What a person says, else what disks say, else a new one, which is always the same."""
    named = [cluster.annotations.get(UUID_LABEL, ""), *_list_uuids(observed, cluster)]
    digest = hashlib.sha256(f"{GROUP}/cluster/{cluster.uid}".encode()).hexdigest()
    return next((uuid for uuid in named if _is_uuid(uuid)), digest[:_UUID_LENGTH])


def _is_uuid(text: str) -> bool:
    return re.fullmatch(DOMAIN_PATTERN, text, re.ASCII) is not None


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


def format_bundled_servers(namespace: str, cluster: str, foundation: Foundation) -> str:
    """Where clients reach the bundled ensemble: at its service, or, where each member shows a
    certificate of its own name, at its members."""
    if not foundation.uuid:
        return f"{name_zookeeper_client(cluster)}.{namespace}.svc:{ZOOKEEPER_CLIENT_PORT}"
    name = name_component(cluster, ZOOKEEPER)
    pods = (f"{name}-{index}" for index in range(foundation.members))
    hosts = (name_host(pod, name, namespace) for pod in pods)
    return ",".join(f"{host}:{ZOOKEEPER_CLIENT_PORT}" for host in hosts)


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
    return sorted(int(c.name.rpartition("-")[2]) for c in _list_claims(observed, cluster))


def _list_claims(observed: Observed, cluster: KubeObject) -> list[KubeObject]:
    """Those of ZooKeeper's members."""
    name = re.escape(f"{CLAIM}-{name_component(cluster.name, ZOOKEEPER)}-")
    claims = observed.list("PersistentVolumeClaim")
    return [claim for claim in claims if re.fullmatch(rf"{name}[0-9]+", claim.name)]


def _find_differences(observed: Observed, cluster: KubeObject, wished: Foundation) -> Iterator[str]:
    """What runs otherwise than wished, each with its way out, for people."""
    owners = {cluster.uid, *(item.uid for item in observed.list("BookieSet"))}
    bundled = format_bundled_servers(observed.namespace, cluster.name, wished)
    for workload in (*observed.list("StatefulSet"), *observed.list("Deployment")):
        if not owners & set(workload.owner_uids):
            continue
        what = f"the {workload.ref.kind} {workload.name} runs with"
        name, servers = read_argument(workload, "--cluster"), read_argument(workload, "--zookeeper")
        security = read_argument(workload, "--security")
        if name and name != wished.cluster:
            yield (
                f"{what} --cluster {name}, where the LogCluster says {wished.cluster}: set the one "
                "or the other right"
            )
        if security and security != wished.security:
            yield (
                f"{what} --security {security}, where the LogCluster says {wished.security}: set "
                "the one or the other right"
            )
            continue  # its ZooKeeper is called otherwise, too
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


def _compare_uuids(observed: Observed, cluster: KubeObject, wished: Foundation) -> Iterator[str]:
    """Disks of another cluster, or of one that was not secured: nobody could read them."""
    named = cluster.annotations.get(UUID_LABEL, "")
    if named and not _is_uuid(named):
        yield f"the annotation {UUID_LABEL} is no uuid: write its 32 hexadecimal digits"
    if not wished.is_bundled:
        return
    disks = set(_list_uuids(observed, cluster))
    if disks and disks != {wished.uuid}:
        there = ", ".join(sorted(uuid or "none" for uuid in disks))
        yield (
            f"ZooKeeper's claims say of this cluster's uuid: {there}; the LogCluster's security is "
            f"{wished.security} and its uuid {wished.uuid or 'none'}: set spec.security right, or "
            f"its annotation {UUID_LABEL}"
        )


def _list_uuids(observed: Observed, cluster: KubeObject) -> list[str]:
    """What each of ZooKeeper's claims says of the uuid; "" where it says nothing."""
    return [claim.labels.get(UUID_LABEL, "") for claim in _list_claims(observed, cluster)]


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
