"""The plan for ArchivePolicies: what waits, when a run is due, under which name, what is told.

Each test is an observation and what follows of it; `worlds` spells observations. The manifests'
fitness for a real API server is tested in controllers/test_archive.py.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from duramen_operator.plan.archive.plan import plan_archive
from duramen_operator.plan.archive.triggers import BACKOFF, GRACE, ScheduleError, find_last_due
from duramen_operator.plan.conditions import format_time
from duramen_operator.plan.observed import Observed
from duramen_operator.plan.steps import Apply, Delete, Event
from tests.kubernetes.plan.archive_world import (
    CLOSED,
    FOUNDED,
    HOURLY,
    STORE,
    make_job,
    make_policy,
    tiered,
    world,
)
from tests.kubernetes.plan.secured_world import SECURED
from tests.kubernetes.plan.worlds import (
    NOW,
    ago,
    apply_status,
    condition_of,
    make_cluster,
    observe,
    see_log,
    see_problem,
    see_segment,
    steps_of,
)

PAUSE = timedelta(microseconds=BACKOFF.first_us)
DUE = datetime.fromisoformat("2026-11-22T12:00:00Z")


def jobs_of(observed: Observed, now: datetime = NOW) -> list[str]:
    return [
        step.about.name for step in steps_of(plan_archive(observed, now), Apply)
        if step.about.kind == "Job"
    ]  # fmt: skip


def made(observed: Observed, kind: str) -> dict[str, Any]:
    plan = plan_archive(observed, NOW)
    found = [step for step in steps_of(plan, Apply) if step.about.kind == kind]
    assert len(found) == 1, [step.about for step in steps_of(plan, Apply)]
    return dict(found[0].manifest)


# --- Manifests ------------------------------------------------------------------------------------


def test_a_cron_job_submits_the_archive_job() -> None:
    spec = {**HOURLY, "selector": {"namespace": "shop", "logs": "o*"}, "keepHot": "90m"}
    cron = made(world(spec), "CronJob")
    assert cron["metadata"]["name"] == "all-archive"
    assert cron["metadata"]["ownerReferences"][0]["name"] == "all"
    assert cron["spec"]["schedule"] == "0 * * * *"
    assert cron["spec"]["timeZone"] == "Etc/UTC"
    assert cron["spec"]["concurrencyPolicy"] == "Forbid"
    pod = cron["spec"]["jobTemplate"]["spec"]["template"]
    assert pod["metadata"]["labels"]["duramen.io/archive-policy"] == "all"
    container = pod["spec"]["containers"][0]
    assert container["command"] == ["spark-submit"]
    arguments = container["args"]
    assert arguments[arguments.index("archive") + 1] == "shop/o*"
    flags = dict(zip(arguments[-10::2], arguments[-9::2], strict=True))
    assert flags == {
        "--zookeeper": "main-zookeeper-client.test.svc:2181", "--cluster": "main",
        "--cold-store": "s3://bucket/archive", "--summary-file": "/dev/termination-log",
        "--keep-hot": "1h30m",
    }  # fmt: skip
    assert container["envFrom"] == [{"secretRef": {"name": "keys"}}]
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["spec"]["restartPolicy"] == "Never"


def test_a_store_in_a_claim_is_mounted_where_its_url_says() -> None:
    store = {"url": "file:///archive", "claimName": "archive"}
    policy = make_policy({**HOURLY, "destination": store})
    cron = made(observe(make_cluster({"coldStore": store}), policy, logs={}), "CronJob")
    pod = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    claims = [v for v in pod["volumes"] if "persistentVolumeClaim" in v]
    assert [v["persistentVolumeClaim"]["claimName"] for v in claims] == ["archive"]
    mounts = {m["name"]: m["mountPath"] for m in pod["containers"][0]["volumeMounts"]}
    assert mounts["cold"] == "/archive"


def test_spark_on_kubernetes_has_a_token_and_a_template_for_executors() -> None:
    observed = world({**HOURLY, "runner": "SparkOnKubernetes"})
    pod = made(observed, "CronJob")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == "main-archive"
    assert pod["automountServiceAccountToken"] is True
    assert "k8s://https://kubernetes.default.svc" in pod["containers"][0]["args"]
    executor = json.loads(made(observed, "ConfigMap")["data"]["pod.yaml"])
    security = executor["spec"]["containers"][0]["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert executor["spec"]["automountServiceAccountToken"] is False


def test_kubeflow_gets_its_own_kind() -> None:
    application = made(world({**HOURLY, "runner": "ScheduledSparkApplication"}),
                       "ScheduledSparkApplication")  # fmt: skip
    assert application["spec"]["schedule"] == "0 * * * *"
    template = application["spec"]["template"]
    assert template["mainApplicationFile"].startswith("local:///opt/duramen/")
    assert template["arguments"][:2] == ["archive", "*/*"]


def test_what_another_runner_left_is_removed() -> None:
    first = made(world(HOURLY), "CronJob")
    left = {**first, "metadata": {**first["metadata"], "uid": "u", "resourceVersion": "3"}}
    plan = plan_archive(world({**HOURLY, "runner": "ScheduledSparkApplication"}, left), NOW)
    assert [(step.about.kind, step.uid) for step in steps_of(plan, Delete)] == [("CronJob", "u")]
    plan = plan_archive(world(CLOSED, left), NOW)
    assert [step.about.kind for step in steps_of(plan, Delete)] == ["CronJob"]
    assert not steps_of(plan_archive(world(HOURLY, left), NOW), Delete)
    alone = observe(make_policy(HOURLY), left)
    assert [step.about.kind for step in steps_of(plan_archive(alone, NOW), Delete)] == ["CronJob"]


# --- Closed segments ------------------------------------------------------------------------------


def test_closed_segments_start_one_run_with_a_name_of_what_waits() -> None:
    first, again = jobs_of(world(CLOSED)), jobs_of(world(CLOSED))
    assert first == again
    assert len(first) == 1
    more = tiered(see_segment(1, ago(hours=2)), see_segment(2, ago(hours=1)))
    assert jobs_of(world(CLOSED, logs={"shop/orders": more})) != first
    running = make_job(first[0], ago(seconds=5))
    assert jobs_of(world(CLOSED, running)) == []
    assert condition_of(plan_archive(world(CLOSED, running), NOW), "all", "Progressing")[0] == (
        "True"
    )


@pytest.mark.parametrize(
    "log",
    [
        tiered(see_segment(1, ago(hours=2)), policy="none"),
        tiered(see_segment(1, None)),
        tiered(see_segment(1, ago(hours=2), cold_copy={"bytes": 1})),
        tiered(see_segment(1, ago(hours=2), status="TRUNCATED")),
        see_log(segments=[see_segment(1, ago(hours=2))],
                config={"tiering": {"policy": "copy", "min_size": "2KiB"}}),
        see_problem("log_not_found"),
    ],
    ids=["not tiered", "open", "archived", "truncated", "small", "gone"],
)  # fmt: skip
def test_what_the_job_would_leave_alone_starts_nothing(log: dict[str, Any]) -> None:
    plan = plan_archive(world(CLOSED, logs={"shop/orders": log}), NOW)
    assert steps_of(plan, Apply) == []
    assert condition_of(plan, "all", "Archived")[:2] == ("True", "AllArchived")


def test_a_log_without_tiering_is_taken_by_its_whole_name() -> None:
    log = {"shop/orders": tiered(see_segment(1, ago(hours=2)), policy="none")}
    whole = {**CLOSED, "selector": {"namespace": "shop", "logs": "orders"}}
    assert len(jobs_of(world(whole, logs=log))) == 1
    other = {**CLOSED, "selector": {"namespace": "shop", "logs": "others"}}
    assert jobs_of(world(other, logs=log)) == []


def test_segments_wait_until_they_are_old_enough() -> None:
    spec = {**CLOSED, "keepHot": "3h"}
    assert jobs_of(world(spec)) == []
    assert len(jobs_of(world(spec), NOW + timedelta(hours=1))) == 1


def test_what_is_not_known_starts_nothing() -> None:
    logs = {"shop/orders": tiered(see_segment(1, ago(hours=2))),
            "shop/other": see_problem("metadata_unavailable")}  # fmt: skip
    for observed in (world(CLOSED, logs=logs), world(CLOSED, is_reachable=False)):
        plan = plan_archive(observed, NOW)
        assert steps_of(plan, Apply) == []
        assert condition_of(plan, "all", "Archived")[0] == "Unknown"


def test_runs_that_change_nothing_come_ever_more_slowly() -> None:
    first = jobs_of(world(CLOSED))[0]
    digest = first.split("-")[-2]
    ended = make_job(first, ago(minutes=2), ago(seconds=90), set=digest)
    ended["metadata"]["annotations"] = {
        "duramen.io/archive-set": digest, "duramen.io/archive-cause": "ClosedSegments",
    }  # fmt: skip
    assert jobs_of(world(CLOSED, ended)) == []
    later = NOW + PAUSE
    assert jobs_of(world(CLOSED, ended), later) == [f"{first[:-1]}1"]


# --- Schedules ------------------------------------------------------------------------------------


def test_a_missed_run_is_made_up_once_under_the_name_that_it_would_have_had() -> None:
    name = f"all-archive-{int(DUE.timestamp()) // 60}"
    assert jobs_of(world(HOURLY), DUE + GRACE - timedelta(seconds=1)) == []
    late = DUE + GRACE
    assert jobs_of(world(HOURLY), late) == [name]
    running = make_job(name, late)
    assert jobs_of(world(HOURLY, running), late + GRACE) == []
    good = make_job(name, late, late + PAUSE)
    assert jobs_of(world(HOURLY, good), late + 5 * PAUSE) == []
    failed = make_job(name, late, late + PAUSE, is_good=False)
    assert jobs_of(world(HOURLY, failed), late + 2 * PAUSE) == []
    assert jobs_of(world(HOURLY, failed), late + 3 * PAUSE) == [f"{name}-1"]


def test_nothing_is_made_up_that_was_not_missed() -> None:
    late = DUE + GRACE
    fresh = {"shop/orders": tiered(see_segment(1, DUE + timedelta(seconds=1)))}
    assert jobs_of(world(HOURLY, logs=fresh), late) == []
    young = make_policy(HOURLY, metadata={"creationTimestamp": format_time(DUE + PAUSE)})
    logs = {"shop/orders": tiered(see_segment(1, ago(hours=2)))}
    assert jobs_of(observe(make_cluster(STORE), young, logs=logs), late) == []
    assert jobs_of(world({**HOURLY, "suspend": True}), late) == []
    assert jobs_of(world({**HOURLY, "runner": "ScheduledSparkApplication"}), late) == []
    paused = make_cluster(STORE, metadata={"annotations": {"duramen.io/paused": "true"}})
    assert jobs_of(observe(paused, make_policy(HOURLY), logs=logs), late) == []


@pytest.mark.parametrize(
    ("schedule", "due"),
    [
        ("@hourly", "2026-11-22T12:00:00Z"), ("@daily", "2026-11-22T00:00:00Z"),
        ("*/20 * * * *", "2026-11-22T12:00:00Z"), ("15 3 * * SUN", "2026-11-22T03:15:00Z"),
        ("0 0 1 1 *", "2026-01-01T00:00:00Z"),
    ],
)  # fmt: skip
def test_schedules_are_read_as_cron_reads_them(schedule: str, due: str) -> None:
    assert find_last_due(schedule, NOW) == datetime.fromisoformat(due)


@pytest.mark.parametrize("schedule", ["61 * * * *", "0 0 30 2 *", "* * * FOO *"])
def test_schedules_that_never_come_are_refused(schedule: str) -> None:
    with pytest.raises(ScheduleError):
        find_last_due(schedule, NOW)
    plan = plan_archive(world({"schedule": schedule}), NOW)
    assert condition_of(plan, "all")[:2] == ("False", "InvalidSpec")
    assert not steps_of(plan, Apply)


# --- What is told ---------------------------------------------------------------------------------


def test_runs_and_lag_are_told() -> None:
    name = f"all-archive-{int(DUE.timestamp()) // 60}"
    job = make_job(name, DUE, DUE + timedelta(seconds=20))
    report = {"file_bytes": 4096, "mismatches": 0, "failures": 0}
    pod = {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "pod", "labels": {"batch.kubernetes.io/job-name": name}},
        "status": {"containerStatuses": [{"state": {"terminated": {"message":
                   json.dumps(report)}}}]},
    }  # fmt: skip
    observed = world(HOURLY, job, pod)
    plan = plan_archive(observed, NOW)
    status = apply_status(make_policy(HOURLY), plan)["status"]
    assert status["lastRun"] == {
        "name": name, "cause": "Schedule", "started": "2026-11-22T12:00:00Z",
        "finished": "2026-11-22T12:00:20Z", "result": "Succeeded",
    }  # fmt: skip
    assert status["lastScheduledTime"] == "2026-11-22T12:00:00Z"
    assert status["lastSuccess"] == "2026-11-22T12:00:20Z"
    assert (status["bytesArchived"], status["mismatches"], status["failedRuns"]) == (4096, 0, 0)
    lag = (status["closedSegments"], status["lagSegments"], status["lagSeconds"])
    assert lag == (1, 1, 7200)
    told = apply_status(make_policy(HOURLY), plan)
    calm = observe(make_cluster(STORE), told, job, pod, logs=observed.admin.logs)
    kinds = {step.about.kind for step in plan_archive(calm, NOW).steps}
    assert kinds == {"CronJob"}  # nothing but what is still to be made


@pytest.mark.parametrize(
    ("report", "reason"),
    [({"mismatches": 1, "failures": 0}, "Mismatch"), ({"failure": "cold store"}, "RunFailed")],
)
def test_runs_that_went_wrong_are_told(report: dict[str, Any], reason: str) -> None:
    job = make_job("r", ago(minutes=2), ago(minutes=1), is_good=False)
    pod = {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "pod", "labels": {"batch.kubernetes.io/job-name": "r"}},
        "status": {"containerStatuses": [{"state": {"terminated": {"message":
                   json.dumps(report)}}}]},
    }  # fmt: skip
    plan = plan_archive(world(HOURLY, job, pod), NOW)
    assert condition_of(plan, "all", "Archived")[:2] == ("False", reason)
    assert reason in [event.reason for event in steps_of(plan, Event)]


def test_a_run_that_failed_at_its_start_takes_no_mismatch_back() -> None:
    jobs, pods = [], []
    for name, minutes, report in (("a", 9, {"mismatches": 2, "file_bytes": 7}),
                                  ("b", 5, {"failure": "no session"})):  # fmt: skip
        jobs.append(make_job(name, ago(minutes=minutes), ago(minutes=minutes - 1), is_good=False))
        ended = {"state": {"terminated": {"message": json.dumps(report)}}}
        labels = {"batch.kubernetes.io/job-name": name}
        pods.append(
            {
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels},
                "status": {"containerStatuses": [ended]},
            }
        )  # fmt: skip
    plan = plan_archive(world(HOURLY, *jobs, *pods), NOW)
    status = apply_status(make_policy(HOURLY), plan)["status"]
    assert (status["mismatches"], status["bytesArchived"], status["failedRuns"]) == (2, 7, 2)
    assert "b failed: no session" in condition_of(plan, "all", "Archived")[2]


def test_what_a_policy_lacks_is_told() -> None:
    plan = plan_archive(observe(make_cluster(), make_policy(HOURLY), logs={}), NOW)
    assert condition_of(plan, "all")[:2] == ("False", "NoColdStore")


BUCKET = {"url": "s3://bucket/archive"}
CLAIMED = {"url": "file:///cold", "claimName": "shared"}


@pytest.mark.parametrize("security", [{}, SECURED], ids=["none", "on"])
@pytest.mark.parametrize(
    ("store", "other", "words"),
    [
        (BUCKET, {"url": "s3://other"}, "url s3://other is not"),
        (CLAIMED, {**CLAIMED, "claimName": "mine"}, "claimName mine is not"),
        ({**BUCKET, "secretName": "keys"}, {**BUCKET, "secretName": "mine"}, "it is keys"),
        (BUCKET, {**BUCKET, "secretName": "mine"}, "it is left out"),
    ],
    ids=["url", "claim", "secret", "a secret where there is none"],
)
def test_segments_are_archived_where_readers_look_and_nowhere_else(
    store: dict[str, Any], other: dict[str, Any], words: str, security: dict[str, Any]
) -> None:
    """The mark of a cold copy does not say where it is, and bookies drop what has one."""
    cluster = make_cluster({"coldStore": store, **security})
    logs = {"shop/orders": tiered(see_segment(1, ago(hours=2)))}
    before = made(observe(cluster, make_policy(HOURLY), FOUNDED, logs=logs), "CronJob")
    left = {**before, "metadata": {**before["metadata"], "uid": "u", "resourceVersion": "3"}}
    policy = make_policy({**HOURLY, **CLOSED, "destination": other})
    plan = plan_archive(observe(cluster, policy, FOUNDED, left, logs=logs), NOW)
    assert steps_of(plan, Apply) == []
    assert [(step.about.kind, step.uid) for step in steps_of(plan, Delete)] == [("CronJob", "u")]
    status, reason, message = condition_of(plan, "all")
    assert (status, reason) == ("False", "OtherColdStore")
    assert words in message


def test_what_a_destination_leaves_out_is_the_clusters() -> None:
    """A run without the Secret would look for the bucket at another server."""
    for destination in (BUCKET, STORE["coldStore"]):
        job = made(world({**HOURLY, "destination": destination}), "CronJob")["spec"]["jobTemplate"]
        container = job["spec"]["template"]["spec"]["containers"][0]
        assert container["envFrom"] == [{"secretRef": {"name": "keys"}}]


def test_a_policy_without_a_cluster_or_a_trigger_is_told() -> None:
    plan = plan_archive(observe(make_policy(HOURLY)), NOW)
    assert condition_of(plan, "all")[:2] == ("False", "ClusterMissing")
    plan = plan_archive(world({}), NOW)
    assert condition_of(plan, "all")[:2] == ("False", "NoTrigger")


# --- Old facts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [CLOSED, HOURLY])
def test_a_run_waits_until_a_log_was_read_that_has_a_segment_for_it(spec: dict[str, Any]) -> None:
    logs = {f"shop/{name}": tiered(see_segment(1, ago(hours=2))) for name in "ab"}
    fresh = world(spec, logs=logs)
    late = NOW + GRACE
    assert len(jobs_of(fresh, late)) == 1
    one_old = replace(fresh, admin=replace(fresh.admin, stale_logs=frozenset({"shop/a"})))
    assert jobs_of(one_old, late) == jobs_of(fresh, late)
    old = replace(fresh, admin=replace(fresh.admin, stale_logs=frozenset(logs)))
    assert jobs_of(old, late) == []
    plan = plan_archive(old, late)
    assert plan.unsure == set(logs)
    assert condition_of(plan, "all", "Archived")[:2] == ("False", "Waiting")


@pytest.mark.parametrize(("space", "is_known"), [("shop", False), ("*", False), ("fair", True)])
def test_a_policy_is_not_sure_of_logs_that_could_not_be_listed(space: str, is_known: bool) -> None:
    observed = world({**CLOSED, "selector": {"namespace": "s*"}})
    admin = replace(observed.admin, unlisted=frozenset({space}))
    unlisted = replace(observed, admin=admin)
    assert bool(jobs_of(unlisted)) == is_known
    said = condition_of(plan_archive(unlisted, NOW), "all", "Archived")
    assert (said[0] != "Unknown") == is_known
