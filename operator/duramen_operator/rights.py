"""What the operator may do in its namespace, and why: the chart's Role is compared with this list.

No wildcard, no node, nothing beyond the namespace, and no Secret but those that the chart names. A
right that is missing here is a right that the code must not need; the tests start the operator with
the chart's Role alone. To ask what it may do (`typed/reviews.py`) an account needs no right of a
Role.
"""

from dataclasses import dataclass

from duramen_operator.names import GROUP

SEE = ("get", "list", "watch")
APPLY = ("create", "patch")
"""Server-side apply is a patch; where the object does not exist yet it also needs to create."""


@dataclass(frozen=True, slots=True)
class Right:
    """One rule of the Role: verbs on resources of one API group, and what for."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    why: str


RIGHTS = (
    Right(
        GROUP,
        ("logclusters", "bookiesets", "lognamespaces", "logs", "loggrants", "archivepolicies"),
        (*SEE, "patch"),
        "what people ask for; patched to let go of finalizers",
    ),
    Right(GROUP, ("bookies",), (*SEE, *APPLY, "delete"), "the operator makes one for each bookie"),
    Right(
        GROUP,
        (
            "logclusters/status",
            "bookiesets/status",
            "bookies/status",
            "lognamespaces/status",
            "logs/status",
            "loggrants/status",
            "archivepolicies/status",
        ),
        ("get", "patch"),
        "what became of it",
    ),
    Right(
        "apps", ("statefulsets", "deployments"), (*SEE, *APPLY, "delete"), "the services' workloads"
    ),
    Right("", ("services",), (*SEE, *APPLY, "delete"), "where the services are reached"),
    Right(
        "",
        ("configmaps",),
        (*SEE, *APPLY, "delete"),
        "what a cluster is for good, what archive runs are given",
    ),
    Right("", ("pods",), SEE, "which bookies run, where, and since when"),
    Right("", ("pods/status",), ("patch",), "which bookies are caught up: their readiness gate"),
    Right("", ("pods/eviction",), ("create",), "members and sequencers are restarted by eviction"),
    Right("", ("persistentvolumeclaims",), SEE, "which bookies have disks"),
    Right("policy", ("poddisruptionbudgets",), (*SEE, *APPLY, "delete"), "drains of nodes wait"),
    Right(
        "autoscaling",
        ("horizontalpodautoscalers",),
        (*SEE, *APPLY, "delete"),
        "proxies grow with their load",
    ),
    Right("batch", ("cronjobs", "jobs"), (*SEE, *APPLY, "delete"), "archive runs"),
    Right(
        "sparkoperator.k8s.io",
        ("scheduledsparkapplications",),
        ("get", "list", *APPLY, "delete"),
        "archive runs by kubeflow's Spark operator, where a policy asks for that",
    ),
    Right(
        "coordination.k8s.io",
        ("leases",),
        ("get", "create", "update", "delete"),
        "of several operators one writes",
    ),
    Right(
        "events.k8s.io", ("events",), ("create", "patch"), "what happened, for `kubectl describe`"
    ),
)

CERT_MANAGER_RIGHTS = (
    Right(
        "cert-manager.io",
        ("certificates",),
        ("get", "list", *APPLY, "delete"),
        "a certificate for each node, where the cluster says certManager",
    ),
)
"""Granted only where the chart's values say so: who has them can be anybody in a cluster of such an
issuer."""

NAMED_RIGHTS = (
    Right(
        "",
        ("secrets",),
        ("get", "patch"),
        "certificates of the clusters that values name: it lists no Secrets, and makes none",
    ),
)
"""Granted for single objects by their names, and only where the chart's values name a cluster."""
