"""Entries → rows → entries: every kind of record comes back, and what is damaged does not.

Source: docs/protocol/archive.md "Files", invariant A1.
"""

from __future__ import annotations

import hashlib
import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.core.segment import Totals
from duramen.ids import EntryId
from duramen.wire.cold.chain import Chain, chain_identities, chain_records
from duramen.wire.cold.part_writer import PartWriter
from duramen.wire.cold.rebuild import ColdDataError, rebuild_entries
from duramen.wire.cold.schema import SCHEMA, SCHEMA_KEY
from duramen.wire.edge.batch_codec import Codec
from duramen.wire.entry import HEADER_BYTES, EntryError, check_entry, open_payload
from duramen.wire.record_batch import BatchProducer, decode_batch, encode_batch, split_batches
from tests.unit.cold_entries import (
    EPOCH,
    LEDGER,
    START_SEQ_NUM,
    SegmentBytes,
    make_compressed,
    make_every_kind,
    open_part,
    write_part,
)


def decode(entry: bytes) -> list[object]:
    """Everything that a reader sees of an entry."""
    info = check_entry(entry)
    if info.is_control:
        return [info.totals, entry[HEADER_BYTES:]]
    batches = [decode_batch(batch) for batch in split_batches(bytes(open_payload(entry)))]
    return [
        info.totals,
        info.first_position,
        [
            (one.bodies, list(one.timestamps_ms), one.txids and list(one.txids), one.headers)
            for one in batches
        ],
        [one.info.producer for one in batches],
    ]


def assert_same(segment: SegmentBytes, row_group_bytes: int) -> None:
    data, part = write_part(segment, row_group_bytes=row_group_bytes)
    reader = open_part(data, part)
    found = [entry for index in range(len(part.row_groups)) for entry in reader.read_entries(index)]
    assert [entry.entry_id for entry in found] == list(segment.entries)
    for entry in found:
        original = segment.entries[entry.entry_id]
        assert decode(entry.data) == decode(original)
        assert entry.sum.identity_crc == check_entry(original).crc
        info = check_entry(original)
        is_plain = info.is_control or (
            not info.is_compressed
            and all(
                decode_batch(batch).info.codec is Codec.NONE
                for batch in split_batches(original[HEADER_BYTES:])
            )
        )
        assert entry.is_exact == is_plain
        assert not is_plain or entry.data == original
    assert part.identities == chain_identities(
        LEDGER, [(one.sum.entry_id, one.sum.identity_crc) for one in found]
    )
    assert part.records == chain_records(
        LEDGER, [(one.sum.entry_id, one.sum.flags, one.sum.plain_crc) for one in found]
    )
    assert part.row_groups[-1].totals_after == segment.totals


@pytest.mark.parametrize("row_group_bytes", [1, 700, 1 << 24])
def test_every_kind_comes_back(row_group_bytes: int) -> None:
    assert_same(make_every_kind(), row_group_bytes)


@pytest.mark.parametrize("row_group_bytes", [1, 700, 1 << 24])
def test_compressed_entries_come_back_as_their_records(row_group_bytes: int) -> None:
    assert_same(make_compressed(), row_group_bytes)


texts = st.binary(max_size=12)
header_lists = st.lists(st.tuples(texts, texts), max_size=3)


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    count = draw(st.integers(1, 4))

    def column(items: st.SearchStrategy[object]) -> st.SearchStrategy[list[object]]:
        return st.lists(items, min_size=count, max_size=count)

    numbers = st.integers(-(2**63) + 1, 2**63 - 1)
    times = st.integers(-(2**62), 2**62)
    producers = st.builds(
        BatchProducer,
        st.text("abc ~", min_size=1, max_size=5),
        st.integers(0, 2**64 - 1),
        st.integers(0, 2**64 - 1),
    )
    return encode_batch(
        draw(column(texts)),  # type: ignore[arg-type]
        draw(times),
        timestamps_ms=draw(st.none() | column(times)),  # type: ignore[arg-type]
        txids=draw(st.none() | column(numbers)),  # type: ignore[arg-type]
        headers=draw(st.none() | column(header_lists)),  # type: ignore[arg-type]
        producer=draw(st.none() | producers),
        codec=draw(st.sampled_from(Codec)),
    )


@st.composite
def segments(draw: st.DrawFn) -> SegmentBytes:
    segment = SegmentBytes()
    for _ in range(draw(st.integers(1, 8))):
        if draw(st.integers(0, 4)) == 0:
            segment.add_control(draw(st.binary(min_size=0, max_size=20)))
        else:
            segment.add(
                *draw(st.lists(batches(), min_size=1, max_size=3)),
                has_state=draw(st.booleans()),
                is_compressing=draw(st.booleans()),
            )
        if draw(st.integers(0, 4)) == 0:
            segment.lose()
    segment.add(encode_batch([b"last"], 0))
    return segment


@given(segments(), st.sampled_from([1, 300, 1 << 24]))
def test_any_segment_comes_back(segment: SegmentBytes, row_group_bytes: int) -> None:
    assert_same(segment, row_group_bytes)


def test_columns_are_those_of_the_interface() -> None:
    data, part = write_part(make_every_kind())
    opened = pq.ParquetFile(io.BytesIO(data))
    assert (opened.schema_arrow.metadata or {})[SCHEMA_KEY] == b"1"
    assert opened.schema_arrow.names == SCHEMA.names
    table = opened.read()
    rows = table.to_pylist()
    assert rows[:3] == [
        {
            "seq_num": START_SEQ_NUM + slot,
            "epoch": EPOCH,
            "entry": 0,
            "slot": slot,
            "txid": None,
            "timestamp_ms": 1_000,
            "producer_id": None,
            "producer_epoch": None,
            "producer_seq": None,
            "flags": 0,
            "headers": [],
            "body": body,
            "entry_crc": check_entry(make_every_kind().entries[EntryId(0)]).crc,
            "entry_bytes": 64 + 3 * 4 + 10,
        }
        for slot, body in enumerate([b"plain", b"", b"third"])
    ]
    with_headers = next(row for row in rows if row["body"] == b"with")
    assert [(pair["name"], pair["value"]) for pair in with_headers["headers"]] == [
        (b"name", b"one"),
        (b"name", b"two"),
        (b"", b""),
    ]
    control = [row for row in rows if row["seq_num"] is None]
    assert [row["entry"] for row in control] == [6, 8]
    order = [(row["epoch"], row["entry"], row["slot"]) for row in rows]
    assert order == sorted(order) and part.row_count == len(rows)
    statistics = opened.metadata.row_group(0).column(0).statistics
    assert (statistics.min, statistics.max) == (START_SEQ_NUM, START_SEQ_NUM + 13)
    assert opened.metadata.row_group(0).column(12).statistics is None, "of bodies"


def test_a_hole_begins_a_row_group() -> None:
    _, part = write_part(make_every_kind())
    assert [(group.first_entry, group.last_entry) for group in part.row_groups] == [(0, 6), (8, 12)]
    assert part.row_groups[0].totals_after.record_count == 14
    assert part.row_groups[1].totals_before.record_count == 15
    assert part.row_groups[1].totals_before.max_txid == 900


def test_row_groups_are_bounded() -> None:
    segment = SegmentBytes()
    for _ in range(12):
        segment.add(encode_batch([bytes(1 << 20)] * 3, 0))
    _, part = write_part(segment)
    assert [group.entry_count for group in part.row_groups] == [5, 5, 2]


def test_checksums_are_of_the_files_sections() -> None:
    data, part = write_part(make_every_kind(), row_group_bytes=700)
    assert len(part.row_groups) > 3
    at = 4
    for group in part.row_groups:
        assert group.offset == at
        at += group.size_bytes
        assert hashlib.sha256(data[group.offset : at]).hexdigest() == group.sha256
    assert hashlib.sha256(data[at:]).hexdigest() == part.footer_sha256
    assert hashlib.sha256(data).hexdigest() == part.sha256 and len(data) == part.size_bytes


def test_groups_are_found_by_entry() -> None:
    data, part = write_part(make_every_kind(), row_group_bytes=1)
    reader = open_part(data, part)
    assert list(reader.find_groups(EntryId(0), EntryId(1))) == [0, 1]
    assert list(reader.find_groups(EntryId(7), EntryId(7))) == []
    assert list(reader.find_groups(EntryId(7), EntryId(8))) == [7]
    assert list(reader.find_groups(EntryId(12), EntryId(99))) == [11]
    assert reader.read_table(3, ["seq_num", "body"]).to_pylist() == [
        {"seq_num": START_SEQ_NUM + 7, "body": b"empty headers"}
    ]


def test_any_flipped_byte_is_found() -> None:
    segment = SegmentBytes()
    for index in range(4):
        segment.add(encode_batch([b"body %d" % index, b""], index))
    data, part = write_part(segment, row_group_bytes=1)
    for at in range(4, len(data), 7):
        flipped = bytearray(data)
        flipped[at] ^= 0x20
        reader = open_part(bytes(flipped), part)
        indices = range(len(part.row_groups))
        with pytest.raises(ColdDataError):
            _ = [list(reader.read_entries(index)) for index in indices]


def test_a_short_or_missing_file_is_found() -> None:
    data, part = write_part(make_every_kind())
    for short in (b"", data[:100], data[:-1]):
        with pytest.raises(ColdDataError, match="bytes at"):
            open_part(short, part).read_table(0)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("body", pa.array([b"other", b"", b"third"], pa.binary())),
        ("timestamp_ms", pa.array([7, 7, 7], pa.int64())),
        ("seq_num", pa.array([2, 3, 4], pa.int64())),
        ("epoch", pa.array([4, 4, 4], pa.int64())),
        ("slot", pa.array([1, 2, 3], pa.int32())),
        ("flags", pa.array([256, 256, 256], pa.int32())),
        ("flags", pa.array([64, 64, 64], pa.int32())),
    ],
)
def test_other_rows_are_no_entry(column: str, values: pa.Array) -> None:
    segment = SegmentBytes()
    segment.add(encode_batch([b"plain", b"", b"third"], 1_000))
    data, part = write_part(segment)
    table = open_part(data, part).read_table(0)

    def rebuild(rows: pa.Table) -> list[bytes]:
        built = rebuild_entries(
            rows, ledger_id=LEDGER, totals_before=Totals(), start_seq_num=START_SEQ_NUM
        )
        return [entry.data for entry in built]

    assert rebuild(table) == list(segment.entries.values())
    with pytest.raises(ColdDataError):
        rebuild(table.set_column(SCHEMA.get_field_index(column), SCHEMA.field(column), values))
    with pytest.raises(ColdDataError):
        rebuild(table.slice(1))


def test_a_damaged_entry_is_not_archived() -> None:
    segment = make_every_kind()
    entry = bytearray(segment.entries[EntryId(0)])
    entry[80] ^= 1
    writer = PartWriter(
        lambda data: None, name="part-00000.parquet", ledger_id=LEDGER, start_seq_num=0
    )
    with pytest.raises(EntryError):
        writer.add(bytes(entry))


def test_sums_do_not_care_for_cuts() -> None:
    rows = [(EntryId(index), index * 77) for index in range(20)]
    whole = chain_identities(LEDGER, rows)
    assert chain_identities(LEDGER, rows[13:]).plus(chain_identities(LEDGER, rows[:13])) == whole
    assert chain_identities(LEDGER, [*rows[:-1], (EntryId(19), 1)]) != whole
    assert chain_identities(LEDGER, rows[:-1]) != whole
    exchanged = [(EntryId(0), rows[1][1]), (EntryId(1), rows[0][1]), *rows[2:]]
    assert chain_identities(LEDGER, exchanged) != whole
    assert chain_identities(LEDGER, []) == Chain()
