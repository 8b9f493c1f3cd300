"""`GET` and `PUT /v1/grants`: the grants within a scope, carried out by a sequencer.

Called by `service`. Source: docs/protocol/rights.md "Calls and tools", docs/protocol/rest.md
"Write proxy".
"""

from __future__ import annotations

import secrets
from typing import Any, Final

from fastapi import FastAPI, Request, Response

from duramen.errors import DuramenError
from duramen.runtime.public.answers import GrantsAnswer, read_answer, respond
from duramen.runtime.public.calls import GRANTS_PATH
from duramen.runtime.rest import add_route, read_query
from duramen.texts import format_time
from duramen.wire.nodes.grants import GRANTS_BYTES_MAX
from duramen_writeproxy.rights.calls_for_callers import CallsForCallers

_VERSION_CHARACTERS_MAX: Final = 9
_KEY: Final = "grants"
_FIELDS: Final = ("version", "grants")


def add_grant_routes(app: FastAPI, calls: CallsForCallers) -> None:
    """The two routes."""
    routes = _GrantRoutes(calls)
    add_route(app, "GET", GRANTS_PATH, routes.show)
    add_route(app, "PUT", GRANTS_PATH, routes.replace)


class _GrantRoutes:
    def __init__(self, calls: CallsForCallers) -> None:
        self._calls = calls

    async def show(self, request: Request) -> Response:
        """The grants within the scope of the query."""
        query = read_query(request, ("scope",))
        message = {"op": "list_grants", "scope": _take(query, "scope")}
        return _answer(await self._calls.ask(request, _KEY, message, _FIELDS))

    async def replace(self, request: Request) -> Response:
        """Have the grants of the body within the scope of the query, and no others."""
        query = read_query(request, ("scope", "version"))
        scope, version = _take(query, "scope"), _read_version(_take(query, "version"))
        # Who gives it is no part of a request, so what is stored fits where it is refused.
        members = await self._calls.read_members(
            request, GRANTS_BYTES_MAX, ("grants", "not_understood")
        )
        nonce = secrets.token_hex(12)
        told = {"op": "replace_grants", "scope": scope, "version": version, "nonce": nonce}
        return _answer(await self._calls.ask(request, _KEY, {**members, **told}, _FIELDS))


def _take(query: dict[str, str], field: str) -> str:
    if field not in query:
        raise DuramenError("invalid_argument", f"{field} is missing", field=field)
    return query[field]


def _read_version(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _VERSION_CHARACTERS_MAX):
        raise DuramenError(
            "invalid_argument", "a whole number ≥ 0: that of the list you saw", field="version"
        )
    return int(text)


def _answer(told: dict[str, Any]) -> Response:
    grants = [{**row, "given": format_time(row["given_unix_ms"])} for row in told["grants"]]
    return respond(read_answer(GrantsAnswer, {**told, "grants": grants}))
