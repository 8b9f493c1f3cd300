"""Pod templates of all components: security, probes, volumes, spread and the end of a pod.

Every pod passes the *restricted* profile: user 10001, no root, read-only root file system, no
capabilities, seccomp RuntimeDefault, and no token of a service account, since no service talks to
Kubernetes. Called by the modules beside it. Pure. Source: docs/kubernetes/.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from duramen_operator.names import (
    ADMIN_PORTS,
    BOOKIE,
    CLUSTER_DOMAIN,
    DATA_PORTS,
    HOST_LABEL,
    KEYS_GROUP_ID,
    NODE_ZONE_LABEL,
    SEQUENCER,
    STREAM_PORTS,
    USER_ID,
    name_component,
)
from duramen_operator.plan.cluster.frame import ClusterFrame
from duramen_operator.plan.cluster.nodes import list_hosts, name_pod_service
from duramen_operator.plan.cluster.secured.keys import NO_KEYS, Keys
from duramen_operator.plan.observed import Json
from duramen_operator.resources.part import Requirements

POD_NAME = "$(POD_NAME)"
"""Kubernetes puts the pod's own name here: arguments may use variables of the environment."""

_NAMED_PODS = (BOOKIE, SEQUENCER)
"""Of StatefulSets: their pods have names in DNS, too."""

CONTAINER_SECURITY: Json = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "privileged": False,
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
}
POD_SECURITY: Json = {
    "fsGroup": USER_ID,
    # A bookie's volume holds millions of bytes in few files, and still: not at every start.
    "fsGroupChangePolicy": "OnRootMismatch",
    "runAsGroup": USER_ID,
    "runAsNonRoot": True,
    "runAsUser": USER_ID,
    "seccompProfile": {"type": "RuntimeDefault"},
}
TEMPORARY_SIZE = "64Mi"

Tokens = Sequence[str]


@dataclass(frozen=True, slots=True)
class Pod:
    """What differs between the pods of the components."""

    component: str
    labels: Mapping[str, str]
    image: str
    command: str
    arguments: Tokens
    ports: Mapping[str, int]
    resources: Requirements
    probes: Json
    grace_s: int
    """For a clean end after SIGTERM, before the kernel ends it."""
    mounts: Mapping[str, str] = field(default_factory=dict)
    """Volume to path, beyond /tmp."""
    volumes: Sequence[Json] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variable to a field of the pod, beyond POD_NAME."""
    environment_maps: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Variable to a ConfigMap and a key of it; unset while there is none at a container's start."""
    environment_secret: str | None = None
    affinity: Json | None = None
    spread: Sequence[Json] = ()
    keys: Keys = NO_KEYS
    readiness_gates: Sequence[str] = ()
    """Types of conditions without which the pod is not Ready."""
    pre_stop_s: int = 0
    """A pause before SIGTERM, in which the service's balancers learn that the pod is leaving."""


def make_template(frame: ClusterFrame, pod: Pod) -> Json:
    """The pod template of a workload."""
    spec = frame.spec
    secret = pod.environment_secret
    mounts = {"tmp": "/tmp", **pod.mounts, **pod.keys.mounts}
    fields = {"POD_NAME": "metadata.name", **pod.environment}
    container = {
        "name": pod.component,
        "image": pod.image,
        "imagePullPolicy": spec.image_pull_policy,
        "command": [pod.command],
        "args": [*pod.arguments, *pod.keys.arguments],
        "env": [
            *(
                {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
                for name, path in fields.items()
            ),
            *(
                {"name": name, "valueFrom": {"configMapKeyRef": {**_refer(*ref), "optional": True}}}
                for name, ref in pod.environment_maps.items()
            ),
        ],
        "envFrom": [] if secret is None else [{"secretRef": {"name": secret}}],
        "ports": [{"name": name, "containerPort": port} for name, port in pod.ports.items()],
        "resources": pod.resources.to_json(),
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in mounts.items()],
        **pod.probes,
    }
    if pod.pre_stop_s:
        container["lifecycle"] = {"preStop": {"sleep": {"seconds": pod.pre_stop_s}}}
    body: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [container],
        "imagePullSecrets": [{"name": secret.name} for secret in spec.image_pull_secrets],
        "securityContext": _make_security(pod),
        "terminationGracePeriodSeconds": pod.grace_s,
        "readinessGates": [{"conditionType": gate} for gate in pod.readiness_gates],
        "affinity": pod.affinity,
        "topologySpreadConstraints": list(pod.spread),
        "volumes": [
            {"name": "tmp", "emptyDir": {"sizeLimit": TEMPORARY_SIZE}},
            *pod.volumes,
            *pod.keys.volumes,
        ],
    }
    return {"metadata": {"labels": dict(pod.labels)}, "spec": body}


def list_ports(component: str) -> dict[str, int]:
    """The ports of a service by their names."""
    ports = {"data": DATA_PORTS[component], "admin": ADMIN_PORTS[component]}
    if component in STREAM_PORTS:
        ports["streams"] = STREAM_PORTS[component]
    return ports


def probe_service(*, start_s: int, is_secured: bool = False) -> Json:
    """Probes on the admin port, which has a thread of its own: they never queue behind data.

    Ready: it can serve its role. Alive: the process answers at all, and nothing more: a restart
    helps against nothing else, and a bookie that waits for ZooKeeper must not be killed for it.

    Args:
        start_s: how long a start may take before it counts as dead.
        is_secured: whether the port is TLS. The kubelet shows no certificate, and asks for none.
    """
    probes = {
        "startupProbe": _probe_http("/healthz", period_s=2, failures=max(1, start_s // 2)),
        "livenessProbe": _probe_http("/healthz", period_s=10, failures=6),
        "readinessProbe": _probe_http("/readyz", period_s=5, failures=2),
    }
    if is_secured:
        for probe in probes.values():
            probe["httpGet"]["scheme"] = "HTTPS"
    return probes


def probe_command(ready: Tokens, alive: Tokens, *, start_s: int) -> Json:
    """The same by commands in the container, where there is no HTTP port."""
    return {
        "startupProbe": _probe_exec(alive, period_s=5, failures=max(1, start_s // 5)),
        "livenessProbe": _probe_exec(alive, period_s=20, failures=6),
        "readinessProbe": _probe_exec(ready, period_s=10, failures=2),
    }


def spread_over(key: str, labels: Mapping[str, str], *, is_strict: bool = False) -> Json:
    """Pods with these labels as evenly as can be over nodes or zones."""
    return {
        "maxSkew": 1,
        "topologyKey": key,
        "whenUnsatisfiable": "DoNotSchedule" if is_strict else "ScheduleAnyway",
        "labelSelector": {"matchLabels": dict(labels)},
    }


def spread_anyway(labels: Mapping[str, str]) -> list[Json]:
    """Over zones, then over nodes; on a cluster with one of them it changes nothing."""
    return [spread_over(NODE_ZONE_LABEL, labels), spread_over(HOST_LABEL, labels)]


def _refer(name: str, key: str) -> dict[str, str]:
    return {"name": name, "key": key}


def _make_security(pod: Pod) -> Json:
    return {**POD_SECURITY, "fsGroup": KEYS_GROUP_ID} if pod.keys.volumes else POD_SECURITY


def _probe_http(path: str, *, period_s: int, failures: int) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": "admin"}, **_timing(period_s, failures)}


def _probe_exec(command: Tokens, *, period_s: int, failures: int) -> Json:
    return {"exec": {"command": list(command)}, **_timing(period_s, failures)}


def _timing(period_s: int, failures: int) -> Json:
    return {"periodSeconds": period_s, "timeoutSeconds": 5, "failureThreshold": failures}


def name_arguments(frame: ClusterFrame, component: str) -> list[str]:
    """The `--public-name` arguments of a component's pods.

    A service answers 421 to a name that is not its own (ADR 0025). It is told the names that
    Kubernetes gives it, its Service's and its pod's, from the shortest to the whole one, and, at a
    proxy, what people call it. Addresses need no name: probes and Prometheus come by them.
    """
    service = name_component(frame.name, component)
    whole = f".{frame.namespace}.svc.{CLUSTER_DOMAIN}"
    ends = ("", f".{frame.namespace}", f".{frame.namespace}.svc", whole)
    names = [f"{service}{end}" for end in ends]
    is_proxy = component not in _NAMED_PODS
    if not is_proxy or frame.is_secured:
        pods = name_pod_service(frame.name, component)
        names += list_hosts(POD_NAME, pods, frame.namespace)
    if is_proxy:
        # For a name more of a proxy, who holds data or logs is not started anew.
        names += frame.spec.public_names
    return [token for name in names for token in ("--public-name", name)]
