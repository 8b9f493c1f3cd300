"""Where a log ends, linearizably: what was acknowledged before the question lies below it.

A synced read of the log node tells the segment that readers are in; a covering set of its last
fragment (R12, R23) the highest LAC. If the cover has seen entries above it, the finder waits for
the LAC to reach them (not for control entries, which carry the LAC). If it does not, since their
sequencer died or is cut off, the tail is not sure, and is shown to nobody as the end; nor is one
sure behind which early appends lie. A log that acknowledges out of order has acknowledged records
above its LAC for a while: its owner says which (`owner_word`), and the tail is sure then (R29).

Rounds are shared by those who asked before one began, never by those who came later. Who wants to
read and not to know the end asks for the `reach`, for which one bookie is enough (R17).
Called by reads that reach the end, by `GET …/records/tail` and by `duramen.client.core`.
Source: docs/protocol/reading.md "The tail", R12, docs/protocol/read-answers.md.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple

from duramen.config import LogConfig
from duramen.core.log_node import LogNode
from duramen.core.reading.effects import SendRead
from duramen.core.reading.runs import find_proved_lac
from duramen.core.segment import Segment
from duramen.core.segment_base import SegmentBase, Totals
from duramen.core.status import BookieStatus
from duramen.errors import DuramenError
from duramen.ids import LAST_ENTRY_ID, NOTHING, Dlsn, EntryId, Epoch, LogId, Member
from duramen.limits import READ_TIMEOUT_US
from duramen.runtime.reading.bookies import Bookies, RangeFetcher, read_clock_us
from duramen.runtime.reading.metadata import LogFollower
from duramen.runtime.reading.owner_word import AskOwner
from duramen.runtime.shared_tasks import take_failure
from duramen.units import MS, SECOND
from duramen.wire.bookie_calls import Marks
from duramen.wire.record_json import encode_tail

SETTLE_US: Final = 1 * SECOND
"""How long a LAC is waited for: many times what an append and its commit delay take."""

REACH_WAIT_S: Final = 2.0
"""How long who wants to read waits for enough bookies, before a LAC that anybody knows will do."""

_CONTROL_COUNT_MAX: Final = 8
"""A control entry for the LAC, or a snapshot in parts: more than these are looked at by nobody."""

_RETRY_AFTER_MS: Final = 500

_ANSWERED: Final = (BookieStatus.OK, BookieStatus.NO_ENTRY, BookieStatus.SEALED)


class AcknowledgedEnd(NamedTuple):
    """The position behind the highest record that is acknowledged."""

    entry: EntryId
    seq_num: int
    timestamp_ms: int


class Tail(NamedTuple):
    """The position after the last record that readers may see."""

    epoch: Epoch
    entry: EntryId
    """The entry after the last one that may be shown: where a reader at the tail waits."""
    lac: EntryId
    """Of `epoch`; `NOTHING` where the segment does not exist yet."""
    seq_num: int
    timestamp_ms: int
    is_sure: bool = True
    """Whether all that was acknowledged before the question lies below it."""
    is_covered: bool = True
    """Whether enough bookies were asked to say so."""
    is_current: bool = True
    """Whether the metadata were read to say so; they are what covers are found by."""
    acknowledged: AcknowledgedEnd | None = None
    """Where that is behind the tail: of logs that acknowledge out of order alone."""

    def check_covered(self) -> None:
        """Refuse to say what lies behind it where too few bookies were asked.

        Raises:
            DuramenError: `data_unavailable`; known again when enough of them answer.
                `metadata_unavailable`; known again when ZooKeeper can be read.
        """
        if not self.is_current:
            raise DuramenError(
                "metadata_unavailable",
                f"ZooKeeper cannot be read, and more may follow e{self.epoch}n{self.lac}",
                retry_after_ms=_RETRY_AFTER_MS,
            )
        if not self.is_covered:
            raise DuramenError(
                "data_unavailable",
                f"too few bookies of e{self.epoch} answer to be sure of the tail",
                retry_after_ms=_RETRY_AFTER_MS,
            )

    def check_sure(self) -> None:
        """Refuse to call it the tail where it may be too low.

        Raises:
            DuramenError: `data_unavailable`; soon it is known.
        """
        self.check_covered()
        if not self.is_sure:
            raise DuramenError(
                "data_unavailable",
                f"bookies hold more of e{self.epoch} than its sequencer has confirmed (to "
                f"n{self.lac}): whether it counts is known when it answers or is replaced",
                retry_after_ms=_RETRY_AFTER_MS,
            )

    def encode(self) -> dict[str, Any]:
        """The position P of docs/protocol/read-answers.md "Tail and segments"."""
        return encode_tail(self.seq_num, self.timestamp_ms, Dlsn(self.epoch, self.entry, 0))

    def encode_acknowledged(self) -> dict[str, Any]:
        """As `encode`, behind the highest record that is acknowledged."""
        if self.acknowledged is None:
            return self.encode()
        entry, seq_num, timestamp_ms = self.acknowledged
        return encode_tail(seq_num, timestamp_ms, Dlsn(self.epoch, entry, 0))


class _Round:
    """A look at the tail that is shared, and how far it has come."""

    def __init__(self) -> None:
        self.task: asyncio.Task[Tail]
        self.is_covered = asyncio.Event()
        self._asked_us: int | None = None

    def note_asked(self) -> None:
        """From now on it waits for bookies."""
        self._asked_us = read_clock_us()

    @property
    def has_metadata(self) -> bool:
        """Whether it has read the metadata."""
        return self._asked_us is not None

    @property
    def is_late(self) -> bool:
        """Whether it has waited for bookies for longer than who wants to read does."""
        if self._asked_us is None or self.is_covered.is_set():
            return False
        return read_clock_us() - self._asked_us >= REACH_WAIT_S * SECOND

    async def wait_cover(self) -> bool:
        """Whether enough bookies answer before long, or it ends otherwise."""
        covered = asyncio.create_task(self.is_covered.wait())
        try:
            ended, _ = await asyncio.wait(
                {self.task, covered}, timeout=REACH_WAIT_S, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            covered.cancel()
        return bool(ended)


class TailFinder:
    """Finds tails; one instance per process.

    Args:
        ask_owner: what the owner of a log says of its end; None: owners are not asked.
    """

    def __init__(
        self, bookies: Bookies, fetcher: RangeFetcher, ask_owner: AskOwner | None = None
    ) -> None:
        self._ask_owner = ask_owner
        self._bookies = bookies
        self._fetcher = fetcher
        self._next_rounds: dict[LogId, _Round] = {}
        self._running: dict[LogId, _Round] = {}
        self._locks: dict[LogId, asyncio.Lock] = {}
        self._round_count = 0

    async def find(self, follower: LogFollower) -> Tail:
        """The tail at some moment after the call; see `Tail.is_sure`.

        Raises:
            DuramenError: `data_unavailable` (no cover), `metadata_unavailable`, `log_not_found`.
        """
        return await asyncio.shield(self._share_round(follower).task)

    async def find_reach(self, follower: LogFollower) -> Tail:
        """As far as may be read now: the tail, or where that cannot be found what somebody knows.

        Raises:
            DuramenError: `data_unavailable` (nobody answers), `metadata_unavailable`,
                `log_not_found`.
        """
        running = self._running.get(follower.log_id)
        shared = running if running and running.is_late else self._share_round(follower)
        if not shared.is_late and await shared.wait_cover():
            try:
                return await asyncio.shield(shared.task)
            except DuramenError as error:
                if error.code not in ("data_unavailable", "metadata_unavailable"):
                    raise
        log = await follower.current_log()
        epoch = Epoch(log.last_clean_epoch + 1)
        segment = (await follower.current(epoch))[1]
        if segment is None or segment.is_closed:
            return await self.find(follower)  # it came, or was closed, just now
        lac = await self._find_any_lac(follower, segment)
        tail = await self._place(log, segment, lac, is_sure=False, is_covered=False)
        return tail._replace(is_current=shared.has_metadata)

    def statistics(self) -> dict[str, int]:
        """Rounds since the start, and logs with one under way."""
        return {"rounds": self._round_count, "under_way": len(self._locks)}

    def _share_round(self, follower: LogFollower) -> _Round:
        shared = self._next_rounds.get(follower.log_id)
        if shared is None:
            shared = self._next_rounds[follower.log_id] = _Round()
            shared.task = asyncio.create_task(self._run(follower, shared))
            shared.task.add_done_callback(take_failure)
        return shared

    async def _run(self, follower: LogFollower, shared: _Round) -> Tail:
        """One round at a time per log: whoever asks while one runs shares the next."""
        log_id = follower.log_id
        lock = self._locks.setdefault(log_id, asyncio.Lock())
        async with lock:
            del self._next_rounds[log_id]
            self._running[log_id] = shared
            self._round_count += 1
            try:
                while True:
                    tail = await self._look(follower, shared)
                    if tail is not None:
                        return tail
            finally:
                del self._running[log_id]
                if log_id not in self._next_rounds:
                    self._locks.pop(log_id, None)

    async def _look(self, follower: LogFollower, shared: _Round) -> Tail | None:
        """One round; None if the segment was closed meanwhile."""
        known = follower.peek(Epoch(1))
        guess = Epoch(1 if known is None else known[0].last_clean_epoch + 1)
        log, segment = await follower.refresh(guess, is_synced=True)
        epoch = Epoch(log.last_clean_epoch + 1)
        if epoch != guess:
            segment = (await follower.refresh(epoch, is_synced=True))[1]
        if epoch >= log.next_epoch:
            timestamp_ms = log.totals.max_timestamp_ms or 0
            return Tail(epoch, EntryId(0), NOTHING, log.totals.record_count, timestamp_ms)
        if segment is None or segment.is_closed:
            return None
        shared.note_asked()
        answers = await self._ask_cover(segment)
        shared.is_covered.set()
        lac, is_sure = await self._judge(follower, segment, log.config, answers)
        if not is_sure and segment.ack_mode != "ordered" and epoch == log.next_epoch - 1:
            return await self._take_word(log, segment, lac)
        is_sure = is_sure and not await self._has_early_appends(follower, log, segment)
        return await self._place(log, segment, lac, is_sure=is_sure)

    async def _take_word(self, log: LogNode, segment: SegmentBase, lac: EntryId) -> Tail:
        """What is read ends at what is complete, and the owner says what is acknowledged beyond.

        The log node was read after the question, and had no newer epoch: whatever was acknowledged
        before the question lies in this one at most, and the owner tells of it later.
        """
        word = None if self._ask_owner is None else await self._ask_owner(log.log_id)
        if word is None or word.epoch != segment.epoch or word.released.entry < lac:
            return await self._place(log, segment, lac, is_sure=False)
        released, acknowledged = (
            AcknowledgedEnd(
                EntryId(end.entry + 1),
                log.totals.record_count + end.record_count,
                max(log.totals.max_timestamp_ms or 0, end.timestamp_ms),
            )
            for end in (word.released, word.acknowledged)
        )
        return Tail(
            segment.epoch,
            released.entry,
            word.released.entry,
            released.seq_num,
            released.timestamp_ms,
            acknowledged=acknowledged,
        )

    async def _place(
        self,
        log: LogNode,
        segment: SegmentBase,
        lac: EntryId,
        *,
        is_sure: bool,
        is_covered: bool = True,
    ) -> Tail:
        """The position behind the LAC of the segment that follows upon the last closed one."""
        totals = Totals()
        if lac != NOTHING:
            totals = (await self._fetcher.fetch_header(segment, lac)).totals
        return Tail(
            segment.epoch,
            EntryId(lac + 1),
            lac,
            log.totals.record_count + totals.record_count,
            max(log.totals.max_timestamp_ms or 0, totals.max_timestamp_ms or 0),
            is_sure,
            is_covered,
        )

    async def _has_early_appends(
        self, follower: LogFollower, log: LogNode, segment: SegmentBase
    ) -> bool:
        """Whether a later segment has entries already: a bound on this one let them begin."""
        if segment.bound is None:
            return False
        for epoch in range(segment.epoch + 1, log.next_epoch):
            later = (await follower.refresh(Epoch(epoch), is_synced=True))[1]
            if later is None:
                continue
            if find_proved_lac(later) != NOTHING:
                return True  # they are stored by members that were replaced since, and not asked
            marks = (await self._ask_cover(later)).values()
            if any(mark.highest != NOTHING for mark in marks):
                return True
        return False

    async def _find_any_lac(self, follower: LogFollower, segment: SegmentBase) -> EntryId:
        """The highest LAC of those who answer first, or that anybody here knows.

        Raises:
            DuramenError: `data_unavailable`: there is none.
        """
        known = max(find_proved_lac(segment), follower.known_lac(segment.epoch))
        tasks = [asyncio.create_task(self._ask(segment, member)) for member in segment.members]
        asking = {*tasks}
        timeout_s = None if known == NOTHING else REACH_WAIT_S
        lacs: list[EntryId] = []
        try:
            while asking and not lacs:
                done, asking = await asyncio.wait(
                    asking, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
                )
                answers = [task.result()[1] for task in done]
                lacs = [marks.lac for marks in answers if marks.status in _ANSWERED]
                if not done:
                    break
        finally:
            for task in tasks:  # in this order: one that ends may let another begin
                task.cancel()
        if not lacs and known == NOTHING:
            raise DuramenError(
                "data_unavailable", f"none of the bookies of e{segment.epoch} answers"
            )
        return max([known, *lacs])

    async def _judge(
        self,
        follower: LogFollower,
        segment: SegmentBase,
        config: LogConfig,
        answers: dict[Member, Marks],
    ) -> tuple[EntryId, bool]:
        """The highest LAC that a covering set or anybody here knows; whether the set has no record
        above that."""
        # A writer that dies may have told its last LAC to one bookie, and readers have it from
        # there: a tail below what they have read would be none.
        known = follower.known_lac(segment.epoch)
        told = (marks.lac for marks in answers.values())
        lac = max([find_proved_lac(segment), known, *told])
        highest = EntryId(max(marks.highest for marks in answers.values()))
        if config.commit == "control" and await self._is_control(segment, lac, highest):
            return lac, True
        # The one with most entries first; another where it does not answer.
        members = sorted(answers, key=lambda member: (answers[member].highest, member))
        deadline_us = read_clock_us() + SETTLE_US
        while lac < highest and members and (rest_us := deadline_us - read_clock_us()) >= MS:
            # A wait of version 2 ends when its first entry may be shown.
            is_striped = isinstance(segment, Segment)
            poll = SendRead(
                0, members[-1], segment.ledger_id, LAST_ENTRY_ID if is_striped else highest,
                LAST_ENTRY_ID, 0, rest_us + READ_TIMEOUT_US, rest_us, highest,
                bound=None if is_striped else lac,
            )  # fmt: skip
            answer = await self._fetcher.fetch(poll)
            if answer.status not in _ANSWERED or answer.lac <= lac:
                members.pop()
            lac = max(lac, answer.lac)
        return lac, lac >= highest

    async def _is_control(self, segment: SegmentBase, lac: EntryId, highest: EntryId) -> bool:
        """Whether all that is stored above the LAC is a few entries without records."""
        if not lac < highest <= lac + _CONTROL_COUNT_MAX:
            return False
        try:
            for entry in range(lac + 1, highest + 1):
                header = await self._fetcher.fetch_header(segment, EntryId(entry))
                if not header.is_control:
                    return False
        except DuramenError:
            # One may not be stored at a replica that answers now: then the LAC decides.
            return False
        return True

    async def _ask_cover(self, segment: SegmentBase) -> dict[Member, Marks]:
        """Ask all whom new entries may go to, until those who answered cover it (R12, R23)."""
        answers: dict[Member, Marks] = {}
        tasks = [asyncio.create_task(self._ask(segment, member)) for member in segment.members]
        pending = {*tasks}
        try:
            while pending and not segment.is_sealed_by(answers):
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    member, marks = task.result()
                    if marks.status in _ANSWERED:
                        answers[member] = marks
        finally:
            for task in tasks:
                task.cancel()
        if not segment.is_sealed_by(answers):
            raise DuramenError(
                "data_unavailable",
                f"{len(answers)} of {len(segment.members)} bookies of e{segment.epoch} answer: "
                "too few to be sure of the tail",
            )
        return answers

    async def _ask(self, segment: SegmentBase, member: Member) -> tuple[Member, Marks]:
        return member, await self._bookies.read_lac(member, segment.ledger_id, READ_TIMEOUT_US)
