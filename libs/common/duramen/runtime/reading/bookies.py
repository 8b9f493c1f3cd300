"""The bookies as a reader sees them: calls, verification of every entry, shared reads.

`Bookies` knows who is there (roster) and translates every way of not answering into a status, so
that nothing above handles exceptions of the network; a bookie that is overloaded is left alone for
as long as it asks, by all readers, and only in the class that it refused. `RangeFetcher` lays cache
and single flight over it: concurrent readers of the same range share one request, and readers that
wait at the same tail share one long poll, which is given up when the last of them goes. Who has
waited too long for a bookie asks another one, and shares that request too.

Not here: which replica to ask and what may be shown (`duramen.core.reading.reader`).
Called by `log_reader`, `tail` and `positioning`. Source: docs/protocol/reading.md "Which replica",
R1, R15.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.reading.effects import SendRead
from duramen.core.reading.polling import SECOND_POLL_US
from duramen.core.reading.range_read import AskNode, Finish, NodeAnswer, WantedEntries
from duramen.core.reading.read_ahead import FIRST_BYTES
from duramen.core.reading.replica_order import Place, ReplicaOrder
from duramen.core.reading.striped_read import StripedRead
from duramen.core.segment import Segment
from duramen.core.segment_base import SegmentBase
from duramen.core.status import BookieStatus
from duramen.errors import DuramenError
from duramen.ids import NOTHING, BookieId, EntryId, Incarnation, LedgerId, Member
from duramen.limits import OVERLOADED_PAUSE_US, READ_BYTES_MAX
from duramen.runtime.http_client import (
    NoAnswerError,
    OverloadedError,
    PeerClient,
    UnreachableError,
)
from duramen.runtime.reading.cache import EntryCache
from duramen.runtime.reading.cold_reads import ColdReads
from duramen.runtime.reading.flexible_reads import FlexibleReads
from duramen.runtime.reading.range_reads import ReadRunner
from duramen.runtime.registry import Roster
from duramen.runtime.security.peers import Learn
from duramen.runtime.shared_tasks import take_failure
from duramen.runtime.stores.metadata_store import MetadataStore
from duramen.units import MS, SECOND
from duramen.wire.bookie_calls import (
    LacUpdate,
    Marks,
    ReadAnswer,
    ReadRange,
    ServiceClass,
    pack_lacs,
    pack_reads,
    parse_marks,
    parse_read_answers,
    verify_read,
)
from duramen.wire.entry import EntryInfo, read_entry_info
from duramen.wire.flexible.filtered_answers import (
    FilteredAnswer,
    parse_filtered_answers,
    verify_filtered,
)
from duramen.wire.flexible.filtered_reads import FilteredRange, pack_filtered_reads
from duramen.wire.frame import FrameError


def read_clock_us() -> int:
    """Monotonic microseconds: the `now_us` of every core in this process."""
    return time.monotonic_ns() // 1000


def _now_us() -> int:
    """The clock by its name, for who keeps it: the simulator puts another one in its place."""
    return read_clock_us()


class Bookies:
    """Calls to bookies by member; one instance per process.

    Args:
        client: None: one of its own.
        learn: as of `Roster`, of bookies.
    """

    def __init__(
        self,
        store: MetadataStore,
        available: str,
        here: Place,
        rng: Random,
        *,
        client: PeerClient | None = None,
        learn: Learn | None = None,
    ) -> None:
        self.order = ReplicaOrder(here, rng)
        self._client = client or PeerClient()
        self._roster = Roster(store, available, self._on_change, learn=learn)
        self._urls: dict[BookieId, str] = {}
        self._incarnations: dict[BookieId, Incarnation] = {}
        self._counts: Counter[str] = Counter()
        self._busy_until_us: dict[tuple[Member, ServiceClass], int] = {}

    async def start(self) -> None:
        """Follow the roster."""
        await self._roster.start()

    async def stop(self) -> None:
        """Stop following and close the connections."""
        await self._roster.stop()
        await self._client.close()

    async def read(self, member: Member, wanted: ReadRange, timeout_us: int) -> ReadAnswer:
        """Read a range; every entry in the answer was verified (whole ones by their checksum).

        A damaged entry cuts the answer before it; none left is UNKNOWN.
        """
        return (await self.read_ranges(member, [wanted], timeout_us))[0]

    async def read_ranges(
        self, member: Member, wanted: Sequence[ReadRange], timeout_us: int
    ) -> list[ReadAnswer]:
        """Read ranges of one class in one call, each as `read`; the first tells how the bookie is.

        An answer has a bound: ranges that find it used up are OVERLOADED, and may be asked again.
        """
        service = wanted[0].service
        body = pack_reads(member.incarnation, wanted)
        begun_us = read_clock_us()
        answer = await self._call(member, service, "read", body, timeout_us)
        if isinstance(answer, BookieStatus):
            return [_no_answer(answer)] * len(wanted)
        try:
            parsed = parse_read_answers(answer)
        except (FrameError, ValueError):
            parsed = []
        if len(parsed) != len(wanted):
            self._counts["malformed"] += 1
            return [_no_answer(BookieStatus.UNKNOWN)] * len(wanted)
        if parsed[0].status is BookieStatus.OVERLOADED:
            self._leave_alone(member, service, OVERLOADED_PAUSE_US)
        elif not wanted[0].wait_ms:
            now_us = read_clock_us()
            self.order.on_latency(member, now_us - begun_us, now_us)
        pairs = zip(parsed, wanted, strict=True)
        return [self._verify(answer, asked) for answer, asked in pairs]

    async def read_filtered(
        self, member: Member, wanted: FilteredRange, timeout_us: int
    ) -> FilteredAnswer:
        """Read a range of a flexible segment; what is broken in the answer is in its `unvouched`.

        What does not fit the request is no answer.
        """
        service = wanted.wanted.service
        body = pack_filtered_reads(member.incarnation, [wanted])
        begun_us = read_clock_us()
        data = await self._call(member, service, "read", body, timeout_us)
        if isinstance(data, BookieStatus):
            return _no_filtered_answer(data, wanted)
        try:
            (answer,) = parse_filtered_answers(data)
            checked = verify_filtered(answer, wanted)
        except (FrameError, ValueError):
            self._counts["malformed"] += 1
            return _no_filtered_answer(BookieStatus.UNKNOWN, wanted)
        if checked.status is BookieStatus.OVERLOADED:
            self._leave_alone(member, service, OVERLOADED_PAUSE_US)
        elif not wanted.wanted.wait_ms:
            now_us = read_clock_us()
            self.order.on_latency(member, now_us - begun_us, now_us)
        self._counts["damaged"] += len(answer.entries) - len(checked.entries)
        return checked

    async def read_lac(self, member: Member, ledger_id: LedgerId, timeout_us: int) -> Marks:
        """Where the member sees the LAC and the highest entry of a ledger.

        One that is overloaded is asked again, when it says and while there is time.
        """
        body = pack_lacs(member.incarnation, [LacUpdate(ledger_id, NOTHING, is_write=False)])
        service, deadline_us = ServiceClass.TAIL_READ, read_clock_us() + timeout_us
        while True:
            left_us = deadline_us - read_clock_us()
            answer = await self._call(member, service, "lac", body, left_us)
            until_us = self._busy_until_us.get((member, service), 0)
            if answer is not BookieStatus.OVERLOADED or until_us >= deadline_us:
                break
            await asyncio.sleep(max(0, until_us - read_clock_us()) / SECOND)
        if isinstance(answer, BookieStatus):
            return Marks(answer, NOTHING, NOTHING)
        try:
            (marks,) = parse_marks(answer, b"DLCR")
        except (FrameError, ValueError):
            self._counts["malformed"] += 1
            return Marks(BookieStatus.UNKNOWN, NOTHING, NOTHING)
        return marks

    def statistics(self) -> dict[str, int]:
        """Bookies that are there, and calls and failures since the start."""
        return {"available": len(self._roster.nodes), **dict(sorted(self._counts.items()))}

    def _on_change(self) -> None:
        places: dict[BookieId, Place] = {}
        for name, fields in sorted(self._roster.nodes.items()):
            bookie = BookieId(name)
            url = fields.get("data_url")
            if not isinstance(url, str):
                continue
            self._urls[bookie] = url
            self._incarnations[bookie] = Incarnation(str(fields.get("incarnation")))
            places[bookie] = Place(str(fields.get("region")), str(fields.get("rack")))
        self.order.on_places(places)

    async def _call(
        self, member: Member, service: ServiceClass, verb: str, body: bytes, timeout_us: int
    ) -> bytes | BookieStatus:
        url = self._urls.get(member.bookie)
        if url is None:
            return BookieStatus.UNREACHABLE
        if read_clock_us() < self._busy_until_us.get((member, service), 0):
            self._counts["spared"] += 1
            return BookieStatus.OVERLOADED
        self._counts[f"{verb}_calls"] += 1
        try:
            return await self._client.call(f"{url}/b/{verb}", body, timeout_us)
        except UnreachableError:
            status = BookieStatus.UNREACHABLE
        except OverloadedError as error:
            self._leave_alone(member, service, error.retry_after_us)
            status = BookieStatus.OVERLOADED
        except NoAnswerError:
            status = BookieStatus.TIMEOUT
        self._counts[status.name.lower()] += 1
        if status is not BookieStatus.OVERLOADED:
            # Whoever asked may have gone on with another one long ago, and would not say it.
            self.order.on_failure(member, read_clock_us())
        return status

    def _leave_alone(self, member: Member, service: ServiceClass, duration_us: int) -> None:
        """Its advice counts for every reader of this process, in the class that it refused."""
        self._busy_until_us[member, service] = read_clock_us() + duration_us

    def _verify(self, answer: ReadAnswer, wanted: ReadRange) -> ReadAnswer:
        checked = verify_read(answer, wanted)
        if len(checked.entries) < len(answer.entries):
            self._counts["damaged"] += 1
        return checked


FlightKey = tuple[LedgerId, EntryId, bool]
"""Ledger, the entry that is wanted or waited for, and whether it is waited for."""


class _SharedRead:
    """One request upstream and how many wait for it."""

    def __init__(self, member: Member, task: asyncio.Task[ReadAnswer]) -> None:
        self.member = member
        self.task = task
        self.begun_us = read_clock_us()
        self.waiter_count = 0


class RangeFetcher:
    """Reads through the cache, one request upstream for all who want the same."""

    def __init__(self, bookies: Bookies, cache: EntryCache, cold: ColdReads | None = None) -> None:
        self.order = bookies.order
        self._cold = cold
        self._bookies = bookies
        self._cache = cache
        self._flexible = FlexibleReads(bookies, cache, _now_us)
        self._flights: dict[FlightKey, dict[Member, _SharedRead]] = {}
        self._joined_count = 0
        self._early_count = 0
        self._coming: set[tuple[LedgerId, int]] = set()
        """Entries that are asked for ahead of their readers now."""

    def find_cached(self, read: SendRead) -> ReadAnswer | None:
        """The answer as far as the cache has it; None for long polls and if it has nothing.

        In a striped segment it does not matter whom an entry came from: the run may be longer than
        what the member holds.
        """
        if read.wait_us:
            return None
        last = read.beyond[-1][1] if read.beyond else read.last
        run = self._cache.get_run(read.ledger_id, read.first, last, read.bytes_max)
        if not run and read.is_cold and self._cold is not None:
            run = self._cold.find_run(read.ledger_id, read.first, last, read.bytes_max)
        return ReadAnswer(BookieStatus.OK, NOTHING, NOTHING, False, run) if run else None

    def find_run(
        self, ledger_id: LedgerId, first: EntryId, last: EntryId
    ) -> list[tuple[EntryId, bytes]]:
        """The entries from `first` on that the cache has without a gap."""
        return self._cache.get_run(ledger_id, first, last, READ_BYTES_MAX)

    async def fetch(self, read: SendRead) -> ReadAnswer:
        """Carry out a read; joins one that is under way for the same entries.

        Whoever reads them first waits for another member that was asked just now, and asks its own
        one where that gives nothing or is late. A second read is for its own member alone. A read
        that nobody waits for any more still fills the cache; a long poll is given up.
        """
        key = (read.ledger_id, read.wait_for if read.wait_us else read.first, read.wait_us > 0)
        if not read.is_second:
            answer = await self._join(key, read.member)
            if answer is not None and (answer.entries or read.wait_us):
                return answer
        flight = self._flights.setdefault(key, {}).get(read.member)
        if flight is None:
            flight = _SharedRead(read.member, asyncio.create_task(self._request(read)))
            self._flights[key][read.member] = flight
            flight.task.add_done_callback(lambda _: self._end(key, flight))
            flight.task.add_done_callback(take_failure)
        else:
            self._joined_count += 1
        answer = await self._wait(key, flight, None)
        assert answer is not None, "it was waited for without a bound"
        return answer

    async def fetch_nodes(self, read: SendRead, segment: FlexibleSegment) -> Finish:
        """Carry out a read of all nodes of a flexible segment; joins one for the same entries."""
        assert read.is_of_all_nodes, read
        wanted = WantedEntries(read.first, read.last, read.bytes_max)
        return await self._flexible.read(segment, wanted)

    async def _join(self, key: FlightKey, member: Member) -> ReadAnswer | None:
        """What another member gives that was asked last, until it is late; None: nobody was."""
        flights = self._flights.get(key)
        if not flights or member in flights:
            return None
        delay_us = SECOND_POLL_US if key[2] else self.order.speculation.delay_us(1)
        flight = next(reversed(flights.values()))
        left_us = flight.begun_us + delay_us - read_clock_us()
        if left_us <= 0:
            return None
        self._joined_count += 1
        return await self._wait(key, flight, left_us / SECOND)

    async def _wait(
        self, key: FlightKey, flight: _SharedRead, timeout_s: float | None
    ) -> ReadAnswer | None:
        """The answer to a request upstream; None if it does not come in time."""
        flight.waiter_count += 1
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(flight.task)
        except TimeoutError:
            return None
        finally:
            flight.waiter_count -= 1
            if key[2] and flight.waiter_count == 0 and not flight.task.done():
                flight.task.cancel()
                self._end(key, flight)

    @property
    def cold(self) -> ColdReads:
        """Reads of what has left the bookies.

        Raises:
            DuramenError: `cold_store_unavailable`: this process was not told of one.
        """
        if self._cold is None:
            raise DuramenError(
                "cold_store_unavailable",
                "the records lie in the cold store alone, and this process knows none: start it "
                "with --cold-store URL, or give the core library cold_store=URL",
            )
        return self._cold

    async def fetch_header(self, segment: SegmentBase, entry_id: EntryId) -> EntryInfo:
        """The header of one entry, from the first replica that has it.

        Raises:
            DuramenError: `data_unavailable`: none gave it; `overloaded`: one would have.
        """
        cached = self._cache.get(segment.ledger_id, entry_id)
        if cached is not None:
            return read_entry_info(cached)
        ((_, header),) = await self._read_any(segment, entry_id, entry_id, 4096, headers_only=True)
        return read_entry_info(header)

    async def fetch_run(
        self, segment: SegmentBase, first: EntryId, last: EntryId, bytes_max: int
    ) -> list[tuple[EntryId, bytes]]:
        """Entries from `first` on without a gap, from the first replica that has that one.

        Args:
            last: none above it; entries of a hole must not be asked for.
            bytes_max: one entry comes whatever its size.

        Raises:
            As `fetch_header`.
        """
        run = self._cache.get_run(segment.ledger_id, first, last, bytes_max)
        if run:
            return run
        run = await self._read_any(segment, first, last, bytes_max, headers_only=False)
        for entry_id, body in run:
            self._cache.put(segment.ledger_id, entry_id, body)
        return run

    async def fetch_ahead(self, segment: SegmentBase) -> None:
        """The first entries of a CLOSED segment, into the cache.

        Raises:
            As `fetch_header`.
        """
        last = segment.last_entry
        assert last is not None, segment
        absent = [first for first, _ in (*segment.holes, *segment.lost)]
        last = EntryId(min([last, *(first - 1 for first in absent)]))
        if last >= 0 and not self._is_coming(segment.ledger_id, EntryId(0)):
            self._early_count += 1
            await self.fetch_run(segment, EntryId(0), last, FIRST_BYTES)

    async def _read_any(
        self,
        segment: SegmentBase,
        first: EntryId,
        last: EntryId,
        bytes_max: int,
        *,
        headers_only: bool,
    ) -> list[tuple[EntryId, bytes]]:
        wanted = WantedEntries(first, last, bytes_max, headers_only)
        if isinstance(segment, FlexibleSegment):
            finish = await self._flexible.read(segment, wanted)
        else:
            assert isinstance(segment, Segment), segment
            finish = await self._read_striped(segment, wanted)
        run = [(entry_id, body) for entry_id, body in finish.entries if entry_id <= last]
        if run:
            return run
        if finish.status is BookieStatus.OVERLOADED:
            raise DuramenError(
                "overloaded", f"no replica of e{segment.epoch}n{first} has room for a read now"
            )
        raise DuramenError(
            "data_unavailable", f"no replica of e{segment.epoch}n{first} can be read now"
        )

    async def _read_striped(self, segment: Segment, wanted: WantedEntries) -> Finish:
        async def ask(call: AskNode) -> NodeAnswer:
            asked = ReadRange(
                segment.ledger_id, call.first, call.last, call.bytes_max,
                headers_only=call.headers_only, service=ServiceClass.CATCH_UP_READ,
            )  # fmt: skip
            answer = await self._bookies.read(call.member, asked, call.timeout_us)
            entries = [(entry_id, bytes(body)) for entry_id, body in answer.entries]
            return NodeAnswer(answer.status, answer.lac, entries)

        runner = ReadRunner(StripedRead(segment, self.order), ask, read_clock_us)
        try:
            return await runner.read(wanted)
        finally:
            runner.close()

    async def stop(self) -> None:
        """Give up what is under way."""
        tasks = [flight.task for flights in self._flights.values() for flight in flights.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._flexible.stop()
        if self._cold is not None:
            await self._cold.stop()

    def statistics(self) -> dict[str, Any]:
        """Requests under way, and how often one was shared."""
        counts = [(is_poll, len(flights)) for (*_, is_poll), flights in self._flights.items()]
        polls = sum(count for is_poll, count in counts if is_poll)
        return {
            "cold": None if self._cold is None else self._cold.statistics(),
            "reads": sum(count for _, count in counts) - polls,
            "long_polls": polls,
            "joined": self._joined_count,
            "segments_early": self._early_count,
            "entries_ahead": len(self._coming),
            **self._flexible.statistics(),
        }

    async def _request(self, read: SendRead) -> ReadAnswer:
        if read.bound is not None:
            return await self._flexible.poll(read, read.bound)
        wanted = ReadRange(
            read.ledger_id, read.first, read.last, read.bytes_max,
            wait_ms=read.wait_us // MS, wait_for=read.wait_for,
            service=ServiceClass.TAIL_READ if read.wait_us else ServiceClass.CATCH_UP_READ,
        )  # fmt: skip
        ahead = self._find_missing(read, wanted)
        coming = {(a.ledger_id, entry) for a in ahead for entry in range(a.first, a.last + 1)}
        self._coming |= coming
        try:
            answers = await self._bookies.read_ranges(
                read.member, [wanted, *ahead], read.timeout_us
            )
        finally:
            self._coming -= coming
        for answer in answers:
            for entry_id, body in answer.entries:
                assert isinstance(body, bytes)
                self._cache.put(read.ledger_id, entry_id, body)
        return answers[0]

    def _find_missing(self, read: SendRead, wanted: ReadRange) -> list[ReadRange]:
        """The parts of `beyond` that are neither here nor under way."""
        missing: list[ReadRange] = []
        for first, last in read.beyond:
            begin = first
            for entry in range(first, last + 2):
                if entry > last or self._is_coming(read.ledger_id, EntryId(entry)):
                    if entry > begin:
                        end = EntryId(entry - 1)
                        missing.append(wanted._replace(first=begin, last=end))
                    begin = EntryId(entry + 1)
        return missing

    def _is_coming(self, ledger_id: LedgerId, entry_id: EntryId) -> bool:
        return (ledger_id, entry_id) in self._coming or self._cache.has(ledger_id, entry_id)

    def _end(self, key: FlightKey, flight: _SharedRead) -> None:
        flights = self._flights.get(key, {})
        if flights.get(flight.member) is flight:
            del flights[flight.member]
            if not flights:
                del self._flights[key]


def _no_filtered_answer(status: BookieStatus, wanted: FilteredRange) -> FilteredAnswer:
    return FilteredAnswer(
        status, NOTHING, NOTHING, False, wanted.filter_number, wanted.wanted.first
    )


def _no_answer(status: BookieStatus) -> ReadAnswer:
    return ReadAnswer(status, NOTHING, NOTHING, False, [])
