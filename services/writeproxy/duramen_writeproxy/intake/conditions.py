"""Conditions of an append: from the fields of a JSON body, or from headers for every body form.

A condition is given once: in the body or in its header, and a producer perhaps in the encoded
batch. Pure: values in, values out.

Called by `append_route` and `bodies`. Source: docs/protocol/rest.md "Append".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from duramen.errors import DuramenError
from duramen.limits import FENCING_TOKEN_BYTES_MAX, SEQ_NUM_MAX
from duramen.runtime.rest import unknown_field
from duramen.wire.record_batch import PRODUCER_ID_BYTES_MAX, BatchProducer
from duramen.wire.sequencer_calls import NO_OPTIONS, AppendOptions

MATCH_HEADER: Final = "Duramen-Match-Seq-Num"
TOKEN_HEADER: Final = "Duramen-Fencing-Token"
PRODUCER_HEADER: Final = "Duramen-Producer"

_PRODUCER_NUMBER_MAX: Final = (1 << 53) - 1
"""Exact in every JSON reader, as sequence numbers are."""


class Conditions(NamedTuple):
    """What an append demands of the log, and who makes it."""

    match_seq_num: int | None = None
    fencing_token: str | None = None
    producer: BatchProducer | None = None

    @property
    def options(self) -> AppendOptions:
        """What travels beside the batch; a producer is in it."""
        if self.match_seq_num is None and self.fencing_token is None:
            return NO_OPTIONS
        return AppendOptions(self.match_seq_num, self.fencing_token)


NO_CONDITIONS: Final = Conditions()


def read_condition_headers(headers: Mapping[bytes, bytes]) -> Conditions:
    """The conditions that a request's headers name.

    Raises:
        DuramenError: `invalid_argument`, with the header's name as field.
    """
    match, token = headers.get(b"duramen-match-seq-num"), headers.get(b"duramen-fencing-token")
    producer = headers.get(b"duramen-producer")
    return Conditions(
        None if match is None else _parse_number(match.decode("latin-1"), MATCH_HEADER),
        None if token is None else _decode_token(token),
        None if producer is None else _parse_producer(producer.decode("latin-1")),
    )


def take_document_conditions(document: dict[str, Any]) -> Conditions:
    """Remove the conditions from a JSON body's object and give them.

    Raises:
        DuramenError: `invalid_argument`, `unknown_field`, with the field.
    """
    match, token = document.pop("match_seq_num", None), document.pop("fencing_token", None)
    producer = document.pop("producer", None)
    if match is not None:
        _check_number(match, "match_seq_num", SEQ_NUM_MAX)
    if token is not None:
        check_token(token, "fencing_token")
    return Conditions(match, token, None if producer is None else _read_producer(producer))


def join_conditions(ours: Conditions, others: Conditions) -> Conditions:
    """Both together.

    Raises:
        DuramenError: `invalid_argument`: one of them is given twice.
    """
    for name, one, other in zip(Conditions._fields, ours, others, strict=True):
        if one is not None and other is not None and one != other:
            raise DuramenError("invalid_argument", f"{name} is given twice", field=name)
    return ours._replace(
        **{name: value for name, value in others._asdict().items() if value is not None}
    )


def check_token(token: Any, field: str) -> str:
    """A fencing token, as it was sent; empty: there is none.

    Raises:
        DuramenError: `invalid_argument`.
    """
    if not isinstance(token, str) or len(token.encode()) > FENCING_TOKEN_BYTES_MAX:
        raise DuramenError(
            "invalid_argument",
            f"{field}: a text of at most {FENCING_TOKEN_BYTES_MAX} bytes is expected",
            field=field,
        )
    return token


def _decode_token(value: bytes) -> str:
    try:
        return check_token(value.decode(), TOKEN_HEADER)
    except UnicodeDecodeError:
        raise DuramenError(
            "invalid_argument", f"{TOKEN_HEADER} is UTF-8", field=TOKEN_HEADER
        ) from None


def _read_producer(document: Any) -> BatchProducer:
    if not isinstance(document, dict):
        raise DuramenError(
            "invalid_argument", 'producer is {"id", "epoch", "seq"}', field="producer"
        )
    for name in document:
        if name not in ("id", "epoch", "seq"):
            raise unknown_field(name, "producer")
    producer_id = _check_id(document.get("id"), "producer.id")
    numbers = [
        _check_number(document.get(name), f"producer.{name}", _PRODUCER_NUMBER_MAX)
        for name in ("epoch", "seq")
    ]
    return BatchProducer(producer_id, *numbers)


def _parse_producer(text: str) -> BatchProducer:
    producer_id, *numbers = text.rsplit(";", 2)
    if len(numbers) != 2:
        raise DuramenError(
            "invalid_argument", f"{PRODUCER_HEADER} is id;epoch;seq", field=PRODUCER_HEADER
        )
    epoch, sequence = (_parse_number(number, PRODUCER_HEADER) for number in numbers)
    return BatchProducer(_check_id(producer_id, PRODUCER_HEADER), epoch, sequence)


def _check_id(value: Any, field: str) -> str:
    is_text = isinstance(value, str) and value.isascii() and value.isprintable()
    if not is_text or not 0 < len(value) <= PRODUCER_ID_BYTES_MAX:
        raise DuramenError(
            "invalid_argument",
            f"{field}: 1 to {PRODUCER_ID_BYTES_MAX} printable ASCII characters are expected",
            field=field,
        )
    return str(value)


def _parse_number(text: str, field: str) -> int:
    is_number = text.isascii() and text.strip().isdigit() and len(text) <= 20
    return _check_number(int(text) if is_number else None, field, SEQ_NUM_MAX)


def _check_number(value: Any, field: str, most: int) -> int:
    # bool is an int to Python, and no number to anybody else.
    if type(value) is not int or not 0 <= value <= most:
        raise DuramenError(
            "invalid_argument",
            f"{field}: a whole number from 0 to {most} is expected",
            field=field,
        )
    return value
