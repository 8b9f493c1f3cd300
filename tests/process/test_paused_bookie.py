"""A bookie is paused under load: memory is bounded, appends go on, and every copy is made.

With a fourth bookie it is replaced; with three it can only be suspended, and what it misses goes
beyond what memory may hold into `repair/owed`, from where repair fetches it once the bookie is
back. Copies are counted as `duramen verify` does. DURAMEN_PAUSE_S=600 pauses for ten minutes.
Source: docs/protocol/write.md "Owed copies", R9, docs/protocol/repair.md, docs/testing.md "Real
processes and disks".
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from duramen.client.rest_client import RestClient
from duramen.units import MIB
from tests.pauses import let_pass, look_again_soon
from tests.process.cluster import LocalCluster, create_log, run, running_plain_cluster
from tests.process.copies import (
    NAMESPACE,
    close_segment,
    list_notes,
    wait_settled,
    wait_whole,
)
from tests.process.history import History, read_log
from tests.process.takeovers import statistics
from tests.process.times import FROZEN_BOOKIE_S, HANG_S, SESSION_S, STILL_S
from tests.ticker import Ticker, running_ticker

pytestmark = [pytest.mark.process, pytest.mark.zookeeper, pytest.mark.quiet]

PAUSE_S = float(os.environ.get("DURAMEN_PAUSE_S", "8"))
OWED_BYTES_MAX = 2 * MIB
LOAD_BYTES_PER_S = max(MIB, int(48 * MIB / PAUSE_S))
"""What is appended during the shortest pause is many times what memory may hold of it."""

MEMORY_BYTES_MAX = 2 * OWED_BYTES_MAX + 48 * MIB
"""Beyond the process as it is with the same load and every bookie: what is owed, and what frames
on their way to a silent bookie and the allocator take once. In a short pause that hides what is
owed, so the sequencer's own count is judged too; in a long one it does not."""

RECORD_BYTES = 16 << 10
SLOW_S = 30
"""A machine that takes too little during the pause proves something if the pause is longer."""

RESTORED_S = HANG_S + PAUSE_S
"""A hang bound: what a longer pause left takes longer to fetch."""


@pytest.mark.parametrize("bookie_count", [pytest.param(3, marks=pytest.mark.night), 4])
@pytest.mark.timeout(300 + 2 * PAUSE_S)
def test_a_paused_bookie_costs_bounded_memory_and_gets_its_copies(
    tmp_path: Path, bookie_count: int
) -> None:
    flags = ("--bookies", str(bookie_count), "--no-restart")
    with (
        running_plain_cluster(tmp_path / "c", *flags) as cluster,
        running_ticker(tmp_path) as ticker,
    ):
        history = History("paused", record_bytes=RECORD_BYTES)

        async def scenario() -> None:
            config = {"owed_bytes_max": "2MiB", "roll": {"size": "16MiB"}}
            await create_log(cluster, history.log, config)
            async with appending(cluster, history):
                await history.wait_acknowledged(2 * LOAD_BYTES_PER_S // (3 * RECORD_BYTES))
                member = await find_member(cluster, history.log)
                grown = await pause(cluster, history, member, ticker)
                print(f"{bookie_count} bookies: the sequencer grew by {grown >> 10} KiB")
                assert grown <= MEMORY_BYTES_MAX
                if bookie_count == 3:
                    assert await list_notes(cluster), "more is owed than memory holds"
            await close_segment(cluster, history.log)
            await wait_settled(cluster, RESTORED_S)
            found = await wait_whole(cluster, [history.log], RESTORED_S)
            (sequencer,) = cluster.ids("sequencer")
            assert (await statistics(cluster, sequencer))["owed_bytes"] == 0
            copies = {one["good_copies"] / one["entries"] for one in found.values()}
            assert copies == {3.0}, found
            expected = max(end for _, end in history.acknowledged.values())
            url = cluster.state()["read_url"]
            history.check(await read_log(url, history.log, expect_count=expected))

        run(scenario(), timeout_s=250 + 2 * PAUSE_S)


async def find_member(cluster: LocalCluster, log: str) -> str:
    """A bookie that the log writes to; of four, each segment leaves one out."""
    client = RestClient(cluster.state()["read_url"])
    try:
        *_, newest = (await client.list_segments(NAMESPACE, log))["segments"]
    finally:
        await client.close()
    member: str = newest["fragments"][-1]["ensemble"][0]["bookie"]
    return member


async def pause(cluster: LocalCluster, history: History, bookie: str, ticker: Ticker) -> int:
    """Pause a bookie; gives by how many bytes the sequencer grew."""
    (sequencer,) = cluster.ids("sequencer")
    before = peak = resident_bytes(cluster, sequencer)
    mark, failed = len(history.acknowledged), len(history.failed)

    def appended_bytes() -> int:
        return 3 * RECORD_BYTES * (len(history.acknowledged) - mark)

    cluster.send(bookie, signal.SIGSTOP)
    began = time.monotonic()
    end, owed_most = began + PAUSE_S, 0
    try:
        while time.monotonic() < end or (
            appended_bytes() <= 2 * OWED_BYTES_MAX and time.monotonic() < end + SLOW_S
        ):
            await look_again_soon()
            peak = max(peak, resident_bytes(cluster, sequencer))
            owed_most = max(owed_most, (await statistics(cluster, sequencer))["owed_bytes"])
    finally:
        ended = time.monotonic()
        cluster.send(bookie, signal.SIGCONT)
    done_bytes = appended_bytes()
    longest_s = ticker.longest_s(history.silences(began, ended))
    print(f"{done_bytes >> 20} MiB appended meanwhile, longest silence {longest_s:.2f} s")
    assert 0 < owed_most <= 3 * OWED_BYTES_MAX, owed_most
    assert longest_s < FROZEN_BOOKIE_S
    # What memory may not hold is refused where ZooKeeper cannot note it (R9): the machine's fault
    # only where the control shows it.
    refused = history.failed[failed:]
    given_s = [ticker.stalled_s(one.began_s - SESSION_S, one.ended_s) for one in refused]
    assert all(one.code == "window_full" for one in refused), refused
    assert all(stalled_s >= STILL_S for stalled_s in given_s), (refused, given_s)
    assert done_bytes > 2 * OWED_BYTES_MAX, "too little was appended to prove anything"
    return peak - before


@asynccontextmanager
async def appending(cluster: LocalCluster, history: History) -> AsyncIterator[None]:
    """A writer at an even pace."""
    client = RestClient(cluster.state()["write_url"])
    stop = asyncio.Event()

    async def write() -> None:
        due = time.monotonic()
        while not stop.is_set():
            await history.append(client)
            due = max(due + 3 * RECORD_BYTES / LOAD_BYTES_PER_S, time.monotonic() - 0.5)
            await let_pass(due - time.monotonic(), what="the pace of the load")

    writer = asyncio.create_task(write())
    try:
        yield
    finally:
        stop.set()
        await writer
        await client.close()


def resident_bytes(cluster: LocalCluster, node_id: str) -> int:
    pid = cluster.process(node_id)["pid"]
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()
