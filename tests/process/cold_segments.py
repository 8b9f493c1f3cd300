"""A log on real processes of which some segments are in the cold store alone.

Used by `test_cold_reads` and `test_cold_stores`. Source: docs/protocol/archive.md.
"""

from __future__ import annotations

import base64
import random
from typing import Any

import httpx

from duramen.client.rest_client import RestClient
from duramen.ids import LogId, is_metadata_log
from duramen.wire.record_batch import encode_batch
from tests.process.cluster import LocalCluster, run
from tests.process.copies import close_segment
from tests.process.hasty_bookie import hasty
from tests.process.tiers import command, want_retention
from tests.process.times import HANG_S
from tests.waiting import wait_in_thread

LOG = "default/cold"
SEGMENTS = 3
BATCHES = 16
RECORD_BYTES = 48 << 10


class Fixture:
    """A cluster with a log of three closed segments and an open one: 9 MB, known by heart."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.bodies: list[bytes] = []
        self.url = f"{cluster.state()['read_url']}/v1/namespaces/default/logs/cold/records"

    def fill(self) -> None:
        rng = random.Random(7)

        async def work() -> None:
            client = RestClient(self.cluster.state()["write_url"])
            try:
                for segment in range(SEGMENTS + 1):
                    for batch in range(BATCHES):
                        size = 10 if batch == 3 else RECORD_BYTES
                        records = [rng.randbytes(size) for _ in range(3)]
                        first = len(self.bodies)
                        self.bodies += records
                        txids = [first, first + 1, first + 2]
                        encoded = encode_batch(records, 1_000 + first, txids=txids)
                        await client.append("default", "cold", encoded)
                    if segment < SEGMENTS:
                        await close_segment(self.cluster, "cold")
            finally:
                await client.close()

        run(work())

    def archive(self) -> None:
        job = ("duramen_spark.main", "archive", LOG, "--runner", "threads")
        code, report = command(self.cluster, *job, "--recheck-after", "0s")
        assert (code, report["rechecked"]) == (0, SEGMENTS), report

    def release(self) -> None:
        wait_in_thread(lambda: self._count_released() == SEGMENTS, HANG_S, "the release")
        wait_in_thread(lambda: not self._is_held(), HANG_S, "bookies to drop what was released")

    def read(self, query: str) -> list[bytes]:
        """All records of a query, request by request, each to its end."""
        found: list[bytes] = []
        answer = self.get(query)
        while True:
            assert answer.status_code == 200, answer.text
            document = answer.json()
            found += [base64.b64decode(record["body"]) for record in document["records"]]
            if "tail" in document or "count=" in query:
                return found
            answer = self.get(f"from={document['next']}")

    def get(self, query: str) -> httpx.Response:
        url = f"{self.url}?{query}&format=base64"
        return httpx.get(url, timeout=60)

    def problem(self, query: str) -> dict[str, Any]:
        answer = self.get(query)
        assert answer.status_code == 503, answer.text
        problem: dict[str, Any] = answer.json()
        return problem

    def cold(self) -> dict[str, Any]:
        url = self.cluster.process("readproxy-0")["admin_url"]
        statistics = httpx.get(f"{url}/v1/statistics", timeout=30).json()
        found: dict[str, Any] = statistics["upstream"]["cold"]
        return found

    def _count_released(self) -> int:
        want_retention(self.cluster)
        url = self.url.removesuffix("/records") + "/segments"
        segments = httpx.get(url, timeout=30).json()["segments"]
        return sum(segment["hot_copies"] == "released" for segment in segments)

    def _is_held(self) -> bool:
        urls = [self.cluster.process(n)["admin_url"] for n in self.cluster.ids("bookie")]
        return any(
            sum(not is_metadata_log(LogId(int(row["log_id"]))) for row in rows) > 1
            for rows in (
                httpx.get(url + "/v1/ledgers", timeout=30).json()["ledgers"] for url in urls
            )
        )


def hasten_bookies(cluster: LocalCluster) -> None:
    """Start the bookies anew, so that they drop what is released at once."""
    cluster.start_anew(*cluster.ids("bookie"), wrap=hasty)
