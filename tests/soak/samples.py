"""What is looked at every few seconds: processes, ZooKeeper's nodes, disks against what is kept.

    rss, fd, threads  of each process of the cluster, from /proc
    zk                nodes of ZooKeeper by the first folder of their path, and all of them, both
                      without those of the segments that readers are shown
    disk              what bookies use beyond the copies of what the logs keep, and the same of the
                      archive: the space that nobody gave back

What the logs keep is asked of a read proxy: bytes of live segments, times Qw where bookies hold
them, once where the archive does. A process that does not answer is a fault of the run, not a gap.

Called by `run`; the verdicts are those of `slopes`. Source: docs/testing.md "Soak".
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, Final

from duramen.client.rest_client import RestClient
from duramen.cluster.layout import CLUSTER_NAME
from duramen.errors import DuramenError
from duramen.runtime.stores.zookeeper_store import ZooKeeperStore
from duramen.wire.metadata_json import Paths
from tests.chaos.cluster import ChaosCluster
from tests.chaos.load import NAMESPACE
from tests.soak.slopes import Sample, Tolerance

TOLERANCES: Final = {
    "rss": Tolerance(16.0, 0.05, "MiB"),
    # A Java heap is filled before it is collected; its bound is given on the command line.
    "rss zookeeper": Tolerance(96.0, 0.0, "MiB"),
    "fd": Tolerance(12.0, 0.05, ""),
    "threads": Tolerance(4.0, 0.0, ""),
    # A generation of logs more or less.
    "zk": Tolerance(30.0, 0.05, "nodes"),
    "disk": Tolerance(48.0, 0.05, "MiB"),
}
"""Growth in the second half of a run that is not called a leak, by the beginning of the name."""

MIB: Final = 1 << 20
_PATHS: Final = Paths(CLUSTER_NAME)
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_BLOCK_BYTES: Final = 512
_CONCURRENCY: Final = 16


class Sampler:
    """Samples of one cluster by name; to be started and closed.

    Args:
        cold: the folder of the archive.
    """

    def __init__(self, cluster: ChaosCluster, cold: Path) -> None:
        self.series: dict[str, list[Sample]] = defaultdict(list)
        self._cluster = cluster
        self._cold = cold
        self._store = ZooKeeperStore(cluster.zookeeper)
        self._client = RestClient(cluster.url(cluster.ids("readproxy")[0]))

    async def start(self) -> None:
        """Connect."""
        await self._store.start()

    async def close(self) -> None:
        """Give the session and the connections back."""
        await self._client.close()
        await self._store.close()

    async def take(self, at_s: float, logs: Collection[str]) -> None:
        """One sample of everything.

        Args:
            logs: those that are there; one that goes while this looks counts as gone.
        """
        found = await asyncio.to_thread(self._look_at_processes)
        kept = await self._list_kept(logs)
        found |= await self._count_nodes(kept["segments"])
        found |= await self._compare_disks(kept)
        for name, value in found.items():
            self.series[name].append(Sample(at_s, value))

    def _look_at_processes(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for pid, node_id in self._cluster.pids().items():
            for name, value in look_at(pid).items():
                found[f"{name} {node_id}"] = value
        return found

    async def _list_kept(self, logs: Collection[str]) -> Counter[str]:
        kept: Counter[str] = Counter()
        for log in logs:
            try:
                rows = (await self._client.list_segments(NAMESPACE, log))["segments"]
            except DuramenError as error:
                if error.code not in ("log_not_found", "log_deleted"):
                    raise
                continue
            kept.update(count_kept(rows))
        return kept

    async def _count_nodes(self, segments: int) -> dict[str, float]:
        limit = asyncio.Semaphore(_CONCURRENCY)

        async def count(path: str) -> int:
            async with limit:
                names = await self._store.children(path) or ()
            return 1 + sum(await asyncio.gather(*(count(f"{path}/{name}") for name in names)))

        parts = sorted(await self._store.children(_PATHS.root) or ())
        counts = await asyncio.gather(*(count(f"{_PATHS.root}/{part}") for part in parts))
        found = {f"zk {part}": float(number) for part, number in zip(parts, counts, strict=True)}
        found["zk logs"] -= segments
        return found | {"zk (all)": float(sum(counts) - segments)}

    async def _compare_disks(self, kept: Counter[str]) -> dict[str, float]:
        folders = [self._cluster.data_dir(node_id) for node_id in self._cluster.ids("bookie")]
        used = await asyncio.to_thread(lambda: sum(map(count_used, folders)))
        archived = await asyncio.to_thread(count_used, self._cold)
        return {
            "disk of bookies beyond what is kept": (used - kept["hot"]) / MIB,
            "disk of the archive beyond what is kept": (archived - kept["cold"]) / MIB,
        }


def look_at(pid: int) -> dict[str, float]:
    """Memory in MiB, descriptors and threads of a process; empty if it has ended."""
    process = Path(f"/proc/{pid}")
    try:
        pages = int((process / "statm").read_text().split()[1])
        return {
            "rss": pages * _PAGE_BYTES / MIB,
            "fd": float(len(list((process / "fd").iterdir()))),
            "threads": float(len(list((process / "task").iterdir()))),
        }
    except OSError:
        return {}


def count_kept(segments: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Segments, and bytes that bookies (all copies) and archive have to hold for them."""
    kept = {"segments": 0, "hot": 0, "cold": 0}
    for segment in segments:
        kept["segments"] += 1
        size_bytes = segment["bytes"] or 0
        if segment["hot_copies"] != "released":
            kept["hot"] += size_bytes * segment["write_quorum"]
        if segment["cold_copy"] is not None:
            kept["cold"] += size_bytes
    return kept


def count_used(folder: Path) -> int:
    """Bytes of blocks below a folder; what goes meanwhile counts as gone."""
    used = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                used += os.lstat(os.path.join(path, name)).st_blocks * _BLOCK_BYTES
            except FileNotFoundError:
                continue
    return used
