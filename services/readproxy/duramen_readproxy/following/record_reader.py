"""One reader of one log: by itself while it catches up, from the log's feed at the tail.

Catching up it has a `LogCursor` of its own, over the cache and reads that are shared while they are
under way. Once it is to `follow`, it lets the cursor go and waits at the feed, where it costs no
more than a position and a waiter; when the feed is ahead of what the cache still has, or ended
before something lost or truncated, it has a cursor again until it has caught up. A stream has a
cursor only while it has a place (`places`), and gives its entries in slices.

`fill` is the loop of a bounded answer: read until the pick is full or the end is reached, look
once where the end is, read to there, and only then wait. What a busy log gets meanwhile is for the
next answer: nobody would get one if its end were chased.

Called by the REST routes and `streams`. Source: docs/protocol/reading.md,
docs/protocol/read-answers.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Final

from duramen.core.reading.effects import Deliver
from duramen.core.reading.feed_window import FedEntry, Position
from duramen.core.reading.read_ahead import ReaderLimits
from duramen.errors import DuramenError, Retry
from duramen.ids import EntryId, Epoch, ledger_of
from duramen.runtime.admission.callers import AdmittedCall
from duramen.runtime.reading.bookies import RangeFetcher, read_clock_us
from duramen.runtime.reading.log_reader import DataLost, LogCursor, Truncated
from duramen.runtime.reading.metadata import LogFollower
from duramen.runtime.reading.tail import Tail
from duramen.units import KIB, MS, SECOND
from duramen.wire.entry import EntryInfo, read_entry_info
from duramen_readproxy.answers import Pick, place_delivered
from duramen_readproxy.following.feed import Feeds, LogFeed
from duramen_readproxy.following.places import ReadingPlace, ReadingPlaces
from duramen_readproxy.gaps import EntryRange, describe_hole, find_hole

AHEAD_PAUSE_US: Final = 100 * MS
"""How long a reader waits that is behind its feed, and knows of nothing to read."""

SLICE_BYTES: Final = 64 * KIB
"""What a stream that catches up takes at once, or one entry: what it holds beside its place."""


class RecordReader:
    """A context; see the module.

    Args:
        position: (epoch, entry) to begin at.
        limits: how far ahead of its consumer it reads while it catches up.
    """

    __slots__ = (
        "_cursor", "_feed", "_feeds", "_fetcher", "_follower", "_is_end_sure", "_is_ended",
        "_last", "_limits", "_position", "_taken", "_touched", "call", "is_following", "place",
        "tail", "waited_us",
    )  # fmt: skip

    def __init__(
        self,
        feeds: Feeds,
        fetcher: RangeFetcher,
        follower: LogFollower,
        position: Position,
        limits: ReaderLimits,
    ) -> None:
        self._feeds = feeds
        self._fetcher = fetcher
        self._follower = follower
        self._position = position
        self._limits = limits
        self._cursor: LogCursor | None = None
        self._feed: LogFeed | None = None
        self._taken: Deliver | None = None
        self._touched: EntryId | None = None
        self._last: EntryInfo | None = None
        self._is_ended = False
        self._is_end_sure = True
        self.place: ReadingPlace | None = None
        """Where it catches up as one of many; None: it is no stream, so it ends soon."""
        self.call: AdmittedCall | None = None
        """In whose name it waits; None: nobody is asked who it is."""
        self.is_following = False
        """Whether it waits at the tail."""
        self.tail: Tail | None = None
        """The end of what was taken, where that was the end of what may be shown. For who follows
        all that was acknowledged before the question lies below it, or there is none."""
        self.waited_us = 0
        """How long it waited at the tail in all."""

    async def __aenter__(self) -> RecordReader:
        if self.place is None:
            await self._open_cursor(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._leave_feed()
        await self._close_cursor()

    def catch_up_in(self, places: ReadingPlaces, found: Tail | None = None) -> None:
        """It is a stream: while it catches up it takes its turn, and holds little between.

        Args:
            found: the end, if it begins there.
        """
        self.place = ReadingPlace(places, self.call, self._release)
        self.place.found = found

    @property
    def is_at_end_of_stream(self) -> bool:
        """The log has ended, and all of it was taken: nothing comes any more."""
        if self._has_untaken:
            return False
        return self._is_ended or (self._cursor is not None and self._cursor.is_at_end_of_stream)

    @property
    def is_out(self) -> bool:
        """It is a stream that is behind the tail, and has no place to read from."""
        if self.place is None or self._cursor is not None:
            return False
        return not self.is_following or self.place.is_entering

    @property
    def is_at_tail(self) -> bool:
        """It follows, and catches up with nothing."""
        return self.is_following and self._cursor is None

    @property
    def _has_untaken(self) -> bool:
        return self.place is not None and self.place.untaken is not None

    async def take(self, wanted_seq_num: int, deadline_us: int) -> Deliver | None:
        """The next entries.

        Args:
            wanted_seq_num: the next record that the answer is to have.
            deadline_us: until then it waits at the tail, once it follows, or for its place.

        Returns:
            None at the end as far as is known; while following only after the deadline, at the end
            of an ended log, and when the process stops; and while it `is_out`.

        Raises:
            Truncated: what is wanted was given up meanwhile.
            DataLost: it is lost; `pass_loss` with it goes on behind it.
            DuramenError: `data_unavailable` (no replica answers), or of the metadata; what its
                caller is refused as, who may read no more.
        """
        self._last = self.find_touched()
        self._taken = self._touched = None  # who waits long must not hold entries
        lagged_at: Position | None = None
        if self.place is not None and self._cursor is not None and self.place.is_due:
            await self._close_cursor()
        if (
            self._cursor is None
            and (not self.is_following or self.is_out)
            and not await self._open_cursor(deadline_us)
        ):
            return None
        while True:
            if self._cursor is not None:
                delivered = await self._take_from_cursor(wanted_seq_num)
                if delivered is not None:
                    self._move(delivered)
                    return delivered
                self._position = self._cursor.position
                if not self.is_following:
                    return None
                if self._cursor.is_at_end_of_stream:
                    self._is_ended = True
                    return None
                await self._close_cursor()
            feed = self._feed or self._join_feed(wanted_seq_num)
            begun_us = read_clock_us()
            found = await feed.wait(self._position, deadline_us, self.call)
            self.waited_us += read_clock_us() - begun_us
            if found is not None and not found:
                self._is_ended = feed.is_ended
                return None
            delivered = None if found is None else self._load(found)
            if delivered is not None:
                self._move(delivered)
                is_end = self._is_end_sure and feed.window.end == self._position
                self.tail = feed.tail if is_end else None
                return delivered
            self._leave_feed()
            if lagged_at == self._position:
                # The feed began with a reader that had heard of a higher LAC: until that is known
                # here, neither the feed nor a cursor has what comes next.
                left_us = deadline_us - read_clock_us()
                if left_us <= 0 or self._feeds.is_stopping:
                    return None
                begun_us = read_clock_us()
                await asyncio.sleep(min(left_us, AHEAD_PAUSE_US) / SECOND)
                self.waited_us += read_clock_us() - begun_us
            else:
                self._feeds.on_lag()
            lagged_at = self._position
            if not await self._open_cursor(deadline_us):
                return None

    @property
    def end(self) -> Tail | None:
        """See `LogCursor.end`; None while following."""
        return None if self._cursor is None or self._has_untaken else self._cursor.end

    async def on_tail(self, tail: Tail) -> bool:
        """Learn where the end is now; whether there is more to take up to there."""
        assert self._cursor is not None, "who follows does not look for the end"
        if self.place is not None:
            self.place.found = tail
        return await self._cursor.on_tail(tail)

    async def follow(self, found: Tail) -> None:
        """From now on wait at the tail for more.

        Args:
            found: the end, as it was found. What comes later lies behind it, so it has an end that
                is sure if this one is. Otherwise more may lie behind it than its bookies say.
        """
        self.is_following = True
        self._is_end_sure = found.is_sure
        await self._close_cursor()

    def pass_loss(self, lost: DataLost) -> None:
        """Go on behind what `take` said is lost."""
        assert self._cursor is not None, "a feed ends before a loss"
        self._cursor.pass_loss()
        epoch, entry, _ = lost.next_dlsn
        self._position = (epoch, entry)

    def find_hole(self, epoch: Epoch, entry_id: EntryId) -> EntryRange | None:
        """The hole that ends before an entry that came."""
        return find_hole(self._follower, epoch, entry_id)

    def touch(self, entry_id: EntryId) -> None:
        """The answer has come to this entry of what was taken last."""
        self._touched = entry_id

    def find_touched(self) -> EntryInfo | None:
        """The header of the entry that the answer ends in."""
        if self._taken is None or self._touched is None:
            return self._last
        first = self._taken.entries[0][0]
        return read_entry_info(self._taken.entries[self._touched - first][1])

    def _move(self, delivered: Deliver) -> None:
        self._taken = delivered
        self._position = (delivered.epoch, EntryId(delivered.entries[-1][0] + 1))

    def _load(self, found: Sequence[FedEntry]) -> Deliver | None:
        """What the cache still has of entries, from the first on; without a hole between them."""
        epoch, first, start_seq_num = found[0]
        ledger_id = ledger_of(self._follower.log_id, epoch)
        count = next((i for i, e in enumerate(found) if e.entry_id != first + i), len(found))
        run = self._fetcher.find_run(ledger_id, first, EntryId(first + count - 1))
        return Deliver(epoch, start_seq_num, tuple(run)) if run else None

    def _join_feed(self, seq_num: int) -> LogFeed:
        self._feed = self._feeds.join(self._follower, self._position, seq_num)
        return self._feed

    def _leave_feed(self) -> None:
        if self._feed is not None:
            feed, self._feed = self._feed, None
            self._feeds.leave(feed)

    async def _take_from_cursor(self, wanted_seq_num: int) -> Deliver | None:
        """What the cursor has next; to a stream in slices, each a step of its own."""
        place, cursor = self.place, self._cursor
        assert cursor is not None, "opened before"
        delivered = None
        if place is not None:
            delivered, place.untaken = place.untaken, None
        if delivered is None:
            delivered = await cursor.take(wanted_seq_num)
        if delivered is not None and place is not None:
            delivered, place.untaken = _cut(delivered)
            place.note_taken(sum(len(body) for _, body in delivered.entries))
            await place.rest()
        if delivered is not None:
            is_last = not self._has_untaken and self._is_end_sure
            self.tail = cursor.tail if is_last else None
        return delivered

    async def _open_cursor(self, deadline_us: int) -> bool:
        """Whether it has one: a stream has none while it has no place."""
        if self.place is not None and not await self.place.enter(deadline_us):
            return False
        cursor = LogCursor(self._follower, self._fetcher, self._position, self._limits)
        self._cursor = await cursor.__aenter__()
        if self.place is not None and self.place.found is not None and not self.is_following:
            await cursor.on_tail(self.place.found)
        return True

    async def _close_cursor(self) -> None:
        closing = self._release()
        if self.place is not None:
            self.place.leave()
        if closing is not None:
            await closing

    def _release(self) -> Coroutine[Any, Any, None] | None:
        """Read ahead no more, and hold nothing of it; gives what ends the cursor."""
        cursor, self._cursor = self._cursor, None
        if self.place is not None:
            self.place.untaken = None
        return None if cursor is None else cursor.__aexit__()


async def fill(
    reader: RecordReader, pick: Pick, wait_us: int, find_reach: Callable[[], Awaitable[Tail]]
) -> Tail | None:
    """Take into `pick` until it is full or the end is reached; gives the tail if it was.

    With `wait_us` an answer that would be empty waits that long at the tail. A tail that is not
    sure, or that cannot be found now, is not given: the answer ends there and does not say that
    this is the end. It also ends before records that were truncated meanwhile, so that whoever
    goes on is told (`moved_to`), and before those that are lost, which the next answer tells.

    Raises:
        DuramenError: as `RecordReader.take` and `TailFinder.find`.
    """
    deadline_us = read_clock_us() + wait_us
    end: Tail | None = None
    async with reader:
        while not pick.is_full:
            try:
                delivered = await reader.take(
                    pick.wanted_seq_num, deadline_us if pick.is_empty else 0
                )
            except (Truncated, DataLost):
                if pick.is_empty:
                    raise
                return None
            if delivered is not None:
                _pass_hole(reader, pick, delivered)
                if pick.is_full:
                    continue
                for placed in place_delivered(delivered):
                    reader.touch(placed.dlsn.entry)
                    if not pick.offer(placed):
                        return None
            elif reader.is_following or not await _go_on(reader, pick, wait_us, find_reach):
                return _sure(reader.tail)
        end = reader.end
    if reader.tail is None or reader.is_following:
        return _sure(reader.tail)
    # Full just where the end seemed to be: say so only if it was there since the question.
    tail = end or await find_reach()
    return _sure(tail) if tail.seq_num == pick.next_seq_num else None


def _pass_hole(reader: RecordReader, pick: Pick, delivered: Deliver) -> None:
    """Tell of the hole that lies before entries: between them there is none."""
    entry_id, body = delivered.entries[0]
    wanted = pick.wanted_seq_num
    first = delivered.start_seq_num + read_entry_info(body).first_position
    if first > wanted:
        gap = describe_hole(reader.find_hole, delivered.epoch, entry_id, wanted, first)
        pick.pass_hole(gap, first)


async def _go_on(
    reader: RecordReader, pick: Pick, wait_us: int, find_reach: Callable[[], Awaitable[Tail]]
) -> bool:
    """At the end as far as is known: look once where it is; whether to take, or wait for, more."""
    tail = reader.end
    if tail is None:
        try:
            tail = await find_reach()
        except DuramenError as error:
            if pick.is_empty or error.kind.retry is Retry.NO:
                raise
            reader.tail = None  # what was read stands, whoever may say where the end is
            return False
        if await reader.on_tail(tail):
            return True
    reader.tail = tail
    if wait_us == 0 or not pick.is_empty or reader.is_at_end_of_stream:
        return False
    await reader.follow(tail)
    return True


def _cut(delivered: Deliver) -> tuple[Deliver, Deliver | None]:
    """The first entries, `SLICE_BYTES` at most but for one; and the others."""
    entries, size_bytes = delivered.entries, 0
    for index, (_, body) in enumerate(entries):
        size_bytes += len(body)
        if index and size_bytes > SLICE_BYTES:
            first, others = replace(delivered, entries=entries[:index]), entries[index:]
            return first, replace(delivered, entries=others)
    return delivered, None


def _sure(tail: Tail | None) -> Tail | None:
    return tail if tail is not None and tail.is_sure else None
