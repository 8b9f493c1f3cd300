"""One pass over a journal file: deliver what is valid, then tell corruption from torn.

What proves a commit durable: a file that follows by rolling, or a cut (for all below it); else this
file's own marks, or that something behind the commit was written. Damage in what is proved durable
is corruption, reported for ever; damage in the rest, at most the last commit of an unclean stop, is
torn: nobody was told that it is there. The chain of CRCs tells whether a gap hid anything: marks
stand in blocks of their own and leave harmless ones.

Not here: bytes and old content (`journal_file`), the order of files and the start (`replay`).
Source: docs/protocol/journal.md "Start", R15.
"""

from __future__ import annotations

from typing import NamedTuple

from duramen.wire.disk.journal_format import BLOCK_BYTES, Cut, RecordHeader, RecordKind, align
from duramen_bookie.journal.findings import (
    Damage,
    DamageKind,
    OnRecord,
    RecordSight,
    ReplayedRecord,
    ReplayResult,
    Resume,
)
from duramen_bookie.journal.journal_file import JournalFile


class _Gap(NamedTuple):
    """A place where records were lost, between two headers that verify (None: no such)."""

    start: int
    end: int
    before: RecordHeader | None
    after: RecordHeader | None


class FilePass:
    """See the module.

    Args:
        file: to be read from its first record on.
        following: the file that was used next, if there is one.
        cut: where the file ends, if an unclean start has cut it.
        on_record: gets every valid record that is proved durable.
        result: gets damage, counts, and how the journal goes on behind its last file.
    """

    def __init__(
        self,
        file: JournalFile,
        following: JournalFile | None,
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
        self._intact_bytes = 0
        self._before: RecordHeader | None = None
        self._mark: RecordHeader | None = None
        self._gaps: list[_Gap] = []
        self._lost: list[RecordSight] = []
        """What does not verify as a whole; the entry may all the same."""
        self._pending: list[ReplayedRecord] = []
        self._pending_bytes = 0

    def run(self) -> None:
        """Read the file."""
        for found in self._file.records(BLOCK_BYTES, self._limit):
            header = found.header
            self._note_gap(header)
            if header.kind.is_mark:
                self._marked = max(self._marked, header.commit)
                self._mark = header
                self._at = header.offset + BLOCK_BYTES
            else:
                self._on_found(found)
            if not self._is_tail or self._marked >= self._commit:
                self._flush()
        before = len(self._result.damages)
        has_junk = self._settle()
        if self._is_tail:
            damages = self._result.damages[before:]
            ranges = [(d.start, d.end) for d in damages if d.kind is DamageKind.RANGE]
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
        return bool(self._lost) and self._lost[-1].header is header

    def _on_found(self, found: RecordSight) -> None:
        header = found.header
        if header.commit > self._commit:
            self._flush()
            self._commit, self._intact_bytes = header.commit, 0
            is_first = header.commit_offset == 0
            self._commit_previous_crc = header.previous_crc if is_first else self._previous_crc
        end = header.end
        if found.is_intact:
            self._intact_bytes += end - header.offset
        else:
            self._lost.append(found)
        if found.is_entry_sound:
            self._pending_bytes += end - header.offset
            self._pending.append(ReplayedRecord(header, header.location, found.body, found.content))
        self._before = header
        self._previous_crc = header.crc
        self._at = end

    def _flush(self) -> None:
        for item in self._pending:
            if item.header.kind is not RecordKind.CUT:
                self._on_record(item)
        self._count()
        self._pending.clear()

    def _count(self) -> None:
        self._result.record_count += len(self._pending)
        self._result.replayed_bytes += self._pending_bytes
        self._pending_bytes = 0

    def _settle(self) -> bool:
        """Tell corruption from torn; whether anything was written behind the last known commit."""
        end = self._at if self._before is None else max(self._at, self._before.commit_end)
        has_junk = False
        if self._is_sealed:
            self._settle_sealed_end(end)
            durable = max(self._marked, self._commit)
        else:
            junk_start = self._find_junk_start(end)
            junk_end = self._file.find_written_end(junk_start, self._limit)
            has_junk = junk_end > junk_start
            if has_junk:
                self._result.torn_bytes += junk_end - end
            if self._file.header is None and self._before is None:
                self._report(DamageKind.RANGE, end, junk_end)
            # Something behind a commit was only written once that commit was synced.
            durable = max(self._marked, self._commit if has_junk else self._commit - 1)
            if self._at < end:
                self._gaps.append(_Gap(self._at, end, self._before, None))
        for found in self._lost:
            self._settle_lost(found, durable)
        for gap in self._gaps:
            self._settle_gap(gap, durable)
        self._report_unreadable()
        if durable >= self._commit:
            self._flush()
        return has_junk

    def _find_junk_start(self, end: int) -> int:
        """From where on the bytes tell whether anything was written behind the last commit."""
        before = self._before
        is_whole = before is None or self._intact_bytes == before.commit_bytes
        if is_whole or not self._file.is_recycled:
            return end
        # A torn commit may have lost its padding, too: old content then stands up to the block's
        # end. Only behind the block does something that is not old prove a later write.
        return min(align(end, BLOCK_BYTES), self._limit)

    def _settle_sealed_end(self, end: int) -> None:
        is_unsure = self._before is not None and self._is_damaged(self._before)
        if self._at < end:
            self._report(DamageKind.RANGE, self._at, min(end, self._limit))
        elif self._sealed_crc is None or is_unsure:
            # The chain cannot tell: whatever stands behind here may have been records.
            junk_end = self._file.find_written_end(end, self._limit)
            self._report(DamageKind.RANGE, end, junk_end)
        elif self._previous_crc != self._sealed_crc:
            self._report(DamageKind.RANGE, self._at, self._limit)
        if self._cut is not None:
            for start, stop in self._cut.ranges:
                self._report(DamageKind.RANGE, start, stop)

    def _settle_lost(self, found: RecordSight, durable: int) -> None:
        header = found.header
        if header.commit <= durable:
            kind = DamageKind.ENVELOPE if found.is_entry_sound else DamageKind.RECORD
            self._report(kind, header.offset, header.end, header)
            return
        self._result.torn_bytes += header.end - header.offset
        if found.is_entry_sound:  # torn as a broken ADD is: nobody was told that it is there
            self._pending = [item for item in self._pending if item.header is not header]
            self._pending_bytes -= header.end - header.offset

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
            mark is not None and mark.kind is RecordKind.END and is_end_last and not has_junk
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
    file: JournalFile, following: JournalFile | None, cut: Cut | None
) -> int | None:
    """CRC of the last record that the file must have, if a cut or the next file's header tells."""
    if cut is not None:
        return cut.previous_crc
    header = following.header if following else None
    is_told = header and not header.is_recovery and header.previous_file_id == file.file_id
    return header.previous_crc if header and is_told else None
