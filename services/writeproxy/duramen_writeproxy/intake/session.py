"""One pipelined append session: batches come up, one answer for each goes down, in their order.

What is read of the body waits in a queue that is bounded in batches and in bytes; while it is full
the body is not read, so that the client's own connection holds it back. What waits goes to the
sequencer as one group, the next group when the last one was answered: that keeps the order, and a
group is whatever arrived meanwhile. A batch that is refused stands alone. The session ends early,
with a last answer that says `session_ended`, when a batch is uncertain, when its body cannot be cut
or decoded any more, when the proxy stops, and when its caller may append no more: nothing behind
that answer was taken.

Called by `stream_route`. Source: docs/protocol/rest.md "Append sessions".
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

import orjson

from duramen.errors import DuramenError
from duramen.limits import ENTRY_TARGET_BYTES
from duramen.runtime.rest import BODY_TIMEOUT_S
from duramen.units import MIB
from duramen.wire.edge.batch_stream import Units
from duramen_writeproxy.append_route import encode_appended
from duramen_writeproxy.appends import OrderedBatch
from duramen_writeproxy.intake.budget import BudgetShare
from duramen_writeproxy.intake.settling import Outcome
from duramen_writeproxy.metrics import APPEND_SECONDS, APPENDS

_LOG = logging.getLogger(__name__)

WAITING_COUNT_MAX: Final = 512
WAITING_BYTES_MAX: Final = 16 * MIB
"""Batches of one session that wait or are under way; one that is larger comes in alone."""

GROUP_COUNT_MAX: Final = 64
GROUP_BYTES_MAX: Final = ENTRY_TARGET_BYTES
"""Batches that are sent together: as many as a log keeps results of a producer, so that a group
which is repeated has all its positions; and more bytes in one go gain nothing any more."""

IDLE_S: Final = 300.0
"""A session in which nothing has begun for so long is over: its connection may be dead."""

_TURN_COUNT: Final = 32
"""Batches that are prepared in one go: a millisecond or two."""

Piece = tuple[bytes, bool] | None
"""The next bytes of the body and whether more follow; None: the client is gone."""


class _WaitingBatch(NamedTuple):
    """A batch that was read, or what is wrong with it."""

    batch: OrderedBatch | DuramenError
    body_bytes: int
    size_bytes: int
    read_at: float


class AppendSession:
    """One session.

    Args:
        units: cuts the body.
        prepare: makes a batch of a unit, or raises DuramenError.
        append: appends a group in its order.
        share: what the session holds of the process's room; closed with the session.
    """

    def __init__(
        self,
        units: Units,
        prepare: Callable[[bytes], Awaitable[OrderedBatch]],
        append: Callable[[Sequence[OrderedBatch]], Awaitable[list[Outcome]]],
        share: BudgetShare,
    ) -> None:
        self._units = units
        self._prepare = prepare
        self._append = append
        self._share = share
        self._queue: deque[_WaitingBatch] = deque()
        self._held_count = 0
        self._held_bytes = 0
        self._ending: DuramenError | None = None
        self._is_read = False
        self._is_whole = False
        self._is_gone = False
        self._is_stopped = False
        self._begun_at: float | None = None
        """When the first byte of the batch that is arriving was read."""
        self._has_changed = asyncio.Event()
        self._has_room = asyncio.Event()

    async def run(
        self, receive: Callable[[], Awaitable[Piece]], send: Callable[[bytes], Awaitable[None]]
    ) -> None:
        """Serve the session until its end.

        Args:
            receive: the next piece of the body; may raise DuramenError.
            send: takes whole lines of the answer.
        """
        reading = asyncio.create_task(self._read(receive))
        try:
            await self._answer_all(send)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            self._share.close()

    @property
    def is_body_read(self) -> bool:
        """Whether the body's end was read, or nobody is there to send it."""
        return self._is_gone or self._is_whole

    def stop(self, reason: DuramenError) -> None:
        """End the session behind the group that is under way; its last line says why."""
        self._ending = reason
        self._is_stopped = True
        self._has_changed.set()

    def statistics(self) -> dict[str, int]:
        """Batches that wait or are under way, their bytes, and bytes of one that is not whole."""
        return {
            "batches": self._held_count,
            "batch_bytes": self._held_bytes,
            "partial_bytes": self._units.kept_bytes,
        }

    # --- Reading ---

    async def _read(self, receive: Callable[[], Awaitable[Piece]]) -> None:
        try:
            while await self._read_piece(receive):
                pass
        except DuramenError as error:
            self._ending = self._ending or error
        except Exception:
            _LOG.exception("a session's body could not be read")
            self._ending = self._ending or DuramenError("internal", "see the server's log")
        self._is_read = True
        self._has_changed.set()

    async def _read_piece(self, receive: Callable[[], Awaitable[Piece]]) -> bool:
        """Read the next piece and queue its batches; whether more follows."""
        piece = await self._wait_piece(receive)
        if piece is None:
            return False
        body, has_more = piece
        await self._wait_budget(len(body))
        self._units.feed(body)
        if not has_more:
            self._is_whole = True
            self._units.end()
        is_any = False
        while (unit := self._units.take()) is not None:
            is_any = True
            await self._push(*unit)
        if not self._units.kept_bytes:
            self._begun_at = None
        elif is_any or self._begun_at is None:
            self._begun_at = asyncio.get_running_loop().time()
        return has_more

    async def _wait_piece(self, receive: Callable[[], Awaitable[Piece]]) -> Piece:
        """The next piece; None where there is nobody to wait for any longer.

        A batch that has begun has so long to be whole as the body of any request: pieces of it that
        drip in do not make it longer.
        """
        loop = asyncio.get_running_loop()
        begun_at = self._begun_at
        until = loop.time() + IDLE_S if begun_at is None else begun_at + BODY_TIMEOUT_S
        try:
            async with asyncio.timeout_at(until):
                piece = await receive()
        except TimeoutError:
            if begun_at is not None:
                detail = "the batch did not arrive in time"
                raise DuramenError("invalid_argument", detail) from None
            return None
        self._is_gone = piece is None
        return piece

    async def _wait_budget(self, size_bytes: int) -> None:
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                await self._share.wait_piece(size_bytes)
        except TimeoutError:
            detail = "too many bytes are in flight in this proxy"
            raise DuramenError("overloaded", detail) from None

    async def _push(self, unit: bytes, body_bytes: int) -> None:
        """Queue a unit's batch once there is room for it."""
        self._share.finish_arriving(body_bytes)
        if not unit:
            self._share.give(body_bytes)
            return
        while self._held_count and (
            self._held_count >= WAITING_COUNT_MAX
            or self._held_bytes + body_bytes > WAITING_BYTES_MAX
        ):
            self._has_room.clear()
            await self._has_room.wait()
        batch: OrderedBatch | DuramenError
        try:
            batch = await self._prepare(unit)
            size_bytes = len(batch.batch)
        except DuramenError as error:
            batch, size_bytes = error, 0
        self._held_count += 1
        self._held_bytes += body_bytes
        self._queue.append(_WaitingBatch(batch, body_bytes, size_bytes, time.perf_counter()))
        self._has_changed.set()
        if len(self._queue) % _TURN_COUNT == 0:
            # What came in one piece may be ten thousand batches: others have their turn, too.
            await asyncio.sleep(0)

    # --- Appending ---

    async def _answer_all(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        while not self._is_stopped and not self._is_gone:
            if not self._queue:
                if self._is_read:
                    break
                self._has_changed.clear()
                await self._has_changed.wait()
                continue
            group = self._take_group()
            outcomes = await self._append_group(group)
            await send(b"".join([_encode_line(outcome) for outcome in outcomes]))
            self._release(group)
            if any(_is_uncertain(outcome) for outcome in outcomes):
                self._end_behind_doubt()
                break
        if self._ending is not None and not self._is_gone:
            await send(_encode_ending(self._ending))

    def _take_group(self) -> list[_WaitingBatch]:
        """The batches that go together: the first ones, up to one that cannot be appended."""
        group = [self._queue.popleft()]
        if isinstance(group[0].batch, DuramenError):
            return group
        size_bytes = group[0].size_bytes
        while self._queue and len(group) < GROUP_COUNT_MAX:
            following = self._queue[0]
            size_bytes += following.size_bytes
            if isinstance(following.batch, DuramenError) or size_bytes > GROUP_BYTES_MAX:
                break
            group.append(self._queue.popleft())
        return group

    async def _append_group(self, group: Sequence[_WaitingBatch]) -> list[Outcome]:
        outcomes: list[Outcome]
        batches = [waiting.batch for waiting in group]
        if isinstance(batches[0], DuramenError):
            outcomes = [batches[0]]
        else:
            try:
                outcomes = await self._append([b for b in batches if isinstance(b, OrderedBatch)])
            except Exception:
                _LOG.exception("a group of a session failed")
                mistake = DuramenError("internal", "see the server's log", uncertain=True)
                outcomes = [mistake] * len(group)
        answered_at = time.perf_counter()
        for waiting, outcome in zip(group, outcomes, strict=True):
            APPEND_SECONDS.observe(answered_at - waiting.read_at)
            APPENDS.labels(outcome.code if isinstance(outcome, DuramenError) else "ok").inc()
        return outcomes

    def _release(self, group: Sequence[_WaitingBatch]) -> None:
        body_bytes = sum(waiting.body_bytes for waiting in group)
        self._held_count -= len(group)
        self._held_bytes -= body_bytes
        self._share.give(body_bytes)
        self._has_room.set()

    def _end_behind_doubt(self) -> None:
        """A batch is uncertain: it may come into the log at any time, so nothing may follow it."""
        if self._queue or not self._is_read:
            self._ending = DuramenError(
                "log_unavailable",
                "a batch of this session is uncertain: nothing from here on was appended",
            )


def _is_uncertain(outcome: Outcome) -> bool:
    return isinstance(outcome, DuramenError) and outcome.uncertain


def _encode_line(outcome: Outcome) -> bytes:
    if isinstance(outcome, DuramenError):
        return orjson.dumps(outcome.problem(), option=orjson.OPT_APPEND_NEWLINE)
    return encode_appended(outcome) + b"\n"


def _encode_ending(reason: DuramenError) -> bytes:
    problem: dict[str, Any] = {**reason.problem(), "session_ended": True}
    return orjson.dumps(problem, option=orjson.OPT_APPEND_NEWLINE)
