"""The plan for ArchivePolicies: manifests as they should be, runs that are due, and what to tell.

Which segments wait may have been read in an earlier look. It is told so; a run is started once a
log was read in this look that has a segment for it.

What a policy lacks (a cold store, a schedule that is one) is told and keeps it from running; a
silent cluster keeps only runs from being started that depend on what waits. With the policy, its
objects go by owner references; nothing has a finalizer.

Called by `plan.plan`. Source: docs/kubernetes/archive.md "When", docs/archive.md,
docs/kubernetes/security.md "Archive runs".
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from duramen_operator.plan.archive.admission import (
    find_obstacle,
    judge_destination,
    judge_runner,
)
from duramen_operator.plan.archive.manifests import Job, make_run, make_scheduled
from duramen_operator.plan.archive.runs import (
    POLICY_LABEL,
    Run,
    count_failed,
    list_runs,
)
from duramen_operator.plan.archive.triggers import (
    Due,
    Schedule,
    ScheduleError,
    find_closed,
    find_last_due,
    find_missed,
)
from duramen_operator.plan.archive.waiting import LogSelection, choose
from duramen_operator.plan.cluster.frame import ClusterFrame
from duramen_operator.plan.conditions import Said, find_told, format_time, report
from duramen_operator.plan.manifests import plan_apply
from duramen_operator.plan.observed import KubeObject, Observed
from duramen_operator.plan.steps import Apply, Delete, Event, Plan, Step
from duramen_operator.resources import ArchivePolicy, ResourceError
from duramen_operator.resources.reading import parse_as

READY, PROGRESSING, ARCHIVED = "Ready", "Progressing", "Archived"
LOOK_AGAIN = timedelta(seconds=30)
READ_FIRST_COUNT = 100
"""Logs that one look reads anew before a run: they are asked in a few seconds."""
LAG_STEP_S = 60
"""The lag grows by itself: it is told in whole minutes."""

MOVING = ("lagSeconds", "lagSegments", "closedSegments")
_FINAL = ("ClusterMissing", "NotYetSupported", "OtherColdStore")
"""Of these no run comes to a good end, whatever was made before."""
MADE = ("CronJob", "ScheduledSparkApplication", "ConfigMap")


def plan_archive(observed: Observed, now: datetime) -> Plan:
    """The steps for all ArchivePolicies of the cluster."""
    steps: list[Step] = []
    unsure: set[str] = set()
    policies = [item for item in observed.list("ArchivePolicy") if not item.is_leaving]
    for item in policies:
        steps += _plan_policy(observed, item, unsure, now)
    return Plan(tuple(steps), now + LOOK_AGAIN if policies else None, frozenset(unsure))


def _plan_policy(
    observed: Observed, item: KubeObject, unsure: set[str], now: datetime
) -> Iterator[Step]:
    """The steps for one policy; logs that are to be read before its run come into `unsure`."""
    runs = list_runs(observed, item.name)
    try:
        job = _read(observed, item)
        if isinstance(job, Said):
            if job.reason in _FINAL:
                # A policy outlives its cluster; a schedule of runs that must fail shall not.
                yield from _plan_removal(observed, item, set())
            yield from _report(item, job, runs, None, now)
            return
        if job.spec.schedule is not None:
            find_last_due(job.spec.schedule, now)
    except (ResourceError, ScheduleError) as error:
        said = Said(READY, "False", "InvalidSpec", str(error), is_event=True)
        yield from _report(item, said, runs, None, now)
        return
    manifests = make_scheduled(job)
    for manifest in manifests:
        yield from plan_apply(observed, manifest)
    yield from _plan_removal(
        observed, item, {(m["kind"], m["metadata"]["name"]) for m in manifests}
    )
    keep_hot = timedelta(microseconds=job.spec.keep_hot)
    logs = observed.admin.logs if observed.admin.is_reachable else None
    choice = choose(logs, observed.admin.unlisted, job.spec.selector, keep_hot, now)
    due = _find_due(job, item, runs, choice, now)
    stale = observed.admin.stale_logs
    if due is not None and _find_due(job, item, runs, choice.without(stale), now) is None:
        # What waited when it was read last may be archived by now: a run for nothing is a JVM.
        waiting = dict.fromkeys(one.path for one in choice.waiting if one.path in stale)
        unsure.update(tuple(waiting)[:READ_FIRST_COUNT])
        due = None
    if due is not None:
        message = f"{due.name}: {len(choice.waiting)} segments wait"
        # Of what waits longest: a run that cannot be made is told once, and tried again. It is told
        # first: of a run that is there no pass tells any more.
        since = choice.waiting[0].completed if choice.waiting else find_told(item)
        yield Event(item.ref, item.uid, f"{due.cause}Run", message, since, now)
        yield Apply(make_run(job, due))
    yield from _report(item, _report_ready(observed, item, job), runs, choice, now)


def _read(observed: Observed, item: KubeObject) -> Job | Said:
    cluster = observed.cluster
    if cluster is None or cluster.is_leaving:
        message = f"there is no LogCluster {observed.cluster_name} in this namespace"
        return Said(READY, "False", "ClusterMissing", message)
    spec = parse_as(ArchivePolicy, item.body).spec
    frame = ClusterFrame.read(observed, cluster)
    if frame.is_held:
        message = f"the LogCluster {cluster.name} is held: see its condition {PROGRESSING}"
        return Said(READY, "False", "ClusterHeld", message, is_event=True)
    store = frame.spec.cold_store
    if store is None:
        message = (
            "nowhere to archive to: set spec.coldStore of the LogCluster, which its readers need "
            "as well"
        )
        return Said(READY, "False", "NoColdStore", message, is_event=True)
    elsewhere = judge_destination(spec.destination, store)
    if elsewhere:
        return Said(READY, "False", "OtherColdStore", elsewhere, is_event=True)
    job = Job(frame, item, spec, store, find_obstacle(frame))
    refused = judge_runner(job)
    return job if not refused else Said(READY, "False", "NotYetSupported", refused, is_event=True)


def _find_due(
    job: Job, item: KubeObject, runs: tuple[Run, ...], choice: LogSelection, now: datetime
) -> Due | None:
    if (
        job.spec.suspend
        or job.obstacle
        or job.runner == "ScheduledSparkApplication"
        or job.frame.observed.is_paused
    ):
        return None
    since = datetime.fromisoformat(str(item.metadata["creationTimestamp"]))
    missed = None
    if job.spec.schedule is not None:
        missed = find_missed(Schedule(job.base, job.spec.schedule, since), runs, choice, now)
    if missed is None and job.spec.on_closed_segments:
        return find_closed(job.base, runs, choice, now)
    return missed


def _plan_removal(
    observed: Observed, item: KubeObject, wanted: set[tuple[str, str]]
) -> Iterator[Delete]:
    """What another runner, or a schedule that is gone, has left."""
    for kind in MADE:
        for made in observed.list(kind):
            is_ours = made.labels.get(POLICY_LABEL) == item.name and item.uid in made.owner_uids
            if is_ours and (kind, made.name) not in wanted and not made.is_leaving:
                yield Delete(made.ref, made.uid, made.resource_version)


# --- What is so -----------------------------------------------------------------------------------


def _report_ready(observed: Observed, item: KubeObject, job: Job) -> Said:
    refusal = observed.refusals.get(item.ref)
    for about, problem in observed.refusals.items():
        if about.kind in (*MADE, "Job") and about.name.startswith(job.base):
            refusal = problem
    is_kubeflow = job.runner == "ScheduledSparkApplication"
    if is_kubeflow and refusal is not None and refusal.code == "Http404":
        message = (
            "there is no kind ScheduledSparkApplication here: install kubeflow's Spark operator"
        )
        return Said(READY, "False", "NoSparkOperator", message, is_event=True)
    if refusal is not None:
        message = f"{refusal.code}: {refusal.message}"
        return Said(READY, "False", "Refused", message, is_event=True)
    if job.spec.suspend:
        return Said(READY, "True", "Suspended", "no new runs: spec.suspend")
    if job.obstacle:
        return Said(READY, "False", "NoIdentity", job.obstacle, is_event=True)
    if job.spec.schedule is None and not job.spec.on_closed_segments:
        message = "nothing starts a run: set spec.schedule or spec.onClosedSegments"
        return Said(READY, "False", "NoTrigger", message)
    if is_kubeflow:
        message = "the Spark operator runs it at its schedule, and makes up for nothing"
        return Said(READY, "True", "Scheduled", message)
    causes = [f"at {job.spec.schedule} UTC"] if job.spec.schedule else []
    causes += ["as segments are closed"] if job.spec.on_closed_segments else []
    return Said(READY, "True", "Scheduled", f"runs {' and '.join(causes)}")


def _report(
    item: KubeObject,
    ready: Said,
    runs: tuple[Run, ...],
    choice: LogSelection | None,
    now: datetime,
) -> Iterator[Step]:
    conditions = [ready, _report_progress(runs), _report_archived(choice, runs)]
    yield from report(item, conditions, _figures(item, runs, choice, now), now, MOVING)


def _report_progress(runs: tuple[Run, ...]) -> Said:
    running = [run for run in runs if run.is_running]
    if not running:
        return Said(PROGRESSING, "False", "Idle", "no run is under way")
    newest = running[-1]
    if newest.delay:
        return Said(PROGRESSING, "True", "Waiting", f"{newest.name} waits: {newest.delay}")
    return Said(PROGRESSING, "True", "Running", f"{newest.name} runs")


def _report_archived(choice: LogSelection | None, runs: tuple[Run, ...]) -> Said:
    if choice is None or not choice.is_known:
        return Said(ARCHIVED, "Unknown", "NotAnswered", "not all chosen logs could be read")
    ended = [run for run in runs if not run.is_running]
    if ended and ended[-1].report.get("mismatches"):
        message = f"{ended[-1].name} found copies that do not agree: see docs/archive.md"
        return Said(ARCHIVED, "False", "Mismatch", message, is_event=True)
    if choice.waiting and count_failed(runs):
        failures = str(ended[-1].report.get("failure") or "see the log of its pod")
        message = f"{len(choice.waiting)} segments wait; {ended[-1].name} failed: {failures}"
        return Said(ARCHIVED, "False", "RunFailed", message, is_event=True)
    if choice.waiting:
        message = f"{len(choice.waiting)} of {choice.closed_count} closed segments wait"
        return Said(ARCHIVED, "False", "Waiting", message)
    return Said(ARCHIVED, "True", "AllArchived", "no segment waits")


def _figures(
    item: KubeObject, runs: tuple[Run, ...], choice: LogSelection | None, now: datetime
) -> dict[str, Any]:
    kept = ("lastScheduledTime", "lastRun", "lastSuccess", "bytesArchived", "mismatches")
    figures: dict[str, Any] = {name: item.status[name] for name in kept if name in item.status}
    figures["failedRuns"] = count_failed(runs)
    if choice is not None and choice.is_known:
        lag_s = 0
        if choice.waiting:
            lag_s = int((now - choice.waiting[0].completed).total_seconds())
        figures |= {
            "closedSegments": choice.closed_count,
            "lagSegments": len(choice.waiting),
            "lagSeconds": lag_s // LAG_STEP_S * LAG_STEP_S,
        }
    served = [int(run.due) for run in runs if run.due.isdigit()]
    if served:
        moment = datetime.fromtimestamp(max(served) * 60, now.tzinfo)
        figures["lastScheduledTime"] = format_time(moment)
    if runs:
        newest = runs[-1]
        figures["lastRun"] = {
            "name": newest.name, "cause": newest.cause, "started": format_time(newest.started),
            "finished": "" if newest.finished is None else format_time(newest.finished),
            "result": newest.result,
        }  # fmt: skip
    good = [run for run in runs if run.result == "Succeeded" and run.finished is not None]
    if good and good[-1].finished is not None:
        figures["lastSuccess"] = format_time(good[-1].finished)
    # A run that failed at its start has counted nothing, and takes no mismatch back.
    told = [run.report for run in runs if "mismatches" in run.report]
    if told:
        figures["bytesArchived"] = int(told[-1].get("file_bytes", 0))
        figures["mismatches"] = int(told[-1]["mismatches"])
    return figures
