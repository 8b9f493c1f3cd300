"""Cold ranges on real processes: hot copies go under readers, proxies restart, the store vanishes.

The archive job is the real one, in threads; bookies drop what was released at once. Faults of the
store and damaged files one by one are in tests/component/test_cold_reads.py.
Source: docs/protocol/archive.md "Reading", docs/cold-store.md.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import httpx
import pytest

from duramen.client.core.client import CoreClient
from tests.process.cluster import create_log, run, running_plain_cluster
from tests.process.cold_segments import (
    BATCHES,
    SEGMENTS,
    Fixture,
    hasten_bookies,
)
from tests.process.tiers import MOVE
from tests.process.times import HANG_S
from tests.waiting import wait_in_thread

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fixture]:
    folder = tmp_path_factory.mktemp("cold") / "c"
    with running_plain_cluster(folder, "--no-restart") as cluster:
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
