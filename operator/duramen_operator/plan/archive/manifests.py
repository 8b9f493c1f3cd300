"""The objects of archive runs: a CronJob and Jobs around one pod template, or kubeflow's own kind.

`CronJob`: spark-submit in one pod, with its executors in the same JVM. `SparkOnKubernetes`: the
same driver starts executor pods, for which it needs a token; the ServiceAccount that may make pods
is the cluster's owner's to give (docs/kubernetes/archive.md). `ScheduledSparkApplication`: all of
it is kubeflow's Spark operator's. No image is entered by a shell; user, file system and privileges
are as everywhere. Spark's ports ask nobody who calls: of a driver whose executors are in its JVM
they are open on loopback alone, and such runs alone have an identity.

Called by `plan`. Source: docs/archive.md "In a cluster"; docs/kubernetes/security.md
"Archive runs".
"""

import json
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from duramen.units import format_duration
from duramen_operator.names import ARCHIVE, name_component, shorten
from duramen_operator.plan.archive.runs import (
    CAUSE_ANNOTATION,
    DUE_ANNOTATION,
    POLICY_LABEL,
    SET_ANNOTATION,
)
from duramen_operator.plan.archive.triggers import Due
from duramen_operator.plan.archive.waiting import format_selector
from duramen_operator.plan.cluster.frame import ClusterFrame
from duramen_operator.plan.cluster.pods import CONTAINER_SECURITY, POD_SECURITY, Pod, make_template
from duramen_operator.plan.cluster.secured.keys import make_archive_keys
from duramen_operator.plan.manifests import make_manifest
from duramen_operator.plan.observed import Json, KubeObject
from duramen_operator.resources.archives import ArchivePolicySpec
from duramen_operator.resources.clusters import ColdStoreSpec

PROGRAM: Final = "/opt/duramen/lib/python3.11/site-packages/duramen_spark/main.py"
"""Where the image has the job; spark-submit takes a file, and no command."""

LAST_WORDS: Final = "/dev/termination-log"
"""Kubernetes keeps 4 KiB of what a container leaves there."""

EXECUTOR_COUNT: Final = 2
RUN_S: Final = 6 * 3600
"""A run that takes longer is ended; the next one goes on where it was (docs/archive.md)."""

KEPT_S: Final = 86_400
"""How long a run of the operator's own can be looked at."""

_LOCAL_FLAGS: Final = {"spark.ui.enabled": "false"}
_LOOPBACK: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_PORTS: Final = {"spark.driver.port": "7078", "spark.blockManager.port": "7079"}


@dataclass(frozen=True, slots=True)
class Job:
    """What the manifests of one policy are made from."""

    frame: ClusterFrame
    policy: KubeObject
    spec: ArchivePolicySpec
    store: ColdStoreSpec
    obstacle: str = ""
    """Why a run would not be let in by its cluster, so that none is begun."""

    @property
    def runner(self) -> str:
        return self.spec.runner or self.frame.spec.archive.runner

    @property
    def image(self) -> str:
        return self.frame.spec.archive.image or self.frame.observed.images.spark

    @property
    def base(self) -> str:
        """Name of the CronJob, or of kubeflow's object."""
        return name_policy(self.policy.name)

    @property
    def labels(self) -> dict[str, str]:
        return {**self.frame.make_labels(ARCHIVE), POLICY_LABEL: self.policy.name}

    @property
    def arguments(self) -> list[str]:
        """Of the archive job itself."""
        given = ["archive", format_selector(self.spec.selector)]
        given += [
            "--zookeeper",
            self.frame.zookeeper_servers,
            "--cluster",
            self.frame.metadata_name,
        ]
        given += ["--cold-store", self.store.url, "--summary-file", LAST_WORDS]
        if self.spec.keep_hot:
            given += ["--keep-hot", format_duration(self.spec.keep_hot)]
        return given


def name_policy(policy: str) -> str:
    """What the objects of a policy are called; a CronJob's name has 52 characters at most, which
    `shorten` stays below."""
    return shorten(f"{policy}-{ARCHIVE}")


def make_scheduled(job: Job) -> list[Json]:
    """What runs by itself, at the policy's schedule."""
    made = [_make_executor_template(job)] if job.runner == "SparkOnKubernetes" else []
    if job.spec.schedule is None:
        return made
    if job.runner == "ScheduledSparkApplication":
        return [*made, _make_application(job)]
    return [*made, _make_cron_job(job)]


def make_run(job: Job, due: Due) -> Json:
    """A run that the operator starts itself."""
    annotations = {CAUSE_ANNOTATION: due.cause}
    if due.digest:
        annotations[SET_ANNOTATION] = due.digest
    if due.due:
        annotations[DUE_ANNOTATION] = due.due
    spec = {**_make_job_spec(job), "ttlSecondsAfterFinished": KEPT_S}
    manifest = make_manifest(("batch/v1", "Job"), due.name, job.labels, job.policy, spec=spec)
    metadata = manifest["metadata"]
    return {
        **manifest,
        "metadata": {**metadata, "annotations": {**metadata["annotations"], **annotations}},
    }


def _make_cron_job(job: Job) -> Json:
    spec = {
        "schedule": job.spec.schedule,
        "timeZone": "Etc/UTC",
        "concurrencyPolicy": "Forbid",
        "suspend": job.spec.suspend or bool(job.obstacle),
        "successfulJobsHistoryLimit": 3,
        "failedJobsHistoryLimit": 3,
        "jobTemplate": {"metadata": {"labels": job.labels}, "spec": _make_job_spec(job)},
    }
    return make_manifest(("batch/v1", "CronJob"), job.base, job.labels, job.policy, spec=spec)


def _make_job_spec(job: Job) -> dict[str, Any]:
    return {
        # A run that failed is made up by the next one, with a pause that grows.
        "backoffLimit": 0,
        "activeDeadlineSeconds": RUN_S,
        "template": _make_template(job),
    }


def _make_template(job: Job) -> Json:
    is_spread = job.runner == "SparkOnKubernetes"
    folder = urlsplit(job.store.url).path if job.store.claim_name else ""
    mounts = {"cold": folder} if folder else {}
    volumes: list[Json] = []
    if folder:
        claim = {"claimName": job.store.claim_name}
        volumes.append({"name": "cold", "persistentVolumeClaim": claim})
    if is_spread:
        mounts["executor"] = "/etc/duramen/executor"
        volumes.append({"name": "executor", "configMap": {"name": job.base}})
    pod = Pod(
        component=ARCHIVE,
        labels=job.labels,
        image=job.image,
        command="spark-submit",
        arguments=[*_format_flags(job), PROGRAM, *job.arguments],
        ports={"driver": 7078, "blocks": 7079} if is_spread else {},
        resources=job.spec.resources or job.frame.spec.archive.resources,
        probes={},
        grace_s=30,
        mounts=mounts,
        volumes=volumes,
        environment={"POD_IP": "status.podIP"} if is_spread else {},
        environment_secret=job.store.secret_name,
        keys=make_archive_keys(job.frame),
    )
    template = make_template(job.frame, pod)
    own: dict[str, Any] = {
        "restartPolicy": "Never",
        "volumes": [_enlarge(volume) for volume in template["spec"]["volumes"]],
    }
    if is_spread:
        own |= {
            "automountServiceAccountToken": True,
            "serviceAccountName": name_component(job.frame.name, ARCHIVE),
        }
    return {**template, "spec": {**template["spec"], **own}}


def _enlarge(volume: Json) -> Json:
    """Spark unpacks its jars and spills below /tmp."""
    return {**volume, "emptyDir": {"sizeLimit": "2Gi"}} if volume["name"] == "tmp" else volume


def _format_flags(job: Job) -> list[str]:
    flags = dict(_LOCAL_FLAGS)
    master = "local[*,4]"
    if job.runner == "SparkOnKubernetes":
        master = "k8s://https://kubernetes.default.svc"
        flags |= {
            **_PORTS,
            "spark.submit.deployMode": "client",
            "spark.driver.host": "$(POD_IP)",
            "spark.driver.bindAddress": "0.0.0.0",
            "spark.executor.instances": str(EXECUTOR_COUNT),
            "spark.kubernetes.namespace": job.frame.namespace,
            "spark.kubernetes.container.image": job.image,
            "spark.kubernetes.driver.pod.name": "$(POD_NAME)",
            "spark.kubernetes.executor.podTemplateFile": "/etc/duramen/executor/pod.yaml",
        }
    else:
        flags |= _LOOPBACK
    spelt = ["--master", master]
    for name, value in sorted(flags.items()):
        spelt += ["--conf", f"{name}={value}"]
    return spelt


def _make_executor_template(job: Job) -> Json:
    """What Spark makes executors from: the same limits, and the store's credentials."""
    plain = Pod(
        component="executor", labels=job.labels, image=job.image, command="", arguments=(),
        ports={}, resources=job.spec.resources or job.frame.spec.archive.resources, probes={},
        grace_s=30, environment_secret=job.store.secret_name,
    )  # fmt: skip
    template = make_template(job.frame, plain)
    container = {name: value for name, value in template["spec"]["containers"][0].items()
                 if name not in ("command", "args")}  # fmt: skip
    pod = {
        "apiVersion": "v1", "kind": "Pod", **template,
        "spec": {**template["spec"], "containers": [container]},
    }  # fmt: skip
    data = {"pod.yaml": json.dumps(pod, sort_keys=True)}
    return make_manifest(("v1", "ConfigMap"), job.base, job.labels, job.policy, data=data)


def _make_application(job: Job) -> Json:
    resources = job.spec.resources or job.frame.spec.archive.resources
    memory = str(resources.limits.get("memory", resources.requests.get("memory", "2Gi")))
    security = {
        "securityContext": dict(CONTAINER_SECURITY),
        "podSecurityContext": dict(POD_SECURITY),
        "labels": job.labels,
    }
    secrets = [job.store.secret_name] if job.store.secret_name else []
    environment = [{"secretRef": {"name": name}} for name in secrets]
    driver = {
        **security, "cores": 1, "memory": memory.replace("Gi", "g").replace("Mi", "m"),
        "serviceAccount": name_component(job.frame.name, ARCHIVE), "envFrom": environment,
    }  # fmt: skip
    executor = {name: value for name, value in driver.items() if name != "serviceAccount"}
    template = {
        "type": "Python", "pythonVersion": "3", "mode": "cluster", "sparkVersion": "4.3.0",
        "image": job.image, "imagePullPolicy": job.frame.spec.image_pull_policy,
        "imagePullSecrets": [one.name for one in job.frame.spec.image_pull_secrets],
        "mainApplicationFile": f"local://{PROGRAM}", "arguments": job.arguments,
        "sparkConf": dict(_LOCAL_FLAGS), "restartPolicy": {"type": "Never"},
        "driver": driver, "executor": {**executor, "instances": EXECUTOR_COUNT},
    }  # fmt: skip
    spec = {
        "schedule": job.spec.schedule, "timeZone": "Etc/UTC", "concurrencyPolicy": "Forbid",
        "suspend": job.spec.suspend, "template": template,
    }  # fmt: skip
    kind = ("sparkoperator.k8s.io/v1beta2", "ScheduledSparkApplication")
    return make_manifest(kind, job.base, job.labels, job.policy, spec=spec)
