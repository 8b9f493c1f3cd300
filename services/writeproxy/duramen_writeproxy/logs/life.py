"""`POST …/logs/{log}:truncate`, `:end`, `:undelete` and `DELETE …/logs/{log}`.

Each is checked here and carried out by the log's owner, or by any sequencer when nothing is open;
all four may be sent again. The verb stands behind the log's name, which has no colon. All but
`:undelete` may name the id of the log that is meant: two of them cannot be undone.

Called by `service`. Source: docs/protocol/rest.md "Write proxy" and "The log that is meant",
docs/protocol/errors.md, docs/protocol/retention.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from fastapi import FastAPI, Request, Response

from duramen.errors import DuramenError
from duramen.runtime.public.answers import (
    Answer,
    DeletedAnswer,
    EndedAnswer,
    LogMadeAnswer,
    TruncatedAnswer,
    read_answer,
    respond,
)
from duramen.runtime.rest import add_route, announced_bytes, parse_object, read_body, read_query
from duramen.texts import check_log_name, check_namespace, parse_position
from duramen.units import KIB
from duramen_writeproxy.logs.creation import Creator
from duramen_writeproxy.logs.names import LOG_ID_FIELD, NameCache, read_meant

_LOG: Final = "/v1/namespaces/{ns}/logs/{log}"
_BODY_BYTES_MAX: Final = 4 * KIB
"""A position is a hundred characters at most."""


def add_life_routes(
    app: FastAPI, names: NameCache, calls: Creator, is_draining: Callable[[], bool]
) -> None:
    """The four routes."""
    routes = _LifeRoutes(names, calls, is_draining)
    for method, path, endpoint in (
        ("POST", _LOG + ":truncate", routes.truncate),
        ("POST", _LOG + ":end", routes.end),
        ("POST", _LOG + ":undelete", routes.undelete),
        ("DELETE", _LOG, routes.delete),
    ):
        add_route(app, method, path, endpoint)


class _LifeRoutes:
    def __init__(self, names: NameCache, calls: Creator, is_draining: Callable[[], bool]) -> None:
        self._names = names
        self._calls = calls
        self._is_draining = is_draining

    async def truncate(self, request: Request) -> Response:
        """Truncate everything before a position; `changed` is false if that was so already."""
        to = _read_to(await self._read_body(request))
        return await self._ask_by_id(request, {"op": "truncate", "to": to}, TruncatedAnswer)

    async def end(self, request: Request) -> Response:
        """End the stream: no append any more, everything stays readable."""
        _read_nothing(await self._read_body(request))
        return await self._ask_by_id(request, {"op": "end"}, EndedAnswer)

    async def delete(self, request: Request) -> Response:
        """Delete the log; it can be had back until `undelete_until`."""
        _read_nothing(await self._read_body(request))
        return await self._ask_by_id(request, {"op": "delete"}, DeletedAnswer)

    async def undelete(self, request: Request) -> Response:
        """Have a deleted log back, as it was."""
        read_query(request, ())
        _read_nothing(await self._read_body(request))
        namespace, log = _log_of(request)
        message = {"op": "undelete", "namespace": namespace, "log": log}
        answer = await self._calls.ask(f"{namespace}/{log}", message, ("log_id", "config"))
        self._names.doubt(namespace, log)
        named = {"namespace": namespace, "name": log}
        return respond(read_answer(LogMadeAnswer, {**answer, **named}))

    async def _ask_by_id(
        self, request: Request, message: dict[str, Any], model: type[Answer]
    ) -> Response:
        meant = read_meant(read_query(request, (LOG_ID_FIELD,)))
        namespace, log = _log_of(request)
        log_id = await self._names.find_meant(namespace, log, meant)
        message = {**message, "log_id": str(log_id)}
        try:
            key = f"{namespace}/{log}"
            answer = await self._calls.ask(key, message, tuple(model.model_fields), log_id=log_id)
        except DuramenError as error:
            if error.code in ("log_not_found", "log_deleted"):
                self._names.doubt(namespace, log)
            raise
        return respond(read_answer(model, answer))

    async def _read_body(self, request: Request) -> dict[str, Any]:
        if self._is_draining():
            raise DuramenError("server_draining", "this proxy is stopping: use another one")
        length = dict(request.scope["headers"]).get(b"content-length")
        body = await read_body(request, _BODY_BYTES_MAX, announced=announced_bytes(length))
        return parse_object(body) if body else {}


def _read_to(document: dict[str, Any]) -> str:
    to = document.pop("to", None)
    _read_nothing(document)
    if isinstance(to, int) and not isinstance(to, bool):
        to = str(to)
    if not isinstance(to, str):
        raise DuramenError(
            "invalid_position", 'write the first record to keep, such as {"to": "seq:17"}',
            field="to",
        )  # fmt: skip
    try:
        parse_position(to)
    except DuramenError as error:
        raise DuramenError(error.code, error.detail, field="to") from None
    return to


def _read_nothing(document: dict[str, Any]) -> None:
    for field in document:
        raise DuramenError("unknown_field", f"{field}: not a known field", field=field)


def _log_of(request: Request) -> tuple[str, str]:
    params = request.path_params
    return check_namespace(params["ns"]), check_log_name(params["log"])
