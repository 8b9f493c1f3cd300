"""A cluster with logs of every kind of record, runs of the archive job, and its files.

Runs are processes of their own, as an operator starts them: in threads of that process, or on
Spark. What comes back is read from the files alone, by the formats' own reader.

Used by the tests of this folder. Source: docs/testing.md "Real processes and disks", invariant A1.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from duramen.client import Client
from duramen.client.rest_client import RestClient
from duramen.core.flexible.segment import AnySegment
from duramen.ids import Dlsn, EntryId, Epoch, LogId
from duramen.runtime.cold import find_manifest, open_cold_store
from duramen.runtime.stores.zookeeper_store import ZooKeeperStore
from duramen.wire.cold.manifest import Manifest
from duramen.wire.cold.part_reader import PartReader
from duramen.wire.cold.paths import manifest_path
from duramen.wire.edge.batch_codec import Codec
from duramen.wire.metadata_json import Paths
from duramen.wire.record_batch import BatchProducer, Header, encode_batch
from duramen.wire.record_json import DeliveredRecord
from duramen_spark.archive.bookie_source import BookieSource
from duramen_spark.archive.cluster_nodes import ClusterNodes
from duramen_spark.archive.commit import read_stored_manifest
from duramen_spark.cluster_address import ClusterAddress
from tests.process.cluster import LocalCluster, run
from tests.process.copies import close_segment
from tests.process.times import HANG_S

NAMESPACE = "default"
MIB = 1 << 20


@dataclass(frozen=True)
class World:
    """A running cluster and its archive."""

    cluster: LocalCluster
    cold: Path

    @property
    def cold_url(self) -> str:
        """The cold store's URL."""
        return self.cold.as_uri()

    def command(self, *flags: str, runner: str = "threads") -> list[str]:
        """The command line of a run."""
        return [*self._place("archive", *flags), "--runner", runner]

    def _place(self, *arguments: str) -> list[str]:
        state = self.cluster.state()
        command = [sys.executable, "-m", "duramen_spark.main", *arguments]
        command += ["--zookeeper", state["zookeeper"], "--cluster", state["cluster"]]
        return [*command, "--cold-store", self.cold_url, "--json"]

    def retain(self, *flags: str) -> dict[str, Any]:
        """The report of the archive's retention."""
        done = subprocess.run(
            self._place("retention", *flags), capture_output=True, timeout=HANG_S, check=False
        )
        assert done.returncode == 0, done.stderr.decode()
        report: dict[str, Any] = json.loads(done.stdout)
        return report

    def archive(
        self, *flags: str, runner: str = "threads", env: dict[str, str] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Exit code and report of a run; a run that was killed has none."""
        done = subprocess.run(
            self.command(*flags, runner=runner),
            env={**os.environ, **(env or {})},
            capture_output=True,
            timeout=HANG_S,
            check=False,
        )
        assert done.stdout or done.returncode < 0, done.stderr.decode()
        return done.returncode, json.loads(done.stdout) if done.stdout else {}

    async def _with_nodes(self, use: Any) -> Any:
        state = self.cluster.state()
        store = ZooKeeperStore(state["zookeeper"])
        try:
            await store.start()
            address = ClusterAddress(state["zookeeper"], state["cluster"])
            source = BookieSource(address, store)
            return await use(ClusterNodes(store, Paths(state["cluster"]), source.read_run))
        finally:
            await store.close()

    def list_segments(self, log_id: LogId) -> list[AnySegment]:
        """Closed segments of a log."""

        async def use(nodes: ClusterNodes) -> list[AnySegment]:
            log = await nodes.read_log(log_id)
            assert log is not None
            return await nodes.list_stored(log)

        found: list[AnySegment] = run(self._with_nodes(use))
        return found

    def read_uuid(self) -> str:
        """The cluster's uuid."""

        async def use(nodes: ClusterNodes) -> str | None:
            return await nodes.read_uuid()

        return str(run(self._with_nodes(use)))

    def list_files(self) -> list[str]:
        """Every file of the archive, relative to its root."""
        return sorted(file.path for file in open_cold_store(self.cold_url).list(""))

    def list_manifests(self, log_id: LogId) -> list[Manifest]:
        """Manifests of a log by epoch; asserts that each one's files are there, whole in size.

        Of a segment that is not marked the one under the well-known name, if it is there.
        """
        store, cluster = open_cold_store(self.cold_url), self.read_uuid()
        found = []
        for segment in self.list_segments(log_id):
            place, copy = (cluster, log_id, segment.epoch), segment.cold_copy
            if copy is None:
                stored = read_stored_manifest(store, manifest_path(*place))
                if stored is None:
                    continue
                manifest = stored[0]
            else:
                manifest = find_manifest(
                    store, *place, attempt=copy.attempt, sha256=copy.manifest_sha256
                )
            for part in manifest.files:
                assert store.size(manifest.path_of(part)) == part.size_bytes
            found.append(manifest)
        return found

    def read_archive(self, log_id: LogId) -> list[DeliveredRecord]:
        """Every record of a log out of the archive."""
        store = open_cold_store(self.cold_url)
        rows = []
        for manifest in self.list_manifests(log_id):
            for part in manifest.files:
                path = manifest.path_of(part)
                reader = PartReader(
                    partial(store.read, path),
                    part,
                    ledger_id=manifest.ledger_id,
                    start_seq_num=manifest.start_seq_num,
                )
                for index in range(len(part.row_groups)):
                    assert list(reader.read_entries(index))
                    rows += [
                        _row_of(row)
                        for row in reader.read_table(index).to_pylist()
                        if row["seq_num"] is not None
                    ]
        return rows

    def read_log(self, name: str) -> list[DeliveredRecord]:
        """Every record of a log by the read proxy."""
        return run(_read_log(self.cluster.state()["read_url"], name))


def _row_of(row: dict[str, Any]) -> DeliveredRecord:
    headers = tuple((pair["name"], pair["value"]) for pair in row["headers"])
    dlsn = Dlsn(Epoch(row["epoch"]), EntryId(row["entry"]), row["slot"])
    return DeliveredRecord(
        row["seq_num"], dlsn, row["txid"], row["timestamp_ms"], headers, row["body"]
    )


async def _read_log(url: str, name: str) -> list[DeliveredRecord]:
    async with Client(url) as client:
        batches = client[NAMESPACE][name].read("head")
        return [record async for batch in batches for record in batch]


def make_batches() -> list[bytes]:
    """Record batches of every kind, each to be one append."""
    producer = BatchProducer("archived", 3, 0)
    headers: list[list[Header]] = [[(b"kind", b"a"), (b"kind", b"b"), (b"", b"")], []]
    return [
        encode_batch([b"plain", b"", b"third"], 1_000),
        encode_batch([b"t5"], 1_001, txids=[5]),
        encode_batch([b"t5 again", b"t6"], 1_002, txids=[5, 6]),
        encode_batch([b"with", b"headers"], 1_003, headers=headers, txids=[6, 6]),
        encode_batch([b""] * 3, 1_004),
        encode_batch([b"x", b"y"], 0, timestamps_ms=[1_010, 1_009], producer=producer),
        encode_batch([b"z"], 1_011, producer=producer._replace(sequence=1)),
        encode_batch([b"press me " * 300] * 4, 1_012, codec=Codec.ZSTD),
        encode_batch([bytes(range(256)) * 4096], 1_013),
        encode_batch([b"%d" % index for index in range(2_000)], 1_014),
    ]


async def truncate_log(url: str, name: str, to: str) -> None:
    """Hide what lies before a position."""
    client = RestClient(url)
    try:
        await client.truncate_log(NAMESPACE, name, to)
    finally:
        await client.close()


async def fill_log(
    cluster: LocalCluster, name: str, *, rolls: int, tiering: str = "copy", **config: Any
) -> LogId:
    """A log with every kind of record, closed segments of different sizes and an open one.

    The first segment has every kind and a fencing token; the others a few records, of producers.
    """
    client = RestClient(cluster.state()["write_url"])
    try:
        await client.ensure_log(NAMESPACE, name, {"tiering": {"policy": tiering}, **config})
        await client.fence_log(NAMESPACE, name, "a token")
        await client.fence_log(NAMESPACE, name, "")
        for batch in make_batches():
            await client.append(NAMESPACE, name, batch)
        for index in range(rolls):
            await close_segment(cluster, name)
            producer = BatchProducer("later", 0, index)
            bodies = [b"%d/%d" % (index, place) for place in range(5)]
            await client.append(NAMESPACE, name, encode_batch(bodies, 2_000, producer=producer))
        return LogId(int((await client.show_log(NAMESPACE, name))["log_id"]))
    finally:
        await client.close()


async def fill_briefly(cluster: LocalCluster, name: str) -> LogId:
    """A log with two closed segments of a dozen small entries each, and an open one."""
    client = RestClient(cluster.state()["write_url"])
    try:
        await client.ensure_log(NAMESPACE, name, {"tiering": {"policy": "copy"}})
        for segment in range(2):
            for entry in range(12):
                bodies = [b"%d/%d/%d " % (segment, entry, place) * 20 for place in range(5)]
                producer = BatchProducer("brief", segment, entry)
                await client.append(NAMESPACE, name, encode_batch(bodies, entry, producer=producer))
            await close_segment(cluster, name)
        await client.append(NAMESPACE, name, encode_batch([b"open"], 0))
        return LogId(int((await client.show_log(NAMESPACE, name))["log_id"]))
    finally:
        await client.close()
