"""A world without Kubernetes for tests of the plan: objects, and what is done to them.

It does what a plan relies on: server-side apply by one manager, uids, resource versions,
preconditions. `run_controllers` makes pods and claims and lets everything be ready, as a cluster of
real nodes would. Used by the tests of this folder.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

from duramen_operator.names import (
    API_VERSION,
    BOOKIE,
    BOOKIE_SET_LABEL,
    CAUGHT_UP_GATE,
    NOT_STOPPED_CONDITION,
    REGION_LABEL,
    ZONE_LABEL,
    make_labels,
    name_bookies,
)
from duramen_operator.observe.listing import NAMED, split_made
from duramen_operator.plan.cluster.spread import add_evenly
from duramen_operator.plan.observed import (
    Json,
    KubeObject,
    Observed,
    Problem,
    Ref,
    observe_objects,
)
from duramen_operator.plan.plan import make_plan
from duramen_operator.plan.steps import (
    Apply,
    Call,
    Delete,
    Event,
    Patch,
    Plan,
    Restart,
    Status,
    Step,
    Stop,
)
from duramen_operator.resources.conditions import first_conditions

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
MADE = "2026-01-02T03:00:00Z"
NAMESPACE = "here"
PASSES_MAX = 6


def make_cluster(name: str = "main", **spec: Any) -> dict[str, Any]:
    """A LogCluster as people write it."""
    return _make_own("LogCluster", name, {"security": "none", "acceptAnybody": True, **spec})


def make_bookie_set(name: str = "bookies", cluster: str = "main", **spec: Any) -> dict[str, Any]:
    """A BookieSet as people write it."""
    return _make_own("BookieSet", name, {"clusterName": cluster, **spec})


def make_domains(regions: int, zones: int) -> list[dict[str, str]]:
    """`domains` of a LogCluster."""
    places = itertools.product(range(regions), range(zones))
    return [{"region": f"r{region}", "zone": f"r{region}-k{zone}"} for region, zone in places]


def leave_disks(cluster: dict[str, Any], bookie_set: dict[str, Any]) -> list[dict[str, Any]]:
    """The claims of bookies as operators made them that had a StatefulSet for each domain."""
    places = [(one["region"], one["zone"]) for one in cluster["spec"].get("domains", ())]
    places = places or [("", "")]
    set_name, owner = bookie_set["metadata"]["name"], cluster["metadata"]["name"]
    counts = add_evenly([0] * len(places), bookie_set["spec"].get("replicas", 3))
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": f"{claim}-{name_bookies(set_name, region, zone)}-{number}",
                "labels": {
                    **make_labels(owner, BOOKIE),
                    BOOKIE_SET_LABEL: set_name,
                    REGION_LABEL: region,
                    ZONE_LABEL: zone,
                },
            },
            "spec": {},
        }
        for (region, zone), count in zip(places, counts, strict=True)
        for number in range(count)
        for claim in ("journal", "ledgers")
    ]


class World:
    """Objects of one namespace."""

    def __init__(self, *objects: dict[str, Any]) -> None:
        self.objects: dict[Ref, dict[str, Any]] = {}
        self.events: list[Event] = []
        self.calls: list[Call] = []
        self.restarts: list[Restart] = []
        self._versions = itertools.count(1)
        for item in objects:
            self.add(item)

    def add(self, item: dict[str, Any]) -> Ref:
        """Somebody makes an object."""
        item = copy.deepcopy(item)
        version = next(self._versions)
        named = {"uid": f"uid-{version}", "resourceVersion": str(version), "generation": 1}
        item["metadata"] = {**named, "creationTimestamp": MADE, **item["metadata"]}
        ref = Ref(item["apiVersion"], item["kind"], item["metadata"]["name"])
        self.objects[ref] = item
        return ref

    def observe(self, **others: Any) -> Observed:
        """What the operator would see."""
        found = orjson.loads(orjson.dumps(list(self.objects.values())))
        objects = [one for one in found if one["kind"] not in NAMED]
        # As they are listed: of other clusters, and of nobody, the names alone are known.
        ours, rest = split_made((one for one in found if one["kind"] in NAMED), "main")
        taken = frozenset(KubeObject(one).ref for one in rest)
        return observe_objects(NAMESPACE, "main", [*objects, *ours], taken=taken, **others)

    def plan(self, now: datetime = NOW, **others: Any) -> Plan:
        """What it would do."""
        return make_plan(self.observe(**others), now)

    def do(self, steps: Iterable[Step]) -> dict[Ref, Problem]:
        """Do steps; a precondition that does not hold raises, as nothing else changes the world."""
        for step in steps:
            match step:
                case Apply():
                    self._apply(step)
                case Delete():
                    metadata = self.objects[step.about]["metadata"]
                    assert metadata["uid"] == step.uid
                    assert metadata["resourceVersion"] == step.resource_version
                    del self.objects[step.about]
                case Status():
                    item = self.objects[step.about]
                    assert item["metadata"]["uid"] == step.uid
                    item["status"] = _merge_status(item, _plain(step.status))
                    item["metadata"]["resourceVersion"] = str(next(self._versions))
                case Event():
                    self.events.append(step)
                case Call():
                    self.calls.append(step)
                case Patch():
                    self._patch(step)
                case Stop():
                    self._apply(Apply(step.manifest, step.uid))
                case Restart():
                    metadata = self.objects[step.about]["metadata"]
                    assert metadata["uid"] == step.uid
                    assert metadata["resourceVersion"] == step.resource_version
                    self.restarts.append(step)
                    del self.objects[step.about]
        return {}

    def settle(self, now: datetime = NOW) -> int:
        """Plan and do until there is nothing to be done; gives how many passes had steps."""
        for count in range(PASSES_MAX):
            plan = self.plan(now)
            if not plan.steps:
                return count
            self.do(plan.steps)
        raise AssertionError(f"never empty: {self.plan(now).steps}")

    def converge(self) -> int:
        """Operator and controllers, until both have nothing to do; gives the passes with steps."""
        total = 0
        for _ in range(PASSES_MAX):
            passes = self.settle()
            total += passes
            if not self.run_controllers() and not passes:
                return total
        raise AssertionError("the operator and the controllers never come to rest")

    def run_controllers(self) -> bool:
        """Pods and claims of StatefulSets; everything ready, jobs done. Gives whether anything
        changed."""
        before = orjson.dumps(list(self.objects.values()), option=orjson.OPT_SORT_KEYS)
        for item in list(self.objects.values()):
            spec = item.get("spec", {})
            if item["kind"] == "StatefulSet":
                template = orjson.dumps(spec["template"], option=orjson.OPT_SORT_KEYS)
                revision = hashlib.sha256(template).hexdigest()[:10]
                for index in range(spec["replicas"]):
                    self._make_pod(item, index, revision)
                ready = {"readyReplicas": spec["replicas"], "updateRevision": revision}
                seen = {"observedGeneration": item["metadata"]["generation"]}
                item["status"] = {"replicas": spec["replicas"], **ready, **seen}
            elif item["kind"] == "Deployment":
                item["status"] = {"replicas": spec["replicas"], "readyReplicas": spec["replicas"]}
            elif item["kind"] == "Job":
                item["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
        for item in self.objects.values():
            if item["kind"] == "PodDisruptionBudget":
                seen = {"observedGeneration": item["metadata"]["generation"]}
                item["status"] = {**self.judge_budget(item["spec"]), **seen}
        after = orjson.dumps(list(self.objects.values()), option=orjson.OPT_SORT_KEYS)
        return before != after

    def judge_budget(self, spec: Json) -> Json:
        """What a budget's controller says of it: how many pods it lets go."""
        wanted = spec["selector"]["matchLabels"].items()
        pods = [
            item
            for item in self.objects.values()
            if item["kind"] == "Pod" and wanted <= item["metadata"]["labels"].items()
        ]
        pods = [item for item in pods if "deletionTimestamp" not in item["metadata"]]
        ready = sum({"type": "Ready", "status": "True"} in p["status"]["conditions"] for p in pods)
        most = spec.get("maxUnavailable", 0)
        desired = spec.get("minAvailable", len(pods) - (most if type(most) is int else 1))
        return {
            "disruptionsAllowed": max(0, ready - int(desired)),
            "currentHealthy": ready,
            "desiredHealthy": int(desired),
            "expectedPods": len(pods),
        }

    def have_pod_serve(self, name: str, *, is_serving: bool = True) -> None:
        """What a kubelet says of a pod whose containers are ready, or not; gates stay."""
        pod = self.find("Pod", name)
        found = [{"type": "ContainersReady", "status": str(is_serving)}]
        told = pod.get("status", {}).get("conditions", [])
        gates = [one for one in told if one["type"] not in _KUBELETS]
        counts = [s["restartCount"] for s in pod.get("status", {}).get("containerStatuses", ())]
        runs = {"restartCount": sum(counts), "state": {"running": {}}}
        pod["status"] = {
            "phase": "Running", "conditions": [*found, *gates], "containerStatuses": [runs],
        }  # fmt: skip
        _judge_readiness(pod)

    def find(self, kind: str, name: str) -> dict[str, Any]:
        """One object; it must be there."""
        (found,) = (o for ref, o in self.objects.items() if (ref.kind, ref.name) == (kind, name))
        return found

    def names(self, kind: str) -> list[str]:
        """Names of a kind's objects."""
        return sorted(ref.name for ref in self.objects if ref.kind == kind)

    def change(self, kind: str, name: str, **spec: Any) -> None:
        """People change a spec."""
        item = self.find(kind, name)
        item["spec"] = {**item["spec"], **spec}
        item["metadata"]["generation"] += 1

    def condition(self, kind: str, name: str, condition: str) -> dict[str, Any]:
        """A condition of an object."""
        conditions = self.find(kind, name)["status"]["conditions"]
        (found,) = (one for one in conditions if one["type"] == condition)
        return dict(found)

    def manifests(self) -> dict[Ref, Any]:
        """What was made, without what differs between two worlds: uids, versions, statuses."""
        return {
            ref: (item.get("spec"), item["metadata"].get("labels"))
            for ref, item in self.objects.items()
            if ref.kind not in {"Pod", "PersistentVolumeClaim"}
        }

    def _apply(self, step: Apply) -> None:
        found = self.objects.get(step.about)
        if found is None:
            assert step.uid is None, f"{step.about} is gone, and may not be made again"
            made = _plain(step.manifest)
            if made["apiVersion"] == API_VERSION:
                made["status"] = {"conditions": first_conditions(made["kind"])}
            self.add(made)
            return
        assert step.uid in {None, found["metadata"]["uid"]}
        _check_fixed(found, step.manifest)
        said = _plain(step.manifest)
        metadata = {**found["metadata"], **said.pop("metadata")}
        changed = {**found, **said, "metadata": metadata}
        if changed != found:
            metadata["resourceVersion"] = str(next(self._versions))
            metadata["generation"] += changed.get("spec") != found.get("spec")
            self.objects[step.about] = changed

    def _patch(self, step: Patch) -> None:
        found = self.objects[step.about]
        assert step.uid == found["metadata"]["uid"]
        assert step.resource_version == found["metadata"]["resourceVersion"]
        self.objects[step.about] = changed = _merge(found, step.patch)
        changed["metadata"]["resourceVersion"] = str(next(self._versions))
        changed["metadata"]["generation"] += changed.get("spec") != found.get("spec")

    def _make_pod(self, owner: Mapping[str, Any], index: int, revision: str) -> None:
        name = f"{owner['metadata']['name']}-{index}"
        template = owner["spec"]["template"]
        for claim in owner["spec"].get("volumeClaimTemplates", ()):
            claim_name = f"{claim['metadata']['name']}-{name}"
            metadata = {"name": claim_name, "labels": claim["metadata"]["labels"]}
            made = self._add_once("PersistentVolumeClaim", metadata, claim["spec"])
            fate = owner["spec"].get("persistentVolumeClaimRetentionPolicy", {})
            owners = (
                [{"uid": owner["metadata"]["uid"]}] if fate.get("whenDeleted") == "Delete" else []
            )
            made["metadata"]["ownerReferences"] = owners
        labels = {**template["metadata"]["labels"], "controller-revision-hash": revision}
        pod = self._add_once("Pod", {"name": name, "labels": labels}, _plain(template["spec"]))
        pod["spec"].setdefault("nodeName", f"node-of-{name}")
        self.have_pod_serve(pod["metadata"]["name"])

    def _add_once(self, kind: str, metadata: Json, spec: Any) -> dict[str, Any]:
        ref = Ref("v1", kind, metadata["name"])
        if ref not in self.objects:
            self.add({"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec})
        return self.objects[ref]


def _make_own(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    status = {"conditions": first_conditions(kind)}
    head = {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}}
    return {**head, "spec": spec, "status": status}


def _check_fixed(found: Mapping[str, Any], wanted: Json) -> None:
    """What the API server refuses to change."""
    if found["kind"] == "StatefulSet":
        for key in ("volumeClaimTemplates", "selector", "serviceName", "podManagementPolicy"):
            assert found["spec"].get(key) == _plain(wanted)["spec"].get(key), key


def _merge(value: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7396)."""
    if not isinstance(patch, Mapping):
        return _plain(patch)
    merged = dict(value) if isinstance(value, Mapping) else {}
    for key, item in patch.items():
        if item is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge(merged.get(key), item)
    return merged


_KUBELETS = frozenset({"ContainersReady", "Ready"})
_OPERATORS = frozenset({CAUGHT_UP_GATE, NOT_STOPPED_CONDITION})


def _merge_status(item: Mapping[str, Any], status: dict[str, Any]) -> dict[str, Any]:
    """Server-side apply: of a pod's conditions the operator owns its own, and those that it says no
    more are gone."""
    if item["kind"] != "Pod":
        return status
    told = {one["type"]: one for one in status["conditions"]}
    assert told.keys() <= _OPERATORS
    kept = [one for one in item["status"]["conditions"] if one["type"] not in _OPERATORS]
    pod = {**item, "status": {**item["status"], "conditions": [*kept, *told.values()]}}
    _judge_readiness(pod)
    return dict(pod["status"])


def _judge_readiness(pod: dict[str, Any]) -> None:
    """Ready: the containers and all gates are."""
    kept = [one for one in pod["status"]["conditions"] if one["type"] != "Ready"]
    said = {one["type"]: one["status"] for one in kept}
    gates = [gate["conditionType"] for gate in pod["spec"].get("readinessGates", ())]
    ready = {"type": "Ready", "status": "True"}
    if said["ContainersReady"] != "True":
        ready = {"type": "Ready", "status": "False", "reason": "ContainersNotReady"}
    elif any(said.get(gate) != "True" for gate in gates):
        ready = {"type": "Ready", "status": "False", "reason": "ReadinessGatesNotReady"}
    pod["status"]["conditions"] = [*kept, ready]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
