"""The caller's side of a standing stream: numbers, what waits, answers, and what was never sent.

A request that waits here has no number and nothing of it has left: it goes as a call if the stream
ends first. From the moment that the writer begins it, it is answered, or its fate is open.

Called by `call_streams`. Source: docs/protocol/standing-streams.md "Rules" 1 to 5.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from duramen.runtime.standing.connection import SILENT_TICKS, StandingConnection
from duramen.runtime.standing.fates import (
    AdvisedRefusalError,
    NeverBegunError,
    StreamLostError,
)
from duramen.wire.frame import FRAME_BYTES_HARD_MAX
from duramen.wire.standing.http2 import WINDOW_BYTES
from duramen.wire.standing.messages import (
    HEAD_BYTES,
    NUMBER_MAX,
    Message,
    MessageError,
    MessageKind,
    pack_message,
    parse_refusal,
)
from duramen.wire.standing.opening import StreamPlace, find_refusal, make_request

OPEN_COUNT_MAX: Final = 512
"""Requests of one stream that wait or are not answered; what is more goes as calls."""

_OPEN_AGAIN_BYTES: Final = WINDOW_BYTES // 4
_WAIT_MAX_S: Final = 0.2
"""A request that the writer has not begun by then goes as a call, with the next tick."""


_WAITING_TICKS: Final = 2


class OpenCall:
    """One request, from when it is asked until it is answered."""

    __slots__ = (
        "_error", "_loop", "_pieces", "_status", "_stream", "_waiter", "answer_bytes", "asked_s",
        "body", "code", "has_part", "number",
    )  # fmt: skip

    def __init__(self, stream: CallStream, code: int, body: bytes) -> None:
        self.code = code
        self.body = body
        self.number = 0
        """0: the writer has not begun it."""
        self.answer_bytes = 0
        """What came of it."""
        self.has_part = False
        """Whether something came, be it empty."""
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self.asked_s = self._loop.time()
        self._pieces: deque[bytes] = deque()
        self._status: int | None = None
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def take(self, deadline_s: float) -> tuple[int | None, bytes]:
        """A part of the answer, and its status once it was the last one.

        Args:
            deadline_s: in the loop's time.

        Raises:
            NeverBegunError, StreamLostError, AdvisedRefusalError: there is no (further) answer.
            TimeoutError: not in time; give the call up.
        """
        while not self._pieces:
            if self._error is not None:
                raise self._error
            self._waiter = waiter = self._loop.create_future()
            timer = self._loop.call_at(deadline_s, _expire, waiter)
            try:
                await waiter
            finally:
                timer.cancel()
                self._waiter = None
        piece = self._pieces.popleft()
        return (None if self._pieces else self._status), piece

    def give_up(self) -> None:
        """Nobody waits for the answer any more."""
        self._stream.forget(self)

    def on_answer(self, status: int, body: bytes, *, has_more: bool) -> None:
        """Some of the answer came, or the last of it."""
        self._pieces.append(body)
        self.answer_bytes += HEAD_BYTES + len(body)
        self.has_part = True
        if not has_more:
            self._status = status
        self._wake()

    def on_error(self, error: Exception) -> None:
        """No answer will come."""
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _expire(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError("no answer in time"))


class CallStream(StandingConnection):
    """A stream to one peer.

    Args:
        process: the name of this one.
        name: gives the header of identity in force; None: nobody is asked who it is.
        on_over: told once, when it takes no requests any more.
    """

    def __init__(
        self,
        place: StreamPlace,
        process: str,
        name: Callable[[], str] | None,
        on_over: Callable[[CallStream], None],
    ) -> None:
        super().__init__(is_client=True)
        self._name = name
        self._named = None if name is None else name()
        self._on_over = on_over
        self._is_usable = False
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._last_number = 0
        self._waiting: deque[OpenCall] = deque()
        self._open: dict[int, OpenCall | None] = {}
        """By number; None: its caller has given it up."""
        self._taken_bytes = 0
        self._pipe.request(make_request(place, process, self._named))

    async def wait_open(self, timeout_s: float) -> None:
        """Return once the peer has taken the stream.

        Raises:
            StreamLostError: it has not, or not in time.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._opened
        except TimeoutError:
            self.break_off("the peer did not answer in time")
            raise StreamLostError("the peer did not answer in time") from None

    @property
    def is_usable(self) -> bool:
        """Whether it takes requests at all."""
        return self._is_usable

    @property
    def has_room(self) -> bool:
        """Whether it takes one more request, and begins it soon."""
        if not self._is_usable or len(self._waiting) + len(self._open) >= OPEN_COUNT_MAX:
            return False
        waiting = self._waiting
        return not waiting or self._loop.time() - waiting[0].asked_s < _WAIT_MAX_S

    @property
    def patience_ticks(self) -> int:
        """As calls have it: whoever waits for a frozen owner is to learn of the next one."""
        return _WAITING_TICKS if self._open else SILENT_TICKS

    @property
    def open_count(self) -> int:
        """Requests that were begun and are not answered."""
        return len(self._open)

    def ask(self, code: int, body: bytes) -> OpenCall:
        """Send a request, or keep it until it can be sent; `has_room` was asked."""
        assert self.has_room, "asked before"
        call = OpenCall(self, code, body)
        self._waiting.append(call)
        try:
            self._begin_waiting()
        except Exception:
            self.forget(call)  # its caller may ask again
            raise
        return call

    def forget(self, call: OpenCall) -> None:
        """Its caller has given it up: it is not begun any more, or nobody takes its answer."""
        if call.number == 0:
            if call in self._waiting:
                self._waiting.remove(call)
        elif self._open.get(call.number) is call:
            self._open[call.number] = None

    def retire(self, why: str) -> None:
        """Take no more requests; what waits goes as calls, and the stream ends with its answers."""
        if not self._is_usable:
            return
        self._is_usable = False
        while self._waiting:
            self._waiting.popleft().on_error(NeverBegunError(why))
        self._on_over(self)
        if not self._open:
            self.close_soon()

    # --- StandingConnection ----------------------------------------------------------------------

    def on_headers(self, headers: list[tuple[str, str]]) -> None:
        """The peer takes the stream, or does not."""
        refusal = find_refusal(headers)
        if refusal is not None:
            self.break_off(refusal)
            return
        self._is_usable = True
        if not self._opened.done():
            self._opened.set_result(None)

    def on_message(self, message: Message) -> None:
        """An answer, or the word that no more requests are begun."""
        self._taken_bytes += HEAD_BYTES + len(message.body)
        if self._taken_bytes >= _OPEN_AGAIN_BYTES:
            self.open_window(self._taken_bytes)
            self._taken_bytes = 0
        if message.kind is MessageKind.LAST:
            self._on_last(message.number)
            return
        number = message.number
        if number not in self._open:
            raise MessageError(f"an answer to call {number}, which is not open")
        call = self._open[number]
        if call is not None:
            # Before it is closed: of what cannot be read the fate stays open.
            self._give(call, message)
        if not message.has_more:
            del self._open[number]
        if not self._is_usable and not self._open:
            self.close_soon()
        elif self._waiting:
            self._begin_waiting()

    def on_writable(self) -> None:
        """What waits may be begun."""
        if self._waiting and self._is_usable:
            self._begin_waiting()

    def on_tick(self) -> None:
        """What waited for long goes as calls while it has time for that."""
        since_s = self._loop.time() - _WAIT_MAX_S
        while self._waiting and self._waiting[0].asked_s < since_s:
            self._waiting.popleft().on_error(NeverBegunError("the peer takes no requests now"))

    def on_end(self, why: str) -> None:
        """What was begun has an open fate, what waits goes as calls."""
        was_usable, self._is_usable = self._is_usable, False
        if not self._opened.done():
            self._opened.set_exception(StreamLostError(why))
            self._opened.exception()  # who waits for it may have gone
        while self._waiting:
            self._waiting.popleft().on_error(NeverBegunError(why))
        calls = list(self._open.values())
        self._open.clear()
        for call in calls:
            if call is not None:
                call.on_error(StreamLostError(why))
        if was_usable:
            self._on_over(self)

    # --- Requests --------------------------------------------------------------------------------

    def _begin_waiting(self) -> None:
        while self._waiting and self.can_write:
            if self._last_number == NUMBER_MAX:
                self.retire("all numbers are used")
                return
            self._renew_name()
            if not self._open:
                self.expect_answer()
            call = self._waiting.popleft()
            self._last_number = call.number = number = self._last_number + 1
            self._open[number] = call
            self.write(pack_message(MessageKind.REQUEST, number, call.code, call.body))
            call.body = b""

    def _renew_name(self) -> None:
        """Say who calls, where the word before holds no more."""
        if self._name is None:
            return
        named = self._name()
        if named != self._named:
            self._named = named
            self.write(pack_message(MessageKind.IDENTITY, 0, 0, named.encode()))

    def _give(self, call: OpenCall, message: Message) -> None:
        if message.kind is MessageKind.REFUSAL:
            if call.has_part:
                raise MessageError("a refusal of what was answered in part")
            advice_ms, sentence = parse_refusal(message.body)
            call.on_error(AdvisedRefusalError(sentence, advice_ms))
            return
        call.on_answer(message.what, message.body, has_more=message.has_more)
        if call.answer_bytes > FRAME_BYTES_HARD_MAX:
            raise MessageError(f"an answer of more than {FRAME_BYTES_HARD_MAX:,} bytes")

    def _on_last(self, number: int) -> None:
        if number > self._last_number:
            raise MessageError(f"call {number} is the last, and was never asked")
        for above in [one for one in self._open if one > number]:
            call = self._open[above]
            if call is not None and call.has_part:
                raise MessageError(f"call {above} was answered in part, and is not begun")
            del self._open[above]
            if call is not None:
                call.on_error(NeverBegunError("the peer has not begun it"))
        self.retire("the peer begins nothing more")
        if not self._open:
            self.close_soon()
