"""A cluster whose certificates cert-manager issues: what is asked for, mounted, kept and removed.

Broken by hand: a bookie that mounts its neighbour's Secret, a Certificate of a cluster without a
record, one that goes before its pod, one URI too many, roles renewed in one moment.
"""

from __future__ import annotations

import copy
import datetime as dt
import functools
from typing import Any, Final

import pytest

from duramen_operator.plan.observed import Ref
from duramen_operator.plan.steps import Apply, Delete, Event, Status
from tests.kubernetes.issuing.signing import read_duration
from tests.kubernetes.plan.requested_world import REQUESTED, find_uuid, make_requested
from tests.kubernetes.plan.secured_world import EXTERNAL, SCALED, SECURED
from tests.kubernetes.plan.world import World, make_bookie_set, make_cluster

ALONE: Final = {"main-public", "main-operator", "main-monitor", "main-archive"}
CERTIFICATE: Final = "cert-manager.io/v1"


@functools.cache
def make_once() -> World:
    return make_requested()


@pytest.fixture
def world() -> World:
    return copy.deepcopy(make_once())


def read_sources(world: World, kind: str, name: str, volume: str = "identity") -> list[Any]:
    pod = world.find(kind, name)["spec"]["template"]["spec"]
    (found,) = (one for one in pod["volumes"] if one["name"] == volume)
    return list(found["projected"]["sources"])


def list_changes(world: World) -> list[Any]:
    return [step for step in world.plan().steps if not isinstance(step, Status | Event)]


def test_each_node_is_asked_for_and_who_has_a_secret_alone(world: World) -> None:
    pods = {pod for pod in world.names("Pod") if "access" not in pod}
    assert set(world.names("Certificate")) == {f"{pod}-tls" for pod in pods} | ALONE
    for name in world.names("Certificate"):
        item = world.find("Certificate", name)
        spec = item["spec"]
        assert spec["secretName"] == name
        assert spec["issuerRef"] == {
            "name": "duramen-ca", "kind": "Issuer", "group": "cert-manager.io",
        }  # fmt: skip
        assert spec["privateKey"]["rotationPolicy"] == "Always"
        assert "isCA" not in spec
        assert item["metadata"]["ownerReferences"][0]["kind"] == "LogCluster"
        labels = spec["secretTemplate"]["labels"]
        assert labels["duramen.io/cluster"] == "main"
        assert "app.kubernetes.io/managed-by" not in labels, "cert-manager manages it"
    assert list_changes(world) == []


def test_a_certificate_asks_for_one_identity_its_hosts_and_its_purposes(world: World) -> None:
    uuid = find_uuid(world)
    bookie = world.find("Certificate", "bookies-0-0-tls")["spec"]
    assert bookie["uris"] == [f"spiffe://{uuid}/bookie/bookies-0-0"]
    assert "bookies-0-0.main-bookie.here.svc" in bookie["dnsNames"]
    assert bookie["usages"] == ["digital signature", "server auth", "client auth"]
    operator = world.find("Certificate", "main-operator")["spec"]
    assert operator["uris"] == [f"spiffe://{uuid}/operator/operator"]
    assert operator["usages"] == ["digital signature", "client auth"]
    assert "dnsNames" not in operator, "whom nobody calls names no host"
    public = world.find("Certificate", "main-public")["spec"]
    assert "uris" not in public, "it opens nothing"
    assert public["usages"] == ["digital signature", "server auth"]
    assert {"localhost", "*.main-writeproxy-pods.here.svc"} <= set(public["dnsNames"])


def test_a_third_of_a_life_is_left_at_a_renewal_and_roles_take_turns(world: World) -> None:
    befores: dict[str, set[dt.timedelta]] = {}
    for name in world.names("Certificate"):
        item = world.find("Certificate", name)
        assert read_duration(item["spec"]) == dt.timedelta(days=7)
        role = item["metadata"]["labels"]["app.kubernetes.io/component"]
        befores.setdefault(role, set()).add(read_duration(item["spec"], "renewBefore"))
    (first, *_), (*_, last) = (sorted(befores.values(), key=min) for _ in range(2))
    assert min(first) == dt.timedelta(days=7) / 3
    assert max(last) < dt.timedelta(days=7) / 2
    moments = [moment for found in befores.values() for moment in found]
    assert len(moments) == len(set(moments)) == 9
    gaps = [two - one for one, two in zip(sorted(moments), sorted(moments)[1:], strict=False)]
    assert min(gaps) >= dt.timedelta(minutes=2), "kubelets need that long to hand one on"


def test_a_bookie_mounts_its_own_secret_and_the_trust_and_nothing_else(world: World) -> None:
    own, bundle, lists = read_sources(world, "StatefulSet", "bookies-1")
    assert own["secret"]["name"] == "bookies-1-0-tls"
    assert not own["secret"].get("optional")
    paths = {item["key"]: item["path"] for item in own["secret"]["items"]}
    assert paths == {"tls.crt": "bookies-1-0/tls.crt", "tls.key": "bookies-1-0/tls.key"}
    assert bundle["configMap"] == {
        "name": "main-trust", "items": [{"key": "ca.crt", "path": "bookies-1-0/ca.crt"}],
    }  # fmt: skip
    assert lists["configMap"]["optional"]


@pytest.mark.parametrize(
    ("workload", "count"), [("main-zookeeper", 3), ("main-sequencer", 4), ("main-writeproxy", 4)]
)
def test_pods_of_a_role_mount_its_secrets_and_wait_for_the_trust_alone(
    world: World, workload: str, count: int
) -> None:
    *own, bundle, _ = read_sources(world, "StatefulSet", workload)
    names = [source["secret"]["name"] for source in own]
    assert names == [f"{workload}-{index}-tls" for index in range(count)]
    is_waited_for = {not source["secret"].get("optional", False) for source in own}
    assert is_waited_for == {workload == "main-zookeeper"}
    assert not bundle["configMap"].get("optional")
    assert len(bundle["configMap"]["items"]) == count
    if workload == "main-writeproxy":
        (public,) = read_sources(world, "StatefulSet", workload, "public")
        assert public["secret"]["name"] == "main-public"


def test_the_job_that_founds_takes_the_operators_key_and_the_trust() -> None:
    world = World(make_cluster(**REQUESTED), make_bookie_set(replicas=1))
    world.settle()
    own, bundle, _ = read_sources(world, "Job", "main-access")
    assert own["secret"]["name"] == "main-operator"
    assert {item["key"] for item in own["secret"]["items"]} == {"tls.crt", "tls.key"}
    assert bundle["configMap"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]


def test_nothing_is_asked_for_before_it_is_written_down_which_cluster_it_is() -> None:
    world = World(make_cluster(**REQUESTED, zookeeper=EXTERNAL), make_bookie_set(replicas=1))
    first = world.plan().steps
    assert not any(step.about.kind == "Certificate" for step in first)
    world.do(first)
    assert "main-foundation" in world.names("ConfigMap")
    asked = [step for step in world.plan().steps if step.about.kind == "Certificate"]
    assert asked and all(isinstance(step, Apply) for step in asked)
    assert find_uuid(world) in str(asked[0])


def test_none_are_asked_for_where_another_issues() -> None:
    for issuer in ("operator", "secret"):
        world = World(make_cluster(**SECURED, tls={"issuer": issuer}), make_bookie_set())
        world.converge()
        assert world.names("Certificate") == []


def test_what_others_change_is_set_right_and_another_issuer_is_named_to_all(world: World) -> None:
    world.find("Certificate", "main-operator")["spec"]["uris"] = ["spiffe://a/operator/b"]
    (step,) = list_changes(world)
    assert isinstance(step, Apply) and step.about.name == "main-operator"
    world.converge()
    tls = copy.deepcopy(REQUESTED["tls"])
    tls["issuerRef"]["name"] = "second"
    world.change("LogCluster", "main", tls=tls)
    asked = {step.about.name for step in list_changes(world)}
    assert asked == set(world.names("Certificate")), "no pod is started anew for it"


def test_a_certificate_goes_when_its_pod_has_gone_and_not_before() -> None:
    world = make_requested(sequencers={"replicas": 3})
    name, pod = "main-sequencer-2-tls", Ref("v1", "Pod", "main-sequencer-2")
    world.change("LogCluster", "main", sequencers={"replicas": 2})
    world.settle()
    assert name in world.names("Certificate"), "it may be ending still"
    del world.objects[pod]
    (step,) = list_changes(world)
    assert isinstance(step, Delete) and step.about == Ref(CERTIFICATE, "Certificate", name)


def test_a_proxy_that_an_autoscaler_may_make_is_asked_for() -> None:
    world = make_requested(writeProxies=SCALED)
    assert "main-writeproxy-6-tls" in world.names("Certificate")


def test_a_bookie_whose_set_has_gone_keeps_its_certificate(world: World) -> None:
    del world.objects[Ref("duramen.io/v1alpha1", "BookieSet", "bookies")]
    for ref in [ref for ref in world.objects if ref.kind == "Pod" and "bookies" in ref.name]:
        del world.objects[ref]
    assert not any(isinstance(step, Delete) for step in world.plan().steps)


def test_somebody_elses_certificate_is_left_alone_and_told(world: World) -> None:
    world.find("Certificate", "main-public")["metadata"]["ownerReferences"] = [{"uid": "other"}]
    world.settle()
    said = world.condition("LogCluster", "main", "Progressing")
    assert (said["reason"], "Certificate main-public" in said["message"]) == ("NameTaken", True)
    stray = copy.deepcopy(world.find("Certificate", "main-public"))
    stray["metadata"] = {**stray["metadata"], "name": "web", "uid": "web"}
    world.add(stray)
    assert not any(isinstance(step, Delete) for step in world.plan().steps)
