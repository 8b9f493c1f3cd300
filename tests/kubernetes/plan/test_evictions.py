"""Who may be evicted: budgets of a cluster and gates of its bookies, by what is known of it.

What a budget lets go is computed as the API server does, so histories can say that no second bookie
goes. Source: docs/kubernetes/evictions.md.
"""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from duramen_operator.names import CAUGHT_UP_GATE, PAUSED_ANNOTATION
from duramen_operator.plan.evictions.lives import is_waited_for, list_lives
from duramen_operator.plan.observed import AdminView, Json, StandingView
from duramen_operator.plan.steps import Call, Patch, Status
from tests.kubernetes.plan.world import NOW, World, make_bookie_set, make_cluster

NAMES = ("bookies-0-0", "bookies-1-0", "bookies-2-0")
BUDGET = "main-bookie"
OPEN = {"minAvailable": 2}
CLOSED = {"maxUnavailable": 0}
GRANT = {"kind": "restart", "target": "bookie/bookies-1-0", "holder": "somebody", "token": "0a"}


def row_of(name: str, *codes: str, lacks: int = 0, there: bool = True) -> Json:
    reasons = [{"code": code, "detail": f"why {code}", "count": 1} for code in codes]
    return {"bookie": name, "there": there, "reasons": reasons, "lacks_count": lacks}


WELL = {name: row_of(name) for name in NAMES}


def see(world: World, rows: dict[str, Json] | None = None, **others: Any) -> AdminView:
    """A cluster that answers; it was asked about the pods as they are."""
    registered = {
        name: {"id": name, "incarnation": name, "state": "rw", "weight": 1.0, "duty": "serving"}
        for name in NAMES
    }
    standing = StandingView(list_lives(world.observe()), WELL if rows is None else rows)
    told: dict[str, Any] = {"bookies": registered, "disruptions": (), "standing": standing}
    return AdminView(is_reachable=True, reason="", **{**told, **others})


def do(world: World, view: AdminView, passes: int = 3) -> None:
    for _ in range(passes):
        world.do(step for step in world.plan(admin=view).steps if not isinstance(step, Call))


@pytest.fixture
def world() -> World:
    """Three bookies that serve, and are caught up."""
    made = World(make_cluster(), make_bookie_set())
    made.converge()
    do(made, see(made))
    assert budget(made) == OPEN and gates(made) == dict.fromkeys(NAMES, "True/CaughtUp")
    return made


def budget(world: World, name: str = BUDGET) -> dict[str, Any]:
    spec = dict(world.find("PodDisruptionBudget", name)["spec"])
    return {key: spec[key] for key in ("minAvailable", "maxUnavailable") if key in spec}


def told(world: World) -> str:
    found = world.condition("LogCluster", "main", "EvictionsAllowed")
    return f"{found['status']}/{found['reason']}: {found['message']}"


def gates(world: World) -> dict[str, str]:
    found = {}
    for name in NAMES:
        said = {one["type"]: one for one in world.find("Pod", name)["status"]["conditions"]}
        gate = said.get(CAUGHT_UP_GATE, {})
        found[name] = f"{gate.get('status')}/{gate.get('reason')}"
    return found


def restart(world: World, name: str) -> None:
    """Its container ends, and is started again."""
    status = world.find("Pod", name)["status"]
    statuses = [
        {"restartCount": 1 + sum(s["restartCount"] for s in status.get("containerStatuses", ()))}
    ]
    world.have_pod_serve(name)
    world.find("Pod", name)["status"]["containerStatuses"] = statuses


def drop_gate(world: World, name: str) -> None:
    """A pod of before."""
    pod = world.find("Pod", name)
    del pod["spec"]["readinessGates"]
    conditions = pod["status"]["conditions"]
    pod["status"]["conditions"] = [one for one in conditions if one["type"] != CAUGHT_UP_GATE]
    world.have_pod_serve(name)


def evict(world: World, name: str) -> None:
    """The pod goes, and another one of its name is made, which does not serve yet."""
    (ref,) = (ref for ref in world.objects if (ref.kind, ref.name) == ("Pod", name))
    del world.objects[ref]
    world.run_controllers()
    world.have_pod_serve(name, is_serving=False)


def find_evictable(world: World) -> set[str]:
    """Pods that the API server lets go now, as its budget's controller and the eviction count."""
    spec = budget(world)
    healthy = {name for name in NAMES if _is_ready(world, name)}
    desired = spec["minAvailable"] if "minAvailable" in spec else len(NAMES)
    unready = {name for name in NAMES if name not in healthy}
    allowed = healthy if len(healthy) > desired else set()
    return allowed | (unready if len(healthy) >= desired > 0 else set())


def _is_ready(world: World, name: str) -> bool:
    conditions = world.find("Pod", name)["status"]["conditions"]
    return any(one == {"type": "Ready", "status": "True"} for one in conditions)


# --- The budget ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("view", "found"),
    [
        ({"standing": None}, "Unknown/NotAnswered: how the bookies stand the auditor has not said"),
        ({"disruptions": None}, "Unknown/NotAnswered: the auditor does not say which grants"),
        ({"disruptions": (GRANT,)},
         "False/Granted: granted to somebody: restart bookie/bookies-1-0"),
        ({"rows": {**WELL, NAMES[1]: row_of(NAMES[1], "too_few_copies")}},
         "False/CopiesMissing: too_few_copies: why too_few_copies (bookies-1-0)"),
        ({"rows": {**WELL, "strange": row_of("strange", "unread")}}, "False/CopiesMissing: unread"),
        ({"rows": {**WELL, NAMES[2]: row_of(NAMES[2], there=False)}},
         "False/BookiesMissing: not registered: bookies-2-0"),
        ({"rows": {name: WELL[name] for name in NAMES[:2]}},
         "False/BookiesMissing: not registered: bookies-2-0"),
    ],
)  # fmt: skip
def test_while_something_is_owed_granted_or_unknown_it_is_closed(
    world: World, view: dict[str, Any], found: str
) -> None:
    do(world, see(world, **view))
    assert budget(world) == CLOSED and told(world).startswith(found), told(world)
    assert gates(world) == dict.fromkeys(NAMES, "True/CaughtUp"), "all serve on"
    do(world, see(world))
    assert budget(world) == OPEN and told(world).startswith("True/CaughtUp")
    assert not world.plan(admin=see(world)).steps


def test_a_log_that_can_miss_nobody_holds_up_no_drain(world: World) -> None:
    do(world, see(world, {**WELL, NAMES[0]: row_of(NAMES[0], "no_spare")}))
    assert budget(world) == OPEN


def test_a_silent_cluster_has_a_closed_one(world: World) -> None:
    do(world, AdminView(reason="no write proxy is ready"))
    assert budget(world) == CLOSED
    assert told(world) == "Unknown/NotAnswered: the cluster says: no write proxy is ready"


def test_services_of_before_have_a_closed_one_and_their_pods_are_ready(world: World) -> None:
    evict(world, NAMES[0])
    world.have_pod_serve(NAMES[0])
    unknown = StandingView(list_lives(world.observe()), why="404", is_unknown_call=True)
    do(world, see(world, standing=unknown))
    assert budget(world) == CLOSED and told(world).startswith("Unknown/NotJudged")
    assert gates(world)[NAMES[0]] == "True/NotJudged"


def test_an_answer_about_another_process_does_not_count(world: World) -> None:
    before = see(world)
    restart(world, NAMES[1])
    do(world, before)
    assert budget(world) == CLOSED and find_evictable(world) == set()
    assert gates(world)[NAMES[1]] == "False/NotJudged", "said True of the process before"
    do(world, see(world))
    assert gates(world)[NAMES[1]] == "True/CaughtUp"
    old = see(world)
    restart(world, NAMES[1])
    steps = [s for s in world.plan(admin=old).steps if s.about.kind != "LogCluster"]
    assert isinstance(steps[0], Patch) and steps[0].about.name == BUDGET, "it is closed first"
    assert isinstance(steps[1], Status) and steps[1].about.name == NAMES[1]


def test_one_that_is_away_may_go_and_nobody_else(world: World) -> None:
    evict(world, NAMES[0])
    away = {**WELL, NAMES[0]: row_of(NAMES[0], there=False)}
    away |= {name: row_of(name, "too_few_copies") for name in NAMES[1:]}
    do(world, see(world, away))
    assert budget(world) == OPEN and told(world).startswith("True/OneMissing: only bookies-0-0")
    assert find_evictable(world) == {NAMES[0]}
    do(world, see(world, {**away, NAMES[0]: row_of(NAMES[0], "too_few_copies", there=False)}))
    assert budget(world) == CLOSED and find_evictable(world) == set()
    evict(world, NAMES[1])
    do(world, see(world, away))
    assert budget(world) == CLOSED
    assert told(world) == "False/BookiesMissing: not ready: bookies-0-0, bookies-1-0"


def test_a_set_that_is_not_valid_closes_it(world: World) -> None:
    world.add(make_bookie_set("more", replicas=-1))
    do(world, see(world))
    assert budget(world) == CLOSED and told(world).startswith("False/SetsUnclear")


def test_so_many_have_to_be_ready_as_there_are_bookies(world: World) -> None:
    world.change("BookieSet", "bookies", replicas=5)
    do(world, see(world))
    assert budget(world) == CLOSED, "those that are to be made are not there"
    spec = world.find("PodDisruptionBudget", BUDGET)["spec"]
    assert spec["unhealthyPodEvictionPolicy"] == "IfHealthyBudget"


def test_the_servers_budgets_close_for_a_grant_alone(world: World) -> None:
    for view in (see(world), see(world, disruptions=None), AdminView(reason="silent")):
        do(world, view)
        for name in ("main-sequencer", "main-zookeeper"):
            assert budget(world, name) == {"maxUnavailable": 1}
    do(world, see(world, disruptions=(GRANT,)))
    for name in ("main-sequencer", "main-zookeeper"):
        assert budget(world, name) == CLOSED
    assert budget(world, "main-writeproxy") == {"maxUnavailable": "25%"}


def test_a_paused_cluster_keeps_its_budgets_and_tells_its_gates(world: World) -> None:
    world.find("LogCluster", "main")["metadata"]["annotations"] = {PAUSED_ANNOTATION: "true"}
    evict(world, NAMES[0])
    do(world, see(world))
    assert budget(world) == OPEN and find_evictable(world) == {NAMES[0]}
    world.have_pod_serve(NAMES[0])
    do(world, see(world, {**WELL, NAMES[0]: row_of(NAMES[0], lacks=3)}))
    assert gates(world)[NAMES[0]] == "False/CopiesMissing" and find_evictable(world) == {NAMES[0]}
    assert told(world).startswith("Unknown/NotChanged: nothing is changed now, as Progressing says")
    do(world, see(world))
    assert gates(world)[NAMES[0]] == "True/CaughtUp"


def test_who_comes_back_opens_it_for_nobody_else_before_all_are_judged(world: World) -> None:
    """While one is away it is judged alone; once it serves all are needed to say yes."""
    evict(world, NAMES[0])
    needed = {NAMES[0]: row_of(NAMES[0], there=False)}
    needed |= {name: row_of(name, "too_few_copies") for name in NAMES[1:]}
    do(world, see(world, needed))
    assert find_evictable(world) == {NAMES[0]}
    world.have_pod_serve(NAMES[0])
    assert find_evictable(world) == {NAMES[0]}, "its gate holds it back until a look"
    do(world, see(world, {**needed, NAMES[0]: row_of(NAMES[0])}))
    assert _is_ready(world, NAMES[0]) and find_evictable(world) == set()


def test_one_of_before_the_gate_that_is_away_closes_it(world: World) -> None:
    """It would count as soon as it serves."""
    drop_gate(world, NAMES[0])
    world.have_pod_serve(NAMES[0], is_serving=False)
    do(world, see(world, {**WELL, NAMES[0]: row_of(NAMES[0], there=False)}))
    assert budget(world) == CLOSED


def test_a_set_that_leaves_has_bookies_all_the_same(world: World) -> None:
    world.add(make_bookie_set("more", replicas=3))
    world.converge()
    found = world.find("BookieSet", "more")
    found["metadata"] |= {"deletionTimestamp": "2026-01-02T03:04:05Z", "finalizers": ["x/y"]}
    do(world, see(world))
    assert budget(world) == CLOSED and told(world).startswith("False/SetsUnclear")


def test_what_this_look_says_of_who_is_there_counts_as_well(world: World) -> None:
    drop_gate(world, NAMES[0])
    view = see(world)
    rows = {**(view.bookies or {}), NAMES[0]: {"id": NAMES[0], "state": "absent"}}
    do(world, replace(view, bookies=rows))
    assert budget(world) == CLOSED and told(world).endswith("not registered: bookies-0-0")


def test_a_form_of_somebody_elses_goes_in_the_same_patch(world: World) -> None:
    """A budget with both forms is refused, in each pass."""
    world.find("PodDisruptionBudget", BUDGET)["spec"] |= {"maxUnavailable": 3}
    for view, wanted in ((see(world), OPEN), (see(world, disruptions=None), CLOSED)):
        do(world, view)
        assert budget(world) == wanted
        assert not world.plan(admin=view).steps


# --- The gate ------------------------------------------------------------------------------------


def test_a_pod_that_came_back_is_ready_once_its_bookie_lacks_nothing(world: World) -> None:
    evict(world, NAMES[0])
    do(world, see(world))
    assert gates(world)[NAMES[0]] == "False/NotServing"
    before = see(world)
    world.have_pod_serve(NAMES[0])
    do(world, before)
    assert gates(world)[NAMES[0]] == "False/NotJudged", "it was not asked about this process"
    needed = {name: row_of(name, "too_few_copies") for name in NAMES[1:]}
    do(world, see(world, {**needed, NAMES[0]: row_of(NAMES[0], lacks=2)}))
    assert gates(world)[NAMES[0]] == "False/CopiesMissing" and find_evictable(world) == set()
    assert world.condition("LogCluster", "main", "Ready")["status"] == "True", "it serves"
    do(world, see(world))
    assert _is_ready(world, NAMES[0]) and find_evictable(world) == set(NAMES)


def test_what_a_running_bookie_lacks_closes_the_budget_and_makes_no_pod_unready(
    world: World,
) -> None:
    lacking = {name: row_of(name, "too_few_copies") for name in NAMES[1:]}
    do(world, see(world, {**lacking, NAMES[0]: row_of(NAMES[0], lacks=7)}))
    assert budget(world) == CLOSED and gates(world) == dict.fromkeys(NAMES, "True/CaughtUp")


def test_a_bookie_that_lost_its_session_is_told_until_it_is_judged_anew(world: World) -> None:
    """Its node was cut off: the same process, which missed what was written meanwhile."""
    view = see(world)
    rows = {**(view.bookies or {}), NAMES[0]: {**(view.bookies or {})[NAMES[0]], "state": "absent"}}
    do(world, replace(view, bookies=rows))
    assert gates(world)[NAMES[0]] == "False/NotServing"
    do(world, see(world, {**WELL, NAMES[0]: row_of(NAMES[0], lacks=1)}))
    assert not _is_ready(world, NAMES[0])
    do(world, see(world))
    assert _is_ready(world, NAMES[0])


def test_pods_are_told_of_whatever_set_they_are(world: World) -> None:
    evict(world, NAMES[0])
    world.have_pod_serve(NAMES[0])
    world.find("BookieSet", "bookies")["spec"]["replicas"] = "many"
    do(world, see(world))
    assert gates(world)[NAMES[0]] == "True/CaughtUp"


def test_a_pod_of_before_the_gate_is_left_alone(world: World) -> None:
    drop_gate(world, NAMES[0])
    do(world, see(world, {**WELL, NAMES[0]: row_of(NAMES[0], lacks=1)}))
    assert gates(world)[NAMES[0]] == "None/None"


def test_what_moves_by_itself_is_not_written(world: World) -> None:
    evict(world, NAMES[0])
    world.have_pod_serve(NAMES[0])
    do(world, see(world, {**WELL, NAMES[0]: row_of(NAMES[0], lacks=9)}))
    for minute in range(5):
        for view in (
            see(world, {**WELL, NAMES[0]: row_of(NAMES[0], lacks=9 - minute)}),
            see(world, standing=None),
        ):
            steps = world.plan(NOW + timedelta(minutes=minute), admin=view).steps
            assert not [s for s in steps if isinstance(s, Status) and s.about.kind == "Pod"]
            do(world, view)


def test_services_of_before_are_believed_once_and_for_all(world: World) -> None:
    evict(world, NAMES[0])
    world.have_pod_serve(NAMES[0])
    unknown = StandingView(list_lives(world.observe()), why="404", is_unknown_call=True)
    do(world, see(world, standing=unknown))
    for view in (see(world, standing=unknown), see(world, standing=None)):
        steps = world.plan(admin=view).steps
        assert not [s for s in steps if isinstance(s, Status) and s.about.kind == "Pod"]


def test_a_word_of_a_person_stays_until_the_pod_goes(world: World) -> None:
    evict(world, NAMES[0])
    world.have_pod_serve(NAMES[0])
    conditions = world.find("Pod", NAMES[0])["status"]["conditions"]
    conditions.append({"type": CAUGHT_UP_GATE, "status": "True"})
    do(world, see(world, {**WELL, NAMES[0]: row_of(NAMES[0], lacks=9)}))
    assert gates(world)[NAMES[0]] == "True/None"


# --- When it is asked for ------------------------------------------------------------------------


def test_somebody_waits_while_a_pod_is_held_or_the_budget_closed(world: World) -> None:
    assert not is_waited_for(world.observe())
    evict(world, NAMES[0])
    assert not is_waited_for(world.observe()), "it does not serve yet"
    world.have_pod_serve(NAMES[0])
    assert is_waited_for(world.observe())
    do(world, see(world))
    assert not is_waited_for(world.observe())
    do(world, see(world, disruptions=(GRANT,)))
    assert is_waited_for(world.observe()), "for an open budget"


# --- Histories -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_nobody_is_evicted_while_another_one_lacks_copies(world: World, seed: int) -> None:
    """Evictions, copies that come back, looks of any age: by what the API server lets go.

    The truth is kept here: who runs, and who lacks copies. A look shows it as it was when the
    auditor was asked, or asked before that; pods are listed later.
    """
    rng = random.Random(seed)
    lacks = dict.fromkeys(NAMES, 0)
    answers: list[AdminView] = [see(world)]
    evicted: list[str] = []
    for _ in range(120):
        match rng.choice(["look", "look", "evict", "evict", "serve", "fill", "ask"]):
            case "evict":
                name = rng.choice(NAMES)
                if name in find_evictable(world):
                    others = [one for one in NAMES if one != name]
                    assert all(_is_ready(world, one) for one in others), name
                    assert not any(lacks[one] for one in others), (name, lacks)
                    evict(world, name)
                    lacks[name] = 1
                    evicted.append(name)
            case "serve":
                for name in NAMES:
                    if not _is_ready(world, name):
                        world.have_pod_serve(name)
            case "fill":
                lacks = dict.fromkeys(NAMES, 0)
            case "ask":
                answers = [*answers[-1:], _see_truth(world, lacks)]
            case _:
                do(world, rng.choice(answers), 1)
    assert evicted, "the histories go somewhere"


def test_the_histories_go_on_once_copies_are_back(world: World) -> None:
    """Each in turn: what is never let go would be safe, too."""
    for name in (*NAMES, *NAMES):
        assert name in find_evictable(world)
        evict(world, name)
        assert find_evictable(world) == {name}
        do(world, _see_truth(world, {name: 1}))
        world.have_pod_serve(name)
        do(world, _see_truth(world, {name: 1}))
        assert find_evictable(world) == set(), "the others are needed, and it serves"
        do(world, _see_truth(world, {}))


def _see_truth(world: World, lacks: dict[str, int]) -> AdminView:
    lives = list_lives(world.observe())
    rows: dict[str, Json] = {}
    for name in NAMES:
        others_lack = any(count for one, count in lacks.items() if one != name)
        codes = ["too_few_copies"] if others_lack else []
        rows[name] = row_of(name, *codes, lacks=lacks.get(name, 0), there=name in lives)
    return see(world, rows)
