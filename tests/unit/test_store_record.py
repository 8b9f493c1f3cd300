"""STORE, the journal's record of an entry with its envelope: bytes, and what damage leaves of it.

Source: docs/protocol/envelopes.md "On disk", V4, V7, V11.
"""

from __future__ import annotations

from collections import Counter

import google_crc32c
import pytest

from duramen.wire.disk.journal_format import (
    HEADER_BYTES,
    JournalFormatError,
    RecordHeader,
    RecordKind,
    parse_header,
)
from duramen.wire.disk.store_record import TakenRecord, take_record
from tests.golden import read_golden
from tests.unit.stores import (
    FILE_ID,
    OFFSET,
    OTHER,
    PLAIN,
    SEED,
    STICKY,
    content,
    encode,
    entry_bytes,
    spell,
    store,
    with_version,
)


def header_in(data: bytes, at: int = 0) -> RecordHeader | None:
    return parse_header(data, at, file_id=FILE_ID, offset=OFFSET + at, seed=SEED)


def take(data: bytes, at: int = 0) -> TakenRecord | None:
    """What is left of the record at a place; None also where no header verifies."""
    header = header_in(data, at)
    if header is None:
        return None
    start = at + HEADER_BYTES
    return take_record(header, data[start : start + header.body_bytes])


def test_golden_stores() -> None:
    records = [
        store(2, STICKY, lac=1),
        store(3, None, lac=1),
        store(4, PLAIN, lac=2, is_recovery=True),
    ]
    golden = read_golden("journal-stores-v1.bin", encode(records))
    at = 0
    for record in records:
        header = header_in(golden, at)
        assert header is not None and header.kind is record.kind
        assert header.location.length_bytes == len(record.body)
        assert header.body_bytes == len(record.body) + len(record.envelope)
        assert take(golden, at) == TakenRecord(record, is_whole=True)
        at = header.end - OFFSET
    assert at == len(golden)


def test_each_flipped_byte_costs_what_the_page_says() -> None:
    """No entry is lost with its envelope or with the record's checksum (V7)."""
    record = store(2)
    data = encode([record])
    entry_at, envelope_at = HEADER_BYTES, HEADER_BYTES + len(record.body)
    end = envelope_at + len(record.envelope)
    bare = record._replace(kind=RecordKind.ADD, envelope=b"")
    seen: Counter[str] = Counter()
    for at in range(end):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            taken = take(bytes(flipped))
            if at < HEADER_BYTES - 4:  # under the header's own checksum
                assert taken is None, at
                seen["header"] += 1
            elif at < entry_at:  # the record's checksum: nothing else depends on it
                assert taken == TakenRecord(record, is_whole=False), at
                seen["record's checksum"] += 1
            elif at < envelope_at:
                assert taken is None, at
                seen["entry"] += 1
            else:
                assert taken == TakenRecord(bare, is_whole=False), at
                seen["envelope"] += 1
    assert len(seen) == 4 and sum(seen.values()) == 8 * end


def test_an_envelope_that_is_cut_off_costs_the_envelope_alone() -> None:
    record = store(2)
    data = encode([record])
    header = header_in(data)
    assert header is not None
    body = data[HEADER_BYTES : HEADER_BYTES + header.body_bytes]
    for size in range(len(body)):
        taken = take_record(header, body[:size])
        is_entry_there = size >= len(record.body)
        assert (taken is not None) is is_entry_there, size
        assert taken is None or taken.record.kind is RecordKind.ADD


def test_swapped_envelopes_are_none() -> None:
    """V11: each verifies for one entry alone, whatever the record's checksum says."""
    first, second = store(2), store(3)
    for one, other in ((first, second), (second, first)):
        swapped = one._replace(envelope=other.envelope)
        taken = take(encode([swapped]))
        assert taken is not None and taken.is_whole, "the record was written like that"
        assert taken.record == one._replace(kind=RecordKind.ADD, envelope=b"")
        assert taken.content == b""


def test_the_envelope_of_another_body_of_the_same_entry_is_none() -> None:
    first = store(2)
    other = entry_bytes(2, b"another batch")
    taken = take(encode([first._replace(envelope=spell(OTHER, other))]))
    assert taken is not None and not taken.record.envelope


@pytest.mark.parametrize("version", [0, 2, 255])
def test_an_intact_envelope_of_another_version_is_refused(version: int) -> None:
    with pytest.raises(JournalFormatError, match=f"version {version}"):
        take(encode([with_version(store(2), version)]))


def test_two_bytes_that_nobody_read_before_say_nothing_in_other_records() -> None:
    data = bytearray(encode([store(3, None)]))
    data[54:56] = b"\7\0"
    crc = google_crc32c.extend(SEED, bytes(data[:72]))
    data[72:76] = crc.to_bytes(4, "little")
    header = header_in(bytes(data))
    assert header is not None and header.envelope_bytes == 0
    assert header.location.length_bytes == header.body_bytes


def test_a_content_is_the_envelope_without_its_checksum() -> None:
    taken = take(encode([store(2, OTHER)]))
    assert taken is not None and taken.content == content(OTHER)
