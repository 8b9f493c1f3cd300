"""The plan for a cluster and its bookies: manifests of everything, what is refused, what is told.

Nothing is made of a LogCluster that is not valid or is leaving; a BookieSet that is not valid or
cannot be made keeps nobody else from being made. Called by `plan.whole`. Pure.
"""

from collections.abc import Iterator
from datetime import datetime

from duramen_operator.plan.cluster import bookies, servers, zookeeper
from duramen_operator.plan.cluster.bookies import SetFrame, read_set
from duramen_operator.plan.cluster.frame import Frame
from duramen_operator.plan.cluster.telling import tell_cluster, tell_invalid
from duramen_operator.plan.cluster.telling_bookies import tell_bookie, tell_orphan, tell_set
from duramen_operator.plan.manifests import is_foreign, plan_apply
from duramen_operator.plan.observed import Observed
from duramen_operator.plan.steps import Delete, Plan, Step
from duramen_operator.resources import ResourceError


def plan_cluster(observed: Observed, now: datetime) -> Plan:
    """The steps for the LogCluster, its BookieSets and its Bookies."""
    return Plan(tuple(_plan(observed, now)))


def _plan(observed: Observed, now: datetime) -> Iterator[Step]:
    cluster = observed.cluster
    if cluster is None or cluster.is_leaving:
        for item in (*observed.list("BookieSet"), *observed.list("Bookie")):
            yield from tell_orphan(item, observed.cluster_name, now)
        return
    try:
        frame = Frame.read(observed, cluster)
    except ResourceError as error:
        yield from tell_invalid(cluster, str(error), now)
        return
    yield from _plan_services(frame)
    sets: list[SetFrame] = []
    for item in observed.list("BookieSet"):
        if item.is_leaving:
            continue
        try:
            own = read_set(frame, item)
        except ResourceError as error:
            yield from tell_invalid(item, str(error), now)
            continue
        sets.append(own)
        yield from _plan_set(own, now)
    yield from tell_cluster(frame, sets, find_taken(frame), now)


def _plan_services(frame: Frame) -> Iterator[Step]:
    observed = frame.observed
    for manifest in (
        *zookeeper.make_zookeeper(frame),
        *bookies.make_service(frame),
        *servers.make_sequencers(frame),
    ):
        yield from plan_apply(observed, manifest)
    for wanted in servers.make_proxies(frame):
        yield from plan_apply(observed, wanted.manifest, silent=wanted.silent)
    for name in servers.find_needless_autoscalers(frame):
        found = observed.find("HorizontalPodAutoscaler", name)
        if found and not found.is_leaving and frame.cluster.uid in found.owner_uids:
            yield Delete(found.ref, found.uid, found.resource_version)


def _plan_set(own: SetFrame, now: datetime) -> Iterator[Step]:
    observed = own.frame.observed
    impossible = tuple(bookies.find_impossible(own))
    if not impossible:
        for manifest in bookies.make_bookies(own):
            yield from plan_apply(observed, manifest)
        yield from bookies.plan_weights(own)
    yield from tell_set(own, impossible, now)
    for share in own.shares:
        for name in share.bookies:
            item = observed.find("Bookie", name)
            if item is not None and own.bookie_set.uid in item.owner_uids:
                yield from tell_bookie(own, share, item, now)


def find_taken(frame: Frame) -> tuple[str, ...]:
    """Objects that ought to be the cluster's and belong to somebody else, for people."""
    manifests = (
        *zookeeper.make_zookeeper(frame),
        *bookies.make_service(frame),
        *servers.make_sequencers(frame),
        *(wanted.manifest for wanted in servers.make_proxies(frame)),
    )
    taken = []
    for manifest in manifests:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        found = frame.observed.find(kind, name)
        if found is not None and is_foreign(found, manifest):
            taken.append(f"{kind} {name}")
    return tuple(taken)
