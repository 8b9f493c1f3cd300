"""The names that services are told of: all that Kubernetes gives them, and what people call them.

A service answers 421 to a name that is not its own, so each name that a Service or a pod has in DNS
must pass the gate that the pod's own arguments make. Source: ADR 0025.
"""

from __future__ import annotations

import pytest

from duramen.runtime.service import parse_options
from duramen.wire.edge.gate import Bodies, RequestHead
from duramen_operator.names import ADMIN_PORTS, BOOKIE, DATA_PORTS, SEQUENCER
from duramen_operator.plan.steps import Apply
from tests.kubernetes.plan.servers_world import make_world, read_arguments
from tests.kubernetes.plan.world import World, make_domains

PLACES = {
    "bookie": ("StatefulSet", "bookies-0"),
    "sequencer": ("StatefulSet", "main-sequencer"),
    "writeproxy": ("Deployment", "main-writeproxy"),
    "readproxy": ("Deployment", "main-readproxy"),
}
PEOPLE = {"publicNames": ["logs.example.org", "logs"]}


def answer_of(world: World, component: str, host: str) -> str | None:
    """What a pod's service, started as the plan says, makes of a Host; None: it serves."""
    arguments = read_arguments(world, *PLACES[component])
    variables = {"$(POD_NAME)": "pod-7", "$(POD_IP)": "10.1.2.3"}
    for variable, value in variables.items():
        arguments = [argument.replace(variable, value) for argument in arguments]
    gate = parse_options(component, arguments).make_gate()
    refusal = gate.judge(RequestHead("GET", host), Bodies.JSON)
    return None if refusal is None else refusal.code


@pytest.mark.parametrize("component", PLACES)
def test_a_service_goes_by_every_name_that_kubernetes_gives_it(component: str) -> None:
    world = make_world(domains=[])
    service = f"main-{component}"
    assert service in world.names("Service")
    ports = (DATA_PORTS[component], ADMIN_PORTS[component])
    ends = ("", ".here", ".here.svc", ".here.svc.cluster.local", ".here.svc.cluster.local.")
    names = [f"{service}{end}" for end in ends]
    if component in (BOOKIE, SEQUENCER):
        names += [f"pod-7.{name}" for name in names]
    for port in ports:
        for name in (*names, "10.1.2.3", "[fd00::3]", "localhost", "127.0.0.1"):
            assert answer_of(world, component, f"{name}:{port}") is None, name
        for name in (
            "main-other", f"{service}.there.svc", f"{service}.here.svc.evil.example",
            f"pod-8.{service}.here.svc", "logs.example.org",
        ):  # fmt: skip
            assert answer_of(world, component, f"{name}:{port}") == "misdirected", name


def test_proxies_alone_go_by_the_names_that_people_call() -> None:
    world = make_world(**PEOPLE)
    for component in PLACES:
        for name in PEOPLE["publicNames"]:
            told = answer_of(world, component, name)
            assert (told is None) == component.endswith("proxy"), (component, name)


def test_a_name_more_starts_neither_who_holds_data_nor_who_holds_logs_anew() -> None:
    world = make_world()
    before = {place: read_arguments(world, *place) for place in PLACES.values()}
    world.change("LogCluster", "main", **PEOPLE)
    world.converge()
    changed = {place for place in before if read_arguments(world, *place) != before[place]}
    assert changed == {PLACES["writeproxy"], PLACES["readproxy"]}


@pytest.mark.parametrize("zones", [0, 3])
def test_what_is_read_back_from_arguments_is_still_found(zones: int) -> None:
    """The plan takes the cluster's name and ZooKeeper from what runs; many flags stand behind."""
    world = make_world(domains=make_domains(1, zones), **PEOPLE)
    assert not any(isinstance(step, Apply) for step in world.plan().steps)
