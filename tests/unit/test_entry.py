"""Entries: the golden file, round trips, and an identity checksum that notices every bit (BK#1046).

Source: docs/protocol/wire.md "Entry".
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.core.segment import Totals
from duramen.ids import EntryId, LedgerId
from duramen.limits import ENTRY_BYTES_MAX
from duramen.wire.entry import (
    CONTROL,
    HEADER_BYTES,
    EntryError,
    check_entry,
    encode_entry,
    read_entry_info,
)
from duramen.wire.record_batch import encode_batch, split_batches
from tests.golden import read_golden

BATCHES = [encode_batch([b"one", b"two"], 1_000, txids=[4, 5]), encode_batch([b"three"], 2_000)]
BEFORE = Totals(10, 1_000, 4, 900)
AFTER = BEFORE.plus(Totals(3, sum(map(len, BATCHES)), 5, 2_000))
ENTRY = encode_entry(
    ledger_id=LedgerId(7 << 32 | 3),
    entry_id=EntryId(17),
    before=BEFORE,
    batches=BATCHES,
    record_count=3,
    after=AFTER,
)
maybe = st.none() | st.integers(-(2**63) + 1, 2**63 - 1)


def test_golden_entry() -> None:
    golden = read_golden("entry-v1.bin", ENTRY)
    info = check_entry(golden)
    assert (info.ledger_id, info.entry_id, info.is_control) == (7 << 32 | 3, 17, False)
    assert (info.batch_count, info.record_count, info.first_position) == (2, 3, 10)
    assert info.totals == AFTER
    assert split_batches(golden[HEADER_BYTES:]) == BATCHES


@given(
    st.integers(1, 2**64 - 1),
    st.integers(0, 2**32 - 2),
    st.lists(st.binary(max_size=30), max_size=4),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**50),
    maybe,
    maybe,
    st.booleans(),
)
def test_round_trip(  # noqa: PLR0917 - one for each drawn field
    ledger_id: int,
    entry_id: int,
    batches: list[bytes],
    record_count: int,
    position: int,
    txid: int | None,
    timestamp_ms: int | None,
    is_control: bool,
) -> None:
    after = Totals(
        position + record_count, position + sum(map(len, batches)), txid, timestamp_ms
    )  # fmt: skip
    entry = encode_entry(
        ledger_id=LedgerId(ledger_id),
        entry_id=EntryId(entry_id),
        before=Totals(position, position),
        batches=batches,
        record_count=record_count,
        after=after,
        flags=CONTROL if is_control else 0,
    )
    info = check_entry(entry)
    assert info == read_entry_info(memoryview(entry))
    assert info[:6] == (ledger_id, entry_id, is_control, len(batches), record_count, position)
    assert info.totals == after and entry[HEADER_BYTES:] == b"".join(batches)


@given(st.integers(0, len(ENTRY) * 8 - 1))
def test_every_flipped_bit_is_noticed(bit: int) -> None:
    damaged = bytearray(ENTRY)
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(EntryError):
        check_entry(bytes(damaged))


@given(st.binary(max_size=150), st.booleans())
def test_arbitrary_bytes_are_refused(data: bytes, has_magic: bool) -> None:
    with pytest.raises(EntryError):
        check_entry(b"DEN1" + data if has_magic else data)


def test_entries_cut_short_with_a_tail_or_too_large_are_refused() -> None:
    for data in (ENTRY[:-1], ENTRY + b"x", ENTRY[: HEADER_BYTES - 1], b""):
        with pytest.raises(EntryError):
            check_entry(data)
    with pytest.raises(EntryError, match="at most"):
        check_entry(ENTRY + bytes(ENTRY_BYTES_MAX))


def test_the_totals_around_an_entry_must_fit_it() -> None:
    with pytest.raises(AssertionError):
        encode_entry(
            ledger_id=LedgerId(1 << 32 | 1),
            entry_id=EntryId(0),
            before=Totals(),
            batches=[b"abc"],
            record_count=1,
            after=Totals(1, 2),
        )
