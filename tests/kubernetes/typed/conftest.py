"""Fixtures of this folder: an API server, fake or real, for a case that must hold on both.

The fake is in the gate; the real one is what `make test-kubernetes` builds.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kubernetes.cluster.handle import ClusterHandle
from tests.kubernetes.typed.worlds import OpenWorld, fake_world, real_world


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.kubernetes)])
def open_world(request: pytest.FixtureRequest, tmp_path: Path) -> OpenWorld:
    """Opens a world whose account has the rights that are given."""
    if request.param == "fake":
        return lambda rules: fake_world(rules, tmp_path)
    cluster: ClusterHandle = request.getfixturevalue("api_server")
    return lambda rules: real_world(cluster, rules, tmp_path)
