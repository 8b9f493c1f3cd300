"""The append route: one HTTP request becomes one batch, one result becomes one answer.

The hot path of the proxy, therefore plain: the headers as one dict, no models, no dependencies, one
clock read, the log's id from a dict. A body's bytes are counted in the process's budget as they
arrive. Whatever goes wrong once the batch was handed on and is not understood is answered as
uncertain.

Called by `rest`. Source: docs/protocol/rest.md "Append", docs/protocol/errors.md.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import orjson
from fastapi import Request, Response

from duramen.errors import DuramenError
from duramen.limits import APPEND_TIMEOUT_MAX_US, APPEND_TIMEOUT_US
from duramen.runtime.admin import problem_response
from duramen.runtime.admission.callers import call_of
from duramen.runtime.rest import announced_bytes, read_body, read_query, shorten_field
from duramen.texts import check_log_name, check_namespace
from duramen.units import SECOND, parse_duration_us
from duramen.wire.record_json import encode_mark, encode_tail
from duramen.wire.sequencer_calls import AlreadyStored, AppendedEarly, LogMark, Stored
from duramen_writeproxy.appends import Appender
from duramen_writeproxy.bodies import body_limit, parse_media
from duramen_writeproxy.elsewhere import REDIRECT_FIELD, Elsewhere, read_wish
from duramen_writeproxy.intake.budget import Budget
from duramen_writeproxy.intake.conditions import (
    NO_CONDITIONS,
    Conditions,
    read_condition_headers,
)
from duramen_writeproxy.intake.encoder import Encoder
from duramen_writeproxy.logs.creation import AutoCreator
from duramen_writeproxy.logs.names import NameCache
from duramen_writeproxy.metrics import APPEND_SECONDS, APPENDS

_LOG = logging.getLogger(__name__)


_OK: Final = APPENDS.labels("ok")
_REDIRECTED: Final = APPENDS.labels("redirected")


class AppendHead(NamedTuple):
    """What the headers of an append say."""

    media: str
    announced: int | None
    is_base64: bool
    timeout_s: float
    conditions: Conditions


class SentElsewhere(NamedTuple):
    """Nothing was appended: the client is to send the same there."""

    url: str


class AppendRoute:
    """Serves `POST /v1/namespaces/{ns}/logs/{log}/records`."""

    def __init__(
        self,
        names: NameCache,
        creator: AutoCreator,
        appender: Appender,
        encoder: Encoder,
        budget: Budget,
        *,
        elsewhere: Elsewhere,
    ) -> None:
        self._names = names
        self._elsewhere = elsewhere
        self._creator = creator
        self._appender = appender
        self._encoder = encoder
        self._budget = budget
        self.is_draining = False

    async def on_append(self, request: Request) -> Response:
        """Append the request's records atomically and answer with their positions."""
        started = time.perf_counter()
        try:
            result = await self._append(request)
        except DuramenError as error:
            APPENDS.labels(error.code).inc()
            return problem_response(error)
        except Exception:
            _LOG.exception("an append failed")
            APPENDS.labels("internal").inc()
            return problem_response(
                DuramenError("internal", "see the server's log", uncertain=True)
            )
        finally:
            APPEND_SECONDS.observe(time.perf_counter() - started)
        if isinstance(result, SentElsewhere):
            _REDIRECTED.inc()
            return Response(status_code=307, headers={"location": result.url})
        _OK.inc()
        return Response(encode_appended(result), media_type="application/json")

    async def _append(self, request: Request) -> Stored | SentElsewhere:
        deadline = asyncio.get_running_loop().time()
        if self.is_draining:
            raise DuramenError("server_draining", "this proxy is stopping: use another one")
        namespace, log = request.path_params["ns"], request.path_params["log"]
        log_id = self._names.find_nowait(namespace, log)
        if log_id is None:
            check_namespace(namespace)
            check_log_name(log)
        wants_redirect = read_wish(read_query(request, (REDIRECT_FIELD,)))
        head = read_head(request.scope["headers"])
        deadline += head.timeout_s
        most_bytes, code = body_limit(head.media)
        share = self._budget.open()
        try:
            body = await read_body(
                request, most_bytes, announced=head.announced, code=code, on_piece=share.add_piece
            )
            share.add_whole(len(body))
            if wants_redirect and log_id is not None:
                # Only now: who is still sending might take the answer for a broken connection.
                url = self._elsewhere.find(namespace, log, log_id, request.url.scheme)
                if url is not None:
                    return SentElsewhere(url)
            now_ms = time.time_ns() // 1_000_000
            batch, conditions = await self._encoder.encode(
                head.media, body, now_ms, is_base64=head.is_base64, conditions=head.conditions
            )
            if log_id is None:
                log_id = await self._creator.find(namespace, log, call_of(request))
            return await self._appender.append(
                f"{namespace}/{log}",
                log_id,
                batch,
                deadline,
                conditions.options,
                is_repeatable=conditions.producer is not None,
            )
        except DuramenError as error:
            if error.code in ("log_not_found", "log_deleted"):
                self._names.doubt(namespace, log)
            raise
        finally:
            share.close()


def read_head(raw_headers: Any, check_media: Callable[[str], str] = parse_media) -> AppendHead:
    """Read the headers of an append.

    Args:
        check_media: gives the media type of a Content-Type, or refuses it.

    Raises:
        DuramenError: `invalid_argument`, `unsupported_media`, with the header's name as field.
    """
    headers: dict[bytes, bytes] = dict(raw_headers)
    if len(headers) != len(raw_headers):
        _check_once([name for name, _ in raw_headers])
    content_type = headers.get(b"content-type", b"").decode("latin-1")
    is_base64 = False
    timeout_s = APPEND_TIMEOUT_US / SECOND
    conditions = NO_CONDITIONS
    # Almost no append has headers of ours: one look at the names instead of one for each.
    if any(name.startswith(b"duramen-") for name in headers):
        conditions = read_condition_headers(headers)
        is_base64 = _read_format(headers.get(b"duramen-format"))
        timeout_s = _read_timeout_s(headers.get(b"duramen-timeout"), timeout_s)
    return AppendHead(
        check_media(content_type),
        announced_bytes(headers.get(b"content-length")),
        is_base64,
        timeout_s,
        conditions,
    )


def _check_once(names: Sequence[bytes]) -> None:
    """Refuse headers of which readers could take one or the other."""
    for name in names:
        is_ours = name == b"content-type" or name.startswith(b"duramen-")
        if is_ours and names.count(name) > 1:
            field = shorten_field(name.decode("latin-1"))
            raise DuramenError("invalid_argument", f"{field} is given twice", field=field)


def _read_format(value: bytes | None) -> bool:
    if value is None or value == b"utf-8":
        return False
    if value.strip().lower() == b"base64":
        return True
    raise DuramenError(
        "invalid_argument", "Duramen-Format is utf-8 or base64", field="Duramen-Format"
    )


def _read_timeout_s(value: bytes | None, default_s: float) -> float:
    if value is None:
        return default_s
    try:
        timeout_us = parse_duration_us(value.decode("latin-1"))
    except ValueError:
        timeout_us = 0
    if not 0 < timeout_us <= APPEND_TIMEOUT_MAX_US:
        raise DuramenError(
            "invalid_argument",
            'Duramen-Timeout is a duration up to 60s, such as "5s"',
            field="Duramen-Timeout",
        )
    return timeout_us / SECOND


def encode_appended(result: Stored) -> bytes:
    """The answer to an append; the place of an old duplicate is not known any more.

    That of an early append is known, and not yet its sequence number.
    """
    if isinstance(result, AlreadyStored):
        return orjson.dumps({"start": None, "end": None, "tail": None, "duplicate": True})
    if isinstance(result, AppendedEarly):
        start = encode_mark(None, result.timestamp_ms, result.dlsn)
        return orjson.dumps({"start": start, "end": None, "tail": None})
    document: dict[str, Any] = {
        "start": _encode_mark(result.start),
        "end": _encode_mark(result.end),
        "tail": encode_tail(result.tail.seq_num, result.tail.timestamp_ms, result.tail.dlsn),
    }
    if result.is_duplicate:
        document["duplicate"] = True
    return orjson.dumps(document)


def _encode_mark(mark: LogMark) -> dict[str, Any]:
    return encode_mark(mark.seq_num, mark.timestamp_ms, mark.dlsn)
