"""The operator's metrics, under the names that dashboards and alerts use.

Counters and gauges only; the worker and the watches move them. Served at `/metrics` of the metrics
port by `health.py`. Labels hold names of clusters, never of logs.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

registry = CollectorRegistry()

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
CONDITION = Gauge(
    "duramen_operator_condition",
    "1 where a condition of a LogCluster or BookieSet has this status, else 0.",
    ["kind", "name", "type", "status"],
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
