"""What is told of a LogCluster: counts, endpoints, conditions, and in a word how it goes.

Called by `plan`. Pure. Source: `resources.conditions` says what each condition means.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from duramen_operator.names import (
    ACCESS,
    ADMIN_PORTS,
    DATA_PORTS,
    PAUSED_ANNOTATION,
    READ_PROXY,
    SEQUENCER,
    WRITE_PROXY,
    ZOOKEEPER,
    name_component,
)
from duramen_operator.plan.cluster import bookies, servers, zookeeper
from duramen_operator.plan.cluster.bookie_status import (
    count_needed,
    figures_of,
    format_refusal,
    judge_placement,
    judge_scale_down,
    keep_figures,
)
from duramen_operator.plan.cluster.bookies import SetFrame
from duramen_operator.plan.cluster.counting import count_bookies, count_by_domain, count_servers
from duramen_operator.plan.cluster.frame import ClusterFrame
from duramen_operator.plan.cluster.secured.certificates import judge_certificates
from duramen_operator.plan.cluster.secured.founding import is_founded
from duramen_operator.plan.conditions import Said, report
from duramen_operator.plan.evictions.quorum import find_lost_quorum, list_waiting
from duramen_operator.plan.evictions.restarts import list_hindering, list_outdated
from duramen_operator.plan.observed import KubeObject
from duramen_operator.plan.removal.holding import any_holds_copies, is_abandoned
from duramen_operator.plan.removal.words import judge_removals
from duramen_operator.plan.steps import Event, Status
from duramen_operator.resources import LogClusterStatus
from duramen_operator.resources.clusters import Endpoints, ServerCount
from duramen_operator.resources.conditions import (
    ANYBODY_NOT_ACCEPTED,
    AVAILABLE,
    CONDITIONS,
    FOUNDATION_UNCLEAR,
    NOT_YET_SUPPORTED,
    PROGRESSING,
    READY,
    SECURE,
)

PAUSED = "Paused"
_TEXTS = {
    ZOOKEEPER: "ZooKeeper servers",
    SEQUENCER: "sequencers",
    WRITE_PROXY: "write proxies",
    READ_PROXY: "read proxies",
}
_MADE_KINDS = frozenset(
    {
        "StatefulSet",
        "Deployment",
        "Service",
        "ConfigMap",
        "PodDisruptionBudget",
        "HorizontalPodAutoscaler",
        "Job",
    }
)

Counts = Mapping[str, ServerCount]


def report_cluster(
    frame: ClusterFrame,
    sets: Sequence[SetFrame],
    taken: Sequence[str],
    evictions: Said,
    now: datetime,
) -> Iterator[Status | Event]:
    """The status of a LogCluster."""
    counts, all_bookies = count_servers(frame), count_bookies(sets)
    names = [name for own in sets for name in own.present]
    available = _judge_available(frame, counts, all_bookies)
    missing = _find_missing(counts, all_bookies, sets)
    is_whole = all_bookies.ready == all_bookies.wanted
    ready = _judge_ready(frame, available, missing)
    said = [
        ready,
        available,
        _judge_progress(frame, sets, taken, missing),
        judge_placement(sets, is_whole=is_whole and bool(sets)),
        judge_scale_down(frame, names),
        evictions,
        _judge_secure(frame),
        judge_certificates(frame, now),
    ]
    observed = frame.observed
    logs = observed.admin.logs
    status = LogClusterStatus(
        phase=_name_phase(frame, ready, available, counts),
        bookies=all_bookies,
        bookies_by_domain=count_by_domain(sets),
        zookeeper=counts[ZOOKEEPER],
        sequencers=counts[SEQUENCER],
        write_proxies=counts[WRITE_PROXY],
        read_proxies=counts[READ_PROXY],
        logs=None if logs is None else len(logs),
        holds_copies=any_holds_copies(frame, sets),
        endpoints=_find_endpoints(frame),
        operator_version=observed.version,
    )
    yield from report(frame.cluster, said, figures_of(status), now)


def report_invalid(
    item: KubeObject, why: str, now: datetime, **figures: Any
) -> Iterator[Status | Event]:
    """What a LogCluster or BookieSet is told that cannot be read.

    Args:
        figures: those that are known all the same; the others stay as they are.
    """
    said = [
        Said(
            type=condition,
            status="False" if condition == READY else "Unknown",
            reason="InvalidSpec",
            message=why,
            is_event=condition == READY,
        )
        for condition in CONDITIONS[item.ref.kind]
    ]
    yield from report(item, said, {**keep_figures(item), **figures}, now)


def _judge_available(frame: ClusterFrame, counts: Counts, all_bookies: ServerCount) -> Said:
    """Whether appends and reads are served: one of each, a quorum, and bookies for a segment."""
    lacking = [
        f"no {_TEXTS[component]} are ready"
        for component in (SEQUENCER, WRITE_PROXY, READ_PROXY)
        if not counts[component].ready
    ]
    members = counts[ZOOKEEPER]
    if members.wanted and members.ready <= members.wanted // 2:
        lacking.append(f"ZooKeeper has no quorum: {members.ready} of {members.wanted} are ready")
    needed = count_needed(frame)
    if all_bookies.ready < needed:
        lacking.append(f"{all_bookies.ready} bookies are ready, and a segment needs {needed}")
    if lacking:
        return Said(AVAILABLE, "False", "NotServing", "; ".join(lacking), is_event=True)
    return Said(AVAILABLE, "True", "Serving", "appends and reads are served", is_event=True)


def _find_missing(counts: Counts, all_bookies: ServerCount, sets: Sequence[SetFrame]) -> list[str]:
    """What is not ready yet, for people."""
    every = {**{_TEXTS[name]: count for name, count in counts.items()}, "bookies": all_bookies}
    missing = [
        f"{count.ready} of {count.wanted} {text}"
        for text, count in every.items()
        if count.ready < count.wanted
    ]
    return missing if sets else [*missing, "no BookieSet names this cluster"]


def _judge_ready(frame: ClusterFrame, available: Said, missing: Sequence[str]) -> Said:
    if frame.found.doubt:
        return Said(READY, "False", FOUNDATION_UNCLEAR, frame.found.doubt)
    if available.status != "True":
        return Said(READY, "False", available.reason, available.message)
    if missing:
        return Said(READY, "False", "NotAllReady", f"ready: {', '.join(missing)}")
    return Said(READY, "True", "AsWanted", "all of it runs as the spec says", is_event=True)


def _judge_secure(frame: ClusterFrame) -> Said:
    if frame.is_secured:
        if not is_founded(frame):
            message = (
                "the cluster's nodes in ZooKeeper have no rights yet: the job "
                f"{name_component(frame.name, ACCESS)} gives them theirs"
            )
            return Said(SECURE, "False", "NotFounded", message)
        message = "security is on: every port asks who calls"
        return Said(SECURE, "True", "SecurityOn", message)
    message = "security is none: whoever reaches the ports may do everything"
    return Said(SECURE, "False", "NoSecurity", message)


def _judge_progress(
    frame: ClusterFrame, sets: Sequence[SetFrame], taken: Sequence[str], missing: Sequence[str]
) -> Said:
    held = _judge_held(frame)
    if held is not None:
        return held
    if taken:
        message = (
            f"left alone, since they belong to somebody else: {', '.join(taken)}; take them away, "
            "or make this cluster under another name"
        )
        return Said(PROGRESSING, "False", "NameTaken", message, is_event=True)
    refused = [
        format_refusal(ref, problem.code, problem.message)
        for ref, problem in sorted(frame.observed.refusals.items(), key=lambda item: item[0])
        if ref.kind in _MADE_KINDS
    ]
    if refused:
        return Said(PROGRESSING, "False", "ApplyRefused", "; ".join(refused), is_event=True)
    waiting = list_waiting(frame, (one.manifest for one in servers.make_servers(frame)))
    if waiting:
        message = (
            f"{find_lost_quorum(frame)}: until then nothing is restarted that runs, and "
            f"{', '.join(waiting)} will be changed afterwards; see the pods of ZooKeeper"
        )
        return Said(PROGRESSING, "False", "NoQuorum", message, is_event=True)
    restarts = _explain_restarts(frame, sets)
    unsupported = [
        *zookeeper.find_refusals(frame),
        *(sentence for own in sets for sentence in bookies.find_refusals(own)),
    ]
    if unsupported:
        message = "; ".join([*unsupported, *restarts])
        return Said(PROGRESSING, "False", NOT_YET_SUPPORTED, message, is_event=True)
    removals = [said for own in sets if (said := judge_removals(own)) is not None]
    if removals:
        first = min(removals, key=lambda said: said.status == "True")
        message = "; ".join([*(said.message for said in removals), *restarts])
        return Said(PROGRESSING, first.status, first.reason, message, is_event=True)
    if restarts:
        return Said(PROGRESSING, "True", "Restarting", "; ".join(restarts))
    if missing:
        return Said(PROGRESSING, "True", "Starting", f"ready: {', '.join(missing)}")
    may_go = "; it may be deleted with its copies" if is_abandoned(frame.cluster) else ""
    return Said(PROGRESSING, "False", "Settled", f"nothing is left to be done{may_go}")


def _judge_held(frame: ClusterFrame) -> Said | None:
    """Why nothing at all is made or changed; None: it is."""
    if is_paused(frame):
        message = f"nothing is changed while {PAUSED_ANNOTATION} is true"
        return Said(PROGRESSING, "False", PAUSED, message, is_event=True)
    if frame.found.doubt:
        message = f"nothing is made or changed: {frame.found.doubt}"
        return Said(PROGRESSING, "False", FOUNDATION_UNCLEAR, message, is_event=True)
    if frame.is_security_changed:
        stays = frame.found.foundation.security
        message = (
            f"nothing is made or changed: security stays {stays}, as the cluster was made; set "
            f'security back to "{stays}". To change a running cluster is done by hand'
        )
        return Said(PROGRESSING, "False", NOT_YET_SUPPORTED, message, is_event=True)
    if frame.is_open_unasked:
        message = (
            "nothing is made or changed: security is none, so whoever reaches a port may do "
            "everything; say that this is meant: acceptAnybody: true"
        )
        return Said(PROGRESSING, "False", ANYBODY_NOT_ACCEPTED, message, is_event=True)
    return None


def _explain_restarts(frame: ClusterFrame, sets: Sequence[SetFrame]) -> list[str]:
    """Which pods run as before the last change, and what keeps the next one from its turn; empty:
    none."""
    outdated = list_outdated(frame, sets)
    if not outdated:
        return []
    denied = [
        f"{ref.name} waits: {problem.code}: {problem.message}"
        for ref, problem in sorted(frame.observed.refusals.items(), key=lambda item: item[0])
        if ref.kind == "Pod"
    ]
    head = f"run as before the last change, and are restarted in turn: {', '.join(outdated)}"
    hindering = list_hindering(frame, sets)
    waits = f"the next one waits until these serve, or are deleted: {', '.join(hindering)}"
    return [head, *([waits] if hindering else []), *denied]


def is_paused(frame: ClusterFrame) -> bool:
    """Whether people asked the operator to keep its hands off."""
    return frame.cluster.annotations.get(PAUSED_ANNOTATION) == "true"


def _name_phase(frame: ClusterFrame, ready: Said, available: Said, counts: Counts) -> str:
    if is_paused(frame):
        return PAUSED
    if ready.status == "True":
        return "Running"
    if available.status == "True":
        return "Degraded"
    return "Starting" if any(count.ready for count in counts.values()) else "Pending"


def _find_endpoints(frame: ClusterFrame) -> Endpoints:
    def name_url(component: str, ports: Mapping[str, int]) -> str:
        host = f"{name_component(frame.name, component)}.{frame.namespace}.svc"
        scheme = "https" if frame.is_secured else "http"
        return f"{scheme}://{host}:{ports[component]}"

    return Endpoints(
        write=name_url(WRITE_PROXY, DATA_PORTS),
        read=name_url(READ_PROXY, DATA_PORTS),
        admin=name_url(WRITE_PROXY, ADMIN_PORTS),
        zookeeper=frame.zookeeper_servers,
    )
