"""A producer against real processes: the sequencer dies under it, and every batch is there once.

Batches are repeated by the test as a client would, through the public REST, also by another proxy's
connection; each answer must name the position that a complete read finds. Then the conditions and
the fencing token are tried against the new owner. Source: docs/protocol/write.md "Exactly once",
docs/testing.md "Invariants".
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from duramen.ids import EntryId, Epoch, LogId
from duramen.wire.metadata_json import encode_segment, read_segment
from tests.pauses import let_pass
from tests.process.answers import COME_AGAINS_AFTER_A_FAULT_MAX, note_come_again
from tests.process.cluster import LocalCluster, create_log, run, running_plain_cluster
from tests.process.copies import open_store
from tests.process.history import read_log
from tests.process.metadata_nodes import change_node

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]

LOG = "once"
BATCH_COUNT = 60
KILLED_AFTER = (15, 35)


class Client:
    """One producer that repeats a batch until it is acknowledged."""

    def __init__(self, cluster: LocalCluster, http: httpx.AsyncClient) -> None:
        self._http = http
        self._log = f"{cluster.state()['write_url']}/v1/namespaces/default/logs/{LOG}"
        self.codes: list[str] = []

    async def send(self, body: str, seq: int, *, epoch: int = 0, **more: Any) -> dict[str, Any]:
        """One try."""
        document = {
            "records": [{"body": body}, {"body": body + "+"}],
            "producer": {"id": "p", "epoch": epoch, "seq": seq},
            **more,
        }
        answer = await self._http.post(f"{self._log}/records", json=document, timeout=30)
        found: dict[str, Any] = answer.json()
        return found

    async def insist(self, seq: int) -> dict[str, Any]:
        """As many tries as it takes, for some seconds of takeover; they are counted."""
        while "start" not in (answer := await self.send(f"batch {seq}", seq)):
            self.codes.append(answer["code"])
            pause_s = note_come_again(answer["code"], COME_AGAINS_AFTER_A_FAULT_MAX)
            await let_pass(pause_s, what="before a client comes back")
        return answer

    async def truncate(self, position: str) -> dict[str, Any]:
        """Remove what lies before the position."""
        answer = await self._http.post(f"{self._log}:truncate", json={"to": position}, timeout=30)
        found: dict[str, Any] = answer.json()
        return found

    async def fence(self, **document: str) -> dict[str, Any]:
        """Set the fencing token."""
        answer = await self._http.post(f"{self._log}:fence", json=document, timeout=30)
        found: dict[str, Any] = answer.json()
        return found


async def _owner(cluster: LocalCluster, http: httpx.AsyncClient, log_id: str) -> str:
    """The sequencer that has the log open."""
    for node_id in cluster.ids("sequencer"):
        process = cluster.process(node_id)
        if process["pid"] is None:
            continue
        answer = await http.get(f"{process['admin_url']}/v1/logs")
        if any(log["log_id"] == log_id and log["epoch"] for log in answer.json()):
            return node_id
    raise AssertionError("nobody has the log open")


def test_a_sequencer_killed_under_a_producer_leaves_one_copy_at_one_position(
    tmp_path: Path,
) -> None:
    with running_plain_cluster(tmp_path / "c", "--sequencers", "2") as cluster:

        async def scenario() -> None:
            log_id = await create_log(cluster, LOG, {"roll": {"size": "4KiB"}})
            async with httpx.AsyncClient(timeout=30) as http:
                client = Client(cluster, http)
                places: dict[int, dict[str, Any]] = {}
                for seq in range(BATCH_COUNT):
                    if seq in KILLED_AFTER:
                        cluster.send(await _owner(cluster, http, log_id), signal.SIGKILL)
                    places[seq] = await client.insist(seq)
                await _check_repetitions(client, places)
                await _check_refusals(client, places)
            expected = [f"batch {s}{end}".encode() for s in range(BATCH_COUNT) for end in ("", "+")]
            bodies = await read_log(cluster.state()["read_url"], LOG, expect_count=len(expected))
            assert bodies == [*expected, b"fenced in", b"fenced in+"]
            for seq, answer in places.items():
                assert answer["start"]["seq_num"] == 2 * seq

        run(scenario())


def test_r15_a_takeover_passes_over_what_is_lost_and_a_truncation_begins_behind_it(
    tmp_path: Path,
) -> None:
    """Entry 1 of the first segment, with batch 1, is recorded as lost between two takeovers."""
    with running_plain_cluster(tmp_path / "c", "--sequencers", "2") as cluster:

        async def scenario() -> None:
            log_id = await create_log(cluster, LOG, {})
            async with httpx.AsyncClient(timeout=30) as http:
                client = Client(cluster, http)
                places = [await client.insist(seq) for seq in range(3)]
                cluster.send(await _owner(cluster, http, log_id), signal.SIGKILL)
                places.append(await client.insist(3))
                dlsns = [place["start"]["dlsn"] for place in places]
                assert dlsns == ["e1n0s0", "e1n1s0", "e1n2s0", "e2n0s0"]
                await _lose(cluster, LogId(int(log_id)), EntryId(1))
                cluster.send(await _owner(cluster, http, log_id), signal.SIGKILL)
                places.append(await client.insist(4))
                assert places[4]["start"]["seq_num"] == 8
                answers = [await client.send(f"batch {seq}", seq) for seq in range(5)]
                assert answers[1]["code"] == "data_lost"
                for seq in (0, 2, 3, 4):
                    assert answers[seq]["start"] == places[seq]["start"], answers
                cut = await client.truncate("seq:3")
                assert cut["head"] == {"seq_num": 4, "lsn": "e1n2", "dlsn": "e1n2s0"}

        run(scenario())


async def _lose(cluster: LocalCluster, log_id: LogId, entry: EntryId) -> None:
    """The first segment's node says so; the bookies, which have it, are not to be asked."""
    async with open_store(cluster) as (store, paths):
        await change_node(
            store,
            paths.segment(log_id, Epoch(1)),
            lambda data: encode_segment(read_segment(data).with_lost([(entry, entry)], "lost")),
        )


async def _check_repetitions(client: Client, places: dict[int, dict[str, Any]]) -> None:
    """Every batch again, whoever owned the log when it came first: the same positions."""
    for seq, first in places.items():
        again = await client.insist(seq)
        assert again["duplicate"] is True, again
        assert (again["start"], again["end"]) == (first["start"], first["end"])


async def _check_refusals(client: Client, places: dict[int, dict[str, Any]]) -> None:
    end = 2 * len(places)
    gap = await client.send("no", len(places) + 1)
    assert (gap["code"], gap["expected_producer_seq"]) == ("producer_gap", len(places))
    wrong = await client.send("no", len(places), match_seq_num=end + 1)
    assert (wrong["code"], wrong["expected_seq_num"]) == ("condition_failed", end)
    assert wrong["tail"]["seq_num"] == end
    assert (await client.fence(token="mine"))["tail"]["seq_num"] == end
    refused = await client.fence(token="other", expected="other")
    assert refused["code"] == "fencing_token_mismatch"
    theirs = await client.send("no", len(places), fencing_token="theirs")
    assert theirs["code"] == "fencing_token_mismatch"
    done = await client.send(
        "fenced in", 0, epoch=1, match_seq_num=end, fencing_token="mine"
    )  # fmt: skip
    assert done["start"]["seq_num"] == end
    late = await client.send("no", len(places))
    assert late["code"] == "producer_fenced"
