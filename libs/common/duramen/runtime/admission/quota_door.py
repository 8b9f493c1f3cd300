"""The limits of a public port: each call counts for its client and its namespace, or is refused.

Stands behind the door that knows who calls, so strangers use up nobody's limits, and before the
application, so nothing of a refused call's body is read but to be dropped. Bodies are counted as
they go over the network; a call that lasts waits where others are refused.

Put there by `runtime.public.serving`.
Source: docs/protocol/limits.md "How it is counted".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from duramen.core.quotas.quota_account import CallShape
from duramen.errors import DuramenError
from duramen.runtime.admission.call_rows import FoundRow, find_row
from duramen.runtime.admission.callers import CALL_KEY, AdmittedCall
from duramen.runtime.admission.early_answers import answer_early
from duramen.runtime.admission.quotas import Charged, Quotas, read_clock_us
from duramen.units import MIB, SECOND

UNANNOUNCED_BYTES: Final = 1 * MIB
"""What a body without a length counts as while it is under way."""

_LOOK_S: Final = 1.0
"""A stream that waits looks so often whether it is to end."""

_LENGTH_DIGITS_MAX: Final = 12
_BODILESS: Final = ("GET", "HEAD")
_READ: Final = CallShape(is_stream=True, announced_bytes=0, in_flight_bytes=0)
_PLAIN: Final = CallShape(is_stream=False, announced_bytes=0, in_flight_bytes=0)
_UNANNOUNCED: Final = CallShape(
    is_stream=False, announced_bytes=0, in_flight_bytes=UNANNOUNCED_BYTES
)


class QuotaDoor:
    """ASGI: the application for whoever has something left."""

    def __init__(self, app: ASGIApp, quotas: Quotas) -> None:
        self._app = app
        self._quotas = quotas

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request and count it, or refuse it before its body is read."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        call: AdmittedCall | None = scope.get(CALL_KEY)
        found = _find(scope) if call is None else call.found
        charged = await self._quotas.find(call, None if found is None else found.namespace)
        if not charged:
            await self._app(scope, receive, send)
            return
        shape = _read_shape(scope, found)
        try:
            self._quotas.begin(charged, shape)
        except DuramenError as refusal:
            await answer_early(refusal, scope, receive, send)
            return
        metered = _Metered(charged, call, receive, send, is_stream=shape.is_stream)
        if shape.announced_bytes == 0 and scope["method"] not in _BODILESS:
            receive = metered.receive
        try:
            await self._app(scope, receive, metered.send)
        finally:
            for one in charged:
                one.account.end(shape)


class _Metered:
    """What goes through one call, counted for its parties."""

    __slots__ = ("_call", "_charged", "_is_stream", "_receive", "_send")

    def __init__(
        self,
        charged: tuple[Charged, ...],
        call: AdmittedCall | None,
        receive: Receive,
        send: Send,
        *,
        is_stream: bool,
    ) -> None:
        self._charged = charged
        self._call = call
        self._receive = receive
        self._send = send
        self._is_stream = is_stream

    async def receive(self) -> Message:
        """The next piece of a body that nobody announced."""
        if self._is_stream:
            await self._wait()
        message = await self._receive()
        self._spend(message)
        return message

    def send(self, message: Message) -> Awaitable[None]:
        """Pass a piece of an answer on; a plain function, so that most need no coroutine."""
        if self._is_stream and message.get("more_body") and self._find_debt_us():
            return self._send_late(message)
        self._spend(message)
        return self._send(message)

    async def _send_late(self, message: Message) -> None:
        await self._wait()
        self._spend(message)
        await self._send(message)

    async def _wait(self) -> None:
        """Return once nobody is in debt, or the call is to end."""
        while debt_us := self._find_debt_us():
            if self._call is not None and (self._call.refusal or self._call.is_leaving):
                return
            await asyncio.sleep(min(debt_us / SECOND, _LOOK_S))

    def _find_debt_us(self) -> int:
        now_us = read_clock_us()
        return max(one.account.find_debt_us(now_us) for one in self._charged)

    def _spend(self, message: Message) -> None:
        if body := message.get("body"):
            now_us = read_clock_us()
            for one in self._charged:
                one.account.spend(len(body), now_us)


def _find(scope: Scope) -> FoundRow | None:
    """Of a call that no door has judged; names that are none are the application's to refuse."""
    try:
        return find_row(scope["method"], scope["path"])
    except DuramenError:
        return None


def _read_shape(scope: Scope, found: FoundRow | None) -> CallShape:
    if found is not None and found.row.lasts:
        return _READ
    if scope["method"] in _BODILESS:
        return _PLAIN
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and len(value) <= _LENGTH_DIGITS_MAX:
            announced = int(value)
            return CallShape(is_stream=False, announced_bytes=announced, in_flight_bytes=announced)
    return _UNANNOUNCED
