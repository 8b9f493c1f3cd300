"""A cluster of which a plan makes servers, and the arguments that they are started with.

Used by `test_servers` and `test_public_names`. Source: docs/kubernetes/resources.md.
"""

from __future__ import annotations

from typing import Any

from tests.kubernetes.plan.world import World, make_bookie_set, make_cluster


def make_world(**spec: Any) -> World:
    world = World(make_cluster(**spec), make_bookie_set())
    world.converge()
    return world


def read_arguments(world: World, kind: str, name: str) -> list[str]:
    spec = world.find(kind, name)["spec"]["template"]["spec"]
    return list(spec["containers"][0]["args"])
