"""A log with `tiering.policy: move` on real processes: archived, released, dropped, still a log.

The archive job is the real one, in threads. What may be released when is tested in
tests/unit/test_release.py and by the simulator. Source: docs/protocol/archive.md, invariant A1.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from duramen.ids import Epoch, LogId, ledger_of
from tests.pauses import observe_for
from tests.process.answers import COME_AGAINS_AFTER_A_FAULT_MAX, note_come_again
from tests.process.cluster import LocalCluster, create_log, run, running_plain_cluster
from tests.process.hasty_bookie import hasty
from tests.process.history import History
from tests.process.tiers import (
    MOVE,
    check_whole,
    command,
    count_hot,
    fill,
    held_ledgers,
    list_segments,
)
from tests.process.times import HANG_S
from tests.waiting import wait_in_thread

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]


JOB = ("duramen_spark.main", "archive", "--runner", "threads")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two sequencers, and bookies that drop at once what they may."""
    folder = tmp_path_factory.mktemp("tiering") / "c"
    with running_plain_cluster(folder, "--no-restart", "--sequencers", "2") as cluster:
        cluster.start_anew(*cluster.ids("bookie"), wrap=hasty)
        yield cluster


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
