"""Answers of public calls are what their models say, those too that are spelled without a model.

Appends and reads spell dicts, since a model per record would cost more than the rest; here their
bytes go through the models that describe them and come out the same. Every other route can give
nothing but a model: tests/style/test_answers.py. Source: docs/protocol/rest.md.
"""

import orjson
import pytest

from duramen.errors import DuramenError
from duramen.ids import Dlsn, EntryId, Epoch
from duramen.runtime.public.answers import (
    AppendedAnswer,
    DeletedAnswer,
    HeadAnswer,
    LogMadeAnswer,
    MarkAnswer,
    RecordAnswer,
    RecordsAnswer,
    read_answer,
)
from duramen.wire.record_json import DeliveredRecord, encode_mark, encode_record, encode_tail
from duramen.wire.sequencer_calls import (
    AlreadyStored,
    AppendedBatch,
    AppendedEarly,
    LogMark,
    Stored,
)
from duramen_writeproxy.append_route import encode_appended

DLSN = Dlsn(Epoch(3), EntryId(4), 5)
APPENDED = AppendedBatch(LogMark(DLSN, 10, 1_000), 2, LogMark(DLSN, 12, 1_000))
RECORD = DeliveredRecord(17, DLSN, None, 1_000, (), "größer".encode())


@pytest.mark.parametrize(
    "result",
    [APPENDED, APPENDED._replace(is_duplicate=True), AppendedEarly(DLSN, 1, 5), AlreadyStored()],
    ids=["stored", "stored again", "early", "long ago"],
)
def test_an_append_is_answered_as_its_model_says(result: Stored) -> None:
    encoded = encode_appended(result)
    assert AppendedAnswer.model_validate_json(encoded).encode() == encoded


@pytest.mark.parametrize("is_base64", [False, True])
@pytest.mark.parametrize(
    "record",
    [
        RECORD,
        RECORD._replace(txid=9, headers=((b"name", b"value"), (b"", b""))),
        RECORD._replace(body=b"\xff"),
    ],
    ids=["plain", "all members", "no text"],
)
def test_a_record_is_encoded_as_its_model_says(record: DeliveredRecord, *, is_base64: bool) -> None:
    encoded = orjson.dumps(encode_record(record, is_base64=is_base64))
    assert RecordAnswer.model_validate_json(encoded).encode() == encoded


def test_a_read_is_answered_as_its_model_says() -> None:
    document = {
        "records": [encode_record(RECORD, is_base64=False)],
        "next": "seq:18",
        "tail": encode_mark(18, 1_000, DLSN),
        "ended": True,
        "moved_to": {"seq_num": 17, "dlsn": str(DLSN)},
    }
    for count in range(2, len(document) + 1):
        encoded = orjson.dumps(dict(list(document.items())[:count]))
        assert RecordsAnswer.model_validate_json(encoded).encode() == encoded


def test_null_is_said_and_what_is_not_set_is_left_out() -> None:
    """Both look the same in Python, and clients tell them apart."""
    mark = MarkAnswer(**encode_tail(0, 0, DLSN))
    assert mark.encode() == b'{"seq_num":0,"timestamp":null,"lsn":"e3n4","dlsn":"e3n4s5"}'
    assert HeadAnswer(seq_num=7, dlsn=str(DLSN)).encode() == b'{"seq_num":7,"dlsn":"e3n4s5"}'


def test_members_stand_in_the_order_of_the_model_not_of_the_call() -> None:
    head = HeadAnswer(dlsn=str(DLSN), lsn="e3n4", seq_num=7)
    assert head.encode() == b'{"seq_num":7,"lsn":"e3n4","dlsn":"e3n4s5"}'


def test_members_of_a_configuration_that_are_not_known_are_passed_on() -> None:
    """A sequencer of the next version is asked by a proxy of this one."""
    told = {"created": True, "log_id": "5", "config": {"younger": {"than": 1}}}
    answer = read_answer(LogMadeAnswer, {**told, "namespace": "ns", "name": "log"})
    assert answer.encode() == (
        b'{"namespace":"ns","name":"log","log_id":"5","config":{"younger":{"than":1}}}'
    )


def test_what_a_sequencer_tells_and_is_no_answer_is_uncertain() -> None:
    """It did what it was asked for, or did not: nobody can read which."""
    with pytest.raises(DuramenError) as caught:
        read_answer(DeletedAnswer, {"log_id": "five", "undelete_until": None})
    assert (caught.value.code, caught.value.uncertain) == ("internal", True)
