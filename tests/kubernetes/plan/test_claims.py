"""Claim templates: sent as they exist, since the API server refuses any other.

A StatefulSet of another version has other labels on its claims, a restored one other annotations,
modes and selectors. All of these stay, or nothing of the StatefulSet could be changed any more.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from duramen_operator.plan.steps import Apply
from tests.kubernetes.plan.cases import make_world
from tests.kubernetes.plan.world import World

STRANGE: dict[str, Any] = {
    "apiVersion": "v1", "kind": "PersistentVolumeClaim", "status": {"phase": "Pending"},
    "metadata": {
        "creationTimestamp": None, "labels": {"of": "an older version"},
        "annotations": {"backup": "nightly"}, "finalizers": ["keep/it"],
    },
    "spec": {
        "accessModes": ["ReadWriteOncePod"], "volumeMode": "Block", "selector": {},
        "storageClassName": "", "volumeAttributesClassName": "gold",
        "resources": {"requests": {"storage": "7Gi"}, "limits": {"storage": "9Gi"}},
    },
}  # fmt: skip
FILLED_IN = {"apiVersion", "kind", "status"}


def make_strange(case: str, name: str) -> tuple[World, list[dict[str, Any]]]:
    """A cluster at rest of which one StatefulSet has templates of another hand."""
    world = make_world(case, replicas=3, is_shared=name == "bookies")
    world.converge()
    templates = world.find("StatefulSet", name)["spec"]["volumeClaimTemplates"]
    for template in templates:
        metadata = {**STRANGE["metadata"], "name": template["metadata"]["name"]}
        template.clear()
        template.update(copy.deepcopy({**STRANGE, "metadata": metadata}))
    kept = [
        {
            "metadata": {k: v for k, v in one["metadata"].items() if k != "creationTimestamp"},
            "spec": one["spec"],
        }
        for one in copy.deepcopy(templates)
    ]
    return world, kept


@pytest.mark.parametrize("name", ["main-zookeeper", "bookies"])
def test_templates_are_sent_as_they_exist(name: str) -> None:
    world, kept = make_strange("plain", name)
    assert not [step for step in world.plan().steps if isinstance(step, Apply)]
    world.find("StatefulSet", name)["spec"]["replicas"] = 1
    (step,) = [step for step in world.plan().steps if isinstance(step, Apply)]
    assert step.manifest["spec"]["volumeClaimTemplates"] == kept
    world.change("LogCluster", "main", image="localhost/duramen:next")
    steps = [step for step in world.plan().steps if isinstance(step, Apply)]
    (step,) = [step for step in steps if step.about.name == name]
    assert step.manifest["spec"]["volumeClaimTemplates"] == kept


@pytest.mark.parametrize(
    ("case", "name"), [("secured", "bookies-r0-r0-k0-0"), ("plain", "bookies-0")]
)
def test_a_bookie_that_is_a_statefulset_by_itself_keeps_them_too(case: str, name: str) -> None:
    world, kept = make_strange(case, name)
    assert not [step for step in world.plan().steps if isinstance(step, Apply)]
    world.find("StatefulSet", name)["spec"]["replicas"] = 0
    (step,) = [step for step in world.plan().steps if isinstance(step, Apply)]
    assert step.manifest["spec"]["volumeClaimTemplates"] == kept


def test_what_the_api_server_fills_in_is_no_reason_to_apply_again() -> None:
    """The digest of a StatefulSet that exists is that with which it was made."""
    world = make_world("plain", replicas=3)
    world.converge()
    for name in ("main-zookeeper", "bookies-0"):
        for template in world.find("StatefulSet", name)["spec"]["volumeClaimTemplates"]:
            template |= {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "status": {}}
            template["metadata"]["creationTimestamp"] = None
            template["spec"]["volumeMode"] = "Filesystem"
    assert world.plan().steps == ()


def test_another_size_is_still_told() -> None:
    world, _ = make_strange("plain", "bookies-0")
    world.settle()
    told = world.condition("BookieSet", "bookies", "Progressing")
    assert told["reason"] == "NotYetSupported"
    assert "journal.size stays 7Gi" in told["message"]


def test_those_that_are_made_anew_say_what_the_spec_says() -> None:
    world = make_world("secured", replicas=3)
    world.change("BookieSet", "bookies", journal={"size": "3Gi", "storageClassName": "fast"})
    world.converge()
    spec = world.find("StatefulSet", "bookies-r0-r0-k0-0")["spec"]
    first, second = spec["volumeClaimTemplates"]
    assert first["spec"] == {
        "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
        "resources": {"requests": {"storage": "3Gi"}},
    }  # fmt: skip
    assert "storageClassName" not in second["spec"]
    (data,) = world.find("StatefulSet", "main-zookeeper")["spec"]["volumeClaimTemplates"]
    uuid = world.find("ConfigMap", "main-foundation")["data"]["uuid"]
    assert data["metadata"]["labels"]["duramen.io/cluster-uuid"] == uuid
    assert not FILLED_IN & set(data)
