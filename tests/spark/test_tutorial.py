"""docs/tutorial-archive.md does what it says, block by block, on a real cluster with real Spark.

The retention of the page's cluster would take a minute or two; here somebody asks for it meanwhile.
How blocks are read is the matter of `tests.process.pages`.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from unittest import mock

import pytest

from tests.process.cluster import LocalCluster, running_cluster
from tests.process.pages import run_page
from tests.process.tiers import want_retention
from tests.process.times import HANG_S

pytestmark = [pytest.mark.process, pytest.mark.zookeeper, pytest.mark.timeout(3 * HANG_S)]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial-archive.md"


def test_the_tutorial_does_what_it_says(tmp_path: Path, spark_env: dict[str, str]) -> None:
    with running_cluster(tmp_path / "data") as cluster:
        is_over = threading.Event()
        asking = threading.Thread(target=_ask_for_retention, args=(cluster, is_over))
        asking.start()
        try:
            state = cluster.state()
            addresses = {
                "localhost:7301": state["write_url"].removeprefix("http://"),
                "localhost:7401": state["read_url"].removeprefix("http://"),
            }
            with mock.patch.dict(os.environ, spark_env):
                text = PAGE.read_text(encoding="utf-8")
                run_page(text, tmp_path / "page", cluster.folder, addresses)
        finally:
            is_over.set()
            asking.join()


def _ask_for_retention(cluster: LocalCluster, is_over: threading.Event) -> None:
    while not is_over.wait(1):
        want_retention(cluster)
