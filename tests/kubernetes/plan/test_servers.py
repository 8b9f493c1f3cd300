"""ZooKeeper, sequencers and proxies in the plan, and what holds for the pods of all components.

What runs is looked at in the templates that the plan makes; that a real API server admits them as
restricted is shown by the tests of tier kwok.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from duramen.runtime.service import parse_options
from duramen_operator.names import BOOKIE, READ_PROXY, SEQUENCER, WRITE_PROXY
from duramen_operator.plan.observed import Problem, Ref
from duramen_operator.plan.steps import Apply, Delete, Event, Status
from tests.kubernetes.plan.servers_world import make_world, read_arguments
from tests.kubernetes.plan.world import World, make_cluster, make_domains

EVERYTHING: dict[str, Any] = {
    "domains": make_domains(3, 1),
    "coldStore": {"url": "file:///cold", "claimName": "cold", "secretName": "keys"},
    "writeProxies": {"autoscaling": {"minReplicas": 2, "maxReplicas": 5}},
    "lostBookieGrace": "10m",
}
WORKLOADS = ("StatefulSet", "Deployment")
SCALED = {"writeProxies": {"autoscaling": {"minReplicas": 3, "maxReplicas": 6}}}
EXTERNAL = {"external": {"servers": "a:2181,b:2181"}}


def read_templates(world: World) -> Iterator[tuple[str, dict[str, Any]]]:
    for kind in WORKLOADS:
        for name in world.names(kind):
            yield name, world.find(kind, name)["spec"]["template"]


def test_every_pod_is_restricted_and_has_no_token() -> None:
    templates = dict(read_templates(make_world(**EVERYTHING)))
    assert len(templates) == 7
    for name, template in templates.items():
        spec = template["spec"]
        assert spec["automountServiceAccountToken"] is False, name
        assert "serviceAccountName" not in spec
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] == security["runAsGroup"] == security["fsGroup"] == 10001
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            own = container["securityContext"]
            assert own["readOnlyRootFilesystem"] is True
            assert own["allowPrivilegeEscalation"] is False
            assert own["capabilities"] == {"drop": ["ALL"]}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        kinds = {next(key for key in volume if key != "name") for volume in spec["volumes"]}
        assert kinds <= {"emptyDir", "persistentVolumeClaim"}


def test_every_pod_has_probes_that_mean_something_a_spread_and_time_to_end() -> None:
    for name, template in read_templates(make_world(**EVERYTHING)):
        spec = template["spec"]
        (container,) = spec["containers"]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert container[probe]["failureThreshold"] >= 2, name
        if container["name"] == "zookeeper":
            assert container["livenessProbe"]["exec"]["command"][-1] == "--alive"
            assert "--alive" not in container["readinessProbe"]["exec"]["command"]
        else:
            paths = [container[p]["httpGet"]["path"] for p in ("livenessProbe", "readinessProbe")]
            assert paths == ["/healthz", "/readyz"]
            has_streams = container["name"] in {BOOKIE, SEQUENCER}
            expected = {"data", "admin", "streams"} if has_streams else {"data", "admin"}
            assert {port["name"] for port in container["ports"]} == expected
        assert spec["topologySpreadConstraints"]
        assert spec["terminationGracePeriodSeconds"] >= 30
        behind_balancer = container["name"] in {WRITE_PROXY, READ_PROXY}
        assert ("lifecycle" in container) == behind_balancer


def test_who_takes_appends_inside_has_a_port_for_streams_and_proxies_have_none() -> None:
    world = make_world(domains=[])
    for component, place, stream_port in (
        (BOOKIE, ("StatefulSet", "bookies-0"), 7103),
        (SEQUENCER, ("StatefulSet", "main-sequencer"), 7203),
        (WRITE_PROXY, ("Deployment", "main-writeproxy"), None),
        (READ_PROXY, ("Deployment", "main-readproxy"), None),
    ):
        arguments = [one.replace("$(POD_NAME)", "pod-0") for one in read_arguments(world, *place)]
        options = parse_options(
            component, [one.replace("$(POD_IP)", "10.1.2.3") for one in arguments]
        )
        assert options.stream_port == stream_port
        assert options.serves_streams == (stream_port is not None)
        (container,) = world.find(*place)["spec"]["template"]["spec"]["containers"]
        opened = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert opened.get("streams") == stream_port
        service = world.find("Service", f"main-{component}")["spec"]
        assert {port["name"]: port["port"] for port in service["ports"]} == opened


def test_every_component_has_a_disruption_budget_for_its_own_pods() -> None:
    world = make_world()
    components = ("bookie", "readproxy", "sequencer", "writeproxy", "zookeeper")
    assert world.names("PodDisruptionBudget") == [f"main-{name}" for name in components]
    for component in components:
        spec = world.find("PodDisruptionBudget", f"main-{component}")["spec"]
        labels = spec["selector"]["matchLabels"]
        assert labels["app.kubernetes.io/component"] == component
        assert labels["app.kubernetes.io/instance"] == "main"


@pytest.mark.parametrize("zones", [0, 3])
def test_every_member_has_its_name_before_it_is_ready_and_no_proxy_is_sent_anything(
    zones: int,
) -> None:
    """A name in DNS that waits for readiness is one that the members need to become ready."""
    world = make_world(domains=make_domains(1, zones))
    headless = set()
    for name in world.names("StatefulSet"):
        spec = world.find("StatefulSet", name)["spec"]
        service = world.find("Service", spec["serviceName"])["spec"]
        headless.add(spec["serviceName"])
        assert service["clusterIP"] == "None", name
        assert service["publishNotReadyAddresses"] is True, name
        assert service["selector"].items() <= spec["template"]["metadata"]["labels"].items()
        told = ",".join(read_arguments(world, "StatefulSet", name))
        pod = f"{name}-0" if name == "main-zookeeper" else "$(POD_NAME)"
        assert f"{pod}.{spec['serviceName']}.here.svc" in told, name
    assert headless == {"main-bookie", "main-sequencer", "main-zookeeper"}
    for name in set(world.names("Service")) - headless:
        service = world.find("Service", name)["spec"]
        assert "publishNotReadyAddresses" not in service and "clusterIP" not in service, name


def test_what_asks_nobody_who_calls_is_told_that_this_is_meant() -> None:
    world = make_world()
    workloads = [ref for ref in world.objects if ref.kind in {"StatefulSet", "Deployment"}]
    assert len(workloads) == 7
    for ref in workloads:
        assert "--accept-anybody" in read_arguments(world, ref.kind, ref.name), ref


def test_a_cluster_that_is_older_than_that_word_runs_on_and_is_not_changed() -> None:
    world = make_world()
    world.change("LogCluster", "main", acceptAnybody=False, sequencers={"replicas": 5})
    applied = [step for step in world.plan().steps if not isinstance(step, Status | Event)]
    assert applied == []
    world.settle()
    progressing = world.condition("LogCluster", "main", "Progressing")
    assert (progressing["status"], progressing["reason"]) == ("False", "AnybodyNotAccepted")
    assert "acceptAnybody: true" in progressing["message"]
    assert world.condition("LogCluster", "main", "Available")["status"] == "True"
    world.change("LogCluster", "main", acceptAnybody=True)
    world.converge()
    assert world.find("StatefulSet", "main-sequencer")["spec"]["replicas"] == 5


@pytest.mark.parametrize("members", [1, 3, 5])
def test_zookeeper_members_know_one_another_and_spread(members: int) -> None:
    world = make_world(zookeeper={"members": members}, domains=make_domains(1, 3))
    found = world.find("StatefulSet", "main-zookeeper")["spec"]
    assert found["replicas"] == members
    arguments = read_arguments(world, "StatefulSet", "main-zookeeper")
    hosts = arguments[arguments.index("--members") + 1].split(",")
    expected = [f"main-zookeeper-{i}.main-zookeeper.here.svc" for i in range(members)]
    assert hosts == expected
    zones, nodes = found["template"]["spec"]["topologySpreadConstraints"]
    assert (zones["topologyKey"], zones["whenUnsatisfiable"]) == (
        "topology.kubernetes.io/zone",
        "DoNotSchedule",
    )
    assert nodes["whenUnsatisfiable"] == "ScheduleAnyway"
    kept = {"whenDeleted": "Retain", "whenScaled": "Retain"}
    assert found["persistentVolumeClaimRetentionPolicy"] == kept


def test_an_external_zookeeper_is_used_and_none_is_made() -> None:
    world = make_world(zookeeper=EXTERNAL)
    assert "main-zookeeper" not in world.names("StatefulSet")
    assert "main-zookeeper-client" not in world.names("Service")
    for kind, name in (("StatefulSet", "bookies-0"), ("Deployment", "main-readproxy")):
        arguments = read_arguments(world, kind, name)
        assert arguments[arguments.index("--zookeeper") + 1] == "a:2181,b:2181"
    # Other addresses of the same ensemble are followed.
    world.change("LogCluster", "main", zookeeper={"external": {"servers": "a:2181,b:2181,c:2181"}})
    world.converge()
    arguments = read_arguments(world, "StatefulSet", "main-sequencer")
    assert "a:2181,b:2181,c:2181" in arguments


@pytest.mark.parametrize(
    ("first", "then", "told"),
    [
        ({"members": 3}, {"members": 5}, "stays 3"),
        ({"members": 3}, {"members": 1}, "stays 3"),
        ({"members": 3}, EXTERNAL, "cannot move"),
        (EXTERNAL, {"members": 3}, "cannot move"),
        (EXTERNAL, {"external": {"servers": "a:2181", "cluster": "other"}}, "called here.main"),
        ({"storage": {"size": "5Gi"}}, {"storage": {"size": "9Gi"}}, "storage.size stays 5Gi"),
    ],
)
def test_another_zookeeper_is_refused(
    first: dict[str, Any], then: dict[str, Any], told: str
) -> None:
    world = make_world(zookeeper=first)
    before = [read_arguments(world, "StatefulSet", n) for n in ("bookies-0", "main-sequencer")]
    sets = world.names("StatefulSet")
    world.change("LogCluster", "main", zookeeper=then)
    world.converge()
    found = world.condition("LogCluster", "main", "Progressing")
    assert (found["status"], found["reason"]) == ("False", "NotYetSupported")
    assert told in found["message"]
    after = [read_arguments(world, "StatefulSet", n) for n in ("bookies-0", "main-sequencer")]
    if "called" not in told:  # there the addresses may change, and the name may not
        assert after == before
    assert [one[:2] for one in after] == [one[:2] for one in before]
    assert world.names("StatefulSet") == sets


def test_what_the_autoscaler_decides_is_kept_and_is_no_reason_for_a_step() -> None:
    world = make_world(**SCALED)
    assert world.find("Deployment", "main-writeproxy")["spec"]["replicas"] == 3
    world.find("Deployment", "main-writeproxy")["spec"]["replicas"] = 5
    assert not any(isinstance(step, Apply) for step in world.plan().steps)
    world.change("LogCluster", "main", image="localhost/duramen:next")
    world.converge()
    assert world.find("Deployment", "main-writeproxy")["spec"]["replicas"] == 5
    target = world.find("HorizontalPodAutoscaler", "main-writeproxy")["spec"]["scaleTargetRef"]
    assert target == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "main-writeproxy"}


def test_an_autoscaler_goes_when_it_is_not_asked_for_any_more() -> None:
    world = make_world(**SCALED)
    found = world.find("HorizontalPodAutoscaler", "main-writeproxy")["metadata"]
    world.change("LogCluster", "main", writeProxies={"replicas": 4})
    deletes = [step for step in world.plan().steps if isinstance(step, Delete)]
    assert [(d.about.name, d.uid, d.resource_version) for d in deletes] == [
        ("main-writeproxy", found["uid"], found["resourceVersion"])
    ]
    world.converge()
    assert world.names("HorizontalPodAutoscaler") == []
    assert world.find("Deployment", "main-writeproxy")["spec"]["replicas"] == 4


def test_the_cold_store_reaches_those_who_read_it_and_nobody_else() -> None:
    world = make_world(**EVERYTHING)
    for kind, name, is_cold in (
        ("StatefulSet", "main-sequencer", True),
        ("Deployment", "main-readproxy", True),
        ("Deployment", "main-writeproxy", False),
    ):
        spec = world.find(kind, name)["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert ("file:///cold" in container["args"]) == is_cold
        assert (mounts.get("cold") == "/cold") == is_cold
        assert ("envFrom" in container) == is_cold
    arguments = read_arguments(world, "StatefulSet", "main-sequencer")
    assert arguments[arguments.index("--lost-bookie-grace") + 1] == "10m"


@pytest.mark.parametrize("is_wanted", [True, False])
def test_logs_move_by_themselves_unless_that_is_not_wanted(is_wanted: bool) -> None:
    world = make_world(sequencers={"balance": is_wanted})
    arguments = read_arguments(world, "StatefulSet", "main-sequencer")
    assert ("--no-balance" in arguments) == (not is_wanted)
    assert "--no-balance" not in read_arguments(world, "Deployment", "main-writeproxy")


def test_what_the_api_server_refused_is_told_until_it_does_not() -> None:
    world = make_world()
    refused = {Ref("apps/v1", "Deployment", "main-readproxy"): Problem("Forbidden", "over quota")}
    world.do(world.plan(refusals=refused).steps)
    found = world.condition("LogCluster", "main", "Progressing")
    assert found["reason"] == "ApplyRefused"
    assert "main-readproxy: Forbidden: over quota" in found["message"]
    world.settle()
    assert world.condition("LogCluster", "main", "Progressing")["reason"] == "Settled"


def test_a_cluster_without_bookies_says_what_is_missing() -> None:
    world = World(make_cluster())
    world.converge()
    ready = world.condition("LogCluster", "main", "Ready")
    assert ready["status"] == "False"
    assert "a segment needs 3" in ready["message"]


def test_metadata_logs_can_be_switched_off_at_sequencers_alone() -> None:
    with_them, without = make_world(), make_world(metadataLogs=False)
    for name in ("sequencer", "writeproxy", "readproxy"):
        kind = "StatefulSet" if name == "sequencer" else "Deployment"
        before = read_arguments(with_them, kind, f"main-{name}")
        after = read_arguments(without, kind, f"main-{name}")
        assert "--no-metadata-logs" not in before
        assert ("--no-metadata-logs" in after) == (name == "sequencer")


def test_gossip_can_be_switched_off_without_a_new_start_of_bookies() -> None:
    with_it, without = make_world(), make_world(gossip=False)
    for name in ("sequencer", "writeproxy", "readproxy"):
        kind = "StatefulSet" if name == "sequencer" else "Deployment"
        before = read_arguments(with_it, kind, f"main-{name}")
        after = read_arguments(without, kind, f"main-{name}")
        assert "--no-gossip" not in before
        assert ("--no-gossip" in after) == (name != "readproxy")
    bookies = [read_arguments(world, "StatefulSet", "bookies-0") for world in (with_it, without)]
    assert bookies[0] == bookies[1]
