"""A flexible log on real processes: verified, archived, released, restored, and still the log.

`duramen verify`, the archive job and a restore are the real ones, on six bookies of six racks. What
is compared with what is in `tests/unit/test_flexible_check.py` and
`tests/component/test_archive_digests.py`. Source: docs/protocol/flexible.md "Verifying copies",
docs/protocol/archive.md "Flexible segments", A1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from duramen.ids import Epoch, LogId, ledger_of
from tests.process.cluster import LocalCluster, create_log, run, running_plain_cluster
from tests.process.hasty_bookie import hasty
from tests.process.history import History, read_log
from tests.process.tiers import (
    MOVE,
    check_whole,
    command,
    count_entries,
    count_hot,
    fill,
    held_ledgers,
    list_segments,
)
from tests.process.times import HANG_S
from tests.waiting import wait_in_thread

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]

FLEXIBLE = {"copysets": "flexible", "replication": {"node": 3, "rack": 3}}
JOBS = "duramen_spark.main"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Six bookies that drop at once what they may."""
    folder = tmp_path_factory.mktemp("flexible") / "c"
    with running_plain_cluster(folder, "--no-restart", "--bookies", "6") as cluster:
        cluster.start_anew(*cluster.ids("bookie"), wrap=hasty)
        yield cluster


def verify(cluster: LocalCluster, log: str) -> tuple[int, dict[str, Any]]:
    return command(cluster, "duramen.cli.main", "verify", f"default/{log}")


def verify_whole(cluster: LocalCluster, log: str) -> dict[str, Any]:
    """Every entry has its copies, or more: those of a second wave, where a bookie was late."""
    code, found = verify(cluster, log)
    assert (code, found["findings"]) == (0, []), found
    assert found["good_copies"] == found["copies"] >= 3 * found["entries"], found
    for segment in found["segments"]:
        assert segment["property"] == {"node": 3, "rack": 3, "region": 1}
        assert len(segment["nodes"]) == 6 and segment["silent"] == []
    return found


def test_a_flexible_log_goes_to_the_archive_and_comes_back(cluster: LocalCluster) -> None:
    log_id = LogId(int(run(create_log(cluster, "wide", {**FLEXIBLE, **MOVE}))))
    history = History("wide")
    for _ in range(3):
        fill(cluster, history, 5, rolls=True)
    fill(cluster, history, 5, rolls=False)
    found = verify_whole(cluster, "wide")
    assert [row["state"] for row in found["segments"]] == ["CLOSED"] * 3 + ["OPEN"]
    assert found["entries"] >= 20

    archive = (JOBS, "archive", "default/wide", "--runner", "threads", "--recheck-after")
    code, report = command(cluster, *archive, "1h")
    assert (code, report["segments"]) == (0, {"archived": 3}), report
    code, report = command(cluster, JOBS, "verify", "default/wide", "--against-bookies")
    assert (code, report["copies"]) == (0, {"whole": 3}), report
    code, report = command(cluster, *archive, "0s")
    assert (code, report["rechecked"]) == (0, 3), report
    wait_in_thread(lambda: count_hot(cluster, "wide") == 1, HANG_S, "the release of three segments")
    *_, hot = list_segments(cluster, "wide")
    kept = {str(ledger_of(log_id, Epoch(hot["epoch"])))}
    wait_in_thread(
        lambda: held_ledgers(cluster, log_id) == kept, HANG_S, "bookies to drop the others"
    )
    check_whole(cluster, history)
    assert verify_whole(cluster, "wide")["released_segments"] == 3

    # Without --config it gets the log's own: flexible.
    for job in ("compact", "default/wide"), ("restore", "default/wide", "--as", "default/again"):
        code, report = command(cluster, JOBS, *job)
        assert code == 0, report
    assert report["records"] == 15 * history.records_per_append
    assert verify_whole(cluster, "again")["entries"] == report["entries"]
    url = cluster.state()["read_url"]
    assert run(read_log(url, "again")) == run(read_log(url, "wide"))[: report["records"]]


def find_missed(held: dict[str, int], entry_count: int) -> str | None:
    """A bookie without which some entries have too few copies, and others enough.

    Waves leave out who was slow just now: one bookie may have no entry at all, or only copies of a
    second wave, which nobody misses.
    """
    spare_count = sum(held.values()) - 3 * entry_count
    return next((one for one, count in held.items() if spare_count < count < entry_count), None)


def test_a_bookie_that_is_gone_leaves_entries_short(cluster: LocalCluster) -> None:
    log_id = LogId(int(run(create_log(cluster, "torn", {**FLEXIBLE, "sticky": False}))))
    history = History("torn")
    gone, entry_count = None, 0
    for _ in range(10):
        fill(cluster, history, 20, rolls=True)
        entry_count = verify_whole(cluster, "torn")["entries"]
        gone = find_missed(count_entries(cluster, log_id), entry_count)
        if gone is not None:
            break
    assert gone is not None, "every bookie is slow, or holds everything"
    for node_id in cluster.ids("sequencer"):
        cluster.kill(node_id)  # else repair may be faster than the look
    cluster.kill(gone)
    code, found = verify(cluster, "torn")
    assert code == 1, found
    faults = {finding["fault"] for finding in found["findings"]}
    assert faults == {"short", "unreachable"}, found
    short = sum(one["count"] for one in found["findings"] if one["fault"] == "short")
    assert 0 < short < entry_count, "each entry has a copyset of its own"
    assert [name for name, _ in found["segments"][0]["silent"]] == [gone]
    assert all(one["bookie"] == gone for one in found["findings"] if one["fault"] != "short")
