"""Entries of metadata logs: packed, read back whole, and refused when anything is wrong with them.

Source: docs/protocol/metadata-logs.md "The record".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.core.metadata_log.record import MetadataKind, MetadataRecord
from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment, Totals
from duramen.ids import (
    BookieId,
    EntryId,
    Epoch,
    Incarnation,
    LogId,
    Member,
    ledger_of,
    lsn_of,
    metadata_log_of,
)
from duramen.limits import ENTRY_TARGET_BYTES
from duramen.wire.entry import CONTROL, encode_entry
from duramen.wire.metadata_json import MetadataJsonError
from duramen.wire.nodes.metadata_entries import pack_metadata_batches, read_metadata_entry
from duramen.wire.record_batch import BatchError, encode_batch, read_info

LOG_ID = LogId(7)
SEGMENT = Segment(
    LOG_ID,
    Epoch(1),
    Quorum(1, 1, 1),
    (Fragment(EntryId(0), (Member(BookieId("b0"), Incarnation("0" * 32)),)),),
    nonce="n",
)


def record(epoch: int, nonce: str = "n") -> MetadataRecord:
    segment = replace(SEGMENT, epoch=Epoch(epoch), nonce=nonce)
    return MetadataRecord(MetadataKind.TOLD, segment, epoch, 5)


def spell(batches: Sequence[bytes], *, log_id: LogId = LOG_ID, flags: int = 0) -> bytes:
    """Entry 9 of epoch 4 of the metadata log."""
    count = 0 if flags else sum(read_info(batch).record_count for batch in batches)
    after = Totals(count, sum(map(len, batches)), None, 1)
    return encode_entry(
        ledger_id=ledger_of(metadata_log_of(log_id), Epoch(4)), entry_id=EntryId(9),
        before=Totals(), batches=batches, record_count=count, after=after, flags=flags,
    )  # fmt: skip


def test_records_come_back_in_their_order_from_where_they_lie() -> None:
    records = [record(epoch) for epoch in (3, 1, 2)]
    placed = read_metadata_entry(spell(pack_metadata_batches(records, 1)), LOG_ID)
    assert [one.record for one in placed] == records
    assert {one.lsn for one in placed} == {lsn_of(Epoch(4), EntryId(9))}


@given(st.lists(st.integers(0, 300_000), min_size=1, max_size=8))
def test_batches_are_cut_where_an_entry_is_full(sizes: list[int]) -> None:
    records = [record(number, "x" * size) for number, size in enumerate(sizes, 1)]
    batches = pack_metadata_batches(records, 1)
    read = [one.record for batch in batches for one in read_metadata_entry(spell([batch]), LOG_ID)]
    assert read == records
    counts = [read_info(batch) for batch in batches]
    assert all(one.record_count == 1 or one.decoded_bytes < ENTRY_TARGET_BYTES + 4_096
               for one in counts)  # fmt: skip


def test_thousands_of_records_cost_a_tenth() -> None:
    records = [record(epoch, f"s1.{epoch:024x}") for epoch in range(1, 2_001)]
    batches = pack_metadata_batches(records, 1)
    plain_bytes = sum(read_info(batch).decoded_bytes for batch in batches)
    assert sum(map(len, batches)) * 10 < plain_bytes


def test_a_record_that_is_too_large_is_not_written() -> None:
    with pytest.raises(BatchError, match="at most"):
        pack_metadata_batches([record(1, "x" * (1 << 20))], 1)


def test_control_entries_hold_no_records() -> None:
    assert read_metadata_entry(spell([], flags=CONTROL), LOG_ID) == []


def test_a_kind_that_is_not_known_is_left_out_and_its_neighbours_are_not() -> None:
    (batch,) = pack_metadata_batches([record(1)], 1)
    other = encode_batch([b'{"kind":"later","v":1}'], 1)
    placed = read_metadata_entry(spell([other, batch, other]), LOG_ID)
    assert [one.record for one in placed] == [record(1)]


def _entry_with_a_bit_flipped() -> bytes:
    entry = bytearray(spell(pack_metadata_batches([record(1)], 1)))
    entry[-3] ^= 1
    return bytes(entry)


@pytest.mark.parametrize(
    "entry",
    [
        b"",
        b"x" * 200,
        _entry_with_a_bit_flipped(),
        spell(pack_metadata_batches([record(1)], 1))[:-1],
        spell(pack_metadata_batches([record(1)], 1), log_id=LogId(8)),
        spell([encode_batch([b"no record"], 1)]),
        spell([encode_batch([b'{"kind":"told","v":2}'], 1)]),
        spell([*pack_metadata_batches([record(1)], 1), encode_batch([b"{}"], 1)]),
    ],
)
def test_of_an_entry_that_is_damaged_nothing_is_known(entry: bytes) -> None:
    with pytest.raises(MetadataJsonError):
        read_metadata_entry(entry, LOG_ID)
