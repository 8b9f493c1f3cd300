"""The kinds that the operator reads or writes, and where the API server keeps them.

A table, no logic. Called by the API client, by the handlers and by the tests that compare it with
`rights.py`.
"""

from dataclasses import dataclass

from duramen_operator.names import API_VERSION, GROUP, VERSION


@dataclass(frozen=True, slots=True)
class Kind:
    """Where the API server keeps objects of a kind."""

    name: str
    group: str
    version: str
    plural: str

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def is_ours(self) -> bool:
        """Whether people (or the operator) write it in our own group: it is listed without a
        selector."""
        return self.group == GROUP


OURS = (
    Kind("LogCluster", GROUP, VERSION, "logclusters"),
    Kind("BookieSet", GROUP, VERSION, "bookiesets"),
    Kind("Bookie", GROUP, VERSION, "bookies"),
    Kind("LogNamespace", GROUP, VERSION, "lognamespaces"),
    Kind("Log", GROUP, VERSION, "logs"),
    Kind("LogGrant", GROUP, VERSION, "loggrants"),
    Kind("ArchivePolicy", GROUP, VERSION, "archivepolicies"),
)
MADE = (
    Kind("StatefulSet", "apps", "v1", "statefulsets"),
    Kind("Deployment", "apps", "v1", "deployments"),
    Kind("Service", "", "v1", "services"),
    Kind("ConfigMap", "", "v1", "configmaps"),
    Kind("PodDisruptionBudget", "policy", "v1", "poddisruptionbudgets"),
    Kind("HorizontalPodAutoscaler", "autoscaling", "v2", "horizontalpodautoscalers"),
    Kind("CronJob", "batch", "v1", "cronjobs"),
    Kind("Job", "batch", "v1", "jobs"),
)
SEEN = (
    Kind("Pod", "", "v1", "pods"),
    Kind("PersistentVolumeClaim", "", "v1", "persistentvolumeclaims"),
)
CERTIFICATE = Kind("Certificate", "cert-manager.io", "v1", "certificates")
OPTIONAL = (
    CERTIFICATE,
    Kind(
        "ScheduledSparkApplication", "sparkoperator.k8s.io", "v1beta2", "scheduledsparkapplications"
    ),
)
"""Kinds that not every cluster has: where there is none, nothing of it is seen."""

NAMED = (Kind("Secret", "", "v1", "secrets"),)
"""Kinds of which single objects are read and patched by name, and that nothing may list."""

KINDS = (*OURS, *MADE, *SEEN)
"""Everything that an observation holds. What is not ours is listed by the label `managed-by`."""

BY_NAME = {(kind.api_version, kind.name): kind for kind in (*KINDS, *OPTIONAL, *NAMED)}
assert len(BY_NAME) == len(KINDS) + len(OPTIONAL) + len(NAMED)
assert all(kind.api_version == API_VERSION for kind in OURS)
