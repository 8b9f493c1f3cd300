"""Every refusal of a removal and of a set names its rule, its numbers and its way out.

Each is brought about, read, and answered in the way that it names; then it is gone, and what was
wished is done. A sentence in the code that no case here brings about is a failure. Refusals of
whole clusters have tests of their own: `test_foundation`, `test_versions`, `test_pausing`,
`test_evictions`, `test_lost_quorum`.
Source: docs/kubernetes/removal.md "What is said", docs/kubernetes/operations.md "Reasons".
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import pytest

from duramen_operator.plan import claims
from duramen_operator.plan.cluster import bookies, zookeeper
from duramen_operator.plan.observed import AdminView, Ref
from duramen_operator.plan.removal import words
from duramen_operator.plan.steps import Event
from tests.kubernetes.plan.removal_world import OTHERS, SHARED, Removing

LAST: Final = "bookies-4-0"
OUTSIDE: Final = {"servers": "z:2181"}
SAME: Final = [{"region": "a", "zone": "b-c"}, {"region": "a-b", "zone": "c"}]
FIRST: Final = "bookies-0-0"
NO_PLACE: Final = {
    "fragments": 2, "kind": "place", "reason": "no bookie can take the copy: 2 take new data",
    "logs": ["shop/a", "shop/b"], "logs_count": 12,
}  # fmt: skip
NO_COPY: Final = {
    "fragments": 1, "kind": "entries", "reason": "9 entries have no copy that can be verified",
    "logs": ["shop/a"], "logs_count": 1,
}  # fmt: skip
FAILING: Final = {
    "fragments": 1, "kind": "failing", "reason": "it moves with each try", "logs": ["shop/a"],
    "logs_count": 1,
}  # fmt: skip


class Refusing(Removing):
    """A world in which somebody is in the way."""

    def __init__(self, **spec: Any) -> None:
        self.down: set[str] = set()
        """Whose process ends again and again."""
        self.unknown: set[str] = set()
        """Who runs, and is not registered."""
        self.unending: dict[Ref, dict[str, Any]] = {}
        """Pods of which nobody says that they ended: their node is gone."""
        self.stuck: dict[str, Any] = {}
        """What is told of the last one while it is so."""
        self.is_stuck: Callable[[Refusing], bool] = lambda _: False
        self.uncounted: set[str] = set()
        self.is_auditor_silent = False
        super().__init__(5, **spec)

    def view(self) -> AdminView:
        view = super().view()
        held = {k: dict(v) for k, v in (view.holdings or {}).items() if k not in self.uncounted}
        if LAST in held and self.is_stuck(self):
            held[LAST]["stuck"] = self.stuck
        rows = {k: v for k, v in (view.bookies or {}).items() if k not in self.unknown}
        told = None if self.is_auditor_silent else held
        return replace(view, bookies=rows, holdings=told) if view.is_reachable else view

    def tick(self) -> None:
        super().tick()
        self.world.objects |= self.unending
        for name in self.down & self.rows.keys():
            self.rows[name]["state"] = "absent"

    def _may_register(self, pod: str) -> bool:
        return pod not in self.down and super()._may_register(pod)

    def _drain_on(self, name: str, row: dict[str, Any]) -> None:
        is_held = name == LAST and self.is_stuck(self)
        if not is_held and name not in self.down | self.unknown:
            super()._drain_on(name, row)


Act = Callable[[Refusing], None]


class Case(NamedTuple):
    """How it comes, what is told, what people do then, and how many are there at the end."""

    begin: Act
    told: tuple[str, ...]
    """Parts of the message: the rule, each number, the way out."""
    way_out: Act
    pod_count: int
    about: tuple[str, str] = ("Bookie", LAST)
    form: Mapping[str, Any] = {}


def ask(*names: str, is_asked: bool = True) -> Act:
    def act(own: Refusing) -> None:
        for name in names:
            own.world.change("Bookie", name, decommission=is_asked)

    return act


def scale(count: int) -> Act:
    return lambda own: own.world.change("BookieSet", "bookies", replicas=count)


def wish(kind: str, name: str, **spec: Any) -> Act:
    return lambda own: own.world.change(kind, name, **spec)


def both(*acts: Act) -> Act:
    def act(own: Refusing) -> None:
        for one in acts:
            one(own)

    return act


def go_on(passes: int) -> Act:
    def act(own: Refusing) -> None:
        for _ in range(passes):
            own.look()
            own.tick()

    return act


def put(field: str, *names: str) -> Act:
    return lambda own: setattr(own, field, {*names})


def have(field: str, value: Any) -> Act:
    return lambda own: setattr(own, field, value)


def fail_to_start(name: str) -> Act:
    def act(own: Refusing) -> None:
        own.world.have_pod_serve(name, is_serving=False)
        (status,) = own.world.find("Pod", name)["status"]["containerStatuses"]
        status["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
        own.down = {name}
        own.rows[name]["state"] = "absent"

    return act


def start(name: str) -> Act:
    def act(own: Refusing) -> None:
        own.down = set()
        own.world.have_pod_serve(name)

    return act


def accept_loss(name: str) -> Act:
    """The cluster forgets it, and takes what starts there with empty disks for a new one."""

    def act(own: Refusing) -> None:
        own.down = set()
        del own.rows[name], own.copies[name]

    return act


def stick(told: dict[str, Any], is_so: Callable[[Refusing], bool]) -> Act:
    """Copies of the last one cannot leave while it is so."""
    return both(have("stuck", told), have("is_stuck", is_so))


def is_anybody_down(own: Refusing) -> bool:
    return bool(own.down)


def are_too_few(own: Refusing) -> bool:
    return len([row for row in own.rows.values() if row["duty"] == "serving"]) < 7


def let_it_move(own: Refusing) -> None:
    """It was asked to; a thousand more ticks would show no more."""
    assert own.rows[LAST]["duty"] == "draining"
    own.copies[LAST] = 1


def let_no_pod_end(own: Refusing) -> None:
    ref = Ref("v1", "Pod", LAST)
    own.unending = {ref: own.world.objects[ref]}


def notice_its_end(own: Refusing) -> None:
    own.world.find("Pod", LAST)["metadata"]["deletionTimestamp"] = "2026-07-01T00:00:00Z"


def delete_by_force(own: Refusing) -> None:
    own.unending = {}
    own.world.objects.pop(Ref("v1", "Pod", LAST))


def give_away(own: Refusing) -> None:
    """A StatefulSet of that name is somebody else's."""
    own.world.find("StatefulSet", "bookies-4")["metadata"]["ownerReferences"] = []


def take_back(own: Refusing) -> None:
    owner = own.world.find("StatefulSet", "bookies-3")["metadata"]["ownerReferences"]
    own.world.find("StatefulSet", "bookies-4")["metadata"]["ownerReferences"] = owner


REMOVALS: Final = {
    "same names": Case(
        both(scale(4), go_on(1), wish("LogCluster", "main", domains=SAME)),
        ("two domains make one name", "rename a region or a zone"),
        wish("LogCluster", "main", domains=[]),
        4,
    ),
    "a gap": Case(
        both(ask("bookies-3"), go_on(2)),
        ("it shares a StatefulSet, which has no gaps", "have those behind it go as well"),
        ask("bookies-4"),
        5,
        ("Bookie", "bookies-3"),
        SHARED,
    ),
    "a gap, taken back": Case(
        both(ask("bookies-3"), go_on(2)),
        ("take decommission back",),
        ask("bookies-3", is_asked=False),
        5,
        ("Bookie", "bookies-3"),
        SHARED,
    ),
    "silence": Case(
        both(scale(4), go_on(1), have("is_reachable", False)),
        ("the cluster does not answer: silent",),
        have("is_reachable", True),
        4,
    ),
    "nobody known": Case(
        both(scale(4), go_on(1), lambda own: put("unknown", *own.pods)(own)),
        ("the cluster knows no bookie of this set", "until it does"),
        put("unknown"),
        4,
    ),
    "refused": Case(
        both(have("least", 5), scale(4), go_on(3)),
        ("placement_impossible: 4 are left: add bookies",),
        have("least", 4),
        4,
    ),
    "away": Case(
        both(scale(4), go_on(3), fail_to_start(LAST), go_on(1)),
        ("it does not serve", "bring it back"),
        start(LAST),
        4,
    ),
    "lost": Case(
        both(scale(4), go_on(3), fail_to_start(LAST), go_on(1)),
        ("If its disks are gone for ever: duramen accept-loss",),
        accept_loss(LAST),
        4,
    ),
    "not registered": Case(
        both(put("unknown", LAST), scale(4), go_on(2)),
        (
            "it runs and is not registered",
            "its log says what it waits for",
        ),
        put("unknown"),
        4,
    ),
    "no room": Case(
        both(lambda own: own.copies.update({LAST: 1_000}), ask(LAST), go_on(3)),
        ("that go, 1000GiB, does not fit", "500GiB free", "51GiB have to stay free; add bookies"),
        both(scale(16), go_on(5), let_it_move),
        16,
    ),
    "no room for two": Case(
        both(lambda own: own.copies.update({LAST: 1_000}), scale(4), go_on(2)),
        ("or take another removal back",),
        scale(5),
        5,
    ),
    "not counted": Case(
        both(put("uncounted", LAST), scale(4), go_on(2)),
        ("has not counted yet what lies on it", "after its next round"),
        put("uncounted"),
        4,
    ),
    "no auditor": Case(
        both(have("is_auditor_silent", True), scale(4), go_on(2)),
        ("the auditor does not say what lies where", "once it does"),
        have("is_auditor_silent", False),
        4,
    ),
    "no place": Case(
        both(stick(NO_PLACE, is_anybody_down), scale(4), go_on(3), fail_to_start(FIRST)),
        (
            "2 fragments of shop/a, shop/b and 10 more cannot leave it: no bookie can take",
            "bring back the bookies that do not serve",
        ),
        start(FIRST),
        4,
    ),
    "no place, more bookies": Case(
        both(stick(NO_PLACE, are_too_few), ask(LAST), go_on(5)),
        ("or add some",),
        scale(7),
        7,
    ),
    "no place, taken back": Case(
        both(stick(NO_PLACE, are_too_few), scale(4), go_on(4)),
        ("or take the removal back",),
        scale(5),
        5,
    ),
    "no good copy": Case(
        both(stick(NO_COPY, is_anybody_down), scale(4), go_on(3), fail_to_start(FIRST)),
        (
            "1 fragment of shop/a cannot leave it: 9 entries have no copy that can be verified",
            "accept the loss of one that is gone for ever (duramen accept-loss)",
        ),
        accept_loss(FIRST),
        4,
    ),
    "failing": Case(
        both(stick(FAILING, is_anybody_down), scale(4), go_on(3), fail_to_start(FIRST)),
        ("cannot leave it; its repair fails again and again: duramen repair status says why",),
        start(FIRST),
        4,
    ),
    "its turn": Case(
        both(have("grants", [dict(OTHERS)]), scale(4), go_on(12)),
        ("it waits for its turn: granted is zookeeper/z",),
        have("grants", []),
        4,
    ),
    "no end": Case(
        both(let_no_pod_end, scale(4), go_on(12), notice_its_end, go_on(1)),
        (f"its pod does not end: kubectl delete pod {LAST} --force, if its node is gone",),
        delete_by_force,
        4,
    ),
    "drained by others": Case(
        lambda own: own.rows[LAST].update(duty="draining"),
        (f"somebody else drains it, or drained it: duramen drain {LAST} --cancel",),
        lambda own: own.rows[LAST].update(duty="serving"),
        5,
    ),
}

SET: Final = ("BookieSet", "bookies")
CLUSTER: Final = ("LogCluster", "main")
SETS: Final = {
    "domain gone": Case(
        wish(*CLUSTER, domains=[{"region": "r0", "zone": "k9"}]),
        (
            "is not among the cluster's domains any more, and the 5 bookies there stay",
            "name it again",
        ),
        wish(*CLUSTER, domains=[]),
        5,
        SET,
    ),
    "larger journal": Case(
        wish(*SET, journal={"size": "30Gi"}),
        (
            "journal.size stays 20Gi, but the spec asks for 30Gi: volumes are not resized yet",
            "or make another BookieSet with it, and have the bookies of this one go",
        ),
        wish(*SET, journal={"size": "20Gi"}),
        5,
        SET,
    ),
    "another class": Case(
        wish(*SET, ledgers={"storageClassName": "fast"}),
        ("ledgers.storageClassName stays as it is, but the spec asks for fast: set it back",),
        wish(*SET, ledgers={}),
        5,
        SET,
    ),
    "another one's": Case(
        give_away,
        ("the StatefulSet bookies-4 belongs to somebody else", "rename this BookieSet"),
        take_back,
        5,
        SET,
    ),
    "names alike": Case(
        wish(*CLUSTER, domains=SAME),
        ("two domains make the same name", "rename a region or a zone"),
        wish(*CLUSTER, domains=[]),
        5,
        SET,
    ),
    "ZooKeeper outside": Case(
        wish(*CLUSTER, zookeeper={"external": OUTSIDE}),
        ("it stays with the bundled one; set zookeeper.external back",),
        wish(*CLUSTER, zookeeper={}),
        5,
        CLUSTER,
    ),
    "another name": Case(
        wish(*CLUSTER, zookeeper={"external": {**OUTSIDE, "cluster": "other"}}),
        ("the cluster is called here.main", "set zookeeper.external.cluster back from other"),
        wish(*CLUSTER, zookeeper={"external": OUTSIDE}),
        5,
        CLUSTER,
        {"zookeeper": {"external": OUTSIDE}},
    ),
    "five members": Case(
        wish(*CLUSTER, zookeeper={"members": 5}),
        ("ZooKeeper members stays 3", "set zookeeper.members back from 5"),
        wish(*CLUSTER, zookeeper={"members": 3}),
        5,
        CLUSTER,
    ),
    "larger ZooKeeper": Case(
        wish(*CLUSTER, zookeeper={"storage": {"size": "90Gi"}}),
        ("zookeeper.storage.size stays", "but the spec asks for 90Gi", "set it back"),
        wish(*CLUSTER, zookeeper={}),
        5,
        CLUSTER,
    ),
}
CASES: Final = REMOVALS | SETS
TOLD: Final[dict[str, str]] = {}
"""What was told in the cases that were played."""


def progress(own: Refusing, about: tuple[str, str]) -> str:
    said = own.world.condition(*about, "Progressing")
    return f"{said['reason']}: {said['message']}"


def bring_about(case: Case) -> tuple[Refusing, str]:
    """The world, and what is told there."""
    own = Refusing(**case.form)
    case.begin(own)
    own.look()
    own.look()
    return own, progress(own, case.about)


@pytest.mark.parametrize("name", CASES)
def test_a_refusal_names_its_way_out_and_that_is_accepted(name: str) -> None:
    case = CASES[name]
    own, message = bring_about(case)
    TOLD[name] = message
    assert not [part for part in case.told if part not in message], message
    assert len(own.pods) >= 5, "nobody goes meanwhile"
    case.way_out(own)
    own.run(80)
    assert len(own.pods) == case.pod_count and own.is_at_rest()
    is_there = case.about[1] in own.world.names(case.about[0])
    after = progress(own, case.about) if is_there else ""
    assert not [part for part in case.told if part in after], after


SHORT: Final = 12
_REFUSAL: Final = "^Blocked: [a-z_]+: "
"""What somebody else said, which has nothing of ours, begins with a code."""


def list_sentences(function: Callable[..., object]) -> Iterator[re.Pattern[str]]:
    """Each sentence that a function yields, with anything for what is filled in."""
    for node in ast.walk(ast.parse(inspect.getsource(function))):
        if isinstance(node, ast.Yield) and node.value is not None:
            parts = node.value.values if isinstance(node.value, ast.JoinedStr) else [node.value]
            texts = [one.value if isinstance(one, ast.Constant) else None for one in parts]
            pattern = "".join(".*" if one is None else re.escape(str(one)) for one in texts)
            yield re.compile(pattern if len(pattern) > SHORT else _REFUSAL)


def test_no_refusal_is_left_out() -> None:
    functions = (
        words._list_blocks, words._describe_room, words._describe_stuck, claims.describe_change,
        bookies.find_refusals, bookies.find_impossible, zookeeper.find_refusals,
    )  # fmt: skip
    sentences = [one for function in functions for one in list_sentences(function)]
    told = [TOLD.get(name) or bring_about(case)[1] for name, case in CASES.items()]
    assert len(sentences) > 15
    left = [one.pattern for one in sentences if not any(map(one.search, told))]
    assert left == []


@pytest.mark.parametrize("is_stuck", [False, True])
def test_a_look_in_which_the_auditor_is_silent_says_nothing_else(*, is_stuck: bool) -> None:
    own = Refusing()
    both(stick(NO_PLACE, lambda _: is_stuck), scale(4), go_on(3))(own)
    own.copies[LAST] = 9
    own.look()
    said = progress(own, ("Bookie", LAST))
    assert said.startswith("Blocked: 2 fragments" if is_stuck else "Draining: its copies move")
    own.is_auditor_silent = True
    assert not [step for step in own.steps() if isinstance(step, Event)]
    own.look()
    assert progress(own, ("Bookie", LAST)) == said
    fail_to_start(LAST)(own)
    own.look()
    assert "it does not serve" in progress(own, ("Bookie", LAST)), "other words are not held back"
    start(LAST)(own)
    own.tick()
    own.look()
    assert "it does not serve" not in progress(own, ("Bookie", LAST))
