"""Fetching entries from other bookies: read there, verify, add here as recovery's adds.

A pull goes through its ranges in their order. What is here already is passed over; of what is
missing a few runs at once are asked from the first source, what that one has not from the next, and
what came is stored through the normal add path: durable before it is counted, never raising a LAC,
not refused by a seal (R13). An entry of this bookie that is damaged is missing too, and is mended
so: whoever wrote the ledger encoded each entry once, so a verified entry of the same ledger and
number is that entry, whatever the damage left of its checksum.

Of a flexible segment each copy gets an envelope: it names whom the source's names, and who pulls.

Not here: who may ask (`calls`), which copies should be where (`core.repair`). Called by `calls`.
Source: docs/protocol/repair.md, docs/protocol/envelopes.md, R13, R15, R16, R26.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from duramen.client.bookie_client import BookieClient
from duramen.core.bookie import BookieCore
from duramen.core.entry_ranges import EntryRanges
from duramen.core.status import BookieStatus
from duramen.ids import EntryId
from duramen.limits import (
    OVERLOADED_PAUSE_US,
    PULL_BYTES_MAX,
    PULL_TIME_US,
    READ_TIMEOUT_US,
    REPAIR_PIECE_BYTES,
)
from duramen.units import SECOND
from duramen.wire.bookie_calls import Add, ReadAnswer, ReadRange, ServiceClass
from duramen.wire.entry import read_entry_info
from duramen.wire.flexible.envelope import Envelope, encode_envelope
from duramen.wire.flexible.filtered_answers import FilteredAnswer
from duramen.wire.flexible.filtered_reads import FilteredRange
from duramen.wire.repair_calls import Pull, PullAnswer, PulledRange, PullMap, Source
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

Run = tuple[EntryId, EntryId]
"""First and last of entries that are missing here, without a gap."""

FindSource = Callable[[Source], Awaitable[Source | None]]
"""Where a bookie that a pull names is; None: it cannot be asked now."""

StoreCopies = Callable[[Sequence[Add], str], Awaitable[list[BookieStatus]]]
"""Adds rows as a client's are added; one status a row, when they are durable."""


class _Copy(NamedTuple):
    """An entry that a source gave, and what lies beside it there."""

    entry_id: EntryId
    body: bytes | memoryview
    envelope: Envelope | None = None


class _Word(NamedTuple):
    """What a source says of a run."""

    status: BookieStatus
    """Of its first entry."""
    until: EntryId
    """The last entry of which it says that."""
    copies: Sequence[_Copy] = ()


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
        words: dict[Run, list[_Word]] = {run: [] for run in runs}
        adds: list[Add] = []
        for source in self._sources:
            if not open_runs:
                break
            for run, word in zip(open_runs, await self._read(source, open_runs), strict=True):
                words[run].append(word)
                adds += [self._add_of(copy) for copy in word.copies]
            open_runs = [run for run in open_runs if not words[run][-1].copies]
        for run in open_runs:
            self._decide(*_judge_missing(run, words[run]))
        if adds:
            await self._store(adds)

    async def _read(self, source: Source, runs: Sequence[Run]) -> list[_Word]:
        """A source that gives no sign of life is not asked again by this call."""
        if source in self._silent:
            return [_Word(BookieStatus.UNREACHABLE, last) for _, last in runs]
        ranges = [
            ReadRange(
                self._wanted.ledger_id, first, last, REPAIR_PIECE_BYTES // len(runs),
                service=ServiceClass.REPAIR,
            )
            for first, last in runs
        ]  # fmt: skip
        left_us = max(_READ_TIME_MIN_US, self._deadline_us - _clock_us())
        words = await self._ask(source, ranges, min(left_us, READ_TIMEOUT_US))
        if any(word.status in _NO_LIFE_SIGN for word in words):
            self._silent.append(source)
        return words

    async def _ask(
        self, source: Source, ranges: Sequence[ReadRange], timeout_us: int
    ) -> list[_Word]:
        client = self._puller.client
        if self._wanted.node_map is None:
            answers = await client.read(source, ranges, timeout_us)
            return [_hear(*pair) for pair in zip(ranges, answers, strict=True)]
        asked = [FilteredRange(wanted, with_envelopes=True) for wanted in ranges]
        filtered = await client.read_filtered(source, asked, timeout_us)
        return [_hear_filtered(*pair) for pair in zip(ranges, filtered, strict=True)]

    def _add_of(self, copy: _Copy) -> Add:
        ledger_id, entry_id = self._wanted.ledger_id, copy.entry_id
        lac = EntryId(min(self._wanted.lac, entry_id - 1))
        envelope = b""
        if copy.envelope is not None and self._wanted.node_map is not None:
            named = name_copy(copy.envelope, self._wanted.node_map)
            identity = read_entry_info(bytes(copy.body)).crc
            envelope = encode_envelope(named, ledger_id, entry_id, identity)
        return Add(
            ledger_id,
            entry_id,
            lac,
            copy.body,
            is_recovery=True,
            service=ServiceClass.REPAIR,
            envelope=envelope,
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


def name_copy(source: Envelope, node_map: PullMap) -> Envelope:
    """The envelope of a copy that repair makes of a source's.

    Who is not in the map is left out, else copysets grow with each repair. Who pulls comes last: it
    sends where nobody sends who had the entry before.
    """
    kept = tuple([number for number in source.copyset if number in node_map.numbers])
    copyset = kept if node_map.own in kept else (*kept, node_map.own)
    return source._replace(copyset=copyset)


def _hear(wanted: ReadRange, answer: ReadAnswer) -> _Word:
    """What a plain read says: entries from the first one on, or why not that one.

    It holds of the whole run, if nobody is there, or the ledger is not, or ends before it.
    """
    first, last = wanted.first, wanted.last
    copies = [_Copy(*one) for one in answer.entries if first <= one[0] <= last]
    is_beyond = answer.status is BookieStatus.NO_ENTRY and answer.highest < first
    is_of_all = is_beyond or answer.status in (*_NO_LIFE_SIGN, *_WITHOUT_LEDGER)
    return _Word(answer.status, last if is_of_all else first, copies)


def _hear_filtered(wanted: ReadRange, answer: FilteredAnswer) -> _Word:
    """What a read with envelopes says of a run; it had no filter, so that absence is absence."""
    first, last = wanted.first, wanted.last
    if answer.status is not BookieStatus.OK:
        is_of_all = answer.status in (*_NO_LIFE_SIGN, *_WITHOUT_LEDGER)
        return _Word(answer.status, last if is_of_all else first)
    if answer.entries:
        envelopes = answer.envelopes
        copies = [_Copy(entry, body, envelopes.get(entry)) for entry, body in answer.entries]
        return _Word(BookieStatus.OK, first, copies)
    doubt = next(iter(answer.unvouched), None)
    if doubt is not None and doubt[0] == first:
        return _Word(BookieStatus.UNKNOWN, doubt[1])
    end = answer.next if doubt is None else doubt[0]
    if end == first:
        return _Word(BookieStatus.OVERLOADED, first)
    return _Word(BookieStatus.NO_ENTRY, EntryId(end - 1))


def _judge_missing(run: Run, words: Sequence[_Word]) -> tuple[BookieStatus, EntryId, EntryId]:
    """Why no source gave the first entry of a run, and up to where all of them say the same."""
    statuses = [_REASON_OF.get(word.status, word.status) for word in words]
    reason = next((one for one in _REASONS if one in statuses), BookieStatus.UNKNOWN)
    return reason, run[0], min([word.until for word in words])


def _clock_us() -> int:
    return time.monotonic_ns() // 1_000
