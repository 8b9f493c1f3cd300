"""A connection that carries one standing stream: bytes in and out, signs of life, and the end.

What either side does with messages is its own (`call_stream`, `stream_server`). Time is counted in
ticks of the event loop that came when they were due: while the loop is held, or the process is
stopped, none of it counts against the peer.

Source: docs/protocol/standing-streams.md "Rules" 5 to 7.
"""

from __future__ import annotations

import abc
import asyncio
import logging
import socket
from typing import Final, NamedTuple, cast

from duramen.units import KIB, MIB
from duramen.wire.standing.http2 import Ended, HeadersCame, Http2Error, Http2Pipe, Payload
from duramen.wire.standing.messages import Message, MessageError, MessageReader

_LOG: Final = logging.getLogger(__name__)

TICK_S: Final = 1.0
_OPEN_TICKS: Final = 10
"""For the headers."""

SILENT_TICKS: Final = 10
"""Then a ping; and as many more, then the end."""

_STUCK_TICKS: Final = 20
"""For some of what was sent to be taken, by the socket or by the peer's windows."""

_HALF_TICKS: Final = 30
"""For a message whose head is here to be whole."""

_LINGER_TICKS: Final = 3
"""For the peer to read that nothing follows."""

_AHEAD_BYTES: Final = 64 * KIB
"""What the transport takes before it says that the socket does not."""

UNSENT_BYTES_MAX: Final = 64 * MIB
"""No peer is kept that takes none of what it makes us write, whatever that is."""


class _Departed(NamedTuple):
    """What had left at a tick: `waiting_bytes` lie before the socket, which has taken others."""

    waiting_bytes: int
    taken_bytes: int
    data_bytes: int


class StandingConnection(asyncio.Protocol, abc.ABC):
    """One side of a stream.

    Args:
        is_client: it makes the request.
    """

    def __init__(self, *, is_client: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._pipe = Http2Pipe(is_client=is_client)
        self._reader = MessageReader(is_server=not is_client)
        self._transport: asyncio.Transport | None = None
        self._is_open = False
        self._is_over = False
        self._is_closing = False
        self._has_closed = False
        self._is_paused = False
        self._is_flush_due = False
        self._later_bytes = 0
        self._linger_ticks = 0
        self._age_ticks = 0
        self._silent_ticks = 0
        self._half_ticks = 0
        self._stuck_ticks = 0
        self._written_bytes = 0
        self._progress = _Departed(0, 0, 0)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing comes or goes any more."""
        return self._is_over

    @property
    def unsent_bytes(self) -> int:
        """What was sent and is still here: for the peer's windows, or for the socket."""
        if self._transport is None or self._is_over:
            return 0
        return self._pipe.held_bytes + self._transport.get_write_buffer_size()

    @abc.abstractmethod
    def on_headers(self, headers: list[tuple[str, str]]) -> None:
        """The request is there, or its answer."""

    @abc.abstractmethod
    def on_message(self, message: Message) -> None:
        """One came; raises MessageError if it breaks the stream."""

    @abc.abstractmethod
    def on_end(self, why: str) -> None:
        """Nothing comes or goes any more."""

    @property
    def patience_ticks(self) -> int:
        """For how long the peer may be silent before it is pinged, and then."""
        return SILENT_TICKS

    def on_writable(self) -> None:
        """What was sent has left, or some of it."""

    def on_tick(self) -> None:
        """A second has passed."""

    def break_off(self, why: str) -> None:
        """End the connection at once; what lies in it is lost."""
        if self._is_over:
            return
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        self.on_end(why)

    def close_soon(self) -> None:
        """Write what was sent, say that nothing follows, and end when the peer has read that."""
        if self._is_over or self._is_closing:
            return
        self._is_closing = True
        self._close_if_sent()

    def _close_if_sent(self) -> None:
        """What the peer's windows hold back goes first: the last word may be in it.

        Whoever reads that nothing follows closes. A socket that is closed while something comes
        would be reset, and what was sent last be lost.
        """
        if self._is_over or self._has_closed or self._pipe.held_bytes:
            return
        self._has_closed = True
        self._pipe.close()
        self.flush()

    # --- asyncio.Protocol ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        # uvloop's is none of asyncio's classes.
        self._transport = made = cast(asyncio.Transport, transport)
        made.set_write_buffer_limits(high=_AHEAD_BYTES, low=_AHEAD_BYTES // 2)
        found = made.get_extra_info("socket")
        if found is not None:
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._timer = self._loop.call_later(TICK_S, self._tick)
        self.flush()

    def data_received(self, data: bytes) -> None:
        """Take in what came."""
        self._silent_ticks = 0
        if self._is_over or self._has_closed:
            # What comes behind our last word is not for us; the end of the peer's is told apart.
            return
        try:
            for event in self._pipe.receive(data):
                match event:
                    case Payload(piece=piece):
                        self._take_in(piece)
                    case HeadersCame(headers=headers):
                        self._is_open = True
                        self.on_headers(headers)
                    case Ended(why=why):
                        self.break_off(why)
                    case _:
                        pass
                if self._is_over:
                    return
        except (Http2Error, MessageError) as error:
            _LOG.warning("a standing stream is broken: %s", error)
            self.break_off(f"the stream is broken: {error}")
            return
        self.flush()
        if self._is_closing:
            self._close_if_sent()
        elif not self._pipe.held_bytes:
            self.on_writable()

    def eof_received(self) -> bool:
        """The peer has closed."""
        self.break_off("the peer has closed the connection")
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """The transport is gone."""
        self.break_off("the connection was closed" if error is None else f"{error!r}")

    def pause_writing(self) -> None:
        """The socket takes less than comes."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """It took what waited."""
        self._is_paused = False
        self._silent_ticks = 0
        if not self._is_over:
            self.on_writable()

    # --- Writing ---------------------------------------------------------------------------------

    @property
    def can_write(self) -> bool:
        """Whether what is sent now leaves now."""
        return not (self._is_paused or self._pipe.held_bytes or self._is_over or self._is_closing)

    def write(self, message: bytes) -> None:
        """Send a message; it leaves as windows and socket allow."""
        self._pipe.send(message)
        self.flush()

    def write_later(self, message: bytes) -> None:
        """Send a message together with what follows it in this turn of the loop."""
        self._pipe.send(message)
        self._later_bytes += len(message)
        if self._later_bytes > _AHEAD_BYTES:
            self.flush()
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush_due)

    def _flush_due(self) -> None:
        self._is_flush_due = False
        self.flush()

    def flush(self) -> None:
        """Hand the transport what is to be written."""
        if self._transport is None or self._is_over:
            return
        self._later_bytes = 0
        parts = self._pipe.take()
        if parts:
            self._written_bytes += sum(map(len, parts))
            self._transport.writelines(parts)
        if self.unsent_bytes > UNSENT_BYTES_MAX:
            self.break_off("the peer takes nothing of what it is sent")

    def expect_answer(self) -> None:
        """From now on silence means something."""
        self._silent_ticks = 0

    # --- Reading ---------------------------------------------------------------------------------

    def open_window(self, size_bytes: int) -> None:
        """The peer may send so much more: as much of what it sent was taken."""
        self._pipe.open_window(size_bytes)
        self.flush()

    def _take_in(self, piece: bytes) -> None:
        messages = self._reader.read(piece)
        if messages or self._reader.is_between:
            self._half_ticks = 0
        for message in messages:
            self.on_message(message)
            if self._is_over:
                return

    # --- Time ------------------------------------------------------------------------------------

    def _tick(self) -> None:
        if self._is_over:
            return
        self._timer = self._loop.call_later(TICK_S, self._tick)
        self._age_ticks += 1
        self._silent_ticks += 1
        self._look_at_progress()
        if not self._is_open and self._age_ticks >= _OPEN_TICKS:
            self.break_off("no headers came in time")
        elif self._silent_ticks >= 2 * self.patience_ticks:
            self.break_off("the peer was silent")
        elif self._stuck_ticks >= _STUCK_TICKS:
            self.break_off("the peer takes nothing of what it is sent")
        elif self._silent_ticks == self.patience_ticks:
            self._pipe.ping()
            self.flush()
        if not self._reader.is_between:
            self._half_ticks += 1
            if self._half_ticks > _HALF_TICKS:
                self.break_off("half a message came")
        if self._has_closed:
            self._linger_ticks += 1
            if self._linger_ticks > _LINGER_TICKS:
                self.break_off("the peer does not close")
        if not self._is_over:
            self.on_tick()

    def _look_at_progress(self) -> None:
        """Whether some of what waits for the socket, and for the peer's windows, has left."""
        assert self._transport is not None, "ticks begin with it"
        waiting_bytes = self._transport.get_write_buffer_size()
        before, self._progress = (
            self._progress,
            _Departed(waiting_bytes, self._written_bytes - waiting_bytes, self._pipe.data_bytes),
        )
        now = self._progress
        if before.waiting_bytes and now.taken_bytes > before.taken_bytes:
            self._silent_ticks = 0  # a full socket took some: the peer reads
        is_full = waiting_bytes > 0 and now.taken_bytes == before.taken_bytes
        is_shut = self._pipe.held_bytes > 0 and now.data_bytes == before.data_bytes
        self._stuck_ticks = self._stuck_ticks + 1 if is_full or is_shut else 0
