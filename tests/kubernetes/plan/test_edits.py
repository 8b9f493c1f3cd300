"""Edits by hand of what the operator made: each goes back, and people are told by one event.

Who changed it and when is read where the API server notes it; what the operator or an autoscaler
changes tells nothing. Source: docs/kubernetes/one-hand.md 14.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from duramen_operator.names import PAUSED_ANNOTATION
from duramen_operator.plan.hands.edits import EDITED_BY_HAND, FIELDS_SHOWN_MAX
from duramen_operator.plan.observed import Ref
from duramen_operator.plan.steps import Apply, Event, Step
from tests.kubernetes.plan.cases import SPECS, make_world
from tests.kubernetes.plan.world import MADE, NOW, World

SEQUENCERS = ("StatefulSet", "main-sequencer")
REPLICAS: Any = {"f:spec": {"f:replicas": {}}}


def make_rested(case: str = "plain") -> World:
    world = make_world(case, replicas=3)
    world.converge()
    return world


def note(world: World, kind: str, name: str, *entries: dict[str, Any]) -> None:
    world.find(kind, name)["metadata"]["managedFields"] = list(entries)


def list_told(steps: tuple[Step, ...]) -> list[Event]:
    return [s for s in steps if isinstance(s, Event) and s.reason == EDITED_BY_HAND]


def scale(world: World) -> None:
    world.find(*SEQUENCERS)["spec"]["replicas"] = 7


def set_image(world: World) -> None:
    template = world.find("Deployment", "main-readproxy")["spec"]["template"]
    template["spec"]["containers"][0]["image"] = "another"


def set_argument(world: World) -> None:
    template = world.find("StatefulSet", "bookies-1")["spec"]["template"]
    template["spec"]["containers"][0]["args"][1] = "another"


def take_label(world: World) -> None:
    world.find("Bookie", "bookies-1-0")["metadata"]["labels"] = {}


def drop_port(world: World) -> None:
    del world.find("Service", "main-readproxy")["spec"]["ports"][1]


@pytest.mark.parametrize(
    ("edit", "owner", "text"),
    [
        (scale, "LogCluster/main", "StatefulSet main-sequencer: .* changed spec.replicas: it"),
        (set_image, "LogCluster/main",
         r"Deployment main-readproxy: .*spec.template.spec.containers\[readproxy\].image"),
        (set_argument, "BookieSet/bookies",
         r"StatefulSet bookies-1: .*spec.template.spec.containers\[bookie\].args\[1\]"),
        (take_label, "BookieSet/bookies", "Bookie bookies-1-0: .*metadata.labels.app.kubernetes"),
        (drop_port, "LogCluster/main", r"Service main-readproxy: .*spec.ports\[admin\]: it"),
    ],
)  # fmt: skip
def test_an_edit_goes_back_and_its_owner_is_told_once(
    edit: Callable[[World], None], owner: str, text: str
) -> None:
    world = make_rested()
    edit(world)
    steps = world.plan().steps
    (event,) = list_told(steps)
    assert isinstance(steps[steps.index(event) - 1], Apply)
    assert f"{event.about.kind}/{event.about.name}" == owner
    assert event.uid == world.find(event.about.kind, event.about.name)["metadata"]["uid"]
    assert re.search(text, event.message), event.message
    assert event.since == datetime.fromisoformat(MADE), "nothing is noted: since it was made"
    world.do(steps)
    assert world.plan().steps == ()


def test_it_is_told_who_changed_it_and_since_when() -> None:
    world = make_rested()
    scale(world)
    status: Any = {"f:status": {"f:replicas": {}}}
    other: Any = {"f:metadata": {"f:annotations": {"f:x": {}}}}
    note(
        world, *SEQUENCERS,
        {"manager": "duramen-operator", "time": "2026-01-02T05:00:00Z", "fieldsV1": REPLICAS},
        {"manager": "kubectl-edit", "time": "2026-01-02T04:00:00Z", "fieldsV1": REPLICAS},
        {"manager": "helm", "time": "2026-01-02T04:30:00Z", "fieldsV1": REPLICAS},
        {"manager": "kube-controller-manager", "time": "2026-01-02T06:00:00Z",
         "fieldsV1": status, "subresource": "status"},
        {"manager": "somebody", "time": "2026-01-02T06:00:00Z", "fieldsV1": other},
    )  # fmt: skip
    (event,) = list_told(world.plan().steps)
    assert event.since == datetime.fromisoformat("2026-01-02T04:30:00Z")
    assert "helm changed spec.replicas" in event.message
    assert event.at == NOW


def test_a_scale_of_which_no_time_is_noted_is_told_by_its_generation() -> None:
    """So the API server notes `kubectl scale`."""
    world = make_rested()
    scale(world)
    world.find(*SEQUENCERS)["metadata"]["generation"] = 7
    note(
        world, *SEQUENCERS,
        {"manager": "kubectl-edit", "time": "2026-01-02T04:00:00Z", "fieldsV1": REPLICAS},
        {"manager": "kubectl", "fieldsV1": REPLICAS, "subresource": "scale"},
    )  # fmt: skip
    (event,) = list_told(world.plan().steps)
    assert event.since == datetime.fromisoformat(MADE)
    assert "kubectl (generation 7) changed spec.replicas" in event.message


def test_so_many_fields_are_named_and_not_all() -> None:
    world = make_rested()
    item = world.find(*SEQUENCERS)
    item["spec"]["template"]["spec"]["containers"][0] = {"name": "sequencer"}
    (event,) = list_told(world.plan().steps)
    assert event.message.count("containers[sequencer]") == FIELDS_SHOWN_MAX
    assert event.message.endswith(" and more: it is set back")


@pytest.mark.parametrize("case", SPECS)
def test_what_is_at_rest_or_is_changed_by_the_operator_tells_nothing(case: str) -> None:
    world = make_rested(case)
    assert world.plan().steps == ()
    world.change("LogCluster", "main", image="localhost/duramen:next")
    world.change("BookieSet", "bookies", replicas=6)
    world.converge()
    assert [event for event in world.events if event.reason == EDITED_BY_HAND] == []


def test_what_an_autoscaler_decides_tells_nothing() -> None:
    world = make_rested("autoscaled")
    proxies = world.find("Deployment", "main-writeproxy")
    proxies["spec"]["replicas"] = 9
    assert not [s for s in world.plan().steps if isinstance(s, Apply | Event)]
    world.change("LogCluster", "main", image="localhost/duramen:next")
    world.converge()
    assert [event for event in world.events if event.reason == EDITED_BY_HAND] == []


@pytest.mark.parametrize("is_paused", [True, False])
def test_where_nothing_goes_back_nothing_is_told(is_paused: bool) -> None:
    world = make_rested()
    scale(world)
    if is_paused:
        metadata = world.find("LogCluster", "main")["metadata"]
        metadata["annotations"] = {PAUSED_ANNOTATION: "true"}
    else:
        del world.objects[Ref("v1", "ConfigMap", "main-foundation")]
        world.find("StatefulSet", "main-zookeeper")["spec"]["replicas"] = 5
    assert list_told(world.plan().steps) == []
