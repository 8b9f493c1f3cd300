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
from duramen.limits import FRAME_BYTES_MAX
from duramen.runtime.admission.call_rows import FoundRow, find_row
from duramen.runtime.admission.callers import CALL_KEY, AdmittedCall
from duramen.runtime.admission.early_answers import answer_early
from duramen.runtime.admission.quotas import Charged, Quotas, read_clock_us
from duramen.units import MIB, SECOND

UNANNOUNCED_BYTES: Final = 1 * MIB
"""What a body without a length is taken to be."""

ANNOUNCED_BYTES_MAX: Final = FRAME_BYTES_MAX
"""No body that is served is larger, whatever is announced."""

_LOOK_S: Final = 1.0
"""A stream that waits looks so often whether it is to end."""

_LENGTH_DIGITS_MAX: Final = 12
_BODILESS: Final = ("GET", "HEAD")
_STREAM: Final = CallShape(is_stream=True, announced_bytes=0)
_PLAIN: Final = CallShape(is_stream=False, announced_bytes=0)
_UNANNOUNCED: Final = CallShape(is_stream=False, announced_bytes=UNANNOUNCED_BYTES)


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
        if scope["method"] not in _BODILESS:
            receive = metered.receive
        try:
            await self._app(scope, receive, metered.send)
        finally:
            metered.end(shape)


class _Metered:
    """What goes through one call, counted for its parties."""

    __slots__ = ("_call", "_came_bytes", "_charged", "_is_stream", "_receive", "_send")

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
        self._came_bytes = 0

    async def receive(self) -> Message:
        """The next piece of the body."""
        if self._is_stream:
            await self._wait()
        message = await self._receive()
        self._spend(message)
        if not self._is_stream and (body := message.get("body")):
            self._came_bytes += len(body)
            for one in self._charged:
                if not one.is_held_to_its_word:
                    one.account.hold(len(body))
        return message

    def end(self, shape: CallShape) -> None:
        """The call is over: nobody holds anything for it any more."""
        for one in self._charged:
            held_bytes = shape.announced_bytes if one.is_held_to_its_word else self._came_bytes
            one.account.end(shape, held_bytes)

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
        return _STREAM
    if scope["method"] in _BODILESS:
        return _PLAIN
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and len(value) <= _LENGTH_DIGITS_MAX:
            return CallShape(False, min(int(value), ANNOUNCED_BYTES_MAX))
    return _UNANNOUNCED
