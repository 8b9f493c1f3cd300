"""A log in a bucket and in HDFS: archived there, released, read by a proxy, verified. Real servers.

What a folder shows in every detail (tests/process/test_cold_reads.py), the other stores show whole.
The port's own contract is in tests/contract, for HDFS as well; all of this with HDFS is played at
night. Source: docs/cold-store.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cold_servers import Missing, running_hdfs, running_s3
from tests.contract.cold_benches import HdfsColdBench, S3ColdBench
from tests.process.cluster import create_log, run, running_plain_cluster
from tests.process.cold_segments import LOG, SEGMENTS, Fixture, hasten_bookies
from tests.process.tiers import MOVE, command
from tests.requirements import leave_out

pytestmark = [
    pytest.mark.long,
    pytest.mark.process,
    pytest.mark.zookeeper,
    pytest.mark.timeout(1200),  # the first run builds one server and fetches the other
]


@pytest.fixture(params=["s3", pytest.param("hdfs", marks=pytest.mark.night)])
def store_url(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """An empty place in a server of that kind, which processes find by the environment."""
    folder = tmp_path / "server"
    folder.mkdir()
    with ExitStack() as stack:
        try:
            if request.param == "s3":
                server = stack.enter_context(running_s3(folder))
                for name, value in server.environment.items():
                    monkeypatch.setenv(name, value)
                url = S3ColdBench(server).url
            else:
                url = HdfsColdBench(stack.enter_context(running_hdfs(folder))).url
        except Missing as missing:
            leave_out(missing.need, missing.detail)
        yield url


def test_a_log_leaves_its_bookies_for_another_store(store_url: str, tmp_path: Path) -> None:
    with running_plain_cluster(
        tmp_path / "c", "--no-restart", "--cold-store", store_url
    ) as cluster:
        assert cluster.state()["cold_store"] == store_url
        hasten_bookies(cluster)
        run(create_log(cluster, "cold", MOVE))
        world = Fixture(cluster)
        world.fill()
        world.archive()
        world.release()
        assert world.read("from=head") == world.bodies
        assert world.read("from=seq:70&count=7") == world.bodies[70:77]
        assert world.cold()["loads"] >= SEGMENTS, "it came from there"

        code, report = command(cluster, "duramen_spark.main", "verify", LOG, "--runner", "threads")
        assert code == 0, report
