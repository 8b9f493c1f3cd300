"""The entry log: the set of settled files that is in force, and reading of runs from it.

A ledger's entries may be in several files; the newest file (the highest id) that has an entry is
asked for it. What is not found or not intact is a fault, never an absence: whether an entry exists
is the core's to say, and the entry log is asked for entries that do.

Files are added, replaced and retired by one thread at a time while any thread reads; a file that is
retired closes when its last read ends. Not here: the checkpoint, which must name a file before it
counts, and what to settle or compact. Called by the bookie's storage and upkeep.
Source: docs/protocol/entry-log.md, docs/protocol/wire.md "what an answer's status allows one to
conclude", R15.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from duramen.ids import EntryId, Incarnation, LedgerId
from duramen.wire.disk.checkpoint_format import EntryLogFileRef
from duramen.wire.disk.entry_log_format import IndexRow
from duramen_bookie.entry_log.contents import ContentRun, group_contents
from duramen_bookie.entry_log.data_file import (
    DataFileWriter,
    FinishedFile,
    RebuiltIndex,
    index_path,
    rebuild_index,
)
from duramen_bookie.entry_log.entry_log_file import EntryLogFile
from duramen_bookie.entry_log.index_file import IndexDamaged
from duramen_bookie.file_system import FileSystem

_NAME: Final = re.compile(r"(\d{6,18})\.(?:de|idx|idx\.new)")

_ANY_BYTES: Final = 1 << 62
"""No bound of a run: its entries are not read."""

READ_AHEAD_BYTES_MIN: Final = 64 << 10
"""A run that long is taken for a part of a catch-up read, whose next part is asked for soon."""


class ReadFault(Enum):
    """Why a read ends before the entry that it was to go on with."""

    UNREADABLE = "unreadable"
    """The entry is damaged or lost: the core is to be told."""
    INDEX = "index"
    """An index cannot say where it is: answer UNKNOWN, have the index made anew, ask again."""


class EntryLogRead(NamedTuple):
    """Entries without a gap from the first that was asked for; their bytes are verified."""

    entries: list[tuple[EntryId, memoryview]]
    fault: ReadFault | None = None


class EntryLog:
    """The files in force.

    Args:
        fs: the disk.
        directories: where files are; `EntryLogFileRef.directory_index` counts in them.
        incarnation: of the bookie.
        is_alive: whether a ledger was not dropped; called on the thread that adds a file.

    Invariants:
        1. A file is asked only for ledgers that were alive when it was added and were not dropped
        since. 2. A file's live bytes are those of these ledgers.
    """

    def __init__(
        self,
        fs: FileSystem,
        directories: Sequence[str],
        incarnation: Incarnation,
        is_alive: Callable[[LedgerId], bool],
    ) -> None:
        self._fs = fs
        self._directories = tuple(directories)
        self._incarnation = incarnation
        self._is_alive = is_alive
        self.keeps_envelopes = False
        """Whether new files are of the version in which there may be envelopes."""
        self._lock = threading.Lock()
        self._files: dict[int, EntryLogFile] = {}
        self._files_of: dict[LedgerId, tuple[EntryLogFile, ...]] = {}
        """Per ledger, newest first."""

    # --- Files -----------------------------------------------------------------------------------

    def path_of(self, file_id: int, directory_index: int) -> str:
        """Where a data file is."""
        return f"{self._directories[directory_index]}/{file_id:06d}.de"

    def create(self, file_id: int, directory_index: int) -> DataFileWriter:
        """Begin a new file, which is in force once it is finished, in a checkpoint, and added.

        Raises:
            OSError: the disk is full or failed.
        """
        path = self.path_of(file_id, directory_index)
        return DataFileWriter(
            self._fs, path, file_id, self._incarnation, has_envelopes=self.keeps_envelopes
        )

    def open_file(self, ref: EntryLogFileRef) -> EntryLogFile:
        """Open a finished file; it is not in force yet.

        Raises:
            IndexDamaged: the index is not the one that the checkpoint names, or damaged; it can
                be made anew.
            EntryLogFormatError: the index is of a version that is not known here.
            OSError: the data file is missing or cannot be opened: what it held is lost.
        """
        path = self.path_of(ref.file_id, ref.directory_index)
        return EntryLogFile.open(self._fs, path, ref, self._incarnation)

    def rebuild_index(self, ref: EntryLogFileRef) -> RebuiltIndex:
        """Make a file's index anew; `open_file` and `add` then put it in place of the old one.

        Raises:
            OSError, JournalFormatError, EntryLogFormatError: as `data_file.rebuild_index`.
        """
        path = self.path_of(ref.file_id, ref.directory_index)
        return rebuild_index(self._fs, path, ref.file_id, self._incarnation)

    def add(self, file: EntryLogFile) -> None:
        """Put a file in force, instead of the one with the same id if there is one."""
        with self._lock:
            old = self._files.get(file.file_id)
            self._files[file.file_id] = file
        for ledger in file.index.ledgers():
            # The lock is taken for each, so that a read or a drop never waits for all of them.
            with self._lock:
                if self._is_alive(ledger.ledger_id):
                    others = self._files_of.get(ledger.ledger_id, ())
                    files = [file, *[other for other in others if other is not old]]
                    files.sort(key=_file_id, reverse=True)
                    self._files_of[ledger.ledger_id] = tuple(files)
                    file.live_bytes += ledger.record_bytes
        if old is not None:
            self._take_out(old)

    def retire(self, file_ids: Iterable[int]) -> None:
        """Take files out of force and remove them; no checkpoint may name them any more.

        Raises:
            OSError: files are left, which `remove_leftovers` of the next start removes.
        """
        with self._lock:
            files = [self._files.pop(file_id) for file_id in file_ids]
        for file in files:
            self._take_out(file)
        for file in files:
            self._fs.remove(file.path)
            self._fs.remove(index_path(file.path))

    def remove_files(self, refs: Iterable[EntryLogFileRef]) -> None:
        """Remove finished files that no checkpoint names and that were never put in force.

        Raises:
            OSError: files are left, which `remove_leftovers` of the next start removes.
        """
        for ref in refs:
            path = self.path_of(ref.file_id, ref.directory_index)
            self._fs.remove(path)
            self._fs.remove(index_path(path))

    def remove_leftovers(self, refs: Iterable[EntryLogFileRef]) -> list[str]:
        """Remove what an interrupted upkeep left: every entry log file that a checkpoint does not
        name.

        Args:
            refs: of a checkpoint that was read whole; without one nothing may be removed.

        Returns:
            The paths that were removed.

        Raises:
            OSError: the disk failed.
        """
        named = {(ref.directory_index, ref.file_id) for ref in refs}
        removed = []
        for directory_index, directory in enumerate(self._directories):
            for name in self._fs.list_names(directory):
                match = _NAME.fullmatch(name)
                if match is None:
                    continue
                if name.endswith(".new") or (directory_index, int(match[1])) not in named:
                    self._fs.remove(f"{directory}/{name}")
                    removed.append(f"{directory}/{name}")
        return removed

    def close(self) -> None:
        """Close every file; reads that are under way end first."""
        with self._lock:
            files = list(self._files.values())
            self._files.clear()
            self._files_of.clear()
        for file in files:
            file.retire()

    # --- Entries ---------------------------------------------------------------------------------

    def read(self, ledger_id: LedgerId, first: EntryId, count: int, bytes_max: int) -> EntryLogRead:
        """Entries first, first + 1, … up to `count`, one at least, while they fit.

        Blocks for the disk. An entry that is here but is not wanted costs nothing, so `count` may
        be all that the core has settled.

        Args:
            bytes_max: of the entries together.

        Returns:
            Fewer than `count` entries without a fault if `bytes_max` is reached.
        """
        entries: list[tuple[EntryId, memoryview]] = []
        fault: ReadFault | None = None
        files = self._pin_files(ledger_id)
        try:
            while len(entries) < count and fault is None:
                left = count - len(entries)
                entry_id = EntryId(first + len(entries))
                run = _find_run(files, ledger_id, entry_id, left, bytes_max)
                if run is None:
                    is_known = not any(other.is_index_damaged for other in files)
                    fault = ReadFault.UNREADABLE if is_known else ReadFault.INDEX
                    break
                file, rows = run
                size = sum([row.length_bytes for row in rows])
                if entries and size > bytes_max:
                    break
                found = file.data.read_entries(rows)
                entries += found
                bytes_max -= size
                if len(found) < len(rows):
                    fault = ReadFault.UNREADABLE
                elif len(rows) < left:
                    _read_ahead(file, rows)
        finally:
            for file in files:
                file.unpin()
        return EntryLogRead(entries, fault)

    def identify(
        self, ledger_id: LedgerId, first: EntryId, count: int, bytes_max: int
    ) -> tuple[list[tuple[EntryId, int | None, int]], ReadFault | None]:
        """Entries first, first + 1, … up to `count`, one at least, read anew past the page cache.

        Blocks for the disk.

        Returns:
            Each with its identity checksum, None if it is damaged, and its bytes; none of them with
            a fault if it is not known where `first` is.

        Raises:
            JournalFormatError: an intact record of a version that is not known here.
        """
        files = self._pin_files(ledger_id)
        try:
            run = _find_run(files, ledger_id, first, count, bytes_max)
            if run is None:
                is_known = not any(other.is_index_damaged for other in files)
                return [], ReadFault.UNREADABLE if is_known else ReadFault.INDEX
            file, rows = run
            records = file.data.read_records(rows, is_direct=True)
            return [
                (row.entry_id, None if record is None else row.crc, row.length_bytes)
                for row, record in zip(rows, records, strict=True)
            ], None
        finally:
            for file in files:
                file.unpin()

    def list_rows(
        self, ledger_id: LedgerId, first: EntryId, count: int
    ) -> tuple[list[IndexRow], ReadFault | None]:
        """What the indexes say of entries first, first + 1, … up to `count`; no entry is read.

        Blocks for the disk.

        Returns:
            One row at least, up to where another file goes on; or none and the fault, if it is not
            known where `first` is.
        """
        files = self._pin_files(ledger_id)
        try:
            run = _find_run(files, ledger_id, first, count, _ANY_BYTES)
            if run is not None:
                return run[1], None
            is_known = not any(other.is_index_damaged for other in files)
            return [], ReadFault.UNREADABLE if is_known else ReadFault.INDEX
        finally:
            for file in files:
                file.unpin()

    def identity_of(self, ledger_id: LedgerId, entry_id: EntryId) -> int | None:
        """The identity checksum of an entry; None if no index can say."""
        files = self._pin_files(ledger_id)
        try:
            run = _find_run(files, ledger_id, entry_id, 1, 0)
            return None if run is None else run[1][0].crc
        finally:
            for file in files:
                file.unpin()

    def list_contents(self, ledger_id: LedgerId, first: EntryId, last: EntryId) -> list[ContentRun]:
        """Contents of the envelopes of what is here of a range, as runs; blocks for the disk.

        What cannot be read has none: an envelope is a hint.
        """
        pairs: list[tuple[EntryId, bytes]] = []
        files = self._pin_files(ledger_id)
        try:
            cursor: EntryId | None = first
            while cursor is not None and cursor <= last:
                run = _find_run(files, ledger_id, cursor, last - cursor + 1, _ANY_BYTES)
                if run is None:
                    cursor = _find_next(files, ledger_id, EntryId(cursor + 1))
                    continue
                file, rows = run
                try:
                    pairs += file.list_contents(rows)
                except IndexDamaged:
                    file.is_index_damaged = True
                cursor = EntryId(rows[-1].entry_id + 1)
        finally:
            for file in files:
                file.unpin()
        return group_contents(pairs)

    def is_alive(self, ledger_id: LedgerId) -> bool:
        """Whether a ledger was not dropped; as of the last `add` and `drop`, on any thread."""
        with self._lock:
            return ledger_id in self._files_of

    def is_newest(self, file: EntryLogFile, row: IndexRow) -> bool:
        """Whether no newer file has the entry of a row; True also if an index cannot say."""
        with self._lock:
            newer = self._files_of.get(row.ledger_id, ())
        for other in newer:
            if other.file_id == file.file_id:
                return True  # also if its index was made anew: that is the same file
            if other.pin():
                try:
                    if other.index.find(row.ledger_id, row.entry_id) is not None:
                        return False
                except IndexDamaged:
                    other.is_index_damaged = True
                finally:
                    other.unpin()
        return False

    def drop(self, ledger_id: LedgerId) -> None:
        """A ledger is not alive any more; its bytes go with the next compaction."""
        with self._lock:
            for file in self._files_of.pop(ledger_id, ()):
                ledger = file.index.find_ledger(ledger_id)
                if ledger is not None:
                    file.live_bytes -= ledger.record_bytes

    # --- What is known ---------------------------------------------------------------------------

    def find_file(self, file_id: int) -> EntryLogFile | None:
        """The file in force with that id."""
        with self._lock:
            return self._files.get(file_id)

    def list_files(self) -> list[EntryLogFile]:
        """The files in force, oldest first."""
        with self._lock:
            return sorted(self._files.values(), key=_file_id)

    def statistics(self) -> dict[str, Any]:
        """Sizes; the live bytes are of records, as the data bytes less one block or two a file."""
        files = self.list_files()
        return {
            "files": len(files),
            "ledgers": len(self._files_of),
            "entries": sum(file.row_count for file in files),
            "data_bytes": sum(file.ref.data_bytes for file in files),
            "index_bytes": sum(file.index.header.index_bytes for file in files),
            "live_bytes": sum(file.live_bytes for file in files),
            "damaged_indexes": [file.file_id for file in files if file.is_index_damaged],
        }

    def _pin_files(self, ledger_id: LedgerId) -> list[EntryLogFile]:
        with self._lock:
            files = self._files_of.get(ledger_id, ())
            return [file for file in files if file.pin()]

    def _take_out(self, file: EntryLogFile) -> None:
        for ledger in file.index.ledgers():
            with self._lock:
                files = self._files_of.get(ledger.ledger_id, ())
                if file in files:
                    rest = tuple(other for other in files if other is not file)
                    if rest:
                        self._files_of[ledger.ledger_id] = rest
                    else:
                        del self._files_of[ledger.ledger_id]
        file.retire()


def ref_of(finished: FinishedFile, directory_index: int) -> EntryLogFileRef:
    """What a checkpoint says of a file that was finished, or whose index was made anew."""
    return EntryLogFileRef(
        finished.file_id, directory_index, finished.data_bytes, finished.index_crc
    )


def _find_run(
    files: Sequence[EntryLogFile], ledger_id: LedgerId, first: EntryId, count: int, bytes_max: int
) -> tuple[EntryLogFile, list[IndexRow]] | None:
    """Rows from `first` on in the newest file that has it, ending where a newer file goes on."""
    for file in files:
        try:
            rows = file.index.run(ledger_id, first, count, bytes_max)
            if rows:
                return file, rows
            following = None if file is files[-1] else file.index.next_entry(ledger_id, first)
            if following is not None:
                count = min(count, following - first)
        except IndexDamaged:
            # Another file may have it all the same; the entry's bytes are verified in any case.
            file.is_index_damaged = True
    return None


def _find_next(
    files: Sequence[EntryLogFile], ledger_id: LedgerId, entry_id: EntryId
) -> EntryId | None:
    """The least entry from `entry_id` on that a file is known to have."""
    found = []
    for file in files:
        try:
            found.append(file.index.next_entry(ledger_id, entry_id))
        except IndexDamaged:
            file.is_index_damaged = True
    return min([known for known in found if known is not None], default=None)


def _read_ahead(file: EntryLogFile, rows: Sequence[IndexRow]) -> None:
    last = rows[-1]
    span = last.next_offset - rows[0].offset
    if span >= READ_AHEAD_BYTES_MIN and last.next_offset < file.ref.data_bytes:
        file.data.prefetch(span, last.next_offset)


def _file_id(file: EntryLogFile) -> int:
    return file.file_id
