"""Reading the journal at start: what is there, what is torn, what is damaged.

Every record verifies alone, so reading goes on behind any damage. Damage in a commit that is proved
durable (a later commit of the file, a mark, a file that was opened by rolling) is corruption: it is
reported and stays. Damage in the last commit of an unclean stop is torn: it was never acknowledged.
`replay` only reads; `open_journal` also secures the tail: it copies the last commit's valid records
to a new file, syncs, records the cut, and only then may the bookie answer.

Called by the bookie at start, and by its offline check. Not here: the bytes (`journal_format`), the
DIRTY file and the cookie. Source: 02-storage "Journal" 3 and 4, R15; docs/protocol/journal.md.
"""

from __future__ import annotations

import dataclasses
import enum
import re
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from duramen.ids import Incarnation, LedgerId
from duramen.limits import JOURNAL_FILE_BYTES
from duramen.wire.journal_format import (
    BLOCK_BYTES,
    HEADER_BYTES,
    RECORD_MAGIC,
    Cut,
    FileHeader,
    JournalRecord,
    Kind,
    Location,
    RecordHeader,
    encode_cut,
    file_header_crc,
    parse_cut,
    parse_file_header,
    parse_header,
    seed_of,
)
from duramen_bookie.file_system import DiskFile, FileSystem, FileWindow
from duramen_bookie.journal import JournalWriter, file_name

COMMIT_GAP: Final = 1 << 16
"""Commit numbers skipped at an unclean start: above any that a lost write may have used."""

ADD_HEAD_BYTES: Final = 64
"""How much of an add's body replay hands out: the entry's fixed header."""

_NAME: Final = re.compile(r"(\d{6,18})\.dj")


class JournalMismatch(Exception):
    """The files belong to another bookie or to another life of this one: start is refused."""


class DamageKind(enum.Enum):
    """What is lost."""

    RECORD = "record"
    """The body of one record, whose header is intact and tells which."""
    RANGE = "range"
    """Anything that this file may have held: every absence is in doubt."""
    FILE = "file"
    """A whole file is missing: as RANGE."""
    FILE_HEADER = "file_header"
    """No record: only the file's first block."""


class Damage(NamedTuple):
    """Corruption: bytes that were durable, from `start` to before `end`, and are lost."""

    kind: DamageKind
    file_id: int
    start: int
    end: int
    header: RecordHeader | None = None


class ReplayedRecord(NamedTuple):
    """A valid record: header, where its body lies, the body (of adds only its first 64 bytes)."""

    header: RecordHeader
    location: Location
    body: bytes


class Resume(NamedTuple):
    """Where a cleanly stopped journal is continued."""

    file_id: int
    offset: int
    previous_crc: int


@dataclasses.dataclass
class ReplayResult:
    """What was read.

    `is_clean`: the last file ends with an end mark, or there is no journal at all. `tail`: records
    of the last commit of an unclean stop, whose durability nothing proves; they were *not* given
    to `on_record` (`open_journal` does, with their copies' locations). `cut`: where it begins.
    `files`: all open files; whoever called `replay` closes them, or the writer that got them does.
    """

    is_clean: bool = True
    next_commit: int = 1
    next_file_id: int = 1
    last_file_id: int = 0
    last_crc: int = 0
    damages: list[Damage] = dataclasses.field(default_factory=list)
    torn_bytes: int = 0
    record_count: int = 0
    replayed_bytes: int = 0
    duration_us: int = 0
    tail: list[ReplayedRecord] = dataclasses.field(default_factory=list)
    cut: Cut | None = None
    resume: Resume | None = None
    files: dict[int, DiskFile] = dataclasses.field(default_factory=dict)

    def report(self, damage: Damage) -> None:
        """Take note of damage, once."""
        if damage.start < damage.end and damage not in self.damages:
            self.damages.append(damage)


OnRecord = Callable[[ReplayedRecord], None]


def open_journal(
    directory: str,
    fs: FileSystem,
    incarnation: Incarnation,
    on_record: OnRecord,
    *,
    now_unix_us: Callable[[], int],
    file_bytes: int = JOURNAL_FILE_BYTES,
) -> tuple[JournalWriter, ReplayResult]:
    """Replay the journal, make durable what was found, and give the writer that continues it.

    `on_record` gets every valid record in order; a record may come twice (a copy of an earlier
    start), the later location is the better one.

    Raises:
        JournalMismatch: the files are another bookie's.
        JournalFormatError: the files are of a newer version.
        JournalPoisoned: the copy of the tail could not be written.
        OSError: the directory cannot be read.
    """
    fs.make_directory(directory)
    result = replay(directory, fs, incarnation, on_record)
    writer = JournalWriter(
        fs, directory, incarnation,
        files=result.files, now_unix_us=now_unix_us, file_bytes=file_bytes,
    )  # fmt: skip
    if result.resume is not None:
        file_id, offset, crc = result.resume
        writer.resume(file_id, offset=offset, next_commit=result.next_commit, previous_crc=crc)
        return writer, result
    tail_bytes = sum(item.header.end - item.header.offset for item in result.tail)
    cut_bytes = len(encode_cut(result.cut)) if result.cut else 0
    writer.create_file(
        result.next_file_id,
        first_commit=result.next_commit,
        previous_file_id=result.last_file_id,
        previous_crc=result.last_crc,
        is_recovery=result.cut is not None,
        # The copies, the cut and the mark stand in one file: a later start looks for them there.
        commit_bytes_min=tail_bytes + cut_bytes + 2 * BLOCK_BYTES,
    )
    if result.cut is not None:
        _secure_tail(writer, result, result.cut, on_record)
    return writer, result


def _secure_tail(
    writer: JournalWriter, result: ReplayResult, cut: Cut, on_record: OnRecord
) -> None:
    # Copies first, synced; then the cut: whoever finds it knows that the copies are complete.
    # The mark lets a later start know that this file was in use even if the cut itself rots.
    if result.tail:
        locations = writer.commit([_read_back(writer, item) for item in result.tail])
        for item, location in zip(result.tail, locations, strict=True):
            _deliver(item._replace(location=location), on_record)
    writer.commit([JournalRecord(Kind.CUT, LedgerId(0), body=encode_cut(cut))])
    writer.write_mark()


def _read_back(writer: JournalWriter, item: ReplayedRecord) -> JournalRecord:
    body = writer.read(item.header.location)
    if not item.header.is_body_intact(body):
        raise OSError(f"{item.header.location} was read twice with different bytes")
    return item.header.record(body)


def replay(
    directory: str, fs: FileSystem, incarnation: Incarnation, on_record: OnRecord
) -> ReplayResult:
    """Read all files in order, without writing; see the module's text for what counts as damage.

    Raises:
        JournalMismatch: a file is another bookie's.
        JournalFormatError: a file is of a newer version.
        OSError: the directory cannot be read (an error inside a file is damage).
    """
    began_ns = time.monotonic_ns()
    result = ReplayResult()
    seed = seed_of(incarnation)
    matches = [_NAME.fullmatch(name) for name in fs.list_names(directory)]
    for file_id in sorted(int(match[1]) for match in matches if match):
        result.files[file_id] = fs.open(f"{directory}/{file_name(file_id)}")
    files = [_JournalFile(file_id, disk, seed) for file_id, disk in result.files.items()]
    for file in files:
        file.read_header(incarnation)
    chain, cuts = _link_chain(files, result)
    for index, file in enumerate(chain):
        following = chain[index + 1] if index + 1 < len(chain) else None
        _Pass(file, following, cuts.get(file.file_id), on_record, result).run()
    if files:
        result.next_file_id = files[-1].file_id + 1
        seen = max(file.commit_max for file in files)
        result.next_commit = seen + 1 + (0 if result.is_clean else COMMIT_GAP)
    result.duration_us = (time.monotonic_ns() - began_ns) // 1_000
    return result


# --- Files and their order ------------------------------------------------------------------------


class _JournalFile:
    """An open file, its header if that is intact, and its records."""

    def __init__(self, file_id: int, disk: DiskFile, seed: int) -> None:
        self.file_id = file_id
        self.window = FileWindow(disk)
        self.size_bytes = self.window.size_bytes
        self.header: FileHeader | None = None
        self.header_crc: int | None = None
        self.commit_max = 0
        self._seed = seed

    @property
    def is_recovery(self) -> bool:
        return self.header is not None and self.header.is_recovery

    def read_header(self, incarnation: Incarnation) -> None:
        block = self.window.slice(0, BLOCK_BYTES)
        header = parse_file_header(block)
        if header is None or header.file_id != self.file_id:
            return
        if header.incarnation != incarnation:
            raise JournalMismatch(
                f"{file_name(self.file_id)} is of incarnation {header.incarnation}, "
                f"this bookie is {incarnation}"
            )
        self.header = header
        self.header_crc = file_header_crc(block)
        self.commit_max = header.first_commit - 1

    def headers(self, start: int, limit: int) -> Iterator[tuple[RecordHeader, bytes, bool]]:
        """Every header that verifies, with its body's beginning, and whether the body does."""
        offset = start
        while offset + HEADER_BYTES <= limit:
            data, index = self.window.show(offset, HEADER_BYTES)
            header = parse_header(data, index, file_id=self.file_id, offset=offset, seed=self._seed)
            if header is None:
                offset = self.window.find(RECORD_MAGIC, offset + 8, limit)
                continue
            self.commit_max = max(self.commit_max, header.commit)
            body = self.window.slice(offset + HEADER_BYTES, header.body_bytes)
            is_intact = header.is_body_intact(body)
            yield header, body[:ADD_HEAD_BYTES] if header.kind is Kind.ADD else body, is_intact
            offset = header.end


def _link_chain(
    files: list[_JournalFile], result: ReplayResult
) -> tuple[list[_JournalFile], dict[int, Cut]]:
    """The files that were in use, oldest first, and the cuts; by the headers, newest first.

    Left out: files whose creation a crash cut off (nothing is in them), and those of a start that
    crashed before its cut was written (copies of a tail that still is where it was).
    """
    chain: list[_JournalFile] = []
    cuts: dict[int, Cut] = {}
    expected: int | None = None
    for file in reversed(files):
        is_named = file.file_id == expected
        if expected is not None and file.file_id < expected:
            result.report(Damage(DamageKind.FILE, expected, 0, BLOCK_BYTES))
        elif expected is not None and not is_named:
            continue
        if file.header is None:
            end = file.window.find_last_byte(BLOCK_BYTES, file.size_bytes)
            if end == BLOCK_BYTES and not is_named:
                continue
            result.report(Damage(DamageKind.FILE_HEADER, file.file_id, 0, BLOCK_BYTES))
        if not _was_in_use(file, cuts) and not is_named:
            continue
        chain.append(file)
        expected = file.header.previous_file_id if file.header else None
        if expected == 0:
            break
    chain.reverse()
    return chain, cuts


def _was_in_use(file: _JournalFile, cuts: dict[int, Cut]) -> bool:
    """Whether anything in the file may have been acknowledged; collects the cuts it begins with."""
    if file.header is not None and not file.is_recovery:
        return True
    first = file.header.first_commit if file.header else None
    has_cut = False
    for header, body, is_intact in file.headers(BLOCK_BYTES, file.size_bytes):
        if header.kind.is_mark:
            return True
        # The copies are the first commit, the cut the second (the first, if there was nothing).
        first = header.commit if first is None else first
        if header.commit > first + 1:
            return True
        if is_intact and header.kind is Kind.CUT:
            has_cut = True
            cut = parse_cut(body)
            cuts[cut.file_id] = cut
    return has_cut or file.header is None


# --- One file -------------------------------------------------------------------------------------


class _Gap(NamedTuple):
    """A place where records were lost, between two headers that verify (None: no such)."""

    start: int
    end: int
    before: RecordHeader | None
    after: RecordHeader | None


class _Pass:
    """One pass over a file: deliver what is valid, then settle what the gaps are.

    What proves a commit durable: a file that follows by rolling, or a cut (for all below it); else
    this file's own marks, or that something behind the commit was written. The chain of CRCs tells
    whether a gap hid anything: marks stand in blocks of their own and leave harmless ones.
    """

    def __init__(
        self,
        file: _JournalFile,
        following: _JournalFile | None,
        cut: Cut | None,
        on_record: OnRecord,
        result: ReplayResult,
    ) -> None:
        self._file = file
        self._cut = cut
        self._is_tail = following is None
        self._on_record = on_record
        self._result = result
        self._limit = file.size_bytes if cut is None else min(cut.offset, file.size_bytes)
        self._is_sealed = cut is not None or (following is not None and not following.is_recovery)
        self._sealed_crc = _find_sealed_crc(file, following, cut)
        self._at = BLOCK_BYTES
        self._commit = file.header.first_commit - 1 if file.header else 0
        self._marked = 0
        self._previous_crc = file.header_crc
        self._commit_previous_crc = file.header_crc
        self._before: RecordHeader | None = None
        self._mark: RecordHeader | None = None
        self._gaps: list[_Gap] = []
        self._lost: list[RecordHeader] = []
        self._pending: list[ReplayedRecord] = []

    def run(self) -> None:
        for header, body, is_intact in self._file.headers(BLOCK_BYTES, self._limit):
            self._note_gap(header)
            if header.kind.is_mark:
                self._marked = max(self._marked, header.commit)
                self._mark = header
                self._at = header.offset + BLOCK_BYTES
            else:
                self._on_record_header(header, body, is_intact)
            if not self._is_tail or self._marked >= self._commit:
                self._flush()
        before = len(self._result.damages)
        has_junk = self._settle()
        if self._is_tail:
            found = self._result.damages[before:]
            ranges = [(d.start, d.end) for d in found if d.kind is DamageKind.RANGE]
            self._finish(has_junk, tuple(ranges))

    def _note_gap(self, header: RecordHeader) -> None:
        if header.offset > self._at and not self._is_next(header):
            self._gaps.append(_Gap(self._at, header.offset, self._before, header))
            if header.kind.is_mark:
                self._previous_crc = header.previous_crc

    def _is_next(self, header: RecordHeader) -> bool:
        """Whether nothing but a mark can have stood between the last header and this one."""
        if header.previous_crc == self._previous_crc:
            return True
        # A damaged record's own CRC is in doubt; whether its commit is complete still tells.
        before = self._before
        if before is None or not self._is_damaged(before) or self._at < before.commit_end:
            return False
        step = 0 if header.kind.is_mark else 1
        return header.commit == before.commit + step and header.commit_offset == 0

    def _is_damaged(self, header: RecordHeader) -> bool:
        return bool(self._lost) and self._lost[-1] is header

    def _on_record_header(self, header: RecordHeader, body: bytes, is_intact: bool) -> None:
        if header.commit > self._commit:
            self._flush()
            self._commit = header.commit
            is_first = header.commit_offset == 0
            self._commit_previous_crc = header.previous_crc if is_first else self._previous_crc
        if is_intact:
            self._pending.append(ReplayedRecord(header, header.location, body))
        else:
            self._lost.append(header)
        self._before = header
        self._previous_crc = header.crc
        self._at = header.end

    def _flush(self) -> None:
        for item in self._pending:
            _deliver(item, self._on_record)
        self._count()
        self._pending.clear()

    def _count(self) -> None:
        self._result.record_count += len(self._pending)
        self._result.replayed_bytes += sum(
            [item.header.end - item.header.offset for item in self._pending]
        )

    def _settle(self) -> bool:
        """Tell corruption from torn; whether anything was written behind the last known commit."""
        end = self._at if self._before is None else max(self._at, self._before.commit_end)
        has_junk = False
        if self._is_sealed:
            self._settle_sealed_end(end)
            durable = max(self._marked, self._commit)
        else:
            junk_end = self._file.window.find_last_byte(end, self._limit)
            has_junk = junk_end > end
            self._result.torn_bytes += junk_end - end
            if self._file.header is None and self._before is None:
                self._report(DamageKind.RANGE, end, junk_end)
            # Something behind a commit was only written once that commit was synced.
            durable = max(self._marked, self._commit if has_junk else self._commit - 1)
            if self._at < end:
                self._gaps.append(_Gap(self._at, end, self._before, None))
        for header in self._lost:
            if header.commit <= durable:
                self._report(DamageKind.RECORD, header.offset, header.end, header)
            else:
                self._result.torn_bytes += header.end - header.offset
        for gap in self._gaps:
            self._settle_gap(gap, durable)
        self._report_unreadable()
        if durable >= self._commit:
            self._flush()
        return has_junk

    def _settle_sealed_end(self, end: int) -> None:
        is_unsure = self._before is not None and self._is_damaged(self._before)
        if self._at < end:
            self._report(DamageKind.RANGE, self._at, min(end, self._limit))
        elif self._sealed_crc is None or is_unsure:
            # The chain cannot tell: whatever stands behind here may have been records.
            junk_end = self._file.window.find_last_byte(end, self._limit)
            self._report(DamageKind.RANGE, end, junk_end)
        elif self._previous_crc != self._sealed_crc:
            self._report(DamageKind.RANGE, self._at, self._limit)
        if self._cut is not None:
            for start, stop in self._cut.ranges:
                self._report(DamageKind.RANGE, start, stop)

    def _settle_gap(self, gap: _Gap, durable: int) -> None:
        start, end, before, after = gap
        last = after or before
        assert last is not None
        if last.commit <= durable:
            self._report(DamageKind.RANGE, start, end)
            return
        if after is None:
            self._result.torn_bytes += end - start
            return
        # The gap's end belongs to the last commit, its beginning perhaps to durable ones.
        begin = min(max(after.commit_start, start), end)
        header = self._file.header
        known = before.commit if before else header.first_commit - 1 if header else after.commit - 1
        is_incomplete = before is not None and start < before.commit_end <= begin
        if is_incomplete or known + 1 < after.commit:
            self._report(DamageKind.RANGE, start, begin)
        self._result.torn_bytes += end - begin

    def _report_unreadable(self) -> None:
        # Behind the proved end of a sealed file nothing was ever written that could be lost.
        limit = self._at if self._is_sealed else self._file.size_bytes
        for start, end in self._file.window.unreadable:
            self._report(DamageKind.RANGE, start, min(end, limit))

    def _report(
        self, kind: DamageKind, start: int, end: int, header: RecordHeader | None = None
    ) -> None:
        self._result.report(Damage(kind, self._file.file_id, start, end, header))

    def _finish(self, has_junk: bool, damaged: tuple[tuple[int, int], ...]) -> None:
        """Settle how the journal is continued behind its last file."""
        result, file, mark = self._result, self._file, self._mark
        result.last_file_id = file.file_id
        result.last_crc = self._previous_crc or 0
        is_end_last = mark is not None and mark.offset + BLOCK_BYTES == self._at
        result.is_clean = (
            mark is not None and mark.kind is Kind.END and is_end_last and not has_junk
        )
        if result.is_clean:
            if file.header is not None and not file.window.unreadable:
                result.resume = Resume(file.file_id, self._at, result.last_crc)
            return
        result.tail = list(self._pending)
        self._count()
        offset, crc = self._at, self._previous_crc
        if self._before is not None and self._commit > self._marked and not has_junk:
            offset, crc = self._before.commit_start, self._commit_previous_crc
        elif self._before is not None:
            offset = max(offset, self._before.commit_end)
        result.cut = Cut(file.file_id, offset, crc or 0, damaged)


def _find_sealed_crc(
    file: _JournalFile, following: _JournalFile | None, cut: Cut | None
) -> int | None:
    """CRC of the last record that the file must have, if a cut or the next file's header tells."""
    if cut is not None:
        return cut.previous_crc
    header = following.header if following else None
    is_told = header and not header.is_recovery and header.previous_file_id == file.file_id
    return header.previous_crc if header and is_told else None


def _deliver(item: ReplayedRecord, on_record: OnRecord) -> None:
    if item.header.kind is not Kind.CUT:
        on_record(item)
