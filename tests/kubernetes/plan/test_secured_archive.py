"""Archive runs of a cluster with `security: on`: which key they have, which begin, what is told.

Broken by hand: a pod that mounts the operator's key, a key of the primary group, Spark's ports on
the pod's address, a CronJob that is not suspended, a runner with executors that is taken.
"""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest

from duramen_operator.plan.archive.plan import plan_archive
from duramen_operator.plan.cluster.nodes import SECRETS, name_secret
from duramen_operator.plan.observed import CertificatesView, Observed, Ref, SeenLife
from duramen_operator.plan.steps import Apply, Delete
from tests.kubernetes.issuing.ground import Ground
from tests.kubernetes.plan.archive_world import (
    CLOSED,
    FOUNDED,
    HOURLY,
    make_job,
    secured,
    world,
)
from tests.kubernetes.plan.requested_world import REQUESTED
from tests.kubernetes.plan.secured_world import SECURED
from tests.kubernetes.plan.worlds import (
    NOW,
    ago,
    condition_of,
    steps_of,
)

VALID = SeenLife("archive", "archive", NOW, NOW + dt.timedelta(days=7))


def made(observed: Observed, kind: str) -> list[dict[str, Any]]:
    steps = steps_of(plan_archive(observed, NOW), Apply)
    return [dict(step.manifest) for step in steps if step.about.kind == kind]


def read_pod(observed: Observed) -> dict[str, Any]:
    (cron,) = made(observed, "CronJob")
    return dict(cron["spec"]["jobTemplate"]["spec"]["template"]["spec"])


def test_a_run_has_the_archives_identity_as_a_folder_and_no_other_key() -> None:
    observed = secured(HOURLY, FOUNDED)
    pod = read_pod(observed)
    (container,) = pod["containers"]
    (volume,) = (one for one in pod["volumes"] if one["name"] == "identity")
    sources = [source["secret"] for source in volume["projected"]["sources"]]
    assert {source["name"] for source in sources} == {"main-archive"}
    files = {item["path"]: bool(s.get("optional")) for s in sources for item in s["items"]}
    assert files == {"tls.crt": False, "tls.key": False, "ca.crt": False, "ca.crl": True}
    (mount,) = (one for one in container["volumeMounts"] if one["name"] == "identity")
    assert container["args"][-2:] == ["--identity", mount["mountPath"]]
    assert volume["projected"]["defaultMode"] == 0o440
    assert pod["securityContext"]["fsGroup"] not in {pod["securityContext"]["runAsGroup"], 0}
    text = json.dumps(pod)
    named = {which for which in SECRETS if f'"{name_secret("main", which)}"' in text}
    assert named == {"archive"}
    (run,) = made(secured(CLOSED, FOUNDED), "Job")
    assert run["spec"]["template"]["spec"] == pod


def test_with_cert_manager_a_run_trusts_what_the_other_pods_trust() -> None:
    pod = read_pod(secured(HOURLY, FOUNDED, security=REQUESTED))
    (volume,) = (one for one in pod["volumes"] if one["name"] == "identity")
    own, bundle, _ = volume["projected"]["sources"]
    assert own["secret"]["name"] == "main-archive"
    assert {item["key"] for item in own["secret"]["items"]} == {"tls.crt", "tls.key"}
    assert bundle["configMap"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]


def test_a_cluster_that_asks_nobody_gives_no_identity() -> None:
    pod = read_pod(world(HOURLY))
    assert "--identity" not in pod["containers"][0]["args"]
    assert {volume["name"] for volume in pod["volumes"]} == {"tmp"}


@pytest.mark.parametrize("observed", [secured(HOURLY, FOUNDED), world(HOURLY)])
def test_ports_of_spark_are_open_on_loopback_alone(observed: Observed) -> None:
    told = read_pod(observed)["containers"][0]["args"]
    assert {"spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1"} <= set(told)
    assert "spark.ui.enabled=false" in told


@pytest.mark.parametrize("runner", ["SparkOnKubernetes", "ScheduledSparkApplication"])
def test_executors_in_pods_of_their_own_are_refused_and_what_was_made_goes(runner: str) -> None:
    (cron,) = made(secured(HOURLY, FOUNDED), "CronJob")
    left = {**cron, "metadata": {**cron["metadata"], "uid": "u", "resourceVersion": "3"}}
    plan = plan_archive(secured({**HOURLY, **CLOSED, "runner": runner}, FOUNDED, left), NOW)
    status, reason, message = condition_of(plan, "all")
    assert (status, reason) == ("False", "NotYetSupported")
    assert runner in message and "CronJob" in message
    assert steps_of(plan, Apply) == []
    assert [(step.about.kind, step.uid) for step in steps_of(plan, Delete)] == [("CronJob", "u")]


@pytest.mark.parametrize(
    ("founded", "view", "words"),
    [
        ((), None, "see its condition Secure"),
        ((FOUNDED,), CertificatesView(lacking=("archive",)), "the Secret main-archive has no"),
    ],
)
def test_a_run_that_would_not_be_let_in_is_not_begun(
    founded: tuple[dict[str, Any], ...], view: CertificatesView | None, words: str
) -> None:
    observed = secured({**HOURLY, **CLOSED}, *founded, view=view)
    (cron,) = made(observed, "CronJob")
    assert cron["spec"]["suspend"] is True
    assert made(observed, "Job") == []
    status, reason, message = condition_of(plan_archive(observed, NOW), "all")
    assert (status, reason) == ("False", "NoIdentity")
    assert words in message


@pytest.mark.parametrize("which", ["archive", "ca", "bookies"])
def test_a_run_waits_for_a_secret_that_is_not_there_and_for_no_other(which: str) -> None:
    """As in an upgrade in which the operator comes before the chart."""
    ground = Ground()
    ground.look()
    del ground.kube.objects[Ref("v1", "Secret", name_secret("main", which))]
    issued = {**SECURED, "tls": {"issuer": "operator"}}
    observed = secured({**HOURLY, **CLOSED}, FOUNDED, view=ground.look(), security=issued)
    is_held = which == "archive"
    (cron,) = made(observed, "CronJob")
    assert cron["spec"]["suspend"] is is_held
    assert len(made(observed, "Job")) == (not is_held)
    _, reason, message = condition_of(plan_archive(observed, NOW), "all")
    assert reason == ("NoIdentity" if is_held else "Scheduled")
    assert ("there is no Secret main-archive" in message) == is_held


def test_what_cert_manager_calls_not_ready_holds_no_run_up() -> None:
    view = CertificatesView(lacking=("archive",))
    observed = secured({**HOURLY, **CLOSED}, FOUNDED, view=view, security=REQUESTED)
    (cron,) = made(observed, "CronJob")
    assert cron["spec"]["suspend"] is False
    assert len(made(observed, "Job")) == 1


@pytest.mark.parametrize(
    "view",
    [
        None,
        CertificatesView(("the Secret main-ca cannot be read",)),
        CertificatesView(lives=(VALID,), lacking=("main-sequencer-1",)),
    ],
    ids=["others issue", "not known", "issued"],
)
def test_what_is_not_known_holds_no_run_up(view: CertificatesView | None) -> None:
    observed = secured({**HOURLY, **CLOSED}, FOUNDED, view=view)
    (cron,) = made(observed, "CronJob")
    assert cron["spec"]["suspend"] is False
    assert len(made(observed, "Job")) == 1
    assert condition_of(plan_archive(observed, NOW), "all")[:2] == ("True", "Scheduled")


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (None, "Waiting"),
        ({"waiting": {"reason": "ContainerCreating"}}, "Waiting"),
        ({"running": {}}, "Running"),
    ],
)
def test_a_run_whose_pod_waits_for_its_key_is_told(
    state: dict[str, Any] | None, reason: str
) -> None:
    job = make_job("r", ago(minutes=2))
    (of_run,) = made(secured(CLOSED, FOUNDED), "Job")
    job["metadata"]["labels"] = of_run["metadata"]["labels"]
    pod = {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "pod", "labels": {"batch.kubernetes.io/job-name": "r"}},
        "status": {"containerStatuses": [{"state": state}] if state else []},
    }  # fmt: skip
    plan = plan_archive(secured(CLOSED, FOUNDED, job, pod), NOW)
    status, told, message = condition_of(plan, "all", "Progressing")
    assert (status, told) == ("True", reason)
    assert ("the Secret main-archive" in message) == (reason == "Waiting")


def test_a_run_whose_pod_is_gone_blames_no_secret() -> None:
    job = make_job("r", ago(minutes=200))
    (of_run,) = made(secured(CLOSED, FOUNDED), "Job")
    job["metadata"]["labels"] = of_run["metadata"]["labels"]
    said = condition_of(plan_archive(secured(CLOSED, FOUNDED, job), NOW), "all", "Progressing")
    assert said[:2] == ("True", "Waiting")
    assert "it has no pod" in said[2] and "Secret" not in said[2]
    evicted = {
        "apiVersion": "v1", "kind": "Pod", "status": {"phase": "Failed", "reason": "Evicted"},
        "metadata": {"name": "pod", "labels": {"batch.kubernetes.io/job-name": "r"}},
    }  # fmt: skip
    plan = plan_archive(secured(CLOSED, FOUNDED, job, evicted), NOW)
    assert condition_of(plan, "all", "Progressing")[:2] == ("True", "Running")
