"""The gate around every port: requests that `wire.edge.gate` refuses never reach a route.

`GatedApp` stands around an ASGI application (the public ports and the admin port), `read_head` and
`encode_refusal` serve the data ports; `refuse_request` is how an ASGI application refuses. Put
there by `http_server`, by every server that it has, so that no route and no service can forget it.
Source: ADR 0025.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import orjson

from duramen.errors import DuramenError
from duramen.runtime.edge.coded_bodies import drop_rest
from duramen.wire.edge.gate import Bodies, Gate, RequestHead

App = Callable[[Any, Any, Any], Awaitable[None]]

FindBodies = Callable[[str], Bodies]
"""Which bodies a path takes."""

PROBLEM: Final = "application/problem+json"
_JUDGED: Final = {
    b"host": 0, b"origin": 1, b"sec-fetch-site": 2, b"content-type": 3,
    b"content-length": 4, b"transfer-encoding": 5,
}  # fmt: skip


class GatedApp:
    """ASGI: the application behind its gate.

    A plain function hands on what it wraps: a waiting read costs no coroutine more.
    """

    def __init__(self, app: App, gate: Gate, find_bodies: FindBodies) -> None:
        self._app = app
        self._gate = gate
        self._find_bodies = find_bodies

    def __call__(self, scope: Any, receive: Any, send: Any) -> Awaitable[None]:
        """Serve one request, or refuse it."""
        if scope["type"] != "http":
            return self._app(scope, receive, send)
        bodies = self._find_bodies(scope["path"])
        refusal = self._gate.judge(_read_asgi_head(scope), bodies)
        if refusal is None:
            return self._app(scope, receive, send)
        return refuse_request(refusal, receive, send)


def _read_asgi_head(scope: Any) -> RequestHead:
    found: list[bytes | None] = [None] * len(_JUDGED)
    for name, value in scope["headers"]:
        index = _JUDGED.get(name)
        if index is not None:
            before = found[index]
            found[index] = value if before is None else before + b", " + value
    host, origin, site, media, length, coding = [
        None if value is None else value.decode("latin-1") for value in found
    ]
    has_body = coding is not None or _is_some(length)
    return RequestHead(scope["method"], host or "", origin, site, media, has_body)


def read_head(scope: Any) -> RequestHead:
    """The head of an RSGI request, over HTTP/2 or HTTP/1.1."""
    headers = scope.headers

    def join(name: str) -> str | None:
        values = headers.get_all(name)
        return ", ".join(values) if values else None

    return RequestHead(
        scope.method,
        join("host") or scope.authority or "",
        join("origin"),
        join("sec-fetch-site"),
        join("content-type"),
    )


def encode_refusal(refusal: DuramenError) -> tuple[int, str, bytes]:
    """HTTP status, content type and body of a refusal."""
    return refusal.kind.status, PROBLEM, orjson.dumps(refusal.problem())


async def refuse_request(
    refusal: DuramenError, receive: Any, send: Any, more: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    """Answer, and take in what is still sent: else the connection's end hides the answer.

    Args:
        more: headers of the answer.
    """
    status, media, body = encode_refusal(refusal)
    headers = [
        *more,
        (b"content-type", media.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    await drop_rest(receive)
    await send({"type": "http.response.body", "body": b""})


def _is_some(length: str | None) -> bool:
    return length is not None and length.strip("0") != ""
