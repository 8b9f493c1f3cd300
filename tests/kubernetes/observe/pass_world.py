"""Passes of an operator without Kubernetes: look, plan, do; again when the plan says so.

Objects are a `World`'s, the cluster is a `TwinState` behind an `AskedCluster`, and the clock is the
event loop's, which stands still while anything can run. Used by the tests of this folder.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from duramen_operator.observe.admin import LookMemory, observe_logs
from duramen_operator.observe.questions import BoundedClient
from duramen_operator.observe.request_budget import LEAST_COUNT
from duramen_operator.plan.archive.plan import plan_archive
from duramen_operator.plan.log_namespaces import plan_namespaces
from duramen_operator.plan.logs import plan_logs
from duramen_operator.plan.observed import AdminView
from duramen_operator.plan.plan import make_plan
from duramen_operator.plan.steps import Call, Event, Patch, Plan, Status, Step
from duramen_operator.resources.conditions import first_conditions
from duramen_operator.serving.cluster_admin import LOOK_S
from tests.kubernetes.controllers.twin_state import TwinState
from tests.kubernetes.observe.asked_cluster import AskedCluster
from tests.kubernetes.plan.world import NOW, World, make_cluster
from tests.kubernetes.plan.worlds import make_log, make_space
from tests.pauses import let_pass

RESYNC_S: Final = 30.0
PARTS: Final = (plan_namespaces, plan_logs, plan_archive)
STORE: Final[dict[str, Any]] = {"coldStore": {"url": "s3://bucket/archive", "secretName": "keys"}}


@dataclass(frozen=True, slots=True)
class Passed:
    """One pass: what was seen and planned, how long the look took, how long the next can wait."""

    view: AdminView
    plan: Plan
    look_s: float
    wait_s: float

    def steps(self, *kinds: type[Step]) -> list[Step]:
        """The steps of these kinds."""
        return [step for step in self.plan.steps if isinstance(step, kinds)]


@dataclass(slots=True)
class PassWorld:
    """A LogCluster `main`, a namespace `shop`, Logs, and who serves them."""

    world: World = field(default_factory=lambda: World(make_cluster(**STORE), make_space()))
    state: TwinState = field(default_factory=TwinState)
    least_count: int = LEAST_COUNT
    asked: AskedCluster = field(init=False)
    memory: LookMemory = field(init=False)

    def __post_init__(self) -> None:
        self.asked = AskedCluster(self.state)
        self.memory = LookMemory(self.clock_s, least_count=self.least_count)
        self.state.ensure_namespace("shop", {})

    @staticmethod
    def clock_s() -> float:
        """The loop's clock."""
        return asyncio.get_running_loop().time()

    @property
    def now(self) -> datetime:
        """The same, as a date."""
        return NOW + timedelta(seconds=self.clock_s())

    def add_logs(self, names: Iterable[str], **spec: Any) -> None:
        """Logs, and the logs themselves."""
        for name in names:
            self.state.ensure_log("shop", name, {})
            self.add_object(name, **spec)

    def add_object(self, name: str, **spec: Any) -> None:
        """A Log of `shop`, as the API server makes it."""
        self.world.add(make_log(name, spec, status={"conditions": first_conditions("Log")}))

    def leave(self, name: str) -> None:
        """Somebody deletes a Log."""
        metadata = self.world.find("Log", name)["metadata"]
        metadata["deletionTimestamp"] = self.now.isoformat()
        metadata["generation"] += 1

    async def do_pass(self, meanwhile: Callable[[], None] | None = None) -> Passed:
        """Look, plan, do; `meanwhile` happens between the look and the second list."""
        seen = self.world.observe()
        began_s = self.clock_s()
        client = BoundedClient(self.asked)
        ends_s = began_s + LOOK_S
        found = await observe_logs(client, client, seen, self.memory, ends_s=ends_s)
        look_s = self.clock_s() - began_s
        if meanwhile is not None:
            meanwhile()
        view = AdminView(
            True, "", {}, found.namespaces, found.logs, stale_logs=found.stale_logs,
            unlisted=found.unlisted, look_again_s=found.look_again_s,
        )  # fmt: skip
        now = self.now
        plan = make_plan(replace(self.world.observe(), admin=view), now, PARTS)
        self.memory.facts.renew(plan.unsure)
        self._do(plan.steps)
        wait_s = RESYNC_S
        if plan.again_at is not None:
            wait_s = min(wait_s, max(0.0, (plan.again_at - now).total_seconds()))
        return Passed(view, plan, look_s, wait_s)

    async def do_passes(self, count: int) -> list[Passed]:
        """Passes as a worker does them that nothing wakes."""
        done = []
        for _ in range(count):
            done.append(await self.do_pass())
            await let_pass(done[-1].wait_s, what="until the next pass")
        return done

    async def settle(self) -> None:
        """Until there is nothing to write."""
        for _ in range(20):
            (done,) = await self.do_passes(1)
            if not done.steps(Status, Call, Patch) and done.view.look_again_s is None:
                return
        raise AssertionError("it never comes to rest")

    def ready(self, name: str) -> str:
        """`status/reason` of a Log's condition Ready."""
        said = self.world.condition("Log", name, "Ready")
        return f"{said['status']}/{said['reason']}"

    def _do(self, steps: Iterable[Step]) -> None:
        for step in steps:
            match step:
                case Call():
                    self._call(step)
                case Patch():
                    metadata = self.world.objects[step.about]["metadata"]
                    metadata["finalizers"] = step.patch["metadata"]["finalizers"]
                    if metadata.get("deletionTimestamp") and not metadata["finalizers"]:
                        del self.world.objects[step.about]
                case Event():
                    self.world.events.append(step)
                case _:
                    self.world.do([step])

    def _call(self, step: Call) -> None:
        self.world.calls.append(step)
        path, _, _ = step.path.partition("?")
        _, _, _, space, _, name = path.split("/")
        self.memory.facts.renew({f"{space}/{name}"})
        match step.method:
            case "PUT":
                self.state.ensure_log(space, name, dict(step.body or {}))
            case "PATCH":
                self.state.change_log(space, name, dict(step.body or {}), None)
            case "DELETE":
                self.state.delete_log(space, name)
            case _:
                raise AssertionError(step)
