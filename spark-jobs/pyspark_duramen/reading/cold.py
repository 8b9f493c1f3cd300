"""Reads a range of an archived segment from the archive's files, as rows; no service is asked.

The segment's node names the copy and vouches for its manifest, the manifest for every row group: no
byte is given out whose SHA-256 is not theirs. The next row group is fetched while one is made into
rows. Row groups begin anew behind a hole, and say how many records precede them: so a hole is told
from here, while what is lost is the proxy's to tell. Whatever is wrong (a copy that compaction
replaced, a damaged file, a store that is down) is no reason to fail, for a proxy can be asked:
`NotFromHere` says how far it came.

Called by `reading.task`, in executors. Source: docs/protocol/archive.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from duramen.ids import Epoch, LogId
from duramen.runtime.cold import ColdStoreDown, NotThere, find_manifest, open_cold_store
from duramen.wire.cold.manifest import Manifest, ManifestError
from duramen.wire.cold.part_reader import PartReader
from duramen.wire.cold.paths import LAYOUT
from duramen.wire.cold.rebuild import ColdDataError
from pyspark_duramen.reading.gaps import GapReason, RecordGap, make_gap_row
from pyspark_duramen.reading.ranges import ColdPlace, LogRange
from pyspark_duramen.table import ARROW_TYPES

_CLUSTER_COUNT_MAX: Final = 64
"""Clusters that share an archive: a listing is looked through no further."""

_MADE_HERE: Final = frozenset({"namespace", "log", "timestamp", "gap"})
"""Columns that the files do not have."""


class NotFromHere(Exception):
    """The archive does not give the records from `at` on; the text says why."""

    def __init__(self, at: int, why: Exception) -> None:
        super().__init__(f"{type(why).__name__}: {why}")
        self.at = at


class _WantedGroup(NamedTuple):
    """A row group of which something is wanted."""

    reader: PartReader
    path: str
    group_index: int
    first: int
    """Sequence number at which it begins."""


class ColdReader:
    """Reads ranges one after another; one for each task. Holds two row groups."""

    def __init__(self, url: str, schema: pa.Schema) -> None:
        self._store = open_cold_store(url)
        self._schema = schema
        self._cluster: str | None = None
        self._fetching = ThreadPoolExecutor(1, "duramen-cold")

    def close(self) -> None:
        """End the thread."""
        self._fetching.shutdown(wait=False, cancel_futures=True)

    def read(self, wanted: LogRange) -> Iterator[pa.RecordBatch]:
        """The rows of a range of one segment, in order, a row group's at a time.

        Raises:
            NotFromHere: a proxy has to be asked for the rest.
        """
        assert wanted.cold is not None, wanted
        at = wanted.first
        try:
            manifest = self._find_manifest(wanted.cold)
            if manifest.lost:
                raise NotThere("a proxy tells what is lost")
            for group, data in self._fetch(self._list_groups(manifest, wanted)):
                if manifest.holes and group.first > at:
                    yield self._make_hole_row(at, group.first, wanted)
                    at = group.first
                rows = self._make_rows(group, data, wanted, at)
                if rows is not None:
                    yield rows
                    at += len(rows)
            if manifest.holes and at < wanted.end <= _end_of(manifest):
                yield self._make_hole_row(at, wanted.end, wanted)
            elif at != wanted.end:
                raise ColdDataError(f"its rows end at {at}, not at {wanted.end}")
        except (NotThere, ManifestError, ColdDataError, ColdStoreDown) as error:
            raise NotFromHere(at, error) from error

    def _make_hole_row(self, first: int, end: int, wanted: LogRange) -> pa.RecordBatch:
        return make_gap_row(RecordGap(GapReason.HOLE, first, end), wanted.log, self._schema)

    def _find_manifest(self, place: ColdPlace) -> Manifest:
        def find(cluster: str) -> Manifest:
            log_id, epoch = LogId(place.log_id), Epoch(place.epoch)
            return find_manifest(
                self._store, cluster, log_id, epoch, attempt=place.attempt,
                sha256=place.manifest_sha256,
            )  # fmt: skip

        if self._cluster is not None:
            return find(self._cluster)
        # No API tells a cluster's uuid: it is the one below which this very manifest lies.
        tried: set[str] = set()
        for file in self._store.list(LAYOUT):
            cluster = file.path.split("/")[1]
            if cluster in tried:
                continue
            tried.add(cluster)
            try:
                manifest = find(cluster)
            except (NotThere, ManifestError):
                if len(tried) >= _CLUSTER_COUNT_MAX:
                    break
                continue
            self._cluster = cluster
            return manifest
        raise NotThere(f"no archive of log {place.log_id}, epoch {place.epoch} is in this store")

    def _list_groups(self, manifest: Manifest, wanted: LogRange) -> list[_WantedGroup]:
        start = manifest.start_seq_num
        found = []
        for part in manifest.files:
            path = manifest.path_of(part)
            reader = PartReader(
                partial(self._store.read, path), part, ledger_id=manifest.ledger_id,
                start_seq_num=start,
            )  # fmt: skip
            for index, group in enumerate(part.row_groups):
                first = start + group.totals_before.record_count
                end = start + group.totals_after.record_count
                if first < wanted.end and wanted.first < end:
                    found.append(_WantedGroup(reader, path, index, first))
        return found

    def _fetch(self, groups: list[_WantedGroup]) -> Iterator[tuple[_WantedGroup, bytes]]:
        """The bytes of row groups, each asked for while the one before is used."""

        def ask(group: _WantedGroup) -> Future[bytes]:
            section = group.reader.part.row_groups[group.group_index]
            return self._fetching.submit(
                self._store.read, group.path, section.offset, section.size_bytes
            )

        coming = ask(groups[0]) if groups else None
        for index, group in enumerate(groups):
            assert coming is not None
            data = coming.result()
            coming = ask(groups[index + 1]) if index + 1 < len(groups) else None
            yield group, data

    def _make_rows(
        self, group: _WantedGroup, data: bytes, wanted: LogRange, at: int
    ) -> pa.RecordBatch | None:
        group.reader.check_group(group.group_index, data)
        columns = [name for name in self._schema.names if name not in _MADE_HERE]
        needed = {*columns, "seq_num"}
        if "timestamp" in self._schema.names:
            needed.add("timestamp_ms")
        table = group.reader.decode_table(group.group_index, data, sorted(needed))
        seq_nums = table.column("seq_num")
        # Control entries have no sequence number.
        mask = pc.and_kleene(
            pc.greater_equal(seq_nums, wanted.first), pc.less(seq_nums, wanted.end)
        )
        table = table.filter(mask).combine_chunks()
        if not len(table):
            return None
        first, last = table["seq_num"][0].as_py(), table["seq_num"][-1].as_py()
        if (first, last) != (at, at + len(table) - 1):
            raise ColdDataError(f"rows {first} to {last}, {len(table)} of them, at {at}")
        arrays = [_make_column(field, table, wanted.log) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _end_of(manifest: Manifest) -> int:
    """The sequence number behind the segment."""
    return manifest.start_seq_num + manifest.totals.record_count


def _make_column(field: pa.Field, table: pa.Table, log: tuple[str, str]) -> pa.Array:
    count = len(table)
    match field.name:
        case "namespace" | "log":
            return pa.repeat(pa.scalar(log[field.name == "log"], field.type), count)
        case "gap":
            return pa.nulls(count, field.type)
        case "timestamp":
            times = table.column("timestamp_ms").cast(pa.timestamp("ms", tz="UTC"))
            column = times.cast(ARROW_TYPES["timestamp"])
        case _:
            column = table.column(field.name).cast(field.type)
    chunks = column.chunks
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
