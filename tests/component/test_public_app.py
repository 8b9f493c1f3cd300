"""Bodies and surprises of the public applications, as an ASGI server hands them over.

A server may give a body in any pieces, may end it early and may never go on; that is played by hand
here, under a clock that stands still. With real clients: `test_writeproxy`, `test_readproxy`.
Source: duramen.runtime.rest, docs/protocol/errors.md.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any, Final

import pytest
from fastapi import Request, Response
from starlette.types import Message

from duramen.runtime.rest import (
    BODY_TIMEOUT_S,
    add_route,
    announced_bytes,
    make_public_app,
    read_body,
)
from duramen.units import MIB
from tests.component.still_clock import run_still, wait_clock
from tests.pauses import stay

MOST_BYTES: Final = 2 * MIB
"""More than any one piece here has."""
ENDLESS_COUNT: Final = 100
"""Pieces of 1 MiB: more than a server reads of what it has refused."""


class Call:
    """One request, whose messages the test writes down; after the last the server says no more."""

    def __init__(
        self,
        messages: Iterable[Message],
        *,
        method: str = "POST",
        announced: int | None = None,
        media: bytes | None = b"text/plain",
    ) -> None:
        length = () if announced is None else ((b"content-length", b"%d" % announced),)
        typed = () if media is None else ((b"content-type", media),)
        self.scope = {
            "type": "http", "http_version": "1.1", "method": method, "path": "/it",
            "raw_path": b"/it", "query_string": b"", "headers": [*length, *typed], "root_path": "",
            "scheme": "http", "server": ("x", 1), "client": ("y", 1),
        }  # fmt: skip
        self._messages = iter(messages)
        self.taken_count = 0
        self.sent: list[Message] = []

    async def _receive(self) -> Message:
        message = next(self._messages, None)
        if message is None:
            await stay()
        assert message is not None
        self.taken_count += 1
        return message

    async def _send(self, message: Message) -> None:
        self.sent.append(message)

    async def run(self) -> None:
        """Send it to an application that takes bodies, and fails where they are `fail`."""
        app = make_public_app("test")

        async def take(request: Request) -> Response:
            announced = announced_bytes(request.headers.get("content-length", "").encode() or None)
            body = await read_body(request, MOST_BYTES, announced=announced)
            if body == b"fail":
                raise RuntimeError("a surprise, on purpose")
            return Response(body)

        for method in ("POST", "GET"):
            add_route(app, method, "/it", take)
        await app(self.scope, self._receive, self._send)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent[1:])

    def check_problem(self, status: int, code: str, detail: str) -> dict[str, Any]:
        problem: dict[str, Any] = json.loads(self.body)
        assert (self.sent[0]["status"], problem["code"]) == (status, code)
        assert detail in problem["detail"]
        return problem


def piece(body: bytes, *, more: bool = True) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


GONE: Final[Message] = {"type": "http.disconnect"}


@pytest.mark.parametrize(
    "messages", [[piece(b"abc", more=False)], [piece(b"ab"), piece(b"c", more=False)]]
)
def test_a_whole_body_is_taken_in_any_pieces(messages: list[Message]) -> None:
    for announced in (3, None):
        call = Call(messages, announced=announced)
        run_still(call.run())
        assert (call.sent[0]["status"], call.body) == (200, b"abc")


@pytest.mark.parametrize(
    "messages", [[piece(b"abc", more=False)], [piece(b""), piece(b"abc", more=False)]]
)
def test_a_body_without_a_type_that_nobody_announced_is_refused(messages: list[Message]) -> None:
    """As over HTTP/2, where the gate sees no length: a page may send such a one unasked."""
    call = Call(messages, media=None)
    run_still(call.run())
    call.check_problem(415, "unsupported_media", "Content-Type says nothing")
    empty = Call([piece(b"", more=False)], media=None)
    run_still(empty.run())
    assert (empty.sent[0]["status"], empty.body) == (200, b"")


@pytest.mark.parametrize(
    "messages",
    [
        [piece(b"abc", more=False)],
        [piece(b"ab"), piece(b"c", more=False)],
        [piece(b"abc"), GONE],
        [GONE],
    ],
)
def test_a_body_that_was_cut_short_is_none(messages: list[Message]) -> None:
    """Its client died in the middle, whatever the server makes of that."""
    call = Call(messages, announced=4)
    run_still(call.run())
    call.check_problem(400, "invalid_argument", "the body was cut short")


def test_a_body_without_an_end_is_refused_where_it_is_too_large() -> None:
    """A little more is read and dropped, so that its client sees the answer."""
    call = Call([piece(bytes(MIB))] * ENDLESS_COUNT)
    run_still(call.run())
    call.check_problem(413, "batch_too_large", "2097152 bytes at most")
    assert call.taken_count < ENDLESS_COUNT


def test_a_body_that_does_not_arrive_is_refused_in_time() -> None:
    async def scenario() -> None:
        call = Call([piece(b"abc")])
        begun_s = asyncio.get_running_loop().time()
        running = asyncio.create_task(call.run())
        await wait_clock(begun_s + BODY_TIMEOUT_S - 1)
        assert not running.done()
        await wait_clock(begun_s + BODY_TIMEOUT_S + 1)
        assert running.done()
        call.check_problem(400, "invalid_argument", "did not arrive in time")

    run_still(scenario())


@pytest.mark.parametrize("method", ["POST", "GET"])
def test_what_a_surprise_has_done_is_not_known_where_something_was_to_be_done(method: str) -> None:
    """Whoever sends an append again is told that it may be there already."""
    call = Call([piece(b"fail", more=False)], method=method)
    with pytest.raises(RuntimeError, match="on purpose"):
        run_still(call.run())
    problem = call.check_problem(500, "internal", "see the server's log")
    assert problem["uncertain"] is (method == "POST")
