"""One lane per sequencer: appends that wait are sent together, answers come one by one.

A frame is what arrived while earlier frames were under way; no timer delays anything on the fast
path. FRAME_COUNT_MAX frames are in flight; a frame of which a row is still open after SLOW_S no
longer counts, and the logs that hold it up get frames of their own from then on, so that a log
which is being taken over delays no other. Logs fill frames by turns, and none may hold more than a
third of what is free (SHARE_DIVISOR), so that one log never uses up the room of the others. Nothing
is ever sent twice here: a row that has no answer when its stream ends is uncertain, unless no
connection was made.

Called by `appends`. Source: docs/protocol/wire.md "Sequencer: POST /s/append",
docs/protocol/write.md "Window and flush".
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Final, Protocol

from duramen.errors import DuramenError
from duramen.ids import LogId
from duramen.limits import FRAME_BYTES_MAX
from duramen.runtime.http_client import NoAnswerError, OverloadedError, UnreachableError
from duramen.units import KIB, MIB, MS
from duramen.wire.frame import ROW_COUNT_MAX, FrameError
from duramen.wire.sequencer_calls import (
    NO_OPTIONS,
    Append,
    AppendOptions,
    AppendResult,
    pack_appends,
    parse_results,
    take_frame,
)
from duramen_writeproxy.metrics import FRAMES

_LOG = logging.getLogger(__name__)

FRAME_COUNT_MAX: Final = 4
"""Frames in flight while all is well: enough to keep a sequencer busy, few enough to fill them."""

OPEN_FRAME_COUNT_MAX: Final = 32
"""Frames open per class, those of slow logs and all others: 64 in a lane."""

PIPELINED_BYTES: Final = 256 * KIB
"""While a frame is under way the next one waits until it carries this much: small appends then
share frames, whose fixed cost is most of theirs, and large ones still keep the sequencer busy."""

SLOW_S: Final = 0.02
"""A healthy append takes a few ms; what is open after this long waits for something."""

LANE_BYTES_MAX: Final = 64 * MIB
"""Batches waiting for, or in flight to, one sequencer: beyond it appends are refused."""

SHARE_DIVISOR: Final = 3
"""What one log holds here is at most this part of what nobody holds: alone a quarter of the lane,
as one of n greedy logs 1 / (n + 3) of it. So some room is always left for those who come later."""

GRACE_S: Final = 0.5
"""How long after an append's deadline its answer, which the sequencer bounds, may still come."""

_ROW_BYTES: Final = 12


class Peers(Protocol):
    """The part of `http_client.PeerClient` that a lane uses."""

    def stream(self, url: str, body: bytes, timeout_us: int) -> AsyncIterator[bytes]:
        """POST `body`, give the answer's pieces as they arrive."""
        ...


class LaneTicket:
    """One append in a lane. `future` gets its result, or UnreachableError: never sent.

    `followers` go in the same frame, right behind it: what a frame carries is taken in its order,
    while two frames may overtake one another. `size_bytes` counts them.
    """

    __slots__ = (
        "batch", "deadline", "followers", "future", "is_sent", "log_id", "options", "size_bytes",
    )  # fmt: skip

    def __init__(
        self, log_id: LogId, batch: bytes, deadline: float, options: AppendOptions = NO_OPTIONS
    ) -> None:
        self.log_id = log_id
        self.batch = batch
        self.size_bytes = len(batch)
        self.deadline = deadline
        self.options = options
        self.followers: list[LaneTicket] = []
        self.is_sent = False
        self.future: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()


class _SentFrame:
    """Tickets that were sent together; the open ones are those without an answer."""

    __slots__ = ("is_slow", "lane_class", "open", "started")

    def __init__(self, lane_class: _LaneClass, tickets: list[LaneTicket], started: float) -> None:
        self.lane_class = lane_class
        self.open: dict[int, LaneTicket] = dict(enumerate(tickets))
        self.started = started
        self.is_slow = False


class _LaneClass:
    """What waits, log by log, and what is in flight: of the slow logs or of all others."""

    __slots__ = (
        "frame_count", "turns", "waiting", "waiting_bytes", "waiting_count", "young_count",
    )  # fmt: skip

    def __init__(self) -> None:
        self.turns: deque[LogId] = deque()
        self.waiting: dict[LogId, deque[LaneTicket]] = {}
        self.waiting_bytes = 0
        self.waiting_count = 0
        self.frame_count = 0
        self.young_count = 0

    def push(self, ticket: LaneTicket) -> None:
        tickets = self.waiting.get(ticket.log_id)
        if tickets is None:
            tickets = self.waiting[ticket.log_id] = deque()
            self.turns.append(ticket.log_id)
        tickets.append(ticket)
        self.waiting_bytes += ticket.size_bytes
        self.waiting_count += 1

    def peek(self) -> LaneTicket:
        """What `pop` would take: the oldest of the log whose turn it is."""
        return self.waiting[self.turns[0]][0]

    def pop(self) -> LaneTicket:
        log_id = self.turns.popleft()
        tickets = self.waiting[log_id]
        ticket = tickets.popleft()
        if tickets:
            self.turns.append(log_id)
        else:
            del self.waiting[log_id]
        self.waiting_bytes -= ticket.size_bytes
        self.waiting_count -= 1
        return ticket

    def can_open(self) -> bool:
        if self.frame_count >= OPEN_FRAME_COUNT_MAX or self.young_count >= FRAME_COUNT_MAX:
            return False
        return self.young_count == 0 or self.waiting_bytes >= PIPELINED_BYTES


class Lane:
    """The way to one sequencer."""

    def __init__(
        self, url: str, peers: Peers, find_region: Callable[[], str | None] = lambda: None
    ) -> None:
        self._find_region = find_region
        self._url = f"{url}/s/append"
        self._peers = peers
        self._loop = asyncio.get_running_loop()
        self._fast, self._slow = _LaneClass(), _LaneClass()
        self._slow_logs: Counter[LogId] = Counter()
        self._frames: dict[_SentFrame, asyncio.Task[None]] = {}
        self._held_bytes = 0
        self._held_by_log: dict[LogId, int] = {}
        self._held_count = 0
        self._is_pump_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._frame_count = 0
        self._is_closed = False

    async def append(
        self, log_id: LogId, batch: bytes, deadline: float, options: AppendOptions = NO_OPTIONS
    ) -> AppendResult:
        """Send one batch and wait for what became of it.

        Args:
            deadline: in the loop's time; the sequencer gets what is left of it when it is sent.

        Raises:
            UnreachableError: not sent.
            DuramenError: `overloaded`, `window_full` (too much of this log is here),
                `server_draining` (none of them sent), `append_uncertain` (sent, its fate is open).
        """
        if self._is_closed:
            raise DuramenError("server_draining", "the proxy is stopping")
        ticket = LaneTicket(log_id, batch, deadline, options)
        self._hold(log_id, len(batch))
        try:
            self._enqueue(ticket)
            async with asyncio.timeout_at(deadline + GRACE_S):
                return await ticket.future
        except TimeoutError:
            # The row may stay in the queue for a while: its bytes need not.
            ticket.batch = b""
            if ticket.is_sent:
                raise uncertain("the sequencer did not answer in time") from None
            raise DuramenError("overloaded", "the append could not be sent in time") from None
        finally:
            self._let_go(log_id, len(batch))

    async def append_together(
        self, log_id: LogId, batches: Sequence[tuple[bytes, AppendOptions]], deadline: float
    ) -> list[AppendResult | UnreachableError]:
        """Send batches of one log in one frame, in this order; what became of each.

        Args:
            batches: at least one, together far below a frame.
            deadline: as for `append`, of all of them.

        Raises:
            DuramenError: as `append`, where none of them was sent for lack of room.
        """
        if self._is_closed:
            raise DuramenError("server_draining", "the proxy is stopping")
        tickets = [LaneTicket(log_id, batch, deadline, options) for batch, options in batches]
        first = tickets[0]
        first.followers = tickets[1:]
        first.size_bytes = size_bytes = sum(ticket.size_bytes for ticket in tickets)
        self._hold(log_id, size_bytes)
        try:
            self._enqueue(first)
            left_s = deadline + GRACE_S - self._loop.time()
            await asyncio.wait([ticket.future for ticket in tickets], timeout=left_s)
            return [_read_fate(ticket) for ticket in tickets]
        finally:
            for ticket in tickets:
                ticket.future.cancel()
            self._let_go(log_id, size_bytes)

    def is_idle(self) -> bool:
        """Whether nothing waits and nothing is in flight."""
        return not self._held_count and not self._frames

    def cancel(self) -> None:
        """End the open frames: what they hold is uncertain, what was not sent is refused."""
        if self._timer is not None:
            self._timer.cancel()
        for lane_class in (self._fast, self._slow):
            while lane_class.waiting_count:
                first = lane_class.pop()
                for future in (ticket.future for ticket in (first, *first.followers)):
                    if not future.done():
                        error = DuramenError("server_draining", "the proxy is stopping")
                        future.set_exception(error)
        self._is_closed = True
        for task in self._frames.values():
            task.cancel()

    def statistics(self) -> dict[str, int]:
        """Sizes now and frames since the start."""
        return {
            "waiting": self._fast.waiting_count + self._slow.waiting_count,
            "held": self._held_count,
            "held_bytes": self._held_bytes,
            "held_logs": len(self._held_by_log),
            "open_frames": len(self._frames),
            "slow_logs": len(self._slow_logs),
            "frames": self._frame_count,
        }

    # --- Room ---

    def _hold(self, log_id: LogId, size_bytes: int) -> None:
        free_bytes = LANE_BYTES_MAX - self._held_bytes
        if size_bytes > free_bytes:
            raise DuramenError("overloaded", "too much waits for the log's sequencer")
        held_bytes = self._held_by_log.get(log_id, 0)
        # A log of which nothing is here may put a batch wherever one fits.
        if held_bytes and held_bytes + size_bytes > free_bytes // SHARE_DIVISOR:
            raise DuramenError("window_full", "too much of the log waits for its sequencer")
        self._held_bytes += size_bytes
        self._held_by_log[log_id] = held_bytes + size_bytes
        self._held_count += 1

    def _let_go(self, log_id: LogId, size_bytes: int) -> None:
        self._held_bytes -= size_bytes
        self._held_by_log[log_id] -= size_bytes
        if not self._held_by_log[log_id]:
            del self._held_by_log[log_id]
        self._held_count -= 1

    # --- Collecting ---

    def _enqueue(self, ticket: LaneTicket) -> None:
        self._age_frames()
        where = self._slow if ticket.log_id in self._slow_logs else self._fast
        where.push(ticket)
        # Once per turn of the loop: everything that arrives in this turn goes together.
        if not self._is_pump_due:
            self._is_pump_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._is_pump_due = False
        self._age_frames()
        for lane_class in (self._fast, self._slow):
            while lane_class.waiting_count and lane_class.can_open():
                tickets = list(self._take(lane_class))
                if tickets:
                    self._open(lane_class, tickets)
        if (self._fast.waiting_count or self._slow.waiting_count) and self._timer is None:
            self._timer = self._loop.call_later(SLOW_S / 2, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._pump()

    def _take(self, lane_class: _LaneClass) -> Iterator[LaneTicket]:
        """What fits into one frame, log by log in turns, without what nobody waits for.

        The appends of one log stay in the order of their arrival.
        """
        size = count = 0
        while lane_class.waiting_count:
            ticket = lane_class.peek()
            row_count = 1 + len(ticket.followers)
            size += ticket.size_bytes + row_count * _ROW_BYTES
            # A longer frame is refused as a whole.
            if count and (size > FRAME_BYTES_MAX or count + row_count > ROW_COUNT_MAX):
                return
            lane_class.pop()
            if not ticket.future.done():
                count += row_count
                yield ticket
                yield from ticket.followers

    def _age_frames(self) -> None:
        """Frames that are open for too long stop counting; their logs are slow from now on."""
        before = self._loop.time() - SLOW_S
        for frame in self._frames:
            if frame.started > before:
                # Frames are in the order of their start.
                return
            if not frame.is_slow:
                frame.is_slow = True
                frame.lane_class.young_count -= 1
                self._slow_logs.update(ticket.log_id for ticket in frame.open.values())

    # --- Sending ---

    def _open(self, lane_class: _LaneClass, tickets: list[LaneTicket]) -> None:
        now, region = self._loop.time(), self._find_region()
        appends = []
        for ticket in tickets:
            ticket.is_sent = True
            left_ms = max(1, int((ticket.deadline - now) * 1000))
            options = ticket.options if region is None else ticket.options._replace(region=region)
            appends.append(Append(ticket.log_id, left_ms, ticket.batch, options))
        longest = max(ticket.deadline for ticket in tickets) - now + GRACE_S
        frame = _SentFrame(lane_class, tickets, now)
        lane_class.frame_count += 1
        lane_class.young_count += 1
        self._frame_count += 1
        FRAMES.inc()
        body = pack_appends(appends)
        task = self._loop.create_task(self._carry(frame, body, int(longest * 1e6)))
        self._frames[frame] = task

    async def _carry(self, frame: _SentFrame, body: bytes, timeout_us: int) -> None:
        reason, is_unsent = "the sequencer's answer ended early", False
        refusal: DuramenError | None = None
        try:
            await self._receive(frame, self._peers.stream(self._url, body, timeout_us))
        except UnreachableError as error:
            reason, is_unsent = str(error), True
        except OverloadedError as error:
            advice_ms = error.retry_after_us // MS
            refusal = DuramenError(
                "overloaded", "the log's sequencer has no room", retry_after_ms=advice_ms
            )
        except (NoAnswerError, FrameError) as error:
            _LOG.info("%s: %s", self._url, error)
            reason = f"the sequencer gave no answer ({error})"
        except Exception:
            _LOG.exception("%s: a frame failed", self._url)
        finally:
            self._close(frame, reason, is_unsent=is_unsent, refusal=refusal)

    async def _receive(self, frame: _SentFrame, pieces: AsyncIterator[bytes]) -> None:
        buffer = bytearray()
        try:
            async for piece in pieces:
                buffer += piece
                while (data := take_frame(buffer)) is not None:
                    self._on_results(frame, data)
        finally:
            if isinstance(pieces, AsyncGenerator):
                await pieces.aclose()

    def _on_results(self, frame: _SentFrame, data: bytes) -> None:
        for index, result in parse_results(data):
            ticket = frame.open.pop(index, None)
            if ticket is None:
                raise FrameError(f"row {index} is not open")
            if frame.is_slow:
                self._calm(ticket.log_id)
            if not ticket.future.done():
                ticket.future.set_result(result)

    def _close(
        self, frame: _SentFrame, reason: str, *, is_unsent: bool, refusal: DuramenError | None
    ) -> None:
        for ticket in frame.open.values():
            if frame.is_slow:
                self._calm(ticket.log_id)
            if ticket.future.done():
                continue
            if refusal is not None:
                ticket.future.set_result(refusal)
            else:
                # An error of its own for each: tracebacks would pile up on a shared one.
                fate = UnreachableError(reason) if is_unsent else uncertain(reason)
                ticket.future.set_exception(fate)
        frame.open.clear()
        frame.lane_class.frame_count -= 1
        frame.lane_class.young_count -= not frame.is_slow
        del self._frames[frame]
        self._pump()

    def _calm(self, log_id: LogId) -> None:
        """One row less of a log is overdue; with the last one the log is as fast as any."""
        self._slow_logs[log_id] -= 1
        if self._slow_logs[log_id] <= 0:
            del self._slow_logs[log_id]


class Lanes:
    """All lanes of a proxy; one that was idle for long costs nothing worth keeping a timer for.

    Args:
        find_region: the proxy's region, where sequencers are to know it.
    """

    def __init__(self, peers: Peers, find_region: Callable[[], str | None] = lambda: None) -> None:
        self._peers = peers
        self._find_region = find_region
        self._lanes: dict[str, Lane] = {}
        self._is_closed = False

    def lane_of(self, url: str) -> Lane:
        """The lane to the sequencer at `url`; closed, too, once all were."""
        lane = self._lanes.get(url)
        if lane is None:
            lane = self._lanes[url] = Lane(url, self._peers, self._find_region)
            if self._is_closed:
                lane.cancel()
        return lane

    def keep_only(self, urls: set[str]) -> None:
        """Drop idle lanes to sequencers that are not there any more."""
        for url in [url for url in self._lanes if url not in urls]:
            if self._lanes[url].is_idle():
                del self._lanes[url]

    def cancel(self) -> None:
        """End every open frame, and send none any more."""
        self._is_closed = True
        for lane in self._lanes.values():
            lane.cancel()

    def statistics(self) -> dict[str, Any]:
        """Each lane's, by url."""
        return {url: lane.statistics() for url, lane in self._lanes.items()}


def _read_fate(ticket: LaneTicket) -> AppendResult | UnreachableError:
    """What became of a ticket whose time is over, if not before."""
    future = ticket.future
    if not future.done() or future.cancelled():
        if ticket.is_sent:
            return uncertain("the sequencer did not answer in time")
        return DuramenError("overloaded", "the append could not be sent in time")
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, DuramenError | UnreachableError):
        return error
    raise error


def uncertain(reason: str) -> DuramenError:
    """The answer for an append that was sent and whose fate is open."""
    return DuramenError(
        "append_uncertain", f"{reason}: the append may or may not be in the log; read to find out"
    )
