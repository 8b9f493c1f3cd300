"""The operator's metrics, under the names that dashboards and alerts use.

Counters and gauges only; the worker and the watches move them. Served at `/metrics` of the metrics
port by `health.py`. Labels hold names of clusters and policies, never of logs.
"""

import contextlib
import functools
import math
import time
from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from duramen_operator.plan.observed import CertificatesView, KubeObject

registry = CollectorRegistry()
STATUSES = ("True", "False", "Unknown")

PASSES = Counter(
    "duramen_operator_passes",
    "Passes of observe, plan and apply, by how they ended.",
    ["cluster", "outcome"],
    registry=registry,
)
PASS_SECONDS = Histogram(
    "duramen_operator_pass_seconds",
    "How long a pass took.",
    ["cluster"],
    buckets=(0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
    registry=registry,
)
STEPS = Counter(
    "duramen_operator_steps",
    "Steps that plans held, by kind (Apply, Delete, Patch, Call, Status, Event).",
    ["cluster", "step"],
    registry=registry,
)
REFUSED_STEPS = Gauge(
    "duramen_operator_refused_steps",
    "Steps of the last pass that were refused: by the API server, or by the cluster.",
    ["cluster"],
    registry=registry,
)
LAST_PASS = Gauge(
    "duramen_operator_last_pass_timestamp_seconds",
    "When the last pass ended that saw and did everything.",
    ["cluster"],
    registry=registry,
)
LEADING = Gauge(
    "duramen_operator_leading",
    "1 while this operator holds the Lease of its namespace and serves it, else 0.",
    registry=registry,
)
CONDITION = Gauge(
    "duramen_operator_condition",
    "1 where a condition of a LogCluster or BookieSet has this status, else 0.",
    ["kind", "name", "type", "status"],
    registry=registry,
)
ARCHIVE_LAG_SECONDS = Gauge(
    "duramen_operator_archive_lag_seconds",
    "Age of the oldest closed segment that an ArchivePolicy chose and that is not archived.",
    ["cluster", "policy"],
    registry=registry,
)
ARCHIVE_MISMATCHES = Gauge(
    "duramen_operator_archive_mismatches",
    "Copies that did not agree in the last run of an ArchivePolicy.",
    ["cluster", "policy"],
    registry=registry,
)
CERTIFICATE_EXPIRES_SECONDS = Gauge(
    "duramen_operator_certificate_expires_seconds",
    "Until the first certificate ends of those that the operator put into a Secret.",
    ["cluster", "role"],
    registry=registry,
)
WATCH_EVENTS = Counter(
    "duramen_operator_watch_events",
    "Events that the watches brought, by kind of object.",
    ["kind"],
    registry=registry,
)
LATE_WATCHES = Gauge(
    "duramen_operator_late_watches",
    "Kinds of objects of which lists show changes that no watch has told.",
    registry=registry,
)
MISSING_RIGHTS = Gauge(
    "duramen_operator_missing_rights",
    "Rights that the operator needs and lacks, as the API server said when it was last asked.",
    registry=registry,
)


_ARCHIVE_FIGURES: Final = {ARCHIVE_LAG_SECONDS: "lagSeconds", ARCHIVE_MISMATCHES: "mismatches"}
"""What a policy's status says of them."""


class ClusterSeries:
    """The series of one cluster: they go when it goes, or alerts would fire for what is not
    there."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._conditions: set[tuple[str, str, str]] = set()
        self._policies: set[tuple[Gauge, str]] = set()
        self._secrets: set[str] = set()

    def report_conditions(self, items: Iterable[KubeObject]) -> None:
        """The conditions of these objects, as they read now; those of others that were told go."""
        told = set()
        for item in items:
            for condition in item.status.get("conditions") or ():
                key = (item.ref.kind, item.name, str(condition["type"]))
                told.add(key)
                for status in STATUSES:
                    CONDITION.labels(*key, status).set(condition["status"] == status)
        for key in self._conditions - told:
            self._remove_condition(key)
        self._conditions = told

    def report_archive(self, policies: Iterable[KubeObject]) -> None:
        """How far behind these policies are; of others, or of what is not known now, nothing."""
        told = set()
        for policy in policies:
            for gauge, field in _ARCHIVE_FIGURES.items():
                figure = policy.status.get(field)
                if isinstance(figure, int):
                    gauge.labels(self._cluster, policy.name).set(figure)
                    told.add((gauge, policy.name))
        for gauge, name in self._policies - told:
            gauge.remove(self._cluster, name)
        self._policies = told

    def report_certificates(self, view: CertificatesView | None) -> None:
        """When certificates end, by Secret. It is counted when somebody asks: an operator whose
        looks fail must not show what was left at the last one."""
        ends: dict[str, float] = {}
        for life in view.lives if view is not None else ():
            ends[life.secret] = min(life.ends.timestamp(), ends.get(life.secret, math.inf))
        for secret, moment in ends.items():
            gauge = CERTIFICATE_EXPIRES_SECONDS.labels(self._cluster, secret)
            gauge.set_function(functools.partial(_count_left_s, moment))
        if view is None:
            for secret in self._secrets:
                CERTIFICATE_EXPIRES_SECONDS.remove(self._cluster, secret)
            self._secrets.clear()
        self._secrets |= set(ends)

    def forget(self) -> None:
        """The cluster is gone."""
        self.report_archive(())
        self.report_certificates(None)
        for key in self._conditions:
            self._remove_condition(key)
        for gauge in (LAST_PASS, REFUSED_STEPS):
            with contextlib.suppress(KeyError):
                gauge.remove(self._cluster)

    def _remove_condition(self, key: tuple[str, str, str]) -> None:
        for status in STATUSES:
            CONDITION.remove(*key, status)


def _count_left_s(ends_s: float) -> float:
    return ends_s - time.time()
