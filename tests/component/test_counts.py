"""What appends cost in calls, syncs and bytes, counted on a small cluster of real processes.

No clocks: a bound here must hold on a machine of any speed, so each one says why timing cannot
break it. Milliseconds and MB/s are for `make bench`. What is counted comes from the admin ports
(`/v1/statistics`, `/metrics`) as differences, so the tests share one cluster in any order.

Source: docs/benchmarks.md "What shaped the design".
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from duramen.client.rest_client import RestClient
from duramen.wire.record_batch import encode_batch
from tests.bench.cluster import NAMESPACE, LocalCluster
from tests.bench.load import post_at_once
from tests.bench.workloads import read_counts
from tests.pauses import look_again

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]

BOOKIE_COUNT = 3
BATCH_COUNT = 20
RECORDS_PER_BATCH = 100
RECORD_BYTES = 1024
IN_FLIGHT = 64
ROUND_COUNT = 5
# An add that a bookie has not answered within 2 s is sent again, and so is a batch that was refused
# while its log was taken over: a machine that stalls now and then shall not fail a test of counts.
RESENT_MAX = 5
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three bookies, a sequencer, both proxies."""
    with LocalCluster(tmp_path_factory.mktemp("counts")) as running:
        yield running


def count_all(cluster: LocalCluster) -> Counter[str]:
    """Everything that is compared, as it stands now."""
    counts = Counter(read_counts(cluster))
    for samples in cluster.metrics("bookie").values():
        counts["added_entries"] += int(samples["duramen_bookie_add_entries_total"])
    for samples in cluster.metrics("writeproxy").values():
        counts["proxy_frames"] += int(samples["duramen_writeproxy_frames_total"])
        counts["appends"] += int(samples['duramen_writeproxy_appends_total{outcome="ok"}'])
    return counts


@contextmanager
def paused(pid: int) -> Iterator[None]:
    """The process does nothing meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def append_batches(cluster: LocalCluster, log: str) -> int:
    """One after the other; gives the bytes of the records."""
    client = RestClient(cluster.document()["write_url"])
    bodies = [os.urandom(RECORD_BYTES)] * RECORDS_PER_BATCH
    batch = encode_batch(bodies, 1)
    try:
        await client.ensure_log(NAMESPACE, log, {})
        for index in range(BATCH_COUNT):
            appended = await client.append(NAMESPACE, log, batch)
            assert appended.end == (index + 1) * RECORDS_PER_BATCH
    finally:
        await client.close()
    return BATCH_COUNT * RECORDS_PER_BATCH * RECORD_BYTES


async def append_round(cluster: LocalCluster, url: str) -> None:
    """IN_FLIGHT appends that are all in the write proxy before the sequencer sees any of them."""
    (sequencer,) = cluster.members("sequencer")
    with paused(sequencer["pid"]):
        posting = asyncio.create_task(post_at_once(url, os.urandom(RECORD_BYTES), IN_FLIGHT))
        while not posting.done() and await asyncio.to_thread(count_held, cluster) < IN_FLIGHT:
            pass
    await posting


def count_held(cluster: LocalCluster) -> int:
    """Appends that the write proxy has taken and not answered."""
    (proxy,) = cluster.statistics("writeproxy").values()
    return sum(lane["held"] for lane in proxy["lanes"].values())


async def bounded_rounds(cluster: LocalCluster, url: str) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        for _ in range(ROUND_COUNT):
            await append_round(cluster, url)


def test_nothing_is_done_for_each_record_behind_the_proxy(cluster: LocalCluster) -> None:
    before = count_all(cluster)
    payload_bytes = asyncio.run(append_batches(cluster, "batches"))
    # The third bookie may still be at it when the last append is acknowledged by two.
    ends_s = time.monotonic() + TIMEOUT_S
    while (used := count_all(cluster) - before)["adds"] < BATCH_COUNT * BOOKIE_COUNT:
        assert time.monotonic() < ends_s, f"an add was lost: {used}"
        look_again()
    assert used["appends"] == BATCH_COUNT
    # A batch travels whole and each is answered before the next is sent: at every hop there are as
    # many units as batches, whatever the speed. Fewer would mean a lost one.
    assert BATCH_COUNT <= used["proxy_frames"] <= BATCH_COUNT + RESENT_MAX
    assert used["adds"] <= (BATCH_COUNT + RESENT_MAX) * BOOKIE_COUNT
    assert used["added_entries"] >= BATCH_COUNT * (BOOKIE_COUNT - 1)
    assert used["added_entries"] <= (BATCH_COUNT + RESENT_MAX) * BOOKIE_COUNT
    # A frame carries at least one add, and an add travels in one frame.
    assert 0 < used["frames"] <= used["adds"]
    # Per batch: its column of lengths (4 bytes a record of 1 KiB), entry and journal headers of a
    # few hundred bytes in 100 KiB: 2 %. Re-sent entries are not journaled twice. Marks and
    # preallocation, which depend on pauses, are not in this count. The fixed part is for LAC and
    # seal records, which do depend on them: each is below 100 bytes, and there are not hundreds.
    assert used["journaled_bytes"] <= 1.2 * payload_bytes * BOOKIE_COUNT + 64 * 1024


def test_appends_in_flight_share_entries_frames_and_syncs(cluster: LocalCluster) -> None:
    url = cluster.make_log("singles")
    asyncio.run(post_at_once(url, b"the first append makes the sequencer take the log over", 1))
    before = count_all(cluster)
    asyncio.run(bounded_rounds(cluster, url))
    used = count_all(cluster) - before
    append_count = ROUND_COUNT * IN_FLIGHT
    assert used["appends"] == append_count
    # While the sequencer stands still the proxy opens a few frames and everything else waits for
    # one more; so most of a round is there at once when it goes on, and what is there at once
    # becomes one entry, one frame a bookie, one commit. How fast the disk or the network is plays
    # no part. About 0.1 is usual; one sync an append would be 1.
    assert used["proxy_frames"] <= 0.5 * append_count
    assert used["adds"] <= 0.5 * append_count * BOOKIE_COUNT
    assert used["syncs"] <= 0.5 * append_count * BOOKIE_COUNT
    assert 0 < used["frames"] <= used["adds"]
    # Two of three bookies hold every entry.
    assert used["syncs"] >= (BOOKIE_COUNT - 1) * ROUND_COUNT
