"""Bodies of appends: what becomes a record batch, and what is refused with which code and field.

Values come in, values come out: no server. Hypothesis throws JSON and bytes at the parser: it may
refuse with a 4xx and its field, and do nothing else. Source: docs/protocol/rest.md "Append".
"""

import base64
import json
import struct
from typing import Any

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duramen.errors import DuramenError
from duramen.limits import BATCH_RECORD_COUNT_MAX, RECORD_BYTES_MAX
from duramen.wire.edge.batch_codec import Codec
from duramen.wire.record_batch import (
    Batch,
    BatchProducer,
    decode_batch,
    encode_batch,
    read_info,
)
from duramen.wire.sequencer_calls import AppendOptions
from duramen_writeproxy.bodies import (
    BATCH,
    JSON,
    JSON_BYTES_MAX,
    NDJSON,
    RAW,
    TXID_MAX,
    body_limit,
    encode_body,
    parse_media,
)
from duramen_writeproxy.intake.conditions import Conditions, read_condition_headers

NOW_MS = 1_700_000_000_000
Refusal = tuple[str, str | None]


def read(media: str, body: bytes, *, is_base64: bool = False) -> Batch:
    return decode_batch(encode_body(media, body, NOW_MS, is_base64=is_base64).batch)


def read_records(*records: Any, is_base64: bool = False) -> Batch:
    return read(JSON, json.dumps({"records": records}).encode(), is_base64=is_base64)


def refusal(media: str, body: bytes | str, *, is_base64: bool = False) -> Refusal:
    data = body.encode() if isinstance(body, str) else body
    with pytest.raises(DuramenError) as caught:
        encode_body(media, data, NOW_MS, is_base64=is_base64)
    assert 400 <= caught.value.kind.status < 500
    return caught.value.code, caught.value.field


def refuse_records(*records: Any, is_base64: bool = False) -> Refusal:
    return refusal(JSON, json.dumps({"records": records}), is_base64=is_base64)


# --- What is accepted ---


@pytest.mark.parametrize("media", ["application/octet-stream", "text/plain"])
@pytest.mark.parametrize("body", [b"", b"\x00\xff", b'{"records": []}'])
def test_a_raw_body_is_one_record(media: str, body: bytes) -> None:
    batch = read(media, body)
    assert batch.bodies == [body]
    assert list(batch.timestamps_ms) == [NOW_MS]
    assert batch.txids is None and batch.headers is None


def test_json_records_keep_their_order_and_parts() -> None:
    batch = read_records(
        {"body": "ä", "headers": [["k", "v"], ["k", ""]], "timestamp": 5, "txid": 0},
        {"body": "", "txid": TXID_MAX},
        {"body": "", "timestamp": "1970-01-01T01:00:00.007+01:00", "txid": 1},
    )
    assert batch.bodies == ["ä".encode(), b"", b""]
    assert batch.headers == [((b"k", b"v"), (b"k", b"")), (), ()]
    assert list(batch.timestamps_ms) == [5, NOW_MS, 7]
    assert list(batch.txids or ()) == [0, TXID_MAX, 1]


def test_records_without_times_cost_no_column() -> None:
    batch = read_records({"body": "a"}, {"body": "b", "headers": []})
    assert batch.info.flags == 0
    assert list(batch.timestamps_ms) == [NOW_MS, NOW_MS]


def test_base64_covers_bodies_names_and_values() -> None:
    def format(data: bytes) -> str:
        return base64.b64encode(data).decode()

    record = {"body": format(b"\xff\x00"), "headers": [[format(b"\xfe"), format(b"\xfd")]]}
    batch = read_records(record, is_base64=True)
    assert batch.bodies == [b"\xff\x00"]
    assert batch.headers == [((b"\xfe", b"\xfd"),)]


def test_ndjson_lines_are_records_and_blank_lines_are_none() -> None:
    assert read(NDJSON, b'{"body":"a"}\r\n\n{"body":"b"}').bodies == [b"a", b"b"]


def test_an_encoded_batch_passes_through_unchanged() -> None:
    body = encode_batch(
        [b"a", b"bb"], 9, timestamps_ms=[7, 8], txids=[1, 1], headers=[[(b"n", b"v")], []]
    )
    assert encode_body(BATCH, body, NOW_MS).batch is body


@pytest.mark.parametrize(
    "content_type",
    ["application/json", "Application/JSON; charset=UTF-8", 'application/json;charset="utf-8"'],
)
def test_media_types_are_read_leniently(content_type: str) -> None:
    assert parse_media(content_type) == JSON


# --- What is refused ---


@pytest.mark.parametrize(
    "content_type",
    ["", "application/xml", "application/json; charset=latin-1", "json", "multipart/form-data"],
)
def test_other_media_are_unsupported(content_type: str) -> None:
    with pytest.raises(DuramenError) as caught:
        parse_media(content_type)
    assert (caught.value.code, caught.value.field) == ("unsupported_media", "Content-Type")


@pytest.mark.parametrize(
    ("record", "code", "field"),
    [
        ({"body": "x", "bodyy": 1}, "unknown_field", "records[1].bodyy"),
        ({}, "invalid_argument", "records[1].body"),
        ({"body": None}, "invalid_argument", "records[1].body"),
        ({"body": 1}, "invalid_argument", "records[1].body"),
        (1, "invalid_argument", "records[1]"),
        ({"body": "x", "timestamp": -1}, "invalid_argument", "records[1].timestamp"),
        ({"body": "x", "timestamp": 1.0}, "invalid_argument", "records[1].timestamp"),
        ({"body": "x", "timestamp": "noon"}, "invalid_argument", "records[1].timestamp"),
        ({"body": "x", "timestamp": "2026-01-01"}, "invalid_argument", "records[1].timestamp"),
        ({"body": "x", "timestamp": True}, "invalid_argument", "records[1].timestamp"),
        ({"body": "x", "timestamp": None}, "invalid_argument", "records[1].timestamp"),
        ({"body": "x", "timestamp": 10**18}, "invalid_argument", "records[1].timestamp"),
        ({"body": "x", "txid": -1}, "invalid_argument", "records[1].txid"),
        ({"body": "x", "txid": 1 << 63}, "invalid_argument", "records[1].txid"),
        ({"body": "x", "txid": "1"}, "invalid_argument", "records[1].txid"),
        ({"body": "x", "txid": 1}, "invalid_argument", "records[0].txid"),
        ({"body": "x", "headers": {}}, "invalid_argument", "records[1].headers"),
        ({"body": "x", "headers": [["a"]]}, "invalid_argument", "records[1].headers[0]"),
        ({"body": "x", "headers": [["a", 1]]}, "invalid_argument", "records[1].headers[0]"),
        ({"body": "x", "headers": [["", "v"]]}, "invalid_argument", "records[1].headers[0]"),
        (
            {"body": "x", "headers": [["n" * 65536, "v"]]},
            "invalid_argument",
            "records[1].headers[0]",
        ),
        ({"body": "x", "headers": [["n", "v"]] * 1001}, "invalid_argument", "records[1].headers"),
        ({"body": "x" * (RECORD_BYTES_MAX + 1)}, "record_too_large", "records"),
    ],
)
def test_a_bad_record_is_named(record: Any, code: str, field: str) -> None:
    assert refuse_records({"body": "good"}, record) == (code, field)


PRODUCER = {"id": "p 1", "epoch": 2, "seq": 3}


def test_conditions_of_a_json_body_are_read() -> None:
    body = {
        "records": [{"body": "x"}],
        "match_seq_num": 7,
        "fencing_token": "",
        "producer": PRODUCER,
    }
    batch, conditions = encode_body(JSON, json.dumps(body).encode(), NOW_MS)
    assert conditions == Conditions(7, "", BatchProducer("p 1", 2, 3))
    assert decode_batch(batch).info.producer == conditions.producer
    assert conditions.options == AppendOptions(7, "")


@pytest.mark.parametrize("media", [*RAW, NDJSON, BATCH])
def test_a_producer_of_the_headers_is_in_the_batch(media: str) -> None:
    body = {NDJSON: b'{"body": "x"}', BATCH: encode_batch([b"x"], 5, txids=[4])}.get(media, b"x")
    given = read_condition_headers({b"duramen-producer": b"a;b;1;0"})
    batch, conditions = encode_body(media, body, NOW_MS, conditions=given)
    assert conditions.producer == BatchProducer("a;b", 1, 0)
    decoded = decode_batch(batch)
    assert (decoded.info.producer, decoded.bodies) == (conditions.producer, [b"x"])
    assert encode_body(BATCH, batch, NOW_MS) == (batch, conditions)


def test_a_compressed_batch_stays_so_and_is_judged_by_what_it_holds() -> None:
    def compress(*bodies: bytes, time_ms: int = 5) -> bytes:
        return encode_batch(bodies, time_ms, txids=range(len(bodies)), codec=Codec.ZSTD)

    body = compress(b"again " * 99, b"x")
    assert encode_body(BATCH, body, NOW_MS).batch == body
    given = read_condition_headers({b"duramen-producer": b"a;b;1;0"})
    stamped = encode_body(BATCH, body, NOW_MS, conditions=given).batch
    info = read_info(stamped)
    assert (info.codec, info.producer) == (Codec.ZSTD, BatchProducer("a;b", 1, 0))
    assert decode_batch(stamped).bodies == [b"again " * 99, b"x"]
    for wrong, code in (
        (compress(bytes(RECORD_BYTES_MAX + 1)), "record_too_large"),
        (compress(*[bytes(1024)] * 4097), "batch_too_large"),
        (compress(bytes(99), time_ms=-1), "invalid_argument"),
    ):
        with pytest.raises(DuramenError) as caught:
            encode_body(BATCH, wrong, NOW_MS)
        assert caught.value.code == code


def test_a_condition_is_given_once() -> None:
    given = read_condition_headers({b"duramen-match-seq-num": b"4"})
    body = json.dumps({"records": [{"body": "x"}], "match_seq_num": 5}).encode()
    with pytest.raises(DuramenError, match="twice") as caught:
        encode_body(JSON, body, NOW_MS, conditions=given)
    assert caught.value.field == "match_seq_num"


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("match_seq_num", -1, "match_seq_num"),
        ("match_seq_num", True, "match_seq_num"),
        ("match_seq_num", 1 << 53, "match_seq_num"),
        ("fencing_token", 5, "fencing_token"),
        ("fencing_token", "x" * 65, "fencing_token"),
        ("producer", "p", "producer"),
        ("producer", {"id": "p", "epoch": 0}, "producer.seq"),
        ("producer", {**PRODUCER, "id": ""}, "producer.id"),
        ("producer", {**PRODUCER, "id": "ä"}, "producer.id"),
        ("producer", {**PRODUCER, "id": "p" * 65}, "producer.id"),
        ("producer", {**PRODUCER, "epoch": -1}, "producer.epoch"),
    ],
)
def test_a_condition_without_sense_is_refused_by_name(name: str, value: Any, field: str) -> None:
    body = json.dumps({"records": [{"body": "x"}], name: value})
    assert refusal(JSON, body) == ("invalid_argument", field)


def test_an_unknown_part_of_a_producer_is_named() -> None:
    body = json.dumps({"records": [{"body": "x"}], "producer": {**PRODUCER, "sequence": 1}})
    assert refusal(JSON, body) == ("unknown_field", "producer.sequence")


@pytest.mark.parametrize(
    ("header", "value"),
    [
        (b"duramen-match-seq-num", b"x"), (b"duramen-match-seq-num", b"-1"),
        (b"duramen-fencing-token", b"\xff"), (b"duramen-fencing-token", b"t" * 65),
        (b"duramen-producer", b"p"), (b"duramen-producer", b"p;1"), (b"duramen-producer", b";1;1"),
        (b"duramen-producer", b"p;1;-1"), (b"duramen-producer", b"p;1;x"),
    ],
)  # fmt: skip
def test_a_header_without_sense_is_refused_by_name(header: bytes, value: bytes) -> None:
    with pytest.raises(DuramenError) as caught:
        read_condition_headers({header: value})
    assert caught.value.code == "invalid_argument"
    assert (caught.value.field or "").lower().encode() == header


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        (b"", "invalid_argument", None),
        (b"[]", "invalid_argument", None),
        (b'"x"', "invalid_argument", None),
        (b"{}", "invalid_argument", "records"),
        (b'{"records": {}}', "invalid_argument", "records"),
        (b'{"records": []}', "invalid_argument", "records"),
        (b'{"records": [{"body": "x"}], "more": 1}', "unknown_field", "more"),
        (b'{"records": [{"body": "x"}], "records": []}', "invalid_argument", "records"),
        (b'{"records": [{"body": "x", "body": "y"}]}', "invalid_argument", "body"),
        (b'{"records": [{"body": NaN}]}', "invalid_argument", None),
        (b'{"records": [{"body": "\\ud800"}]}', "invalid_argument", None),
        (b'{"records": [{"\\ud800": "", "\\ud800": ""}]}', "invalid_argument", "?"),
        (b'{"records": [{"body": "\xff"}]}', "invalid_argument", None),
        (b"\xef\xbb\xbf{}", "invalid_argument", None),
        (b"[" * 200_000, "invalid_argument", None),
        (b'{"a":' * 200_000, "invalid_argument", None),
        (b'{"records": [{"body": "x", "txid": ' + b"9" * 10_000 + b"}]}", "invalid_argument", None),
    ],
)
def test_a_bad_document_is_refused(body: bytes, code: str, field: str | None) -> None:
    assert refusal(JSON, body) == (code, field)


def test_a_surrogate_pair_is_a_character() -> None:
    assert read(JSON, b'{"records":[{"body":"\\ud83d\\ude00"}]}').bodies == ["\U0001f600".encode()]


def test_too_many_records_are_refused_whatever_their_form() -> None:
    count = BATCH_RECORD_COUNT_MAX + 1
    lines = b'{"body":""}\n' * count
    assert refuse_records(*[{"body": ""}] * count) == ("too_many_records", "records")
    assert refusal(NDJSON, lines) == ("too_many_records", "records")
    assert refusal(NDJSON, b"\n" * JSON_BYTES_MAX) == ("too_many_records", "records")


def test_too_many_bytes_are_refused() -> None:
    records = [{"body": "x" * RECORD_BYTES_MAX}] * 4
    assert len(read_records(*records).bodies) == 4
    assert refuse_records(*records, {"body": "x"}) == ("batch_too_large", "records")


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        (b"", "invalid_argument", "records"),
        (b'{"body":"a"}\n{"body":', "invalid_argument", "line 2"),
        (b'{"body":"a"}\n\n[]', "invalid_argument", "line 3"),
        (b'{"body":"a"}\n{"body":"b","x":1}', "unknown_field", "line 2.x"),
        (b'{"body":"a"}\n{"body":"b","body":1}', "invalid_argument", "line 2: body"),
        (b'{"body":"a"}\n{"body":"b","txid":-1}', "invalid_argument", "line 2.txid"),
        (b'{"body":"\xff"}', "invalid_argument", "line 1"),
    ],
)
def test_a_bad_line_is_named(body: bytes, code: str, field: str) -> None:
    assert refusal(NDJSON, body) == (code, field)


@pytest.mark.parametrize("text", ["!", "YQ", "YQ==\n", "ä", "a b=", "YQ==YQ=="])
def test_bad_base64_is_refused(text: str) -> None:
    assert refuse_records({"body": text}, is_base64=True) == ("invalid_argument", "records[0].body")


# --- Encoded batches ---


def seal(batch: bytearray) -> bytes:
    """The batch with the CRC that makes its other lies believable."""
    batch[4:8] = google_crc32c.value(bytes(batch[8:])).to_bytes(4, "little")
    return bytes(batch)


def forge(at: int, form: str, value: int, **columns: Any) -> bytes:
    batch = bytearray(encode_batch([b"a", b"bb"], 9, **columns))
    struct.pack_into(form, batch, at, value)
    return seal(batch)


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        (b"", "invalid_argument", "records"),
        (encode_batch([b"a"], 9) + b"x", "invalid_argument", "records"),
        (encode_batch([b"a"], 9)[:-1] + b"b", "invalid_argument", "records"),
        (forge(8, "<B", 1), "unsupported_media", "records"),
        (forge(12, "<I", 3), "invalid_argument", "records"),
        (forge(12, "<I", 20_000), "too_many_records", "records"),
        (forge(24, "<Q", 1), "invalid_argument", "producer"),
        (forge(48, "<q", 7), "invalid_argument", "txid"),
        (forge(48, "<q", 7, txids=[1, 2]), "invalid_argument", "txid"),
        (forge(40, "<q", 0, txids=[1, 2]), "invalid_argument", "txid"),
        (encode_batch([b"a"], 9, txids=[-1]), "invalid_argument", "txid"),
        (encode_batch([b"a"], -1), "invalid_argument", "timestamp"),
        (forge(56, "<q", 7, timestamps_ms=[1, 2]), "invalid_argument", "timestamp"),
        (forge(64, "<I", 9), "invalid_argument", "records"),
        (forge(80, "<H", 9, headers=[[(b"n", b"v")], []]), "invalid_argument", "records"),
        (encode_batch([b"x" * (RECORD_BYTES_MAX + 1)], 9), "record_too_large", "records"),
    ],
)
def test_a_bad_batch_is_refused(body: bytes, code: str, field: str) -> None:
    assert refusal(BATCH, body) == (code, field)


# --- Whatever comes ---

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
RECORDS = st.fixed_dictionaries(
    {},
    optional={
        "body": st.text(max_size=5) | JSON_VALUES,
        "headers": st.lists(st.lists(st.text(max_size=3), min_size=2, max_size=2)) | JSON_VALUES,
        "timestamp": st.integers() | JSON_VALUES,
        "txid": st.integers() | JSON_VALUES,
        "other": st.none(),
    },
)


def accept_or_refuse(media: str, body: bytes, *, is_base64: bool) -> None:
    refused: DuramenError | None = None
    try:
        decode_batch(encode_body(media, body, NOW_MS, is_base64=is_base64).batch)
    except DuramenError as error:
        refused = error
    if refused is not None:
        assert 400 <= refused.kind.status < 500, refused
        json.dumps(refused.problem(), ensure_ascii=False).encode()


@settings(max_examples=150)
@given(st.lists(RECORDS | JSON_VALUES, max_size=4), st.booleans())
def test_any_json_is_accepted_or_refused(records: list[Any], is_base64: bool) -> None:
    document = json.dumps({"records": records}).encode()
    accept_or_refuse(JSON, document, is_base64=is_base64)
    accept_or_refuse(NDJSON, document.replace(b", ", b"\n"), is_base64=is_base64)


@settings(max_examples=150)
@given(st.binary(max_size=200), st.sampled_from([JSON, NDJSON, BATCH, "text/plain"]))
def test_any_bytes_are_accepted_or_refused(body: bytes, media: str) -> None:
    accept_or_refuse(media, body, is_base64=False)


@settings(max_examples=150)
@given(st.integers(8, 90), st.integers(0, 255), st.booleans())
def test_any_forged_batch_is_accepted_or_refused(at: int, value: int, has_columns: bool) -> None:
    columns: dict[str, Any] = {}
    if has_columns:
        columns = {"txids": [1, 2], "timestamps_ms": [3, 9], "headers": [[(b"n", b"v")], []]}
    batch = bytearray(encode_batch([b"a" * 20, b"bb"], 9, **columns))
    batch[min(at, len(batch) - 1)] = value
    accept_or_refuse(BATCH, seal(batch), is_base64=False)


def test_the_limits_hold_what_they_must() -> None:
    assert body_limit("text/plain") == (RECORD_BYTES_MAX, "record_too_large")
    assert body_limit(JSON)[0] >= 2 * len(json.dumps(["x" * RECORD_BYTES_MAX] * 4))
