"""Control calls in a client's name: who asks goes along, and nobody asks who is not known.

Called by `grant_routes` and `token_routes`.
Source: docs/protocol/wire.md "Sequencer: POST /s/control".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
from fastapi import Request

from duramen.errors import DuramenError
from duramen.runtime.admission.callers import REQUEST_KEY, caller_of
from duramen.runtime.credentials.principals import Bearer, encode_bearer
from duramen.runtime.rest import announced_bytes, parse_object, read_body, unknown_field
from duramen_writeproxy.logs.creation import Creator


class CallsForCallers:
    """Asks sequencers for what a known caller asks."""

    def __init__(self, calls: Creator, is_draining: Callable[[], bool]) -> None:
        self._calls = calls
        self._is_draining = is_draining

    async def ask(
        self, request: Request, key: str, message: dict[str, Any], fields: tuple[str, ...]
    ) -> dict[str, Any]:
        """Carry out an operation in the name of the request's caller.

        Args:
            key: chooses whom to ask first.
            fields: what a usable answer has.

        Raises:
            DuramenError: `forbidden`: nobody is known; as of `Creator.ask`.
        """
        caller = encode_bearer(_find_caller(request))
        told = {"caller": caller, "request_id": request.scope.get(REQUEST_KEY, "")}
        try:
            orjson.dumps(message)
        except orjson.JSONEncodeError as error:
            raise DuramenError("invalid_argument", f"no text of Unicode: {error}") from None
        return await self._calls.ask(key, {**message, **told}, fields)

    async def read_members(
        self, request: Request, most_bytes: int, known: tuple[str, ...]
    ) -> dict[str, Any]:
        """The members of a known caller's body, none that is not known; `{}` where it is empty.

        Raises:
            DuramenError: `forbidden`, `server_draining`: nothing of it was read; or what is wrong
                with it.
        """
        _find_caller(request)
        if self._is_draining():
            raise DuramenError("server_draining", "this proxy is stopping: use another one")
        length = dict(request.scope["headers"]).get(b"content-length")
        body = await read_body(request, most_bytes, announced=announced_bytes(length))
        members = parse_object(body) if body else {}
        for name in members:
            if name not in known:
                raise unknown_field(name)
        return members


def _find_caller(request: Request) -> Bearer:
    caller = caller_of(request)
    if caller is None:
        raise DuramenError(
            "forbidden", "nobody is known here until this has --security migrate or on"
        )
    return caller
