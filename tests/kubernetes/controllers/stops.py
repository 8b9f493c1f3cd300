"""Watches what operators stop: each pod that serves by a grant, and no bookie beside another one.

A `DeadlyProxy` tells it of each write before it is sent. Used by test_faults and test_removal.
Source: docs/kubernetes/restarts.md 3 and 11.
"""

from __future__ import annotations

from typing import Any

from duramen_operator.names import BOOKIE, COMPONENT_LABEL
from tests.kubernetes.controllers.admin_twin import AdminTwin
from tests.kubernetes.controllers.operators import Objects


class Stops:
    """Who was stopped by an operator, and whether that was granted."""

    def __init__(self, objects: Objects, twin: AdminTwin) -> None:
        self._objects, self._twin = objects, twin
        self.evicted: list[str] = []
        self.faults: list[str] = []
        self.write_count = 0

    def on_write(self, method: str, path: str) -> None:
        """A write is about to be sent; in a thread."""
        *_, plural, name = parts = path.rstrip("/").split("/")
        self.write_count += plural != "leases"
        if method == "DELETE" and plural in ("pods", "persistentvolumeclaims"):
            self.faults.append(f"{method} {path}")
        if name == "eviction":
            self._judge_eviction(parts[-2])

    def _judge_eviction(self, name: str) -> None:
        self.evicted.append(name)
        with self._twin.lock:
            targets = {str(one["target"]) for one in self._twin.state.disruptions}
        pod = self._objects.find("pods", name) or {}
        statuses = pod.get("status", {}).get("containerStatuses", ())
        runs = any("running" in one.get("state", {}) for one in statuses)
        if not runs and not _is_ready(pod):
            return
        if not any(target.endswith(f"/{name}") for target in targets):
            self.faults.append(f"{name} was evicted, granted were {sorted(targets)}")
        if _is_bookie(pod) and _is_ready(pod):
            others = [one for one in self._objects.list("pods") if _is_bookie(one)]
            away = [one["metadata"]["name"] for one in others if not _is_ready(one)]
            if away:
                self.faults.append(f"{name} was evicted beside {away}")


def _is_bookie(pod: dict[str, Any]) -> bool:
    return bool(pod["metadata"].get("labels", {}).get(COMPONENT_LABEL) == BOOKIE)


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
