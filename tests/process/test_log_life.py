"""The end of records and of logs against real processes: truncation, end, deletion, retention.

Everything is asked through the command line or the public REST, as an operator does; what is
asserted is what readers get, what a takeover leaves, and what lies on the bookies' disks.
Source: docs/protocol/retention.md "End of stream" and "Deletion"; the rules one by one are in
`test_log_life` of the component tests and in `tests/scenario`.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from duramen.cli.main import main
from duramen.client.rest_client import RestClient
from duramen.wire.disk.journal_format import BLOCK_BYTES
from tests.pauses import observe_for
from tests.process import hasty_sequencer
from tests.process.answers import COME_AGAINS_AFTER_A_FAULT_MAX, note_come_again
from tests.process.cluster import LocalCluster, create_log, run, running_plain_cluster
from tests.process.hasty_bookie import hasty
from tests.process.history import History, read_log
from tests.process.times import HANG_S
from tests.waiting import wait_in_thread

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]

SMALL_FILES = ("--journal-file-size", "1MiB")


def ask(cluster: LocalCluster, *words: str, code: int = 0) -> Any:
    """`duramen log … --json`; its answer."""
    buffer = io.BytesIO()
    out = io.TextIOWrapper(buffer, write_through=True)
    with contextlib.redirect_stdout(out):
        status = main(["log", *words, "--data", str(cluster.folder), "--json"])
    assert status == code, (words, status)
    text = buffer.getvalue()
    return json.loads(text) if text else None


def insist(cluster: LocalCluster, *words: str) -> Any:
    """The same, asked until the log has a pending owner; how often it is refused is counted."""
    command = [sys.executable, "-m", "duramen.cli.main", "log", *words, "--json"]
    command += ["--data", str(cluster.folder)]
    while True:
        done = subprocess.run(command, capture_output=True, timeout=HANG_S, check=False)
        if done.returncode == 0:
            return json.loads(done.stdout)
        pause_s = note_come_again(done.stderr.decode()[-200:], COME_AGAINS_AFTER_A_FAULT_MAX)
        observe_for(pause_s, what="before a client comes back")


def append(cluster: LocalCluster, history: History, count: int) -> None:
    async def work() -> None:
        client = RestClient(cluster.state()["write_url"])
        try:
            for _ in range(count):
                assert await history.append(client), history.codes
        finally:
            await client.close()

    run(work())


def read(cluster: LocalCluster, log: str, query: str = "") -> dict[str, Any]:
    url = cluster.state()["read_url"]
    answer = httpx.get(f"{url}/v1/namespaces/default/logs/{log}/records{query}", timeout=70)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def refusal(cluster: LocalCluster, history: History) -> str:
    """The code with which one more append is refused."""

    async def work() -> str:
        client = RestClient(cluster.state()["write_url"])
        try:
            assert not await history.append(client)
            return history.codes[-1]
        finally:
            await client.close()

    return run(work())


def test_a_log_lives_and_ends_as_it_is_told(tmp_path: Path) -> None:
    """One story: truncated inside the open segment, taken over, ended, deleted, had back."""
    flags = ("--sequencers", "2", "--no-restart")
    with running_plain_cluster(tmp_path / "c", *flags) as cluster:
        log_id = run(create_log(cluster, "life", {}))
        history = History("life", records_per_append=4)
        append(cluster, history, 5)

        cut = ask(cluster, "truncate", "default/life", "--to", "10")
        assert (cut["changed"], cut["head"]["seq_num"]) == (True, 10)
        assert cut["head"]["dlsn"].endswith("s2"), "in the middle of an entry of the open segment"
        assert cut["tail"]["seq_num"] == 20
        _check_reads_from_below(cluster, cut["head"]["dlsn"])
        ask(cluster, "truncate", "default/life", "--to", "21", code=1)
        assert ask(cluster, "truncate", "default/life", "--to", "head")["changed"] is False

        owner = _owner_of(cluster, log_id)
        cluster.kill(owner)
        # An append sent to the dying owner would be uncertain; this may be sent twice, and is until
        # its session has ended.
        assert insist(cluster, "truncate", "default/life", "--to", "head")["changed"] is False
        append(cluster, history, 5)
        records = read(cluster, "life", "?count=100")["records"]
        assert records[0]["seq_num"] == 10
        assert _owner_of(cluster, log_id) != owner, "the trim survived a takeover"

        assert ask(cluster, "end", "default/life")["tail"]["seq_num"] == 40
        assert refusal(cluster, history) == "log_ended"
        end = read(cluster, "life", "?from=tail&wait=60s")
        assert end["ended"] is True and end["records"] == []

        ask(cluster, "delete", "default/life")
        ask(cluster, "delete", "default/life")
        assert refusal(cluster, history) == "log_deleted"
        assert ask(cluster, "list", "default")["logs"] == []
        assert ask(cluster, "undelete", "default/life")["log_id"] == log_id
        assert refusal(cluster, history) == "log_ended", "as it was"
        assert len(read(cluster, "life", "?count=100")["records"]) == 30

        ask(cluster, "delete", "default/life")
        assert run(create_log(cluster, "life", {})) != log_id
        ask(cluster, "undelete", "default/life", code=1)
        fresh = History("life")
        append(cluster, fresh, 2)
        fresh.check(run(read_log(cluster.state()["read_url"], "life", expect_count=6)))


def _check_reads_from_below(cluster: LocalCluster, dlsn: str) -> None:
    """Every form of a position below record 10 begins with it, and says so where it moved."""
    epoch = dlsn.partition("n")[0]
    moved = [f"lsn:{epoch}n0", f"dlsn:{epoch}n1s1", "0", "seq:9", "tail-15"]
    for position in ("head", "tail-10", "seq:10", f"dlsn:{dlsn}", *moved):
        answer = read(cluster, "life", f"?from={position}&count=100")
        assert [r["seq_num"] for r in answer["records"]] == list(range(10, 20)), position
        assert ("moved_to" in answer) == (position in moved), position
        assert answer.get("moved_to", {}).get("dlsn", dlsn) == dlsn


def _owner_of(cluster: LocalCluster, log_id: str) -> str:
    for node_id in cluster.ids("sequencer"):
        with contextlib.suppress(httpx.TransportError):
            for log in httpx.get(
                cluster.process(node_id)["admin_url"] + "/v1/logs", timeout=30
            ).json():
                if (log["log_id"], log["state"]) == (log_id, "active"):
                    return node_id
    raise AssertionError(f"nobody owns log {log_id}")


def test_bookies_give_back_what_retention_lets_go(tmp_path: Path) -> None:
    """By age, in seconds: truncated, given up, dropped, compacted; measured in files on disk."""
    with running_plain_cluster(tmp_path / "c", "--no-restart") as cluster:
        bookies = cluster.ids("bookie")
        cluster.start_anew(*bookies, wrap=lambda command: [*hasty(command), *SMALL_FILES])
        wait_in_thread(lambda: all(_upkeep(cluster, b) for b in bookies), HANG_S, "hasty bookies")
        config = {"roll": {"size": "512KiB", "idle_close": "1s"}}
        log_id = run(create_log(cluster, "ebb", config))
        run(create_log(cluster, "kept", {"roll": {"idle_close": "1s"}}))
        history, kept = History("ebb", record_bytes=20_000), History("kept")
        append(cluster, kept, 3)
        append(cluster, history, 100)
        append(cluster, kept, 3)
        for node_id in bookies:
            _settle(cluster, node_id)
        before = {node_id: _entry_log_bytes(cluster, node_id) for node_id in bookies}
        assert min(before.values()) > 4 << 20, f"too little was settled to be measured: {before}"

        # Only now: a round of the sequencer's own would have left less to be measured.
        retention = {"retention": {"age": "2s", "truncated": "1s"}}
        assert ask(cluster, "reconfigure", "default/ebb", "--config", json.dumps(retention))[
            "changed"
        ]
        sequencer = cluster.process(cluster.ids("sequencer")[0])["admin_url"]

        def is_empty() -> bool:
            httpx.post(sequencer + "/v1/retention", timeout=30).raise_for_status()
            return str(read(cluster, "ebb", "?from=head")["next"]) == "seq:300"

        wait_in_thread(is_empty, HANG_S, "every record to be truncated")
        wait_in_thread(
            lambda: _is_gone(cluster, log_id, sequencer), HANG_S, "every bookie to drop it"
        )
        for node_id in bookies:
            _finish_round(cluster, node_id, "compaction")
        after = {node_id: _entry_log_bytes(cluster, node_id) for node_id in bookies}
        assert all(after[b] < before[b] / 4 for b in bookies), (before, after)
        assert read(cluster, "ebb", "?from=seq:5")["moved_to"]["seq_num"] == 300
        append(cluster, history, 1)
        assert read(cluster, "ebb")["records"][0]["seq_num"] == 300
        kept.check(run(read_log(cluster.state()["read_url"], "kept", expect_count=18)))


def test_a_deleted_log_gives_its_space_back_when_it_can_be_had_back_no_more(
    tmp_path: Path,
) -> None:
    """Two steps: hidden, and whole when it is undeleted; then purged, and its bytes are free."""
    with running_plain_cluster(tmp_path / "c", "--no-restart") as cluster:
        bookies, (sequencer,) = cluster.ids("bookie"), cluster.ids("sequencer")
        cluster.start_anew(*bookies, wrap=lambda command: [*hasty(command), *SMALL_FILES])
        cluster.start_anew(sequencer, wrap=hasty_sequencer.hasty)
        wait_in_thread(lambda: all(_upkeep(cluster, b) for b in bookies), HANG_S, "hasty bookies")
        log_id = run(create_log(cluster, "doomed", {}))
        run(create_log(cluster, "kept", {}))
        doomed, kept = History("doomed", record_bytes=20_000), History("kept")
        append(cluster, kept, 3)
        append(cluster, doomed, 100)
        append(cluster, kept, 3)
        for node_id in bookies:
            _settle(cluster, node_id)
        before = {node_id: _entry_log_bytes(cluster, node_id) for node_id in bookies}
        assert min(before.values()) > 4 << 20, f"too little was settled to be measured: {before}"

        ask(cluster, "delete", "default/doomed")
        assert ask(cluster, "undelete", "default/doomed")["log_id"] == log_id
        append(cluster, doomed, 1)
        doomed.check(run(read_log(cluster.state()["read_url"], "doomed", expect_count=303)))

        ask(cluster, "delete", "default/doomed")
        url = cluster.process(sequencer)["admin_url"]
        wait_in_thread(lambda: _is_gone(cluster, log_id, url), HANG_S, "every bookie to drop it")
        retention = httpx.get(url + "/v1/statistics", timeout=30).json()["retention"]
        assert (retention["purges"], retention["segments_given_up"]) == (1, 0)
        for node_id in bookies:
            _finish_round(cluster, node_id, "compaction")
        after = {node_id: _entry_log_bytes(cluster, node_id) for node_id in bookies}
        print(f"bytes of entry log files by bookie, before a purge {before}, after it {after}")
        assert all(after[b] < before[b] / 4 for b in bookies), (before, after)
        ask(cluster, "undelete", "default/doomed", code=1)
        kept.check(run(read_log(cluster.state()["read_url"], "kept", expect_count=18)))


def _upkeep(cluster: LocalCluster, node_id: str) -> dict[str, Any] | None:
    with contextlib.suppress(httpx.TransportError):
        answer = httpx.get(cluster.process(node_id)["admin_url"] + "/v1/upkeep", timeout=30)
        if answer.status_code == 200:
            document: dict[str, Any] = answer.json()
            return document
    return None


def _finish_round(cluster: LocalCluster, node_id: str, work: str) -> None:
    """Rounds until two more have ended: the first may have begun before."""
    url = cluster.process(node_id)["admin_url"] + f"/v1/upkeep/{work}"

    def rounds() -> int:
        state = _upkeep(cluster, node_id)
        assert state is not None and state[work]["rounds"]["failed_round_count"] == 0, state
        return int(state[work]["rounds"]["round_count"])

    for _ in range(2):
        count = rounds()
        httpx.post(url, timeout=30).raise_for_status()
        wait_in_thread(lambda: rounds() > count, HANG_S, f"a round of {work}")  # noqa: B023


def _settle(cluster: LocalCluster, node_id: str) -> None:
    for _ in range(3):
        _finish_round(cluster, node_id, "settling")


def _entry_log_bytes(cluster: LocalCluster, node_id: str) -> int:
    """What the entry log's data files take on disk."""
    folder = Path(cluster.process(node_id)["data_dir"])
    blocks = sum(path.stat().st_blocks * 512 for path in folder.rglob("*.de"))
    return max(blocks - 2 * BLOCK_BYTES, 0)


def _is_gone(cluster: LocalCluster, log_id: str, sequencer: str) -> bool:
    """Whether no bookie holds anything of the log any more; a round of retention is asked for."""
    httpx.post(sequencer + "/v1/retention", timeout=30).raise_for_status()
    urls = [cluster.process(node_id)["admin_url"] for node_id in cluster.ids("bookie")]
    held = [
        ledger
        for url in urls
        for ledger in httpx.get(url + "/v1/ledgers", timeout=30).json()["ledgers"]
    ]
    return all(ledger["log_id"] != log_id for ledger in held)


def test_a_log_is_ended_under_load_and_no_append_is_lost(tmp_path: Path) -> None:
    """What was acknowledged is in the log, what was refused is not, and the end stays the end."""
    with running_plain_cluster(tmp_path / "c", "--write-proxies", "2") as cluster:

        async def scenario() -> None:
            await create_log(cluster, "busy", {})
            histories = [History("busy", records_per_append=1 + i) for i in range(2)]
            clients = [RestClient(cluster.process(n)["data_url"])
                       for n in cluster.ids("writeproxy")]  # fmt: skip

            async def load(history: History, client: RestClient) -> None:
                while await history.append(client):
                    pass

            tasks = [asyncio.create_task(load(h, c))
                     for h, c in zip(histories, clients, strict=True)]  # fmt: skip
            for history in histories:
                await history.wait_acknowledged(50)
            answer = await clients[0].end_log("default", "busy")
            await asyncio.gather(*tasks)
            assert [history.codes for history in histories] == [["log_ended"], ["log_ended"]]
            total = sum(len(h.acknowledged) * h.records_per_append for h in histories)
            assert answer["tail"]["seq_num"] == total
            bodies = await read_log(cluster.state()["read_url"], "busy", expect_count=total)
            assert len(bodies) == total
            for client in clients:
                await client.close()

        run(scenario())
