"""Bytes of a bookie's checkpoint: which files are in force, and every kind of state.

    offset  size  field                         offset  size  field
    0       4     magic "DCP1"                  40      8     next entry log file's id
    4       1     version (2: envelopes)        48      4×4   entry logs, logs, ledgers, numbers
    5       1     flags (below)                 64      24×   file: id 8, bytes of data 8,
    8       8     number of the checkpoint                    index's CRC 4, directory 4
    16      16    incarnation                   …       4×    numbers: logs, then ledgers
    32      8     covered journal file          end     4     CRC32C of all before

    flags   1 all is doubtful; 3 and that is bounded: the numbers begin with the bound's two halves
    log     id, sealed epoch, gone below, [newer from], count of gone ranges; their firsts, lasts
    ledger  log, epoch, LAC, highest, flags (1 doubtful), counts, firsts, lasts (settled, unknown)

Pure: no files. Called by the bookie's checkpoint. Source: docs/protocol/entry-log.md.
"""

from __future__ import annotations

import struct
import sys
from array import array
from typing import Final, NamedTuple

import google_crc32c

from duramen.core.bookie.bookie_state import NO_RANGES, CoreSnapshot, LedgerSnapshot, LogSnapshot
from duramen.core.entry_ranges import EntryRanges
from duramen.ids import (
    NOTHING,
    WIRE_NOTHING,
    EntryId,
    Epoch,
    Incarnation,
    LedgerId,
    LogId,
    epoch_of,
    log_of,
)

MAGIC: Final = b"DCP1"
VERSION: Final = 1
VERSION_ENVELOPES: Final = 2
"""Says that a version that knows no envelopes has nothing to look for here."""

_HEAD: Final = struct.Struct("<4sBB2xQ16sQQIIII")
_FILE: Final = struct.Struct("<QQII")
_CRC: Final = struct.Struct("<I")
_IS_DOUBTFUL: Final = 1
_IS_BOUNDED: Final = 2
_ALL_FLAGS: Final = (0, _IS_DOUBTFUL, _IS_DOUBTFUL | _IS_BOUNDED)
_HALF: Final = 0xFFFF_FFFF
_LEDGER_NUMBER_COUNT: Final = 7
assert array("I").itemsize == 4, "the numbers of a checkpoint have 4 bytes"


class CheckpointFormatError(ValueError):
    """Intact bytes that this version cannot read: start is refused, nothing is changed."""


class EntryLogFileRef(NamedTuple):
    """An entry log file in force.

    `directory_index`: which of the configured ledger directories it is in. `index_crc`: the CRC of
    its index's header, which stands for all of the index.
    """

    file_id: int
    directory_index: int
    data_bytes: int
    index_crc: int


class Checkpoint(NamedTuple):
    """Everything that holds without the journal files up to `covered_file_id`.

    `number` rises by one with each. Journal files up to the covered one (0: none) are not needed
    any more. `next_entry_log_file_id` and above were never used by a file in force.
    """

    number: int
    incarnation: Incarnation
    covered_file_id: int
    entry_log_files: tuple[EntryLogFileRef, ...]
    next_entry_log_file_id: int
    state: CoreSnapshot
    has_envelopes: bool = False
    """Whether there may be envelopes on the disks."""


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Encode a checkpoint; 100,000 ledgers take some tenths of a second: for a thread."""
    state = checkpoint.state
    numbers = array("I")
    flags = _IS_DOUBTFUL if state.is_everything_doubtful else 0
    if state.doubt_until:
        flags |= _IS_BOUNDED
        numbers.extend((state.doubt_until & _HALF, state.doubt_until >> 32))
    for log_id, sealed, gone_below, gone, newer_from in state.logs:
        numbers.extend((log_id, sealed, gone_below))
        if state.doubt_until:
            numbers.append(newer_from)
        numbers.append(gone.range_count)
        _add_ranges(numbers, gone)
    for ledger_id, lac, highest, settled, unknown, is_doubtful in state.ledgers:
        numbers.extend(
            (
                log_of(ledger_id), epoch_of(ledger_id), lac & WIRE_NOTHING, highest & WIRE_NOTHING,
                is_doubtful, settled.range_count, unknown.range_count,
            )
        )  # fmt: skip
        _add_ranges(numbers, settled)
        _add_ranges(numbers, unknown)
    head = _HEAD.pack(
        MAGIC, VERSION_ENVELOPES if checkpoint.has_envelopes else VERSION, flags, checkpoint.number,
        bytes.fromhex(checkpoint.incarnation), checkpoint.covered_file_id,
        checkpoint.next_entry_log_file_id, len(checkpoint.entry_log_files), len(state.logs),
        len(state.ledgers), len(numbers),
    )  # fmt: skip
    files = [
        _FILE.pack(file.file_id, file.data_bytes, file.index_crc, file.directory_index)
        for file in checkpoint.entry_log_files
    ]
    data = b"".join([head, *files, _swap_if_needed(numbers).tobytes()])
    return data + _CRC.pack(google_crc32c.value(data))


def parse_checkpoint(data: bytes) -> Checkpoint | None:
    """Read a checkpoint; None if it is damaged.

    Raises:
        CheckpointFormatError: intact, but of a version or form not known here.
    """
    end = len(data) - _CRC.size
    if end < _HEAD.size or data[:4] != MAGIC:
        return None
    if google_crc32c.value(data[:end]) != _CRC.unpack_from(data, end)[0]:
        return None
    (
        _, version, flags, number, incarnation, covered_file_id, next_entry_log_file_id,
        file_count, log_count, ledger_count, number_count,
    ) = _HEAD.unpack_from(data)  # fmt: skip
    if not VERSION <= version <= VERSION_ENVELOPES or flags not in _ALL_FLAGS:
        raise CheckpointFormatError(f"checkpoint {number}: version {version}, flags {flags:#x}")
    start = _HEAD.size + file_count * _FILE.size
    if start + number_count * 4 != end:
        raise CheckpointFormatError(f"checkpoint {number}: its lengths do not add up")
    entry_log_files = tuple(
        EntryLogFileRef(file_id, directory_index, data_bytes, index_crc)
        for file_id, data_bytes, index_crc, directory_index in _FILE.iter_unpack(
            data[_HEAD.size : start]
        )
    )
    numbers = array("I")
    numbers.frombytes(data[start:end])
    try:
        state = _read_state(_swap_if_needed(numbers), flags, log_count, ledger_count)
    except (IndexError, ValueError) as error:
        raise CheckpointFormatError(f"checkpoint {number}: {error}") from error
    return Checkpoint(
        number, Incarnation(incarnation.hex()), covered_file_id, entry_log_files,
        next_entry_log_file_id, state, version >= VERSION_ENVELOPES,
    )  # fmt: skip


def _read_state(
    numbers: array[int], head_flags: int, log_count: int, ledger_count: int
) -> CoreSnapshot:
    """Raises ValueError or IndexError if the numbers are not so many logs and ledgers."""
    at = doubt_until = 0
    if head_flags & _IS_BOUNDED:
        doubt_until = numbers[0] | numbers[1] << 32
        at = 2
        if not doubt_until:
            raise ValueError("a doubt is bounded by nothing")
    logs = []
    for _ in range(log_count):
        log_id, sealed, gone_below = numbers[at : at + 3]
        at += 3
        newer_from = numbers[at] if doubt_until else 0
        at += doubt_until > 0
        range_count = numbers[at]
        gone = _read_ranges(numbers, at + 1, range_count)
        at += 1 + 2 * range_count
        logs.append(LogSnapshot(LogId(log_id), sealed, Epoch(gone_below), gone, newer_from))
    ledgers = []
    for _ in range(ledger_count):
        log_id, epoch, lac, highest, flags, settled_count, unknown_count = numbers[
            at : at + _LEDGER_NUMBER_COUNT
        ]
        at += _LEDGER_NUMBER_COUNT
        settled = _read_ranges(numbers, at, settled_count)
        at += 2 * settled_count
        unknown = _read_ranges(numbers, at, unknown_count)
        at += 2 * unknown_count
        ledger_id = LedgerId(log_id << 32 | epoch)
        ledgers.append(
            LedgerSnapshot(ledger_id, _entry(lac), _entry(highest), settled, unknown, bool(flags))
        )
    if at != len(numbers):
        raise ValueError("numbers are left over")
    return CoreSnapshot(tuple(logs), tuple(ledgers), bool(head_flags & _IS_DOUBTFUL), doubt_until)


def _add_ranges(numbers: array[int], ranges: EntryRanges) -> None:
    firsts, lasts = ranges.columns()
    numbers.extend(firsts)
    numbers.extend(lasts)


def _read_ranges(numbers: array[int], at: int, count: int) -> EntryRanges:
    if count == 0:
        return NO_RANGES
    middle = at + count
    return EntryRanges.from_columns(numbers[at:middle], numbers[middle : middle + count])


def _swap_if_needed(numbers: array[int]) -> array[int]:
    """Little-endian from the machine's order, or back; in place."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _entry(number: int) -> EntryId:
    return NOTHING if number == WIRE_NOTHING else EntryId(number)
