"""`duramen-bookie inspect …`: what stands in the files of a stopped bookie, as lines or JSON lines.

Every view yields rows, one dict each with its `kind` first, as they are read, so that a journal of
a gigabyte needs no memory. Nothing is believed to be right: the journal is shown record by record
wherever a header verifies, with what damage a start would find at the end; an entry is looked for
in every place, and each copy says whether it is intact.

Not here: the verdict about all of it (`check`), the command line (`commands`).
Source: docs/bookie.md "Directories".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from duramen.core.entry_ranges import EntryRanges, group_ranges
from duramen.ids import NOTHING, EntryId, LedgerId, epoch_of, log_of
from duramen.wire.disk.checkpoint_format import Checkpoint, EntryLogFileRef
from duramen.wire.disk.entry_log_format import EntryLogFormatError
from duramen.wire.disk.journal_format import (
    BLOCK_BYTES,
    JournalFormatError,
    JournalRecord,
    RecordHeader,
    RecordKind,
    parse_cut,
)
from duramen.wire.disk.store_record import take_record
from duramen.wire.entry import EntryError, check_entry
from duramen.wire.flexible.envelope import content_of, parse_content
from duramen_bookie.checkpoint import CheckpointDamaged
from duramen_bookie.entry_log.data_file import index_path
from duramen_bookie.entry_log.entry_log import EntryLog
from duramen_bookie.entry_log.entry_log_file import EntryLogFile
from duramen_bookie.entry_log.index_file import IndexDamaged
from duramen_bookie.journal.findings import JournalMismatch, RecordSight, ReplayedRecord
from duramen_bookie.journal.journal_file import JournalFile
from duramen_bookie.journal.names import file_name, list_journal
from duramen_bookie.offline.stopped_bookie import CannotTell, StoppedBookie

Row = dict[str, Any]


def view_checkpoint(bookie: StoppedBookie) -> Iterator[Row]:
    """The checkpoint: itself, its entry log files, its logs, its ledgers.

    Raises:
        CannotTell: it is damaged, another bookie's, or of a newer version.
    """
    checkpoint = _read_checkpoint(bookie)
    if checkpoint is None:
        yield {"kind": "checkpoint", "number": None}
        return
    state = checkpoint.state
    yield {
        "kind": "checkpoint",
        "number": checkpoint.number,
        "incarnation": checkpoint.incarnation,
        "covered_file_id": checkpoint.covered_file_id,
        "next_shelf_file_id": checkpoint.next_entry_log_file_id,
        "is_everything_doubtful": state.is_everything_doubtful,
    }
    for ref in checkpoint.entry_log_files:
        yield {"kind": "shelf_file", **ref._asdict()}
    for log in state.logs:
        yield {
            "kind": "log",
            "log_id": str(log.log_id),
            "sealed_epoch": log.sealed,
            "gone_below": log.gone_below,
            "gone": _encode_ranges(log.gone),
        }
    for ledger in state.ledgers:
        yield {
            "kind": "ledger",
            **_name_ledger(ledger.ledger_id),
            "lac": _entry_or_none(ledger.lac),
            "highest": _entry_or_none(ledger.highest),
            "settled": _encode_ranges(ledger.settled),
            "unknown": _encode_ranges(ledger.unknown),
            "is_doubtful": ledger.is_doubtful,
        }


def view_journal(bookie: StoppedBookie, only_file_id: int | None = None) -> Iterator[Row]:
    """Every journal file with every record whose header verifies, then what a start would say.

    Args:
        only_file_id: leaves out the records of the other files.

    Raises:
        CannotTell: a file is another bookie's, or of a newer version.
    """
    directory, fs = bookie.journal_directory, bookie.fs
    listing = list_journal(fs, directory)
    for file_id in listing.file_ids:
        disk = fs.open(f"{directory}/{file_name(file_id)}")
        try:
            file = JournalFile(file_id, disk, bookie.incarnation, is_direct=True)
            file.read_generation(fs, directory)
            yield _describe_file(file)
            if only_file_id in (None, file_id):
                for found in file.records(BLOCK_BYTES, file.size_bytes):
                    yield _describe_record(found)
        except (JournalMismatch, JournalFormatError) as error:
            raise CannotTell(f"the journal cannot be used: {error}") from error
        finally:
            disk.close()
    for spare_id in listing.spare_ids:
        yield {"kind": "spare", "file_id": spare_id}
    checkpoint = _read_checkpoint(bookie)
    covered = 0 if checkpoint is None else checkpoint.covered_file_id
    result = bookie.replay_journal(covered, lambda _item: None)
    for disk in result.files.values():
        disk.close()
    for damage in result.damages:
        lost = damage.header
        yield {
            "kind": "damage",
            "what": damage.kind.value,
            "file_id": damage.file_id,
            "start": damage.start,
            "end": damage.end,
            **({} if lost is None else _name_entry(lost.ledger_id, lost.entry_id)),
        }
    yield {
        "kind": "journal",
        "covered_file_id": covered,
        "is_clean": result.is_clean,
        "records": result.record_count,
        "records_of_last_commit": len(result.tail),
        "torn_bytes": result.torn_bytes,
        "damages": len(result.damages),
    }


def view_ledger(bookie: StoppedBookie, ledger_id: LedgerId) -> Iterator[Row]:
    """What is known of a ledger, then where its entries are, file by file.

    Raises:
        CannotTell: as the other views.
    """
    checkpoint = _read_checkpoint(bookie)
    summary = _summarize(checkpoint, ledger_id)
    in_journal: dict[int, EntryRanges] = {}

    def on_record(item: ReplayedRecord) -> None:
        header = item.header
        if log_of(header.ledger_id) != log_of(ledger_id):
            return
        epoch = epoch_of(header.ledger_id)
        if header.kind is RecordKind.SEAL:
            summary["sealed_epoch"] = max(summary["sealed_epoch"], epoch)
        elif header.kind is RecordKind.TOMBSTONE:
            is_below = header.is_all_below and epoch_of(ledger_id) < epoch
            is_this = not header.is_all_below and header.ledger_id == ledger_id
            summary["is_dropped"] |= is_below or is_this
        elif header.ledger_id == ledger_id:
            summary["is_known"] = True
            if header.kind.holds_entry:
                in_journal.setdefault(header.file_id, EntryRanges()).add(header.entry_id)
                summary["highest"] = max(summary["highest"], header.entry_id)
            if not header.is_recovery:
                summary["lac"] = max(summary["lac"], header.lac)

    _replay_whole(bookie, checkpoint, on_record)
    summary["lac"] = _entry_or_none(summary["lac"])
    summary["highest"] = _entry_or_none(summary["highest"])
    yield summary
    for file_id, ranges in sorted(in_journal.items()):
        entries = _encode_ranges(ranges)
        yield {"kind": "in_journal", "file": file_name(file_id), "entries": entries}
    for path, file, note in _open_entry_log(bookie, checkpoint):
        if file is None:
            yield {"kind": "in_shelf", "file": path, "damage": note}
            continue
        ledger = file.index.find_ledger(ledger_id)
        if ledger is None:
            continue
        row: Row = {"kind": "in_shelf", "file": path}
        try:
            end = ledger.first_row + ledger.row_count
            rows = file.index.list_rows(ledger.first_row, end)
            entry_ids = [found.entry_id for found in rows]
            row["entries"] = [list(pair) for pair in group_ranges(entry_ids)]
            row["bytes"] = ledger.record_bytes
        except IndexDamaged as error:
            row["damage"] = str(error)
        yield row


def view_entry(
    bookie: StoppedBookie, ledger_id: LedgerId, entry_id: EntryId
) -> Iterator[tuple[Row, bytes | None]]:
    """Every copy of an entry, the journal's first, with its bytes if they are intact.

    Raises:
        CannotTell: as the other views.
    """
    checkpoint = _read_checkpoint(bookie)
    found: list[RecordHeader] = []

    def on_record(item: ReplayedRecord) -> None:
        header = item.header
        place = header.ledger_id, header.entry_id
        if header.kind.holds_entry and place == (ledger_id, entry_id):
            found.append(header)

    _replay_whole(bookie, checkpoint, on_record)
    for header in found:
        path = f"{bookie.journal_directory}/{file_name(header.file_id)}"
        disk = bookie.fs.open(path)
        try:
            body = disk.pread(header.body_bytes, header.location.offset)
        except OSError:
            body = b""
        finally:
            disk.close()
        taken = take_record(header, body)
        record = None if taken is None else taken.record
        yield _describe_copy(path, header.location.offset, header.entry_bytes, record)
    for path, file, note in _open_entry_log(bookie, checkpoint):
        if file is None:
            yield {"kind": "copy", "file": path, "is_intact": False, "damage": note}, None
            continue
        try:
            row = file.index.find(ledger_id, entry_id)
        except IndexDamaged as error:
            yield {"kind": "copy", "file": path, "is_intact": False, "damage": str(error)}, None
            continue
        if row is not None:
            [record] = file.data.read_records([row], is_direct=True)
            yield _describe_copy(path, row.offset, row.length_bytes, record)


# --- Reading -------------------------------------------------------------------------------------


def _read_checkpoint(bookie: StoppedBookie) -> Checkpoint | None:
    try:
        return bookie.read_checkpoint()
    except CheckpointDamaged as error:
        raise CannotTell(f"{error}: duramen-bookie fsck says more") from error


def _replay_whole(bookie: StoppedBookie, checkpoint: Checkpoint | None, on_record: Any) -> None:
    """All that a start would believe, the last commit included."""
    covered = 0 if checkpoint is None else checkpoint.covered_file_id
    result = bookie.replay_journal(covered, on_record)
    for disk in result.files.values():
        disk.close()
    for item in result.tail:
        on_record(item)


def _open_entry_log(
    bookie: StoppedBookie, checkpoint: Checkpoint | None
) -> Iterator[tuple[str, EntryLogFile | None, str]]:
    """Each entry log file in force, newest first, open until the next; None and why if it cannot
    be."""
    refs: tuple[EntryLogFileRef, ...] = () if checkpoint is None else checkpoint.entry_log_files
    entry_log = EntryLog(
        bookie.fs, bookie.ledger_directories, bookie.incarnation, lambda _ledger: True
    )
    for ref in sorted(refs, key=lambda ref: ref.file_id, reverse=True):
        path = entry_log.path_of(ref.file_id, ref.directory_index)
        try:
            file = entry_log.open_file(ref)
        except EntryLogFormatError as error:
            raise CannotTell(f"{index_path(path)}: {error}") from error
        except (IndexDamaged, OSError) as error:
            yield path, None, str(error)
            continue
        try:
            yield path, file, ""
        finally:
            file.retire()


def _summarize(checkpoint: Checkpoint | None, ledger_id: LedgerId) -> Row:
    """The checkpoint's word on a ledger; what the journal adds comes on top."""
    logs = () if checkpoint is None else checkpoint.state.logs
    ledgers = () if checkpoint is None else checkpoint.state.ledgers
    log = next((log for log in logs if log.log_id == log_of(ledger_id)), None)
    ledger = next((ledger for ledger in ledgers if ledger.ledger_id == ledger_id), None)
    epoch = epoch_of(ledger_id)
    return {
        "kind": "ledger",
        **_name_ledger(ledger_id),
        "is_known": ledger is not None,
        "sealed_epoch": 0 if log is None else log.sealed,
        "is_dropped": log is not None and (epoch < log.gone_below or epoch in log.gone),
        "lac": NOTHING if ledger is None else ledger.lac,
        "highest": NOTHING if ledger is None else ledger.highest,
        "settled": [] if ledger is None else _encode_ranges(ledger.settled),
        "unknown": [] if ledger is None else _encode_ranges(ledger.unknown),
        "is_doubtful": ledger is not None and ledger.is_doubtful,
    }


# --- Rows ----------------------------------------------------------------------------------------


def _describe_file(file: JournalFile) -> Row:
    row: Row = {"kind": "file", "file_id": file.file_id, "size_bytes": file.size_bytes}
    header = file.header
    if header is None:
        return {**row, "is_header_intact": False}
    return {
        **row,
        "is_header_intact": True,
        "previous_file_id": header.previous_file_id,
        "first_commit": header.first_commit,
        "created_unix_us": header.created_unix_us,
        "is_recovery": header.is_recovery,
        "is_recycled": header.is_recycled,
    }


def _describe_record(found: RecordSight) -> Row:
    header, body, is_intact, *_ = found
    row: Row = {
        "kind": "record",
        "record": header.kind.name,
        "file_id": header.file_id,
        "offset": header.offset,
        "commit": header.commit,
    }
    match header.kind:
        case RecordKind.ADD | RecordKind.STORE | RecordKind.LAC:
            row |= _name_entry(header.ledger_id, header.entry_id)
            row["lac"] = _entry_or_none(header.lac)
        case RecordKind.SEAL | RecordKind.TOMBSTONE | RecordKind.LEDGER_KNOWN:
            row |= _name_ledger(header.ledger_id)
        case RecordKind.CUT if is_intact:
            row |= {f"cut_{name}": value for name, value in parse_cut(body)._asdict().items()}
        case _:
            pass
    flags = {"is_recovery": header.is_recovery, "is_all_below": header.is_all_below}
    row |= {name: True for name, is_set in flags.items() if is_set}
    if header.kind is RecordKind.STORE:
        row["envelope"] = _describe_content(found.content)
    return {**row, "body_bytes": header.body_bytes, "is_intact": is_intact}


def _describe_copy(
    path: str, offset: int, length_bytes: int, record: JournalRecord | None
) -> tuple[Row, bytes | None]:
    row: Row = {"kind": "copy", "file": path, "offset": offset, "bytes": length_bytes}
    if record is None:
        return {**row, "is_intact": False}, None
    try:
        info = check_entry(record.body)
    except EntryError as error:
        return {**row, "is_intact": False, "damage": str(error)}, None
    row |= {
        "is_intact": True,
        "crc": f"{info.crc:08x}",
        "is_control": info.is_control,
        "records": info.record_count,
        "first_position": info.first_position,
        "batches": info.batch_count,
        "lac": _entry_or_none(record.lac),
        "service": record.service,
        "wave": record.wave,
        "is_recovery": record.is_recovery,
    }
    if record.envelope:
        row["envelope"] = _describe_content(content_of(record.envelope))
    return row, record.body


def _describe_content(content: bytes) -> Row | None:
    """Whom an envelope names; None: it is lost."""
    if not content:
        return None
    envelope = parse_content(content)
    return {"copyset": list(envelope.copyset), "block": envelope.block}


def _name_ledger(ledger_id: LedgerId) -> Row:
    return {
        "ledger_id": str(ledger_id),
        "log_id": str(log_of(ledger_id)),
        "epoch": epoch_of(ledger_id),
    }


def _name_entry(ledger_id: LedgerId, entry_id: EntryId) -> Row:
    return {"ledger_id": str(ledger_id), "entry_id": _entry_or_none(entry_id)}


def _encode_ranges(ranges: EntryRanges) -> list[list[int]]:
    return [list(pair) for pair in ranges]


def _entry_or_none(entry_id: EntryId) -> int | None:
    return None if entry_id == NOTHING else entry_id
