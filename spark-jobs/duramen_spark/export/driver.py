"""One export: for each log the archived segments behind the last one that the table has, in order.

It stops at the first segment that is not archived, or of which the metadata cannot be read: the
table is a prefix of the log, from where the archive begins. What is truncated before it was
exported is a gap, which is told; so is what lies in holes, or is lost.

Called by the command `duramen-spark export`. Source: docs/archive.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from duramen.core.flexible.segment import AnySegment
from duramen.core.log_node import LogNode
from duramen.core.metadata_log.listing import SegmentListing
from duramen.errors import DuramenError
from duramen.runtime.cold import NotThere
from duramen.units import agree
from duramen.wire.cold.manifest import Manifest, ManifestError
from duramen.wire.cold.rebuild import ColdDataError
from duramen_spark.compact.task import load_manifest
from duramen_spark.connection import Connection, list_logs
from duramen_spark.export.rows import read_rows
from duramen_spark.export.sinks import ExportConflict, TableSink, key_of

_TRIES: Final = 10
"""Of a log whose table others write too: each conflict is somebody's progress."""


@dataclass(slots=True)
class ExportReport:
    """What was exported: a row a log, and sentences about what failed or is missing."""

    logs: list[dict[str, Any]] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether the table has everything that is archived and due."""
        return not self.failures

    def to_json(self) -> dict[str, Any]:
        """The report as one JSON object."""
        return {
            "ok": self.is_good,
            "records": sum(row["records"] for row in self.logs),
            "segments": sum(row["segments"] for row in self.logs),
            "logs": self.logs,
            "gaps": self.gaps,
            "failures": self.failures,
        }

    def list_lines(self) -> list[str]:
        """The report as lines of text."""
        lines = [
            f"{row['log']}  {row['records']:,} records of {row['segments']} segments, up to "
            f"e{row['epoch']}"
            for row in self.logs
        ]
        lines += [f"GAP {text}" for text in self.gaps]
        return lines + [f"FAILED {text}" for text in self.failures]


class Export:
    """One export into one table."""

    def __init__(self, connection: Connection, sink: TableSink) -> None:
        self._connection = connection
        self._sink = sink
        self.report = ExportReport()

    async def run(self, selectors: Sequence[str] = ()) -> ExportReport:
        """Export the logs that match.

        Raises:
            MetadataError: ZooKeeper gives no answer.
        """
        for log in await list_logs(self._connection.nodes, selectors):
            try:
                listing = await self._connection.nodes.list_segments(log.log_id)
                await self._export_log(listing)
            except (DuramenError, ManifestError, ColdDataError, NotThere, ExportConflict) as error:
                name = f"{log.namespace}/{log.name}"
                self.report.failures.append(f"{name}: {type(error).__name__}: {error}")
        return self.report

    async def _export_log(self, listing: SegmentListing) -> None:
        log = listing.log
        key = key_of(self._connection.uuid, log.log_id)
        done = await asyncio.to_thread(self._sink.read_epoch, key)
        self._report_gap(log, done)
        row: dict[str, Any] = {
            "log": f"{log.namespace}/{log.name}",
            "log_id": str(log.log_id),
            "records": 0,
            "segments": 0,
            "epoch": done,
        }
        unreadable = next((epoch for epoch in listing.unreadable if epoch > done), log.next_epoch)
        if unreadable < log.next_epoch:
            text = f"{row['log']} e{unreadable}: no record of its metadata can be found"
            self.report.failures.append(text)
        for segment in listing.segments:
            if segment.epoch <= done:
                continue
            if segment.epoch > unreadable or not _is_archived(log, segment):
                break
            count, done = await self._export_segment(key, segment)
            row["records"] += count
            row["segments"] += count > 0
            row["epoch"] = done
        self.report.logs.append(row)

    async def _export_segment(self, key: str, segment: AnySegment) -> tuple[int, int]:
        """Records that were added, and the last epoch that the table has then."""
        connection = self._connection
        assert segment.totals is not None, segment
        if segment.totals.record_count == 0:
            return 0, segment.epoch
        manifest = await asyncio.to_thread(
            load_manifest, connection.store, connection.uuid, segment
        )
        for _ in range(_TRIES):
            try:
                rows = read_rows(connection.store, manifest)
                count = await asyncio.to_thread(self._sink.append, key, segment.epoch, rows)
            except ExportConflict:
                done = await asyncio.to_thread(self._sink.read_epoch, key)
                if done >= segment.epoch:
                    return 0, done
                continue
            self._report_missing(manifest)
            return count, segment.epoch
        raise ExportConflict(f"e{segment.epoch}: the table changed {_TRIES} times meanwhile")

    def _report_missing(self, manifest: Manifest) -> None:
        count = manifest.missing_record_count
        kinds = {"holes": manifest.holes, "lost": manifest.lost}
        ranges = [
            f"{kind} {', '.join(f'{first}-{last}' for first, last in found)}"
            for kind, found in kinds.items()
            if found
        ]
        if count:
            name, verb = f"{manifest.namespace}/{manifest.log}", "is" if count == 1 else "are"
            self.report.gaps.append(
                f"{name}: {agree(f'{count:,} records')} of e{manifest.epoch} {verb} in none of its "
                f"entries ({'; '.join(ranges)})"
            )

    def _report_gap(self, log: LogNode, done: int) -> None:
        if done and log.first_live_epoch > done + 1:
            self.report.gaps.append(
                f"{log.namespace}/{log.name}: epochs {done + 1} to {log.first_live_epoch - 1} were "
                "truncated before they were exported"
            )


def _is_archived(log: LogNode, segment: AnySegment) -> bool:
    """Whether the archive has all of it: what has moved without a copy has no entry."""
    is_moved = segment.epoch <= log.metadata.through
    return segment.cold_copy is not None or is_moved
