"""A cluster with `security: on` for tests of the plan.

Used by `test_identities` and `test_secured_pods`. Source: docs/kubernetes/security.md.
"""

from __future__ import annotations

from typing import Any

from tests.kubernetes.plan.world import World, make_bookie_set, make_cluster

SECURED: dict[str, Any] = {"security": "on", "acceptAnybody": False}
EXTERNAL = {"external": {"servers": "a:2181,b:2181"}}
SCALED = {
    "autoscaling": {"minReplicas": 2, "maxReplicas": 7},
    "resources": {"requests": {"cpu": "0.5"}},
}


def make_secured(replicas: int = 3, **spec: Any) -> World:
    """A secured cluster at rest."""
    world = World(make_cluster(**SECURED, **spec), make_bookie_set(replicas=replicas))
    world.converge()
    return world
