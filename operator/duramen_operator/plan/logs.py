"""Logs: what is to be done so that each log of a cluster is as its Log says, and what to tell.

A log is made once. One that was there before and is gone, or whose name another log has by now, is
not made again: an empty log in the place of a lost one would hide the loss. Only members that the
Log names are compared and set again; what it does not name is left as it is.

A Log with `deletionPolicy: Delete` gets a finalizer before its log is made, and loses it at the
latest `RELEASE_AFTER` after its deletion, whatever the cluster says by then.

Facts may be older than the look. What they show is told, and nothing that changes a log, or says
which log an object stands for, rests on them: the plan is unsure of these logs instead.

Called by `plan`. Source: docs/kubernetes/resources.md "Log", docs/kubernetes/one-hand.md "What a
look costs".
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

from duramen.errors import DuramenError
from duramen.ids import parse_dlsn, parse_lsn
from duramen.texts import PositionKind, parse_position
from duramen_operator.names import FINALIZER
from duramen_operator.plan.conditions import Said, Truth, find_condition, find_told, report
from duramen_operator.plan.observed import KubeObject, Observed, Problem
from duramen_operator.plan.releasing import Release, change_finalizer, plan_release
from duramen_operator.plan.seen_logs import (
    SeenLog,
    find_changes,
    is_archived,
    is_closed,
    is_live,
    name_fields,
)
from duramen_operator.plan.steps import Call, Event, Plan, Step
from duramen_operator.resources import (
    LogCluster,
    LogNamespace,
    LogResource,
    ResourceError,
    merge_config,
)
from duramen_operator.resources.reading import parse_as

READY, AVAILABLE, PLACED, ARCHIVED = "Ready", "Available", "PlacementSatisfied", "Archived"
MOVING = ("tail", "sizeBytes", "segments", "owner")

LOOK_AGAIN = timedelta(seconds=30)
"""Logs change without a word to Kubernetes; so often the cluster is looked at."""

REFUSED_CONFIG = ("invalid_argument", "unknown_field", "placement_impossible", "invalid_name")


@dataclass(frozen=True, slots=True)
class Judged:
    """What is to be done about one Log, and what is so."""

    calls: tuple[Call, ...]
    ready: Said
    events: tuple[Event, ...] = ()

    def held(self) -> "Judged":
        """The same of a cluster that is paused: told, and not done."""
        if not self.calls:
            return self
        return Judged((), told_pause(self.ready))


def plan_logs(observed: Observed, now: datetime) -> Plan:
    """The steps for all Logs of the cluster."""
    steps: list[Step] = []
    again_at = None
    taken: dict[str, KubeObject] = {}
    unsure: set[str] = set()
    for item in oldest_first(observed.list("Log")):
        found = list(_plan_log(observed, item, taken, unsure, now))
        steps += found
        is_busy = any(isinstance(step, Call) for step in found)
        moment = now if is_busy and item.ref not in observed.refusals else now + LOOK_AGAIN
        again_at = moment if again_at is None else min(again_at, moment)
    return Plan(tuple(steps), again_at, frozenset(unsure))


def oldest_first(items: Iterable[KubeObject]) -> list[KubeObject]:
    """Whoever comes first has a name."""
    return sorted(items, key=lambda item: (str(item.metadata.get("creationTimestamp")), item.name))


def _plan_log(
    observed: Observed,
    item: KubeObject,
    taken: dict[str, KubeObject],
    unsure: set[str],
    now: datetime,
) -> Iterator[Step]:
    """The steps for one Log; who was there before it is in `taken`, and a log of which nothing new
    enough is known comes into `unsure`."""
    path = path_of(item)
    winner = taken.setdefault(path, item)
    seen = None if observed.admin.logs is None else observed.admin.logs.get(path)
    log = None if seen is None else SeenLog(seen)
    is_old = path in observed.admin.stale_logs
    if item.is_leaving:
        if FINALIZER in item.finalizers:
            release = _judge_release(item, log, is_ours=winner is item, is_old=is_old)
            if release.is_unsure and observed.admin.is_reachable:
                unsure.add(path)
            yield from plan_release(observed, item, release, now)
        return
    try:
        wanted = parse_as(LogResource, item.body)
    except ResourceError as error:
        yield from _report(item, not_ready("InvalidSpec", str(error)), None, now)
        return
    if winner is not item:
        message = f"log {path} belongs to Log {winner.name}, which is older: delete one of them"
        yield from change_finalizer(item, is_wanted=False)
        yield from _report(item, not_ready("NameTaken", message), None, now)
        return
    is_to_go = wanted.spec.deletion_policy == "Delete"
    finalizing = list(change_finalizer(item, is_wanted=is_to_go))
    yield from finalizing
    judged = _judge(observed, item, wanted, log, now, is_held=bool(finalizing) and is_to_go)
    if judged is None or (is_old and (judged.calls or not _is_settled(item))):
        unsure.add(path)
        return
    judged = judged.held() if observed.is_paused else judged
    yield from judged.calls
    yield from judged.events
    yield from _report(item, judged.ready, log, now)


def _is_settled(item: KubeObject) -> bool:
    """Whether it was told what this generation came to, and of which log."""
    is_seen = item.status.get("observedGeneration") == item.generation
    return is_seen and bool(item.status.get("logId"))


def path_of(item: KubeObject) -> str:
    """`namespace/log`, also of a Log that cannot be read as one."""
    return f"{item.spec.get('namespace', '')}/{item.spec.get('name') or item.name}"


# --- What is to be done ---------------------------------------------------------------------------


def _judge(
    observed: Observed,
    item: KubeObject,
    wanted: LogResource,
    log: SeenLog | None,
    now: datetime,
    *,
    is_held: bool,
) -> Judged | None:
    """What is to be done about a Log that stays; None: nothing is known of its log yet."""
    cluster = observed.cluster
    if cluster is None:
        message = f"there is no LogCluster {wanted.spec.cluster_name} in this namespace"
        return Judged((), not_ready("ClusterMissing", message))
    if cluster.is_leaving:
        return Judged((), not_ready("ClusterLeaving", "the cluster is being deleted"))
    if not observed.admin.is_reachable:
        message = f"the cluster does not answer: {observed.admin.reason}"
        return Judged((), Said(READY, "Unknown", "ClusterUnreachable", message))
    if log is None or log.is_not_asked:
        return None
    problem, refusal = log.problem, observed.refusals.get(item.ref)
    if problem is not None and problem.code == "namespace_not_found":
        return Judged((), _report_missing_namespace(observed, wanted))
    known_id = str(item.status.get("logId") or "")
    if log.is_absent and known_id:
        return Judged((), _report_gone(wanted, known_id))
    if problem is not None and not log.is_absent:
        return Judged((), Said(READY, "Unknown", "NotAnswered", f"{problem.code}: "
                               f"{problem.message}"))  # fmt: skip
    if log.is_absent:
        calls = () if is_held else (_make(item, wanted, cluster, observed),)
        said = told_refusal(refusal) or Said(READY, "Unknown", "Creating", "it is being made")
        return Judged(calls, said)
    if known_id and known_id != log.log_id:
        message = (
            f"the name {wanted.path} belongs to log {log.log_id} now, and this object was for log "
            f"{known_id}: delete this object, and make it anew to take the other log over"
        )
        return Judged((), not_ready("OtherLog", message))
    return _judge_present(item, wanted, log, refusal, now)


def _judge_present(
    item: KubeObject, wanted: LogResource, log: SeenLog, refusal: Problem | None, now: datetime
) -> Judged:
    calls: list[Call] = []
    events: list[Event] = []
    changes = find_changes(log.config, wanted.spec.config())
    url = _url(wanted)
    if changes:
        version = log.log.get("config_version")
        path = f"{url}?config_version={version}"
        calls.append(Call(item.ref, "PATCH", path, changes, log_id=log.log_id))
        if was_ready(item):
            fields = ", ".join(name_fields(changes))
            message = f"{fields}: changed outside of Kubernetes, and set again as the Log says"
            since = find_told(item)
            events.append(Event(item.ref, item.uid, "ConfigCorrected", message, since, now))
    if wanted.spec.sealed and not log.is_ended:
        calls.append(Call(item.ref, "POST", f"{url}:end", {}, log_id=log.log_id))
    truncation = _judge_truncation(wanted.spec.truncation, log)
    if isinstance(truncation, str):
        body = {"to": truncation}
        calls.append(Call(item.ref, "POST", f"{url}:truncate", body, log_id=log.log_id))
    said = told_refusal(refusal)
    if said is None and isinstance(truncation, Said):
        said = truncation
    if said is None and calls:
        fields = ", ".join((*name_fields(changes), *(c.path.rpartition(":")[2] for c in calls
                                                     if c.method == "POST")))  # fmt: skip
        said = Said(READY, "False", "Changing", f"being changed: {fields}")
    if said is None and log.is_ended and not wanted.spec.sealed:
        message = "the log has ended, which cannot be taken back: it takes no appends"
        said = Said(READY, "True", "Ended", message)
    if said is None:
        said = Said(READY, "True", "AsWanted", f"log {log.log_id} is as this object says")
    return Judged(tuple(calls), said, tuple(events))


def _make(item: KubeObject, wanted: LogResource, cluster: KubeObject, observed: Observed) -> Call:
    defaults = []
    try:
        whole = parse_as(LogCluster, cluster.body)
        defaults.append(whole.spec.defaults.log.config())
    except ResourceError:
        pass  # Its own condition says so; a log that names everything can be made all the same.
    space = find_namespace(observed, wanted.spec.namespace)
    if space is not None:
        defaults.append(space.spec.defaults.config())
    return Call(item.ref, "PUT", _url(wanted), merge_config(*defaults, wanted.spec.config()))


def find_namespace(observed: Observed, name: str) -> LogNamespace | None:
    """The LogNamespace that is about a namespace, the oldest of several."""
    named = [
        item
        for item in observed.list("LogNamespace")
        if str(item.spec.get("name") or item.name) == name
    ]
    for item in oldest_first(named):
        try:
            return parse_as(LogNamespace, item.body)
        except ResourceError:
            continue
    return None


def _judge_truncation(text: str | None, log: SeenLog) -> str | Said | None:
    """Where to truncate to; or why it is not done; or None: nothing is to be done."""
    if text is None:
        return None
    try:
        position = parse_position(text)
        head = log.head
        match position.kind:
            case PositionKind.HEAD:
                return None
            case PositionKind.SEQ:
                return text if position.number > int(head.get("seq_num", 0)) else None
            case PositionKind.DLSN:
                assert position.dlsn is not None
                return text if position.dlsn > parse_dlsn(str(head.get("dlsn"))) else None
            case PositionKind.LSN:
                lsn = str(head.get("dlsn")).rpartition("s")[0]
                return text if position.number > parse_lsn(lsn) else None
            case _:
                message = (
                    f"spec.truncation {text!r} is another place every time it is looked at: "
                    "write seq:N, dlsn:… or lsn:…"
                )
    except (DuramenError, ValueError) as error:
        message = f"spec.truncation: {error}"
    return not_ready("TruncationRefused", message)


def _judge_release(
    item: KubeObject, log: SeenLog | None, *, is_ours: bool, is_old: bool
) -> Release:
    """What a Log that is being deleted, with `deletionPolicy: Delete` once, still waits for."""
    path, known_id = path_of(item), str(item.status.get("logId") or "")
    if item.spec.get("deletionPolicy") != "Delete" or not is_ours:
        return Release.let_go("Retained", f"log {path} stays")
    if log is None or log.is_not_asked or is_old:
        return Release.look(f"log {path}: not known yet what became of it")
    problem = log.problem
    if log.is_absent or (problem is not None and problem.code == "namespace_not_found"):
        return Release.let_go("Deleted", f"log {path} is deleted")
    if problem is not None:
        return Release.wait(f"log {path}: {problem.code}: {problem.message}")
    if not known_id:
        # It was never seen to be this object's: perhaps somebody else's, made meanwhile.
        message = f"log {path} (id {log.log_id}) was never recorded as this object's: it stays"
        return Release.let_go("Retained", message, is_warning=True)
    if known_id != log.log_id:
        message = f"the name {path} belongs to log {log.log_id} now, not to {known_id}: it stays"
        return Release.let_go("Retained", message, is_warning=True)
    namespace, _, name = path.partition("/")
    url = f"/v1/namespaces/{quote(namespace)}/logs/{quote(name)}"
    call = Call(item.ref, "DELETE", url, log_id=log.log_id)
    return Release.call(call, f"log {path} is being deleted")


def _url(wanted: LogResource) -> str:
    return f"/v1/namespaces/{quote(wanted.spec.namespace)}/logs/{quote(wanted.log_name)}"


# --- What is so -----------------------------------------------------------------------------------


def _report(item: KubeObject, ready: Said, log: SeenLog | None, now: datetime) -> Iterator[Step]:
    if log is None or log.problem is not None:
        figures = {name: value for name, value in item.status.items()
                   if name not in ("conditions", "observedGeneration")}  # fmt: skip
        others = [_unknown(item, name) for name in (AVAILABLE, PLACED, ARCHIVED)]
        if log is not None and log.is_absent:
            others[0] = Said(AVAILABLE, "False", "Absent", "there is no such log")
    else:
        figures = _figures(item, log)
        others = [_report_available(log), _report_placement(log), _report_archive(log)]
    yield from report(item, [ready, *others], figures, now, MOVING)


def _report_available(log: SeenLog) -> Said:
    if log.is_ended:
        return Said(AVAILABLE, "True", "Sealed", "it has ended, and can be read")
    return Said(AVAILABLE, "True", "Open", "it takes appends")


def _figures(item: KubeObject, log: SeenLog) -> dict[str, Any]:
    segments = log.segments or ()
    tail = log.facts.get("tail")
    unknown = ["tail"] if tail is None else []
    unknown += ["sizeBytes", "segments"] if log.segments is None else []
    live = [one for one in segments if is_live(one)]
    figures: dict[str, Any] = {
        # Once known it stays: it says which log this object made, or took over.
        "logId": str(item.status.get("logId") or log.log_id),
        "owner": str(log.facts.get("owner") or ""),
        "sizeBytes": sum(int(one.get("bytes") or 0) for one in live),
        "segments": {
            "open": sum(not is_closed(one) for one in live),
            "closed": sum(is_closed(one) for one in live),
            "archived": sum(is_archived(one) for one in live),
            "truncated": len(segments) - len(live),
        },
        "sealed": log.is_ended,
        "config": dict(log.config),
        "tail": tail,
    }
    # What the cluster did not say is told as it was, or not at all.
    kept = {name: item.status[name] for name in unknown if name in item.status}
    return {name: value for name, value in figures.items() if name not in unknown} | kept


def _report_placement(log: SeenLog) -> Said:
    violations = log.facts.get("violations")
    if violations is None:
        return Said(PLACED, "Unknown", "NotAnswered", "the cluster did not say")
    if log.facts.get("refusal") is not None:
        message = f"no nodeset can be chosen: {log.facts['refusal']}"
        return Said(PLACED, "False", "NoNodeset", message)
    if violations == 0:
        return Said(PLACED, "True", "AsWanted", "every copy lies where its rule wants it")
    detail = log.facts.get("violation") or "see `duramen placement check`"
    message = f"{violations} write sets lie against their rule; the first: {detail}"
    return Said(PLACED, "False", "Violated", message)


def _report_archive(log: SeenLog) -> Said:
    if log.segments is None:
        return Said(ARCHIVED, "Unknown", "NotAnswered", "the cluster did not say")
    closed = log.segments_to_archive
    waiting = [one for one in closed if not is_archived(one)]
    if waiting and not log.is_tiered:
        message = "tiering.policy is none: it is archived only by its name"
        return Said(ARCHIVED, "False", "NotTiered", message)
    if waiting:
        message = f"{len(waiting)} of {len(closed)} closed segments are not archived yet"
        return Said(ARCHIVED, "False", "Waiting", message)
    return Said(ARCHIVED, "True", "AllArchived", f"{len(closed)} closed segments are archived")


def _unknown(item: KubeObject, condition_type: str) -> Said:
    """As it was last known: a silent cluster makes nothing untrue."""
    old = find_condition(item, condition_type)
    if old is None:
        return Said(condition_type, "Unknown", "NotObserved", "nothing is known of the log yet")
    status: Truth = old.get("status", "Unknown")
    return Said(condition_type, status, str(old.get("reason")), str(old.get("message", "")))


def _report_missing_namespace(observed: Observed, wanted: LogResource) -> Said:
    name = wanted.spec.namespace
    space = find_namespace(observed, name)
    advice = f"LogNamespace {space.name} is to make it" if space else "make a LogNamespace of it"
    return not_ready("NamespaceMissing", f"there is no namespace {name} in the cluster: {advice}")


def _report_gone(wanted: LogResource, known_id: str) -> Said:
    message = (
        f"log {known_id} was deleted outside of Kubernetes and is not made again, since it would "
        f"be empty: `duramen log undelete {wanted.path}` has it back for an hour; to begin anew, "
        "delete this object and make it again"
    )
    return not_ready("DeletedOutside", message)


def told_refusal(refusal: Problem | None) -> Said | None:
    """What the last pass was refused, in the server's own words."""
    if refusal is None:
        return None
    reason = "ConfigurationRefused" if refusal.code in REFUSED_CONFIG else "Refused"
    if refusal.is_retryable:
        reason = "NotAnswered"
    message = f"{refusal.code}: {refusal.message}"
    return Said(READY, "False", reason, message, is_event=True)


def not_ready(reason: str, message: str) -> Said:
    """Ready is False, and people hear of it."""
    return Said(READY, "False", reason, message, is_event=True)


def told_pause(ready: Said) -> Said:
    """What would be done if the cluster were not paused."""
    message = f"the cluster is paused, so nothing is done; {ready.message}"
    return Said(READY, "False", "Paused", message)


def was_ready(item: KubeObject) -> bool:
    """Whether the operator has already seen to this generation, and all was well."""
    condition = find_condition(item, READY)
    return (
        condition is not None
        and condition.get("status") == "True"
        and item.status.get("observedGeneration") == item.generation
    )
