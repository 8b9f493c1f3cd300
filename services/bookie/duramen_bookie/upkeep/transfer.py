"""Copying what is alive into new entry log files, piece by piece: settling and compaction alike.

A `Transfer` reads a source in the order of (ledger, entry), verifies every record and writes new
files; nothing that it wrote counts before a checkpoint names it, and whatever stops it leaves files
that it removes itself or that the next start does. It runs on a thread, one piece at a time.

Not here: when to settle or compact and how fast (`settling`, `compaction`), the checkpoint and the
switch (`storage`). Source: docs/bookie.md "Upkeep", docs/protocol/entry-log.md "Checkpoint".
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from duramen.core.entry_table import EntryTable
from duramen.ids import EntryId, LedgerId
from duramen.limits import ENTRY_LOG_FILE_BYTES
from duramen.units import MIB
from duramen.wire.disk.checkpoint_format import EntryLogFileRef
from duramen.wire.disk.journal_format import (
    HEADER_BYTES,
    JournalRecord,
    Location,
    parse_header,
    record_bytes,
)
from duramen.wire.disk.store_record import take_record
from duramen.wire.entry import EntryError
from duramen.wire.flexible.envelope import ENVELOPE_BYTES_MAX
from duramen_bookie.entry_log.data_file import DataFileWriter
from duramen_bookie.entry_log.entry_log import EntryLog, ref_of
from duramen_bookie.entry_log.entry_log_file import EntryLogFile
from duramen_bookie.entry_log.index_file import IndexDamaged
from duramen_bookie.file_system import DiskFile
from duramen_bookie.index import EntryPlace, list_settleable

PIECE_BYTES: Final = 1 * MIB
"""What is copied between two looks at the pace."""

Source = Iterator[tuple[LedgerId, EntryId, JournalRecord | None]]
"""Entries in the order of (ledger, entry); None: damaged."""


class Transfer:
    """New entry log files, from a source.

    Args:
        entry_log: where the files will be.
        first_file_id: of the first of them; never used before by a file in force.
        directory_index: of the ledger directory that they are made in.
        source: consumed by `pieces`.
        covered_file_id: journal files up to here are not needed once this is in force.
        replaced: entry log files that are not needed any more then.

    Attributes:
        files: finished ones.
        moved: entries that are in them, ascending, by ledger.
        damaged: entries that could not be copied.
        is_kept: a checkpoint that names the files may be found.
    """

    def __init__(
        self,
        entry_log: EntryLog,
        *,
        first_file_id: int,
        directory_index: int,
        source: Source,
        covered_file_id: int,
        replaced: Sequence[int] = (),
    ) -> None:
        self.covered_file_id = covered_file_id
        self.replaced = tuple(replaced)
        self.next_file_id = first_file_id
        self.files: list[EntryLogFileRef] = []
        self.moved: dict[LedgerId, array[int]] = {}
        self.damaged: list[tuple[LedgerId, EntryId]] = []
        self.copied_bytes = 0
        self._entry_log = entry_log
        self._directory_index = directory_index
        self._source = source
        self._writer: DataFileWriter | None = None
        self.is_kept = False

    def pieces(self) -> Iterator[int]:
        """Copy everything; yields the bytes of each piece, which was copied by then.

        Raises:
            OSError: a new file cannot be written: `abandon` it.
        """
        size = 0
        for ledger_id, entry_id, record in self._source:
            if record is None or not self._put(record):
                self.damaged.append((ledger_id, entry_id))
                continue
            moved = self.moved.get(ledger_id)
            if moved is None:
                moved = self.moved[ledger_id] = array("I")
            moved.append(entry_id)
            size += record.size_bytes
            if size >= PIECE_BYTES:
                self.copied_bytes += size
                yield size
                size = 0
        self._finish_file()
        self.copied_bytes += size
        yield size

    def keep(self) -> None:
        """A checkpoint that names the files may be found: `abandon` leaves them."""
        self.is_kept = True

    def abandon(self) -> None:
        """Remove what was written, as far as the disk lets; the next start removes the rest.

        Raises:
            OSError: as `DataFileWriter.abandon`.
        """
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.abandon()
        if not self.is_kept:
            self._entry_log.remove_files(self.files)

    def _put(self, record: JournalRecord) -> bool:
        if self._writer is None:
            self._writer = self._entry_log.create(self.next_file_id, self._directory_index)
            self.next_file_id += 1
        try:
            self._writer.put(record)
        except EntryError:
            return False
        if self._writer.size_bytes >= ENTRY_LOG_FILE_BYTES:
            self._finish_file()
        return True

    def _finish_file(self) -> None:
        if self._writer is not None:
            finished = self._writer.finish()
            self._writer = None
            self.files.append(ref_of(finished, self._directory_index))


# --- Sources -------------------------------------------------------------------------------------


def read_journal(
    tables: Iterable[tuple[LedgerId, EntryTable]],
    covered_file_id: int,
    files: Mapping[int, DiskFile],
    seed: int,
) -> Source:
    """What lies in journal files up to `covered_file_id`, by a copy of the index.

    Args:
        files: the journal's, open until the transfer is over.
        seed: `journal_format.seed_of` the bookie's incarnation.
    """
    for ledger_id, table in tables:
        places = list_settleable(table, covered_file_id)
        for run in _split_runs(places):
            for place, record in zip(run, _read_run(files, run, seed), strict=True):
                is_same = record is not None and (
                    record.ledger_id == ledger_id and record.entry_id == place.entry_id
                )
                yield ledger_id, place.entry_id, record if is_same else None


def read_entry_log_file(file: EntryLogFile, entry_log: EntryLog) -> Source:
    """What of one entry log file is in force: of ledgers that are alive, and no newer file has it.

    Raises:
        IndexDamaged: it is to be made anew first; the file knows that by then.
    """
    try:
        for ledger in file.index.ledgers():
            if not entry_log.is_alive(ledger.ledger_id):
                continue
            end = ledger.first_row + ledger.row_count
            for row, record in file.list_records(ledger.first_row, end):
                if entry_log.is_newest(file, row):
                    yield ledger.ledger_id, row.entry_id, record
    except IndexDamaged:
        file.is_index_damaged = True
        raise


def _split_runs(places: Sequence[EntryPlace]) -> Iterator[list[EntryPlace]]:
    """Places in parts that lie side by side in one file and are read at once; what lies between
    two of them is no longer than an envelope."""
    run: list[EntryPlace] = []
    size = 0
    last_file_id = end = 0
    for place in places:
        file_id, offset, length = place.location
        record_size = record_bytes(length)
        is_beside = file_id == last_file_id and 0 <= offset - end <= ENVELOPE_BYTES_MAX
        if run and (not is_beside or size + record_size > PIECE_BYTES):
            yield run
            run, size = [], 0
        run.append(place)
        size += record_size
        last_file_id, end = file_id, offset + record_size
    if run:
        yield run


def _read_run(
    files: Mapping[int, DiskFile], run: Sequence[EntryPlace], seed: int
) -> list[JournalRecord | None]:
    """One read for all of them; if it fails, one for each: a bad sector costs what is in it.

    What may be the last one's envelope is read along, unless that alone fails.
    """
    first, last = run[0].location, run[-1].location
    base = first.offset - HEADER_BYTES
    size = last.offset + last.length_bytes - base
    for more in (ENVELOPE_BYTES_MAX, 0):
        with contextlib.suppress(OSError):
            data = files[first.file_id].pread(size + more, base)
            return [_cut_record(data, place.location, base, seed) for place in run]
    if len(run) == 1:
        return [None]
    return [_read_run(files, [place], seed)[0] for place in run]


def _cut_record(data: bytes, location: Location, base: int, seed: int) -> JournalRecord | None:
    start = location.offset - base
    header = parse_header(
        data, start - HEADER_BYTES, file_id=location.file_id,
        offset=location.offset - HEADER_BYTES, seed=seed,
    )  # fmt: skip
    if header is None or header.entry_bytes != location.length_bytes:
        return None
    taken = take_record(header, data[start : start + header.body_bytes])
    return None if taken is None else taken.record
