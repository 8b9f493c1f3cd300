"""Fetching entries from other bookies: read there, verify, add here as recovery's adds.

A pull goes through its ranges in their order. What is here already is passed over; of what is
missing a few runs at once are asked from the first source, what that one has not from the next, and
what came is stored through the normal add path: durable before it is counted, never raising a LAC,
not refused by a seal (R13). An entry of this bookie that is damaged is missing too, and is mended
so: whoever wrote the ledger encoded each entry once, so a verified entry of the same ledger and
number is that entry, whatever the damage left of its checksum.

Not here: who may ask (`calls`), which copies should be where (`core.repair`). Called by `calls`.
Source: docs/protocol/repair.md, R13, R15, R16.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from duramen.client.bookie_client import BookieClient
from duramen.core.bookie import BookieCore
from duramen.core.entry_ranges import EntryRanges
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, EntryId
from duramen.limits import (
    OVERLOADED_PAUSE_US,
    PULL_BYTES_MAX,
    PULL_TIME_US,
    READ_TIMEOUT_US,
    REPAIR_PIECE_BYTES,
)
from duramen.units import SECOND
from duramen.wire.bookie_calls import Add, ReadAnswer, ReadRange, ServiceClass
from duramen.wire.repair_calls import Pull, PullAnswer, PulledRange, Source
from duramen_bookie.metrics import PULLED_BYTES, PULLED_ENTRIES
from duramen_bookie.upkeep.pacing import Pace

_RUN_COUNT = 8
"""Runs that are asked for at once; each brings one entry at least, all together 36 MiB at most."""

_READ_TIME_MIN_US = 2 * SECOND
"""The last read of a call may take so long: its source may have to yield to clients, and what is
not answered in time counts as missing."""

_NO_LIFE_SIGN = (BookieStatus.UNREACHABLE, BookieStatus.TIMEOUT)
_WITHOUT_LEDGER = (BookieStatus.GONE, BookieStatus.WRONG_INCARNATION)

_REASON_OF = {
    BookieStatus.TIMEOUT: BookieStatus.UNREACHABLE,
    BookieStatus.OVERLOADED: BookieStatus.UNREACHABLE,
}
_REASONS = (
    # What is said of an entry that no source gave: the answer that leaves the most hope.
    BookieStatus.UNREACHABLE, BookieStatus.UNKNOWN, BookieStatus.WRONG_INCARNATION,
    BookieStatus.GONE, BookieStatus.NO_ENTRY,
)  # fmt: skip
_SILENCE = ReadAnswer(BookieStatus.UNREACHABLE, NOTHING, NOTHING, False, [])

Run = tuple[EntryId, EntryId]
"""First and last of entries that are missing here, without a gap."""

FindSource = Callable[[Source], Awaitable[Source | None]]
"""Where a bookie that a pull names is; None: it cannot be asked now."""

StoreCopies = Callable[[Sequence[Add], str], Awaitable[list[BookieStatus]]]
"""Adds rows as a client's are added; one status a row, when they are durable."""


class PullStoppedError(Exception):
    """The bookie stops; what was stored is durable, the rest was not begun."""


class Puller:
    """Carries out pulls, several at once.

    Args:
        core: knows what is here.
        client: reads from other bookies.
        find_source: tells where they are, whatever the pull says.
        store_copies: the data plane's.
        pace: of repair, shared by every pull of this bookie.
    """

    def __init__(
        self,
        core: BookieCore,
        client: BookieClient,
        find_source: FindSource,
        store_copies: StoreCopies,
        pace: Pace,
    ) -> None:
        self.core = core
        self.client = client
        self.find_source = find_source
        self._store_copies = store_copies
        self._pace = pace
        self.copied_count = 0
        self.copied_bytes = 0
        self.missing_count = 0

    async def pull(self, wanted: Pull) -> PullAnswer:
        """Fetch what is missing of the ranges, as far as one call goes.

        Raises:
            PullStoppedError: the bookie stops.
        """
        if not self.core.is_alive(wanted.ledger_id):
            return PullAnswer(BookieStatus.GONE)
        return await _OnePull(self, wanted).run()

    async def store(
        self, adds: Sequence[Add], deadline_us: int
    ) -> list[tuple[EntryId, BookieStatus]]:
        """Store copies at the pace of repair; OVERLOADED only if no room came in time."""
        if not await self._pace.admit(sum([len(add.entry) for add in adds])):
            raise PullStoppedError
        done: list[tuple[EntryId, BookieStatus]] = []
        left = list(adds)
        while left:
            statuses = await self._store_copies(left, "repair")
            is_late = _clock_us() + OVERLOADED_PAUSE_US >= deadline_us
            waiting: list[Add] = []
            for add, status in zip(left, statuses, strict=True):
                if status is BookieStatus.OVERLOADED and not is_late:
                    waiting.append(add)
                    continue
                done.append((add.entry_id, status))
                if status is BookieStatus.OK:
                    self.copied_count += 1
                    self.copied_bytes += len(add.entry)
                    PULLED_ENTRIES.inc()
                    PULLED_BYTES.inc(len(add.entry))
            left = waiting
            if left:
                await asyncio.sleep(OVERLOADED_PAUSE_US / SECOND)
        return sorted(done)

    def statistics(self) -> dict[str, int]:
        """Since the start."""
        return {
            "copied_entries": self.copied_count,
            "copied_bytes": self.copied_bytes,
            "missing_entries": self.missing_count,
        }


class _OnePull:
    """One call: what is undecided, and what became of the rest.

    Every round of `run` decides one entry at least of each run that it asks for.
    """

    def __init__(self, puller: Puller, wanted: Pull) -> None:
        self._puller = puller
        self._wanted = wanted
        self._deadline_us = _clock_us() + PULL_TIME_US
        self._budget_bytes = max(1, min(wanted.budget_bytes, PULL_BYTES_MAX))
        self._sources: list[Source] = []
        self._silent: list[Source] = []
        self._undecided = EntryRanges(wanted.ranges)
        self._decided: dict[BookieStatus, EntryRanges] = {BookieStatus.OK: EntryRanges()}
        self._copied_count = 0
        self._copied_bytes = 0

    async def run(self) -> PullAnswer:
        """Round by round until everything was tried, or the call has done enough."""
        core, ledger_id = self._puller.core, self._wanted.ledger_id
        await self._find_sources()
        first, last = self._wanted.ranges[0][0], self._wanted.ranges[-1][1]
        held = EntryRanges(core.list_held(ledger_id, first, last))
        for run_first, run_last in self._wanted.ranges:
            for held_first, held_last in held.within(run_first, run_last):
                self._decide(BookieStatus.OK, held_first, held_last)
        while self._undecided and not self._is_enough():
            await self._fetch(self._undecided.list_ranges()[:_RUN_COUNT])
            if not core.is_alive(ledger_id):
                return PullAnswer(BookieStatus.GONE)
        status = BookieStatus.OK
        if BookieStatus.READ_ONLY in self._decided:
            status = BookieStatus.READ_ONLY
        following = self._undecided.list_ranges()[0][0] if self._undecided else None
        ranges = sorted(
            PulledRange(part_first, part_last, why)
            for why, parts in self._decided.items()
            for part_first, part_last in parts
        )
        if following is not None:
            ranges = [
                part._replace(last=EntryId(min(part.last, following - 1)))
                for part in ranges
                if part.first < following
            ]
        return PullAnswer(status, following, self._copied_count, self._copied_bytes, ranges)

    async def _find_sources(self) -> None:
        """Where the sources are; one that cannot be found is silent, and might have everything."""
        for named in self._wanted.sources:
            is_late = _clock_us() >= self._deadline_us
            found = None if is_late else await self._puller.find_source(named)
            self._sources.append(named if found is None else found)
            if found is None:
                self._silent.append(named)

    def _is_enough(self) -> bool:
        return (
            self._copied_bytes >= self._budget_bytes
            or BookieStatus.READ_ONLY in self._decided
            or _clock_us() >= self._deadline_us
        )

    async def _fetch(self, runs: Sequence[Run]) -> None:
        """Ask the sources one after the other for what the ones before did not give; store it."""
        open_runs = list(runs)
        answers: dict[Run, list[ReadAnswer]] = {run: [] for run in runs}
        adds: list[Add] = []
        for source in self._sources:
            if not open_runs:
                break
            for run, answer in zip(open_runs, await self._read(source, open_runs), strict=True):
                answers[run].append(answer)
                adds += [self._add_of(entry_id, body) for entry_id, body in answer.entries]
            open_runs = [run for run in open_runs if not answers[run][-1].entries]
        for run in open_runs:
            self._decide(*_judge_missing(run, answers[run]))
        if adds:
            await self._store(adds)

    async def _read(self, source: Source, runs: Sequence[Run]) -> list[ReadAnswer]:
        """A source that gives no sign of life is not asked again by this call."""
        if source in self._silent:
            return [_SILENCE] * len(runs)
        ranges = [
            ReadRange(
                self._wanted.ledger_id, first, last, REPAIR_PIECE_BYTES // len(runs),
                service=ServiceClass.REPAIR,
            )
            for first, last in runs
        ]  # fmt: skip
        left_us = max(_READ_TIME_MIN_US, self._deadline_us - _clock_us())
        answers = await self._puller.client.read(source, ranges, min(left_us, READ_TIMEOUT_US))
        if any(answer.status in _NO_LIFE_SIGN for answer in answers):
            self._silent.append(source)
        return [
            answer._replace(entries=[one for one in answer.entries if first <= one[0] <= last])
            for (first, last), answer in zip(runs, answers, strict=True)
        ]

    def _add_of(self, entry_id: EntryId, body: bytes | memoryview) -> Add:
        lac = EntryId(min(self._wanted.lac, entry_id - 1))
        return Add(
            self._wanted.ledger_id,
            entry_id,
            lac,
            body,
            is_recovery=True,
            service=ServiceClass.REPAIR,
        )

    async def _store(self, adds: Sequence[Add]) -> None:
        sizes = {add.entry_id: len(add.entry) for add in adds}
        for entry_id, status in await self._puller.store(adds, self._deadline_us):
            if status is BookieStatus.OVERLOADED:
                continue  # undecided: the next call gets it
            self._decide(status, entry_id, entry_id)
            if status is BookieStatus.OK:
                self._copied_count += 1
                self._copied_bytes += sizes[entry_id]

    def _decide(self, status: BookieStatus, first: EntryId, last: EntryId) -> None:
        self._undecided.remove(first, last)
        self._decided.setdefault(status, EntryRanges()).add(first, last)
        if status is not BookieStatus.OK:
            self._puller.missing_count += last - first + 1


def _judge_missing(
    run: Run, answers: Sequence[ReadAnswer]
) -> tuple[BookieStatus, EntryId, EntryId]:
    """Why no source gave the first entry of a run, and up to where that holds.

    Of the whole run, if nobody is there to be asked, or if everybody who is says that the ledger
    ends before it.
    """
    first, last = run
    statuses = [_REASON_OF.get(answer.status, answer.status) for answer in answers]
    reason = next((one for one in _REASONS if one in statuses), BookieStatus.UNKNOWN)
    is_nobody_there = all(answer.status in _NO_LIFE_SIGN for answer in answers)
    is_beyond = all(
        answer.status is BookieStatus.NO_ENTRY and answer.highest < first for answer in answers
    )
    is_gone = all(answer.status in _WITHOUT_LEDGER for answer in answers)
    return reason, first, last if is_nobody_there or is_beyond or is_gone else first


def _clock_us() -> int:
    return time.monotonic_ns() // 1_000
