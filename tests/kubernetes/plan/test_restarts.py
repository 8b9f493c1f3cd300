"""Members of ZooKeeper and sequencers are restarted one at a time, each by a grant.

The world of the plan, and who grants: the auditor here is a list. Source:
docs/kubernetes/restarts.md.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from duramen_operator.names import PAUSED_ANNOTATION
from duramen_operator.plan.evictions.restarts import RETRY_AFTER
from duramen_operator.plan.observed import AdminView, Json, Problem, Ref, StandingView
from duramen_operator.plan.steps import Call, Patch, Restart, Status, Step
from tests.kubernetes.plan.world import NOW, World, make_bookie_set, make_cluster

ZOOKEEPER = tuple(f"main-zookeeper-{number}" for number in range(3))
SEQUENCERS = ("main-sequencer-0", "main-sequencer-1")
LIFE_MS = 600_000
OTHERS = {
    "token": "0b" * 16, "target": "bookie/b", "kind": "restart", "holder": "x", "over_in_ms": 9,
}  # fmt: skip


class Granted:
    """A world, and the grants of its cluster."""

    def __init__(self, **spec: Any) -> None:
        self.world = World(make_cluster(image="one", **spec), make_bookie_set())
        self.world.converge()
        self.grants: list[dict[str, Any]] = []
        self.is_reachable = True
        self.is_of_before = False
        self.now = NOW

    def view(self) -> AdminView:
        if not self.is_reachable:
            return AdminView(reason="silent")
        if self.is_of_before:
            unknown = StandingView({}, is_unknown_call=True)
            return AdminView(is_reachable=True, reason="", standing=unknown)
        return AdminView(is_reachable=True, reason="", disruptions=tuple(self.grants))

    def steps(self) -> list[Step]:
        return list(self.world.plan(self.now, admin=self.view()).steps)

    def look(self) -> None:
        """One pass."""
        for step in self.steps():
            match step:
                case Call():
                    self._call(step)
                case Restart() if step.question is not None:
                    assert not self.grants, "the auditor says no"
                    self.grants = [{**step.question, "granted_unix_ms": 1_700_000_000_123}]
                    self.world.do([step])
                case _:
                    self.world.do([step])

    def _call(self, step: Call) -> None:
        assert step.is_admin_port and step.path.startswith("/v1/cluster/disruptions/")
        assert step.method == "DELETE"
        token = step.path.rpartition("/")[2]
        self.grants = [one for one in self.grants if one["token"] != token]

    def away(self) -> set[str]:
        serving = {p for p in (*ZOOKEEPER, *SEQUENCERS) if self._serves(p)}
        return {*ZOOKEEPER, *SEQUENCERS} - serving

    def _serves(self, name: str) -> bool:
        if name not in self.world.names("Pod"):
            return False
        conditions = self.world.find("Pod", name)["status"]["conditions"]
        return {"type": "Ready", "status": "True"} in conditions

    def roll(self) -> list[str]:
        """Looks and controllers, until nothing is left; gives what was stopped, in order."""
        for _ in range(40):
            self.look()
            assert len(self.away()) <= 1
            self.world.run_controllers()
            assert len(self.grants) <= 1
        assert not self.grants and not list_stops(self.steps())
        return [step.about.name for step in self.world.restarts]


def list_stops(steps: list[Step]) -> list[str]:
    return [step.about.name for step in steps if isinstance(step, Restart)]


@pytest.fixture
def ground() -> Granted:
    """With a new image for everything."""
    found = Granted()
    image = {"image": "two", "zookeeper": {"members": 3, "image": "three"}}
    found.world.change("LogCluster", "main", **image)
    return found


def settle(ground: Granted) -> None:
    """The StatefulSets are changed, and their controllers have seen it."""
    ground.look()
    ground.world.run_controllers()
    assert not ground.world.restarts


def test_all_are_restarted_one_after_the_other_and_each_by_its_own_grant(ground: Granted) -> None:
    stopped = ground.roll()
    assert stopped == [*ZOOKEEPER[::-1], *SEQUENCERS[::-1]]
    questions = [step.question for step in ground.world.restarts]
    uid = ground.world.find("LogCluster", "main")["metadata"]["uid"]
    assert all(one and one["holder"] == f"operator here/main {uid}" for one in questions)
    assert len({one["token"] for one in questions if one}) == 5
    told = ground.world.condition("LogCluster", "main", "Progressing")
    bookies = "bookies-0-0, bookies-1-0, bookies-2-0"
    assert told["message"].endswith(f"restarted in turn: {bookies}"), "the budget is closed"


def test_the_question_says_what_a_member_of_zookeeper_needs(ground: Granted) -> None:
    settle(ground)
    (stop,) = [step for step in ground.steps() if isinstance(step, Restart)]
    assert stop.question is not None
    told = {key: stop.question[key] for key in ("target", "kind", "voters", "others_serving")}
    assert told == {
        "target": "zookeeper/main-zookeeper-2", "kind": "restart", "voters": 3, "others_serving": 2,
    }  # fmt: skip
    assert len(stop.question["token"]) == 32 and "accepts" not in stop.question


def test_who_is_alone_is_restarted_all_the_same() -> None:
    lone = Granted(zookeeper={"members": 1}, sequencers={"replicas": 1})
    image = {"image": "two", "zookeeper": {"members": 1, "image": "three"}}
    lone.world.change("LogCluster", "main", **image)
    lone.look()
    lone.world.run_controllers()
    stops = []
    for _ in range(6):
        stops += [step for step in lone.steps() if isinstance(step, Restart)]
        lone.look()
        lone.world.run_controllers()
    assert [step.about.name for step in stops] == ["main-zookeeper-0", "main-sequencer-0"]
    accepted = [(step.question or {}).get("accepts") for step in stops]
    assert accepted == [["quorum"], ["alone"]]


@pytest.mark.parametrize(
    "hinder",
    ["granted", "silent", "paused", "another is down", "not seen", "no room", "nobody says"],
)
def test_what_serves_is_stopped_only_where_all_is_well(ground: Granted, hinder: str) -> None:
    settle(ground)
    world = ground.world
    assert list_stops(ground.steps()) == [ZOOKEEPER[2]]
    view = ground.view()
    match hinder:
        case "granted":
            ground.grants = [OTHERS]
        case "silent":
            ground.is_reachable = False
        case "paused":
            world.find("LogCluster", "main")["metadata"]["annotations"] = {
                PAUSED_ANNOTATION: "true"
            }
        case "another is down":
            world.have_pod_serve(ZOOKEEPER[0], is_serving=False)
            world.find("Pod", ZOOKEEPER[0])["metadata"]["labels"]["controller-revision-hash"] = (
                world.find("StatefulSet", "main-zookeeper")["status"]["updateRevision"]
            )
        case "not seen":
            world.find("StatefulSet", "main-zookeeper")["metadata"]["generation"] += 1
            world.find("StatefulSet", "main-sequencer")["metadata"]["generation"] += 1
        case "no room":
            for name in ("main-zookeeper", "main-sequencer"):
                world.find("PodDisruptionBudget", name)["status"]["disruptionsAllowed"] = 0
    view = ground.view()
    if hinder == "nobody says":
        view = AdminView(is_reachable=True, reason="")
    assert list_stops(list(world.plan(admin=view).steps)) == []


def crash(world: World, name: str) -> None:
    """Its container ended, and is not started again now."""
    world.have_pod_serve(name, is_serving=False)
    (status,) = world.find("Pod", name)["status"]["containerStatuses"]
    status["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}


def test_what_does_not_run_is_stopped_without_asking_and_one_at_a_time(ground: Granted) -> None:
    settle(ground)
    ground.is_reachable = False
    for name in ZOOKEEPER[:2]:
        crash(ground.world, name)
    (stop,) = [step for step in ground.steps() if isinstance(step, Restart)]
    assert (stop.about.name, stop.question) == (ZOOKEEPER[1], None)
    ground.look()
    budget = ground.world.find("PodDisruptionBudget", "main-zookeeper")["spec"]
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow", "without a quorum as well"
    assert list_stops(ground.steps()) == [], "the one before is not there again"
    ground.world.run_controllers()
    crash(ground.world, ZOOKEEPER[0])
    assert list_stops(ground.steps()) == [ZOOKEEPER[0]]
    ground.look()
    ground.world.run_controllers()
    ground.look()
    budget = ground.world.find("PodDisruptionBudget", "main-zookeeper")["spec"]
    assert budget["unhealthyPodEvictionPolicy"] == "IfHealthyBudget", "an election is no fault"


def test_a_member_that_runs_and_lacks_a_quorum_is_left_alone(ground: Granted) -> None:
    settle(ground)
    for name in ZOOKEEPER:
        ground.world.have_pod_serve(name, is_serving=False)
    assert list_stops(ground.steps()) == [], "an election makes each of them unready"
    for name in ZOOKEEPER[:2]:
        ground.world.have_pod_serve(name)
    assert list_stops(ground.steps()) == [ZOOKEEPER[2]], "the others serve without it"


def test_of_a_silent_node_nothing_is_stopped(ground: Granted) -> None:
    """Its containers may serve; Kubernetes says that the pod is not Ready, and no more."""
    settle(ground)
    for name in (ZOOKEEPER[2], SEQUENCERS[1]):
        for one in ground.world.find("Pod", name)["status"]["conditions"]:
            if one["type"] == "Ready":
                one["status"] = "False"
    assert list_stops(ground.steps()) == []


def test_what_does_not_start_stops_there_with_the_rest_serving(ground: Granted) -> None:
    settle(ground)
    ground.look()
    ground.world.run_controllers()
    crash(ground.world, ZOOKEEPER[2])
    for _ in range(5):
        ground.look()
    assert [step.about.name for step in ground.world.restarts] == [ZOOKEEPER[2]]
    assert ground.grants, "it waits for it"
    ground.grants = []  # it is over, and is not renewed
    for _ in range(5):
        ground.look()
    assert [step.about.name for step in ground.world.restarts] == [ZOOKEEPER[2]]
    told = ground.world.condition("LogCluster", "main", "Progressing")
    turn, waits = told["message"].split("; ")
    assert "main-sequencer-0" in turn and ZOOKEEPER[0] in turn and ZOOKEEPER[2] not in turn
    assert waits == f"the next one waits until these serve, or are deleted: {ZOOKEEPER[2]}"


def test_a_better_image_replaces_one_that_does_not_start(ground: Granted) -> None:
    settle(ground)
    ground.look()
    ground.world.run_controllers()
    crash(ground.world, ZOOKEEPER[2])
    ground.world.change("LogCluster", "main", zookeeper={"members": 3, "image": "four"})
    ground.look()
    found = ground.world.find("StatefulSet", "main-zookeeper")
    seen = {"observedGeneration": found["metadata"]["generation"]}
    found["status"] |= {"updateRevision": "of-the-better-one", **seen}
    assert ground.grants, "while the grant of the one before is outstanding as well"
    (stop,) = [step for step in ground.steps() if isinstance(step, Restart)]
    assert (stop.about.name, stop.question) == (ZOOKEEPER[2], None)


def test_a_grant_is_ended_when_its_pod_serves_again_and_not_before(ground: Granted) -> None:
    settle(ground)
    ground.look()
    (grant,) = ground.grants
    assert grant["life_ms"] == LIFE_MS
    assert not [s for s in ground.steps() if isinstance(s, Call)], "the pod is on its way"
    ground.world.run_controllers()
    ground.world.have_pod_serve(ZOOKEEPER[2], is_serving=False)
    assert not [s for s in ground.steps() if isinstance(s, Call)], "it does not serve"
    ground.world.have_pod_serve(ZOOKEEPER[2])
    ground.look()
    assert ground.grants == []


def test_a_grant_of_our_own_closes_no_budget_of_servers(ground: Granted) -> None:
    """The eviction that it is for asks the other ones."""
    settle(ground)
    ground.look()
    ground.look()
    spec = ground.world.find("PodDisruptionBudget", "main-sequencer")["spec"]
    assert spec["maxUnavailable"] == 1


def test_a_grant_whose_pod_was_not_stopped_is_ended_and_asked_for_anew(ground: Granted) -> None:
    """The eviction was refused, or the operator sleeps between the two: what it sends when it wakes
    meets another state of the pod."""
    settle(ground)
    (stop,) = [step for step in ground.steps() if isinstance(step, Restart)]
    assert stop.question is not None
    for granted_ms in (1_700_000_000_123, 1_700_000_500_456):
        assert stop.question is not None
        ground.grants = [{**stop.question, "granted_unix_ms": granted_ms}]
        steps = ground.steps()
        assert list_stops(steps) == [] and not [s for s in steps if isinstance(s, Call)]
        (mark,) = [s for s in steps if isinstance(s, Status) and s.about.kind == "Pod"]
        assert mark.about == stop.about
        ground.look()
        (end,) = [step for step in ground.steps() if isinstance(step, Call)]
        path = f"/v1/cluster/disruptions/{stop.question['token']}"
        assert (end.method, end.path) == ("DELETE", path)
        ground.look()
        assert list_stops(ground.steps()) == [], "what refused it may last"
        ground.now += RETRY_AFTER
        (again,) = [step for step in ground.steps() if isinstance(step, Restart)]
        assert again.question is not None and stop.question is not None
        assert again.question["token"] != stop.question["token"], "a late end does not hit it"
        assert again.resource_version != stop.resource_version, "the late one is refused"
        stop = again


def test_a_grant_for_what_is_no_more_is_ended(ground: Granted) -> None:
    settle(ground)
    (stop,) = [step for step in ground.steps() if isinstance(step, Restart)]
    assert stop.question is not None
    ground.grants = [{**stop.question, "target": "sequencer/main-sequencer-7"}]
    ground.look()
    assert ground.grants == []


def test_a_grant_of_another_cluster_of_the_name_is_left_alone(ground: Granted) -> None:
    settle(ground)
    ground.grants = [{**OTHERS, "holder": "operator here/main another-uid"}]
    ground.look()
    assert ground.grants and not ground.world.restarts


def test_services_of_before_are_replaced_without_grants(ground: Granted) -> None:
    """They know none; else no upgrade would ever begin. Those that grant come first."""
    settle(ground)
    ground.is_of_before = True
    for _ in range(12):
        ground.look()
        assert len(ground.away()) <= 1
        ground.world.run_controllers()
    assert [step.about.name for step in ground.world.restarts] == list(SEQUENCERS[::-1])
    assert {step.question for step in ground.world.restarts} == {None}
    ground.is_of_before = False
    assert ground.roll() == [*SEQUENCERS[::-1], *ZOOKEEPER[::-1]]


def test_what_was_denied_is_told(ground: Granted) -> None:
    settle(ground)
    denied = {Ref("v1", "Pod", ZOOKEEPER[2]): Problem("disruption_denied", "quorum: 1 of 3")}
    steps = ground.world.plan(admin=ground.view(), refusals=denied).steps
    ground.world.do(step for step in steps if step.about.kind == "LogCluster")
    told = ground.world.condition("LogCluster", "main", "Progressing")
    assert told["message"].endswith(f"{ZOOKEEPER[2]} waits: disruption_denied: quorum: 1 of 3")


def test_a_stateful_set_of_before_no_longer_restarts_its_pods_by_itself() -> None:
    world = World(make_cluster(), make_bookie_set())
    world.converge()
    for name in ("main-zookeeper", "main-sequencer"):
        rolling: Json = {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}
        world.find("StatefulSet", name)["spec"]["updateStrategy"] = rolling
    patches = [step for step in world.plan().steps if isinstance(step, Patch)]
    assert {step.about.name for step in patches} == {"main-zookeeper", "main-sequencer"}
    world.settle()
    for name in ("main-zookeeper", "main-sequencer"):
        assert world.find("StatefulSet", name)["spec"]["updateStrategy"] == {"type": "OnDelete"}


def leave(world: World, name: str) -> None:
    """It was told to end, and has not yet."""
    world.find("Pod", name)["metadata"]["deletionTimestamp"] = "2026-01-02T03:00:30Z"


def test_a_grant_is_kept_while_its_pod_is_on_its_way(ground: Granted) -> None:
    settle(ground)
    ground.look()
    ground.world.run_controllers()
    leave(ground.world, ZOOKEEPER[2])
    assert not [step for step in ground.steps() if isinstance(step, Call)]


def test_a_grant_is_kept_while_its_stateful_set_is_not_there(ground: Granted) -> None:
    settle(ground)
    ground.look()
    del ground.world.objects[Ref("apps/v1", "StatefulSet", "main-zookeeper")]
    assert not [step for step in ground.steps() if isinstance(step, Call)]


def test_one_that_found_no_node_is_replaced(ground: Granted) -> None:
    """No kubelet ever said anything of it; the change that it could not be placed by is mended."""
    settle(ground)
    pod = ground.world.find("Pod", ZOOKEEPER[2])
    pod["spec"].pop("nodeName")
    pod["status"] = {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False"}],
    }
    (stop,) = [step for step in ground.steps() if isinstance(step, Restart)]
    assert (stop.about.name, stop.question) == (ZOOKEEPER[2], None)


def test_where_no_sequencer_ever_served_they_are_replaced(ground: Granted) -> None:
    """As after a first install with a wrong address in it."""
    settle(ground)
    for name in SEQUENCERS:
        ground.world.have_pod_serve(name, is_serving=False)
    assert list_stops(ground.steps()) == [SEQUENCERS[1]]
    ground.grants = [OTHERS]
    assert list_stops(ground.steps()) == [], "it runs, and somebody else may stop something"


def test_of_three_sequencers_that_never_served_all_are_replaced() -> None:
    ground = Granted(sequencers={"replicas": 3})
    more = {"image": "two", "sequencers": {"replicas": 3}}
    ground.world.change("LogCluster", "main", **more)
    settle(ground)
    names = [f"main-sequencer-{number}" for number in range(3)]
    for name in names:
        ground.world.have_pod_serve(name, is_serving=False)
    for name in names[::-1]:
        assert list_stops(ground.steps()) == [name]
        ground.look()
        ground.world.run_controllers()
        for other in names:
            ground.world.have_pod_serve(other, is_serving=other >= name)
    assert list_stops(ground.steps()) == []


def test_a_lone_member_that_runs_and_does_not_serve_is_replaced() -> None:
    lone = Granted(zookeeper={"members": 1})
    lone.world.change("LogCluster", "main", zookeeper={"members": 1, "image": "three"})
    settle(lone)
    lone.world.have_pod_serve("main-zookeeper-0", is_serving=False)
    assert list_stops(lone.steps()) == ["main-zookeeper-0"]


def test_a_member_that_ends_is_not_broken(ground: Granted) -> None:
    """Else its budget would let every unready member go in each normal restart."""
    settle(ground)
    crash(ground.world, ZOOKEEPER[2])
    leave(ground.world, ZOOKEEPER[2])
    ground.look()
    budget = ground.world.find("PodDisruptionBudget", "main-zookeeper")["spec"]
    assert budget["unhealthyPodEvictionPolicy"] == "IfHealthyBudget"


def test_services_of_before_are_not_replaced_beside_a_member_that_is_away(ground: Granted) -> None:
    settle(ground)
    ground.look()  # a member goes by a grant, and the auditor moves to a service of before
    ground.is_of_before = True
    assert list_stops(ground.steps()) == []


def test_nothing_that_serves_is_stopped_while_their_number_changes(ground: Granted) -> None:
    settle(ground)
    for name in ZOOKEEPER:
        labels = ground.world.find("Pod", name)["metadata"]["labels"]
        labels["controller-revision-hash"] = ground.world.find("StatefulSet", "main-zookeeper")[
            "status"
        ]["updateRevision"]
    assert list_stops(ground.steps()) == [SEQUENCERS[1]]
    ground.world.change("LogCluster", "main", sequencers={"replicas": 1})
    assert list_stops(ground.steps()) == []


@pytest.mark.parametrize("seed", range(6))
def test_never_two_at_once_whatever_comes_when(ground: Granted, seed: int) -> None:
    """Looks, controllers, grants that are over, others' grants, silence, pods that fail."""
    rng = random.Random(seed)
    for _ in range(100):
        match rng.choice(["look", "look", "run", "over", "other", "silence", "fail"]):
            case "look":
                before = ground.away()
                count = len(ground.world.restarts)
                ground.look()
                for step in ground.world.restarts[count:]:
                    is_down = step.about.name in before
                    assert is_down == (step.question is None)
                    mates = ZOOKEEPER if step.about.name in ZOOKEEPER else SEQUENCERS
                    assert is_down or not before & {*mates}, (step, before)
            case "run":
                ground.world.run_controllers()
            case "over":
                ground.grants = []
            case "other":
                ground.grants = ground.grants or [OTHERS]
            case "silence":
                ground.is_reachable = not ground.is_reachable
            case _:
                name = rng.choice((*ZOOKEEPER, *SEQUENCERS))
                if name in ground.world.names("Pod") and rng.random() < 0.2:
                    crash(ground.world, name)
