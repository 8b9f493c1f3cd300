"""`/v1/access-tokens`: tokens made, listed and revoked, carried out by a sequencer.

A token's text is drawn here and given in the answer of the call that made it. What goes to a
sequencer, and into ZooKeeper, is its id and its hash.

Called by `service`. Source: docs/protocol/credentials.md "Who makes one, and for how long".
"""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI, Request, Response

from duramen.core.rights.grants import check_token_id
from duramen.errors import DuramenError
from duramen.runtime.credentials.access_tokens.issuing import check_life_s
from duramen.runtime.credentials.access_tokens.token_text import format_prefix, make_token
from duramen.runtime.public.answers import (
    AccessTokenMadeAnswer,
    AccessTokenRevokedAnswer,
    AccessTokensAnswer,
    read_answer,
    respond,
)
from duramen.runtime.public.calls import TOKEN_PATH, TOKENS_PATH
from duramen.runtime.rest import add_route, read_query
from duramen.texts import format_time
from duramen.units import KIB, SECOND, parse_duration_us
from duramen_writeproxy.logs.catalog import parse_page
from duramen_writeproxy.rights.calls_for_callers import CallsForCallers

_BODY_BYTES_MAX: Final = 64 * KIB
"""32 scopes with all verbs are half of it."""

_KEY: Final = "access-tokens"
_FIELDS: Final = ("id", "scopes", "by", "created_unix_s", "ends_unix_s", "note")


def add_token_routes(app: FastAPI, calls: CallsForCallers) -> None:
    """The three routes."""
    routes = _TokenRoutes(calls)
    add_route(app, "POST", TOKENS_PATH, routes.make)
    add_route(app, "GET", TOKENS_PATH, routes.list)
    add_route(app, "DELETE", TOKEN_PATH, routes.revoke)


class _TokenRoutes:
    def __init__(self, calls: CallsForCallers) -> None:
        self._calls = calls

    async def make(self, request: Request) -> Response:
        """Make a token: 201, with its text."""
        read_query(request, ())
        members = await self._calls.read_members(
            request, _BODY_BYTES_MAX, ("scopes", "expires", "note")
        )
        life_s = _read_life_s(members.get("expires"))
        made = make_token()
        message = {
            "op": "issue_token",
            "id": made.token_id,
            "sha256": made.hash.hex(),
            "scopes": members.get("scopes"),
            "life_s": life_s,
            "note": members.get("note", ""),
        }
        told = await self._calls.ask(request, _KEY, message, _FIELDS)
        shown = {**_show(told), "token": made.text}
        return respond(read_answer(AccessTokenMadeAnswer, shown), 201)

    async def list(self, request: Request) -> Response:
        """A page of the tokens that the caller may see, by id."""
        page = parse_page(read_query(request, ("start_after", "limit")))
        message = {"op": "list_tokens", "start_after": page.start_after, "limit": page.limit}
        told = await self._calls.ask(request, _KEY, message, ("tokens", "has_more"))
        shown = {**told, "tokens": [_show(row) for row in told["tokens"]]}
        return respond(read_answer(AccessTokensAnswer, shown))

    async def revoke(self, request: Request) -> Response:
        """Revoke a token; `changed` is false if there was none."""
        read_query(request, ())
        await self._calls.read_members(request, _BODY_BYTES_MAX, ())
        token_id = check_token_id(request.path_params["id"])
        message = {"op": "revoke_token", "id": token_id}
        told = await self._calls.ask(request, _KEY, message, ("changed",))
        return respond(read_answer(AccessTokenRevokedAnswer, {**told, "id": token_id}))


def _read_life_s(text: object) -> int:
    if not isinstance(text, str):
        raise DuramenError("invalid_argument", "expires: write 30d, or 12h", field="expires")
    try:
        return check_life_s(parse_duration_us(text) // SECOND)
    except ValueError as error:
        raise DuramenError("invalid_argument", f"expires: {error}", field="expires") from None


def _show(told: dict[str, Any]) -> dict[str, Any]:
    """A token as a sequencer tells it, for people."""
    times = {name: format_time(told[f"{name}_unix_s"] * 1_000) for name in ("created", "ends")}
    return {**told, **times, "prefix": format_prefix(told["id"])}
