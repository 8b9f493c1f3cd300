"""Records as JSON and the binary answer: there and back, and what is refused.

The forms are described in docs/protocol/read-answers.md; both modules are pure, so these tests need
no server. Source: docs/protocol/rest.md "Append", docs/protocol/read-answers.md "JSON".
"""

import base64

import orjson
import pytest

from duramen.core.segment import Totals
from duramen.ids import Dlsn, EntryId, Epoch, LogId, ledger_of
from duramen.texts import format_time
from duramen.wire.entry import CONTROL, EntryError, encode_entry
from duramen.wire.frame import FrameError
from duramen.wire.read_answers import PlacedBatch, pack_batches, parse_batches, place_batches
from duramen.wire.record_batch import BatchError, Header, encode_batch
from duramen.wire.record_json import (
    DeliveredRecord,
    encode_mark,
    encode_record,
    iterate_records,
    read_record,
)
from tests.golden import read_golden

LEDGER = ledger_of(LogId(5), Epoch(3))
BATCHES = (
    encode_batch([b"one", b"two"], 1_000, txids=[7, 8]),
    encode_batch([b"\xff"], 2_000, headers=[[(b"name", b"\xfe")]]),
)


def make_entry(flags: int = 0, record_count: int = 3) -> bytes:
    size = sum(map(len, BATCHES))
    return encode_entry(
        ledger_id=LEDGER, entry_id=EntryId(4), before=Totals(10, 500), batches=BATCHES,
        record_count=record_count, after=Totals(10 + record_count, 500 + size), flags=flags,
    )  # fmt: skip


def test_the_batches_of_an_entry_know_their_places() -> None:
    first, second = place_batches(make_entry(), Epoch(3), 100)
    assert (first.dlsn, first.seq_num, first.end_seq_num) == (
        Dlsn(Epoch(3), EntryId(4), 0),
        110,
        112,
    )
    assert (second.dlsn.slot, second.seq_num, second.record_count) == (2, 112, 1)
    assert bytes(second.batch) == BATCHES[1]


def test_control_entries_hold_nothing_for_readers() -> None:
    assert list(place_batches(make_entry(flags=CONTROL), Epoch(3), 100)) == []


def test_an_entry_whose_counts_disagree_is_refused() -> None:
    with pytest.raises(EntryError, match="3 records, not 2"):
        list(place_batches(make_entry(record_count=2), Epoch(3), 100))


def test_a_binary_answer_comes_back_untouched() -> None:
    placed = list(place_batches(make_entry(), Epoch(3), 100))
    read = parse_batches(pack_batches(placed))
    assert [bytes(b.batch) for b in read] == list(BATCHES)
    assert [b[:3] for b in read] == [b[:3] for b in placed]
    assert parse_batches(pack_batches([])) == []
    damaged = bytearray(pack_batches(placed))
    damaged[40] ^= 1
    with pytest.raises(FrameError):
        parse_batches(bytes(damaged))


def test_a_damaged_batch_is_found_when_it_is_decoded() -> None:
    batch = bytearray(BATCHES[0])
    batch[-1] ^= 1
    placed = PlacedBatch(Dlsn(Epoch(1), EntryId(0), 0), 0, 2, bytes(batch))
    with pytest.raises(BatchError):
        placed.decode()


def test_records_are_spelled_with_what_they_have() -> None:
    first, second = place_batches(make_entry(), Epoch(3), 100)
    assert [encode_record(r, is_base64=False) for r in iterate_records(first)] == [
        {
            "seq_num": 110,
            "dlsn": "e3n4s0",
            "txid": 7,
            "timestamp": "1970-01-01T00:00:01.000Z",
            "body": "one",
        },
        {
            "seq_num": 111,
            "dlsn": "e3n4s1",
            "txid": 8,
            "timestamp": "1970-01-01T00:00:01.000Z",
            "body": "two",
        },
    ]
    (record,) = iterate_records(second)
    as_base64 = {
        "seq_num": 112, "dlsn": "e3n4s2", "timestamp": "1970-01-01T00:00:02.000Z",
        "headers": [["bmFtZQ==", "/g=="]], "body": "/w==",
    }  # fmt: skip
    assert encode_record(record, is_base64=True) == as_base64
    assert encode_record(record, is_base64=False) == as_base64 | {"format": "base64"}


@pytest.mark.parametrize(
    ("headers", "body"),
    [((), b"\xff"), (((b"n", b"\xff"),), b"text"), (((b"\xff", b"v"),), b"text")],
)
def test_one_part_that_is_no_text_makes_the_whole_record_base64(
    headers: tuple[Header, ...], body: bytes
) -> None:
    record = DeliveredRecord(1, Dlsn(Epoch(1), EntryId(0), 0), None, 5, headers, body)
    document = encode_record(record, is_base64=False)
    assert document["format"] == "base64"
    assert document["body"] == base64.b64encode(body).decode()
    assert read_record(document, is_base64=False) == record


def test_the_form_of_records_stays_as_it_is() -> None:
    records = [
        DeliveredRecord(1, Dlsn(Epoch(1), EntryId(0), 0), None, 5, (), "text, ü, \0".encode()),
        DeliveredRecord(2, Dlsn(Epoch(1), EntryId(0), 1), 7, 5, ((b"n", b""), (b"n", b"v")), b""),
        DeliveredRecord(3, Dlsn(Epoch(1), EntryId(1), 0), 8, 5, ((b"n", b"v"),), b"\xff"),
    ]
    present = b"".join(
        orjson.dumps(encode_record(record, is_base64=is_base64), option=orjson.OPT_APPEND_NEWLINE)
        for is_base64 in (False, True)
        for record in records
    )
    lines = read_golden("records-v2.ndjson", present).splitlines()
    found = [read_record(orjson.loads(line), is_base64=at >= 3) for at, line in enumerate(lines)]
    assert found == records * 2


def test_a_record_comes_back_from_its_json() -> None:
    for placed in place_batches(make_entry(), Epoch(3), 100):
        for record in iterate_records(placed):
            for is_base64 in (True, False):
                document = encode_record(record, is_base64=is_base64)
                assert read_record(document, is_base64=is_base64) == record
    text = DeliveredRecord(1, Dlsn(Epoch(1), EntryId(0), 0), None, 5, ((b"a", b"b"),), "ü".encode())
    assert read_record(encode_record(text, is_base64=False), is_base64=False) == text


@pytest.mark.parametrize("document", [{}, {"seq_num": 1}, {"seq_num": 1, "dlsn": "x"}])
def test_what_is_no_record_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"record|DLSN"):
        read_record(document, is_base64=False)


def test_times_and_marks() -> None:
    assert format_time(0) == "1970-01-01T00:00:00.000Z"
    assert format_time(1_767_323_045_678) == "2026-01-02T03:04:05.678Z"
    assert format_time(1 << 62).startswith("9999-12-31")
    assert encode_mark(9, 5, Dlsn(Epoch(1), EntryId(2), 3)) == {
        "seq_num": 9, "timestamp": "1970-01-01T00:00:00.005Z", "lsn": "e1n2", "dlsn": "e1n2s3",
    }  # fmt: skip
