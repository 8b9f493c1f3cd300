"""A world whose cluster judges who may be missed, for tests of restarts of bookies.

A bookie that was stopped lacks what was written meanwhile, until it has caught up. The auditor
grants one restart at a time, and none while anybody else is away or lacks anything; the API server
lets a pod go as far as its budget does. It watches what a restart must never do. Used by
`test_bookie_restarts` and `test_restart_walks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from duramen_operator.names import BOOKIE, COMPONENT_LABEL
from duramen_operator.plan.evictions.lives import list_lives
from duramen_operator.plan.observed import AdminView, Json, PodLife, Problem, Ref, StandingView
from duramen_operator.plan.steps import Apply, Call, Delete, Patch, Restart, Step, Stop
from tests.kubernetes.plan.world import NOW, World, make_bookie_set, make_cluster

BUDGET: Final = "main-bookie"
BAD: Final = "bad"
"""An image in which nothing serves."""
UNKNOWN: Final = "unknown"
"""An image that cannot be pulled."""
OTHERS: Final[Json] = {
    "token": "0b" * 16, "target": "zookeeper/z", "kind": "restart", "holder": "x",
}  # fmt: skip
RETRY: Final = Problem("TooManyRequests", "the budget does not let it go")


class Restarting:
    """The world, and what its cluster knows."""

    def __init__(self, replicas: int = 3, image: str = "one", **spec: Any) -> None:
        self.world = World(make_cluster(image=image, **spec), make_bookie_set(replicas=replicas))
        self.rows: dict[str, dict[str, Any]] = {}
        self.lacking: set[str] = set()
        self.hung: set[str] = set()
        """Pods in which a process runs and does not serve."""
        self.crashed: set[str] = set()
        """Pods whose process ended, and is not started again until `heal`."""
        self.is_asleep = False
        """Operators fall asleep between a grant and the eviction that it is for."""
        self.asleep: list[Restart] = []
        self.grants: list[dict[str, Any]] = []
        self.refusals: dict[Ref, Problem] = {}
        self.is_reachable = True
        self.now = NOW
        self.stopped: list[tuple[str, bool]] = []
        """Pods of bookies that the operator stopped, and whether by a grant."""
        self._answered: dict[str, PodLife] = {}
        for _ in range(6):
            self.tick()
            self.look()
        self.tick()

    # --- what people see --------------------------------------------------------------------------

    @property
    def pods(self) -> list[str]:
        return sorted(name for name in self.world.names("Pod") if self._is_bookie(name))

    @property
    def outdated(self) -> set[str]:
        """Bookies that run another image than the spec's."""
        image = self.world.find("LogCluster", "main")["spec"]["image"]
        return {name for name in self.pods if self._image_of(name) != image}

    def is_ready(self, name: str) -> bool:
        if self._is_leaving(name):
            return False
        told = self.world.find("Pod", name)["status"]["conditions"]
        return {"type": "Ready", "status": "True"} in told

    def serves(self, name: str) -> bool:
        if self._is_leaving(name):
            return False
        told = self.world.find("Pod", name)["status"]["conditions"]
        return {"type": "ContainersReady", "status": "True"} in told

    def budget(self) -> Json:
        spec: Json = self.world.find("PodDisruptionBudget", BUDGET)["spec"]
        return spec

    def told(self, kind: str = "LogCluster", name: str = "main") -> tuple[str, str]:
        said = self.world.condition(kind, name, "Progressing")
        return str(said["reason"]), str(said["message"])

    def view(self) -> AdminView:
        if not self.is_reachable:
            return AdminView(reason="silent")
        standing = StandingView(
            dict(self._answered), {name: self._judge(name) for name in self.rows}
        )
        rows = {name: dict(row) for name, row in self.rows.items()}
        told = tuple(dict(one) for one in self.grants)
        return AdminView(True, "", rows, {}, {}, disruptions=told, standing=standing)

    def steps(self) -> Sequence[Step]:
        plan = self.world.plan(self.now, admin=self.view(), refusals=self.refusals)
        return plan.steps

    def stops(self) -> list[tuple[str, bool]]:
        """What would be stopped now, and whether by a grant."""
        found = (step for step in self.steps() if isinstance(step, Restart))
        return [(step.about.name, step.question is not None) for step in found]

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
        return len(steps)

    def tick(self) -> None:
        """Controllers and kubelets do what is next, and the auditor answers about what serves."""
        for ref in [Ref("v1", "Pod", name) for name in self.pods]:
            if "deletionTimestamp" in self.world.objects[ref]["metadata"]:
                del self.world.objects[ref]
        self.world.run_controllers()
        for name in self.pods:
            if self._image_of(name) == UNKNOWN:
                self._wait_for_image(name)
            elif self._image_of(name) == BAD or name in self.crashed:
                self._end_process(name)
            elif name in self.hung:
                self.world.have_pod_serve(name, is_serving=False)
            else:
                self.rows.setdefault(name, {"id": name, "incarnation": name, "duty": "serving"})
        for name, row in self.rows.items():
            row["state"] = "rw" if name in self.pods and self.serves(name) else "absent"
        self._renew_budget()
        if self.is_reachable:
            self._answered = list_lives(self.world.observe())

    def catch_up(self) -> None:
        """Everybody who serves gets what it missed."""
        self.lacking -= {name for name in self.pods if self.serves(name)}

    def crash(self, name: str) -> None:
        """Its process ends, and is not started again now."""
        self.crashed.add(name)
        self._end_process(name)

    def heal(self) -> None:
        """What crashed or hangs is started again."""
        self.crashed.clear()
        self.hung.clear()

    def delete_stuck(self) -> None:
        """People delete pods that never served beside others that did, as they are told."""
        for name in self.pods:
            if self.rows and name not in self.rows and not self._is_leaving(name):
                self._end(name)

    def wake(self) -> None:
        """Who fell asleep sends its eviction now: refused if the pod is another, or changed."""
        late, self.asleep = self.asleep, []
        for step in late:
            there = self.world.objects.get(step.about)
            metadata = {} if there is None else there["metadata"]
            is_same = metadata.get("resourceVersion") == step.resource_version
            self._renew_budget()
            if metadata.get("uid") == step.uid and is_same and self._lets_go(step.about.name):
                assert step.question is not None
                token = step.question["token"]
                others = [one for one in self.grants if one["token"] != token]
                assert not others, "somebody else has a grant by now"
                assert self._may_be_missed(step.about.name), step
                self._end(step.about.name)

    def drain(self, name: str) -> bool:
        """Somebody evicts a pod; gives whether it was let go."""
        self._renew_budget()
        if not self._lets_go(name) or self._is_leaving(name):
            return False
        noted = [one for one in self.rows if self._is_noted(one)]
        away = {one for one in noted if one not in self.pods or not self.is_ready(one)} - {name}
        is_missed = name in noted and self.serves(name) and name not in self.lacking
        assert not (away and is_missed), (name, away)
        self._end(name)
        return True

    def run(self, passes: int = 60) -> None:
        """Until neither side has anything to do."""
        for count in range(passes):
            if not self.look() and count > 6:
                return
            self.tick()
            self.catch_up()
            self.now += timedelta(seconds=20)
        raise AssertionError(f"no rest: {self.steps()}")

    def is_at_rest(self) -> bool:
        """Whether a pass changes nothing."""
        changes = Apply | Call | Delete | Patch | Restart
        return not [step for step in self.steps() if isinstance(step, changes)]

    def _do(self, step: Step) -> Problem | None:
        match step:
            case Restart():
                return self._restart(step)
            case Call(method="DELETE"):
                assert step.is_admin_port and step.path.startswith("/v1/cluster/disruptions/")
                token = step.path.rpartition("/")[2]
                self._check_end(token)
                self.grants = [one for one in self.grants if one["token"] != token]
            case Call():
                assert step.method == "PATCH", step
            case Stop():
                return Problem("disruption_denied", "placement: too few would be left")
            case _:
                self.world.do([step])
        return None

    def _restart(self, step: Restart) -> Problem | None:
        name, question = step.about.name, step.question
        if not self._is_bookie(name):
            if question is not None and self.grants:
                return Problem("disruption_denied", "granted")
            self._grant(question)
            self.world.do([step])
            return None
        if question is not None:
            # What the operator itself has seen to: the auditor is the second one to look.
            assert "minAvailable" in self.budget(), f"{name} while the budget is closed"
            assert all(self.is_ready(one) for one in self.pods if one != name), name
            if self.grants or not self._may_be_missed(name):
                return Problem("disruption_denied", "granted, or too_few_copies")
            self._grant(question)
            if self.is_asleep:
                self.asleep.append(step)
                return None
        self._renew_budget()
        if not self._lets_go(name):
            return RETRY
        statuses = self.world.find("Pod", name)["status"]["containerStatuses"]
        runs = any("running" in one["state"] for one in statuses)
        assert question is not None or not runs or name not in self.rows, f"{name} runs"
        self.stopped.append((name, question is not None))
        self._end(name)
        return None

    def _grant(self, question: Json | None) -> None:
        if question is not None:
            granted_ms = int(datetime.timestamp(self.now) * 1000)
            self.grants = [{**question, "granted_unix_ms": granted_ms}]

    def _is_noted(self, name: str) -> bool:
        """Whether the operator has seen it registered."""
        there = name in self.world.names("Bookie")
        return there and bool(self.world.find("Bookie", name)["status"].get("incarnation"))

    def _check_end(self, token: str) -> None:
        """Of a grant by which a bookie was stopped: it serves and is registered, or was not."""
        for grant in self.grants:
            name = str(grant["target"]).partition("/")[2]
            if grant["token"] == token and self._is_bookie(name):
                assert name in self.pods and self.rows[name]["state"] == "rw", grant

    def _end_process(self, name: str) -> None:
        self.world.have_pod_serve(name, is_serving=False)
        status = self.world.find("Pod", name)["status"]
        count = status["containerStatuses"][0]["restartCount"] + 1
        waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
        status["containerStatuses"] = [{"restartCount": count, "state": waiting}]
        self.lacking |= {name} & self.rows.keys()

    def _wait_for_image(self, name: str) -> None:
        self.world.have_pod_serve(name, is_serving=False)
        status = self.world.find("Pod", name)["status"]
        waiting = {"waiting": {"reason": "ImagePullBackOff"}}
        status |= {"phase": "Pending", "containerStatuses": [{"restartCount": 0, "state": waiting}]}

    def _end(self, name: str) -> None:
        """It is told to end, and has ended when controllers look next."""
        pod = self.world.find("Pod", name)
        pod["metadata"]["deletionTimestamp"] = "2026-01-02T03:00:30Z"
        self.hung.discard(name)
        self.crashed.discard(name)
        if name in self.rows:
            self.rows[name]["state"] = "absent"
            self.lacking.add(name)

    def _may_be_missed(self, name: str) -> bool:
        """Whether everybody else is there and lacks nothing."""
        others = [one for one in self.rows if one != name]
        return all(self.rows[o]["state"] == "rw" and o not in self.lacking for o in others)

    def _judge(self, name: str) -> Json:
        reasons = [] if self._may_be_missed(name) else [{"code": "too_few_copies", "detail": "few"}]
        is_there = self.rows[name]["state"] == "rw"
        lacks = int(name in self.lacking)
        return {"bookie": name, "there": is_there, "reasons": reasons, "lacks_count": lacks}

    def _lets_go(self, name: str) -> bool:
        """What the API server says to an eviction."""
        if self.world.find("Pod", name)["status"]["phase"] == "Pending":
            return True
        budget = self.world.find("PodDisruptionBudget", BUDGET)
        counts = budget["status"]
        if self.is_ready(name):
            return bool(counts["disruptionsAllowed"] > 0)
        if budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow":
            return True
        return bool(counts["currentHealthy"] >= counts["desiredHealthy"] > 0)

    def _renew_budget(self) -> None:
        for item in self.world.objects.values():
            if item["kind"] == "PodDisruptionBudget":
                seen = {"observedGeneration": item["metadata"]["generation"]}
                item["status"] = {**self.world.judge_budget(item["spec"]), **seen}

    def _is_bookie(self, name: str) -> bool:
        labels = self.world.find("Pod", name)["metadata"]["labels"] if self._is_there(name) else {}
        return labels.get(COMPONENT_LABEL) == BOOKIE or name in self.rows

    def _is_leaving(self, name: str) -> bool:
        return "deletionTimestamp" in self.world.find("Pod", name)["metadata"]

    def _is_there(self, name: str) -> bool:
        return Ref("v1", "Pod", name) in self.world.objects

    def _image_of(self, name: str) -> str:
        (container,) = self.world.find("Pod", name)["spec"]["containers"]
        return str(container["image"])
