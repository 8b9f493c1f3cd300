"""Streams of records: all there are up to a bound or the tail, and on while something comes.

One loop for NDJSON and server-sent events; `stream_forms` makes the bytes. A stream without notes
that ends properly is complete: whatever keeps it from its end breaks the connection instead. One
with notes tells what is missing and goes on, shows that it is alive, and says why it ends.

`ClientStream` is the response: it ends when its client goes, and a client that takes nothing for
long is cut off. Called by the REST routes. Source: docs/protocol/read-answers.md.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final

from fastapi import Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from duramen.errors import DuramenError
from duramen.runtime.admin import problem_response
from duramen.runtime.reading.bookies import read_clock_us
from duramen.runtime.reading.log_reader import DataLost, Truncated
from duramen.runtime.reading.tail import Tail
from duramen.units import SECOND
from duramen_readproxy.following.places import ReadingPlace
from duramen_readproxy.following.presence import Presence
from duramen_readproxy.following.record_reader import RecordReader
from duramen_readproxy.following.stream_forms import (
    CATCH_UP_STEP,
    TAIL_STEP,
    StreamForm,
    encode_event,
)
from duramen_readproxy.parameters import Form, ReadRequest
from duramen_readproxy.requests import OpenRequest

HEARTBEAT_US: Final = 5 * SECOND
"""How long a stream with notes is silent: well below the idle time-outs of load balancers."""

SEND_TIMEOUT_S: Final = 60.0
"""A client that takes not one piece for so long is gone, or might as well be."""


class StreamCounts:
    """Streams that are open, and what was sent on all of them."""

    def __init__(self) -> None:
        self.open_count = 0
        self.sent_bytes = 0
        self.piece_count = 0
        self.cut_off_count = 0
        self._none_open = asyncio.Event()

    async def wait_none(self, timeout_s: float) -> None:
        """Wait until no stream is open, or for so long."""
        if self.open_count:
            self._none_open.clear()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._none_open.wait()
            except TimeoutError:
                return

    def on_open(self) -> None:
        """A stream begins."""
        self.open_count += 1

    def on_close(self) -> None:
        """A stream is over."""
        self.open_count -= 1
        if self.open_count == 0:
            self._none_open.set()

    def statistics(self) -> dict[str, int]:
        """See the class."""
        return {
            "open": self.open_count,
            "sent_bytes": self.sent_bytes,
            "pieces": self.piece_count,
            "cut_off": self.cut_off_count,
        }


async def stream_records(
    reader: RecordReader,
    form: StreamForm,
    wanted: ReadRequest,
    find_reach: Callable[[], Awaitable[Tail]],
    is_stopping: Callable[[], bool],
    *,
    request: OpenRequest,
) -> AsyncGenerator[bytes, None]:
    """The pieces of a stream, to its end.

    Args:
        request: is told the first piece, and why the stream does not come to its end.

    Raises:
        DuramenError: what ends the stream before its end; one of a form with notes says it there.
    """
    is_begun = False
    place = reader.place
    assert place is not None, "streams take turns"
    try:
        stream = _Stream(reader, form, wanted, find_reach, is_stopping, place=place)
        async with reader, contextlib.aclosing(stream.run()) as pieces:
            async for piece in pieces:
                if not is_begun:
                    request.waited_us = reader.waited_us
                    request.note_answer()
                place.lend()
                yield piece if is_begun else form.opening + piece
                place.take_back()
                is_begun = True
    except DuramenError as error:
        request.fail(error)
        is_refused = reader.call is not None and reader.call.refusal is error
        is_told = wanted.form is Form.EVENTS or (is_refused and wanted.has_notes)
        if not is_told or not is_begun:
            raise
        if wanted.form is Form.EVENTS:
            yield encode_event("error", error.problem(), None)
        else:
            yield form.encode_note("error", error.problem())


class _Stream:
    """The loop of one stream, and since when nothing came."""

    def __init__(
        self,
        reader: RecordReader,
        form: StreamForm,
        wanted: ReadRequest,
        find_reach: Callable[[], Awaitable[Tail]],
        is_stopping: Callable[[], bool],
        *,
        place: ReadingPlace,
    ) -> None:
        self._reader = reader
        self._place = place
        self._form = form
        self._wanted = wanted
        self._find_reach = find_reach
        self._is_stopping = is_stopping
        self._ends_us = 0

    async def run(self) -> AsyncGenerator[bytes, None]:
        form, reader, place = self._form, self._reader, self._place
        self._rest()
        if note := form.note_moved():
            yield note
        reason: str | None = "limit" if form.is_full else None
        if reason is None and place.found is not None and self._wanted.wait_us > 0:
            # It begins at the end, which was found for it: it has nothing to catch up with.
            yield form.note_tail(place.found)
            await reader.follow(place.found)
        while reason is None:
            try:
                delivered = await reader.take(form.wanted_seq_num, self._deadline_us())
            except (Truncated, DataLost) as gap:
                yield self._pass(gap)
                continue
            if delivered is not None:
                is_at_tail = reader.is_at_tail
                for step in form.add(delivered, TAIL_STEP if is_at_tail else CATCH_UP_STEP):
                    if isinstance(step, asyncio.Event):
                        await step.wait()  # somebody makes what is wanted next
                    elif step:
                        yield step
                    elif is_at_tail:
                        await asyncio.sleep(0)  # one of them makes a large entry, for all
                    if not is_at_tail:
                        await place.rest()
                self._rest()
                reason = self._find_reason()
            elif reader.is_following or reader.is_out:
                reason = self._find_reason()
                if reason is None:
                    yield form.note_nothing()
            else:
                tail = reader.end
                if tail is None:
                    tail = await self._find_reach()
                    if await reader.on_tail(tail):
                        continue
                if reader.is_at_end_of_stream or self._wanted.wait_us == 0:
                    tail.check_sure()  # a stream that ends properly is complete
                    reason = "ended" if reader.is_at_end_of_stream else "tail"
                    continue
                yield form.note_tail(tail) if tail.is_sure else form.note_nothing()
                await reader.follow(tail)
        yield form.note_end(reason, is_final=reason != "stopping")

    def _rest(self) -> None:
        """Something came: the time in which something must come begins."""
        self._ends_us = read_clock_us() + self._wanted.wait_us

    def _deadline_us(self) -> int:
        heartbeat_us = read_clock_us() + HEARTBEAT_US
        if not self._reader.is_at_tail or self._reader.is_out:
            return heartbeat_us
        return min(self._ends_us, heartbeat_us) if self._wanted.has_notes else self._ends_us

    def _find_reason(self) -> str | None:
        """Why the stream ends now; None while it does not.

        Raises:
            DuramenError: its caller may read no more; or it cannot end as it should.
        """
        if self._reader.call is not None:
            self._reader.call.check()
        if self._form.is_full:
            return "limit"
        if self._reader.is_at_end_of_stream:
            return "ended"
        if self._is_stopping() or self._is_leaving():
            is_behind = self._reader.is_out or not self._reader.is_following
            if is_behind and not self._wanted.has_notes:
                raise DuramenError("server_draining", "this read proxy is stopping")
            return "stopping"
        if self._reader.is_at_tail and not self._reader.is_out and self._is_quiet():
            return "quiet"
        return None

    def _is_quiet(self) -> bool:
        return read_clock_us() >= self._ends_us

    def _is_leaving(self) -> bool:
        return self._reader.call is not None and self._reader.call.is_leaving

    def _pass(self, gap: Truncated | DataLost) -> bytes:
        if not self._wanted.has_notes:
            raise gap
        if isinstance(gap, Truncated):
            return self._form.pass_truncated(gap.left_seq_num)
        self._reader.pass_loss(gap)
        return self._form.pass_lost(gap)


class ClientStream(StreamingResponse):
    """A stream that ends when its client goes, or takes nothing for `SEND_TIMEOUT_S`.

    Its head goes out with the first byte: what fails before is answered as a problem.
    """

    presence: Presence
    counts: StreamCounts
    pieces: AsyncGenerator[bytes, None]
    request: OpenRequest
    form: str
    _is_begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the pieces; what making them raises breaks a connection on which some were sent."""
        self.counts.on_open()
        try:
            await self.stream_response(send)
        except DuramenError as error:
            self.request.fail(error)
            if self._is_begun:
                raise
            await problem_response(error)(scope, receive, send)
        except BaseException as error:
            self.request.fail(error)
            if not (isinstance(error, asyncio.CancelledError) and self.presence.is_gone):
                raise
            self.presence.take_back()
        finally:
            self.presence.end()
            try:
                await self.pieces.aclose()  # what it holds is freed now, not when it is collected
            finally:
                self.request.end()
                self.counts.on_close()

    async def stream_response(self, send: Send) -> None:
        """As Starlette's, but a client that does not read ends it."""
        counts = self.counts
        async for piece in self.body_iterator:
            if not piece:
                continue
            try:
                async with asyncio.timeout(SEND_TIMEOUT_S):
                    await self._begin(send)
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            except TimeoutError:
                counts.cut_off_count += 1
                raise
            counts.piece_count += 1
            counts.sent_bytes += len(piece)
            self.request.note_sent(self.form, len(piece))
        await self._begin(send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _begin(self, send: Send) -> None:
        if not self._is_begun:
            self._is_begun = True
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})


async def unless_gone(
    receive: Receive, work: Awaitable[Response], request: OpenRequest
) -> Response:
    """The answer; work for a client that has gone is cancelled, and what it held is freed."""
    presence = Presence(receive)
    response: Response | None = None
    try:
        response = await work
    except asyncio.CancelledError as error:
        if not presence.is_gone:
            raise
        presence.take_back()
        request.fail(error)
        return Response(status_code=499)  # nobody reads it
    finally:
        if isinstance(response, ClientStream):
            response.presence = presence
        else:
            presence.end()
    return response
