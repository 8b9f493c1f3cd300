"""Pages of other origins at a public port: preflights answered, answers marked for the browser.

A browser lets a page read an answer of another origin only if the answer names the page's origin.
Nothing here keeps anybody out, that is the gate's (`wire.edge.gate`): without a list of origins,
which is how a proxy starts, the application is served as it is. There is no `*`, no `null`, never
a credential: each origin is written out, and may then do what any client may.

Stands around the whole application, so that every answer is marked, also of what went wrong. Put
there by both proxies. Source: the Fetch standard "CORS protocol"; docs/protocol/rest.md.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final

from duramen.runtime.edge.vary import add_vary

Message = dict[str, Any]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

TAKEN_HEADERS: Final = (
    "Content-Type", "Content-Encoding", "Duramen-Format", "Duramen-Timeout",
    "Duramen-Match-Seq-Num", "Duramen-Fencing-Token", "Duramen-Producer", "If-None-Match",
    "Last-Event-ID", "Authorization",
)  # fmt: skip
"""What a page may set on a request, beside what it always may."""

SHOWN_HEADERS: Final = (
    "Duramen-Moved-To", "Duramen-Start", "Duramen-Next", "Duramen-Tail", "Duramen-Ended",
    "Duramen-Home", "Duramen-Request", "ETag", "Retry-After", "Allow", "Accept-Encoding",
)  # fmt: skip
"""What a page may see of an answer, beside what it always may."""

METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")
_PREFLIGHT_AGE_S: Final = 600
_MARK: Final = b"access-control-"
_VARIES_BY: Final = b"Origin"
_ORIGIN: Final = re.compile(
    r"https?://(?:[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:.]+\])(?::[1-9][0-9]{0,4})?"
)
_DEFAULT_PORTS: Final = {"http": "80", "https": "443"}


def parse_origin(text: str) -> str:
    """An origin as browsers write it: `http://localhost:8000`.

    Raises:
        ValueError: it is none, or one that no browser sends (a path, a default port, capitals).
    """
    scheme, _, rest = text.partition("://")
    if not _ORIGIN.fullmatch(text) or rest.endswith(f":{_DEFAULT_PORTS[scheme]}"):
        raise ValueError(
            f"{text!r} is no origin as browsers write it: http:// or https://, a host in small "
            "letters and, unless it is the default, a port, such as http://localhost:8000"
        )
    return text


def allow_origins(app: App, origins: Collection[str]) -> App:
    """The application for pages of these origins; itself where there are none."""
    return CrossOrigin(app, origins) if origins else app


class CrossOrigin:
    """ASGI middleware.

    Args:
        origins: as `parse_origin` gives them.
    """

    def __init__(self, app: App, origins: Collection[str]) -> None:
        self._app = app
        self._origins = frozenset(origin.encode() for origin in origins)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: Headers = scope["headers"]
        named = [value for name, value in headers if name == b"origin"]
        # Of two origins nobody can tell which one is the page's.
        origin = named[0] if len(named) == 1 and named[0] in self._origins else None
        if origin is not None and _is_preflight(scope):
            await _answer_preflight(origin, send)
            return
        marks = [] if origin is None else _encode_marks(origin)

        def send_marked(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                given = message.get("headers", ())
                kept = [pair for pair in given if not pair[0].startswith(_MARK)]
                message = {**message, "headers": add_vary([*kept, *marks], _VARIES_BY)}
            sent: Awaitable[None] = send(message)
            return sent

        await self._app(scope, receive, send_marked)


def _is_preflight(scope: Any) -> bool:
    return scope["method"] == "OPTIONS" and any(
        name == b"access-control-request-method" for name, _ in scope["headers"]
    )


async def _answer_preflight(origin: bytes, send: Send) -> None:
    headers = [
        (b"access-control-allow-origin", origin),
        (b"access-control-allow-methods", ", ".join(METHODS).encode()),
        (b"access-control-allow-headers", ", ".join(TAKEN_HEADERS).encode()),
        (b"access-control-max-age", str(_PREFLIGHT_AGE_S).encode()),
        (b"vary", _VARIES_BY),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def _encode_marks(origin: bytes) -> Headers:
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", ", ".join(SHOWN_HEADERS).encode()),
    ]
