"""Reading the journal at start: what is there, what is torn, what is damaged.

Every record verifies alone, so reading goes on behind any damage; `file_pass` tells what counts as
damage. `replay` only reads; `open_journal` also secures the tail: it copies the last commit's valid
records to a new file, syncs, records the cut, and only then may the bookie answer. What the start
depends on, the last file, is read past the page cache: after a failed sync the cache shows bytes
that the disk does not hold. Files that the checkpoint covers are not read at all.

Called by the bookie at start, and by its offline check. Not here: the bytes (`journal_format`), the
DIRTY file and the cookie. Source: docs/protocol/journal.md "Start" and "Failure", R15.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import Final

from duramen.ids import Incarnation, LedgerId
from duramen.limits import JOURNAL_FILE_BYTES
from duramen.wire.disk.journal_format import (
    BLOCK_BYTES,
    Cut,
    JournalRecord,
    RecordKind,
    encode_cut,
    parse_cut,
)
from duramen.wire.disk.store_record import take_record
from duramen_bookie.file_system import FileSystem
from duramen_bookie.journal.file_pass import FilePass
from duramen_bookie.journal.findings import (
    Damage,
    DamageKind,
    OnRecord,
    ReplayedRecord,
    ReplayResult,
)
from duramen_bookie.journal.journal_file import JournalFile
from duramen_bookie.journal.names import file_name, list_journal
from duramen_bookie.journal.recycling import FileSupply, NoSpaceError
from duramen_bookie.journal.writer import JournalWriter

COMMIT_GAP: Final = 1 << 16
"""Commit numbers skipped at an unclean start: above any that a lost write may have used."""

_ROOM_RATIO: Final = 256
"""On a full disk an unclean start makes a file with this part of the usual room: some thousand
seals fit, so that the bookie serves and can free space."""


def open_journal(
    directory: str,
    fs: FileSystem,
    incarnation: Incarnation,
    on_record: OnRecord,
    *,
    now_unix_us: Callable[[], int],
    file_bytes: int = JOURNAL_FILE_BYTES,
    first_file_bytes: int | None = None,
    covered_file_id: int = 0,
) -> tuple[JournalWriter, ReplayResult]:
    """Replay the journal, make durable what was found, and give the writer that continues it.

    `on_record` gets every valid record in order; a record may come twice (a copy of an earlier
    start), the later location is the better one.

    Args:
        directory: of the journal; made if it is not there.
        fs: the disk.
        incarnation: of the bookie.
        on_record: is called from here.
        now_unix_us: wall clock, for the files' creation time only.
        file_bytes: what a file is preallocated with.
        first_file_bytes: what the first one is preallocated with: `FileSupply`.
        covered_file_id: up to this file the checkpoint holds everything; they are recycled.

    Raises:
        JournalMismatch: the files are another bookie's.
        JournalFormatError: the files are of a newer version.
        JournalPoisoned: the copy of the tail could not be written.
        OSError: the directory cannot be read, or the disk is full.
    """
    fs.make_directory(directory)
    result = replay(directory, fs, incarnation, on_record, covered_file_id=covered_file_id)
    listing = list_journal(fs, directory)
    supply = FileSupply(
        fs, directory, incarnation, listing, file_bytes=file_bytes,
        first_file_bytes=first_file_bytes, id_min=result.next_file_id,
    )  # fmt: skip
    writer = JournalWriter(supply, incarnation, files=result.files, now_unix_us=now_unix_us)
    supply.clear()
    writer.recycle([*result.covered_file_ids, *result.unused_file_ids])
    try:
        _continue(writer, result, on_record, file_bytes)
    except NoSpaceError as error:
        raise OSError(errno.ENOSPC, str(error)) from error
    writer.recycle(result.void_file_ids)
    return writer, result


def _continue(
    writer: JournalWriter, result: ReplayResult, on_record: OnRecord, file_bytes: int
) -> None:
    if result.resume is not None:
        file_id, offset, crc = result.resume
        writer.resume(file_id, offset=offset, next_commit=result.next_commit, previous_crc=crc)
        return
    if result.cut is not None:
        # A process that was killed may have left its header in the page cache only: what the next
        # file is going to build on must not go with a power cut. Records are copied all the same.
        writer.sync_again(result.last_file_id)
    tail_bytes = sum(item.header.end - item.header.offset for item in result.tail)
    cut_bytes = len(encode_cut(result.cut)) if result.cut else 0
    writer.begin_file(
        first_commit=result.next_commit,
        previous_file_id=result.last_file_id,
        previous_crc=result.last_crc,
        is_recovery=result.cut is not None,
        # The copies, the cut and the mark stand in one file: a later start looks for them there.
        commit_bytes_min=tail_bytes + cut_bytes + 2 * BLOCK_BYTES + file_bytes // _ROOM_RATIO,
    )
    if result.cut is not None:
        _secure_tail(writer, result, result.cut, on_record)


def _secure_tail(
    writer: JournalWriter, result: ReplayResult, cut: Cut, on_record: OnRecord
) -> None:
    # Copies first, synced; then the cut: whoever finds it knows that the copies are complete.
    # The mark lets a later start know that this file was in use even if the cut itself rots.
    if result.tail:
        locations = writer.commit([_read_back(writer, item) for item in result.tail])
        for item, location in zip(result.tail, locations, strict=True):
            if item.header.kind is not RecordKind.CUT:
                on_record(item._replace(location=location))
    writer.commit([JournalRecord(RecordKind.CUT, LedgerId(0), body=encode_cut(cut))])
    writer.write_mark()


def _read_back(writer: JournalWriter, item: ReplayedRecord) -> JournalRecord:
    file_id, offset, _ = item.header.location
    body = writer.files[file_id].pread_direct(item.header.body_bytes, offset)
    taken = take_record(item.header, body)
    if taken is None or not taken.is_whole:
        raise OSError(f"{item.header.location} was read twice with different bytes")
    return taken.record


def replay(
    directory: str,
    fs: FileSystem,
    incarnation: Incarnation,
    on_record: OnRecord,
    *,
    covered_file_id: int = 0,
) -> ReplayResult:
    """Read all files in order, without writing; see the module's text for what counts as damage.

    Args:
        directory: of the journal; it exists.
        fs: the disk.
        incarnation: of the bookie.
        on_record: gets every record that is proved durable.
        covered_file_id: files up to this one are not read, and may be missing.

    Raises:
        JournalMismatch: a file is another bookie's.
        JournalFormatError: a file is of a newer version.
        OSError: the directory cannot be read (an error inside a file is damage).
    """
    began_ns = time.monotonic_ns()
    result = ReplayResult()
    listing = list_journal(fs, directory)
    result.next_file_id = max(listing.id_max, covered_file_id) + 1
    result.covered_file_ids = [id_ for id_ in listing.file_ids if id_ <= covered_file_id]
    files: list[JournalFile] = []
    links = _Links(covered_file_id, result)
    for file_id in reversed(listing.file_ids[len(result.covered_file_ids) :]):
        disk = result.files[file_id] = fs.open(f"{directory}/{file_name(file_id)}")
        file = JournalFile(file_id, disk, incarnation, is_direct=not links.chain)
        file.read_generation(fs, directory)
        links.add(file)
        files.append(file)
    links.finish()
    chain = links.chain[::-1]
    for index, file in enumerate(chain):
        following = chain[index + 1] if index + 1 < len(chain) else None
        FilePass(file, following, links.cuts.get(file.file_id), on_record, result).run()
    if files:
        seen = max(file.commit_max for file in files)
        result.next_commit = seen + 1 + (0 if result.is_clean else COMMIT_GAP)
    result.duration_us = (time.monotonic_ns() - began_ns) // 1_000
    return result


class _Links:
    """Finds the files that were in use, and the cuts, by the headers, from the newest file back.

    Left out: files that were made ahead and never begun, and those of a start that crashed before
    its cut was written (copies of a tail that still is where it was).
    """

    def __init__(self, covered_file_id: int, result: ReplayResult) -> None:
        self.chain: list[JournalFile] = []
        """Newest first."""
        self.cuts: dict[int, Cut] = {}
        self._covered_file_id = covered_file_id
        self._result = result
        self._expected: int | None = None
        """What the last file of the chain names as the one before; None: not known."""

    def add(self, file: JournalFile) -> None:
        """The next older file."""
        result, expected = self._result, self._expected
        is_named = file.file_id == expected
        if expected is not None and not is_named:
            if file.file_id > expected or expected <= self._covered_file_id:
                result.void_file_ids.append(file.file_id)
                return
            self._report_missing(expected)
        if file.header is None:
            end = file.find_written_end(BLOCK_BYTES, file.size_bytes)
            if end <= BLOCK_BYTES and not is_named:
                result.unused_file_ids.append(file.file_id)
                return
            result.report(Damage(DamageKind.FILE_HEADER, file.file_id, 0, BLOCK_BYTES))
        if not _was_in_use(file, self.cuts) and not is_named:
            result.void_file_ids.append(file.file_id)
            return
        self.chain.append(file)
        self._expected = file.header.previous_file_id if file.header else None

    def finish(self) -> None:
        """There is no older file."""
        if self._expected is not None and self._expected > self._covered_file_id:
            self._report_missing(self._expected)
        if not self.chain and self._covered_file_id:
            # A checkpoint is only written when a newer file is in use. The gap in the numbers keeps
            # the damage: the next file names the missing one as the one before.
            result = self._result
            result.last_file_id = self._covered_file_id + 1
            result.next_file_id = max(result.next_file_id, result.last_file_id + 1)
            self._report_missing(result.last_file_id)

    def _report_missing(self, file_id: int) -> None:
        self._result.report(Damage(DamageKind.FILE, file_id, 0, BLOCK_BYTES))


def _was_in_use(file: JournalFile, cuts: dict[int, Cut]) -> bool:
    """Whether anything in the file may have been acknowledged; collects the cuts it begins with."""
    if file.header is not None and not file.is_recovery:
        return True
    first = file.header.first_commit if file.header else None
    has_cut = False
    for header, body, is_intact, *_ in file.records(BLOCK_BYTES, file.size_bytes):
        if header.kind.is_mark:
            return True
        # The copies are the first commit, the cut the second (the first, if there was nothing).
        first = header.commit if first is None else first
        if header.commit > first + 1:
            return True
        if is_intact and header.kind is RecordKind.CUT:
            has_cut = True
            cut = parse_cut(body)
            cuts[cut.file_id] = cut
    return has_cut or file.header is None
