"""The followers of a log before a cursor that the test plays by hand.

`HandCursor` stands where `feed` and `record_reader` have a `LogCursor`: it gives what the test
says, raises, or ends, and notes what it was asked. Everything else is real, under a clock that
stands still (`still_clock`). Used by `test_feed`, `test_record_reader` and `test_streams`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, cast

import pytest

from duramen.core.reading.effects import Deliver
from duramen.core.reading.feed_window import FedEntry, Position
from duramen.core.segment import Totals
from duramen.ids import NOTHING, EntryId, Epoch, LogId, ledger_of
from duramen.runtime.reading.bookies import RangeFetcher
from duramen.runtime.reading.metadata import LogFollower
from duramen.runtime.reading.tail import Tail
from duramen.wire.entry import encode_entry
from duramen.wire.record_batch import encode_batch
from duramen_readproxy.following import feed as feed_module
from duramen_readproxy.following import record_reader, streams
from duramen_readproxy.following.feed import Feeds, LogFeed
from tests.component.still_clock import read_clock_us, run_still, wait_quiet
from tests.no_owners import NoOwners

LOG: Final = LogId(9)
SOON_US: Final = 10_000_000
MOMENT_S: Final = 0.001


class Follower(NamedTuple):
    """As much of a `LogFollower` as a feed looks at; the rest is the cursor's."""

    log_id: LogId

    def known_lac(self, _epoch: Epoch) -> EntryId:
        return NOTHING


def position(epoch: int, entry: int) -> Position:
    return Epoch(epoch), EntryId(entry)


def deliver(
    epoch: int, *entries: int, start_seq_num: int = 0, size: int = 1, log: LogId = LOG
) -> Deliver:
    """Entries of a segment that has `size` records in each, and no holes but those left out."""
    found = []
    for entry in entries:
        batch = encode_batch([b"e%dn%d" % (epoch, entry)] * size, 7)
        before = Totals(entry * size, entry * len(batch), None, 7)
        after = before.plus(Totals(size, len(batch), None, 7))
        body = encode_entry(
            ledger_id=ledger_of(log, Epoch(epoch)), entry_id=EntryId(entry), before=before,
            batches=[batch], record_count=size, after=after,
        )  # fmt: skip
        found.append((EntryId(entry), body))
    return Deliver(Epoch(epoch), start_seq_num, tuple(found))


def tail_at(epoch: int, entry: int, seq_num: int, *, is_sure: bool = True) -> Tail:
    return Tail(Epoch(epoch), EntryId(entry), EntryId(entry - 1), seq_num, 7, is_sure)


class HandCursor:
    """One cursor; see the module."""

    def __init__(
        self, follower: Follower, _fetcher: object, position: Position, limits: object
    ) -> None:
        self.follower = follower
        self.position = position
        self.limits = limits
        self.is_open = False
        self.is_following = False
        self.known_count = 0
        self.owner_lacs: list[tuple[Epoch, EntryId]] = []
        self.passed_count = 0
        self.wanted: list[int] = []
        self.tail: Tail | None = None
        self.end: Tail | None = None
        self.is_at_end_of_stream = False
        self.told_tails: list[Tail] = []
        self.more_behind_tail = False
        self.steps: asyncio.Queue[Deliver | Exception | None] = asyncio.Queue()
        self.exit_gate = asyncio.Event()
        self.exit_gate.set()

    async def __aenter__(self) -> HandCursor:
        self.is_open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.exit_gate.wait()
        self.is_open = False

    def follow(self) -> None:
        self.is_following = True

    def learn_owner_lac(self, epoch: Epoch, lac: EntryId) -> None:
        self.owner_lacs.append((epoch, lac))

    def learn_known(self) -> None:
        self.known_count += 1

    def pass_loss(self) -> None:
        self.passed_count += 1

    async def on_tail(self, tail: Tail) -> bool:
        self.told_tails.append(tail)
        return self.more_behind_tail

    async def take(self, wanted_seq_num: int) -> Deliver | None:
        assert self.is_open
        self.wanted.append(wanted_seq_num)
        step = await self.steps.get()
        if isinstance(step, Exception):
            raise step
        if step is not None:
            self.position = (step.epoch, EntryId(step.entries[-1][0] + 1))
        return step

    async def give(self, *steps: Deliver | Exception | None) -> None:
        """What it comes to next; returns when all has happened that follows from it."""
        for step in steps:
            self.steps.put_nowait(step)
        await wait_quiet()


class HandCache:
    """What a reader looks at of the fetcher: the entries that are here."""

    def __init__(self) -> None:
        self.bodies: dict[tuple[Any, EntryId], bytes] = {}

    def put(self, delivered: Deliver) -> None:
        ledger_id = ledger_of(LOG, delivered.epoch)
        self.bodies.update({(ledger_id, entry_id): body for entry_id, body in delivered.entries})

    def find_run(
        self, ledger_id: Any, first: EntryId, last: EntryId
    ) -> list[tuple[EntryId, bytes]]:
        run = []
        for entry in range(first, last + 1):
            body = self.bodies.get((ledger_id, EntryId(entry)))
            if body is None:
                break
            run.append((EntryId(entry), body))
        return run


class FeedWorld:
    """Feeds, and the cursors that were made."""

    def __init__(self) -> None:
        self.cursors: list[HandCursor] = []
        self.cache = HandCache()
        self.fetcher = cast(RangeFetcher, self.cache)
        self.feeds = Feeds(self.fetcher, NoOwners())

    @property
    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def make_cursor(self, *args: Any) -> HandCursor:
        self.cursors.append(HandCursor(*args))
        return self.cursors[-1]

    def follower(self, log: LogId = LOG) -> LogFollower:
        return cast(LogFollower, Follower(log))

    def join(self, epoch: int = 1, entry: int = 0, *, seq_num: int = 0, log: int = LOG) -> LogFeed:
        return self.feeds.join(self.follower(LogId(log)), position(epoch, entry), seq_num)

    async def wait(self, feed: LogFeed, epoch: int = 1, entry: int = 0) -> Any:
        """Wait at a feed: the task, once all has happened that follows."""
        until_us = read_clock_us() + SOON_US
        task = asyncio.create_task(feed.wait(position(epoch, entry), until_us))
        await wait_quiet()
        return task


def ids_of(found: Sequence[FedEntry] | None) -> list[tuple[int, int]] | None:
    return None if found is None else [(entry.epoch, entry.entry_id) for entry in found]


def play(monkeypatch: pytest.MonkeyPatch, scenario: Callable[[FeedWorld], Awaitable[None]]) -> None:
    """Run a scenario; whatever it left is stopped, and then nothing is open any more."""
    for module in (feed_module, record_reader, streams):
        monkeypatch.setattr(module, "read_clock_us", read_clock_us)

    async def work() -> None:
        world = FeedWorld()
        for module in (feed_module, record_reader):
            monkeypatch.setattr(module, "LogCursor", world.make_cursor)
        await scenario(world)
        await world.feeds.stop()
        assert not any(cursor.is_open for cursor in world.cursors)

    run_still(work())
