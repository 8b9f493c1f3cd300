"""A world whose cluster drains, grants and registers bookies, for tests of removals.

What the auditor promises it keeps here: a bookie is drained once nothing names it, a grant to
remove is given of a drained one, one at a time, and a drain is not cancelled under it. It watches
what a removal must never do. Used by `test_removal` and `test_removal_walks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from duramen_operator.names import BOOKIE, BOOKIE_LABEL, COMPONENT_LABEL
from duramen_operator.plan.observed import AdminView, Json, Problem, Ref
from duramen_operator.plan.steps import Apply, Call, Delete, Step, Stop
from tests.kubernetes.plan.world import (
    World,
    leave_disks,
    make_bookie_set,
    make_cluster,
    make_domains,
)

SECURED: Final[dict[str, Any]] = {"security": "on", "acceptAnybody": False}
SHARED: Final[dict[str, Any]] = {"is_shared": True}
"""Bookies of one domain share a StatefulSet, as older operators made them."""
LEAST: Final = 3
"""So many serving bookies the cluster's logs need."""
GIB: Final = 1 << 30
OTHERS: Final[Json] = {
    "token": "0b" * 16, "target": "zookeeper/z", "kind": "restart", "holder": "x",
}  # fmt: skip


class Removing:
    """The world, and what its cluster knows."""

    def __init__(
        self, replicas: int = 5, zones: int = 0, *, is_shared: bool = False, **spec: Any
    ) -> None:
        domains = make_domains(1, zones) if zones else []
        cluster, bookie_set = (
            make_cluster(domains=domains, **spec), make_bookie_set(replicas=replicas),
        )  # fmt: skip
        disks = leave_disks(cluster, bookie_set) if is_shared else []
        self.world = World(cluster, bookie_set, *disks)
        self.world.converge()
        self.rows: dict[str, dict[str, Any]] = {}
        self.copies: dict[str, int] = {}
        self.grants: list[dict[str, Any]] = []
        self.refusals: dict[Ref, Problem] = {}
        self.is_reachable = True
        self.least = LEAST
        self.stopped: list[str] = []
        self.tick()
        self.look()

    # --- what people see --------------------------------------------------------------------------

    @property
    def pods(self) -> list[str]:
        labels = {o["metadata"]["name"]: o["metadata"]["labels"] for o in self._list("Pod")}
        return sorted(name for name, own in labels.items() if own.get(COMPONENT_LABEL) == BOOKIE)

    @property
    def sizes(self) -> dict[str, int]:
        found = {o["metadata"]["name"]: o["spec"]["replicas"] for o in self._list("StatefulSet")}
        return {name: count for name, count in found.items() if name.startswith("bookies")}

    def removal(self, name: str) -> str:
        return str(self.world.find("Bookie", name)["status"].get("removal", ""))

    def progress(self, name: str) -> tuple[str, str]:
        said = self.world.condition("Bookie", name, "Progressing")
        return str(said["reason"]), str(said["message"])

    def view(self) -> AdminView:
        if not self.is_reachable:
            return AdminView(reason="silent")
        rows = {name: dict(row) for name, row in self.rows.items()}
        held = {
            name: {"bookie": name, "copies": count, "bytes": count * GIB}
            for name, count in self.copies.items()
        }
        told = tuple(dict(one) for one in self.grants)
        return AdminView(True, "", rows, {}, {}, holdings=held, disruptions=told)

    def steps(self) -> Sequence[Step]:
        return self.world.plan(admin=self.view(), refusals=self.refusals).steps

    # --- what happens -----------------------------------------------------------------------------

    def look(self, most: int | None = None) -> int:
        """One pass, or its first steps; gives how many steps it had."""
        steps = self.steps()
        refused: dict[Ref, Problem] = {}
        for step in steps[:most]:
            problem = self._do(step)
            if problem is not None:
                refused[step.about] = problem
        self.refusals = refused
        self._judge_deletion()
        return len(steps)

    def tick(self) -> None:
        """Controllers, bookies and the auditor each do what is next."""
        self.world.run_controllers()
        for name in self.pods:
            workload, index = self._find_maker(name)
            made = self.sizes.get(workload, 0)
            if index >= made:
                self.world.objects.pop(Ref("v1", "Pod", name))
                self.stopped.append(name)
                row = self.rows.get(name, {"duty": "drained"})
                assert row["duty"] == "drained" or not self.copies.get(name), name
        for name in self.pods:
            if name not in self.rows and self._may_register(name):
                self.rows[name] = {"id": name, "incarnation": f"{name}-1", "duty": "serving"}
                self.copies[name] = 2
        for name, row in self.rows.items():
            there = name in self.pods
            row |= {"state": "rw" if there else "absent", "free_bytes": 100 * GIB if there else 0}
            if there and row["duty"] != "serving":
                self._drain_on(name, row)

    def run(self, passes: int = 40) -> int:
        """Until neither side has anything to do; gives the passes that it took."""
        for count in range(passes):
            if not self.look() and count > 8:
                return count
            self.tick()
        raise AssertionError(f"no rest: {self.steps()}")

    def is_at_rest(self) -> bool:
        """Whether a pass changes nothing."""
        return not [step for step in self.steps() if isinstance(step, Apply | Call | Delete | Stop)]

    def _judge_deletion(self) -> None:
        """Who deletes a set or the cluster now is refused, as long as an entry lies there."""
        places = {name for name, count in self.copies.items() if count}
        held = {("LogCluster", "main")} if places else set[tuple[str, str]]()
        names = self.world.names("BookieSet")
        for place in places:  # by its name: a plan may have deleted its object
            own = max((one for one in names if place.startswith(f"{one}-")), key=len, default="")
            held |= {("BookieSet", own)} if own else set()
        there = {(ref.kind, ref.name) for ref in self.world.objects}
        assert all(self.says_held(*one) for one in held & there), (held, self.copies)

    def says_held(self, kind: str, name: str) -> bool:
        """Whether a set or a cluster says that it holds copies, so that it is not deleted."""
        status = self.world.find(kind, name).get("status", {})
        return bool(status.get("holdsCopies", False))

    def _drain_on(self, name: str, row: dict[str, Any]) -> None:
        if self.copies[name]:
            self.copies[name] -= 1
        else:
            row["duty"] = {"draining": "leaving"}.get(row["duty"], "drained")

    def _do(self, step: Step) -> Problem | None:
        match step:
            case Call():
                return self._call(step)
            case Stop():
                return self._stop(step)
            case Delete():
                assert step.about.kind != "PersistentVolumeClaim"
                if step.about.kind == "StatefulSet":
                    pod = f"{step.about.name}-0"
                    assert pod not in self.pods, "its pod would go with it"
        self.world.do([step])
        return None

    def _call(self, step: Call) -> Problem | None:
        assert step.is_admin_port, step
        parts = step.path.removeprefix("/v1/cluster/").split("/")
        if parts[0] == "disruptions":
            self.grants = [one for one in self.grants if one["token"] != parts[1]]
            return None
        if step.method == "PATCH":
            return None
        name, what = parts[1:]
        row = self.rows[name]
        if what == "cancel-drain":
            assert all(one["target"] != f"bookie/{name}" for one in self.grants), "it is refused"
            row["duty"] = "serving"
            return None
        assert what == "drain", step
        serving = sum(r["duty"] == "serving" and r["state"] == "rw" for r in self.rows.values())
        if row["duty"] == "serving" and serving - 1 < self.least:
            return Problem("placement_impossible", f"{serving - 1} are left: add bookies")
        if row["duty"] == "serving":
            row["duty"] = "draining"
        return None

    def _stop(self, step: Stop) -> Problem | None:
        name = step.about.name
        if step.question is None:
            assert name not in self.rows, "who is registered is asked about"
        else:
            question = step.question
            assert question["target"] == f"bookie/{name}" and question["kind"] == "remove"
            others = [one for one in self.grants if one["token"] != question["token"]]
            if others or self.rows[name]["duty"] != "drained":
                return Problem("disruption_denied", "not_drained or granted")
            self.grants = [{**question, "granted_unix_ms": 1}]
        self.world.do([step])
        return None

    def _may_register(self, pod: str) -> bool:
        """Not who is one too many by a hand in the StatefulSet of one bookie: it has its name and
        other disks; or, with identities, no certificate."""
        workload, number = self._find_maker(pod)
        maker = self.world.find("StatefulSet", workload)
        return BOOKIE_LABEL not in maker["spec"]["selector"]["matchLabels"] or number == 0

    def _find_maker(self, pod: str) -> tuple[str, int]:
        head, _, tail = pod.rpartition("-")
        return head, int(tail)

    def _list(self, kind: str) -> list[dict[str, Any]]:
        return [item for ref, item in self.world.objects.items() if ref.kind == kind]
