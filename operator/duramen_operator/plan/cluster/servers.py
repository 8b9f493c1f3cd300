"""Sequencers and proxies: what holds no data, and may come and go.

Sequencers are a StatefulSet, since proxies and one another reach each by its name; proxies are
Deployments behind a service, or StatefulSets where each has an identity, with an autoscaler where
the spec asks for one. Called by `plan`. Pure. Source: docs/kubernetes/security.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from duramen.units import format_duration
from duramen_operator.names import (
    DATA_PORTS,
    READ_PROXY,
    SEQUENCER,
    WRITE_PROXY,
    make_selector,
    name_component,
    name_host,
)
from duramen_operator.plan.cluster.frame import ClusterFrame
from duramen_operator.plan.cluster.nodes import name_pod_service
from duramen_operator.plan.cluster.pods import (
    POD_NAME,
    Pod,
    list_ports,
    make_template,
    name_arguments,
    probe_service,
    spread_anyway,
)
from duramen_operator.plan.cluster.secured.keys import make_keys
from duramen_operator.plan.cluster.secured.proxies import make_proxy_files
from duramen_operator.plan.evictions.budgets import BUDGET_KIND, find_server_room
from duramen_operator.plan.manifests import make_manifest
from duramen_operator.plan.observed import Json
from duramen_operator.resources.clusters import Proxies
from duramen_operator.resources.part import Requirements

GRACE_S = 60
START_S = 300
_DEPLOYMENT: Json = {
    "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
}
_STATEFUL_SET: Json = {
    "podManagementPolicy": "Parallel",
    "updateStrategy": {"type": "RollingUpdate"},
}
PRE_STOP_S = 5
"""As long as kube-proxy and load balancers need to send nothing new to a pod that is leaving; what
is under way then is drained by the process itself, on SIGTERM."""


@dataclass(frozen=True, slots=True)
class WantedManifest:
    """A manifest, and how it is compared where an autoscaler decides a field of it."""

    manifest: Json
    silent: Json | None = None


def make_servers(frame: ClusterFrame) -> Iterator[WantedManifest]:
    """Manifests of sequencers and proxies."""
    yield from map(WantedManifest, make_sequencers(frame))
    yield from make_proxies(frame)


def make_sequencers(frame: ClusterFrame) -> Iterator[Json]:
    """Manifests of the sequencers."""
    name = name_component(frame.name, SEQUENCER)
    labels = frame.make_labels(SEQUENCER)
    selector = make_selector(frame.name, SEQUENCER)
    service = {
        "clusterIP": "None",
        # A sequencer that takes over logs is not ready yet, and is asked whether it lives.
        "publishNotReadyAddresses": True,
        "selector": selector,
        "ports": _make_service_ports(SEQUENCER),
    }
    yield make_manifest(("v1", "Service"), name, labels, frame.cluster, spec=service)
    yield _make_budget(frame, SEQUENCER, find_server_room(frame, name))
    host = name_host(POD_NAME, name, frame.namespace)
    extra = {"--advertise": f"{host}:{DATA_PORTS[SEQUENCER]}"}
    extra["--lost-bookie-grace"] = format_duration(frame.spec.lost_bookie_grace)
    pod = _make_pod(frame, SEQUENCER, frame.spec.sequencers.resources, extra, is_cold=True)
    if not frame.spec.sequencers.balance:
        pod = replace(pod, arguments=[*pod.arguments, "--no-balance"])
    spec = {
        "serviceName": name,
        "replicas": frame.spec.sequencers.replicas,
        "podManagementPolicy": "Parallel",
        # The operator takes a grant before it restarts one.
        "updateStrategy": {"type": "OnDelete"},
        "selector": {"matchLabels": selector},
        "template": make_template(frame, pod),
    }
    yield make_manifest(("apps/v1", "StatefulSet"), name, labels, frame.cluster, spec=spec)


def make_proxies(frame: ClusterFrame) -> Iterator[WantedManifest]:
    """Manifests of both kinds of proxies."""
    for component, proxies in (
        (WRITE_PROXY, frame.spec.write_proxies),
        (READ_PROXY, frame.spec.read_proxies),
    ):
        name = name_component(frame.name, component)
        labels = frame.make_labels(component)
        service = {
            "selector": make_selector(frame.name, component),
            "ports": _make_service_ports(component),
        }
        kind = ("v1", "Service")
        yield WantedManifest(make_manifest(kind, name, labels, frame.cluster, spec=service))
        if frame.is_secured:
            yield WantedManifest(_make_pod_service(frame, component))
        yield WantedManifest(_make_budget(frame, component, "25%"))
        yield _make_workload(frame, component, proxies)
        if proxies.autoscaling is not None:
            yield WantedManifest(_make_autoscaler(frame, component, proxies))


def count_proxies(frame: ClusterFrame, component: str, proxies: Proxies) -> int:
    """How many there are to be: what the autoscaler has decided, within its bounds."""
    scaling = proxies.autoscaling
    if scaling is None:
        return proxies.replicas
    found = frame.observed.find(name_proxy_kind(frame), name_component(frame.name, component))
    there = int(found.spec.get("replicas", 1)) if found is not None else scaling.min_replicas
    return max(scaling.min_replicas, min(there, scaling.max_replicas))


def name_proxy_kind(frame: ClusterFrame) -> str:
    """What proxies are: a pod of a Deployment has a name of chance, and so can have no identity."""
    return "StatefulSet" if frame.is_secured else "Deployment"


def find_needless_autoscalers(frame: ClusterFrame) -> Iterator[str]:
    """Names of autoscalers that the spec does not ask for any more."""
    for component, proxies in (
        (WRITE_PROXY, frame.spec.write_proxies),
        (READ_PROXY, frame.spec.read_proxies),
    ):
        if proxies.autoscaling is None:
            yield name_component(frame.name, component)


def _make_workload(frame: ClusterFrame, component: str, proxies: Proxies) -> WantedManifest:
    name = name_component(frame.name, component)
    # A pod of a Deployment has no name in DNS: others reach it by its address.
    host, strategy = "$(POD_IP)", _DEPLOYMENT
    if frame.is_secured:
        service = name_pod_service(frame.name, component)
        host = name_host(POD_NAME, service, frame.namespace)
        strategy = {**_STATEFUL_SET, "serviceName": service}
    extra = {"--advertise": f"{host}:{DATA_PORTS[component]}"}
    pod = _make_pod(frame, component, proxies.resources, extra, is_cold=component == READ_PROXY)
    spec = {
        "selector": {"matchLabels": make_selector(frame.name, component)},
        **strategy,
        "template": make_template(frame, pod),
    }
    labels = frame.make_labels(component)
    count = count_proxies(frame, component, proxies)
    kind = ("apps/v1", name_proxy_kind(frame))
    if proxies.autoscaling is None:
        whole = make_manifest(kind, name, labels, frame.cluster, spec={**spec, "replicas": count})
        return WantedManifest(whole)
    # The number is applied (a field that is let go falls back to 1), but it never is a reason to.
    silent = make_manifest(kind, name, labels, frame.cluster, spec=spec)
    return WantedManifest({**silent, "spec": {**silent["spec"], "replicas": count}}, silent)


def _make_pod(
    frame: ClusterFrame,
    component: str,
    resources: Requirements,
    extra: dict[str, str],
    *,
    is_cold: bool,
) -> Pod:
    ports = list_ports(component)
    flags = {
        "--cluster": frame.metadata_name,
        "--id": POD_NAME,
        "--host": "0.0.0.0",
        "--data-port": str(ports["data"]),
        "--admin-port": str(ports["admin"]),
        "--zookeeper": frame.zookeeper_servers,
        "--security": frame.security,
        **extra,
    }
    if "streams" in ports:
        flags["--stream-port"] = str(ports["streams"])
    has_name = frame.is_secured or component == SEQUENCER
    cold = frame.spec.cold_store if is_cold else None
    files = make_proxy_files(frame, component)
    mounts: dict[str, str] = {}
    volumes: list[Json] = []
    if cold is not None:
        flags["--cold-store"] = cold.url
        if frame.cold_folder:
            mounts["cold"] = frame.cold_folder
            claim = {"claimName": cold.claim_name}
            volumes.append({"name": "cold", "persistentVolumeClaim": claim})
    return Pod(
        component=component,
        labels=frame.make_labels(component),
        image=frame.image,
        command=f"duramen-{component}",
        arguments=[
            *(token for flag in flags.items() for token in flag),
            *frame.anybody_arguments,
            *_gossip_arguments(frame, component),
            *_metadata_arguments(frame, component),
            *name_arguments(frame, component),
            *files.arguments,
        ],
        ports=ports,
        resources=resources,
        probes=probe_service(start_s=START_S, is_secured=frame.is_secured),
        grace_s=GRACE_S,
        mounts={**mounts, **files.mounts},
        volumes=[*volumes, *files.volumes],
        environment={} if has_name else {"POD_IP": "status.podIP"},
        environment_secret=cold.secret_name if cold is not None else None,
        spread=spread_anyway(make_selector(frame.name, component)),
        pre_stop_s=0 if component == SEQUENCER else PRE_STOP_S,
        keys=make_keys(frame, component),
    )


def _make_pod_service(frame: ClusterFrame, component: str) -> Json:
    """The names of proxies in DNS, by which they call one another."""
    spec = {
        "clusterIP": "None",
        # Who is registered is called, and says itself that it is not ready.
        "publishNotReadyAddresses": True,
        "selector": make_selector(frame.name, component),
        "ports": _make_service_ports(component),
    }
    name = name_pod_service(frame.name, component)
    labels = frame.make_labels(component)
    return make_manifest(("v1", "Service"), name, labels, frame.cluster, spec=spec)


def _make_service_ports(component: str) -> list[Json]:
    ports = list_ports(component)
    return [{"name": name, "port": port, "targetPort": name} for name, port in ports.items()]


def _make_budget(frame: ClusterFrame, component: str, unavailable: int | str) -> Json:
    selector = make_selector(frame.name, component)
    spec = {
        "maxUnavailable": unavailable,
        "selector": {"matchLabels": selector},
        # One that does not work holds up no drain: there is nothing that it would lose.
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    name = name_component(frame.name, component)
    return make_manifest(BUDGET_KIND, name, frame.make_labels(component), frame.cluster, spec=spec)


def _make_autoscaler(frame: ClusterFrame, component: str, proxies: Proxies) -> Json:
    scaling = proxies.autoscaling
    assert scaling is not None
    name = name_component(frame.name, component)
    target = {"type": "Utilization", "averageUtilization": scaling.target_cpu_percent}
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": name_proxy_kind(frame), "name": name},
        "minReplicas": scaling.min_replicas,
        "maxReplicas": scaling.max_replicas,
        "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}],
    }
    kind = ("autoscaling/v2", "HorizontalPodAutoscaler")
    return make_manifest(kind, name, frame.make_labels(component), frame.cluster, spec=spec)


def _gossip_arguments(frame: ClusterFrame, component: str) -> list[str]:
    """Bookies only answer, so for the switch no bookie is started anew."""
    is_told = component in (SEQUENCER, WRITE_PROXY) and not frame.spec.gossip
    return ["--no-gossip"] if is_told else []


def _metadata_arguments(frame: ClusterFrame, component: str) -> list[str]:
    is_told = component == SEQUENCER and not frame.spec.metadata_logs
    return ["--no-metadata-logs"] if is_told else []
