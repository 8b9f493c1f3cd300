"""The plan for a cluster and its bookies: manifests of everything, what is refused, what is told.

Nothing is made of a LogCluster that is not valid, is leaving, or of which it is not clear what it
is; a BookieSet that is not valid or cannot be made keeps nobody else from being made. Called by
`plan.plan`. Pure.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime

from duramen_operator.names import FOUNDING, READ_PROXY, WRITE_PROXY, name_component
from duramen_operator.plan.cluster import bookies, servers, zookeeper
from duramen_operator.plan.cluster.bookie_status import report_bookie, report_orphan, report_set
from duramen_operator.plan.cluster.bookies import SetFrame, read_set
from duramen_operator.plan.cluster.foundation import find_spent_permit, make_permit
from duramen_operator.plan.cluster.frame import ClusterFrame
from duramen_operator.plan.cluster.secured import cert_manager, founding
from duramen_operator.plan.cluster.secured.ca_bundle import make_bundle
from duramen_operator.plan.cluster.status import report_cluster, report_invalid
from duramen_operator.plan.evictions.budgets import (
    judge_evictions,
    make_bookie_budget,
    plan_bookie_budget,
)
from duramen_operator.plan.evictions.gates import plan_gates
from duramen_operator.plan.evictions.quorum import keep_running
from duramen_operator.plan.evictions.restarts import plan_restarts, plan_update_strategy
from duramen_operator.plan.manifests import is_foreign, plan_apply
from duramen_operator.plan.observed import Json, KubeObject, Observed
from duramen_operator.plan.removal.course import plan_course, plan_stops
from duramen_operator.plan.removal.holding import is_told
from duramen_operator.plan.steps import (
    DISRUPTION_DENIED,
    Apply,
    Call,
    Delete,
    Event,
    Plan,
    Status,
    Step,
    Stop,
)
from duramen_operator.resources import ResourceError


def plan_cluster(observed: Observed, now: datetime) -> Plan:
    """The steps for the LogCluster, its BookieSets and its Bookies."""
    steps = tuple(_plan(observed, now))
    permit = name_component(observed.cluster_name, FOUNDING)
    is_permitting = any(isinstance(s, Apply) and s.about.name == permit for s in steps)
    # Nobody watches for a permit, and all the rest waits until it is seen.
    return Plan(steps, now if is_permitting else None)


def _plan(observed: Observed, now: datetime) -> Iterator[Step]:
    cluster = observed.cluster
    if cluster is None or cluster.is_leaving:
        for item in (*observed.list("BookieSet"), *observed.list("Bookie")):
            yield from report_orphan(item, observed.cluster_name, now)
        return
    try:
        frame = ClusterFrame.read(observed, cluster)
    except ResourceError as error:
        yield from report_invalid(cluster, str(error), now, operatorVersion=observed.version)
        yield from plan_gates(observed, now)
        return
    sets, invalid = _read_sets(frame)
    is_impossible = any(map(_is_impossible, sets))
    is_whole = len(sets) == len(observed.list("BookieSet")) and not is_impossible
    known = sets if is_whole else None
    evictions = judge_evictions(frame, sets, is_whole=is_whole)
    # First: whose version serves it stands there before that version changes anything.
    yield from report_cluster(frame, sets, find_taken(frame), evictions, now)
    for item, why in invalid:
        yield from report_invalid(item, why, now)
    yield from _plan_foundation(frame)
    is_waiting = frame.is_held or frame.found.is_new
    is_open = evictions.status == "True"
    budget = plan_bookie_budget(frame, sets, is_open=is_open, is_whole=is_whole)
    gates, parts = tuple(plan_gates(observed, now)), tuple(_plan_parts(frame, sets, now))
    may_miss = is_open and not any(_keeps_bookies_waiting(frame, step) for step in parts)
    restarts = plan_restarts(frame, known, now, may_miss_bookie=may_miss)
    # What is told of its gate is another state of a pod than the one that was seen.
    told = {step.about for step in gates}
    restarts = (one for one in restarts if isinstance(one, Call) or one.about not in told)
    # What closes comes before what makes a pod count.
    for step in (*budget, *gates, *parts, *restarts):
        if not is_waiting or isinstance(step, Status | Event):
            yield step


def _keeps_bookies_waiting(frame: ClusterFrame, step: Step) -> bool:
    """Whether no bookie is restarted beside a step of this pass: a bookie is stopped for good, if
    that was not denied the last time, or what comes before bookies has yet to be changed."""
    match step:
        case Stop():
            problem = frame.observed.refusals.get(step.about)
            return problem is None or problem.code != DISRUPTION_DENIED
        case Apply():
            proxies = {name_component(frame.name, one) for one in (WRITE_PROXY, READ_PROXY)}
            return step.about.kind == "StatefulSet" and step.about.name not in proxies
        case _:
            return False


def _is_impossible(own: SetFrame) -> bool:
    return next(bookies.find_impossible(own), None) is not None


def _plan_foundation(frame: ClusterFrame) -> Iterator[Step]:
    """A permit before anything else, then the record; the permit goes when it is spent."""
    observed, cluster, found = frame.observed, frame.cluster, frame.found
    if frame.is_held:
        return
    if found.is_new:
        yield from plan_apply(observed, make_permit(cluster))
        return
    yield from plan_apply(observed, found.foundation.make_record(cluster))
    permit = find_spent_permit(observed, cluster, found.foundation)
    if permit is not None and not permit.is_leaving:
        yield Delete(permit.ref, permit.uid, permit.resource_version)
    for manifest in _list_trusted(frame):
        yield from plan_apply(observed, manifest)


def _list_trusted(frame: ClusterFrame) -> Iterator[Json]:
    """What clients are to trust, where it is known: what was written once stays else."""
    trusted = frame.observed.admin.trusted
    if frame.is_secured and trusted:
        yield make_bundle(frame.cluster, trusted)


def _read_sets(frame: ClusterFrame) -> tuple[list[SetFrame], list[tuple[KubeObject, str]]]:
    """The sets of the cluster, and those that are not valid, with the reason."""
    sets: list[SetFrame] = []
    invalid: list[tuple[KubeObject, str]] = []
    for item in frame.observed.list("BookieSet"):
        if item.is_leaving:
            continue
        try:
            sets.append(read_set(frame, item))
        except ResourceError as error:
            invalid.append((item, str(error)))
    return sets, invalid


def _plan_parts(frame: ClusterFrame, sets: Sequence[SetFrame], now: datetime) -> Iterator[Step]:
    yield from cert_manager.plan_requests(frame)  # first, so that pods find what they mount
    yield from _plan_services(frame)
    for own in sets:
        yield from _plan_set(own, now)
    yield from plan_stops(frame, [own for own in sets if not _is_impossible(own)])


def _plan_services(frame: ClusterFrame) -> Iterator[Step]:
    observed = frame.observed
    for manifest in (
        *zookeeper.make_zookeeper(frame),
        bookies.make_service(frame),
    ):
        yield from plan_update_strategy(frame, manifest)
        yield from plan_apply(observed, manifest)
    for wanted in servers.make_servers(frame):
        yield from plan_update_strategy(frame, wanted.manifest)
        if not keep_running(frame, wanted.manifest):
            yield from plan_apply(observed, wanted.manifest, silent=wanted.silent)
    yield from founding.plan_founding(frame)
    for name in servers.find_needless_autoscalers(frame):
        found = observed.find("HorizontalPodAutoscaler", name)
        if found and not found.is_leaving and frame.cluster.uid in found.owner_uids:
            yield Delete(found.ref, found.uid, found.resource_version)


def _plan_set(own: SetFrame, now: datetime) -> Iterator[Step]:
    observed = own.frame.observed
    impossible = tuple(bookies.find_impossible(own))
    let_go = set()
    if not impossible and is_told(own):
        for manifest in bookies.make_bookies(own):
            yield from plan_apply(observed, manifest)
        yield from bookies.drop_strangers(own)
        course = tuple(plan_course(own))
        let_go = {step.about for step in course if isinstance(step, Delete)}
        yield from course
        yield from bookies.plan_weights(own)
    yield from report_set(own, impossible, now)
    for share in own.shares:
        for name in share.bookies:
            item = observed.find("Bookie", name)
            is_ours = item is not None and own.bookie_set.uid in item.owner_uids
            if item is not None and is_ours and item.ref not in let_go:
                yield from report_bookie(own, share, item, now)


def find_taken(frame: ClusterFrame) -> tuple[str, ...]:
    """Objects that ought to be the cluster's and belong to somebody else, for people."""
    manifests = (
        frame.found.foundation.make_record(frame.cluster),
        *((make_permit(frame.cluster),) if frame.found.is_new else ()),
        *_list_trusted(frame),
        *zookeeper.make_zookeeper(frame),
        bookies.make_service(frame),
        make_bookie_budget(frame, 0, is_open=False),
        *(wanted.manifest for wanted in servers.make_servers(frame)),
        *((founding.make_job(frame), founding.make_founded(frame)) if frame.is_secured else ()),
        *(request.manifest for request in cert_manager.list_requests(frame)),
    )
    taken = []
    for manifest in manifests:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        found = frame.observed.find(kind, name)
        if found is not None and is_foreign(found, manifest):
            taken.append(f"{kind} {name}")
    return tuple(taken)
