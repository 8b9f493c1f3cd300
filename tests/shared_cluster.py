"""One local cluster for all tests of a worker that kill nothing and ask for no flag.

A start costs seconds, and most tests need a log of their own and not a cluster: each creates logs
with names that no other file uses. Who kills, freezes, fills disks or changes what belongs to the
whole cluster starts one of its own with `running_cluster`. Loaded by `tests/conftest.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from tests.process.cluster import LocalCluster, running_cluster

FIXTURE: Final = "shared_cluster"


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three bookies and one of each other process; the same at the end as at the start."""
    with running_cluster(tmp_path_factory.mktemp("shared") / "c") as cluster:
        before = [process["pid"] for process in cluster.state()["processes"]]
        yield cluster
        after = [process["pid"] for process in cluster.state()["processes"]]
        assert after == before, "a process of the shared cluster was killed, or died"
