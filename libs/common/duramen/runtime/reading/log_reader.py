"""Driver of one reader core: turns its effects into calls, tasks and timers, answers into events.

A `LogCursor` takes what the cache has at once, has at most one read or long poll under way, and
gives everything up when its `async with` block ends (a client that goes away cancels it). A reader
has one while it catches up; the feed of a log has one that follows.

Called by the read proxy (`following`) and by `duramen.client.core`. Source:
docs/protocol/reading.md, docs/protocol/read-answers.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import deque
from collections.abc import Iterator
from typing import Final

from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.log_node import LogNode
from duramen.core.reading.effects import (
    CancelRead,
    ConfirmAbsence,
    Deliver,
    Effect,
    Gap,
    SendRead,
    SetTimer,
    Skip,
    WatchMetadata,
)
from duramen.core.reading.range_read import Finish, NodesAbsence
from duramen.core.reading.read_ahead import ReaderLimits
from duramen.core.reading.reader import Reader
from duramen.core.segment_base import SegmentBase
from duramen.core.status import BookieStatus
from duramen.errors import DuramenError
from duramen.ids import NOTHING, Dlsn, EntryId, Epoch, Member, epoch_of
from duramen.runtime.reading.bookies import RangeFetcher, read_clock_us
from duramen.runtime.reading.metadata import LogFollower
from duramen.runtime.reading.tail import Tail
from duramen.units import MS, SECOND
from duramen.wire.bookie_calls import ReadAnswer
from duramen.wire.entry import read_entry_info

_LOG = logging.getLogger(__name__)

UNAVAILABLE_US: Final = 6 * SECOND
"""How long a reader waits while no replica answers: one read time-out and a pause."""

COLD_UNAVAILABLE_US: Final = 1 * SECOND
"""The same for a cold store: its time-outs and repetitions lie behind each of its errors."""

STALLED_US: Final = 20 * SECOND
"""How long a reader may be away from the tail while nothing comes. At a quiet tail nothing is to
come, however often the metadata are looked at meanwhile."""

_LOOK_AGAIN_S: Final = 1.0
"""How often one that waits looks at the two times above."""

_METADATA_TRIES: Final = 10
_METADATA_RETRY_S: Final = 0.3


class Truncated(DuramenError):
    """What was to be read next has been truncated and given up since the request began.

    Retry: the same request then begins at what is left, and its answer says so.
    """

    def __init__(self, wanted_seq_num: int, left_seq_num: int) -> None:
        super().__init__(
            "metadata_unavailable",
            f"seq:{wanted_seq_num} was truncated just now; seq:{left_seq_num} is left: ask again",
        )
        self.left_seq_num = left_seq_num


class DataLost(DuramenError):
    """What was to be read next is lost, and a person has accepted that (R15); it tells where the
    log goes on."""

    def __init__(self, gap: Gap) -> None:
        epoch, first, last = gap.epoch, gap.first, gap.last
        self.gap = gap
        self.next_dlsn = Dlsn(epoch, EntryId(last + 1), 0)
        super().__init__(
            "data_lost",
            f"the entries e{epoch}n{first} to e{epoch}n{last} are lost for ever: "
            f"go on from dlsn:{self.next_dlsn}",
            field="from",
            facts={"next": f"dlsn:{self.next_dlsn}"},
        )


class LogCursor:
    """One reader of one log, from a position upwards.

    Args:
        position: (epoch, entry) to begin at.
        limits: how far ahead of its consumer it reads.
    """

    def __init__(
        self,
        follower: LogFollower,
        fetcher: RangeFetcher,
        position: tuple[Epoch, EntryId],
        limits: ReaderLimits,
    ) -> None:
        self._core = Reader(position, fetcher.order, is_following=False, limits=limits)
        self._follower = follower
        self._fetcher = fetcher
        self._is_following = False
        self._ready: deque[Deliver | Skip | Gap] = deque()
        self._news = asyncio.Event()
        self._reads: dict[int, asyncio.Task[None]] = {}
        self._metadata_task: asyncio.Task[None] | None = None
        self._asked_epochs: set[Epoch] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._failure: DuramenError | None = None
        self._cold_error: DuramenError | None = None
        """Why the cold store did not give what comes next."""
        self._target: tuple[Epoch, EntryId] | None = None
        """How far a cursor that does not follow goes: the end that it knew first, then the tail."""
        self._found: Tail | None = None
        """The tail as `on_tail` told it last."""
        self._taken_to: Tail | None = None
        self._opened_early: Epoch | None = None
        self._early_task: asyncio.Task[None] | None = None
        self._taken: Deliver | None = None
        self._well_us = read_clock_us()
        """When it was at the tail, or had something to take, last."""
        self._exit = contextlib.ExitStack()
        self.tail: Tail | None = None
        """The end of what was taken, where that was the end of what may be shown."""

    async def __aenter__(self) -> LogCursor:
        self._exit.enter_context(self._follower.subscribe(self._on_metadata_change))
        self._pump()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._exit.close()
        if self._timer is not None:
            self._timer.cancel()
        others = (self._metadata_task, self._early_task)
        tasks = [*self._reads.values(), *(task for task in others if task is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def position(self) -> tuple[Epoch, EntryId]:
        """The next entry that will come; what was delivered and not taken yet lies before it."""
        return self._core.position

    def pass_loss(self) -> None:
        """Go on behind what `take` said is lost."""
        assert self._ready and isinstance(self._ready[0], Gap), self._ready
        self._ready.popleft()

    def learn_known(self) -> None:
        """Look at what other readers have learnt of the log since."""
        self._on_metadata_change()

    def learn_owner_lac(self, epoch: Epoch, lac: EntryId) -> None:
        """The owner told the LAC of a segment; every reader of the log here may go by it."""
        self._follower.note_lac(epoch, lac)
        with self._failing_at_faults():
            self._core.on_lac(epoch, lac, read_clock_us(), by_owner=True)
            self._pump()

    def follow(self) -> None:
        """From now on wait at the tail for more."""
        self._is_following = True
        self._core.on_follow(read_clock_us())
        self._pump()

    async def on_tail(self, tail: Tail) -> bool:
        """Learn where the end is now; whether there is more to take up to there."""
        self._found = tail
        self._target = (tail.epoch, tail.entry)
        self._follower.note_lac(tail.epoch, tail.lac)
        log, segment = await self._follower.current(self._core.epoch)
        self._learn(log, segment)
        return bool(self._ready) or not self._has_come_to_target

    @property
    def end(self) -> Tail | None:
        """The tail, once one that is sure was told (`on_tail`) and all up to it was taken.

        Where more was taken than that, the end lay there too, a little later: what was taken is
        acknowledged, entry after entry. So either is the log's end at a moment since the look.
        """
        found, taken = self._found, self._taken_to
        if found is None or not found.is_sure or not self._has_come_to_target:
            return None
        is_past = taken is not None and (taken.epoch, taken.entry) > (found.epoch, found.entry)
        return taken if is_past else found

    @property
    def _has_come_to_target(self) -> bool:
        core = self._core
        return core.is_at_tail if self._target is None else core.position >= self._target

    @property
    def _is_at_tail(self) -> bool:
        """At the tail as far as the core knows, and not before the end that is known."""
        return self._core.is_at_tail and self._has_come_to_target

    @property
    def is_at_end_of_stream(self) -> bool:
        """The log has ended, and all of it was taken: nothing comes any more."""
        known = self._follower.peek(self._core.epoch)
        if known is None or not known[0].is_ended or not self._is_at_tail:
            return False
        return self._core.epoch > known[0].last_clean_epoch

    async def take(self, wanted_seq_num: int) -> Deliver | None:
        """The next entries; None at the end, which who follows meets only where the log has ended.

        For who does not follow that is the end as it was known first, and after `on_tail` the tail:
        a log that grows all the time is not chased.

        Args:
            wanted_seq_num: the next record that the answer is to have.

        Raises:
            Truncated: that one was given up meanwhile.
            DataLost: it is lost.
            DuramenError: `data_unavailable` (no replica answers), `cold_store_unavailable`, or of
                the metadata.
        """
        began_us = read_clock_us()
        self._consume_taken(began_us)
        while not self._pass_skips(wanted_seq_num):
            now_us = read_clock_us()
            if self._failure is not None:
                raise self._failure
            has_come = self._has_come_to_target and not self._is_following
            if has_come or self.is_at_end_of_stream:
                return None
            self._refuse_unavailable(max(began_us, self._well_us), now_us)
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_AGAIN_S):
                    await self._news.wait()
        delivered = self._ready.popleft()
        assert isinstance(delivered, Deliver), delivered
        self._taken = delivered
        self._note_end(delivered)
        return delivered

    def _pass_skips(self, wanted_seq_num: int) -> bool:
        """Whether entries are ready; skips before them are passed where they lose nothing."""
        while self._ready and not isinstance(skip := self._ready[0], Deliver):
            if isinstance(skip, Gap):
                raise DataLost(skip)
            if skip.seq_num > wanted_seq_num:
                raise Truncated(wanted_seq_num, skip.seq_num)
            self._ready.popleft()
        return bool(self._ready)

    def _consume_taken(self, now_us: int) -> None:
        """Free the buffer of what was taken before: it was used up, or one would not come again."""
        if self._taken is not None:
            size = sum(len(body) for _, body in self._taken.entries)
            self._taken = None
            self._core.on_consumed(size, now_us)
            self._pump()

    def _refuse_unavailable(self, stalled_since_us: int, now_us: int) -> None:
        since_us, error = self._core.unavailable_since_us, self._cold_error
        is_only_cold = error is not None and self._core.is_cold
        patience_us = COLD_UNAVAILABLE_US if is_only_cold else UNAVAILABLE_US
        is_stalled = not self._is_at_tail and now_us - stalled_since_us > STALLED_US
        if is_stalled or (since_us is not None and now_us - since_us > patience_us):
            if error is not None:
                raise DuramenError(error.code, error.detail)
            epoch, entry = self._core.position
            raise DuramenError(
                "data_unavailable", f"no replica of e{epoch}n{entry} can be read now"
            )

    def _note_end(self, delivered: Deliver) -> None:
        entry_id, body = delivered.entries[-1]
        totals = read_entry_info(body).totals
        known = self._follower.peek(delivered.epoch)
        earlier_ms = 0 if known is None else known[0].totals.max_timestamp_ms or 0
        self._taken_to = Tail(
            delivered.epoch,
            EntryId(entry_id + 1),
            entry_id,
            delivered.start_seq_num + totals.record_count,
            max(earlier_ms, totals.max_timestamp_ms or 0),
        )
        is_last = not self._ready and self._core.is_at_tail
        self.tail = self._taken_to if is_last else None

    # --- Effects ---------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Carry out effects until there are none; the cache answers on the spot."""
        while effects := self._core.take_effects():
            for effect in effects:
                self._carry_out(effect)
        upcoming = self._core.upcoming_epoch
        if upcoming is not None and upcoming != self._opened_early:
            self._opened_early = upcoming
            self._early_task = asyncio.create_task(self._open_early(upcoming))
        if self._ready or self._is_at_tail:
            self._well_us = read_clock_us()
        self._news.set()

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case SendRead():
                cached = self._fetcher.find_cached(effect)
                if cached is not None:
                    self._answer(effect, cached)
                else:
                    self._reads[effect.read_id] = asyncio.create_task(self._fetch(effect))
            case CancelRead(read_id):
                task = self._reads.pop(read_id, None)
                if task is not None:
                    task.cancel()
            case WatchMetadata(epoch):
                self._metadata_task = asyncio.create_task(self._look(epoch))
            case ConfirmAbsence(epoch):
                self._metadata_task = asyncio.create_task(self._confirm(epoch))
            case SetTimer(at_us):
                self._set_timer(at_us)
            case Deliver() | Skip():
                self._ready.append(effect)
            case Gap():
                if effect.is_lost:
                    self._ready.append(effect)
                # the records' sequence numbers show a hole

    def _set_timer(self, at_us: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # Loops count in milliseconds, and one may round down: not before its time.
        delay_ms = math.ceil(max(0, at_us - read_clock_us()) / MS) + 1
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1_000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        with self._failing_at_faults():
            self._core.on_timer(read_clock_us())
            self._pump()

    @contextlib.contextmanager
    def _failing_at_faults(self) -> Iterator[None]:
        """A fault where nobody waits is told to who takes next, and to no other reader."""
        try:
            yield
        except Exception as error:
            _LOG.exception("%r: a broken invariant", self._core)
            self._failure = self._failure or DuramenError(
                "internal", f"the reader fails: {error!r}"
            )
            self._news.set()

    async def _fetch(self, read: SendRead) -> None:
        with self._failing_at_faults():
            sender, absent = None, None
            if read.is_of_all_nodes:
                finish = await self._fetch_nodes(read)
                sender, absent = finish.sender, finish.absent
                answer = ReadAnswer(finish.status, finish.lac, NOTHING, False, finish.entries)
            elif read.is_cold:
                answer = await self._fetch_cold(read)
            else:
                answer = await self._fetcher.fetch(read)
            if self._reads.pop(read.read_id, None) is not None:
                self._answer(read, answer, sender, absent)
                self._pump()

    async def _fetch_nodes(self, read: SendRead) -> Finish:
        """From the nodes of a flexible segment's map, as the newest node that is known has it."""
        known = self._follower.peek(epoch_of(read.ledger_id))
        segment = None if known is None else known[1]
        if not isinstance(segment, FlexibleSegment):
            return Finish(BookieStatus.UNKNOWN)
        return await self._fetcher.fetch_nodes(read, segment)

    async def _fetch_cold(self, read: SendRead) -> ReadAnswer:
        """From the cold store; an error counts as a replica that does not answer."""
        entries: list[tuple[EntryId, bytes]] = []
        known = self._follower.peek(epoch_of(read.ledger_id))
        try:
            if known is None or known[1] is None:
                raise DuramenError("metadata_unavailable", "the segment's node is not known now")
            cold = self._fetcher.cold
            entries = await cold.read(known[1], read.first, read.last, read.bytes_max)
        except DuramenError as error:
            self._cold_error = error
        status = BookieStatus.OK if entries else BookieStatus.UNKNOWN
        return ReadAnswer(status, NOTHING, NOTHING, False, list(entries))

    def _answer(
        self,
        read: SendRead,
        answer: ReadAnswer,
        sender: Member | None = None,
        absent: NodesAbsence | None = None,
    ) -> None:
        if answer.entries:
            self._cold_error = None
        epoch = epoch_of(read.ledger_id)
        self._follower.note_lac(epoch, answer.lac)
        known = self._follower.peek(epoch)
        self._note_first_end(None if known is None else known[1])
        self._core.on_read_answer(
            read.read_id,
            status=answer.status,
            lac=answer.lac,
            highest=answer.highest,
            is_sealed=answer.is_sealed,
            entries=[(entry_id, bytes(body)) for entry_id, body in answer.entries],
            now_us=read_clock_us(),
            sender=sender,
            absent=absent,
        )

    def _note_first_end(self, segment: SegmentBase | None) -> None:
        """What is known of an open segment's end when it is met is how far to go for now."""
        if self._target is not None or segment is None or segment.is_closed:
            return
        lac = self._follower.known_lac(segment.epoch)
        if lac != NOTHING:
            self._target = (segment.epoch, EntryId(lac + 1))

    async def _look(self, epoch: Epoch) -> None:
        with self._failing_at_faults():
            await self._read_metadata(epoch)

    async def _confirm(self, epoch: Epoch) -> None:
        """Read the metadata after a sync that begins now; the reader pauses until they came."""
        with self._failing_at_faults():
            try:
                log, segment = await self._follower.refresh(epoch, is_synced=True)
            except DuramenError as error:
                self._failure = error
                self._news.set()
                return
            self._core.on_confirmed(log, segment, read_clock_us())
            self._pump()

    async def _read_metadata(self, epoch: Epoch) -> None:
        """The first look at a segment may be what a watch vouches for; later ones are fresh.

        Where ZooKeeper cannot be read a later one is what is known, unless that leads nowhere.
        """
        read = self._follower.current
        if epoch in self._asked_epochs:
            read = self._follower.refresh if self._core.is_at_seal else self._follower.look
        self._asked_epochs.add(epoch)
        for attempt in range(_METADATA_TRIES):
            try:
                log, segment = await read(epoch)
            except DuramenError as error:
                if error.code != "metadata_unavailable" or attempt == _METADATA_TRIES - 1:
                    self._failure = error
                    self._news.set()
                    return
                await asyncio.sleep(_METADATA_RETRY_S)
                continue
            self._learn(log, segment)
            return

    async def _open_early(self, epoch: Epoch) -> None:
        """Have the next segment's node here, and if it is closed its first entries in the cache.

        What fails is read again when it is its turn.
        """
        with contextlib.suppress(DuramenError):
            log, segment = await self._follower.current(epoch)
            if segment is None or not segment.is_closed:
                return
            if epoch < log.first_hot_epoch:
                await self._fetcher.cold.open_ahead(segment)
            elif epoch < log.next_epoch:
                await self._fetcher.fetch_ahead(segment)

    def _on_metadata_change(self) -> None:
        known = self._follower.peek(self._core.epoch)
        if known is not None:
            with self._failing_at_faults():
                self._learn(*known)

    def _learn(self, log: LogNode, segment: SegmentBase | None) -> None:
        """Metadata, and the LAC that other readers have learnt."""
        now_us = read_clock_us()
        self._note_first_end(segment)
        self._core.on_lac(self._core.epoch, self._follower.known_lac(self._core.epoch), now_us)
        self._core.on_metadata(log, segment, now_us)
        self._pump()
        self._core.on_lac(self._core.epoch, self._follower.known_lac(self._core.epoch), now_us)
        self._pump()
