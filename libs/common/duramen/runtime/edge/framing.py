"""Requests whose end a proxy in front may see elsewhere: the last ones of their connection.

HTTP/1.1 lets a request name its end by `Content-Length` or by `Transfer-Encoding`, and of one that
names both some readers go by the wrong one: what is body to one is the next request to the other. A
request that shows both is refused. Where the HTTP library drops the length before anybody sees it
(granian), each request with `Transfer-Encoding` is answered with `Connection: close`, so that
nothing behind it is read as a request. HTTP/2 has no such header.

Around every application, by `runtime.http_server`. Source: RFC 9112 section 6.3.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final

from duramen.errors import DuramenError
from duramen.runtime.admin import problem_response

Message = MutableMapping[str, Any]
App = Callable[[Any, Any, Any], Awaitable[None]]

CLOSING: Final = ("connection", "close")
"""The header of an answer behind which nothing is read."""

_CLOSING: Final = (b"connection", b"close")


def is_last(http_version: str, names: Iterable[str]) -> bool:
    """Whether nothing may be read behind a request with headers of these names, in lower case."""
    return http_version.startswith("1") and "transfer-encoding" in names


class ClearFraming:
    """ASGI middleware."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request."""
        names = {name for name, _ in scope.get("headers", ())}
        is_http = scope["type"] == "http"
        if not (is_http and is_last(scope["http_version"], (n.decode("latin-1") for n in names))):
            await self._app(scope, receive, send)
            return

        def send_closing(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), _CLOSING]}
            sent: Awaitable[None] = send(message)
            return sent

        if b"content-length" in names:
            detail = "a request has a Content-Length or a Transfer-Encoding, not both"
            error = DuramenError("invalid_argument", detail, field="Transfer-Encoding")
            await problem_response(error)(scope, receive, send_closing)
            return
        await self._app(scope, receive, send_closing)
