"""A log with `tiering.policy: move` on real processes: archived, released, dropped, still a log.

The archive job is the real one, in threads. What may be released when is tested in
tests/unit/test_release.py and by the simulator. Source: docs/protocol/archive.md, invariant A1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from duramen.client.rest_client import RestClient
from duramen.ids import Epoch, LogId, ledger_of
from tests.pauses import observe_for
from tests.process.answers import COME_AGAINS_AFTER_A_FAULT_MAX, note_come_again
from tests.process.cluster import LocalCluster, create_log, run, running_cluster
from tests.process.copies import close_segment
from tests.process.hasty_bookie import hasty
from tests.process.history import History, read_log
from tests.process.tiers import MOVE, command, want_retention
from tests.process.times import HANG_S
from tests.waiting import wait_in_thread

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]


JOB = ("duramen_spark.main", "archive", "--runner", "threads")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two sequencers, and bookies that drop at once what they may."""
    folder = tmp_path_factory.mktemp("tiering") / "c"
    with running_cluster(folder, "--no-restart", "--sequencers", "2") as cluster:
        cluster.start_anew(*cluster.ids("bookie"), wrap=hasty)
        yield cluster


def fill(cluster: LocalCluster, history: History, count: int, *, rolls: bool) -> None:
    async def work() -> None:
        client = RestClient(cluster.state()["write_url"])
        try:
            for _ in range(count):
                assert await history.append(client), history.codes
            if rolls:
                await close_segment(cluster, history.log)
        finally:
            await client.close()

    run(work())


def list_segments(cluster: LocalCluster, log: str) -> list[dict[str, Any]]:
    url = f"{cluster.state()['read_url']}/v1/namespaces/default/logs/{log}/segments"
    answer = httpx.get(url, timeout=30)
    assert answer.status_code == 200, answer.text
    segments: list[dict[str, Any]] = answer.json()["segments"]
    return segments


def held_ledgers(cluster: LocalCluster, log_id: LogId) -> set[str]:
    """Epochs of the log that any bookie still holds, as ledger ids."""
    urls = [cluster.process(node_id)["admin_url"] for node_id in cluster.ids("bookie")]
    rows = [
        row for url in urls for row in httpx.get(url + "/v1/ledgers", timeout=30).json()["ledgers"]
    ]
    return {str(row["ledger_id"]) for row in rows if int(row["log_id"]) == log_id}


def count_hot(cluster: LocalCluster, log: str) -> int:
    """Segments that bookies are to keep; a round of retention is asked for."""
    want_retention(cluster)
    return sum(segment["hot_copies"] == "kept" for segment in list_segments(cluster, log))


def check_whole(cluster: LocalCluster, history: History) -> None:
    """All that was appended, from the head to the tail."""
    count = len(history.acknowledged) * history.records_per_append
    url = cluster.state()["read_url"]
    history.check(run(read_log(url, history.log, expect_count=count)))


def test_a_log_that_left_the_bookies_whole_is_read_and_appended_to(cluster: LocalCluster) -> None:
    config = {**MOVE, "roll": {"idle_close": "1s"}}
    log_id = LogId(int(run(create_log(cluster, "idle", config))))
    history = History("idle")
    fill(cluster, history, 4, rolls=False)

    def is_closed() -> bool:
        return all(one["state"] == "CLOSED" for one in list_segments(cluster, "idle"))

    wait_in_thread(is_closed, HANG_S, "the idle log to close its segment")
    # One, or more where the machine took longer than a second between two appends.
    count = len(list_segments(cluster, "idle"))
    code, report = command(cluster, *JOB, "default/idle", "--recheck-after", "0s")
    assert (code, report["rechecked"]) == (0, count), report
    wait_in_thread(lambda: count_hot(cluster, "idle") == 0, HANG_S, "the release of all there is")
    wait_in_thread(lambda: not held_ledgers(cluster, log_id), HANG_S, "bookies to drop all of it")
    check_whole(cluster, history)
    fill(cluster, history, 2, rolls=False)
    check_whole(cluster, history)


def test_what_is_archived_leaves_the_bookies_and_stays_in_the_log(cluster: LocalCluster) -> None:
    log_id = LogId(int(run(create_log(cluster, "tiers", MOVE))))
    history = History("tiers")
    for _ in range(2):
        fill(cluster, history, 4, rolls=True)
    fill(cluster, history, 4, rolls=False)
    assert count_hot(cluster, "tiers") == 3, "nothing is archived yet"

    code, report = command(cluster, *JOB, "default/tiers", "--recheck-after", "1h")
    assert (code, report["segments"]) == (0, {"archived": 2}), report
    assert count_hot(cluster, "tiers") == 3, "verified once is not enough"
    code, report = command(cluster, *JOB, "default/tiers", "--recheck-after", "0s")
    assert (code, report["rechecked"]) == (0, 2), report
    wait_in_thread(lambda: count_hot(cluster, "tiers") == 1, HANG_S, "the release of two segments")
    *cold, hot = list_segments(cluster, "tiers")
    assert all(one["status"] == "LIVE" and one["cold_copy"]["rechecked"] for one in cold)

    kept = {str(ledger_of(log_id, Epoch(hot["epoch"])))}
    wait_in_thread(
        lambda: held_ledgers(cluster, log_id) == kept, HANG_S, "bookies to drop the others"
    )
    code, found = command(cluster, "duramen.cli.main", "verify", "default/tiers")
    assert (code, found["ok"], found["released_segments"]) == (0, True, 2), found
    check_whole(cluster, history)

    cluster.kill(cluster.ids("sequencer")[0])  # whoever owned it: the cold is in nobody's way
    # An append sent to a dying owner would be uncertain; this may be sent twice.
    truncate = ("duramen.cli.main", "log", "truncate", "default/tiers", "--to", "head")
    while (answer := command(cluster, *truncate))[0] != 0:
        pause_s = note_come_again(str(answer[1]), COME_AGAINS_AFTER_A_FAULT_MAX)
        observe_for(pause_s, what="before a client comes back")
    assert answer[1]["changed"] is False, answer
    fill(cluster, history, 4, rolls=False)
    check_whole(cluster, history)


def test_a_cold_copy_that_is_replaced_under_its_readers(cluster: LocalCluster) -> None:
    """Compaction, and old files removed at once: who has read the old node goes on by the new."""
    run(create_log(cluster, "joined", MOVE))
    history = History("joined")
    for _ in range(3):
        fill(cluster, history, 4, rolls=True)

    job = ("duramen_spark.main",)
    code, report = command(cluster, *JOB, "default/joined", "--recheck-after", "0s")
    assert (code, report["rechecked"]) == (0, 3), report
    wait_in_thread(
        lambda: count_hot(cluster, "joined") == 1, HANG_S, "the release of three segments"
    )
    check_whole(cluster, history)
    code, report = command(cluster, *job, "compact", "default/joined")
    assert (code, report["files_before"], report["files_after"]) == (0, 3, 1), report
    check_whole(cluster, history)
    policy = ("retention", "default/joined", "--delay", "0s", "--remove")
    code, report = command(cluster, *job, *policy)
    assert (code, report["removed"]) == (0, 6), report
    check_whole(cluster, history)
    code, report = command(cluster, *job, "restore", "default/joined", "--as", "default/rejoined")
    assert (code, report["records"]) == (0, len(history.acknowledged) * history.records_per_append)
    code, report = command(cluster, *job, "verify", "default/joined", "--against-bookies")
    assert (code, report["copies"]) == (0, {"whole": 3}), report
