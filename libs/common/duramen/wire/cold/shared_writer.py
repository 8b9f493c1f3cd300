"""Writes one Parquet file of several segments of a log, out of row groups that were archived.

Rows are copied, not entries: columns stay what they were, so that sums over entries and what is
known of batches that were stored compressed survive. Small row groups of a segment that follow one
another become one; none has rows of two segments. Memory: one row group, twice while it is encoded.

Not here: reading (`part_reader`), stores, and when a new file counts. Called by compaction.
Source: docs/protocol/archive.md "Files", ADR 0016.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pyarrow as pa

from duramen.ids import Epoch
from duramen.wire.cold.chain import Chain
from duramen.wire.cold.manifest import FilePart, RowGroup, SharedFile
from duramen.wire.cold.part_writer import HashingSink, open_parquet
from duramen.wire.cold.schema import ROW_GROUP_BYTES_MAX


@dataclass(slots=True)
class _WrittenSection:
    """What was written of one segment."""

    first_group: int
    identities: Chain = Chain()
    records: Chain = Chain()
    groups: list[RowGroup] = field(default_factory=list)


class SharedWriter:
    """One file; for each segment `begin` and its row groups in their order, then `finish`.

    Args:
        write: takes the file's next bytes; its errors pass through.
        name: of the file among those of its attempt.
        row_group_bytes: of a row group in memory, beyond which none is joined.
    """

    def __init__(
        self,
        write: Callable[[bytes], object],
        *,
        name: str,
        row_group_bytes: int = ROW_GROUP_BYTES_MAX,
    ) -> None:
        self._name = name
        self._row_group_bytes = row_group_bytes
        self._sink = HashingSink(write)
        self._writer = open_parquet(self._sink)
        self._sections: dict[Epoch, _WrittenSection] = {}
        self._section: _WrittenSection | None = None
        self._waiting: list[tuple[RowGroup, pa.Table]] = []
        self._group_count = 0

    def begin(self, epoch: Epoch, identities: Chain, records: Chain) -> None:
        """What follows is of the next segment.

        Args:
            epoch: above that of every segment before.
            identities, records: of all of the segment's entries, as its manifest says.
        """
        assert epoch > max(self._sections, default=Epoch(0)), epoch
        self._write_group()
        self._section = self._sections[epoch] = _WrittenSection(
            self._group_count, identities, records
        )

    def add(self, group: RowGroup, table: pa.Table) -> None:
        """Add the segment's next row group, as it was read and checked."""
        held_bytes = sum(one.nbytes for _, one in self._waiting)
        if self._waiting and (
            held_bytes + table.nbytes > self._row_group_bytes
            # Rows give totals only where each entry's follow from the one before.
            or self._waiting[-1][0].totals_after != group.totals_before
        ):
            self._write_group()
        self._waiting.append((group, table))

    def finish(self) -> dict[Epoch, FilePart]:
        """Write what is left and the footer; what each segment's manifest is to say of the file."""
        self._write_group()
        footer_offset = self._sink.position
        self._writer.close()
        footer_sha256, sha256 = self._sink.cut(), self._sink.whole.hexdigest()
        assert all(section.groups for section in self._sections.values()), "an empty segment"
        return {
            epoch: FilePart(
                name=self._name,
                size_bytes=self._sink.position,
                sha256=sha256,
                footer_sha256=footer_sha256,
                row_groups=tuple(section.groups),
                identities=section.identities,
                records=section.records,
                shared=SharedFile(section.first_group, self._group_count, footer_offset),
            )
            for epoch, section in self._sections.items()
        }

    def abandon(self) -> None:
        """Write nothing more: the file is not finished. No effect after `finish`."""
        self._sink.mute()
        self._writer.close()

    def _write_group(self) -> None:
        """Write what waits, as one row group."""
        if not self._waiting:
            return
        assert self._section is not None, "before the first segment"
        table = pa.concat_tables([table for _, table in self._waiting]).combine_chunks()
        groups = [group for group, _ in self._waiting]
        offset = self._sink.position
        self._writer.write_table(table, row_group_size=table.num_rows)
        self._section.groups.append(
            replace(
                groups[0],
                offset=offset,
                size_bytes=self._sink.position - offset,
                sha256=self._sink.cut(),
                row_count=table.num_rows,
                entry_count=sum(group.entry_count for group in groups),
                last_entry=groups[-1].last_entry,
                totals_after=groups[-1].totals_after,
            )
        )
        self._waiting = []
        self._group_count += 1
