"""Clusters with `security: none` get the very manifests that they got before.

Older ones, whose bookies share a StatefulSet in each domain, keep theirs; new ones have their own.

A digest of each manifest stands in `unsecured.json`, by case and object: one that changes starts
pods of running clusters anew. Where that is meant, `DURAMEN_WRITE_GOLDEN=1` writes the file, and
CHANGELOG.md says what an upgrade does. Source: docs/kubernetes/security.md "Which clusters".
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.plan.cases import SPECS, make_world
from tests.kubernetes.plan.world import World

GOLDEN = Path(__file__).with_name("unsecured.json")
UNSECURED = [case for case, spec in SPECS.items() if spec.get("security", "none") == "none"]
NEW = ", new"
CASES = [*UNSECURED, *(f"{case}{NEW}" for case in ("plain", "three zones"))]
_DIGEST_LENGTH = 12
_OF_THE_SERVER = {"uid", "resourceVersion", "generation", "creationTimestamp"}
_MADE_BY_CONTROLLERS = {"Pod", "PersistentVolumeClaim"}


def _digest(world: World) -> dict[str, str]:
    """Of what the operator said, annotations and owners with it."""
    found = {}
    for ref, item in world.objects.items():
        if ref.kind in _MADE_BY_CONTROLLERS or "ownerReferences" not in item["metadata"]:
            continue
        metadata = {k: v for k, v in item["metadata"].items() if k not in _OF_THE_SERVER}
        said: dict[str, Any] = {**item, "metadata": metadata, "status": None}
        text = json.dumps(said, sort_keys=True).encode()
        found[f"{ref.kind}/{ref.name}"] = hashlib.sha256(text).hexdigest()[:_DIGEST_LENGTH]
    return found


@pytest.mark.parametrize("case", CASES)
def test_manifests_are_those_of_before(case: str) -> None:
    world = make_world(case.removesuffix(NEW), is_shared=not case.endswith(NEW))
    world.converge()
    present = _digest(world)
    assert len(present) > 10, "the digests of nothing would agree with anything"
    digests: dict[str, dict[str, str]] = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if os.environ.get("DURAMEN_WRITE_GOLDEN") == "1":
        digests[case] = present
        GOLDEN.write_text(json.dumps(digests, indent=1, sort_keys=True) + "\n")
    assert digests.get(case) == present


def test_no_digest_is_of_a_case_that_is_no_more() -> None:
    assert set(json.loads(GOLDEN.read_text())) == set(CASES)
