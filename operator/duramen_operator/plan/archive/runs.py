"""Archive runs as Jobs: which there are of a policy, which run, how they ended, what they reported.

Jobs are a CronJob's or the operator's own; both carry the policy's name. What a run reports it
writes where Kubernetes keeps a container's last words, so that it is read from the pod's status and
no log has to be fetched.

Called by `triggers` and `plan`. Source: docs/archive.md.
"""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from duramen_operator.names import ARCHIVE, CLUSTER_LABEL, GROUP, SECURITY_LABEL
from duramen_operator.plan.cluster.nodes import name_secret
from duramen_operator.plan.observed import Json, KubeObject, Observed

POLICY_LABEL = f"{GROUP}/archive-policy"
CAUSE_ANNOTATION = f"{GROUP}/archive-cause"
SET_ANNOTATION = f"{GROUP}/archive-set"
DUE_ANNOTATION = f"{GROUP}/archive-due"
_JOB_LABEL = "batch.kubernetes.io/job-name"

SCHEDULE, CLOSED_SEGMENTS, MISSED_SCHEDULE = "Schedule", "ClosedSegments", "MissedSchedule"


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a policy.

    Attributes:
        result: Running, Succeeded or Failed.
        delay: why nothing of it runs, for people; "" where its pod has begun, or it is over.
        report: what it said at its end; empty where nothing is known of that.
    """

    name: str
    cause: str
    started: datetime
    finished: datetime | None
    result: str
    delay: str
    report: Json
    digest: str
    """Of what waited when the operator started it; empty for those of a CronJob."""
    due: str
    """Unix minutes of the scheduled time that it serves, as text; empty for other causes."""

    @property
    def is_running(self) -> bool:
        return self.finished is None


def list_runs(observed: Observed, policy: str) -> tuple[Run, ...]:
    """The policy's runs that are still known, the oldest first."""
    pods = observed.list("Pod")
    found = [
        _read(job, pods)
        for job in observed.list("Job")
        if job.labels.get(POLICY_LABEL) == policy and job.metadata.get("creationTimestamp")
    ]
    return tuple(sorted(found, key=lambda run: (run.started, run.name)))


def count_failed(runs: tuple[Run, ...]) -> int:
    """Runs that failed since the last one that did not."""
    count = 0
    for run in reversed(runs):
        if run.result == "Succeeded":
            break
        count += run.result == "Failed"
    return count


def _read(job: KubeObject, pods: tuple[KubeObject, ...]) -> Run:
    result, finished = "Running", None
    for condition in job.status.get("conditions") or ():
        if condition.get("status") == "True" and condition.get("type") in ("Complete", "Failed"):
            result = "Succeeded" if condition["type"] == "Complete" else "Failed"
            finished = datetime.fromisoformat(str(condition["lastTransitionTime"]))
    own = [pod for pod in pods if pod.labels.get(_JOB_LABEL) == job.name]
    due = job.annotations.get(DUE_ANNOTATION, "")
    cause = job.annotations.get(CAUSE_ANNOTATION, SCHEDULE)
    if cause == SCHEDULE:
        due = job.name.rpartition("-")[2]
    return Run(
        name=job.name,
        cause=cause,
        started=datetime.fromisoformat(str(job.metadata["creationTimestamp"])),
        finished=finished,
        result=result,
        delay="" if finished is not None else _explain_delay(job, own),
        report=_read_report(own),
        digest=job.annotations.get(SET_ANNOTATION, ""),
        due=due,
    )


def _explain_delay(job: KubeObject, pods: list[KubeObject]) -> str:
    if not pods:
        # Not made yet, refused, or gone with its node: of none of these is the key the cause.
        return f"it has no pod: `kubectl describe job {job.name}` may say why"
    if any(map(_is_begun, pods)):
        return ""
    if job.labels.get(SECURITY_LABEL) != "on":
        return "its pod has not begun"
    secret = name_secret(job.labels[CLUSTER_LABEL], ARCHIVE)
    return f"its pod has not begun: does the Secret {secret} hold tls.crt, tls.key and ca.crt?"


def _is_begun(pod: KubeObject) -> bool:
    """Whether a container was started, or never will be: one that is evicted tells no state."""
    if pod.status.get("phase") in ("Succeeded", "Failed"):
        return True
    states = [one.get("state") or {} for one in pod.status.get("containerStatuses") or ()]
    return any("running" in state or "terminated" in state for state in states)


def _read_report(pods: list[KubeObject]) -> dict[str, Any]:
    for pod in sorted(pods, key=lambda one: str(one.metadata.get("creationTimestamp")),
                      reverse=True):  # fmt: skip
        for container in pod.status.get("containerStatuses") or ():
            ended = (container.get("state") or {}).get("terminated") or {}
            try:
                report = json.loads(ended.get("message") or "")
            except ValueError:
                continue
            if isinstance(report, dict):
                return report
    return {}
