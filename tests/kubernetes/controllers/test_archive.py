"""Archive runs in tier kwok: Jobs and CronJobs of a real API server and real controllers.

Pods of Jobs end well by themselves there, and a test does to the twin what Spark would have done to
the cluster. What is refused by the API server, by its schema or by the restricted profile, would be
refused here: every namespace of these tests enforces that profile.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from duramen_operator.plan.archive.manifests import PROGRAM
from tests.kubernetes.cluster.handle import ClusterHandle
from tests.kubernetes.controllers.admin_twin import AdminTwin, running_twin
from tests.kubernetes.controllers.mortals import operated
from tests.kubernetes.controllers.operators import (
    SETTLE_S,
    Objects,
    install_definitions,
    wait_for_objects,
)

RESTRICTED = {"pod-security.kubernetes.io__enforce": "restricted"}
NEVER = "0 0 1 1 *"
KUBEFLOW: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "scheduledsparkapplications.sparkoperator.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
    },
    "spec": {
        "group": "sparkoperator.k8s.io", "scope": "Namespaced",
        "names": {"kind": "ScheduledSparkApplication", "plural": "scheduledsparkapplications"},
        "versions": [{
            "name": "v1beta2", "served": True, "storage": True,
            "schema": {"openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": True}},
        }],
    },
}  # fmt: skip
"""Kubeflow's own definition is not at hand offline: its names are, and any content."""


@pytest.fixture(scope="module")
def twin() -> Iterator[AdminTwin]:
    with running_twin() as found:
        state = found.state
        state.ensure_namespace("shop", {})
        for name in ("orders", "bulk"):
            state.ensure_log("shop", name, {"tiering": {"policy": "copy"}})
        yield found


@pytest.fixture(scope="module")
def objects(kwok_cluster: ClusterHandle, twin: AdminTwin) -> Iterator[Objects]:
    install_definitions(kwok_cluster)
    with (
        kwok_cluster.namespace(**RESTRICTED) as namespace,
        operated(kwok_cluster, namespace, twin.url),
    ):
        found = Objects(kwok_cluster, namespace)
        store = {"url": "s3://bucket/archive", "secretName": "keys"}
        found.apply(
            "LogCluster", "main", {"security": "none", "acceptAnybody": True, "coldStore": store}
        )
        yield found


def apply_policy(objects: Objects, name: str, logs: str, **spec: Any) -> None:
    selector = {"namespace": "shop", "logs": logs}
    objects.apply("ArchivePolicy", name, {"clusterName": "main", "selector": selector, **spec})


def jobs_of(objects: Objects, policy: str) -> list[dict[str, Any]]:
    return [
        job for job in objects.list("job")
        if job["metadata"]["labels"].get("duramen.io/archive-policy") == policy
    ]  # fmt: skip


def test_a_policy_is_a_cron_job_that_the_api_server_takes(objects: Objects) -> None:
    apply_policy(objects, "nightly", "none-*", schedule=NEVER)
    objects.wait("ArchivePolicy", "nightly", "True/Scheduled")
    cron = objects.find("cronjob", "nightly-archive")
    assert cron is not None
    container = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]
    assert container["command"] == ["spark-submit"]
    assert PROGRAM in container["args"]
    assert container["image"] == "localhost/duramen-spark:test"
    # A pod of it passes the restricted profile: a run by hand shows that.
    objects.cluster.kubectl(
        "-n", objects.namespace, "create", "job", "by-hand", "--from=cronjob/nightly-archive"
    )
    job = "job.batch/by-hand"
    objects.cluster.kubectl(
        "-n", objects.namespace, "wait", "--for=condition=Complete", "--timeout=110s", job
    )
    apply_policy(objects, "nightly", "none-*", schedule="0 3 * * *", suspend=True)

    def spec() -> dict[str, Any]:
        found = objects.find("cronjob", "nightly-archive")
        return found["spec"] if found else {}

    wait_for_objects(lambda: spec()["schedule"] == "0 3 * * *", SETTLE_S, "the new schedule")
    assert spec()["suspend"] is True
    objects.wait("ArchivePolicy", "nightly", "True/Suspended")
    objects.delete("ArchivePolicy", "nightly")
    wait_for_objects(
        lambda: objects.find("cronjob", "nightly-archive") is None, SETTLE_S, "the CronJob to go"
    )


def test_closed_segments_are_archived_by_one_run(objects: Objects, twin: AdminTwin) -> None:
    with twin.lock:
        log = twin.state.find_log("shop", "orders")
        log.append(10, 5_000)
        log.close_segment()
    apply_policy(objects, "orders", "orders", onClosedSegments=True)
    wait_for_objects(lambda: len(jobs_of(objects, "orders")) == 1, SETTLE_S, "a run")
    name = jobs_of(objects, "orders")[0]["metadata"]["name"]
    job = f"job.batch/{name}"
    where = ("-n", objects.namespace)
    objects.cluster.kubectl(*where, "wait", "--for=condition=Complete", "--timeout=110s", job)
    with twin.lock:
        assert twin.state.archive(log) == 1
    objects.wait("ArchivePolicy", "orders", "True/AllArchived", "Archived")

    def read_status() -> dict[str, Any]:
        found = objects.find("ArchivePolicy", "orders")
        assert found is not None
        return dict(found["status"])

    wait_for_objects(
        lambda: read_status()["lastRun"]["result"] == "Succeeded", SETTLE_S, "the run to be told"
    )
    status = read_status()
    assert status["lastRun"]["cause"] == "ClosedSegments"
    assert (status["closedSegments"], status["lagSegments"]) == (1, 0)
    assert len(jobs_of(objects, "orders")) == 1
    objects.wait_event("orders", "ClosedSegmentsRun")


def test_what_a_run_says_is_told(objects: Objects, twin: AdminTwin) -> None:
    with twin.lock:
        log = twin.state.find_log("shop", "bulk")
        log.append(10, 5_000)
        log.close_segment()
    apply_policy(objects, "bulk", "bulk", onClosedSegments=True)
    wait_for_objects(lambda: len(jobs_of(objects, "bulk")) == 1, SETTLE_S, "a run")
    job = jobs_of(objects, "bulk")[0]["metadata"]["name"]

    def pod() -> dict[str, Any] | None:
        for one in objects.list("pod"):
            is_its = one["metadata"]["labels"].get("batch.kubernetes.io/job-name") == job
            if is_its and one["status"].get("phase") == "Succeeded":
                return one
        return None

    wait_for_objects(lambda: pod() is not None, SETTLE_S, "the run's pod to end")
    found = pod()
    assert found is not None
    with twin.lock:
        twin.state.archive(log)
    words = json.dumps({"file_bytes": 4_321, "mismatches": 2, "failures": 0})
    statuses = found["status"]["containerStatuses"]
    statuses[0]["state"]["terminated"]["message"] = words
    patch = json.dumps({"status": {"containerStatuses": statuses}})
    objects.cluster.kubectl(
        "-n", objects.namespace, "patch", "pod", found["metadata"]["name"], "--subresource=status",
        "--type=merge", f"--patch={patch}",
    )  # fmt: skip
    objects.wait("ArchivePolicy", "bulk", "False/Mismatch", "Archived")
    policy = objects.find("ArchivePolicy", "bulk")
    assert policy is not None
    assert (policy["status"]["bytesArchived"], policy["status"]["mismatches"]) == (4_321, 2)


def test_other_runners_objects_are_taken_by_the_api_server(objects: Objects) -> None:
    apply_policy(objects, "wide", "none-*", schedule=NEVER, runner="SparkOnKubernetes")
    wait_for_objects(
        lambda: objects.find("configmap", "wide-archive") is not None, SETTLE_S, "the template"
    )
    found = objects.find("configmap", "wide-archive")
    assert found is not None
    executor = json.loads(found["data"]["pod.yaml"])
    executor["metadata"] |= {"name": "executor", "namespace": objects.namespace}
    objects.cluster.kubectl(
        "create",
        "--dry-run=server",
        "--validate=strict",
        "--filename=-",
        stdin=json.dumps(executor),
    )
    apply_policy(objects, "wide", "none-*", schedule=NEVER, runner="ScheduledSparkApplication")
    objects.wait("ArchivePolicy", "wide", "False/NoSparkOperator")
    objects.cluster.apply(KUBEFLOW)
    kind = "crd/scheduledsparkapplications.sparkoperator.k8s.io"
    objects.cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", kind)
    objects.wait("ArchivePolicy", "wide", "True/Scheduled")
    assert objects.find("scheduledsparkapplication", "wide-archive") is not None
    wait_for_objects(
        lambda: not objects.find("cronjob", "wide-archive"), SETTLE_S, "the CronJob to go"
    )
    apply_policy(objects, "wide", "none-*", schedule=NEVER)
    wait_for_objects(
        lambda: not objects.find("scheduledsparkapplication", "wide-archive"), SETTLE_S,
        "the other runner's object to go",
    )  # fmt: skip
