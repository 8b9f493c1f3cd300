"""Clusters of every kind that a plan has to do with, by the name of what is special in each.

Used by `test_plan` and `test_statuses`. Source: docs/kubernetes/resources.md.
"""

from __future__ import annotations

from typing import Any

from tests.kubernetes.plan.world import (
    World,
    leave_disks,
    make_bookie_set,
    make_cluster,
    make_domains,
)

SPECS: dict[str, dict[str, Any]] = {
    "plain": {},
    "three zones": {"domains": make_domains(1, 3)},
    "nine zones": {"domains": make_domains(3, 3)},
    "preferred": {"domains": make_domains(1, 3), "placement": "preferred"},
    "external": {"zookeeper": {"external": {"servers": "a:2181,b:2181"}}},
    "one member": {"zookeeper": {"members": 1}},
    "five members": {"zookeeper": {"members": 5, "storage": {"size": "1Gi"}}},
    "autoscaled": {
        "writeProxies": {
            "autoscaling": {"minReplicas": 3, "maxReplicas": 9},
            "resources": {"requests": {"cpu": "0.5"}},
        }
    },
    "cold file": {"coldStore": {"url": "file:///cold", "claimName": "cold"}},
    "cold bucket": {"coldStore": {"url": "s3://bucket/x", "secretName": "keys"}},
    "secured": {"security": "on", "acceptAnybody": False, "domains": make_domains(1, 3)},
    "images": {
        "image": "localhost/duramen:test",
        "imagePullPolicy": "Always",
        "imagePullSecrets": [{"name": "pull"}],
    },
}


def make_world(case: str, replicas: int = 5, *, is_shared: bool = False) -> World:
    """The objects of people, and of older clusters the disks of bookies that share StatefulSets."""
    cluster, own = make_cluster(**SPECS[case]), make_bookie_set(replicas=replicas)
    return World(cluster, own, *(leave_disks(cluster, own) if is_shared else []))
