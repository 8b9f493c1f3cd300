"""Large bodies: cut into pieces they mean what they mean whole, and none holds the loop for long.

They are encoded in a thread, from which the loop takes its turn between any two steps of Python;
what it cannot interrupt is one call of the parser. So that is what is measured, in CPU time of the
thread: what else the machine does counts for nothing. Source: docs/protocol/rest.md "Append".
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duramen.errors import DuramenError
from duramen.limits import BATCH_RECORD_COUNT_MAX, RECORD_BYTES_MAX
from duramen.wire.record_batch import encode_batch
from duramen_writeproxy import bodies
from duramen_writeproxy.bodies import BATCH, JSON, JSON_BYTES_MAX, NDJSON, RAW, encode_body
from duramen_writeproxy.intake.conditions import NO_CONDITIONS
from duramen_writeproxy.intake.encoder import Encoder
from duramen_writeproxy.intake.json_pieces import OUTSIDE_BYTES_MAX, TEXT_BYTES_MAX, Cutter

NOW_MS: Final = 1_700_000_000_000
HELD_MAX_S: Final = 0.05

# --- Pieces mean what the whole means ------------------------------------------------------------

TEXTS = st.text(st.sampled_from('a"\\[]{},:ä\n\ud800'), max_size=6)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(0, 9), TEXTS)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)
RECORDS = st.fixed_dictionaries(
    {"body": TEXTS},
    optional={"headers": st.lists(st.tuples(TEXTS, TEXTS), max_size=2), "txid": st.integers(0, 9)},
)
LISTS = st.lists(st.one_of(RECORDS, RECORDS, RECORDS, VALUES), max_size=4)
DOCUMENTS = st.one_of(
    st.fixed_dictionaries({"records": st.lists(RECORDS, min_size=1, max_size=4)}),
    st.fixed_dictionaries({"records": LISTS}, optional={"x": LISTS, "fencing_token": TEXTS}),
    st.dictionaries(st.sampled_from(["records", "x", "producer"]), VALUES, max_size=3),
    VALUES,
)
EDITS = st.lists(
    st.tuples(st.integers(0, 200), st.sampled_from([b"", b",", b"]", b"}", b"{", b'"', b"\\"])),
    max_size=2,
)


def outcome(body: bytes, whole_bytes_max: int) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "WHOLE_BYTES_MAX", whole_bytes_max)
        try:
            return encode_body(JSON, body, NOW_MS)
        except DuramenError:
            return None


@settings(max_examples=400)
@given(DOCUMENTS, st.sampled_from([None, 0, 3]), st.booleans(), EDITS)
def test_pieces_mean_what_the_whole_means(
    document: Any, indent: int | None, is_ascii: bool, edits: list[tuple[int, bytes]]
) -> None:
    text = json.dumps(document, indent=indent, ensure_ascii=is_ascii)
    body = text.encode(errors="surrogatepass")
    for at, put in edits:
        body = body[:at] + put + body[at + 1 :]
    assert outcome(body, 0) == outcome(body, len(body))


@pytest.mark.parametrize(
    "text",
    [
        '{"records":[{"body":"a"},{"body":"b"}]}',
        ' {"records" : [ {"body":"a]}"} , {"body":"\\\\"}\n] , "match_seq_num": 0 } ',
        '{"records":[{"body":"a","headers":[["{","["],["]","}"]]}]}',
    ],
)
def test_records_are_cut_out_of_their_frame(text: str) -> None:
    cutter, document = Cutter(text.encode()), json.loads(text)
    assert [json.loads(record) for record in cutter.cut()] == document["records"]
    assert json.loads(cutter.frame) == {**document, "records": []}
    assert outcome(text.encode(), 0) is not None


@pytest.mark.parametrize(
    "text",
    [
        '{"records":[{"body":"a"}{"body":"b"}]}',
        '{"records":[{"body":"a"},,{"body":"b"}]}',
        '{"records":[,{"body":"a"}]}',
        '{"records":[{"body":"a"},]}',
        '{"records":[{"body":"a"},1]}',
        '{"records":[1,{"body":"a"}]}',
        '{"records":[{"body":"a"}],"records":[{"body":"b"}]}',
        '{"records":[{"body":"a"}],"x":[{"body":"b"}]}',
        '{"records":[],"producer":[{"body":"b"}]}',
        '{"records":[{"body":"a"}]}}',
        '{"records":[{"body":"a"}]',
        '[{"records":[{"body":"a"}]}]',
        '{"records":[{"body":"a"}}]',
        '{"records":[{"body":"a}]}',
    ],
)
def test_what_is_no_list_of_records_is_refused_in_pieces_too(text: str) -> None:
    assert outcome(text.encode(), len(text)) is None
    assert outcome(text.encode(), 0) is None


def test_a_refusal_names_the_record() -> None:
    filler = json.dumps({"body": "x" * 200_000})
    for third, code, field in [
        ('{"body":1}', "invalid_argument", "records[2].body"),
        ('{"body":"a","body":"b"}', "invalid_argument", "records[2]: body"),
        ('{"body":tru}', "invalid_argument", "records[2]"),
        ("7", "invalid_argument", "records[2]"),
        ('{"body":"a","x":1}', "unknown_field", "records[2].x"),
    ]:
        body = f'{{"records":[{filler},{filler},{third}]}}'
        with pytest.raises(DuramenError) as raised:
            encode_body(JSON, body.encode(), NOW_MS)
        assert (raised.value.code, raised.value.field) == (code, field)


# --- No body holds the loop ----------------------------------------------------------------------


def encode_value(unit: bytes, begin: bytes = b"", end: bytes = b"") -> bytes:
    """A body as large as one may be, of one unit over and over."""
    return begin + unit * ((JSON_BYTES_MAX - len(begin) - len(end)) // len(unit)) + end


IN_LIST: Final = b'{"records":['
IN_HEADERS: Final = b'{"records":[{"body":"","headers":['
HARD: Final = {
    "empty lists": encode_value(b"[],", IN_LIST, b"[]]}"),
    "empty objects": encode_value(b"{},", IN_LIST, b"{}]}"),
    "numbers": encode_value(b"1,", IN_LIST, b"1]}"),
    "numbers in a field": encode_value(b"1,", b'{"producer":[', b"1]}"),
    "texts in a list": encode_value(b'"",', IN_LIST, b'""]}'),
    "lists in a list": encode_value(b"[", IN_LIST),
    "lists in headers": encode_value(b"[],", IN_HEADERS, b"[]]}]}"),
    "numbers in headers": encode_value(b"1,", IN_HEADERS, b"1]}]}"),
    "fields": encode_value(b'"":0,', b"{", b'"records":[]}'),
    "escapes": encode_value(rb"\n", IN_LIST + b'{"body":"', b'"}]}'),
    "quotes": encode_value(rb"\"", IN_LIST + b'{"body":"', b'"}]}'),
    "backslashes": encode_value(rb"\\", IN_LIST + b'{"body":"'),
    "letters": encode_value(b"x", IN_LIST + b'{"body":"', b'"}]}'),
    "spaces": encode_value(b" ", IN_LIST, b"]}"),
    "spaces behind": encode_value(b" ", IN_LIST + b'{"body":""}', b"]}"),
    "lists in records": encode_value(
        b'{"body":[' + b"[]," * (OUTSIDE_BYTES_MAX // 3 - 9) + b"[]]},", IN_LIST, b"{}]}"
    ),
    "texts in records": encode_value(
        b'{"body":"' + rb"\u0000" * RECORD_BYTES_MAX + b'"},', IN_LIST
    ),
}
LINES: Final = {
    "a line of lists": encode_value(b"[],", b"[", b"[]]"),
    "lines of lists": encode_value(b"[" + b"[]," * (OUTSIDE_BYTES_MAX // 3 - 9) + b"[]]\n"),
    "a line of objects": encode_value(b"{},", b"[", b"{}]"),
}
HEADERS: Final = [[("a", "")] * 1_000] * 100


def headers_as_json() -> bytes:
    return json.dumps({"records": [{"body": "", "headers": pairs} for pairs in HEADERS]}).encode()


def headers_as_batch() -> bytes:
    pairs = [[(name.encode(), value.encode()) for name, value in each] for each in HEADERS]
    return encode_batch([b""] * len(pairs), NOW_MS, headers=pairs)


class Parsing:
    """Stands in for the parser and times each call."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    def parse(self, text: str, **options: Any) -> Any:
        began_s = time.thread_time()
        try:
            return json.JSONDecoder(**options).decode(text)
        finally:
            self.longest_s = max(self.longest_s, time.thread_time() - began_s)


def encode_aside(media: str, body: bytes) -> str:
    """The code of the outcome of a body that is encoded in the thread."""
    parsing = Parsing()

    async def scenario() -> str:
        encoder = Encoder()
        try:
            await encoder.encode(media, body, NOW_MS, is_base64=False, conditions=NO_CONDITIONS)
        except DuramenError as error:
            return error.code
        finally:
            assert encoder.statistics() == {"large": 1, "waiting": 0, "waiting_bytes": 0}
            encoder.close()
        return "ok"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("duramen.runtime.rest.json.loads", parsing.parse)
        gc.freeze()  # a proxy has no such heap as this process has: a look through it takes 0.1 s
        try:
            code = asyncio.run(scenario())
        finally:
            gc.unfreeze()
    assert parsing.longest_s < HELD_MAX_S, f"{parsing.longest_s * 1e3:.0f} ms"
    return code


@pytest.mark.parametrize(
    ("media", "name"), [*((JSON, name) for name in HARD), *((NDJSON, name) for name in LINES)]
)
def test_a_body_that_is_hard_to_parse_does_not_hold_the_loop(media: str, name: str) -> None:
    body = (HARD if media == JSON else LINES)[name]
    code = encode_aside(media, body)
    assert code in ("invalid_argument", "record_too_large", "batch_too_large", "unknown_field")


@pytest.mark.parametrize("media", [JSON, BATCH])
def test_a_body_of_many_headers_does_not_hold_the_loop(media: str) -> None:
    body = headers_as_json() if media == JSON else headers_as_batch()
    assert encode_aside(media, body) == "ok"


def test_many_records_do_not_hold_the_loop() -> None:
    body = json.dumps({"records": [{"body": "x" * 300}] * BATCH_RECORD_COUNT_MAX}).encode()
    assert encode_aside(JSON, body) == "ok"
    over = json.dumps({"records": [{"body": ""}] * (BATCH_RECORD_COUNT_MAX + 1)}).encode()
    assert encode_aside(JSON, over) == "too_many_records"


def test_a_text_as_long_as_a_record_is_taken_however_it_is_spelled() -> None:
    body = IN_LIST + b'{"body":"' + rb"\u0000" * RECORD_BYTES_MAX + b'"}]}'
    assert len(body) > TEXT_BYTES_MAX
    assert encode_aside(JSON, body) == "ok"


def test_what_is_short_is_encoded_at_once() -> None:
    async def scenario() -> None:
        encoder = Encoder()
        batch = encode_batch([b"x" * RECORD_BYTES_MAX] * 3, NOW_MS)
        for media, body in [(JSON, IN_LIST + b'{"body":""}]}'), (BATCH, batch), (RAW[0], batch)]:
            encoding = encoder.encode(
                media, body, NOW_MS, is_base64=False, conditions=NO_CONDITIONS
            )
            with pytest.raises(StopIteration):
                encoding.send(None)
        assert encoder.statistics()["large"] == 0
        encoder.close()

    asyncio.run(scenario())
