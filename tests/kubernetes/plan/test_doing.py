"""How the steps of a plan are done: by whom, how late, in which order, and on which state.

The API server is a fake that keeps versions; nothing of Kubernetes runs. Source:
docs/kubernetes/one-hand.md 6 and 10 to 13.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, cast

import pytest

from duramen_operator.apply.executor import CallRefused, Doing, PlanOutcome, do_plan
from duramen_operator.kube import Kube, Refused
from duramen_operator.leading.hand import HELD_S, Hand, HandLostError
from duramen_operator.plan.observed import Json, Observed, Problem, Ref, observe_objects
from duramen_operator.plan.steps import (
    Apply,
    Call,
    Delete,
    Event,
    Patch,
    Plan,
    Restart,
    Status,
    Step,
)
from duramen_operator.serving.worker import ClusterWorker
from duramen_operator.typed.client import TypedClient
from tests.kubernetes.plan.lone_worker import make_context

API: Final = "duramen.io/v1alpha1"


class VersionedKube:
    """Objects with versions, in the one namespace."""

    namespace = "here"

    def __init__(self, *names: str) -> None:
        self.objects: dict[Ref, dict[str, Any]] = {}
        self.writes: list[str] = []
        for name in names:
            metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": "1"}
            body = {"apiVersion": API, "kind": "Log", "metadata": metadata}
            self.objects[Ref(API, "Log", name)] = body

    def observe(self) -> Observed:
        return observe_objects("here", "main", copy.deepcopy(list(self.objects.values())))

    def touch(self, name: str) -> None:
        """Somebody else changes it."""
        metadata = self.objects[Ref(API, "Log", name)]["metadata"]
        metadata["resourceVersion"] += "x"

    async def get(self, ref: Ref) -> Json | None:
        return self.objects.get(ref)

    async def apply(self, manifest: Json, *, is_status: bool = False) -> Json:
        ref = Ref(manifest["apiVersion"], manifest["kind"], manifest["metadata"]["name"])
        if ref not in self.objects:
            assert "uid" not in manifest["metadata"], "it is made anew"
            metadata = {"name": ref.name, "uid": f"uid-{ref.name}", "resourceVersion": "0"}
            self.objects[ref] = {**manifest, "metadata": metadata}
        return self._write(ref, manifest["metadata"], "status" if is_status else "apply")

    async def evict(self, ref: Ref, uid: str, resource_version: str) -> None:
        self._write(ref, {"uid": uid, "resourceVersion": resource_version}, "evict")

    async def merge(self, ref: Ref, patch: Json) -> Json:
        return self._write(ref, patch["metadata"], "merge")

    async def delete(self, ref: Ref, uid: str, resource_version: str) -> None:
        self._write(ref, {"uid": uid, "resourceVersion": resource_version}, "delete")

    def _write(self, ref: Ref, given: Json, what: str) -> Json:
        found = self.objects[ref]["metadata"]
        wanted = (given.get("uid", found["uid"]), given.get("resourceVersion"))
        if wanted[1] is not None and wanted != (found["uid"], found["resourceVersion"]):
            raise Refused(409, Problem("Conflict", "it has changed"))
        found["resourceVersion"] += "1"
        self.writes.append(f"{what} {ref.name}")
        return {"metadata": dict(found)}


class Cluster:
    """Takes calls, each of which may take long or be refused."""

    def __init__(self) -> None:
        self.called: list[str] = []
        self.refused: set[str] = set()
        self.on_call: Callable[[str], None] = lambda _: None

    async def call(self, step: Call) -> None:
        self.called.append(step.path)
        self.on_call(step.path)
        if step.path in self.refused:
            raise CallRefused(Problem("log_unavailable", "later"))

    async def take(self, question: Json) -> None:
        self.called.append(f"take {question['target']}")
        self.on_call(question["target"])
        if question["target"] in self.refused:
            raise CallRefused(Problem("disruption_denied", "too_few_copies: two are away"))


class Ground:
    """A namespace, its cluster, a clock, and who writes."""

    def __init__(self, *names: str) -> None:
        self.kube = VersionedKube(*names)
        self.cluster = Cluster()
        self.now_s = 0.0
        self.fresh_until_s = 5.0
        self.hand = Hand(lambda: self.now_s)
        self.hand.note_renewal(0.0)

    def do(
        self,
        *steps: Step,
        seen: Observed | None = None,
        refused_at: Mapping[Ref, int] | None = None,
    ) -> PlanOutcome:
        doing = Doing(
            cast("Kube", self.kube),
            cast("TypedClient", None),
            self.cluster,
            check=self.hand.check,
            is_fresh=lambda: self.now_s < self.fresh_until_s,
            refused_at=refused_at or {},
        )
        return asyncio.run(do_plan(Plan(steps), seen or self.kube.observe(), doing))


def name(log: str) -> Ref:
    return Ref(API, "Log", log)


def call(log: str) -> Call:
    return Call(name(log), "PUT", f"/{log}")


def tell(log: str) -> Status:
    return Status(name(log), f"uid-{log}", {"said": "x"})


def restart(pod: str, question: Json | None = None) -> Restart:
    return Restart(name(pod), f"uid-{pod}", "1", question)


def make(log: str, uid: str | None = None) -> Apply:
    return Apply({"apiVersion": API, "kind": "Log", "metadata": {"name": log}}, uid)


def test_a_change_of_what_somebody_else_changed_is_refused_and_is_no_failure() -> None:
    ground = Ground("one", "two")
    seen = ground.kube.observe()
    ground.kube.touch("one")
    patch = Patch(name("one"), "uid-one", "1", {"metadata": {"finalizers": []}})
    steps = (make("one", "uid-one"), patch, tell("one"), Delete(name("one"), "uid-one", "1"))
    outcome = ground.do(*steps, tell("two"), seen=seen)
    assert ground.kube.writes == ["status two"]
    assert (outcome.stale_count, outcome.refusals) == (4, {})


def test_a_step_knows_what_an_earlier_one_of_its_plan_made_of_an_object() -> None:
    ground = Ground("one")
    patch = Patch(name("one"), "uid-one", "1", {"metadata": {"finalizers": ["f"]}})
    outcome = ground.do(make("one", "uid-one"), patch, tell("one"))
    assert ground.kube.writes == ["apply one", "merge one", "status one"]
    assert outcome.stale_count == 0


def test_who_lost_the_lease_does_nothing_more() -> None:
    ground = Ground("one", "two")

    def take_long(_: str) -> None:
        ground.now_s += HELD_S

    ground.cluster.on_call = take_long
    with pytest.raises(HandLostError):
        ground.do(tell("one"), call("one"), tell("two"), call("two"))
    assert ground.kube.writes == ["status one"]
    assert ground.cluster.called == ["/one"]


def test_what_only_the_list_says_is_right_is_not_done_by_an_old_one() -> None:
    """What names the state that it was planned for is done still: the API server judges it."""
    ground = Ground("one", "two")

    def take_long(_: str) -> None:
        ground.now_s += 6.0

    ground.cluster.on_call = take_long
    outcome = ground.do(call("one"), call("two"), make("new"), tell("two"), make("two", "uid-two"))
    assert ground.cluster.called == ["/one"]
    assert ground.kube.writes == ["status two", "apply two"]
    assert outcome.is_broken_off
    assert ground.do(tell("one")).is_broken_off is False


def test_a_call_that_is_slow_and_refused_starves_no_other() -> None:
    ground = Ground("one", "two")
    ground.cluster.refused = {"/one"}

    def take_long(path: str) -> None:
        ground.now_s += 6.0 if path == "/one" else 0.1

    ground.cluster.on_call = take_long
    first = ground.do(call("one"), call("two"))
    assert ground.cluster.called == ["/one"]
    assert first.refused_now == {name("one")}
    ground.fresh_until_s = ground.now_s + 5.0
    ground.hand.note_renewal(ground.now_s)
    second = ground.do(call("one"), call("two"), refused_at={name("one"): 1})
    assert ground.cluster.called == ["/one", "/two", "/one"]
    assert second.refused_now == {name("one")}


def test_of_several_that_are_slow_and_refused_each_has_its_turn() -> None:
    """By the worker's own count of passes."""
    ground = Ground("one", "two", "three")
    ground.cluster.refused = {"/one", "/two"}

    def take_long(path: str) -> None:
        ground.now_s += 6.0 if path in ground.cluster.refused else 0.1

    ground.cluster.on_call = take_long
    worker = ClusterWorker("main", make_context())
    for _ in range(3):
        ground.fresh_until_s = ground.now_s + 5.0
        ground.hand.note_renewal(ground.now_s)
        steps = (call("one"), call("two"), call("three"))
        outcome = ground.do(*steps, refused_at=worker._refused_at)
        worker._judge(Plan(), outcome, datetime.now(UTC))
    assert ground.cluster.called == ["/one", "/two", "/three", "/one"]


def test_a_refusal_is_remembered_while_its_step_has_no_turn() -> None:
    ground = Ground("one")
    ground.now_s = 6.0
    problem = Problem("log_unavailable", "later")
    seen = observe_objects(
        "here", "main", [ground.kube.objects[name("one")]], refusals={name("one"): problem}
    )
    outcome = ground.do(call("one"), seen=seen)
    assert outcome.refusals == {name("one"): problem}
    assert outcome.refused_now == set()


def test_nobody_is_told_of_what_was_not_written() -> None:
    """Else each pass that meets a conflict would tell it anew."""
    ground = Ground("one")
    seen = ground.kube.observe()
    ground.kube.touch("one")
    now = datetime.now(UTC)
    event = Event(name("one"), "uid-one", "Serving", "it serves", now, now)
    # The event's way is the typed client, and there is none: it would be a failure to tell it.
    outcome = ground.do(tell("one"), event, seen=seen)
    assert outcome.stale_count == 1


def test_a_pod_is_stopped_by_the_grant_that_was_asked_for_right_before() -> None:
    ground = Ground("one", "two")
    outcome = ground.do(restart("one", {"target": "sequencer/one"}), restart("two"))
    assert ground.cluster.called == ["take sequencer/one"], "nobody is asked about what is down"
    assert ground.kube.writes == ["evict one", "evict two"] and outcome.done_count == 2


def test_what_is_denied_is_not_stopped_and_the_reasons_are_told() -> None:
    ground = Ground("one")
    ground.cluster.refused = {"sequencer/one"}
    outcome = ground.do(restart("one", {"target": "sequencer/one"}))
    assert ground.kube.writes == []
    assert outcome.refusals[name("one")].message == "too_few_copies: two are away"


def test_a_pod_that_has_changed_is_not_stopped() -> None:
    ground = Ground("one")
    seen = ground.kube.observe()
    ground.kube.touch("one")
    outcome = ground.do(restart("one", {"target": "sequencer/one"}), seen=seen)
    assert (ground.kube.writes, outcome.stale_count) == ([], 1)


def test_a_grant_that_took_long_stops_nothing_by_a_hand_that_was_lost() -> None:
    ground = Ground("one")

    def take_long(_: str) -> None:
        ground.now_s += HELD_S

    ground.cluster.on_call = take_long
    with pytest.raises(HandLostError):
        ground.do(restart("one", {"target": "sequencer/one"}))
    assert ground.kube.writes == []


def test_nothing_is_stopped_on_an_old_look() -> None:
    ground = Ground("one")
    ground.fresh_until_s = -1.0
    outcome = ground.do(restart("one", {"target": "sequencer/one"}), restart("one"))
    assert (ground.kube.writes, ground.cluster.called) == ([], [])
    assert outcome.put_off == {name("one")}
