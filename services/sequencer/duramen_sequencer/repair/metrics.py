"""What Prometheus learns of repair; only the auditor's process says anything but zero.

Called by `auditor`. Source: docs/protocol/admin.md "Metrics".
"""

from __future__ import annotations

from typing import Any, Final

from prometheus_client import Counter, Gauge

from duramen.core.repair.tasks import Backlog
from duramen_sequencer.repair.rounds import Round

IS_AUDITOR: Final = Gauge("duramen_repair_is_auditor", "1 at the sequencer that is the auditor")
ROUNDS: Final = Counter("duramen_repair_rounds", "Audits that ended", ["outcome"])
TASKS: Final = Counter("duramen_repair_tasks", "Repairs by what became of them", ["outcome"])
COPIED_BYTES: Final = Counter("duramen_repair_copied_bytes", "Bytes that bookies copied for repair")
PLACEMENT_VIOLATIONS: Final = Gauge(
    "duramen_placement_violations", "Fragments of live segments that break their placement rule"
)
_GAUGES: Final = {
    "tasks": Gauge("duramen_repair_backlog_fragments", "Fragments that are to be repaired"),
    "running": Gauge("duramen_repair_running_fragments", "Fragments that are being repaired"),
    "unrepairable": Gauge(
        "duramen_repair_unrepairable_fragments", "Fragments that cannot be repaired now"
    ),
    "left_bytes": Gauge("duramen_repair_backlog_bytes", "About what is still to be copied"),
}
UNPROVED: Final = Gauge("duramen_repair_unproved_fragments", "Fragments that nobody compared yet")


def show_backlog(backlog: Backlog | None) -> None:
    """Tell what waits; None: this process is not the auditor."""
    found: dict[str, Any] = {} if backlog is None else backlog.statistics()
    IS_AUDITOR.set(backlog is not None)
    for name, gauge in _GAUGES.items():
        gauge.set(found.get(name, 0))
    if backlog is None:
        PLACEMENT_VIOLATIONS.set(0)
        UNPROVED.set(0)


def show_round(this: Round) -> None:
    """Tell what a round found."""
    ROUNDS.labels("whole" if this.is_whole else "in part").inc()
    PLACEMENT_VIOLATIONS.set(this.violation_count)
    UNPROVED.set(this.unproved_count)
