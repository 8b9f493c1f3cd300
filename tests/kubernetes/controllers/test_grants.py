"""LogGrants in tier kwok: a real API server, the operator as a process, a twin that has grants.

One operator serves all tests of the module, each with subjects of its own. Source:
docs/protocol/rights.md "Grants as objects of Kubernetes".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.kubernetes.cluster.handle import ClusterHandle
from tests.kubernetes.controllers.admin_twin import AdminTwin, running_twin
from tests.kubernetes.controllers.deadly_proxy import DeadlyProxy, running_proxy
from tests.kubernetes.controllers.operators import (
    SETTLE_S,
    Objects,
    OperatorProcess,
    install_definitions,
    running_operator,
    wait_for_objects,
    write_kubeconfig,
)


class World(NamedTuple):
    """What a test works with."""

    objects: Objects
    twin: AdminTwin
    proxy: DeadlyProxy

    def say(self, user: str, name: str = "") -> str:
        """Make a LogGrant of a user; gives its name."""
        spec = {"clusterName": "main", "subject": {"user": f"corp/{user}"}}
        found = name or user
        self.objects.apply("LogGrant", found, {**spec, "role": "producer", "scope": "shop/ord*"})
        return found

    def has(self, user: str) -> bool:
        """Whether the cluster has that grant."""
        with self.twin.lock:
            names = self.twin.state.grants.names()
        return (f"user:corp/{user}", "producer", "shop/ord*") in names

    def wait_taken(self, user: str) -> None:
        """Until the cluster has it no more."""
        wait_for_objects(lambda: not self.has(user), SETTLE_S, f"the grant of {user} to go")


@pytest.fixture(scope="module")
def world(kwok_cluster: ClusterHandle) -> Iterator[World]:
    install_definitions(kwok_cluster)
    twin = AdminTwin()
    twin.state.security = "on"
    with (
        running_twin(twin),
        running_proxy(kwok_cluster.url, kwok_cluster.certificate) as proxy,
        kwok_cluster.namespace() as namespace,
    ):
        config = write_kubeconfig(kwok_cluster, namespace, proxy.url)
        with running_operator(OperatorProcess(config, namespace, twin.url)):
            objects = Objects(kwok_cluster, namespace)
            objects.apply("LogCluster", "main", {"security": "none", "acceptAnybody": True})
            yield World(objects, twin, proxy)


def test_a_grant_comes_and_goes_with_its_object(world: World) -> None:
    name = world.say("ann")
    world.objects.wait("LogGrant", name, "True/AsWanted")
    assert world.has("ann")
    found = world.objects.find("LogGrant", name)
    assert found is not None
    status = {key: found["status"][key] for key in ("who", "owned", "by")}
    assert status == {
        "who": "user:corp/ann", "owned": True, "by": "service:operator/kubernetes"
    }  # fmt: skip
    world.objects.delete("LogGrant", name)
    world.objects.wait_gone("LogGrant", name)
    assert not world.has("ann")
    world.objects.wait_event(name, "Taken")


def test_what_was_given_by_hand_stays(world: World) -> None:
    with world.twin.lock:
        world.twin.state.grants.give("user:corp/bob", "producer", "shop/ord*")
    name = world.say("bob")
    world.objects.wait("LogGrant", name, "True/GivenByOthers")
    world.objects.delete("LogGrant", name)
    world.objects.wait_gone("LogGrant", name)
    assert world.has("bob")


def test_what_was_taken_by_hand_is_given_again(world: World) -> None:
    name = world.say("carl")
    world.objects.wait("LogGrant", name, "True/AsWanted")
    with world.twin.lock:
        world.twin.state.grants.take("user:corp/carl", "producer", "shop/ord*")
    world.objects.wait_event(name, "GrantCorrected")
    wait_for_objects(lambda: world.has("carl"), SETTLE_S, "the grant to be back")
    world.objects.wait("LogGrant", name, "True/AsWanted")


def test_a_grant_of_two_objects_goes_with_the_last(world: World) -> None:
    first, second = world.say("dora"), world.say("dora", "dora-too")
    for name in (first, second):
        world.objects.wait("LogGrant", name, "True/AsWanted")
    world.objects.delete("LogGrant", first)
    world.objects.wait_gone("LogGrant", first)
    assert world.has("dora")
    world.objects.delete("LogGrant", second)
    world.objects.wait_gone("LogGrant", second)
    assert not world.has("dora")


def test_events_that_never_come_delay_a_grant_and_no_more(world: World) -> None:
    world.proxy.silent_plurals = frozenset({"loggrants"})
    try:
        name = world.say("emil")
        world.objects.wait("LogGrant", name, "True/AsWanted")
        world.objects.delete("LogGrant", name)
        world.wait_taken("emil")
        world.objects.wait_gone("LogGrant", name)
    finally:
        world.proxy.silent_plurals = frozenset()


def test_a_deletion_waits_for_a_cluster_that_is_away(world: World) -> None:
    name = world.say("fred")
    world.objects.wait("LogGrant", name, "True/AsWanted")
    world.twin.is_down = True
    try:
        world.objects.delete("LogGrant", name)
        world.objects.wait("LogGrant", name, "False/Deleting")
    finally:
        world.twin.is_down = False
    world.objects.wait_gone("LogGrant", name)
    assert not world.has("fred")


def test_where_nobody_is_judged_nothing_is_given(world: World) -> None:
    world.twin.state.security = "none"
    try:
        name = world.say("gina")
        world.objects.wait("LogGrant", name, "False/NotJudged")
    finally:
        world.twin.state.security = "on"
    world.objects.wait("LogGrant", name, "True/AsWanted")
