"""Appends of one log that share one request: an append session, and who waits for what in it.

A request of its own costs each append most of its CPU, at the client and at the proxy. In a session
batches go up as frames, and their answers come down one by one. What it certainly did not take may
be appended by a call; what was given to the connection and has no answer when that breaks is
uncertain.

Made by `client.sharing.append_streams`. Source: docs/protocol/rest.md "Append sessions".
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Final

from duramen.client.rest_client import Appended, RestClient
from duramen.client.sharing.append_session import parse_line, run_session
from duramen.errors import DuramenError, Retry
from duramen.runtime.http_client import PeerError
from duramen.units import MIB
from duramen.wire.edge.batch_stream import StreamedBatch, pack_streamed

_LOG = logging.getLogger(__name__)

OPEN_COUNT_MAX: Final = 64
OPEN_BYTES_MAX: Final = 1 * MIB
"""As much as a proxy sends on together: no more than one group is ever before the next."""
UNSENT_S: Final = 1.0
"""What the connection does not take by then goes by a call."""
IDLE_S: Final = 1.0
LIFE_S: Final = 120.0
"""Then another is opened, where more appends come: proxies come and go behind one address."""
OPEN_S: Final = 5.0


class NotTakenError(Exception):
    """The session certainly did not append the batch: a call may."""


class _SharedAppend:
    """One batch in a session."""

    __slots__ = ("frame", "future", "is_sent", "size_bytes")

    def __init__(self, frame: bytes) -> None:
        self.frame = frame
        self.size_bytes = len(frame)
        self.is_sent = False
        self.future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()

    def give_up_unsent(self) -> None:
        """It is not to be sent any more, unless it was."""
        if not self.is_sent:
            self.frame = b""
            if not self.future.done():
                self.future.set_exception(NotTakenError())


class AppendStream:
    """One session of one log, from its opening to its end.

    Args:
        proxy: where it is opened.
        timeout_s: of each append.
    """

    def __init__(self, proxy: RestClient, log: tuple[str, str], timeout_s: float) -> None:
        self._proxy = proxy
        self._log = log
        self._timeout_s = timeout_s
        self._queue: deque[_SharedAppend] = deque()
        self._sent: deque[_SharedAppend] = deque()
        self._open_bytes = 0
        self._has_more = asyncio.Event()
        self._is_opened = False
        self.is_closing = False
        """Whether it takes nothing any more."""
        self._timer: asyncio.TimerHandle | None = None
        """Closes it when nobody uses it; once it is closing, ends it."""
        self.has_failed = False
        """Whether it never opened, or broke: the log is better left to calls for a while."""
        self.task = asyncio.create_task(self._run())

    def has_room(self) -> bool:
        """Whether it is open and takes another batch; what was given up counts until its answer."""
        is_open = self._is_opened and not self.is_closing
        has_place = len(self._queue) + len(self._sent) < OPEN_COUNT_MAX
        return is_open and has_place and self._open_bytes < OPEN_BYTES_MAX

    async def append(self, streamed: StreamedBatch) -> Appended:
        """Append one batch; `has_room` was asked.

        Raises:
            NotTakenError: nothing was appended, and nothing will be.
            DuramenError: refused; with `uncertain` set it may or may not be stored.
        """
        waiting = _SharedAppend(pack_streamed(streamed))
        self._queue.append(waiting)
        self._open_bytes += waiting.size_bytes
        self._has_more.set()
        self._watch_idleness()
        unsent = asyncio.get_running_loop().call_later(UNSENT_S, waiting.give_up_unsent)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await waiting.future
        except TimeoutError:
            # Whoever comes next had better not wait here, too.
            self.has_failed = True
            self.close()
            if waiting.is_sent:
                raise _uncertain("it did not answer in time") from None
            raise NotTakenError from None
        finally:
            unsent.cancel()
            # What nobody waits for is not sent.
            waiting.give_up_unsent()
            self._watch_idleness()

    def close(self) -> None:
        """Take nothing more, and end when what was sent is answered, or has waited long enough."""
        if self.is_closing:
            return
        self.is_closing = True
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._timeout_s + OPEN_S, self.task.cancel)
        self._has_more.set()

    async def wait_closed(self) -> None:
        """Until it has ended, whatever its proxy does: a few seconds at most."""
        self.close()
        await asyncio.wait([self.task], timeout=OPEN_S)
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    def _watch_idleness(self) -> None:
        if self.is_closing:
            return
        if self._timer is not None:
            self._timer.cancel()
        is_idle = not self._queue and not self._sent
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(IDLE_S, self.close) if is_idle else None

    # --- The session ---

    async def _run(self) -> None:
        aging = asyncio.get_running_loop().call_later(LIFE_S, self.close)
        why = "the session ended without an answer"
        try:
            lines = run_session(
                self._proxy, self._log, self._frames(), open_s=OPEN_S,
                group_s=self._timeout_s / 3,
            )  # fmt: skip
            async with aclosing(lines):
                async for line in lines:
                    if not line:
                        self._is_opened = True
                        self._watch_idleness()
                    elif not self._settle(line):
                        # Of what has no answer nothing was appended, and nothing will be.
                        self.has_failed = True
                        self.close()
                        self._end(None)
                        break
            self.has_failed |= bool(self._sent)
        except (DuramenError, PeerError) as error:
            self.has_failed = True
            why = str(error)
        except Exception:
            # A mistake of ours: nobody may wait for ever because of it.
            self.has_failed = True
            _LOG.exception("an append session failed")
        finally:
            aging.cancel()
            self.close()
            if self._timer is not None:
                self._timer.cancel()
            self._end(why)

    async def _frames(self) -> AsyncIterator[bytes]:
        """The body: what waits, as one piece; it ends when the session is to end."""
        while True:
            while not self._queue and not self.is_closing:
                self._has_more.clear()
                await self._has_more.wait()
            pieces = []
            while self._queue:
                waiting = self._queue.popleft()
                if waiting.future.done():
                    self._open_bytes -= waiting.size_bytes
                    continue
                waiting.is_sent = True
                self._sent.append(waiting)
                pieces.append(waiting.frame)
                waiting.frame = b""
            self._watch_idleness()
            if pieces:
                yield b"".join(pieces)
            elif self.is_closing:
                return

    def _settle(self, line: bytes) -> bool:
        """One answer; False: nothing from there on was appended."""
        found = parse_line(line)
        if found is None:
            return False
        if not self._sent:
            raise PeerError("an answer to nothing")
        waiting = self._sent.popleft()
        self._open_bytes -= waiting.size_bytes
        if isinstance(found, DuramenError) and found.kind.retry is Retry.AFTER:
            # The proxy tried it again for as long as it may, with all that wait behind it.
            self.has_failed = True
            self.close()
        if waiting.future.done():
            pass
        elif isinstance(found, DuramenError):
            waiting.future.set_exception(found)
        else:
            waiting.future.set_result(found)
        self._watch_idleness()
        return True

    def _end(self, why: str | None) -> None:
        """What was sent is uncertain, and why; None: it was not appended. The rest was not sent."""
        for waiting in (*self._sent, *self._queue):
            if not waiting.future.done():
                is_open = why is not None and waiting.is_sent
                waiting.future.set_exception(_uncertain(str(why)) if is_open else NotTakenError())
        self._sent.clear()
        self._queue.clear()


def _uncertain(why: str) -> DuramenError:
    return DuramenError("append_uncertain", f"an append session: {why}")
