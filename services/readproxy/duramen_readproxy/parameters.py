"""Reading of request parameters: every fault becomes a 4xx that names the field.

FastAPI declares the parameters for OpenAPI; their values are read here, by hand, so that the codes
and sentences are those of docs/protocol/read-answers.md "Where an answer begins and ends" and an
unknown parameter is refused instead of ignored.

Called by the REST routes. Source: docs/protocol/read-answers.md "Where an answer begins and ends",
docs/protocol/rest.md "Records".
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from starlette.requests import Request

from duramen.errors import DuramenError
from duramen.limits import LONG_POLL_MAX_US, READ_BYTES_DEFAULT, READ_BYTES_MAX
from duramen.runtime.edge.negotiation import refuse_accept
from duramen.runtime.rest import read_query
from duramen.texts import Position, parse_position
from duramen.units import parse_duration_us, parse_size_bytes
from duramen.wire.edge.accept import choose_media
from duramen.wire.read_answers import MEDIA_TYPE
from duramen.wire.record_json import FORMAT_HEADER, NDJSON_MEDIA_TYPE
from duramen_readproxy.answers import Bounds
from duramen_readproxy.following.resume import RESUME_HEADER, ResumeId, parse_resume_id

COUNT_DEFAULT: Final = 1_000
COUNT_MAX: Final = 10_000
READ_PARAMETERS: Final = frozenset(
    {"from", "count", "bytes", "until", "wait", "clamp", "format", "notes"}
)

ENDLESS_US: Final = 1 << 60
"""A stream of events goes on for as long as its client listens."""


class Form(enum.Enum):
    """The form of an answer with records."""

    JSON = "application/json"
    NDJSON = NDJSON_MEDIA_TYPE
    BATCH = MEDIA_TYPE
    EVENTS = "text/event-stream"

    @property
    def is_stream(self) -> bool:
        """Whether the answer has no length: it goes on while something comes."""
        return self in (Form.NDJSON, Form.EVENTS)


class ReadRequest(NamedTuple):
    """What a reader asks for."""

    position: Position
    until: Position | None
    """Becomes a sequence number, `bounds.until`, once the log was looked at."""
    bounds: Bounds
    wait_us: int
    clamp: bool
    form: Form
    is_base64: bool
    has_notes: bool
    """Whether a stream tells of gaps, of silence, and why it ends."""
    is_done: bool = False
    """Whether the client had all that it wanted, and came back for nothing."""


def read_request(request: Request) -> ReadRequest:
    """The parameters of `GET …/records`.

    Raises:
        DuramenError: `unknown_field`, `invalid_argument`, `invalid_position`, `not_acceptable`,
            each with the field.
    """
    query = read_query(request, READ_PARAMETERS)
    form = read_form(request)
    count = _read_count(query.get("count"))
    size_bytes = _read_bytes(query.get("bytes"))
    if not form.is_stream:
        size_bytes = READ_BYTES_DEFAULT if size_bytes is None else size_bytes
    if form is Form.JSON:
        count = COUNT_DEFAULT if count is None else count
    is_events = form is Form.EVENTS
    wanted = ReadRequest(
        parse_position(query.get("from", "head")),
        _read_until(query.get("until")),
        Bounds(count, size_bytes, None),
        ENDLESS_US if is_events and "wait" not in query else _read_wait(query.get("wait")),
        _read_switch("clamp", query.get("clamp")),
        form,
        _read_format(query.get("format", request.headers.get(FORMAT_HEADER))),
        is_events or _read_notes(form, query.get("notes")),
    )
    resume = request.headers.get(RESUME_HEADER) if is_events else None
    return _resume(wanted, parse_resume_id(resume)) if resume else wanted


def read_form(request: Request) -> Form:
    """The form that `Accept` asks for; JSON where anything is welcome.

    Raises:
        DuramenError: `not_acceptable`.
    """
    accept = ",".join(request.headers.getlist("accept"))
    served = [form.value for form in Form]
    wanted = choose_media(accept, served)
    if wanted is None:
        raise refuse_accept(accept, *served)
    return Form(wanted)


def _resume(wanted: ReadRequest, resume: ResumeId) -> ReadRequest:
    """Go on where an event's id says, with what is left of the bounds."""
    count, size_bytes, until = wanted.bounds
    if resume.record_count is not None:
        count = resume.record_count
    if resume.size_bytes is not None:
        size_bytes = resume.size_bytes
    return wanted._replace(
        position=resume.parse_position(),
        bounds=Bounds(count, size_bytes, until),
        is_done=resume.is_end or count == 0 or size_bytes == 0,
    )


def _read_format(text: str | None) -> bool:
    if text is None:
        return False
    wanted = text.strip().lower()
    if wanted in ("base64", "utf-8"):
        return wanted == "base64"
    raise DuramenError(
        "invalid_argument", f"{text!r}: the formats are utf-8 and base64", field=FORMAT_HEADER
    )


def _read_count(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 9 or not 1 <= int(text) <= COUNT_MAX:
        raise DuramenError(
            "invalid_argument", f"{text!r}: count is 1 to {COUNT_MAX}", field="count"
        )
    return int(text)


def _read_bytes(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        size = parse_size_bytes(text)
    except ValueError as error:
        raise DuramenError("invalid_argument", str(error), field="bytes") from None
    if not 1 <= size <= READ_BYTES_MAX:
        raise DuramenError(
            "invalid_argument", f"{text!r}: bytes is 1 to {READ_BYTES_MAX} (16MiB)", field="bytes"
        )
    return size


def _read_until(text: str | None) -> Position | None:
    if text is None:
        return None
    try:
        return parse_position(text)
    except DuramenError as error:
        raise DuramenError(error.code, error.detail, field="until") from None


def _read_wait(text: str | None) -> int:
    if text is None:
        return 0
    try:
        wait_us = parse_duration_us(text)
    except ValueError as error:
        raise DuramenError("invalid_argument", str(error), field="wait") from None
    if wait_us > LONG_POLL_MAX_US:
        raise DuramenError("invalid_argument", f"{text!r}: a read waits 60s at most", field="wait")
    return wait_us


def _read_notes(form: Form, text: str | None) -> bool:
    has_notes = _read_switch("notes", text)
    if has_notes and form is not Form.NDJSON:
        raise DuramenError(
            "invalid_argument", f"notes are lines of {Form.NDJSON.value}", field="notes"
        )
    return has_notes


def _read_switch(name: str, text: str | None) -> bool:
    if text in (None, "false"):
        return False
    if text == "true":
        return True
    raise DuramenError("invalid_argument", f"{text!r}: {name} is true or false", field=name)
