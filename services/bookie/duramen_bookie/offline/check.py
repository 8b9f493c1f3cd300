"""`duramen-bookie fsck`: is everything that a stopped bookie promised still there, byte for byte?

Reads all of it as a start would and compares it with every checksum: both copies of the checkpoint,
the journal, each entry log file against its index, and the settled entries that the checkpoint
promises against what the entry log and the journal hold. What a crash may leave (a torn last
commit, files that no checkpoint names) is a note, not damage. Nothing is changed, and what is
damaged is not repaired here: other bookies have copies, and the running bookie has them fetched.

Not here: making an index anew (`rebuild`), the command line. Called by `commands`.
Source: docs/bookie.md "Tools for a stopped bookie", docs/protocol/journal.md "Start", R15.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from duramen.core.bookie.bookie_state import LedgerSnapshot
from duramen.core.entry_ranges import EntryRanges, group_ranges
from duramen.ids import EntryId, Epoch, LedgerId, LogId, epoch_of, log_of
from duramen.wire.disk.checkpoint_format import (
    Checkpoint,
    CheckpointFormatError,
    EntryLogFileRef,
    parse_checkpoint,
)
from duramen.wire.disk.entry_log_format import (
    NO_ENVELOPE,
    ROWS_PER_BLOCK,
    EntryLogFormatError,
    IndexRow,
    parse_data_header,
)
from duramen.wire.disk.journal_format import BLOCK_BYTES, JournalFormatError, RecordKind
from duramen.wire.entry import EntryError, check_entry
from duramen.wire.flexible.envelope import content_of
from duramen_bookie.checkpoint import COPY_NAMES, CheckpointDamaged
from duramen_bookie.entry_log.data_file import DataDamage, ScannedRecord, index_path, scan
from duramen_bookie.entry_log.index_file import IndexDamaged, IndexFile
from duramen_bookie.file_system import DiskFile
from duramen_bookie.journal.findings import Damage, DamageKind, ReplayedRecord
from duramen_bookie.journal.names import file_name
from duramen_bookie.offline.stopped_bookie import CannotTell, StoppedBookie

_ROWS_AT_ONCE: Final = 64 * ROWS_PER_BLOCK

Tell = Callable[[str], None]
"""Says to a person what is being read; it may take hours."""


class CheckFinding(NamedTuple):
    """One thing that is damaged.

    `start`, `end`: the bytes, if they are known. `ledger_id`, `entries`: what they held, as ranges,
    if that is known.
    """

    path: str
    what: str
    start: int | None = None
    end: int | None = None
    ledger_id: LedgerId | None = None
    entries: Sequence[tuple[int, int]] = ()

    def __str__(self) -> str:
        where = "" if self.start is None else f" at {self.start} … {self.end}"
        if self.ledger_id is None:
            return f"{self.path}{where}: {self.what}"
        spelt = " ".join(str(a) if a == b else f"{a}-{b}" for a, b in self.entries)
        return f"{self.path}{where}: {self.what}: ledger {self.ledger_id}, entries {spelt}"

    def describe(self) -> dict[str, Any]:
        """As JSON; what is not known is left out."""
        fields = self._asdict()
        fields["ledger_id"] = None if self.ledger_id is None else str(self.ledger_id)
        fields["entries"] = [list(pair) for pair in self.entries] or None
        return {name: value for name, value in fields.items() if value is not None}


@dataclasses.dataclass
class CheckReport:
    """What a check has found."""

    bookie_id: str
    incarnation: str
    was_clean: bool
    """Whether the bookie was stopped cleanly; damage is damage in any case."""
    damages: list[CheckFinding] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    checkpoint_number: int | None = None
    journal_files: int = 0
    journal_records: int = 0
    journal_bytes: int = 0
    shelf_files: int = 0
    shelf_entries: int = 0
    shelf_bytes: int = 0
    settled_entries: int = 0
    """Entries that the checkpoint promises to be in the entry log."""

    def describe(self) -> dict[str, Any]:
        """As one JSON object."""
        fields = dataclasses.asdict(self)
        fields["damages"] = [finding.describe() for finding in self.damages]
        return {"status": "damaged" if self.damages else "clean", **fields}


def check(bookie: StoppedBookie, tell: Tell) -> CheckReport:
    """Read everything; the report says what is damaged.

    Raises:
        CannotTell: a file is another bookie's, or of a newer version.
        OSError: a directory cannot be read (an error inside a file is damage).
    """
    return _Check(bookie, tell).run()


class _Check:
    def __init__(self, bookie: StoppedBookie, tell: Tell) -> None:
        cookie = bookie.cookie
        self._bookie = bookie
        self._tell = tell
        self._report = CheckReport(cookie.bookie_id, cookie.incarnation, bookie.was_clean)
        self._hot: dict[LedgerId, EntryRanges] = {}
        """Entries that the journal holds."""
        self._in_entry_log: dict[LedgerId, EntryRanges] = {}
        """Entries that entry log files hold, index and data alike."""
        self._gone_below: dict[LogId, Epoch] = {}
        self._gone: set[LedgerId] = set()

    def run(self) -> CheckReport:
        checkpoint = self._check_checkpoint()
        self._check_journal(0 if checkpoint is None else checkpoint.covered_file_id)
        if checkpoint is not None:
            for ref in checkpoint.entry_log_files:
                self._check_entry_log_file(ref)
            self._note_leftovers(checkpoint)
            self._check_promises(checkpoint)
        return self._report

    # --- Checkpoint ------------------------------------------------------------------------------

    def _check_checkpoint(self) -> Checkpoint | None:
        bookie, report = self._bookie, self._report
        try:
            newest = bookie.read_checkpoint()
        except CheckpointDamaged as error:
            report.damages.append(
                CheckFinding(bookie.data_directory, f"{error}: what is in force is not known")
            )
            return None
        if newest is None:
            report.notes.append("there is no checkpoint yet: everything is in the journal")
            return None
        report.checkpoint_number = newest.number
        for name in COPY_NAMES:
            path = f"{bookie.data_directory}/{name}"
            try:
                file = bookie.fs.open(path)
                try:
                    copy = parse_checkpoint(file.pread(file.size_bytes(), 0))
                finally:
                    file.close()
            except FileNotFoundError:
                report.notes.append(f"{path} is missing: the next start writes it")
                continue
            except CheckpointFormatError as error:
                raise CannotTell(f"{path}: {error}") from error
            except OSError:
                copy = None
            if copy is None:
                report.damages.append(
                    CheckFinding(path, "this copy is damaged, the other is whole")
                )
            elif copy.number != newest.number:
                report.notes.append(f"{path} is number {copy.number}, the other {newest.number}")
        return newest

    # --- Journal ---------------------------------------------------------------------------------

    def _check_journal(self, covered_file_id: int) -> None:
        bookie, report = self._bookie, self._report
        self._tell(f"reading {bookie.journal_directory}")
        result = bookie.replay_journal(covered_file_id, self._on_record)
        try:
            report.journal_files = len(result.files)
            report.journal_bytes = sum(file.size_bytes() for file in result.files.values())
        finally:
            for file in result.files.values():
                file.close()
        for item in result.tail:
            self._on_record(item)
        report.journal_records = result.record_count
        for damage in result.damages:
            if damage.kind is DamageKind.ENVELOPE:
                self._note_envelopes(file_name(damage.file_id), 1)
            else:
                report.damages.append(self._report_damage(damage))
        if not result.is_clean:
            report.notes.append(
                f"the journal was not stopped cleanly: {len(result.tail)} records of its last "
                f"commit, {result.torn_bytes} bytes torn"
            )
        leftovers = (
            *result.covered_file_ids, *result.unused_file_ids, *result.void_file_ids,
        )  # fmt: skip
        if leftovers:
            names = " ".join(file_name(file_id) for file_id in sorted(leftovers))
            report.notes.append(f"journal files that the next start takes out of use: {names}")

    def _on_record(self, item: ReplayedRecord) -> None:
        header = item.header
        if header.kind.holds_entry:
            self._hot.setdefault(header.ledger_id, EntryRanges()).add(header.entry_id)
        elif header.kind is RecordKind.TOMBSTONE and header.is_all_below:
            log_id, epoch = log_of(header.ledger_id), epoch_of(header.ledger_id)
            self._gone_below[log_id] = max(epoch, self._gone_below.get(log_id, epoch))
        elif header.kind is RecordKind.TOMBSTONE:
            self._gone.add(header.ledger_id)

    def _report_damage(self, damage: Damage) -> CheckFinding:
        path = f"{self._bookie.journal_directory}/{file_name(damage.file_id)}"
        header = damage.header
        what = f"durable bytes are damaged ({damage.kind.value})"
        if header is None or not header.kind.holds_entry:
            return CheckFinding(path, what, damage.start, damage.end)
        entries = [(header.entry_id, header.entry_id)]
        return CheckFinding(path, what, damage.start, damage.end, header.ledger_id, entries)

    def _note_envelopes(self, path: str, count: int) -> None:
        """Envelopes are hints: readers make more calls, and nothing is lost."""
        self._report.notes.append(f"{path}: {count} envelopes are damaged, their entries are whole")

    # --- Entry log -------------------------------------------------------------------------------

    def _check_entry_log_file(self, ref: EntryLogFileRef) -> None:
        bookie, report = self._bookie, self._report
        if ref.directory_index >= len(bookie.ledger_directories):
            raise CannotTell(
                f"the checkpoint names ledger directory {ref.directory_index + 1}, and there are "
                f"{len(bookie.ledger_directories)}"
            )
        path = f"{bookie.ledger_directories[ref.directory_index]}/{ref.file_id:06d}.de"
        self._tell(f"reading {path}")
        report.shelf_files += 1
        try:
            file = bookie.fs.open(path)
        except OSError as error:
            report.damages.append(CheckFinding(path, f"the data file cannot be opened: {error}"))
            return
        try:
            size_bytes = file.size_bytes()
            report.shelf_bytes += size_bytes
            if size_bytes != ref.data_bytes:
                what = f"{size_bytes} bytes, and the checkpoint says {ref.data_bytes}"
                report.damages.append(CheckFinding(path, what))
            index = self._open_index(path, ref)
            try:
                self._check_header(path, file, ref)
                items = scan(file, ref.file_id, bookie.incarnation)
                self._compare(path, items, index)
            except (JournalFormatError, EntryLogFormatError) as error:
                raise CannotTell(f"{path}: {error}") from error
            finally:
                if index is not None:
                    index.close()
        finally:
            file.close()

    def _check_header(self, path: str, file: DiskFile, ref: EntryLogFileRef) -> None:
        try:
            header = parse_data_header(file.pread(BLOCK_BYTES, 0))
        except OSError:
            header = None
        if header is None or header[:2] != (ref.file_id, self._bookie.incarnation):
            what = "the header is damaged; nothing but this block is lost by that"
            self._report.damages.append(CheckFinding(path, what, 0, BLOCK_BYTES))

    def _open_index(self, path: str, ref: EntryLogFileRef) -> IndexFile | None:
        """The index, if it is whole and the one that the checkpoint names."""
        index = None
        try:
            index = IndexFile.open(self._bookie.fs, index_path(path), self._bookie.incarnation)
            index.verify()
            if (index.header.file_id, index.crc) != (ref.file_id, ref.index_crc):
                raise IndexDamaged("it is not the index that the checkpoint names")
        except EntryLogFormatError as error:
            raise CannotTell(f"{index_path(path)}: {error}") from error
        except (IndexDamaged, OSError) as error:
            what = f"the index is damaged ({error}): --rebuild-index makes it anew"
            self._report.damages.append(CheckFinding(index_path(path), what))
            if index is not None:
                index.close()
            return None
        return index

    def _compare(
        self,
        path: str,
        items: Iterator[ScannedRecord | DataDamage],
        index: IndexFile | None,
    ) -> None:
        """Every record against its row: both are in the order of offsets."""
        rows = _list_rows(index) if index is not None else None
        row = next(rows, None) if rows is not None else None
        lost: dict[LedgerId, list[EntryId]] = {}
        envelopes = _EnvelopeCheck()
        for item in items:
            if isinstance(item, DataDamage):
                self._report.damages.append(_report_data_damage(path, item))
                continue
            found = _row_of(item)
            while rows is not None and row is not None and row.offset < item.header.location.offset:
                lost.setdefault(row.ledger_id, []).append(row.entry_id)
                envelopes.skip()
                row = next(rows, None)
            if rows is not None and row is not None and row[:5] == found:
                envelopes.compare(row, item)
                row = next(rows, None)
            elif rows is not None or found is None:
                self._report_stray(path, item)
                continue
            self._report.shelf_entries += 1
            ledger = self._in_entry_log.setdefault(item.header.ledger_id, EntryRanges())
            ledger.add(item.header.entry_id)
        while rows is not None and row is not None:
            lost.setdefault(row.ledger_id, []).append(row.entry_id)
            row = next(rows, None)
        if envelopes.damaged_count:
            self._note_envelopes(path, envelopes.damaged_count)
        if index is not None and index.has_envelopes and envelopes.wrong_count:
            what = f"{envelopes.wrong_count} rows name other envelopes: --rebuild-index mends it"
            self._report.damages.append(CheckFinding(index_path(path), what))
        for ledger_id, entries in lost.items():
            finding = CheckFinding(path, "entries are lost", None, None, ledger_id)
            self._report.damages.append(finding._replace(entries=group_ranges(entries)))

    def _report_stray(self, path: str, item: ScannedRecord) -> None:
        header = item.header
        entries = [(header.entry_id, header.entry_id)]
        self._report.damages.append(
            CheckFinding(
                path, "a record that the index has otherwise, or that is no entry",
                header.offset, header.end, header.ledger_id, entries,
            )
        )  # fmt: skip

    def _note_leftovers(self, checkpoint: Checkpoint) -> None:
        named = {(ref.directory_index, f"{ref.file_id:06d}") for ref in checkpoint.entry_log_files}
        for directory_index, directory in enumerate(self._bookie.ledger_directories):
            if not self._bookie.fs.exists(directory):
                continue
            for name in self._bookie.fs.list_names(directory):
                stem, _, kind = name.partition(".")
                is_entry_log_file = stem.isdecimal() and kind in ("de", "idx", "idx.new")
                if is_entry_log_file and (
                    kind == "idx.new" or (directory_index, stem) not in named
                ):
                    self._report.notes.append(
                        f"{directory}/{name} is in no checkpoint: the next start removes it"
                    )

    # --- What was promised -----------------------------------------------------------------------

    def _check_promises(self, checkpoint: Checkpoint) -> None:
        path = self._bookie.data_directory
        if checkpoint.state.is_everything_doubtful:
            self._report.damages.append(
                CheckFinding(path, "after earlier damage no absence of any entry is vouched for")
            )
        for ledger in checkpoint.state.ledgers:
            if self._is_dropped(ledger.ledger_id):
                continue
            self._report.settled_entries += len(ledger.settled)
            missing = self._subtract(ledger.settled, ledger, with_entry_log=True)
            if missing:
                what = "entries that the checkpoint promises are nowhere"
                self._report.damages.append(
                    CheckFinding(path, what, None, None, ledger.ledger_id, missing)
                )
            unknown = self._subtract(ledger.unknown, ledger, with_entry_log=False)
            if unknown:
                what = "entries were lost before and wait for repair"
                self._report.damages.append(
                    CheckFinding(path, what, None, None, ledger.ledger_id, unknown)
                )

    def _subtract(
        self, promised: EntryRanges, ledger: LedgerSnapshot, *, with_entry_log: bool
    ) -> list[tuple[EntryId, EntryId]]:
        left = promised.copy()
        for holder in (self._hot, self._in_entry_log) if with_entry_log else (self._hot,):
            for first, last in holder.get(ledger.ledger_id, ()):
                left.remove(first, last)
        return left.list_ranges()

    def _is_dropped(self, ledger_id: LedgerId) -> bool:
        below = self._gone_below.get(log_of(ledger_id))
        return ledger_id in self._gone or (below is not None and epoch_of(ledger_id) < below)


def _list_rows(index: IndexFile) -> Iterator[IndexRow]:
    for first in range(0, index.header.row_count, _ROWS_AT_ONCE):
        yield from index.list_rows(first, min(first + _ROWS_AT_ONCE, index.header.row_count))


class _EnvelopeCheck:
    """Compares what the rows of an index say of envelopes with those that stand in the data."""

    def __init__(self) -> None:
        self.damaged_count = 0
        self.wrong_count = 0
        self._number = 0
        self._contents = (NO_ENVELOPE, b"")
        """The row that was last found to have a content of its own, and that content."""

    def skip(self) -> None:
        """The next row's record is damaged."""
        self._number += 1

    def compare(self, row: IndexRow, item: ScannedRecord) -> None:
        """The next row has this record."""
        number, place = self._number, row.content_row
        self._number += 1
        content = content_of(item.envelope)
        self.damaged_count += item.has_lost_envelope
        if item.has_lost_envelope:
            return
        if place == number:
            self._contents = number, content
        known = self._contents[1] if place == self._contents[0] else content
        self.wrong_count += (place != NO_ENVELOPE) != bool(content) or known != content


def _row_of(item: ScannedRecord) -> tuple[LedgerId, EntryId, int, int, int] | None:
    """What a record's row should begin with; None if its body is not the entry that it says."""
    location = item.header.location
    try:
        info = check_entry(item.body)
    except EntryError:
        return None
    if (info.ledger_id, info.entry_id) != (item.header.ledger_id, item.header.entry_id):
        return None
    return info.ledger_id, info.entry_id, location.length_bytes, location.offset, info.crc


def _report_data_damage(path: str, damage: DataDamage) -> CheckFinding:
    if damage.header is None:
        return CheckFinding(path, "bytes are damaged", damage.start, damage.end)
    entry_id = damage.header.entry_id
    return CheckFinding(
        path, "a record is damaged", damage.start, damage.end,
        damage.header.ledger_id, [(entry_id, entry_id)],
    )  # fmt: skip
