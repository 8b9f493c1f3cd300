"""Bookies: a StatefulSet for each one of a BookieSet, pinned to its domain, and told so.

Nobody is stopped in passing: StatefulSets are updated OnDelete, so that `plan.evictions.restarts`
restarts one by a grant, and make one bookie less only where `plan.removal` has a grant for it; a
pod beyond the wish that never registered is no bookie. A bookie knows its place: its domain's
region and zone, or, without domains, a rack of its own.
Called by `plan`. Pure. Source: docs/kubernetes/concepts.md "Places".
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from duramen.units import format_size
from duramen_operator.names import (
    API_VERSION,
    BOOKIE,
    BOOKIE_LABEL,
    BOOKIE_SET_LABEL,
    CAUGHT_UP_GATE,
    CONSENT_ANNOTATION,
    DATA_PORTS,
    HOST_LABEL,
    NODE_REGION_LABEL,
    NODE_ZONE_LABEL,
    REGION_LABEL,
    REMOVAL_ANNOTATION,
    ZONE_LABEL,
    make_selector,
    name_bookie_service,
    name_host,
)
from duramen_operator.plan.claims import describe_change, keep_claims, make_claim
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
from duramen_operator.plan.cluster.secured.keys import make_keys
from duramen_operator.plan.cluster.spread import (
    BookieGroup,
    DomainShare,
    find_same_names,
    share_out,
)
from duramen_operator.plan.manifests import make_manifest
from duramen_operator.plan.observed import Json, KubeObject, Ref
from duramen_operator.plan.removal.choice import choose_leaving
from duramen_operator.plan.removal.record import STOPPING, read_removal
from duramen_operator.plan.steps import Call, Delete
from duramen_operator.resources import BookieSet, BookieSetSpec
from duramen_operator.resources.reading import parse_as

GRACE_S = 120
START_S = 3600
"""A start replays the journal and waits for nothing else; a full disk of it takes minutes."""

_ANOTHER_SET: Final = ", or make another BookieSet with it, and have the bookies of this one go"


@dataclass(frozen=True, slots=True)
class SetFrame:
    """One BookieSet with its shares."""

    frame: ClusterFrame
    bookie_set: KubeObject
    spec: BookieSetSpec
    shares: tuple[DomainShare, ...]
    leaving: frozenset[str] = frozenset()
    """Those of its bookies that are to go."""
    is_ambiguous: bool = False
    """Whether two domains make one name, so that nobody may be made, or chosen to go."""

    @property
    def present(self) -> tuple[str, ...]:
        """Bookies that are to run now: all but those that are stopped for good."""
        names = (name for share in self.shares for name in share.bookies)
        return tuple(n for n in names if read_removal(self.frame.observed, n) != STOPPING)


def read_set(frame: ClusterFrame, bookie_set: KubeObject) -> SetFrame:
    """A BookieSet's frame.

    Raises:
        ResourceError: it is not valid.
    """
    spec = parse_as(BookieSet, bookie_set.body).spec
    is_ambiguous = bool(find_same_names(bookie_set.name, frame.spec.domains))
    domains = () if is_ambiguous else frame.spec.domains
    shares = share_out(
        frame.observed, bookie_set, domains, spec.replicas, may_share=not frame.is_secured
    )
    leaving = frozenset[str]()
    if not is_ambiguous:
        leaving = choose_leaving(frame.observed, shares, spec.replicas)
    return SetFrame(frame, bookie_set, spec, shares, leaving, is_ambiguous)


def make_service(frame: ClusterFrame) -> Json:
    """What all bookies of a cluster share: their names in DNS."""
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
    return make_manifest(("v1", "Service"), name, labels, frame.cluster, spec=spec)


def make_bookies(own: SetFrame) -> Iterator[Json]:
    """The StatefulSets of a set, and an object for each of its bookies."""
    for share in own.shares:
        for group in share.groups:
            replicas = _count_made(own, group)
            if replicas is not None:
                yield make_group(own, share, group, replicas)
        for group in share.idle_groups:
            if own.frame.observed.find("StatefulSet", group.name) is not None:
                yield make_group(own, share, group, 0)
        for bookie in share.bookies:
            yield make_manifest(
                (API_VERSION, "Bookie"),
                bookie,
                _make_labels(own, share),
                own.bookie_set,
                spec={"clusterName": own.frame.name, "bookieSet": own.bookie_set.name},
            )


def drop_strangers(own: SetFrame) -> Iterator[Delete]:
    """The objects of what is no bookie; the claims stay."""
    for name in (name for share in own.shares for name in share.strangers):
        item = own.frame.observed.find("Bookie", name)
        if item is not None and not item.is_leaving and own.bookie_set.uid in item.owner_uids:
            yield Delete(item.ref, item.uid, item.resource_version)


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
    observed = own.frame.observed
    for share in own.shares:
        if share.count and not share.is_declared:
            yield (
                f"{share.place} is not among the cluster's domains any more, and the "
                f"{share.count} bookies there stay: name it again, or have them go by replicas"
            )
        sets = (observed.find("StatefulSet", group.name) for group in share.groups)
        found = next((one for one in sets if one is not None), None)
        if found is not None:
            for field, wanted in (("journal", own.spec.journal), ("ledgers", own.spec.ledgers)):
                yield from describe_change(found, field, wanted, field, or_else=_ANOTHER_SET)


def find_impossible(own: SetFrame) -> Iterator[str]:
    """Why no StatefulSet of the set may be made at all, for people."""
    same = find_same_names(own.bookie_set.name, own.frame.spec.domains)
    if same:
        yield f"two domains make the same name {', '.join(same)}: rename a region or a zone"
    for name in list_sets(own):
        found = own.frame.observed.find("StatefulSet", name)
        if found is not None and own.bookie_set.uid not in found.owner_uids:
            yield f"the StatefulSet {name} belongs to somebody else; rename this BookieSet"


def list_sets(own: SetFrame) -> tuple[str, ...]:
    """The names of a set's StatefulSets."""
    return tuple(group.name for share in own.shares for group in share.groups)


def _make_labels(own: SetFrame, share: DomainShare) -> dict[str, str]:
    return {
        **own.frame.make_labels(BOOKIE),
        BOOKIE_SET_LABEL: own.bookie_set.name,
        REGION_LABEL: share.region,
        ZONE_LABEL: share.zone,
    }


def is_consented(own: SetFrame) -> bool:
    """Whether somebody said of this very BookieSet that its claims are to go when it is deleted."""
    item = own.bookie_set
    is_said = item.annotations.get(CONSENT_ANNOTATION) == item.uid
    return own.spec.claims == "Delete" and is_said


def _choose_claims_fate(own: SetFrame, group: BookieGroup, stopped: Sequence[str]) -> str:
    """What becomes of claims when their StatefulSet is deleted: they go with the whole set where
    that was consented to, and with a bookie by itself that is drained and to be stopped."""
    is_drained = own.spec.claims == "Delete" and group.is_lone and bool(stopped)
    return "Delete" if is_consented(own) or is_drained else "Retain"


def _list_stopped(own: SetFrame, group: BookieGroup) -> list[str]:
    return [name for name in group.bookies if read_removal(own.frame.observed, name) == STOPPING]


def _count_made(own: SetFrame, group: BookieGroup) -> int | None:
    """How many bookies a StatefulSet makes; those that are to be stopped as long as it does. None:
    it is to be gone, or is gone with its last one."""
    observed, most = own.frame.observed, len(group.bookies)
    stopped = list(takewhile(lambda n: read_removal(observed, n) == STOPPING, group.bookies[::-1]))
    least = most - len(stopped)
    found = observed.find("StatefulSet", group.name)
    if found is None:
        # Its pod may run on without it: then it is made anew, and has that pod again.
        is_gone = group.is_lone and bool(stopped) and observed.find("Pod", stopped[0]) is None
        return None if is_gone else (most if group.is_lone else least)
    return max(least, min(most, int(found.spec.get("replicas", 1)))) if stopped else most


def make_group(own: SetFrame, share: DomainShare, group: BookieGroup, replicas: int) -> Json:
    """The StatefulSet of some bookies, which makes the first ones of them.

    Those that are to be stopped for good stand in an annotation: when that is taken back, whoever
    would still stop one meets another state of the StatefulSet.
    """
    stopped = _list_stopped(own, group)
    marks = {REMOVAL_ANNOTATION: ",".join(stopped)} if stopped else {}
    labels = _make_labels(own, share)
    # Of StatefulSets with one selector each would take the others' pods for its own, if left alone.
    apart = {BOOKIE_LABEL: group.bookies[0]} if group.is_lone else {}
    selector = {
        **make_selector(own.frame.name, BOOKIE),
        BOOKIE_SET_LABEL: own.bookie_set.name,
        REGION_LABEL: share.region,
        ZONE_LABEL: share.zone,
        **apart,
    }
    claims = {"journal": own.spec.journal, "ledgers": own.spec.ledgers}
    spec = {
        "serviceName": name_bookie_service(own.frame.name),
        "replicas": replicas,
        "podManagementPolicy": "Parallel",
        # The operator asks first whether a bookie may stop.
        "updateStrategy": {"type": "OnDelete"},
        "persistentVolumeClaimRetentionPolicy": {
            "whenDeleted": _choose_claims_fate(own, group, stopped),
            "whenScaled": "Retain",
        },
        "selector": {"matchLabels": selector},
        "template": make_template(own.frame, _make_pod(own, share, group, {**labels, **apart})),
        "volumeClaimTemplates": [
            make_claim(name, storage, labels) for name, storage in claims.items()
        ],
    }
    kind = ("apps/v1", "StatefulSet")
    made = make_manifest(kind, group.name, labels, own.bookie_set, annotations=marks, spec=spec)
    return keep_claims(made, own.frame.observed.find("StatefulSet", group.name))


def _make_pod(own: SetFrame, share: DomainShare, group: BookieGroup, labels: dict[str, str]) -> Pod:
    selector = make_selector(own.frame.name, BOOKIE)
    return Pod(
        component=BOOKIE,
        labels=labels,
        image=own.frame.image,
        command="duramen-bookie",
        arguments=_make_arguments(own, share, group),
        ports=list_ports(BOOKIE),
        resources=own.spec.resources,
        probes=probe_service(start_s=START_S, is_secured=own.frame.is_secured),
        grace_s=GRACE_S,
        # Identity and checkpoints live and die with the entries: one volume for both.
        mounts={"journal": "/journal", "ledgers": "/data"},
        affinity=_make_affinity(own.frame, share),
        spread=[spread_over(HOST_LABEL, selector)],
        keys=make_keys(own.frame, BOOKIE, group.bookies),
        readiness_gates=[CAUGHT_UP_GATE],
    )


def _make_arguments(own: SetFrame, share: DomainShare, group: BookieGroup) -> list[str]:
    frame = own.frame
    ports = list_ports(BOOKIE)
    # A second pod, made by a hand, has the first one's name and other disks: it refuses to start.
    # With identities nobody has a certificate for it.
    name = group.bookies[0] if group.is_lone and not frame.is_secured else POD_NAME
    host = name_host(name, name_bookie_service(frame.name), frame.namespace)
    flags = {
        "--cluster": frame.metadata_name,
        "--id": name,
        "--host": "0.0.0.0",
        "--data-port": str(ports["data"]),
        "--admin-port": str(ports["admin"]),
        "--stream-port": str(ports["streams"]),
        "--advertise": f"{host}:{DATA_PORTS[BOOKIE]}",
        "--zookeeper": frame.zookeeper_servers,
        "--security": frame.security,
        "--data-dir": "/data",
        "--journal-dir": "/journal",
        "--ledger-dir": "/data/ledgers",
        # Without domains there is one zone, and losing a bookie is the loss to survive.
        "--rack": share.zone or name,
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
