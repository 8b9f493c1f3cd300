"""Founding: a job that gives the nodes of a secured cluster in ZooKeeper their rights, once.

It runs `duramen access apply` as an operator, whose key lies in its pod for that minute and in no
other one. Who killed it, or the operator, at any place has cost time: what is right already is not
written again. It is made anew until a record says that it came to its end; the record is a
ConfigMap of its own, since what a cluster is for good was written before.

Called by `plan`. Pure. Source: docs/kubernetes/security.md "Founding";
docs/protocol/metadata-access.md "Founding, and a tree that is there".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from duramen_operator.names import ACCESS, FOUNDED, MANIFEST_ANNOTATION, name_component
from duramen_operator.plan.cluster.frame import ClusterFrame
from duramen_operator.plan.cluster.pods import Pod, make_template
from duramen_operator.plan.cluster.secured.keys import IDENTITY_DIR, make_operator_keys
from duramen_operator.plan.manifests import is_foreign, make_manifest, plan_apply
from duramen_operator.plan.observed import Json, KubeObject
from duramen_operator.plan.steps import Apply, Delete
from duramen_operator.resources.part import Requirements

DEADLINE_S: Final = 1800
"""Then the job is made anew: it may be that nobody has filled its Secret yet."""
GRACE_S: Final = 30
_RESTARTS_MAX: Final = 100
_SHARE: Final = Requirements(requests={"cpu": "100m", "memory": "128Mi"})
"""All pods of the cluster wait for it, so it is not to be the first that gets nothing."""


def plan_founding(frame: ClusterFrame) -> Iterator[Apply | Delete]:
    """The job, then the record that it ended, then its removal."""
    if not frame.is_secured:
        return
    wanted, record = make_job(frame), make_founded(frame)
    job = frame.observed.find("Job", name_component(frame.name, ACCESS))
    if job is not None and (job.is_leaving or is_foreign(job, wanted)):
        return
    if is_founded(frame):
        if job is not None:
            yield _remove(job)
    elif job is None:
        yield from plan_apply(frame.observed, wanted)
    elif _find_end(job) == "Complete":
        yield from plan_apply(frame.observed, record)
    elif _find_end(job) == "Failed" or _is_outdated(job, wanted):
        yield _remove(job)


def is_founded(frame: ClusterFrame) -> bool:
    """Whether the record says that the nodes have their rights."""
    found = frame.observed.find("ConfigMap", name_component(frame.name, FOUNDED))
    return found is not None and frame.cluster.uid in found.owner_uids


def make_founded(frame: ClusterFrame) -> Json:
    """The record."""
    name = name_component(frame.name, FOUNDED)
    data = {"uuid": frame.uuid}
    labels = frame.make_labels(FOUNDED)
    return make_manifest(("v1", "ConfigMap"), name, labels, frame.cluster, data=data)


def make_job(frame: ClusterFrame) -> Json:
    """The job."""
    labels = frame.make_labels(ACCESS)
    pod = Pod(
        component=ACCESS,
        labels=labels,
        image=frame.image,
        command="duramen",
        arguments=[
            *("access", "apply", IDENTITY_DIR),
            *("--zookeeper", frame.zookeeper_servers),
            *("--cluster", frame.metadata_name),
        ],
        ports={},
        resources=_SHARE,
        probes={},
        grace_s=GRACE_S,
        keys=make_operator_keys(frame),
    )
    template = make_template(frame, pod)
    spec = {
        "activeDeadlineSeconds": DEADLINE_S,
        "backoffLimit": _RESTARTS_MAX,
        "template": {**template, "spec": {**template["spec"], "restartPolicy": "OnFailure"}},
    }
    name = name_component(frame.name, ACCESS)
    return make_manifest(("batch/v1", "Job"), name, labels, frame.cluster, spec=spec)


def _find_end(job: KubeObject) -> str:
    """How it ended; "" while it runs."""
    for condition in job.status.get("conditions") or ():
        if condition.get("status") == "True" and condition.get("type") in ("Complete", "Failed"):
            return str(condition["type"])
    return ""


def _is_outdated(job: KubeObject, wanted: Json) -> bool:
    """Whether it was made of another image, say: a job's template cannot be changed."""
    digest = wanted["metadata"]["annotations"][MANIFEST_ANNOTATION]
    return bool(job.annotations.get(MANIFEST_ANNOTATION) != digest)


def _remove(job: KubeObject) -> Delete:
    return Delete(job.ref, job.uid, job.resource_version)
