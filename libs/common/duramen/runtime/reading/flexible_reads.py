"""Passes over flexible segments as all readers of a process use them, and polls of their nodes.

A pass stays behind where its last read ended, with what came and was not given yet: whoever reads
on from there takes it over. Those who want the same entry at the same time share one read. What is
known of senders is kept for each segment. All of that is bounded, and may be forgotten at any time:
a new pass asks again.

Not here: whom to ask and what answers prove (`core.flexible.reading`).
Called by `bookies.RangeFetcher`. Source: docs/protocol/reading.md "Flexible segments", R30.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from duramen.core.flexible.reading.flexible_pass import FlexiblePass
from duramen.core.flexible.reading.senders import SegmentHints
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.reading.effects import SendRead
from duramen.core.reading.range_read import AskNode, Finish, HintRun, NodeAnswer, WantedEntries
from duramen.core.reading.replica_order import ReplicaOrder
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, EntryId, LedgerId, Member
from duramen.runtime.reading.cache import EntryCache
from duramen.runtime.reading.range_reads import ReadRunner
from duramen.runtime.shared_tasks import take_failure
from duramen.units import MIB, MS
from duramen.wire.bookie_calls import ReadAnswer, ReadRange, ServiceClass
from duramen.wire.entry import read_entry_info
from duramen.wire.flexible.filtered_answers import FilteredAnswer
from duramen.wire.flexible.filtered_reads import FilteredRange

IDLE_COUNT_MAX: Final = 64
"""Passes that nobody uses now."""

IDLE_BYTES_MAX: Final = 32 * MIB
"""What came to them and was not given yet."""

HINTS_COUNT_MAX: Final = 256
"""Segments whose senders are remembered."""


class FilteredBookies(Protocol):
    """The bookies, as passes need them."""

    order: ReplicaOrder

    async def read_filtered(
        self, member: Member, wanted: FilteredRange, timeout_us: int
    ) -> FilteredAnswer:
        """A read of version 2, verified; every way of not answering is a status."""


class _PassLane(NamedTuple):
    """A pass and who carries out its effects."""

    core: FlexiblePass
    runner: ReadRunner


class FlexibleReads:
    """Reads of flexible segments; one instance per process."""

    def __init__(
        self, bookies: FilteredBookies, cache: EntryCache, clock_us: Callable[[], int]
    ) -> None:
        self._bookies = bookies
        self._cache = cache
        self._clock_us = clock_us
        self._hints: OrderedDict[LedgerId, SegmentHints] = OrderedDict()
        self._idle: OrderedDict[tuple[LedgerId, EntryId], _PassLane] = OrderedDict()
        self._flights: dict[tuple[LedgerId, EntryId], asyncio.Task[Finish]] = {}

    async def read(self, segment: FlexibleSegment, wanted: WantedEntries) -> Finish:
        """Entries without a gap, or why there are none; shared entries may go beyond the last that
        is wanted. A read that nobody waits for any more still fills the cache."""
        if wanted.headers_only:
            return await self._read_headers(segment, wanted)
        key = segment.ledger_id, wanted.first
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = asyncio.create_task(self._read(segment, wanted))
            flight.add_done_callback(lambda _: self._flights.pop(key, None))
            flight.add_done_callback(take_failure)
        return await asyncio.shield(flight)

    async def poll(self, read: SendRead, bound: EntryId) -> ReadAnswer:
        """A long poll of one node for what may be shown from the first entry on."""
        asked = FilteredRange(
            ReadRange(
                read.ledger_id, read.first, read.last, read.bytes_max,
                wait_ms=read.wait_us // MS, wait_for=read.wait_for, service=ServiceClass.TAIL_READ,
            ),
            bound=bound,
        )  # fmt: skip
        answer = await self._bookies.read_filtered(read.member, asked, read.timeout_us)
        entries = [(entry, bytes(body)) for entry, body in answer.entries]
        for entry, body in entries:
            self._cache.put(read.ledger_id, entry, body)
        is_empty = answer.status is BookieStatus.NOT_RELEASED
        status = BookieStatus.NO_ENTRY if is_empty else answer.status
        # What lies above the LAC is no news to who may not show it.
        return ReadAnswer(status, answer.lac, NOTHING, answer.is_sealed, entries)

    async def stop(self) -> None:
        """Give up what is under way."""
        tasks = list(self._flights.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while self._idle:
            self._idle.popitem()[1].runner.close()

    def statistics(self) -> dict[str, int]:
        """Passes that wait for who reads on, and segments whose senders are known."""
        return {"flexible_passes": len(self._idle), "flexible_segments": len(self._hints)}

    async def _read(self, segment: FlexibleSegment, wanted: WantedEntries) -> Finish:
        lane = self._take_lane(segment, wanted.first)
        try:
            finish = await lane.runner.read(wanted)
        except BaseException:
            lane.runner.close()
            raise
        for entry, body in finish.entries:
            self._cache.put(segment.ledger_id, entry, body)
        self._give_back(segment, lane)
        return finish

    async def _read_headers(self, segment: FlexibleSegment, wanted: WantedEntries) -> Finish:
        lane = self._make_lane(segment, wanted.first, headers_only=True)
        try:
            return await lane.runner.read(wanted)
        finally:
            lane.runner.close()

    # --- Passes ----------------------------------------------------------------------------------

    def _take_lane(self, segment: FlexibleSegment, first: EntryId) -> _PassLane:
        lane = self._idle.pop((segment.ledger_id, first), None)
        if lane is None:
            return self._make_lane(segment, first)
        lane.core.on_segment(segment)
        return lane

    def _make_lane(
        self, segment: FlexibleSegment, first: EntryId, *, headers_only: bool = False
    ) -> _PassLane:
        hints = self._hints.setdefault(segment.ledger_id, SegmentHints())
        self._hints.move_to_end(segment.ledger_id)
        if len(self._hints) > HINTS_COUNT_MAX:
            self._hints.popitem(last=False)
        core = FlexiblePass(segment, first, hints, self._bookies.order, headers_only=headers_only)

        async def ask(call: AskNode) -> NodeAnswer:
            return await self._ask(segment.ledger_id, call)

        return _PassLane(core, ReadRunner(core, ask, self._clock_us))

    def _give_back(self, segment: FlexibleSegment, lane: _PassLane) -> None:
        """Whoever reads on does so behind a hole, where one follows."""
        at = lane.core.position
        while (absence := segment.absence_at(at)) is not None:
            at = EntryId(absence[1] + 1)
        if segment.last_entry is not None and at > segment.last_entry:
            lane.runner.close()
            return
        replaced = self._idle.pop((segment.ledger_id, at), None)
        if replaced is not None:
            replaced.runner.close()
        self._idle[segment.ledger_id, at] = lane
        kept_bytes = sum(one.core.kept_bytes for one in self._idle.values())
        while len(self._idle) > IDLE_COUNT_MAX or kept_bytes > IDLE_BYTES_MAX:
            _, oldest = self._idle.popitem(last=False)
            kept_bytes -= oldest.core.kept_bytes
            oldest.runner.close()

    async def _ask(self, ledger_id: LedgerId, call: AskNode) -> NodeAnswer:
        terms = call.terms
        assert terms is not None, call
        asked = FilteredRange(
            ReadRange(
                ledger_id, call.first, call.last, call.bytes_max,
                headers_only=call.headers_only, service=ServiceClass.CATCH_UP_READ,
            ),
            terms.filter_number, terms.bound, terms.read_filter, terms.own,
            with_envelopes=True, is_digest=terms.is_digest,
        )  # fmt: skip
        answer = await self._bookies.read_filtered(call.member, asked, call.timeout_us)
        entries = [(entry, bytes(body)) for entry, body in answer.entries]
        return NodeAnswer(
            answer.status,
            answer.lac,
            entries,
            [read_entry_info(body).crc for _, body in entries],
            answer.next,
            () if answer.digests is None else answer.digests,
            answer.unvouched,
            [HintRun(*run) for run in answer.runs],
        )
