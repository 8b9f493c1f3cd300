"""What many released segments cost ZooKeeper, and how long their listing takes, on real processes.

    make bench-metadata
    make bench-metadata FIGUREFLAGS="--segments 10000"

A log of so many archived and released segments is put into ZooKeeper as it would stand there: their
nodes name cold copies that nobody reads here. A sequencer's keeper moves them to the metadata log
on three bookies. Told: bytes and nodes that they cost ZooKeeper before and after, how long the move
takes, a listing by a read proxy that has read nothing yet and by one that has, and what the new
owner of the log reads of them. Source: docs/benchmarks.md "Metadata logs".
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import httpx

from duramen.core.cold_copy import ColdCopy
from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment, Totals
from duramen.ids import BookieId, EntryId, Epoch, Incarnation, LogId, Member
from duramen.wire.metadata_json import encode_log, encode_segment, read_log
from tests.bench.machine import describe_machine
from tests.process.cluster import LocalCluster, create_log, running_plain_cluster
from tests.process.copies import ask_until, open_store
from tests.process.hasty_sequencer import hasty, plain
from tests.process.history import History
from tests.process.metadata_nodes import change_node
from tests.process.tiers import MOVE, fill, want_retention

LOG: Final = "long"
MEMBERS: Final = tuple(
    Member(BookieId(f"bookie-{number}"), Incarnation(f"{number}" * 32)) for number in range(3)
)
MOVE_S: Final = 600.0
AT_ONCE: Final = 64


def make_segment(log_id: LogId, epoch: Epoch) -> Segment:
    """A closed one of a thousand records, with a cold copy that was rechecked long ago."""
    fragments = (Fragment(EntryId(0), MEMBERS),)
    totals = Totals(1_000, 1_000_000, None, 1_000 * epoch)
    closed = Segment(log_id, epoch, Quorum(3, 3, 2), fragments).closed(
        last_entry=EntryId(99), totals=totals, start_seq_num=1_000 * (epoch - 1),
        completed_unix_ms=5, nonce=f"{epoch:024x}",
    )  # fmt: skip
    copy = ColdCopy(f"{epoch:032x}", f"{epoch:064x}", 500_000, 5, 6)
    return closed.with_cold_copy(copy, f"{epoch:024x}")


async def put_segments(cluster: LocalCluster, log_id: LogId, count: int) -> None:
    """The nodes, and the log node that says that they are released."""
    async with open_store(cluster) as (store, paths):
        for begin in range(1, count + 1, AT_ONCE):
            epochs = range(begin, min(begin + AT_ONCE, count + 1))
            await asyncio.gather(
                *(
                    store.create(
                        paths.segment(log_id, Epoch(epoch)),
                        encode_segment(make_segment(log_id, Epoch(epoch))),
                    )
                    for epoch in epochs
                )
            )

        def release(data: bytes) -> bytes:
            closed = replace(
                read_log(data), next_epoch=Epoch(count + 1), last_clean_epoch=count,
                totals=Totals(1_000 * count, 1_000_000 * count, None, 1_000 * count),
            )  # fmt: skip
            grown = closed.with_stateless().with_first_hot_epoch(Epoch(count + 1), "figures")
            return encode_log(grown)

        await change_node(store, paths.log(log_id), release)


async def weigh(cluster: LocalCluster, log_id: LogId) -> tuple[int, int]:
    """Nodes of the log's segments in ZooKeeper, and their bytes."""
    async with open_store(cluster) as (store, paths):
        names = await store.children(paths.segments(log_id)) or ()
        size_bytes = 0
        for name in names:
            found = await store.get(paths.segment(log_id, Epoch(int(name))))
            size_bytes += 0 if found is None else len(found.data)
        return len(names), size_bytes


async def wait_moved(cluster: LocalCluster, log_id: LogId, count: int) -> None:
    async def has_moved() -> bool:
        want_retention(cluster)
        async with open_store(cluster) as (store, paths):
            found = await store.get(paths.log(log_id))
        return found is not None and read_log(found.data).metadata.through == count

    await ask_until(has_moved, MOVE_S, f"{count} segments to move")


def list_s(cluster: LocalCluster, count: int) -> float:
    """Seconds until a read proxy has listed all segments."""
    url = f"{cluster.state()['read_url']}/v1/namespaces/default/logs/{LOG}/segments"
    begun_s = time.monotonic()
    answer = httpx.get(url, timeout=120)
    took_s = time.monotonic() - begun_s
    assert answer.status_code == 200, answer.text[:500]
    assert len(answer.json()["segments"]) >= count
    return took_s


def measure(cluster: LocalCluster, count: int) -> None:
    """Print the figures of so many segments."""
    log_id = LogId(int(asyncio.run(create_log(cluster, LOG, MOVE))))
    asyncio.run(put_segments(cluster, log_id, count))
    nodes, size_bytes = asyncio.run(weigh(cluster, log_id))
    print(f"before: {nodes} nodes of segments, {size_bytes} bytes", flush=True)
    cluster.start_anew(*cluster.ids("sequencer"), wrap=hasty)
    begun_s = time.monotonic()
    asyncio.run(wait_moved(cluster, log_id, count))
    nodes, size_bytes = asyncio.run(weigh(cluster, log_id))
    print(
        f"after: {nodes} nodes of segments, {size_bytes} bytes; moved in "
        f"{time.monotonic() - begun_s:.1f} s",
        flush=True,
    )
    cluster.start_anew(*cluster.ids("readproxy"), *cluster.ids("sequencer"), wrap=plain)
    print(f"listing: {list_s(cluster, count):.2f} s cold, {list_s(cluster, count):.2f} s again")
    begun_s = time.monotonic()
    fill(cluster, History(LOG), 1, rolls=False)
    (owner,) = cluster.ids("sequencer")
    url = cluster.process(owner)["admin_url"]
    statistics = httpx.get(f"{url}/v1/statistics", timeout=30).json()["metadata_logs"]
    print(
        f"takeover and first append: {time.monotonic() - begun_s:.2f} s; the new owner has read "
        f"{statistics['records']['entries_read']} entries of the metadata log"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--segments", type=int, default=10_000)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(describe_machine(Path(folder))))
        flags = ("--no-restart", "--sequencers", "1")
        with running_plain_cluster(Path(folder) / "c", *flags) as cluster:
            measure(cluster, options.segments)


if __name__ == "__main__":
    main()
