"""Bookies: one StatefulSet for each failure domain of a BookieSet, pinned there, and told so.

The operator makes bookies and never stops one: StatefulSets are updated OnDelete, replicas only
grow, claims stay. A bookie always knows its place: its domain's region and zone, or, on a cluster
without domains, a rack of its own. Called by `plan`. Pure. Source: docs/kubernetes/concepts.md
"Places".
"""

from collections.abc import Iterator
from dataclasses import dataclass

from duramen.units import format_size
from duramen_operator.names import (
    API_VERSION,
    BOOKIE,
    BOOKIE_SET_LABEL,
    DATA_PORTS,
    HOST_LABEL,
    NODE_REGION_LABEL,
    NODE_ZONE_LABEL,
    REGION_LABEL,
    ZONE_LABEL,
    make_selector,
    name_bookie_service,
    name_host,
)
from duramen_operator.plan.cluster.claims import describe_change, make_claim, read_storage
from duramen_operator.plan.cluster.frame import ClusterFrame
from duramen_operator.plan.cluster.pods import (
    POD_NAME,
    Pod,
    list_ports,
    make_template,
    name_arguments,
    probe_service,
    spread_over,
)
from duramen_operator.plan.cluster.spread import DomainShare, find_same_names, share_out
from duramen_operator.plan.manifests import make_manifest
from duramen_operator.plan.observed import Json, KubeObject, Ref
from duramen_operator.plan.steps import Call
from duramen_operator.resources import BookieSet, BookieSetSpec
from duramen_operator.resources.part import StorageSpec
from duramen_operator.resources.reading import parse_as

GRACE_S = 120
START_S = 3600
"""A start replays the journal and waits for nothing else; a full disk of it takes minutes."""


@dataclass(frozen=True, slots=True)
class SetFrame:
    """One BookieSet with its shares."""

    frame: ClusterFrame
    bookie_set: KubeObject
    spec: BookieSetSpec
    shares: tuple[DomainShare, ...]

    @property
    def count(self) -> int:
        """How many bookies there are to be."""
        return sum(share.count for share in self.shares)


def read_set(frame: ClusterFrame, bookie_set: KubeObject) -> SetFrame:
    """A BookieSet's frame.

    Raises:
        ResourceError: it is not valid.
    """
    spec = parse_as(BookieSet, bookie_set.body).spec
    domains = () if find_same_names(bookie_set.name, frame.spec.domains) else frame.spec.domains
    shares = share_out(frame.observed, bookie_set, domains, spec.replicas)
    return SetFrame(frame, bookie_set, spec, shares)


def make_service(frame: ClusterFrame) -> Iterator[Json]:
    """What all bookies of a cluster share: their names in DNS, and one disruption budget."""
    name = name_bookie_service(frame.name)
    labels = frame.make_labels(BOOKIE)
    selector = make_selector(frame.name, BOOKIE)
    ports = [
        {"name": key, "port": port, "targetPort": key} for key, port in list_ports(BOOKIE).items()
    ]
    spec = {
        "clusterIP": "None",
        # Sequencers repair from a bookie that is not ready for new data, too.
        "publishNotReadyAddresses": True,
        "selector": selector,
        "ports": ports,
    }
    yield make_manifest(("v1", "Service"), name, labels, frame.cluster, spec=spec)
    budget = {"maxUnavailable": 1, "selector": {"matchLabels": selector}}
    kind = ("policy/v1", "PodDisruptionBudget")
    yield make_manifest(kind, name, labels, frame.cluster, spec=budget)


def make_bookies(own: SetFrame) -> Iterator[Json]:
    """The StatefulSets of a set, and an object for each of its bookies."""
    for share in own.shares:
        if share.count:
            yield _make_share(own, share)
        for bookie in share.bookies:
            yield make_manifest(
                (API_VERSION, "Bookie"),
                bookie,
                _make_labels(own, share),
                own.bookie_set,
                spec={"clusterName": own.frame.name, "bookieSet": own.bookie_set.name},
            )


def plan_weights(own: SetFrame) -> Iterator[Call]:
    """Calls that give each registered bookie its share of new data; it has no flag for that."""
    rows = own.frame.observed.admin.bookies or {}
    wanted = own.spec.capacity
    for share in own.shares:
        for bookie in share.bookies:
            weight = rows.get(bookie, {}).get("weight")
            if isinstance(weight, int | float) and weight != wanted:
                about = Ref(API_VERSION, "Bookie", bookie)
                # By the name that clusters of older versions know as well.
                body = {"weight": wanted}
                path = f"/v1/cluster/bookies/{bookie}"
                yield Call(about, "PATCH", path, body, is_admin_port=True)


def find_refusals(own: SetFrame) -> Iterator[str]:
    """What is wished of a set and not done, for people."""
    observed, wanted = own.frame.observed, own.spec.replicas
    if own.count > wanted:
        yield (
            f"bookies are not removed yet: {own.count} there are (pods or disks with data), "
            f"{wanted} are wished; set replicas to {own.count}"
        )
    for share in own.shares:
        if not share.is_declared:
            yield (
                f"{share.place} is not among the cluster's domains any more, and the "
                f"{share.count} bookies there stay: name it again"
            )
        found = observed.find("StatefulSet", share.name)
        if found is not None:
            yield from describe_change(found, "journal", own.spec.journal, "journal")
            yield from describe_change(found, "ledgers", own.spec.ledgers, "ledgers")
    old = find_outdated(own)
    if old:
        yield (
            f"bookies are not restarted by the operator yet, and {', '.join(old)} run as they were "
            "before the last change: delete their pods one by one, each when all others are ready"
        )


def find_outdated(own: SetFrame) -> tuple[str, ...]:
    """Pods that run another template than the one their StatefulSet has now."""
    observed = own.frame.observed
    outdated = []
    for share in own.shares:
        found = observed.find("StatefulSet", share.name)
        revision = found.status.get("updateRevision") if found is not None else None
        for bookie in share.bookies:
            pod = observed.find("Pod", bookie)
            runs = pod.labels.get("controller-revision-hash") if pod is not None else None
            if revision and runs and runs != revision:
                outdated.append(bookie)
    return tuple(outdated)


def find_impossible(own: SetFrame) -> Iterator[str]:
    """Why no StatefulSet of the set may be made at all, for people."""
    same = find_same_names(own.bookie_set.name, own.frame.spec.domains)
    if same:
        yield f"two domains make the same name {', '.join(same)}: rename a region or a zone"
    for share in own.shares:
        found = own.frame.observed.find("StatefulSet", share.name)
        if found is not None and own.bookie_set.uid not in found.owner_uids:
            yield f"the StatefulSet {share.name} belongs to somebody else; rename this BookieSet"


def _make_labels(own: SetFrame, share: DomainShare) -> dict[str, str]:
    return {
        **own.frame.make_labels(BOOKIE),
        BOOKIE_SET_LABEL: own.bookie_set.name,
        REGION_LABEL: share.region,
        ZONE_LABEL: share.zone,
    }


def _make_share(own: SetFrame, share: DomainShare) -> Json:
    found = own.frame.observed.find("StatefulSet", share.name)
    labels = _make_labels(own, share)
    selector = {
        **make_selector(own.frame.name, BOOKIE),
        BOOKIE_SET_LABEL: own.bookie_set.name,
        REGION_LABEL: share.region,
        ZONE_LABEL: share.zone,
    }
    claims = {"journal": own.spec.journal, "ledgers": own.spec.ledgers}
    spec = {
        "serviceName": name_bookie_service(own.frame.name),
        "replicas": share.count,
        "podManagementPolicy": "Parallel",
        # The operator asks first whether a bookie may stop; until it does, nobody restarts one.
        "updateStrategy": {"type": "OnDelete"},
        "persistentVolumeClaimRetentionPolicy": {
            "whenDeleted": own.spec.claims,
            "whenScaled": "Retain",
        },
        "selector": {"matchLabels": selector},
        "template": make_template(own.frame, _make_pod(own, share, labels)),
        "volumeClaimTemplates": [
            make_claim(name, _choose_storage(found, name, storage), labels)
            for name, storage in claims.items()
        ],
    }
    kind = ("apps/v1", "StatefulSet")
    return make_manifest(kind, share.name, labels, own.bookie_set, spec=spec)


def _make_pod(own: SetFrame, share: DomainShare, labels: dict[str, str]) -> Pod:
    selector = make_selector(own.frame.name, BOOKIE)
    return Pod(
        component=BOOKIE,
        labels=labels,
        image=own.frame.image,
        command="duramen-bookie",
        arguments=_make_arguments(own, share),
        ports=list_ports(BOOKIE),
        resources=own.spec.resources,
        probes=probe_service(start_s=START_S),
        grace_s=GRACE_S,
        # Identity and checkpoints live and die with the entries: one volume for both.
        mounts={"journal": "/journal", "ledgers": "/data"},
        affinity=_make_affinity(own.frame, share),
        spread=[spread_over(HOST_LABEL, selector)],
    )


def _make_arguments(own: SetFrame, share: DomainShare) -> list[str]:
    frame = own.frame
    ports = list_ports(BOOKIE)
    host = name_host(POD_NAME, name_bookie_service(frame.name), frame.namespace)
    flags = {
        "--cluster": frame.metadata_name,
        "--id": POD_NAME,
        "--host": "0.0.0.0",
        "--data-port": str(ports["data"]),
        "--admin-port": str(ports["admin"]),
        "--advertise": f"{host}:{DATA_PORTS[BOOKIE]}",
        "--zookeeper": frame.zookeeper_servers,
        "--security": frame.spec.security,
        "--data-dir": "/data",
        "--journal-dir": "/journal",
        "--ledger-dir": "/data/ledgers",
        # Without domains there is one zone, and losing a bookie is the loss to survive.
        "--rack": share.zone or POD_NAME,
    }
    if share.region:
        flags["--region"] = share.region
    if own.spec.journal_file_size is not None:
        flags["--journal-file-size"] = format_size(own.spec.journal_file_size)
    return [
        *(token for flag in flags.items() for token in flag),
        *frame.anybody_arguments,
        *name_arguments(frame, BOOKIE),
    ]


def _make_affinity(frame: ClusterFrame, share: DomainShare) -> Json | None:
    if not share.zone:
        return None
    expressions = [
        {"key": NODE_REGION_LABEL, "operator": "In", "values": [share.region]},
        {"key": NODE_ZONE_LABEL, "operator": "In", "values": [share.zone]},
    ]
    term = {"matchExpressions": expressions}
    if frame.spec.placement == "strict":
        required = {"nodeSelectorTerms": [term]}
        return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    preferred = [{"weight": 100, "preference": term}]
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}


def _choose_storage(found: KubeObject | None, name: str, wanted: StorageSpec) -> StorageSpec:
    return read_storage(found, name) or wanted
