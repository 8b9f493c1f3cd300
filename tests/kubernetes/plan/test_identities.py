"""A cluster with `security: on`: what it is for good, who has an identity, and which pod is whose.

Broken by hand: a uuid drawn anew, a record that forgets it, a pod without a row, two bookies of one
StatefulSet.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from duramen.runtime.identity.names import make_identity
from duramen_operator.names import UUID_LABEL
from duramen_operator.plan.cluster.bookies import read_set
from duramen_operator.plan.cluster.frame import ClusterFrame
from duramen_operator.plan.cluster.nodes import (
    SECRETS,
    Node,
    list_nodes,
    list_public_hosts,
    name_secret,
)
from duramen_operator.plan.observed import AdminView, Ref
from duramen_operator.plan.steps import Apply, Event, Status
from tests.kubernetes.plan.secured_world import EXTERNAL, SCALED, SECURED, make_secured
from tests.kubernetes.plan.world import World, make_bookie_set, make_cluster, make_domains


def read_frame(world: World) -> ClusterFrame:
    observed = world.observe()
    assert observed.cluster is not None
    return ClusterFrame.read(observed, observed.cluster)


def read_nodes(world: World) -> tuple[Node, ...]:
    frame = read_frame(world)
    sets = [read_set(frame, item) for item in frame.observed.list("BookieSet")]
    return list_nodes(frame, sets)


def list_changes(world: World) -> list[Any]:
    return [step for step in world.plan().steps if not isinstance(step, Status | Event)]


@pytest.mark.parametrize("spec", [{}, {"zookeeper": EXTERNAL}], ids=["bundled", "external"])
def test_the_record_says_that_a_cluster_is_secured_and_its_uuid(spec: dict[str, Any]) -> None:
    world = make_secured(**spec)
    data = world.find("ConfigMap", "main-foundation")["data"]
    assert data["security"] == "on"
    assert re.fullmatch("[0-9a-f]{32}", data["uuid"])
    assert read_frame(world).uuid == data["uuid"]


def test_the_uuid_is_of_that_logcluster_and_no_other() -> None:
    one, two = World(make_cluster(**SECURED)), World(make_cluster(**SECURED))
    two.find("LogCluster", "main")["metadata"]["uid"] = "another"
    assert read_frame(one).uuid == read_frame(one).uuid != read_frame(two).uuid


def test_a_record_of_before_is_of_a_cluster_with_none() -> None:
    world = World(make_cluster(), make_bookie_set())
    world.converge()
    assert "security" not in world.find("ConfigMap", "main-foundation")["data"]
    assert not read_frame(world).is_secured


@pytest.mark.parametrize(
    ("uuid", "security"), [("", "on"), ("A" * 32, "on"), ("a" * 32, "none"), ("a" * 32, "off")]
)
def test_a_record_that_contradicts_itself_is_none(uuid: str, security: str) -> None:
    world = make_secured()
    world.find("ConfigMap", "main-foundation")["data"] |= {"security": security, "uuid": uuid}
    assert read_frame(world).is_held
    assert list_changes(world) == []


def test_a_cluster_is_neither_secured_nor_opened_while_it_runs() -> None:
    for first, then in ((make_cluster(), SECURED), (make_cluster(**SECURED), {})):
        world = World(first, make_bookie_set())
        world.converge()
        world.change("LogCluster", "main", **make_cluster(**then)["spec"])
        world.change("LogCluster", "main", sequencers={"replicas": 5})
        assert list_changes(world) == []
        world.settle()
        said = world.condition("LogCluster", "main", "Progressing")
        stays = first["spec"]["security"]
        assert said["reason"] == "NotYetSupported"
        assert f"security stays {stays}" in said["message"]
        assert world.condition("LogCluster", "main", "Available")["status"] == "True"


def test_disks_know_the_uuid_when_the_record_is_gone() -> None:
    world = make_secured()
    uuid = read_frame(world).uuid
    for kind in ("ConfigMap", "StatefulSet"):
        for ref in [ref for ref in world.objects if ref.kind == kind]:
            del world.objects[ref]
    world.find("LogCluster", "main")["metadata"]["uid"] = "made anew"
    assert read_frame(world).uuid == uuid
    assert not read_frame(world).is_held


def test_disks_of_an_open_cluster_are_not_taken_for_a_secured_one_nor_the_other_way() -> None:
    for first, then in ((make_cluster(), SECURED), (make_cluster(**SECURED), {})):
        world = World(first, make_bookie_set())
        world.converge()
        for ref in [ref for ref in world.objects if ref.kind in {"ConfigMap", "StatefulSet"}]:
            del world.objects[ref]
        world.change("LogCluster", "main", **make_cluster(**then)["spec"])
        assert list_changes(world) == []
        world.settle()
        said = world.condition("LogCluster", "main", "Progressing")
        assert said["reason"] == "FoundationUnclear"
        assert "ZooKeeper's claims say" in said["message"]


def test_what_runs_secured_is_not_taken_for_open_without_a_record() -> None:
    world = make_secured(zookeeper=EXTERNAL)
    del world.objects[Ref("v1", "ConfigMap", "main-foundation")]
    world.change("LogCluster", "main", security="none", acceptAnybody=True)
    assert list_changes(world) == []
    world.settle()
    said = world.condition("LogCluster", "main", "Progressing")
    assert (said["reason"], "--security on" in said["message"]) == ("FoundationUnclear", True)


def test_a_person_may_say_the_uuid_of_a_cluster_that_is_there() -> None:
    item = make_cluster(**SECURED, zookeeper=EXTERNAL)
    item["metadata"]["annotations"] = {UUID_LABEL: "ab" * 16}
    assert read_frame(World(item)).uuid == "ab" * 16
    item["metadata"]["annotations"] = {UUID_LABEL: "ab"}
    assert "is no uuid" in read_frame(World(item)).found.doubt


@pytest.mark.parametrize("spec", [{}, {"zookeeper": EXTERNAL}], ids=["bundled", "external"])
def test_a_uuid_that_a_person_says_too_late_is_not_passed_over(spec: dict[str, Any]) -> None:
    world = make_secured(**spec)
    uuid = read_frame(world).uuid
    metadata = world.find("LogCluster", "main")["metadata"]
    metadata["annotations"] = {UUID_LABEL: uuid}
    assert not read_frame(world).is_held
    metadata["annotations"] = {UUID_LABEL: "ab" * 16}
    world.change("LogCluster", "main", sequencers={"replicas": 5})
    assert list_changes(world) == []
    assert read_frame(world).uuid == uuid
    world.settle()
    said = world.condition("LogCluster", "main", "Progressing")
    assert said["reason"] == "FoundationUnclear"
    assert f"says {'ab' * 16}, and the ConfigMap main-foundation {uuid}" in said["message"]


def test_its_way_out_is_to_delete_the_record() -> None:
    world = make_secured(zookeeper=EXTERNAL)
    metadata = world.find("LogCluster", "main")["metadata"]
    metadata["annotations"] = {UUID_LABEL: "ab" * 16}
    del world.objects[Ref("v1", "ConfigMap", "main-foundation")]
    world.converge()
    assert world.find("ConfigMap", "main-foundation")["data"]["uuid"] == "ab" * 16
    assert not read_frame(world).is_held


def test_every_pod_has_an_identity_and_no_name_stands_in_two() -> None:
    world = make_secured(5, domains=make_domains(1, 3), writeProxies=SCALED)
    nodes = read_nodes(world)
    pods = set(world.names("Pod"))
    assert pods <= {node.name for node in nodes}
    more = {f"main-writeproxy-{index}" for index in range(2, 7)}
    assert {node.name for node in nodes} - pods == more
    hosts = [host for node in nodes for host in node.hosts]
    assert len(set(hosts)) == len(hosts)
    for node in nodes:
        make_identity(read_frame(world).uuid, node.role, node.name)
        assert node.hosts[2].endswith(".here.svc")
        assert 1 <= len(node.hosts) <= 8


def test_an_external_zookeeper_has_no_identity_of_ours() -> None:
    roles = {node.role for node in read_nodes(make_secured(zookeeper=EXTERNAL))}
    assert roles == {"bookie", "sequencer", "writeproxy", "readproxy"}


def test_secrets_are_called_after_the_cluster() -> None:
    names = {name_secret("main", which) for which in SECRETS}
    assert len(names) == len(SECRETS) == 10
    assert {"main-ca", "main-bookies", "main-public", "main-operator", "main-archive"} <= names
    assert len(name_secret("m" * 60, "bookies")) <= 48


def test_the_public_certificate_names_services_proxies_and_what_people_call_them() -> None:
    hosts = list_public_hosts(read_frame(make_secured(publicNames=["logs.example.org"])))
    assert {"main-writeproxy", "main-readproxy.here.svc", "logs.example.org"} <= set(hosts)
    assert "*.main-writeproxy-pods.here.svc" in hosts


def test_each_bookie_is_a_statefulset_by_itself() -> None:
    world = make_secured(5, domains=make_domains(1, 3))
    sets = [name for name in world.names("StatefulSet") if name.startswith("bookies-")]
    assert len(sets) == 5
    selectors = []
    for name in sets:
        spec = world.find("StatefulSet", name)["spec"]
        assert spec["replicas"] == 1
        assert spec["selector"]["matchLabels"]["duramen.io/bookie"] == f"{name}-0"
        labels = spec["template"]["metadata"]["labels"]
        assert spec["selector"]["matchLabels"].items() <= labels.items()
        selectors.append(tuple(sorted(spec["selector"]["matchLabels"].items())))
    assert len(set(selectors)) == 5
    assert world.names("Bookie") == [f"{name}-0" for name in sets]
    status = world.find("BookieSet", "bookies")["status"]
    assert sorted(status["statefulSets"]) == sets


def test_no_bookie_of_its_own_statefulset_is_forgotten_or_moved() -> None:
    """As their disks count, not what anybody wrote: fewer are wished, and a StatefulSet is gone."""
    world = make_secured(5)
    before = world.names("PersistentVolumeClaim")
    world.change("BookieSet", "bookies", replicas=1)
    for ref in [ref for ref in world.objects if ref.name.startswith("bookies-")]:
        if ref.kind in {"StatefulSet", "Bookie", "Pod"}:
            del world.objects[ref]
    world.converge()
    assert [name for name in world.names("StatefulSet") if name.startswith("bookies-")] == [
        f"bookies-{index}" for index in range(5)
    ]
    assert world.names("PersistentVolumeClaim") == before
    world.change("BookieSet", "bookies", replicas=7)
    rows = {f"bookies-{index}-0": {"duty": "serving", "incarnation": "1"} for index in range(5)}
    world.do(world.plan(admin=AdminView(True, "", rows, {}, {})).steps)
    world.converge()
    assert world.names("Bookie") == [f"bookies-{index}-0" for index in range(7)]
    assert not any(isinstance(step, Apply) for step in world.plan().steps)
