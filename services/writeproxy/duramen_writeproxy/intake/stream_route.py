"""The route of pipelined append sessions: `POST …/records:stream`.

What is wrong with the request itself is answered as for any request. Then the head of the answer
goes out at once and the session begins: answers go down while batches come up, over HTTP/1.1
(chunked) as over HTTP/2. Behind an early end what is left of the body is dropped, within bounds, so
that a client which still sends sees why.

Called by `rest` and `service`. Source: docs/protocol/rest.md "Append sessions".
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

from fastapi import Request, Response

from duramen.errors import DuramenError
from duramen.runtime.admission.callers import AdmittedCall, call_of
from duramen.runtime.rest import drop_body, read_query
from duramen.texts import check_log_name, check_namespace
from duramen.wire.edge.batch_stream import MEDIA_TYPE, Frames, Lines, Units, parse_streamed
from duramen_writeproxy.append_route import AppendHead, read_head
from duramen_writeproxy.appends import Appender, OrderedBatch
from duramen_writeproxy.bodies import (
    BATCH,
    JSON,
    JSON_BYTES_MAX,
    NDJSON,
    parse_media,
    unsupported_media,
)
from duramen_writeproxy.intake.budget import Budget
from duramen_writeproxy.intake.conditions import Conditions, join_conditions
from duramen_writeproxy.intake.encoder import Encoder
from duramen_writeproxy.intake.session import AppendSession, Piece
from duramen_writeproxy.intake.settling import Outcome
from duramen_writeproxy.logs.creation import AutoCreator
from duramen_writeproxy.logs.names import NameCache

SESSION_COUNT_MAX: Final = 1_024
"""Sessions of one proxy: each has a connection or a stream, two tasks and some 20 KB."""


class StreamRoute:
    """Serves `POST /v1/namespaces/{ns}/logs/{log}/records:stream`."""

    def __init__(
        self,
        names: NameCache,
        creator: AutoCreator,
        appender: Appender,
        encoder: Encoder,
        budget: Budget,
    ) -> None:
        self._names = names
        self._creator = creator
        self._appender = appender
        self._encoder = encoder
        self._budget = budget
        self._sessions: set[AppendSession] = set()
        self._is_draining = False

    async def on_stream(self, request: Request) -> Response:
        """Open a session: batches up, one answer for each down, in order, while they come."""
        namespace = check_namespace(request.path_params["ns"])
        log = check_log_name(request.path_params["log"])
        read_query(request, ())
        head = read_head(request.scope["headers"], _check_media)
        if head.conditions.match_seq_num is not None or head.conditions.producer is not None:
            raise DuramenError(
                "invalid_argument",
                "a session's batches have a sequence number or a producer each, the session none",
                field="Duramen-Producer" if head.conditions.producer else "Duramen-Match-Seq-Num",
            )
        if self._is_draining:
            raise _draining()
        if len(self._sessions) >= SESSION_COUNT_MAX:
            raise DuramenError("overloaded", "too many append sessions are open in this proxy")
        call = call_of(request)
        log_id = await self._creator.find(namespace, log, call)

        async def append(batches: Sequence[OrderedBatch]) -> list[Outcome]:
            deadline = asyncio.get_running_loop().time() + head.timeout_s
            key = f"{namespace}/{log}"
            outcomes = await self._appender.append_in_order(key, log_id, batches, deadline)
            gone = ("log_not_found", "log_deleted")
            if any(isinstance(o, DuramenError) and o.code in gone for o in outcomes):
                self._names.doubt(namespace, log)
            return outcomes

        units: Units = Lines(JSON_BYTES_MAX) if head.media == NDJSON else Frames()
        prepare = partial(_prepare, self._encoder, head)
        session = AppendSession(units, prepare, append, self._budget.open())
        return _SessionAnswer(session, self._sessions, call)

    def drain(self) -> None:
        """End the sessions, and open none any more."""
        self._is_draining = True
        for session in self._sessions:
            session.stop(_draining())

    def statistics(self) -> dict[str, int]:
        """The open sessions and what they hold."""
        found = [session.statistics() for session in self._sessions]
        sums = {
            name: sum(one[name] for one in found)
            for name in ("batches", "batch_bytes", "partial_bytes")
        }
        return {"open": len(found), "open_max": SESSION_COUNT_MAX, **sums}


def _draining() -> DuramenError:
    return DuramenError("server_draining", "this proxy is stopping: use another one")


def _check_media(content_type: str) -> str:
    media = content_type.partition(";")[0].strip().lower()
    if media == MEDIA_TYPE:
        return media
    if media != NDJSON:
        raise unsupported_media(f"an append session is {NDJSON} or {MEDIA_TYPE}")
    return parse_media(content_type)


async def _prepare(encoder: Encoder, head: AppendHead, unit: bytes) -> OrderedBatch:
    """The batch that a line or a frame means.

    Raises:
        DuramenError: as `bodies.encode_body`.
    """
    media, body, conditions = JSON, unit, head.conditions
    if head.media != NDJSON:
        streamed = parse_streamed(unit)
        own = Conditions(streamed.match_seq_num, streamed.fencing_token)
        media, body, conditions = BATCH, streamed.batch, join_conditions(conditions, own)
    now_ms = time.time_ns() // 1_000_000
    batch, conditions = await encoder.encode(
        media, body, now_ms, is_base64=head.is_base64, conditions=conditions
    )
    return OrderedBatch(batch, conditions.options, conditions.producer)


class _SessionAnswer(Response):
    """The answer that is a session: it reads the request while it answers."""

    def __init__(
        self, session: AppendSession, sessions: set[AppendSession], call: AdmittedCall | None
    ) -> None:
        super().__init__()
        self._session = session
        self._sessions = sessions
        self._call = call

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve the session."""
        self._sessions.add(self._session)
        if self._call is not None:
            self._call.listen(self._on_refused)
        headers = [(b"content-type", NDJSON.encode())]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            # Granian keeps the head until the body begins, and some clients wait for it. The first
            # line may begin with a space, and an empty frame may not be: HTTP/2 clients end a
            # connection on which they saw a hundred of them.
            await send({"type": "http.response.body", "body": b" ", "more_body": True})
            await self._session.run(_read_pieces(receive), _send_lines(send))
            if not self._session.is_body_read:
                await drop_body(scope, receive)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._sessions.discard(self._session)

    def _on_refused(self) -> None:
        assert self._call is not None and self._call.refusal is not None, "it was refused"
        self._session.stop(self._call.refusal)


def _read_pieces(receive: Any) -> Callable[[], Awaitable[Piece]]:
    async def read_piece() -> Piece:
        message = await receive()
        if message["type"] != "http.request":
            return None
        return bytes(message.get("body", b"")), bool(message.get("more_body"))

    return read_piece


def _send_lines(send: Any) -> Callable[[bytes], Awaitable[None]]:
    async def send_lines(lines: bytes) -> None:
        await send({"type": "http.response.body", "body": lines, "more_body": True})

    return send_lines
