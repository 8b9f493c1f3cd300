"""An archive with its jobs, as its plan sees them.

Used by the tests of archive runs and statuses, and by tests/spark.
Source: docs/kubernetes/archive.md.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from duramen_operator.plan.conditions import format_time
from duramen_operator.plan.observed import CertificatesView, Observed
from tests.kubernetes.plan.secured_world import SECURED
from tests.kubernetes.plan.worlds import (
    ago,
    make_cluster,
    make_object,
    observe,
    see_log,
    see_segment,
)

STORE = {"coldStore": {"url": "s3://bucket/archive", "secretName": "keys"}}
HOURLY = {"schedule": "0 * * * *"}
CLOSED = {"onClosedSegments": True}
FOUNDED = {
    "apiVersion": "v1", "kind": "ConfigMap",
    "metadata": {"name": "main-founded", "ownerReferences": [{"uid": "uid-LogCluster-main"}]},
}  # fmt: skip


def make_policy(spec: dict[str, Any], **more: Any) -> dict[str, Any]:
    return make_object("ArchivePolicy", "all", {"clusterName": "main", **spec}, **more)


def tiered(*segments: dict[str, Any], policy: str = "copy") -> dict[str, Any]:
    return see_log(segments=list(segments), config={"tiering": {"policy": policy}})


def make_job(
    name: str, started: datetime, ended: datetime | None = None, *, is_good: bool = True,
    **annotations: str,
) -> dict[str, Any]:  # fmt: skip
    conditions = []
    if ended is not None:
        conditions.append(
            {
                "type": "Complete" if is_good else "Failed", "status": "True",
                "lastTransitionTime": format_time(ended),
            }
        )  # fmt: skip
    found = {f"duramen.io/archive-{name}": value for name, value in annotations.items()}
    metadata = {
        "name": name, "uid": f"uid-{name}", "creationTimestamp": format_time(started),
        "labels": {"duramen.io/archive-policy": "all"}, "annotations": found,
    }  # fmt: skip
    return {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": metadata,
        "status": {"conditions": conditions},
    }  # fmt: skip


def world(spec: dict[str, Any], *others: dict[str, Any], **seen: Any) -> Observed:
    logs = seen.pop("logs", {"shop/orders": tiered(see_segment(1, ago(hours=2)))})
    return observe(make_cluster(STORE), make_policy(spec), *others, logs=logs, **seen)


def secured(
    spec: dict[str, Any],
    *others: dict[str, Any],
    view: CertificatesView | None = None,
    security: dict[str, Any] = SECURED,
) -> Observed:
    """A cluster whose logs have one closed segment that waits."""
    logs = {"shop/orders": tiered(see_segment(1, ago(hours=2)))}
    cluster = make_cluster({**STORE, **security})
    seen = observe(cluster, make_policy(spec), *others, logs=logs)
    return replace(seen, certificates=view)
