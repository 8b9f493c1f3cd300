"""Which row of the table of calls a request is, by its text alone, and the guard that holds to it.

The door judges what it finds here; the framework then chooses a route by rules of its own. The
guard around each route lets only that row through which was judged, so whatever text the two read
differently is no path.

Called by `public_door` and `runtime.public.serving`.
Source: docs/protocol/rights.md "How a call is judged".
"""

from __future__ import annotations

import re
from collections.abc import Awaitable
from functools import lru_cache
from typing import Final, NamedTuple

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from duramen.runtime.public.calls import CALLS, PublicCall
from duramen.texts import check_log_name, check_namespace

ROW_KEY: Final = "duramen.row"
"""In the scope of a request that a door let in: the row that was judged, or None."""

KEPT_COUNT_MAX: Final = 8_192
_KEPT_CHARACTERS_MAX: Final = 512
"""Method and path of a call have 400 at most; what is longer is no call, and is not kept."""


class FoundRow(NamedTuple):
    """A call of the table, with the names in its path."""

    row: PublicCall
    namespace: str | None
    log: str | None


_PATTERNS: Final = tuple(
    # No name has a colon, so what stands behind one is a verb of the path.
    (row, re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/:]+)", re.escape(row.path))))
    for row in CALLS
)


def find_row(method: str, path: str) -> FoundRow | None:
    """The row that a request means; None: it is no call of the table.

    Raises:
        DuramenError: `invalid_name`: a name in the path is none.
    """
    if method == "HEAD":
        method = "GET"
    if len(method) + len(path) > _KEPT_CHARACTERS_MAX:
        return _find_row(method, path)
    return _find_kept(method, path)


def _find_row(method: str, path: str) -> FoundRow | None:
    for row, pattern in _PATTERNS:
        if row.method != method or (found := pattern.fullmatch(path)) is None:
            continue
        names = found.groupdict()
        namespace, log = names.get("namespace"), names.get("log")
        if namespace is not None:
            check_namespace(namespace)
        if log is not None:
            check_log_name(log)
        return FoundRow(row, namespace, log)
    return None


_find_kept = lru_cache(KEPT_COUNT_MAX)(_find_row)


def guard_route(app: ASGIApp, row: PublicCall) -> ASGIApp:
    """The route of a row, for requests that were judged as that row and for no others.

    A plain function that hands on what it wraps: a waiting read costs no coroutine more.
    """

    def serve(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope.get(ROW_KEY, row) is not row:
            raise HTTPException(404)
        return app(scope, receive, send)

    return serve
