"""Cold ranges on real processes: hot copies go under readers, proxies restart, the store vanishes.

The archive job is the real one, in threads; bookies drop what was released at once. Faults of the
store and damaged files one by one are in tests/component/test_cold_reads.py.
Source: docs/protocol/archive.md "Reading", docs/cold-store.md.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from duramen.client.core.client import CoreClient
from duramen.client.rest_client import RestClient
from duramen.wire.record_batch import encode_batch
from tests.process.cluster import LocalCluster, create_log, run, running_cluster
from tests.process.copies import close_segment
from tests.process.hasty_bookie import hasty
from tests.process.test_tiering import MOVE, command, want_retention
from tests.process.times import HANG_S
from tests.waiting import wait_in_thread

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]


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
            len(httpx.get(url + "/v1/ledgers", timeout=30).json()["ledgers"]) > 1 for url in urls
        )


def hasten_bookies(cluster: LocalCluster) -> None:
    """Start the bookies anew, so that they drop what is released at once."""
    cluster.start_anew(*cluster.ids("bookie"), wrap=hasty)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fixture]:
    folder = tmp_path_factory.mktemp("cold") / "c"
    with running_cluster(folder, "--no-restart") as cluster:
        hasten_bookies(cluster)
        run(create_log(cluster, "cold", MOVE))
        fixture = Fixture(cluster)
        fixture.fill()
        yield fixture


def test_hot_copies_go_and_readers_do_not_notice(world: Fixture) -> None:
    """One is in the middle of a stream, one of the log, one begins afterwards."""
    bodies = world.bodies
    headers = {"accept": "application/x-ndjson"}
    url = f"{world.url}?from=head&format=base64&count={len(bodies)}"
    with httpx.stream("GET", url, headers=headers, timeout=60) as stream:
        lines = stream.iter_lines()
        seen = [json.loads(next(lines)) for _ in range(5)]
        begun = world.get("from=head&bytes=1MiB").json()
        world.archive()
        # A reader that takes nothing for a minute would be let go, however long the archive took.
        seen += [json.loads(next(lines)) for _ in range(20)]
        world.release()
        seen += [json.loads(line) for line in lines]
    assert [base64.b64decode(record["body"]) for record in seen] == bodies
    count = len(begun["records"])
    assert 0 < count < len(bodies) // 2
    assert world.read(f"from={begun['next']}") == bodies[count:]
    assert world.read("from=head") == bodies
    cold = world.cold()
    assert cold["loads"] >= 1, "the cache had the rest"
    assert cold["failures"] == cold["damaged"] == 0


def test_every_position_is_found_in_what_is_cold(world: Fixture) -> None:
    bodies = world.bodies
    last = len(bodies) - 1
    for query, first in (
        ("from=seq:70", 70), ("from=txid:61", 61), ("from=dlsn:e2n0s1", BATCHES * 3 + 1),
        (f"from=tail-{last - 3}", 4), ("from=head", 0), ("from=time:1048", BATCHES * 3),
    ):  # fmt: skip
        assert world.read(f"{query}&count=7") == bodies[first : first + 7], query


def test_a_proxy_that_begins_anew_reads_the_archive(world: Fixture) -> None:
    world.cluster.start_anew("readproxy-0")
    assert world.cold()["loads"] == 0
    assert world.read("from=head") == world.bodies
    assert world.cold()["loads"] >= SEGMENTS


def test_the_core_library_reads_what_is_cold(world: Fixture) -> None:
    state = world.cluster.state()

    async def read() -> list[bytes]:
        async with CoreClient(state["zookeeper"], cold_store=state["cold_store"]) as client:
            log = client.log("default", "cold")
            return [record.body async for batch in log.read("head") for record in batch]

    assert run(read()) == world.bodies


def test_a_store_that_is_taken_away_and_comes_back(world: Fixture) -> None:
    world.cluster.start_anew("readproxy-0")
    folder = world.cluster.folder / "cold"
    folder.rename(folder.with_name("away"))
    try:
        problem = world.problem("from=head")
        assert (problem["code"], problem["retryable"]) == ("cold_store_unavailable", True)
        first_hot = SEGMENTS * BATCHES * 3
        assert world.read(f"from=seq:{first_hot}") == world.bodies[first_hot:]
    finally:
        folder.with_name("away").rename(folder)
    wait_in_thread(lambda: world.get("from=head&count=1").status_code == 200, HANG_S, "cold reads")
    assert world.read("from=head") == world.bodies


def test_a_truncation_into_a_cold_segment(world: Fixture) -> None:
    """Its sequencer reads headers from the archive; last, for it changes the log."""
    url = world.cluster.state()["write_url"] + "/v1/namespaces/default/logs/cold:truncate"
    answer = httpx.post(url, json={"to": "seq:77"}, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.json()["head"]["seq_num"] == 77
    wait_in_thread(
        lambda: len(world.read("from=head")) == len(world.bodies) - 77, HANG_S, "the new head"
    )
    assert world.read("from=head") == world.bodies[77:]
