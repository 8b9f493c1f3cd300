"""One reader upstream for all who tail a log: the feed.

The feed of a log follows it with a cursor of its own: one long poll at the bookies, one look at the
metadata and one wait at its owner (`owner_follower`), however many readers wait. What it delivers
is noted in a window (`core.reading`), its bytes lie in the cache, and everybody who waits is woken.
A reader costs the feed nothing: who is slow falls out of the window and reads by itself, from cache
or bookies, until it has caught up. A feed ends when the last reader is gone for a moment, when the
log has ended, or when what comes next was truncated or lost: then each reader finds out for itself.

Not here: what a reader does with entries (`record_reader`). One `Feeds` per process.
Source: docs/protocol/read-answers.md "Who shares what", docs/protocol/reading.md "Long polls".
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Final

from duramen.core.reading.feed_window import WINDOW_COUNT_MAX, FedEntry, FeedWindow, Position
from duramen.core.reading.read_ahead import ReaderLimits
from duramen.errors import DuramenError
from duramen.ids import LogId
from duramen.runtime.admission.callers import AdmittedCall
from duramen.runtime.reading.bookies import RangeFetcher, read_clock_us
from duramen.runtime.reading.log_reader import DataLost, LogCursor, Truncated
from duramen.runtime.reading.metadata import LogFollower
from duramen.runtime.reading.tail import Tail
from duramen.units import KIB, MIB
from duramen.wire.entry import read_entry_info
from duramen.wire.sequencer_calls import OpenLac
from duramen_readproxy.following.owner_follower import AskOwners, OwnerCalls, OwnerFollower
from duramen_readproxy.following.waiting_room import WaitingRoom

LINGER_S: Final = 2.0
"""How long a feed waits for another reader: whoever polls comes back at once."""

IDLE_COUNT_MAX: Final = 256
"""Feeds that wait so; one more ends at once."""

_LIMITS: Final = ReaderLimits(range_bytes=1 * MIB, buffer_bytes=2 * MIB, poll_bytes=512 * KIB)


class LogFeed:
    """The feed of one log, from a position on.

    Args:
        position: (epoch, entry) of the first entry that is fed, as who starts it knows it.
        seq_num: of its first record.
    """

    def __init__(
        self,
        follower: LogFollower,
        fetcher: RangeFetcher,
        calls: OwnerCalls,
        position: Position,
        seq_num: int,
    ) -> None:
        self.log_id = follower.log_id
        self.window = FeedWindow(position, WINDOW_COUNT_MAX)
        self.reader_count = 0
        self.tail: Tail | None = None
        """The end of the window, where that is the end of what may be shown."""
        self.is_ended = False
        """Whether all of an ended log was fed."""
        self._seq_num = seq_num
        self._failure: DuramenError | None = None
        self._is_stopping = False
        self.room = WaitingRoom()
        """Those who wait for more."""
        self._follower = follower
        self._cursor = LogCursor(follower, fetcher, position, _LIMITS)
        self._owner_follower = OwnerFollower(
            self.log_id, calls, self._find_known, self._cursor.learn_owner_lac
        )
        self._task = asyncio.create_task(self._run())

    @property
    def is_over(self) -> bool:
        """Whether nothing is added any more."""
        return self._task.done()

    def nudge(self) -> None:
        """Somebody may know a higher LAC: the feed need not wait to be told it by a bookie."""
        self._cursor.learn_known()

    async def wait(
        self, position: Position, deadline_us: int, call: AdmittedCall | None = None
    ) -> Sequence[FedEntry] | None:
        """The entries from a position on, as soon as there are some.

        Args:
            call: who waits; None: nobody is asked who it is.

        Returns:
            Entries of one segment; none after the deadline, at the end of an ended log, or when
            the process stops or the call is leaving. None: the reader must read by itself.

        Raises:
            DuramenError: the feed could not go on, and why; or the call may not.
        """
        while True:
            if call is not None:
                call.check()
            found = self.window.take(position)
            if found or found is None:
                return found
            if self._failure is not None:
                raise DuramenError(self._failure.code, self._failure.detail)
            is_over = self._is_stopping or (call is not None and call.is_leaving)
            if self.is_ended or is_over or read_clock_us() >= deadline_us:
                return ()
            if self.is_over:
                return None
            # By hand, because thousands wait here: a future each, and nothing else,
            # not even the number that says when it began to.
            waiter = self.room.enter(deadline_us, read_clock_us())
            if call is not None:
                call.watch(partial(_wake, waiter))
            try:
                await waiter
            finally:
                self.room.leave(waiter, deadline_us)
                if call is not None:
                    call.watch(None)

    def stop_waiting(self) -> None:
        """Nobody waits here any more."""
        self._is_stopping = True
        self.room.wake_all()

    async def stop(self) -> None:
        """Give up the long poll."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            async with self._cursor as cursor:
                cursor.follow()
                self._owner_follower.begin()
                try:
                    await self._take_all(cursor)
                finally:
                    self._owner_follower.end()
                self.is_ended = True
        except (Truncated, DataLost):
            pass  # each reader comes to it by itself, and tells its client
        except DuramenError as error:
            self._failure = error
        finally:
            # Only now is the task done, for all who look: they run after this returned.
            self.room.wake_all()

    async def _take_all(self, cursor: LogCursor) -> None:
        while (delivered := await cursor.take(self._seq_num)) is not None:
            last = read_entry_info(delivered.entries[-1][1])
            self._seq_num = delivered.start_seq_num + last.totals.record_count
            self.window.add(
                delivered.epoch,
                delivered.start_seq_num,
                [entry_id for entry_id, _ in delivered.entries],
            )
            self.tail = cursor.tail
            self.room.wake_all()
            self._owner_follower.begin()

    def _find_known(self) -> OpenLac:
        epoch, _ = self._cursor.position
        return OpenLac(epoch, self._follower.known_lac(epoch))


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Feeds:
    """The feeds of a process, by log."""

    def __init__(self, fetcher: RangeFetcher, owners: AskOwners) -> None:
        self.is_stopping = False
        self._fetcher = fetcher
        self._calls = OwnerCalls(owners)
        self._feeds: dict[LogId, LogFeed] = {}
        self._lingering: dict[LogId, asyncio.TimerHandle] = {}
        self._endings: set[asyncio.Task[None]] = set()
        self._counts: Counter[str] = Counter()

    def join(self, follower: LogFollower, position: Position, seq_num: int) -> LogFeed:
        """The feed of a log, started at the position if there is none; kept until `leave`.

        A position before the window is the reader's to deal with: `LogFeed.wait` gives None.
        """
        feed = self._feeds.get(follower.log_id)
        if feed is None or feed.is_over:
            feed = self._start(follower, position, seq_num)
        elif feed.window.end < position:
            feed.nudge()
        lingering = self._lingering.pop(feed.log_id, None)
        if lingering is not None:
            lingering.cancel()
        feed.reader_count += 1
        return feed

    def leave(self, feed: LogFeed) -> None:
        """A reader that joined has gone."""
        feed.reader_count -= 1
        if feed.reader_count == 0:
            self._linger(feed)

    def on_lag(self) -> None:
        """A reader fell out of a window, or its entries out of the cache."""
        self._counts["lagged"] += 1

    def stop_following(self) -> None:
        """From now on nobody waits at a tail: answers and streams end where they are."""
        self.is_stopping = True
        for feed in self._feeds.values():
            feed.stop_waiting()

    async def stop(self) -> None:
        """Give up every feed."""
        for handle in self._lingering.values():
            handle.cancel()
        self._lingering.clear()
        feeds = [*self._feeds.values()]
        await asyncio.gather(*(feed.stop() for feed in feeds), *self._endings)

    def statistics(self) -> dict[str, int]:
        """Feeds, who reads them and waits, what was started and who lagged since the start."""
        return {
            "feeds": len(self._feeds),
            "idle": len(self._lingering),
            "idle_max": IDLE_COUNT_MAX,
            "readers": sum(feed.reader_count for feed in self._feeds.values()),
            "waiting": sum(feed.room.waiting_count for feed in self._feeds.values()),
            "wait_timers": sum(feed.room.timer_count for feed in self._feeds.values()),
            "entries": sum(len(feed.window) for feed in self._feeds.values()),
            "entries_max_per_feed": WINDOW_COUNT_MAX,
            "started": self._counts["started"],
            "lagged": self._counts["lagged"],
            **self._calls.statistics(),
        }

    def _start(self, follower: LogFollower, position: Position, seq_num: int) -> LogFeed:
        feed = LogFeed(follower, self._fetcher, self._calls, position, seq_num)
        self._feeds[feed.log_id] = feed
        self._counts["started"] += 1
        if self.is_stopping:
            feed.stop_waiting()
        return feed

    def _linger(self, feed: LogFeed) -> None:
        """Its last reader has gone; another feed may have the log's place already."""
        if self._feeds.get(feed.log_id) is not feed:
            return
        if feed.is_over or len(self._lingering) >= IDLE_COUNT_MAX:
            self._end(feed)
            return
        loop = asyncio.get_running_loop()
        self._lingering[feed.log_id] = loop.call_later(LINGER_S, self._end, feed)

    def _end(self, feed: LogFeed) -> None:
        self._lingering.pop(feed.log_id, None)
        del self._feeds[feed.log_id]
        ending = asyncio.create_task(feed.stop())
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)
