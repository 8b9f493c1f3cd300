"""Where a log ends, linearizably: what was acknowledged before the question lies below it.

A synced read of the log node tells the segment that readers are in; a covering set of its last
fragment (R12, for every write set) tells the highest LAC. An acknowledged entry may not be covered
by a LAC yet (the writer sends it within the commit delay), but it is stored: if the cover has seen
entries above the LAC, the finder waits for the LAC to reach them; not for control entries, which
carry the LAC of all records before them (`commit: control`). If it does not, because their
sequencer died or is cut off, only recovery knows whether they count: the tail that was found is not
sure, and is shown to nobody as the end.

Rounds are shared by those who asked before one began, never by those who came later.
Called by reads that reach the end, by `GET …/records/tail` and by `duramen.client.core`.
Source: 01-protocol section 8, R12; docs/protocol/read-answers.md.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple

from duramen.config import LogConfig
from duramen.core.quorum import covers, write_sets
from duramen.core.reading.effects import SendRead
from duramen.core.segment import Segment
from duramen.core.status import BookieStatus
from duramen.errors import DuramenError
from duramen.ids import LAST_ENTRY_ID, NOTHING, Dlsn, EntryId, Epoch, LogId, Member
from duramen.limits import READ_TIMEOUT_US
from duramen.runtime.reading.bookies import Bookies, RangeFetcher, read_clock_us
from duramen.runtime.reading.metadata import LogFollower
from duramen.units import MS, SECOND
from duramen.wire.bookie_calls import Marks
from duramen.wire.record_json import spell_mark

SETTLE_US: Final = 1 * SECOND
"""How long a LAC is waited for: many times what an append and its commit delay take."""

_CONTROL_COUNT_MAX: Final = 8
"""A control entry for the LAC, or a snapshot in parts: more than these are looked at by nobody."""

_RETRY_AFTER_MS: Final = 500

_ANSWERED: Final = (BookieStatus.OK, BookieStatus.NO_ENTRY, BookieStatus.SEALED)


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

    def check_sure(self) -> None:
        """Refuse to call it the tail where it may be too low.

        Raises:
            DuramenError: `data_unavailable`; soon it is known.
        """
        if not self.is_sure:
            raise DuramenError(
                "data_unavailable",
                f"bookies hold more of e{self.epoch} than its sequencer has confirmed (to "
                f"n{self.lac}): whether it counts is known when it answers or is replaced",
                retry_after_ms=_RETRY_AFTER_MS,
            )

    def spell(self) -> dict[str, Any]:
        """The position P of 08-interfaces."""
        return spell_mark(self.seq_num, self.timestamp_ms, Dlsn(self.epoch, self.entry, 0))


class TailFinder:
    """Finds tails; one instance per process."""

    def __init__(self, bookies: Bookies, fetcher: RangeFetcher) -> None:
        self._bookies = bookies
        self._fetcher = fetcher
        self._next_rounds: dict[LogId, asyncio.Task[Tail]] = {}
        self._locks: dict[LogId, asyncio.Lock] = {}
        self._round_count = 0

    async def find(self, follower: LogFollower) -> Tail:
        """The tail at some moment after the call; see `Tail.is_sure`.

        Raises:
            DuramenError: `data_unavailable` (no cover), `metadata_unavailable`, `log_not_found`.
        """
        task = self._next_rounds.get(follower.log_id)
        if task is None:
            task = asyncio.create_task(self._run(follower))
            self._next_rounds[follower.log_id] = task
        return await asyncio.shield(task)

    def statistics(self) -> dict[str, int]:
        """Rounds since the start, and logs with one under way."""
        return {"rounds": self._round_count, "under_way": len(self._locks)}

    async def _run(self, follower: LogFollower) -> Tail:
        """One round at a time per log: whoever asks while one runs shares the next."""
        log_id = follower.log_id
        lock = self._locks.setdefault(log_id, asyncio.Lock())
        async with lock:
            del self._next_rounds[log_id]
            self._round_count += 1
            try:
                while True:
                    tail = await self._look(follower)
                    if tail is not None:
                        return tail
            finally:
                if log_id not in self._next_rounds:
                    self._locks.pop(log_id, None)

    async def _look(self, follower: LogFollower) -> Tail | None:
        """One round; None if the segment was closed meanwhile."""
        known = follower.peek(Epoch(1))
        guess = Epoch(1 if known is None else known[0].last_clean_epoch + 1)
        log, segment = await follower.refresh(guess, is_synced=True)
        epoch = Epoch(log.last_clean_epoch + 1)
        if epoch != guess:
            segment = (await follower.refresh(epoch))[1]
        timestamp_ms = log.totals.max_timestamp_ms or 0
        if epoch >= log.next_epoch:
            return Tail(epoch, EntryId(0), NOTHING, log.totals.record_count, timestamp_ms)
        if segment is None or segment.is_closed:
            return None
        lac, is_sure = await self._cover(follower, segment, log.config)
        if lac == NOTHING:
            return Tail(epoch, EntryId(0), lac, log.totals.record_count, timestamp_ms, is_sure)
        totals = (await self._fetcher.fetch_header(segment, lac)).totals
        return Tail(
            epoch,
            EntryId(lac + 1),
            lac,
            log.totals.record_count + totals.record_count,
            max(timestamp_ms, totals.max_timestamp_ms or 0),
            is_sure,
        )

    async def _cover(
        self, follower: LogFollower, segment: Segment, config: LogConfig
    ) -> tuple[EntryId, bool]:
        """The highest LAC that a covering set or anybody here knows; whether the set has no record
        above that."""
        answers = await self._ask_cover(segment)
        first_entry = segment.last_fragment.first_entry
        # A writer that dies may have told its last LAC to one bookie, and readers have it from
        # there: a tail below what they have read would be none.
        known = follower.known_lac(segment.epoch)
        lac = EntryId(max([first_entry - 1, known, *(marks.lac for marks in answers.values())]))
        highest = EntryId(max(marks.highest for marks in answers.values()))
        if config.commit == "control" and await self._is_control(segment, lac, highest):
            return lac, True
        # The one with most entries first; another where it does not answer.
        members = sorted(answers, key=lambda member: (answers[member].highest, member))
        deadline_us = read_clock_us() + SETTLE_US
        while lac < highest and members and (rest_us := deadline_us - read_clock_us()) >= MS:
            poll = SendRead(
                0, members[-1], segment.ledger_id, LAST_ENTRY_ID, LAST_ENTRY_ID, 0,
                rest_us + READ_TIMEOUT_US, rest_us, highest,
            )  # fmt: skip
            answer = await self._fetcher.fetch(poll)
            if answer.status not in _ANSWERED or answer.lac <= lac:
                members.pop()
            lac = max(lac, answer.lac)
        return lac, lac >= highest

    async def _is_control(self, segment: Segment, lac: EntryId, highest: EntryId) -> bool:
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

    async def _ask_cover(self, segment: Segment) -> dict[Member, Marks]:
        """Ask the whole last fragment, until those who answered cover it."""
        ensemble = segment.last_fragment.ensemble
        sets = write_sets(ensemble, segment.quorum)
        answers: dict[Member, Marks] = {}
        pending = {asyncio.create_task(self._ask(segment, member)) for member in ensemble}
        try:
            while pending and not covers(answers, sets, segment.quorum.ack_quorum):
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    member, marks = task.result()
                    if marks.status in _ANSWERED:
                        answers[member] = marks
        finally:
            for task in pending:
                task.cancel()
        if not covers(answers, sets, segment.quorum.ack_quorum):
            raise DuramenError(
                "data_unavailable",
                f"{len(answers)} of {len(ensemble)} bookies of e{segment.epoch} answer: "
                "too few to be sure of the tail",
            )
        return answers

    async def _ask(self, segment: Segment, member: Member) -> tuple[Member, Marks]:
        return member, await self._bookies.read_lac(member, segment.ledger_id, READ_TIMEOUT_US)
