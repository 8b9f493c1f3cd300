"""A cluster whose certificates cert-manager issues, for tests of the plan and of what is told.

Used by `test_cert_manager` and `issuing/test_requests`.
Source: docs/kubernetes/security.md "cert-manager".
"""

from __future__ import annotations

from typing import Any, Final

from tests.kubernetes.plan.secured_world import SECURED
from tests.kubernetes.plan.world import World, make_bookie_set, make_cluster

REQUESTED: Final[dict[str, Any]] = {
    **SECURED,
    "tls": {
        "issuer": "certManager",
        "issuerRef": {"name": "duramen-ca", "kind": "Issuer"},
        "trust": {"name": "main-trust"},
    },
}


def make_requested(replicas: int = 2, **spec: Any) -> World:
    """A cluster at rest."""
    world = World(make_cluster(**REQUESTED, **spec), make_bookie_set(replicas=replicas))
    world.converge()
    return world


def find_uuid(world: World) -> str:
    """The cluster's, as its record has it."""
    return str(world.find("ConfigMap", "main-foundation")["data"]["uuid"])
