"""The entry log's bytes: round trips, and that nothing foreign or damaged verifies.

Blocks, headers and entries alone; whole files, and the golden ones, are in
`component/test_entry_log.py`.
"""

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.core.segment import Totals
from duramen.ids import EntryId, Incarnation, LedgerId
from duramen.wire.disk import entry_log_format as format_
from duramen.wire.disk import journal_format
from duramen.wire.disk.entry_log_format import (
    ROWS_PER_BLOCK,
    DataHeader,
    EntryLogFormatError,
    IndexHeader,
    IndexLedgerRow,
    IndexRow,
)
from duramen.wire.disk.journal_format import BLOCK_BYTES, HEADER_BYTES, JournalRecord, RecordKind
from duramen.wire.entry import encode_entry

INCARNATION = Incarnation("0123456789abcdef0123456789abcdef")
OTHER = Incarnation("fedcba9876543210fedcba9876543210")
LEDGER = LedgerId(7 << 32 | 3)
SEED = format_.index_seed(INCARNATION, 5)
HEADER = IndexHeader(5, INCARNATION, 1 << 40, 1000, 20, 0xCAFE_F00D)

u32 = st.integers(0, (1 << 32) - 1)
u64 = st.integers(0, (1 << 64) - 1)
rows = st.builds(IndexRow, u64.map(LedgerId), u32.map(EntryId), u32, u64, u32, u32)
ledger_rows = st.builds(
    IndexLedgerRow, u64.map(LedgerId), u32, u32, u64, u32.map(EntryId), u32.map(EntryId)
)


def encode_one_entry(entry_id: int, body: bytes = b"a batch") -> bytes:
    """An entry of LEDGER."""
    return encode_entry(
        ledger_id=LEDGER, entry_id=EntryId(entry_id), before=Totals(0, 0), batches=[body],
        record_count=1, after=Totals(1, len(body)),
    )  # fmt: skip


def row_of(entry: bytes, entry_id: int, offset: int) -> IndexRow:
    """The row of an entry that is intact."""
    crc = format_.identify_entry(entry, LEDGER, EntryId(entry_id))
    assert crc is not None
    return IndexRow(LEDGER, EntryId(entry_id), len(entry), offset, crc)


def cut(data: bytes, found: list[IndexRow]) -> list[tuple[int, bytes]]:
    """What `cut_entries` gives, as bytes."""
    return [(number, bytes(body)) for number, body in format_.cut_entries(data, found)]


def flips(data: bytes) -> list[bytes]:
    """The data with each of its bits flipped."""
    return [
        data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
        for at in range(len(data))
        for bit in range(8)
    ]


# --- Entries --------------------------------------------------------------------------------------


def test_a_run_is_cut_into_its_entries() -> None:
    entries = [encode_one_entry(number, bytes(number)) for number in range(5)]
    found, data, offset = [], b"", 8192
    for number, entry in enumerate(entries):
        found.append(row_of(entry, number, offset + len(data)))
        data += entry.ljust(journal_format.record_bytes(len(entry)), b"?")
    assert found[0].next_offset == found[1].offset
    assert cut(data, found) == list(enumerate(entries))
    assert cut(data[: found[3].next_offset - offset - 90], found) == list(enumerate(entries[:3]))


def test_no_flipped_bit_of_an_entry_is_served() -> None:
    entry = encode_one_entry(3)
    row = row_of(entry, 3, 4176)
    assert cut(entry, [row]) == [(3, entry)]
    for damaged in flips(entry):
        assert cut(damaged, [row]) == []
        assert format_.identify_entry(damaged, LEDGER, EntryId(3)) is None


def test_another_entry_than_the_row_names_is_not_served() -> None:
    entry = encode_one_entry(3)
    row = row_of(entry, 3, 4176)
    for wrong in (
        row._replace(entry_id=EntryId(4)),
        row._replace(ledger_id=LedgerId(LEDGER + 1)),
        row._replace(crc=row.crc ^ 1),
        row._replace(length_bytes=row.length_bytes - 1),
        row._replace(length_bytes=row.length_bytes + 1),
        row._replace(length_bytes=3),
    ):
        assert cut(entry, [wrong]) == []
    assert format_.identify_entry(entry, LEDGER, EntryId(4)) is None
    assert format_.identify_entry(entry[:20], LEDGER, EntryId(3)) is None


def test_a_record_of_the_journal_is_none_of_the_entry_log() -> None:
    record = JournalRecord(RecordKind.ADD, LEDGER, EntryId(3), EntryId(2), encode_one_entry(3))

    def format(seed: int) -> bytes:
        encoded = journal_format.encode_commit(
            [record], file_id=5, offset=BLOCK_BYTES, commit=1, previous_crc=0, seed=seed
        )
        return b"".join(encoded.buffers)

    def is_record(data: bytes, seed: int) -> bool:
        found = journal_format.parse_header(data, 0, file_id=5, offset=BLOCK_BYTES, seed=seed)
        return found is not None and found.is_body_intact(data[HEADER_BYTES:][: len(record.body)])

    seeds = [journal_format.seed_of(INCARNATION), format_.data_seed(INCARNATION)]
    seeds += [journal_format.seed_of(OTHER), format_.data_seed(OTHER)]
    for written in seeds:
        assert [is_record(format(written), seed) for seed in seeds] == [
            seed == written for seed in seeds
        ]


# --- Blocks ---------------------------------------------------------------------------------------


@given(st.lists(rows, min_size=1, max_size=ROWS_PER_BLOCK))
def test_rows_are_read_as_they_were_written(table: list[IndexRow]) -> None:
    block = format_.encode_block(b"".join(map(format_.encode_row, table)), 3, SEED)
    view = memoryview(block)
    assert len(block) == BLOCK_BYTES and format_.is_block_intact(block, 3, len(table), SEED)
    assert format_.unpack_rows(view, 0, len(table)) == table
    last = format_.row_position(0, len(table) - 1)
    assert format_.unpack_ledger_id(view, 0, len(table) - 1) == table[-1].ledger_id
    assert format_.unpack_entry_id(view, last) == table[-1].entry_id


@given(st.lists(ledger_rows, min_size=1, max_size=ROWS_PER_BLOCK))
def test_rows_of_the_directory_are_read_as_they_were_written(table: list[IndexLedgerRow]) -> None:
    block = format_.encode_block(b"".join(map(format_.encode_ledger_row, table)), 9, SEED)
    assert format_.is_block_intact(block, 9, len(table), SEED)
    assert format_.unpack_ledger_rows(memoryview(block), 0, len(table)) == table


def test_rows_lie_where_their_number_says() -> None:
    positions = [format_.row_position(2, row) for row in range(3 * ROWS_PER_BLOCK)]
    assert positions[0] == 2 * BLOCK_BYTES and positions[126] == 3 * BLOCK_BYTES - 64
    assert positions[127] == 3 * BLOCK_BYTES and positions == sorted(set(positions))
    assert [format_.count_blocks(count) for count in (0, 1, 127, 128)] == [0, 1, 1, 2]


def test_a_block_verifies_only_in_its_place_of_its_file() -> None:
    block = format_.encode_block(format_.encode_row(IndexRow(LEDGER, EntryId(0), 1, 2, 3)), 3, SEED)
    assert format_.is_block_intact(block, 3, 1, SEED)
    assert not format_.is_block_intact(block, 4, 1, SEED)
    assert not format_.is_block_intact(block, 3, 2, SEED)
    assert not format_.is_block_intact(block[:-1], 3, 1, SEED)
    for seed in (format_.index_seed(INCARNATION, 6), format_.index_seed(OTHER, 5)):
        assert not format_.is_block_intact(block, 3, 1, seed)


def test_no_flipped_bit_of_a_block_is_missed() -> None:
    block = format_.encode_block(format_.encode_row(IndexRow(LEDGER, EntryId(0), 1, 2, 3)), 3, SEED)
    assert not any(format_.is_block_intact(damaged, 3, 1, SEED) for damaged in flips(block))


# --- Headers --------------------------------------------------------------------------------------


def test_headers_are_read_as_they_were_written() -> None:
    block = format_.encode_data_header(DataHeader(5, INCARNATION))
    assert len(block) == BLOCK_BYTES
    assert format_.parse_data_header(block) == DataHeader(5, INCARNATION)
    block = format_.encode_index_header(HEADER)
    assert len(block) == BLOCK_BYTES
    assert format_.parse_index_header(block) == HEADER
    assert HEADER.row_block_count == 8 and HEADER.index_bytes == (1 + 8 + 1) * BLOCK_BYTES


def test_a_header_of_the_other_kind_or_cut_short_is_none() -> None:
    index, data = (
        format_.encode_index_header(HEADER),
        format_.encode_data_header(DataHeader(5, INCARNATION)),
    )
    assert format_.parse_data_header(index) is None and format_.parse_index_header(data) is None
    assert format_.parse_data_header(data[:-1]) is None and format_.parse_index_header(b"") is None


def test_no_flipped_bit_of_a_header_is_missed() -> None:
    assert not any(map(format_.parse_index_header, flips(format_.encode_index_header(HEADER))))
    data = format_.encode_data_header(DataHeader(5, INCARNATION))
    assert not any(map(format_.parse_data_header, flips(data)))


def test_headers_of_files_with_envelopes_differ_in_their_version_alone() -> None:
    newest = DataHeader(5, INCARNATION, 2)
    block = format_.encode_data_header(newest)
    assert format_.parse_data_header(block) == newest
    old = format_.encode_data_header(DataHeader(5, INCARNATION))
    assert block[:-4] == old[:4] + b"\2" + old[5:-4]
    index = format_.encode_index_header(HEADER._replace(version=2))
    assert format_.parse_index_header(index) == HEADER._replace(version=2)


@pytest.mark.parametrize(("at", "value"), [(4, 0), (4, 3), (5, 1), (6, 1)])
def test_an_intact_header_of_another_version_is_refused(at: int, value: int) -> None:
    block = bytearray(format_.encode_index_header(HEADER))
    block[at] = value
    block[-4:] = google_crc32c.value(bytes(block[:-4])).to_bytes(4, "little")
    with pytest.raises(EntryLogFormatError, match="version"):
        format_.parse_index_header(bytes(block))
