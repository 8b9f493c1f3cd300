"""Metadata logs on real processes: released segments leave ZooKeeper, and stay what they were.

The archive job is the real one. What may leave and what counts is in
`tests/unit/test_metadata_log.py`. Source: docs/protocol/metadata-logs.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from duramen.core.log_node import LogNode
from duramen.ids import Epoch, LogId, metadata_log_of
from duramen.wire.metadata_json import read_log
from tests.process.cluster import LocalCluster, create_log, run, running_plain_cluster
from tests.process.copies import open_store
from tests.process.hasty_sequencer import hasty, plain
from tests.process.history import History
from tests.process.tiers import (
    MOVE,
    check_whole,
    command,
    count_hot,
    fill,
    list_segments,
    want_retention,
)
from tests.process.times import HANG_S
from tests.waiting import wait_in_thread

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]

SEGMENTS = 4
JOBS = "duramen_spark.main"
ARCHIVE = (JOBS, "archive", "default/long", "--runner", "threads", "--recheck-after", "0s")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three bookies and two sequencers, for which no cold copy is too fresh."""
    folder = tmp_path_factory.mktemp("metadata") / "c"
    with running_plain_cluster(folder, "--no-restart", "--sequencers", "2") as cluster:
        cluster.start_anew(*cluster.ids("sequencer"), wrap=hasty)
        yield cluster


async def read_node(cluster: LocalCluster, log_id: LogId) -> LogNode | None:
    async with open_store(cluster) as (store, paths):
        found = await store.get(paths.log(log_id))
        return None if found is None else read_log(found.data)


async def list_nodes(cluster: LocalCluster, log_id: LogId) -> list[int]:
    """Epochs that have a node in ZooKeeper."""
    async with open_store(cluster) as (store, paths):
        return sorted(int(name) for name in await store.children(paths.segments(log_id)) or ())


async def remove_node(cluster: LocalCluster, log_id: LogId, epoch: Epoch) -> None:
    async with open_store(cluster) as (store, paths):
        found = await store.get(paths.segment(log_id, epoch))
        assert found is not None
        await store.delete(paths.segment(log_id, epoch), version=found.version)


async def put_node(
    cluster: LocalCluster, log_id: LogId, epoch: Epoch, node: dict[str, Any]
) -> None:
    async with open_store(cluster) as (store, paths):
        await store.create(paths.segment(log_id, epoch), json.dumps(node).encode())


def keeping_of(cluster: LocalCluster, node_id: str) -> dict[str, Any]:
    url = cluster.process(node_id)["admin_url"]
    found: dict[str, Any] = httpx.get(f"{url}/v1/statistics", timeout=30).json()["metadata_logs"]
    return found


def wait_moved(cluster: LocalCluster, log_id: LogId, through: int) -> None:
    def has_moved() -> bool:
        want_retention(cluster)
        log = run(read_node(cluster, log_id))
        return log is not None and log.metadata.through == through

    wait_in_thread(has_moved, HANG_S, f"e{through} to move")


def check_history(cluster: LocalCluster, newest: int, config_version: int) -> None:
    """Each epoch is told with its configuration, and ZooKeeper holds what it should."""
    code, told = command(cluster, "duramen.cli.main", "log", "epochs", "default/long")
    assert code == 0
    places = [row["metadata"] for row in told["epochs"]]
    assert places == ["metadata_log"] * (newest - 1) + ["zookeeper"]
    versions = {row["config_version"] for row in told["epochs"]}
    assert versions <= {config_version, None} and str(config_version) in told["configs"]
    assert told["configs"][str(config_version)]["tiering"]["policy"] == "move"
    code, found = command(cluster, "duramen.cli.main", "log", "rebuild", "default/long")
    assert (code, found["ok"]) == (0, True), found
    assert [row["epoch"] for row in found["epochs"]] == list(range(1, newest + 1))


def test_released_segments_leave_zookeeper_and_are_read_as_before(cluster: LocalCluster) -> None:
    log_id = LogId(int(run(create_log(cluster, "long", MOVE))))
    history = History("long")
    for _ in range(SEGMENTS):
        fill(cluster, history, 5, rolls=True)
    fill(cluster, history, 5, rolls=False)
    before = list_segments(cluster, "long")
    newest = before[-1]["epoch"]  # one more than were rolled, if the log changed its owner
    code, report = command(cluster, *ARCHIVE)
    assert (code, report["rechecked"]) == (0, newest - 1), report
    wait_moved(cluster, log_id, newest - 1)

    assert run(list_nodes(cluster, log_id)) == [newest]
    log = run(read_node(cluster, log_id))
    assert log is not None and log.first_hot_epoch == newest
    metadata_log = run(read_node(cluster, metadata_log_of(log_id)))
    assert metadata_log is not None and not metadata_log.unclosed_epochs, "each pass closes it"
    epochs = [row["epoch"] for row in list_segments(cluster, "long")]
    assert epochs == [row["epoch"] for row in before]
    assert count_hot(cluster, "long") == 1
    check_whole(cluster, history)

    check_history(cluster, newest, log.config_version)
    for node_id in cluster.ids("sequencer"):
        assert not keeping_of(cluster, node_id)["failed"]


def test_a_takeover_reads_none_of_what_has_moved(cluster: LocalCluster) -> None:
    """After the test before: both sequencers die, and the log goes on before any retention."""
    cluster.start_anew(*cluster.ids("sequencer"), wrap=plain)
    fill(cluster, History("long"), 5, rolls=False)
    records = [keeping_of(cluster, node_id)["records"] for node_id in cluster.ids("sequencer")]
    assert [one["entries_read"] for one in records] == [0, 0]


def test_a_lost_node_is_found_and_can_be_put_back(cluster: LocalCluster) -> None:
    log_id = LogId(int(run(create_log(cluster, "torn", {}))))
    history = History("torn")
    for _ in range(2):
        fill(cluster, history, 3, rolls=True)

    def is_told() -> bool:
        want_retention(cluster)
        code, told = command(cluster, "duramen.cli.main", "log", "rebuild", "default/torn")
        rows = told.get("epochs", ())
        return code == 0 and [row["epoch"] for row in rows if row["recorded"]] == [1, 2, 3]

    wait_in_thread(is_told, HANG_S, "the history of three epochs")
    run(remove_node(cluster, log_id, Epoch(1)))
    code, found = command(cluster, "duramen.cli.main", "log", "rebuild", "default/torn")
    assert (code, found["ok"]) == (1, False)
    lost = found["epochs"][0]
    assert (lost["finding"], lost["node"]["state"]) == ("missing_node", "CLOSED")
    run(put_node(cluster, log_id, Epoch(1), lost["node"]))
    code, found = command(cluster, "duramen.cli.main", "log", "rebuild", "--log-id", str(log_id))
    assert (code, found["ok"]) == (0, True), found
    check_whole(cluster, history)
