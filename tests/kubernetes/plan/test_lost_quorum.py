"""While ZooKeeper has no quorum nothing is restarted that runs.

Source: docs/kubernetes/evictions.md 11.
"""

from __future__ import annotations

import pytest

from tests.kubernetes.plan.world import World, make_bookie_set, make_cluster

MEMBERS = ("main-zookeeper-0", "main-zookeeper-1", "main-zookeeper-2")
RUNNING = ("main-writeproxy", "main-readproxy")


@pytest.fixture
def world() -> World:
    made = World(make_cluster(image="one"), make_bookie_set())
    made.converge()
    return made


def images(world: World) -> dict[str, str]:
    found = {}
    for ref, item in world.objects.items():
        if ref.kind in {"StatefulSet", "Deployment"}:
            (container,) = item["spec"]["template"]["spec"]["containers"]
            found[ref.name] = container["image"]
    return found


def lose(world: World, *members: str) -> None:
    for name in members:
        world.have_pod_serve(name, is_serving=False)


def test_a_change_waits_for_the_quorum_and_is_made_then(world: World) -> None:
    lose(world, *MEMBERS[:2])
    world.change("LogCluster", "main", image="two", zookeeper={"members": 3, "image": "three"})
    world.settle()
    found = images(world)
    assert [found[name] for name in RUNNING] == ["one"] * 2
    assert found["main-zookeeper"] == "three", "its members are mended"
    assert found["bookies-0"] == found["main-sequencer"] == "two", "these are not restarted by that"
    told = world.condition("LogCluster", "main", "Progressing")
    assert (told["status"], told["reason"]) == ("False", "NoQuorum")
    assert told["message"].startswith("1 of 3 ZooKeeper members serve, and 2 are a majority")
    assert all(name in told["message"] for name in RUNNING)
    world.have_pod_serve(MEMBERS[0])
    world.settle()
    assert [images(world)[name] for name in RUNNING] == ["two"] * 2
    assert world.condition("LogCluster", "main", "Progressing")["reason"] != "NoQuorum"


def test_what_is_missing_is_made_and_numbers_go_back(world: World) -> None:
    lose(world, *MEMBERS)
    sequencer = world.find("StatefulSet", "main-sequencer")
    wanted = sequencer["spec"]["replicas"]
    sequencer["spec"]["replicas"] = 0
    (gone,) = (ref for ref in world.objects if (ref.kind, ref.name) == ("Deployment", RUNNING[0]))
    del world.objects[gone]
    world.settle()
    assert world.find("StatefulSet", "main-sequencer")["spec"]["replicas"] == wanted
    assert RUNNING[0] in images(world)
    assert world.condition("LogCluster", "main", "Progressing")["reason"] != "NoQuorum"


def test_with_a_quorum_nothing_waits(world: World) -> None:
    lose(world, MEMBERS[0])
    world.change("LogCluster", "main", image="two")
    world.settle()
    assert [images(world)[name] for name in RUNNING] == ["two"] * 2


def test_an_external_one_is_not_judged() -> None:
    external = {"external": {"servers": "zk:2181"}}
    world = World(make_cluster(image="one", zookeeper=external), make_bookie_set())
    world.converge()
    world.change("LogCluster", "main", image="two")
    world.settle()
    assert [images(world)[name] for name in RUNNING] == ["two"] * 2
