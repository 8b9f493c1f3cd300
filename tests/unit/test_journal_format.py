"""The journal's bytes: round trips, the golden file, and that nothing foreign or damaged verifies.

The golden files are the journal of one small history with every kind of record, and a recycled
file's sidecar. They are read by every later version; `DURAMEN_WRITE_GOLDEN=1` writes them anew,
which is a change of the disk format.
"""

import os
from array import array
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.ids import NOTHING, EntryId, Incarnation, LedgerId
from duramen.wire.disk import journal_format as format_
from duramen.wire.disk.journal_format import (
    BLOCK_BYTES,
    HEADER_BYTES,
    Cut,
    FileHeader,
    Generation,
    JournalFormatError,
    JournalRecord,
    RecordHeader,
    RecordKind,
)
from tests.golden import read_golden

GOLDEN = Path(__file__).parents[1] / "golden" / "journal-v1.bin"
INCARNATION = Incarnation("0123456789abcdef0123456789abcdef")
SEED = format_.seed_of(INCARNATION)
LEDGER = LedgerId(7 << 32 | 3)

HEADER = FileHeader(
    file_id=5,
    incarnation=INCARNATION,
    created_unix_us=1_700_000_000_000_000,
    first_commit=41,
    previous_file_id=4,
    previous_crc=0xCAFE_F00D,
    size_bytes=64 << 10,
    is_recovery=True,
)
CUT = Cut(4, 12_288, 0xCAFE_F00D, ((4096, 8192), (9000, 9100)))
COMMITS = [
    [
        JournalRecord(RecordKind.LEDGER_KNOWN, LEDGER),
        JournalRecord(RecordKind.ADD, LEDGER, EntryId(0), NOTHING, b"first"),
        JournalRecord(
            RecordKind.ADD, LEDGER, EntryId(1), EntryId(0), bytes(range(64)), 3, 9, is_recovery=True
        ),
    ],
    [
        JournalRecord(RecordKind.LAC, LEDGER, lac=EntryId(1)),
        JournalRecord(RecordKind.SEAL, LEDGER, body=b"sealed"),
        JournalRecord(RecordKind.TOMBSTONE, LEDGER),
    ],
    [JournalRecord(RecordKind.CUT, LedgerId(0), body=format_.encode_cut(CUT))],
]

PLAIN_KINDS = [kind for kind in RecordKind if not kind.is_mark and kind is not RecordKind.STORE]
"""A STORE is in `test_store_record`."""

records = st.builds(
    JournalRecord,
    st.sampled_from(PLAIN_KINDS),
    st.integers(0, (1 << 64) - 1).map(LedgerId),
    st.integers(-1, (1 << 32) - 2).map(EntryId),
    st.integers(-1, (1 << 32) - 2).map(EntryId),
    st.binary(max_size=300),
    st.integers(0, 255),
    st.integers(0, 65_535),
    st.booleans(),
    st.booleans(),
    envelope=st.just(b""),
)


def encode_journal() -> bytes:
    """A file with COMMITS, a mark behind the first, and an end."""
    data = bytearray(format_.encode_file_header(HEADER))
    crc = format_.file_header_crc(bytes(data))
    for number, commit in enumerate(COMMITS, start=HEADER.first_commit):
        encoded = format_.encode_commit(
            commit, file_id=5, offset=len(data), commit=number, previous_crc=crc, seed=SEED
        )
        data += b"".join(encoded.buffers)
        crc = encoded.last_crc
        if number in {HEADER.first_commit, HEADER.first_commit + 2}:
            data += bytes(-len(data) % BLOCK_BYTES)
            kind = RecordKind.COMMIT_MARK if number == HEADER.first_commit else RecordKind.END
            data += format_.encode_mark(
                kind, file_id=5, offset=len(data), commit=number, previous_crc=crc, seed=SEED
            )
    return bytes(data)


def read_journal(data: bytes) -> list[tuple[RecordHeader, bytes]]:
    """Every record at its place, marks too; the blanks before marks are skipped."""
    found = []
    offset = BLOCK_BYTES
    while offset < len(data):
        header = format_.parse_header(data, offset, file_id=5, offset=offset, seed=SEED)
        if header is None:
            assert not any(data[offset : format_.align(offset, BLOCK_BYTES)])
            offset = format_.align(offset + 1, BLOCK_BYTES)
            continue
        body = data[offset + HEADER_BYTES : offset + HEADER_BYTES + header.body_bytes]
        assert header.is_body_intact(body)
        found.append((header, body))
        offset = offset + BLOCK_BYTES if header.kind.is_mark else header.end
    return found


def test_the_golden_journal_is_written_and_read_as_ever() -> None:
    if os.environ.get("DURAMEN_WRITE_GOLDEN"):
        GOLDEN.write_bytes(encode_journal())
    golden = GOLDEN.read_bytes()
    assert format_.parse_file_header(golden[:BLOCK_BYTES]) == HEADER
    found = read_journal(golden)
    assert {header.kind for header, _ in found} == set(RecordKind) - {RecordKind.STORE}
    kept = [header.record(body) for header, body in found if not header.kind.is_mark]
    assert kept == [record for commit in COMMITS for record in commit]
    assert [header.commit for header, _ in found] == [41, 41, 41, 41, 42, 42, 42, 43, 43]
    assert format_.parse_cut(kept[-1].body) == CUT
    assert encode_journal() == golden


@given(st.lists(records, min_size=1, max_size=8), st.integers(0, 1 << 40))
def test_a_commit_comes_back_as_it_was_given(commit: list[JournalRecord], step: int) -> None:
    start = step * 8
    encoded = format_.encode_commit(
        commit, file_id=9, offset=start, commit=77, previous_crc=5, seed=SEED
    )
    data = b"".join(encoded.buffers)
    assert len(data) == encoded.size_bytes
    offset, previous = start, 5
    for record, location in zip(commit, encoded.locations, strict=True):
        header = format_.parse_header(data, offset - start, file_id=9, offset=offset, seed=SEED)
        assert header is not None and header.location == location
        body = data[location.offset - start :][: location.length_bytes]
        assert header.is_body_intact(body) and header.record(body) == record
        assert (header.commit, header.previous_crc) == (77, previous)
        assert (header.commit_start, header.commit_end) == (start, start + len(data))
        offset, previous = header.end, header.crc
    assert offset == start + len(data) and previous == encoded.last_crc


@given(records, st.data())
def test_no_flipped_bit_goes_unseen(record: JournalRecord, draw: st.DataObject) -> None:
    encoded = format_.encode_commit(
        [record], file_id=9, offset=64, commit=7, previous_crc=5, seed=SEED
    )
    data = bytearray(b"".join(encoded.buffers))
    bit = draw.draw(st.integers(0, 8 * (HEADER_BYTES + len(record.body)) - 1))
    data[bit // 8] ^= 1 << bit % 8
    header = format_.parse_header(bytes(data), 0, file_id=9, offset=64, seed=SEED)
    body = bytes(data[HEADER_BYTES : HEADER_BYTES + len(record.body)])
    assert header is None or not header.is_body_intact(body)


def test_a_record_verifies_in_its_own_place_only() -> None:
    encoded = format_.encode_commit(
        COMMITS[0], file_id=9, offset=64, commit=7, previous_crc=5, seed=SEED
    )
    data = b"".join(encoded.buffers)
    other = format_.seed_of(Incarnation("f" * 32))
    assert format_.parse_header(data, 0, file_id=9, offset=64, seed=SEED)
    assert not format_.parse_header(data, 0, file_id=8, offset=64, seed=SEED)
    assert not format_.parse_header(data, 0, file_id=9, offset=72, seed=SEED)
    assert not format_.parse_header(data, 0, file_id=9, offset=64, seed=other)
    assert not format_.parse_header(data[:79], 0, file_id=9, offset=64, seed=SEED)


def test_what_a_newer_version_wrote_is_refused() -> None:
    struct_ = format_._HEAD
    for version, kind in [(2, 1), (1, 99)]:
        head = struct_.pack(b"DJR1", version, kind, *[0] * 5, 7, 9, 64, *[0] * 6)
        crc = google_crc32c.extend(SEED, head)
        data = head + format_._CRCS.pack(crc, crc)
        with pytest.raises(JournalFormatError):
            format_.parse_header(data, 0, file_id=9, offset=64, seed=SEED)


def test_a_tombstone_tells_whether_it_is_for_everything_below() -> None:
    for is_all_below in (False, True):
        record = JournalRecord(RecordKind.TOMBSTONE, LEDGER, is_all_below=is_all_below)
        encoded = format_.encode_commit(
            [record], file_id=9, offset=64, commit=7, previous_crc=5, seed=SEED
        )
        data = b"".join(encoded.buffers)
        header = format_.parse_header(data, 0, file_id=9, offset=64, seed=SEED)
        assert header is not None and data[6] == 2 * is_all_below
        assert header.is_all_below is is_all_below and not header.is_recovery


def test_a_file_header_tells_whether_the_file_is_recycled() -> None:
    block = format_.encode_file_header(HEADER._replace(is_recycled=True))
    assert block[5] == 3
    assert format_.parse_file_header(block) == HEADER._replace(is_recycled=True)
    for flag in (4, 128):
        head = bytearray(block[:68])
        head[5] |= flag
        newer = bytes(head) + google_crc32c.value(bytes(head)).to_bytes(4, "little")
        with pytest.raises(JournalFormatError):
            format_.parse_file_header(newer)


def test_a_damaged_file_header_is_none() -> None:
    block = bytearray(format_.encode_file_header(HEADER))
    assert format_.parse_file_header(bytes(block)) == HEADER
    for index in range(72):
        block[index] ^= 0x40
        assert format_.parse_file_header(bytes(block)) is None
        block[index] ^= 0x40
    assert format_.parse_file_header(b"") is None


@pytest.mark.parametrize("body", [b"", b"x" * 23, format_.encode_cut(CUT)[:-1]])
def test_a_cut_of_another_form_is_refused(body: bytes) -> None:
    with pytest.raises(JournalFormatError):
        format_.parse_cut(body)


OLD_CONTENT = b"".join([bytes([number]) * BLOCK_BYTES for number in range(3)])
GENERATION = Generation(12, 5, INCARNATION, array("I", format_.block_crcs(OLD_CONTENT)))


def test_the_golden_sidecar_is_written_and_read_as_ever() -> None:
    golden = read_golden("journal-sidecar-v1.bin", format_.encode_generation(GENERATION))
    assert format_.parse_generation(golden) == GENERATION


def test_a_sidecar_knows_the_old_blocks() -> None:
    found = format_.parse_generation(format_.encode_generation(GENERATION))
    assert found is not None
    for index in range(3):
        block = OLD_CONTENT[index * BLOCK_BYTES :][:BLOCK_BYTES]
        assert found.is_old(index, block)
        assert not found.is_old(index, block[:-1] + b"?")
        assert not found.is_old(3, block)


def test_a_damaged_sidecar_is_none() -> None:
    data = format_.encode_generation(GENERATION)
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert format_.parse_generation(bytes(damaged)) is None
    for size in range(len(data)):
        assert format_.parse_generation(data[:size]) is None
    assert format_.parse_generation(data + b"1234") is None


def test_a_sidecar_of_a_newer_version_is_refused() -> None:
    data = bytearray(format_.encode_generation(GENERATION))
    data[4] = 2
    head, rows = bytes(data[:44]), bytes(data[48:])
    data[44:48] = google_crc32c.value(head + rows).to_bytes(4, "little")
    with pytest.raises(JournalFormatError):
        format_.parse_generation(bytes(data))
