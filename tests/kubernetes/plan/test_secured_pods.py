"""Pods of a cluster with `security: on`: which key is in which, what they are told, who founds it.

Broken by hand: a bookie that mounts its neighbour's key, a volume of the primary group, a flag that
lets anybody in, a probe in plain text, a job that is not made again.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from typing import Any

import pytest

from duramen_operator.names import MANIFEST_ANNOTATION
from duramen_operator.plan.observed import Ref
from duramen_operator.plan.steps import Apply, Delete, Event, Status
from tests.kubernetes.plan.secured_world import SCALED, SECURED, make_secured
from tests.kubernetes.plan.servers_world import read_arguments
from tests.kubernetes.plan.world import World, make_bookie_set, make_cluster

JOB = Ref("batch/v1", "Job", "main-access")
FOUNDED = Ref("v1", "ConfigMap", "main-founded")


@functools.cache
def make_once() -> World:
    return make_secured(3)


@pytest.fixture
def world() -> World:
    return copy.deepcopy(make_once())


def begin() -> World:
    """A secured cluster whose job has not run yet."""
    world = World(make_cluster(**SECURED), make_bookie_set(replicas=1))
    world.settle()
    return world


def read_pods(world: World) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in world.names("StatefulSet"):
        yield name, world.find("StatefulSet", name)["spec"]["template"]["spec"]


def list_keys(pod: dict[str, Any], volume: str = "identity") -> dict[str, tuple[str, str, bool]]:
    """Path in the volume to Secret, key, and whether it may be missing."""
    (found,) = (one for one in pod["volumes"] if one["name"] == volume)
    return {
        item["path"]: (
            source["secret"]["name"],
            item["key"],
            source["secret"].get("optional", False),
        )
        for source in found["projected"]["sources"]
        for item in source["secret"]["items"]
    }


def find_mount(pod: dict[str, Any], volume: str) -> str:
    (found,) = (m for m in pod["containers"][0]["volumeMounts"] if m["name"] == volume)
    return str(found["mountPath"])


def list_changes(world: World) -> list[Any]:
    return [step for step in world.plan().steps if not isinstance(step, Status | Event)]


def test_all_pods_are_of_statefulsets_and_none_lets_anybody_in(world: World) -> None:
    assert world.names("Deployment") == []
    for name, pod in read_pods(world):
        told = " ".join(read_arguments(world, "StatefulSet", name))
        assert "--accept-anybody" not in told, name
        assert f"--tls-dir {find_mount(pod, 'identity')}/$(POD_NAME)" in told, name
        assert ("--security on" in told) == (name != "main-zookeeper")
        assert ("--public-tls-dir /etc/duramen/public" in told) == ("proxy" in name)
        assert "subPath" not in str(pod)


def test_a_bookie_mounts_its_own_key_and_no_other(world: World) -> None:
    for index in range(3):
        name = f"bookies-{index}"
        pod = world.find("StatefulSet", name)["spec"]["template"]["spec"]
        assert list_keys(pod) == {
            f"{name}-0/tls.crt": ("main-bookies", f"{name}-0.tls.crt", False),
            f"{name}-0/tls.key": ("main-bookies", f"{name}-0.tls.key", False),
            f"{name}-0/ca.crt": ("main-bookies", "ca.crt", False),
            f"{name}-0/ca.crl": ("main-bookies", "ca.crl", True),
        }


@pytest.mark.parametrize(
    ("workload", "secret", "count"),
    [
        ("main-zookeeper", "main-zookeeper", 3),
        ("main-sequencer", "main-sequencers", 4),
        ("main-writeproxy", "main-writeproxies", 4),
        ("main-readproxy", "main-readproxies", 4),
    ],
)
def test_pods_of_a_role_mount_the_keys_of_that_role_alone(
    world: World, workload: str, secret: str, count: int
) -> None:
    pod = world.find("StatefulSet", workload)["spec"]["template"]["spec"]
    keys = list_keys(pod)
    assert {name for name, _, _ in keys.values()} == {secret}
    folders = {path.partition("/")[0] for path in keys}
    assert folders == {f"{workload}-{index}" for index in range(count)}
    for folder in folders:
        assert keys[f"{folder}/tls.key"][1] == f"{folder}.tls.key"
        assert not keys[f"{folder}/ca.crt"][2], "a pod waits for its bundle"
        assert keys[f"{folder}/ca.crl"][2]


def test_a_key_is_read_by_another_group_than_the_one_that_processes_run_in(world: World) -> None:
    for name, pod in read_pods(world):
        security = pod["securityContext"]
        assert security["fsGroup"] not in {security["runAsGroup"], 0}, name
        for volume in pod["volumes"]:
            if "projected" in volume:
                assert volume["projected"]["defaultMode"] == 0o440


def test_more_pods_of_a_role_start_none_anew_until_there_are_many(world: World) -> None:
    before = {name: copy.deepcopy(pod) for name, pod in read_pods(world)}
    world.change("LogCluster", "main", sequencers={"replicas": 4}, readProxies={"replicas": 3})
    world.converge()
    assert dict(read_pods(world)) == before
    world.change("LogCluster", "main", sequencers={"replicas": 5})
    world.converge()
    pod = world.find("StatefulSet", "main-sequencer")["spec"]["template"]["spec"]
    assert "main-sequencer-7/tls.key" in list_keys(pod)


def test_an_autoscaler_makes_more_of_a_statefulset_and_keys_are_there() -> None:
    world = make_secured(writeProxies=SCALED)
    target = world.find("HorizontalPodAutoscaler", "main-writeproxy")["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("StatefulSet", "main-writeproxy")
    pod = world.find("StatefulSet", "main-writeproxy")["spec"]["template"]["spec"]
    assert "main-writeproxy-6/tls.key" in list_keys(pod)
    world.find("StatefulSet", "main-writeproxy")["spec"]["replicas"] = 5
    assert list_changes(world) == []
    status = world.find("LogCluster", "main")["status"]
    world.converge()
    assert world.find("LogCluster", "main")["status"]["writeProxies"]["wanted"] == 5 != status


def test_whoever_is_called_is_called_by_its_own_name(world: World) -> None:
    members = [f"main-zookeeper-{i}.main-zookeeper.here.svc:2181" for i in range(3)]
    for name in world.names("StatefulSet"):
        told = read_arguments(world, "StatefulSet", name)
        if name == "main-zookeeper":
            continue
        assert told[told.index("--zookeeper") + 1] == ",".join(members), name
        service = world.find("StatefulSet", name)["spec"]["serviceName"]
        host = told[told.index("--advertise") + 1].rpartition(":")[0]
        assert host == f"$(POD_NAME).{service}.here.svc"
        assert host in told[told.index("--public-name") :]
        assert world.find("Service", service)["spec"]["clusterIP"] == "None"
    assert "main-zookeeper-client" not in world.names("Service")
    endpoints = world.find("LogCluster", "main")["status"]["endpoints"]
    assert endpoints["write"] == "https://main-writeproxy.here.svc:7301"
    assert endpoints["zookeeper"] == ",".join(members)


def test_probes_ask_by_tls(world: World) -> None:
    for name, pod in read_pods(world):
        (container,) = pod["containers"]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            asked = container[probe].get("httpGet")
            assert (asked is None) == (name == "main-zookeeper")
            assert asked is None or asked["scheme"] == "HTTPS"


def test_a_public_certificate_is_no_identity(world: World) -> None:
    for name, pod in read_pods(world):
        volumes = {volume["name"] for volume in pod["volumes"]}
        assert ("public" in volumes) == ("proxy" in name)
        if "public" in volumes:
            assert {key for _, key, _ in list_keys(pod, "public").values()} == {
                "tls.crt", "tls.key", "ca.crt",
            }  # fmt: skip
            assert {secret for secret, _, _ in list_keys(pod, "public").values()} == {"main-public"}


def test_no_pod_mounts_the_ca_or_the_monitors_key_and_the_job_alone_the_operators() -> None:
    world = begin()
    for ref, item in world.objects.items():
        told = str(item.get("spec", {}))
        assert "main-ca" not in told and "main-monitor" not in told
        assert ("main-operator" in told) == (ref == JOB)
    pod = world.objects[JOB]["spec"]["template"]["spec"]
    assert pod["containers"][0]["args"][:2] == ["access", "apply"]
    assert pod["containers"][0]["args"][2] == find_mount(pod, "identity")
    assert list_keys(pod)["tls.key"] == ("main-operator", "tls.key", False)
    assert pod["restartPolicy"] == "OnFailure"
    assert pod["securityContext"]["fsGroup"] != pod["securityContext"]["runAsGroup"]


def test_a_cluster_is_founded_once_and_its_key_goes_with_the_job() -> None:
    world = begin()
    assert world.condition("LogCluster", "main", "Secure")["reason"] == "NotFounded"
    assert FOUNDED not in world.objects
    world.converge()
    assert FOUNDED in world.objects
    assert JOB not in world.objects
    assert world.condition("LogCluster", "main", "Secure")["status"] == "True"
    assert list_changes(world) == []


def test_a_job_that_is_gone_failed_or_of_another_image_is_made_again() -> None:
    world = begin()
    for fault in ("gone", "failed", "image"):
        first = world.objects[JOB]["metadata"]["uid"]
        if fault == "gone":
            del world.objects[JOB]
        elif fault == "failed":
            failed = {"type": "Failed", "status": "True"}
            world.objects[JOB]["status"] = {"conditions": [failed]}
        else:
            world.change("LogCluster", "main", image="another")
        world.settle()
        assert world.objects[JOB]["metadata"]["uid"] != first, fault
    (container,) = world.objects[JOB]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "another"
    assert FOUNDED not in world.objects


def test_without_the_record_it_is_done_again() -> None:
    world = copy.deepcopy(make_once())
    del world.objects[FOUNDED]
    (step,) = list_changes(world)
    assert isinstance(step, Apply) and step.about == JOB
    assert MANIFEST_ANNOTATION in step.manifest["metadata"]["annotations"]
    world.converge()
    assert FOUNDED in world.objects


def test_a_job_of_somebody_else_is_left_alone_and_told() -> None:
    world = begin()
    world.objects[JOB]["metadata"]["ownerReferences"] = [{"uid": "other"}]
    world.objects[JOB]["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    world.settle()
    assert FOUNDED not in world.objects
    assert not any(isinstance(step, Delete) for step in world.plan().steps)
    said = world.condition("LogCluster", "main", "Progressing")
    assert (said["reason"], "Job main-access" in said["message"]) == ("NameTaken", True)
