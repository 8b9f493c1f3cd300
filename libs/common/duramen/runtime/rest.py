"""What both public REST ports share: the application, problems, bodies, strict JSON, queries.

`make_public_app` gives a FastAPI application in which every refusal is RFC 9457 problem+json with a
code of `duramen.errors`, also those that FastAPI makes itself. `read_body` bounds a body before it
is kept and refuses one that was cut short. `parse_object` reads JSON that means one thing only: no
field twice, no NaN, no lone surrogate, no depth that exhausts the stack.

Not here: routes, and what a field means. The admin port has its own application (`admin`).
Called by the write proxy and the read proxy. Source: docs/protocol/rest.md,
docs/protocol/errors.md.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any, Final, NoReturn, cast
from urllib.parse import parse_qsl

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from fastapi.routing import APIRoute
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from duramen import __version__
from duramen.errors import DuramenError
from duramen.runtime.admin import add_problem_handler, problem_response
from duramen.runtime.edge.coded_bodies import UNDECODED, CodedBodies, drop_rest
from duramen.wire.edge.gate import refuse_type

_LOG = logging.getLogger(__name__)

BODY_TIMEOUT_S: Final = 30.0
"""A body that has not arrived by then is refused: it would hold its share of memory for nothing."""

_FIELD_CHARACTERS_MAX: Final = 100
_QUERY_FIELDS_MAX: Final = 100
_SURROGATE_ESCAPE: Final = re.compile(r"\\u[dD][89a-fA-F]")

METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")

Endpoint = Callable[[Request], Awaitable[Response]]


class _BareRoute(APIRoute):
    """A route that FastAPI finds, and does nothing more for."""

    def handle(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        """As the base classes; a read that waits costs none of their coroutines."""
        if scope["method"] not in (self.methods or ()):
            return super().handle(scope, receive, send)
        return cast(Coroutine[Any, Any, None], self.app(scope, receive, send))


class LeanRoute(_BareRoute):
    """A route whose endpoint takes the Request and gives the Response."""

    def __init__(self, path: str, endpoint: Endpoint, **described: Any) -> None:
        super().__init__(path, endpoint, **described)

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            response = await endpoint(Request(scope, receive, send))
            await response(scope, receive, send)

        self.app = answer


class _PublicApp(FastAPI):
    """FastAPI with the layers that are used around a route, and no others: each costs every
    request time, and thousands that wait memory. Bodies are bounded by `read_body`."""

    __call__ = Starlette.__call__

    def build_middleware_stack(self) -> ASGIApp:
        """Errors, what `add_middleware` added, problems, routes."""
        return Starlette.build_middleware_stack(self)


class _SolvedRoute(APIRoute):
    """A route whose parameters FastAPI solves; it expects the exit stack that is left out above."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **described: Any) -> None:
        super().__init__(path, endpoint, **described)
        self.app = AsyncExitStackMiddleware(self.app)


class DeclaredRoute(_BareRoute):
    """A route whose query parameters are declared for OpenAPI and read by hand: the endpoint gets
    the request and the parts of the path, and FastAPI keeps nothing of its own while it waits."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **described: Any) -> None:
        super().__init__(path, endpoint, **described)

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            response = await endpoint(Request(scope, receive, send), **scope["path_params"])
            await response(scope, receive, send)

        self.app = answer


def make_public_app(title: str) -> FastAPI:
    """An application without routes whose every error answer is problem+json.

    Codes: a path that is not served is `invalid_argument` with status 404 and field `path`, a
    method that is not served `invalid_argument` with 405, field `method` and `Allow`; what an
    endpoint did not foresee is logged and answered as `internal`.
    """
    app = _PublicApp(title=title, version=__version__, redirect_slashes=False, openapi_url=None)
    app.router.route_class = _SolvedRoute
    app.add_middleware(CodedBodies)
    add_problem_handler(app)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(Exception, _on_surprise)
    return app


def add_route(app: FastAPI, method: str, path: str, endpoint: Endpoint) -> None:
    """Add a lean route; what it is stands in the table of `public.calls`."""
    app.router.add_api_route(
        path, endpoint, methods=[method], route_class_override=LeanRoute, response_class=Response
    )


def refuse_method(request: Request, allowed: Collection[str]) -> Response:
    """The 405 of a path that has other methods."""
    reason = DuramenError(
        "invalid_argument", f"{request.method} is not served here", field="method"
    )
    return _answer_with_status(reason, 405, {"Allow": ", ".join(sorted(allowed))})


async def _on_invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = [str(part) for part in first["loc"] if part not in ("query", "path", "body", "header")]
    return problem_response(
        DuramenError("invalid_argument", first["msg"], field=shorten_field(".".join(place)) or None)
    )


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    match error.status_code:
        case 404:
            reason = DuramenError(
                "invalid_argument", "no such path: see /v1/openapi.json", field="path"
            )
        case 405:
            return refuse_method(request, _list_methods(request))
        case _:
            reason = DuramenError("invalid_argument", str(error.detail))
    return _answer_with_status(reason, error.status_code, dict(error.headers or {}))


def _list_methods(request: Request) -> set[str]:
    """Of all routes with the request's path; the framework names those of one."""
    methods = {
        method
        for route in request.app.router.routes
        if isinstance(route, APIRoute) and route.path_regex.match(request.scope["path"])
        for method in route.methods or ()
    }
    return methods | {"HEAD"} if "GET" in methods else methods


def _answer_with_status(reason: DuramenError, status: int, headers: dict[str, str]) -> Response:
    problem = {**reason.problem(), "status": status}
    return Response(
        json.dumps(problem).encode(),
        status_code=status,
        headers=headers,
        media_type="application/problem+json",
    )


async def _on_surprise(request: Request, error: Exception) -> Response:
    _LOG.error("%s %s failed", request.method, request.url.path, exc_info=error)
    uncertain = request.method == "POST"
    return problem_response(DuramenError("internal", "see the server's log", uncertain=uncertain))


# --- Bodies and queries --------------------------------------------------------------------------


def announced_bytes(content_length: bytes | None) -> int | None:
    """The length that a Content-Length header announces; None where it does not."""
    return int(content_length) if content_length is not None and content_length.isdigit() else None


async def read_body(
    request: Request,
    most_bytes: int,
    *,
    announced: int | None,
    code: str = "batch_too_large",
    on_piece: Callable[[int], None] | None = None,
) -> bytes:
    """The whole body, refused before it is kept if it is too large.

    Args:
        announced: what `announced_bytes` said.
        code: the error code for a body over `most_bytes`.
        on_piece: is told the bytes of each piece of a body that does not come in one; may refuse.

    Raises:
        DuramenError: `code`, or `invalid_argument` for a body that was cut short or that takes
            longer than BODY_TIMEOUT_S; `unsupported_media` for one without a type.
    """
    if announced is not None and announced > most_bytes:
        await _refuse_large(request, most_bytes, code)
    message = await request.receive()
    body = message.get("body", b"")
    # Most bodies come in one message; that it was the last is often told by a second, empty one,
    # which is not worth waiting for where the announced length is there.
    if message.get("more_body", message["type"] != "http.request") and len(body) != announced:
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                body = await _gather(request, message, most_bytes, code, on_piece)
        except TimeoutError:
            raise DuramenError("invalid_argument", "the body did not arrive in time") from None
    if len(body) > most_bytes:
        await _refuse_large(request, most_bytes, code)
    if announced is not None and len(body) != announced:
        raise DuramenError("invalid_argument", "the body was cut short")
    if body and announced is None and "content-type" not in request.headers:
        # Over HTTP/2 the gate could not see that there is one.
        raise refuse_type(None)
    return bytes(body)


async def _gather(
    request: Request,
    message: Any,
    most_bytes: int,
    code: str,
    on_piece: Callable[[int], None] | None,
) -> bytes:
    pieces = []
    size = 0
    while True:
        if message["type"] != "http.request":
            raise DuramenError("invalid_argument", "the body was cut short")
        piece = message.get("body", b"")
        size += len(piece)
        if size > most_bytes:
            await _refuse_large(request, most_bytes, code)
        if on_piece is not None:
            on_piece(len(piece))
        pieces.append(piece)
        if not message.get("more_body"):
            return b"".join(pieces)
        message = await request.receive()


async def _refuse_large(request: Request, most_bytes: int, code: str) -> NoReturn:
    """Refuse a body after reading and dropping its rest."""
    await drop_body(request.scope, request.receive)
    raise DuramenError(code, f"the request's body may have {most_bytes} bytes at most")


async def drop_body(scope: Scope, receive: Receive) -> None:
    """Read and drop what is left of a body, undecoded and within bounds."""
    await drop_rest(scope.get(UNDECODED, receive))


def read_query(request: Request, known: Collection[str]) -> dict[str, str]:
    """The query's fields, each at most once.

    Raises:
        DuramenError: `unknown_field` or `invalid_argument`, with the field.
    """
    raw = request.scope["query_string"]
    if not raw:
        return {}
    try:
        pairs = parse_qsl(
            raw.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_QUERY_FIELDS_MAX,
        )
    except ValueError:
        raise DuramenError(
            "invalid_argument", "the query is no percent-encoded UTF-8, or too long", field="query"
        ) from None
    fields: dict[str, str] = {}
    for name, value in pairs:
        if name not in known:
            raise unknown_field(name)
        if name in fields:
            raise DuramenError("invalid_argument", f"{name} is given twice", field=name)
        fields[name] = value
    return fields


# --- Strict JSON ---------------------------------------------------------------------------------


def parse_json(data: bytes, where: str | None = None) -> Any:
    """Any JSON value, read strictly.

    Args:
        where: names the place in the detail and as the field, such as "line 3".

    Raises:
        DuramenError: `invalid_argument`: no UTF-8, no JSON, a field twice, NaN or infinity, a lone
            surrogate, nested too deeply, a number too long to read.
    """
    try:
        text = data.decode("utf-8")
        document = json.loads(text, object_pairs_hook=_as_dict, parse_constant=_refuse_constant)
        if _SURROGATE_ESCAPE.search(text) is not None:
            json.dumps(document, ensure_ascii=False).encode()
    except _SeenTwiceError as error:
        path = error.name if where is None else f"{where}: {error.name}"
        raise DuramenError("invalid_argument", f"{path} is given twice", field=path) from None
    except UnicodeError:
        raise _no_json("a text is no valid Unicode", where) from None
    except RecursionError:
        raise _no_json("it is nested too deeply", where) from None
    except ValueError as error:
        raise _no_json(str(error), where) from None
    return document


def parse_object(
    data: bytes, known: Collection[str] | None = None, where: str | None = None
) -> dict[str, Any]:
    """A JSON object, read strictly; `known` are the fields that it may have (None: any).

    Raises:
        DuramenError: as `parse_json`; `invalid_argument` for another value; `unknown_field`.
    """
    document = parse_json(data, where)
    if not isinstance(document, dict):
        raise _no_json("a JSON object is expected", where)
    if known is not None:
        for name in document:
            if name not in known:
                raise unknown_field(name, where)
    return document


def unknown_field(name: str, where: str | None = None) -> DuramenError:
    """The refusal of a field that is not known, with its path."""
    path = shorten_field(name if where is None else f"{where}.{name}")
    return DuramenError("unknown_field", f"{path} is not a known field", field=path)


def shorten_field(path: str) -> str:
    """A field's path as it may stand in a problem: what others send is not echoed at length."""
    if len(path) <= _FIELD_CHARACTERS_MAX:
        return path
    return path[: _FIELD_CHARACTERS_MAX - 1] + "…"


def _as_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        # In the dict the last pair of a name wins: whoever comes before it is one too many.
        last = {name: index for index, (name, _) in enumerate(pairs)}
        twice = next(name for index, (name, _) in enumerate(pairs) if last[name] != index)
        raise _SeenTwiceError(twice)
    return found


class _SeenTwiceError(ValueError):
    """A JSON object names a field twice, so that readers could disagree about its meaning."""

    def __init__(self, name: str) -> None:
        super().__init__("a field is given twice")
        self.name = shorten_field(name.encode("utf-8", "replace").decode())


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _no_json(reason: str, where: str | None) -> DuramenError:
    prefix = "" if where is None else f"{where}: "
    return DuramenError("invalid_argument", f"{prefix}no valid JSON: {reason}", field=where)
