"""Two namespaces with one history compare as equal, and no other two do.

No Kubernetes: objects are made up after real ones. Each world has its own uids, times, log ids and
hashes; each difference below is one that an operator could be the cause of.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.kubernetes.controllers.outcomes import Item, compare, describe_objects


def condition(kind: str, world: int, **more: Any) -> Item:
    time = f"2026-11-23T14:5{world}:21Z"
    return {"type": kind, "status": "True", "reason": "AsWanted", "observedGeneration": 2,
            "lastTransitionTime": time, "message": "as this object says", **more}  # fmt: skip


def make_world(world: int) -> list[Item]:
    """A cluster, what the operator made for it, and two logs."""

    def metadata(name: str, owner: Item | None = None, **more: Any) -> Item:
        own = {"name": name, "namespace": f"t-{world}aa", "uid": f"{world}-{name}", "generation": 2,
               "resourceVersion": str(100 * world), "managedFields": [{"time": world}],
               "creationTimestamp": f"2026-11-23T14:5{world}:00Z", **more}  # fmt: skip
        if owner is not None:
            own |= {"generation": world, "annotations": {"duramen.io/manifest": f"bae{world}"}}
            own["ownerReferences"] = [{"kind": owner["kind"], "controller": True,
                                       "name": owner["metadata"]["name"],
                                       "uid": owner["metadata"]["uid"]}]  # fmt: skip
        return own

    conditions = [condition("Ready", world), condition("Available", world)]
    if world == 2:
        conditions.reverse()
    cluster = {
        "kind": "LogCluster", "metadata": metadata("main"),
        "spec": {"security": "none", "acceptAnybody": True},
        "status": {"phase": "Running", "observedGeneration": 2, "conditions": conditions,
                   "endpoints": {"read": f"http://main-readproxy.t-{world}aa.svc:7401"}},
    }  # fmt: skip
    logs = [
        {
            "kind": "Log", "metadata": metadata(f"log-{number}"), "spec": {"namespace": "shop"},
            "status": {"logId": str(world * number), "conditions": [
                condition("Ready", world, message=f"log {world * number} is as this object says"),
            ]},
        }
        for number in (1, 2)
    ]  # fmt: skip
    bookie = {"kind": "Bookie", "metadata": metadata("main-0", cluster), "spec": {},
              "status": {"node": f"r{world}-k0", "zone": "main-0"}}  # fmt: skip
    told = f'ReplicaSet "main-readproxy-84{world}b6" has successfully progressed.'
    proxy = {
        "kind": "Deployment", "metadata": metadata("main-readproxy", cluster), "spec": {},
        "status": {"readyReplicas": 2, "observedGeneration": world,
                   "conditions": [
                       condition("Progressing", world, message=told, observedGeneration=world),
                   ]},
    }  # fmt: skip
    services = [
        {"kind": "Service", "metadata": metadata(name, cluster), "spec": {"clusterIP": address}}
        for name, address in (("main-bookie", "None"), ("main-readproxy", f"10.0.0.{world}"))
    ]
    return [cluster, *logs, bookie, proxy, *services]


def describe(world: int, items: list[Item]) -> dict[str, Any]:
    ids = {str(world * number): f"log-{number}" for number in (1, 2)}
    return describe_objects(items, f"t-{world}aa", ids)


def test_worlds_of_one_history_are_alike() -> None:
    one, other = describe(1, make_world(1)), describe(2, make_world(2))
    assert list(compare(other, one)) == []
    assert one["Bookie/main-0"]["metadata"]["ownerReferences"] == [
        {"kind": "LogCluster", "controller": True, "name": "main", "uid": "LogCluster/main"}
    ]
    assert one["Log/log-2"]["status"]["logId"] == "of log-2"
    assert one["Log/log-2"]["spec"] == {"namespace": "shop"}


DIFFERENCES: dict[str, Callable[[dict[str, Item]], object]] = {
    "a condition": lambda w: w["main"]["status"]["conditions"][0].update(status="False"),
    "a reason": lambda w: w["log-1"]["status"]["conditions"][0].update(reason="Waits"),
    "a message": lambda w: w["log-1"]["status"]["conditions"][0].update(message="no"),
    "a status of before": lambda w: w["main"]["status"].update(observedGeneration=1),
    "a condition of before": lambda w: w["main"]["status"]["conditions"][1].update(
        observedGeneration=1
    ),
    "no status": lambda w: w["main"].pop("status"),
    "a time that is not told": lambda w: w["main"]["status"]["conditions"][0].pop(
        "lastTransitionTime"
    ),
    "a count": lambda w: w["main-readproxy/Deployment"]["status"].update(readyReplicas=1),
    "the id of another log": lambda w: w["log-1"]["status"].update(logId="4"),
    "the id of no log": lambda w: w["log-1"]["status"].update(logId="77"),
    "no owner": lambda w: w["main-0"]["metadata"].pop("ownerReferences"),
    "an owner that is gone": lambda w: w["main-0"]["metadata"]["ownerReferences"][0].update(
        uid="9"
    ),
    "another owner": lambda w: w["main-0"]["metadata"]["ownerReferences"][0].update(
        uid="2-log-1", name="log-1", kind="Log"
    ),
    "a uid of another": lambda w: w["main-0"]["metadata"]["ownerReferences"][0].update(
        uid="2-log-1"
    ),
    "two owners": lambda w: w["main-0"]["metadata"]["ownerReferences"].append({"uid": "2-log-1"}),
    "an owner that does not control": lambda w: w["main-0"]["metadata"]["ownerReferences"][0].pop(
        "controller"
    ),
    "a deletion": lambda w: w["log-1"]["metadata"].update(deletionTimestamp="2026-11-23T14:50:21Z"),
    "a spec written once more": lambda w: w["log-1"]["metadata"].update(generation=3),
    "no manifest": lambda w: w["main-0"]["metadata"].pop("annotations"),
    "on no node": lambda w: w["main-0"]["status"].update(node=""),
    "an address": lambda w: w["main-bookie"]["spec"].update(clusterIP="10.0.0.9"),
    "no address": lambda w: w["main-readproxy"]["spec"].update(clusterIP="None"),
    "another namespace of the cluster": lambda w: w["log-1"]["spec"].update(namespace="fair"),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_difference_is_told(name: str) -> None:
    items = copy.deepcopy(make_world(2))
    by_name = {item["metadata"]["name"]: item for item in items}
    by_name |= {f"{item['metadata']['name']}/{item['kind']}": item for item in items}
    DIFFERENCES[name](by_name)
    assert list(compare(describe(2, items), describe(1, make_world(1))))
