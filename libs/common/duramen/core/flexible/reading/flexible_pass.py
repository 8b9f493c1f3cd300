"""One pass over a flexible segment, behind the port of reads: what its nodes send, merged in order.

What is next comes of its block's sender, of all who are up, or by the second asking: when all who
were asked looked past it and nobody sent it, all nodes of the map are asked at once, without a
filter (`stretch`). The position moves over entries that are given alone. A filter, an envelope, a
map say whom to ask and prove nothing; absence is the unfiltered word of every node of the map of a
CLOSED segment, and its caller reads the metadata before it believes that (R25).
Invariants:
 1 one call at most is out to each node.
 2 nothing above what is wanted is given; nothing is given twice.
 3 a LAC is taken from nodes of N(e) alone (R30).
 4 a read that has not ended waits for a call.
Sans-IO. Driven by `runtime.reading.range_reads`. Source: docs/protocol/envelopes.md "Read:
`POST /b/read`, version 2", "What nobody sends", V8–V10, R25, R30.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final, NamedTuple

from duramen.core.flexible.nodeset import NodesetRow
from duramen.core.flexible.reading.came import CameEntries
from duramen.core.flexible.reading.senders import SegmentHints, SenderPlan, Senders
from duramen.core.flexible.reading.stretch import STRETCH_ENTRY_COUNT, UnsentStretch
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.reading.range_read import (
    AskNode,
    FilterTerms,
    Finish,
    ForgetCall,
    NodeAnswer,
    NodesAbsence,
    RangeEffect,
    WakeAt,
    WantedEntries,
)
from duramen.core.reading.replica_order import ReplicaOrder
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, EntryId, NodeNumber
from duramen.limits import READ_TIMEOUT_US
from duramen.units import KIB, MIB, MS, SECOND

FAN_OUT_BYTES_MIN: Final = 64 * KIB
"""What each of those is asked for who are asked together, at least."""

_DIGEST_BYTES_MAX: Final = 1 * MIB
"""More than 65,536 entries, which are all that an answer tells."""


class CallKind(enum.Enum):
    """What a node is asked for."""

    SENT = "sent"
    """Bodies, as far as the filter leaves them to it."""
    MAP = "map"
    """What it would have to send, by digests."""
    DIGEST = "digest"
    """All that it has, by digests."""
    HELD = "held"
    """Bodies of all that it has."""


_PATIENCE_US: Final = {CallKind.MAP: 1 * SECOND, CallKind.DIGEST: 100 * MS}
"""Nobody is late before that who looks at so many entries."""

_BODIES: Final = (CallKind.SENT, CallKind.HELD)


class _Call(NamedTuple):
    row: NodesetRow
    kind: CallKind
    first: EntryId
    last: EntryId
    filter_number: int
    at_us: int


class FlexiblePass:
    """Reads one flexible segment from a position upwards; see the module.

    Args:
        hints: shared by all passes over this segment.
        headers_only: every body that comes is a header.
    """

    def __init__(
        self,
        segment: FlexibleSegment,
        position: EntryId,
        hints: SegmentHints,
        order: ReplicaOrder,
        *,
        headers_only: bool = False,
    ) -> None:
        self._segment = segment
        self._rows = {row.number: row for row in segment.nodes}
        self._hints = hints
        self._order = order
        self._headers_only = headers_only
        self._effects: list[RangeEffect] = []
        self._came = CameEntries(position)
        self._senders = Senders(hints, order)
        self._calls: dict[int, _Call] = {}
        self._last_call_id = 0
        self._wanted: WantedEntries | None = None
        self._map_answers: dict[NodeNumber, NodeAnswer] | None = None
        self._stretch: UnsentStretch | None = None
        self._asked_tellers: set[tuple[EntryId, NodeNumber]] = set()
        """By a map one has an entry, and did not give it."""
        self._lac = NOTHING
        self._is_late = False
        """Who is out takes longer than answers do."""
        self._wake_count = 0

    @property
    def position(self) -> EntryId:
        """The next entry to be given."""
        return self._came.position

    @property
    def kept_bytes(self) -> int:
        """Bodies that came and were not given yet."""
        return self._came.size_bytes

    def take_effects(self) -> list[RangeEffect]:
        """The effects since the last call, in order."""
        effects, self._effects = self._effects, []
        return effects

    def __repr__(self) -> str:
        return (
            f"<pass {self._segment.ledger_id} at {self.position} came={len(self._came)} "
            f"{self._senders} {self._stretch} out={len(self._calls)}>"
        )

    # --- Inputs ----------------------------------------------------------------------------------

    def on_segment(self, segment: FlexibleSegment) -> None:
        """Newer metadata: the map may be another one."""
        assert segment.ledger_id == self._segment.ledger_id, (segment, self._segment)
        rows = {row.number: row for row in segment.nodes}
        if rows != self._rows:
            self._stretch = None  # what it asked is no word of this map's nodes
        self._segment, self._rows = segment, rows

    def want(self, wanted: WantedEntries, now_us: int) -> None:
        """Begin a read at the position, or above it where a hole lies between."""
        assert self._wanted is None and wanted.first >= self.position, (wanted, self)
        assert self._segment.absence_at(wanted.first) is None, (wanted, self)
        self._came.move_to(wanted.first)
        self._wanted = wanted
        self._lac = NOTHING
        self._is_late, self._wake_count = False, 0
        self._asked_tellers.clear()
        self._advance(now_us)
        self._wake_later(now_us)

    def on_answer(self, call_id: int, answer: NodeAnswer, now_us: int) -> None:
        """What a node said, or that it did not."""
        call = self._calls.pop(call_id, None)
        if call is None:
            return
        self._take_bodies(call, answer)
        if answer.status is BookieStatus.OK:
            self._hints.standing.on_success(call.row.number)
            if call.row.number < self._segment.own_count:
                self._lac = max(self._lac, answer.lac)
            if call.kind in _BODIES and answer.entries:
                self._order.speculation.on_answer(now_us - call.at_us)
                self._order.on_success(call.row.member)
        else:
            self._hints.standing.on_failure(call.row, answer.status, now_us, self._order)
        match call.kind:
            case CallKind.SENT:
                self._on_sent(call, answer, now_us)
            case CallKind.MAP:
                self._on_map(call, answer, now_us)
            case CallKind.DIGEST:
                self._on_digest(call, answer)
            case CallKind.HELD:
                self._on_held(call, answer)
        self._advance(now_us)
        self._wake_later(now_us)

    def on_timer(self, now_us: int) -> None:
        """Who is out is late: others are asked, and what came is given."""
        if self._wanted is None or not self._calls:
            return
        since_us = max(call.at_us for call in self._calls.values())
        if now_us < since_us + self._delay_us:
            self._effects.append(WakeAt(since_us + self._delay_us))
            return
        self._is_late = True
        self._wake_count += 1
        self._put_down_late(now_us)
        if self._map_answers:
            self._end_map(now_us)
        if self._stretch is not None:
            self._stretch.is_late = True
        self._advance(now_us)
        self._wake_later(now_us)

    # --- Decisions -------------------------------------------------------------------------------

    def _advance(self, now_us: int) -> None:
        """Give, or ask whoever is to be asked next."""
        wanted = self._wanted
        if wanted is None or self._give(wanted):
            return
        if self.position in self._came:
            return  # more of it is on its way
        if self._came.is_in_conflict(self.position):
            self._fail(BookieStatus.DIFFERENT)
        elif self._stretch is not None and self.position <= self._stretch.end:
            self._go_on_with_stretch(self._stretch, wanted, now_us)
        elif self._map_answers is None:
            if self._stretch is not None:
                self._end_stretch(self._stretch)
            self._ask_senders(wanted, now_us)

    def _give(self, wanted: WantedEntries) -> bool:
        """End the read with what came, if that is all that is wanted or nothing more is near."""
        end, is_all = self._came.find_end(wanted.last, wanted.bytes_max, self._segment)
        is_coming = any(
            call.kind in _BODIES and call.filter_number == self._senders.number
            for call in self._calls.values()
        )
        if end == self.position or (is_coming and not is_all and not self._is_late):
            return False
        entries, sender = self._came.take(end)
        self._wanted = None
        self._effects.append(Finish(BookieStatus.OK, entries, self._lac, sender))
        return True

    def _fail(self, status: BookieStatus, absent: NodesAbsence | None = None) -> None:
        """End the read without entries; the next one begins anew."""
        self._wanted = None
        if self._stretch is not None:
            self._end_stretch(self._stretch)
        self._came.forget_conflicts()
        self._effects.append(Finish(status, lac=self._lac, absent=absent))

    def _ask_senders(self, wanted: WantedEntries, now_us: int) -> None:
        at, senders = self.position, self._senders
        senders.refresh(self._rows, at, now_us)
        if not senders.filter.up:
            self._begin_stretch(wanted, now_us)
        elif senders.wants_map(at, wanted.last) and not self._headers_only:
            self._ask_map(wanted, now_us)
        elif senders.is_known_unsent(at):
            self._begin_stretch(wanted, now_us)
        else:
            plan = senders.plan(at, wanted.last, now_us)
            if plan is None:
                self._ask_all(wanted, now_us)
            else:
                self._ask_sender(plan, wanted, now_us)

    def _ask_map(self, wanted: WantedEntries, now_us: int) -> None:
        """Of all who are up, once none of them is asked for something else."""
        up = self._senders.filter.up
        if not any(self._is_out(number) for number in up):
            self._map_answers = {}
            for number in sorted(up):
                self._ask(number, CallKind.MAP, wanted.last, _DIGEST_BYTES_MAX, now_us)

    def _ask_sender(self, plan: SenderPlan, wanted: WantedEntries, now_us: int) -> None:
        if not self._senders.has_looked(plan.sender, self.position):
            if not self._is_out(plan.sender):
                self._ask(plan.sender, CallKind.SENT, plan.last, wanted.bytes_max, now_us)
        elif plan.is_mapped:
            self._begin_stretch(wanted, now_us)
        else:
            self._ask_all(wanted, now_us)

    def _ask_all(self, wanted: WantedEntries, now_us: int) -> None:
        """Who has looked further than the position waits for the others: that bounds what is
        kept."""
        up = self._senders.filter.up
        if self._senders.has_all_looked(self.position):
            self._begin_stretch(wanted, now_us)
            return
        bytes_max = max(FAN_OUT_BYTES_MIN, wanted.bytes_max // len(up))
        for number in sorted(up):
            if not self._senders.has_looked(number, self.position) and not self._is_out(number):
                self._ask(number, CallKind.SENT, wanted.last, bytes_max, now_us)

    # --- The second asking -----------------------------------------------------------------------

    def _begin_stretch(self, wanted: WantedEntries, now_us: int) -> None:
        """Nobody sends the entry: ask who told it for a map, else all nodes at once."""
        run = self._hints.map.find(self.position)
        if run is not None and run.teller in self._rows:
            key = self.position, run.teller
            if key not in self._asked_tellers:
                self._asked_tellers.add(key)
                last = self._find_missing_end(min(run.last, wanted.last))
                self._forget_calls([run.teller])
                self._ask(run.teller, CallKind.HELD, last, wanted.bytes_max, now_us)
                return
            if self._is_out(run.teller) and not self._is_late:
                return
        last = EntryId(min(wanted.last, self.position + STRETCH_ENTRY_COUNT - 1))
        self._stretch = UnsentStretch(self.position, last, self._rows.keys())
        self._forget_calls(self._rows.keys())
        for number in self._rows:
            self._ask(number, CallKind.DIGEST, last, _DIGEST_BYTES_MAX, now_us)

    def _go_on_with_stretch(
        self, stretch: UnsentStretch, wanted: WantedEntries, now_us: int
    ) -> None:
        at = self.position
        if len(stretch.list_identities(at)) > 1:
            self._fail(BookieStatus.DIFFERENT)
            return
        holders = [n for n in stretch.list_holders(at) if n in self._rows]
        asked = [call for call in self._calls.values() if call.kind is CallKind.HELD]
        is_waiting = not self._is_late if asked else bool(stretch.pending) and not stretch.is_late
        free = [number for number in holders if not self._is_out(number)]
        if free and not is_waiting:
            held = {number: stretch.count_held(number, at) for number in free}
            most = [number for number in free if held[number] == max(held.values())]
            ranked = self._order.rank([self._rows[n].member for n in most], now_us)
            number = next(n for n in most if self._rows[n].member == ranked[0])
            last = self._find_missing_end(min(stretch.last, wanted.last))
            self._ask(number, CallKind.HELD, last, wanted.bytes_max, now_us)
            self._is_late = False
        elif not asked and not stretch.pending:
            self._conclude(stretch, wanted)

    def _find_missing_end(self, last: EntryId) -> EntryId:
        """What lies behind the next entry that is kept here has come, or is asked for later."""
        kept = self._came.find_next()
        return last if kept is None else min(last, EntryId(kept - 1))

    def _conclude(self, stretch: UnsentStretch, wanted: WantedEntries) -> None:
        """Nobody gives the entry: it is absent, or nobody can say now."""
        at = end = self.position
        while (
            end <= min(stretch.last, wanted.last)
            and end not in self._came
            and self._segment.absence_at(end) is None
            and stretch.is_absent(end)
        ):
            end = EntryId(end + 1)
        if end > at and self._segment.is_closed:
            nodes = tuple(row.member for row in self._rows.values())
            self._fail(BookieStatus.NO_ENTRY, NodesAbsence(at, EntryId(end - 1), nodes))
        else:
            self._fail(BookieStatus.UNKNOWN if end > at else stretch.failure)

    def _end_stretch(self, stretch: UnsentStretch) -> None:
        """Wait no more for who was named and had nothing."""
        for number in stretch.list_to_blame(self._senders.filter):
            self._hints.standing.blame(number)
        self._stretch = None

    # --- Answers ---------------------------------------------------------------------------------

    def _take_bodies(self, call: _Call, answer: NodeAnswer) -> None:
        """Keep what came, whatever filter it was asked with."""
        for (entry, body), identity in zip(answer.entries, answer.identities, strict=True):
            if call.first <= entry <= call.last:
                self._came.put(entry, body, identity, call.row.member)
        if call.kind is CallKind.SENT and not self._headers_only:
            self._senders.note_run(answer, call.row.number)

    def _on_sent(self, call: _Call, answer: NodeAnswer, now_us: int) -> None:
        if answer.status is not BookieStatus.OK:
            return
        if answer.next <= call.first:
            # It looked at nothing: as if it had no room.
            status = BookieStatus.OVERLOADED
            self._hints.standing.on_failure(call.row, status, now_us, self._order)
        elif call.filter_number == self._senders.number:
            self._senders.note_looked(call.row.number, answer.next)

    def _on_map(self, call: _Call, answer: NodeAnswer, now_us: int) -> None:
        if self._map_answers is None:
            return
        if answer.status is BookieStatus.OK and call.filter_number == self._senders.number:
            self._map_answers[call.row.number] = answer
        if not any(out.kind is CallKind.MAP for out in self._calls.values()):
            self._end_map(now_us)

    def _end_map(self, now_us: int) -> None:
        answers = self._map_answers
        assert answers is not None, self
        self._forget_calls(
            call.row.number for call in self._calls.values() if call.kind is CallKind.MAP
        )
        self._map_answers = None
        self._senders.on_map(self.position, answers, now_us)

    def _on_digest(self, call: _Call, answer: NodeAnswer) -> None:
        if self._stretch is not None and call.row.number in self._stretch.pending:
            self._stretch.on_digest(call.row.number, answer)

    def _on_held(self, call: _Call, answer: NodeAnswer) -> None:
        if self._stretch is not None and call.first not in self._came:
            self._stretch.note_tried(call.first, call.row.number, answer.status)

    # --- Calls -----------------------------------------------------------------------------------

    def _ask(
        self,
        number: NodeNumber,
        kind: CallKind,
        last: EntryId,
        bytes_max: int,
        now_us: int,
    ) -> None:
        assert not self._is_out(number), f"1: {number} {self}"
        self._last_call_id += 1
        row, wanted, senders = self._rows[number], self._wanted, self._senders
        first = self.position
        assert wanted is not None and last <= wanted.last, (last, self)
        is_filtered = kind in (CallKind.SENT, CallKind.MAP)
        is_digest = kind in (CallKind.MAP, CallKind.DIGEST)
        self._calls[self._last_call_id] = _Call(row, kind, first, last, senders.number, now_us)
        terms = FilterTerms(
            senders.number, wanted.last, senders.filter if is_filtered else None, number, is_digest
        )
        self._effects.append(
            AskNode(
                self._last_call_id, row.member, first, last, bytes_max, READ_TIMEOUT_US,
                self._headers_only and not is_digest, terms,
            )
        )  # fmt: skip

    def _is_out(self, number: NodeNumber) -> bool:
        return any(call.row.number == number for call in self._calls.values())

    def _forget_calls(self, numbers: Iterable[NodeNumber]) -> None:
        known = set(numbers)
        for call_id, call in list(self._calls.items()):
            if call.row.number in known:
                del self._calls[call_id]
                self._effects.append(ForgetCall(call_id))

    @property
    def _delay_us(self) -> int:
        patience_us = max((_PATIENCE_US.get(c.kind, 0) for c in self._calls.values()), default=0)
        return max(patience_us, self._order.speculation.delay_us(1 + self._wake_count))

    def _wake_later(self, now_us: int) -> None:
        assert self._wanted is None or self._calls, f"4: {self}"
        if self._wanted is not None:
            self._effects.append(WakeAt(now_us + self._delay_us))

    def _put_down_late(self, now_us: int) -> None:
        """Those who are waited for, if somebody else is up: else it may be us."""
        up = self._senders.filter.up
        late = [
            call for call in self._calls.values() if call.kind in _BODIES and call.row.number in up
        ]
        if up - {call.row.number for call in late}:
            for call in late:
                self._order.on_late(call.row.member, now_us - call.at_us, now_us)
                self._hints.standing.on_late(call.row, now_us)
