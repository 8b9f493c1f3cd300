"""Nodes of a flexible segment that answer as the page says, and a reader of them on a hand clock.

A node decides about each entry by itself, by brute force: what is here, what it vouches for, and
whether its own envelope leaves the entry to it. Nodes may be silent, down, other disks by now, slow
or damaged. The world counts calls and bytes, and refuses a call that breaks the reader's promises.
Source: docs/protocol/envelopes.md "Read: `POST /b/read`, version 2".
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from duramen.core.flexible.property import ReplicationProperty
from duramen.core.flexible.reading.flexible_pass import FlexiblePass
from duramen.core.flexible.reading.senders import SegmentHints
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.flexible.sending import has_to_send
from duramen.core.reading.range_read import (
    AskNode,
    Finish,
    ForgetCall,
    HintRun,
    NodeAnswer,
    RangeRead,
    WakeAt,
    WantedEntries,
)
from duramen.core.reading.replica_order import Place, ReplicaOrder
from duramen.core.segment_base import Totals
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, EntryId, Epoch, LogId, Member, NodeNumber
from duramen.limits import FILTERED_ENTRY_COUNT_MAX, FILTERED_RANGE_COUNT_MAX
from duramen.units import KIB, MIB, MS, SECOND
from duramen.wire.flexible.envelope import Envelope
from tests.unit.flexible_segments import node

TIMEOUT_US: Final = 5 * SECOND


@dataclass(slots=True)
class Copy:
    """An entry at a node."""

    identity: int
    envelope: Envelope | None
    is_damaged: bool = False
    is_broken_on_the_way: bool = False
    """Its digest is told, and its body does not verify."""


@dataclass(slots=True)
class SimNode:
    """One bookie."""

    copies: dict[int, Copy] = field(default_factory=dict)
    lac: EntryId = NOTHING
    status: BookieStatus = BookieStatus.OK
    """Another one: what it answers to all reads."""
    is_silent: bool = False
    delay_us: int = 1 * MS
    span_max: int = 1 << 32
    """Entries that it looks at for one call, whatever is asked."""
    order: list[int] = field(default_factory=list)
    """Its entries, ascending; made when it is asked."""
    calls_out: int = 0

    def put(self, entry: int, copy: Copy) -> None:
        """Store an entry."""
        self.copies[entry] = copy
        self.order = []

    def drop(self, entry: int) -> None:
        """Lose an entry without a trace."""
        self.copies.pop(entry, None)
        self.order = []


def make_segment(
    count: int,
    *,
    node_copies: int = 3,
    last: int | None = None,
    holes: Sequence[tuple[int, int]] = (),
    lost: Sequence[tuple[int, int]] = (),
) -> FlexibleSegment:
    """A segment of `count` nodes, closed by recovery at `last` or open."""
    segment = FlexibleSegment.opened(
        LogId(7), Epoch(3), ReplicationProperty(node_copies),
        [node(f"b{n}", f"k{n % 3}") for n in range(count)],
        ack_mode="out_of_order", placement="strict", created_unix_ms=0, nonce="s",
    )  # fmt: skip
    if last is None:
        return segment
    return segment.marked("r").closed_by_recovery(
        last_entry=EntryId(last), totals=Totals(last + 1, 10 * (last + 1)), start_seq_num=0,
        completed_unix_ms=1, nonce="c",
        holes=tuple((EntryId(a), EntryId(b)) for a, b in holes),
        lost=tuple((EntryId(a), EntryId(b)) for a, b in lost),
    )  # fmt: skip


class World:
    """A segment, its nodes and one reader.

    Args:
        entry_bytes: of each body; all bodies are one object.
    """

    def __init__(self, segment: FlexibleSegment, seed: int = 1, *, entry_bytes: int = 64) -> None:
        self.segment = segment
        self.rng = Random(seed)
        self.nodes = {row.number: SimNode() for row in segment.nodes}
        self.body = b"x" * entry_bytes
        self.now_us = 1_000_000
        self.order = ReplicaOrder(Place("eu", "k0"), Random(seed))
        self.order.on_places({
            row.node.bookie: Place(row.node.region, row.node.rack) for row in segment.nodes
        })  # fmt: skip
        self.hints = SegmentHints()
        self.reader: RangeRead = FlexiblePass(segment, EntryId(0), self.hints, self.order)
        self.call_count = 0
        self.call_counts: dict[str, int] = {}
        self.bytes_count = 0
        self.body_count = 0
        self.on_call: Callable[[AskNode], None] = lambda _: None
        self._out: dict[int, AskNode] = {}
        self._events: list[tuple[int, int, int]] = []
        self._tickets = itertools.count()
        self._wake_us: int | None = None

    def numbers(self) -> list[NodeNumber]:
        """Of the map."""
        return [row.number for row in self.segment.nodes]

    def store(
        self, entry: int, copyset: Sequence[int], block: int | None, *, identity: int | None = None
    ) -> None:
        """The copies of a first wave."""
        numbers = tuple(NodeNumber(n) for n in copyset)
        envelope = Envelope(numbers, None if block is None else EntryId(block))
        for number in numbers:
            self.nodes[number].put(entry, Copy(entry if identity is None else identity, envelope))

    def close_reader(self) -> None:
        """Give up what is out, before another reader goes on."""
        self._out.clear()
        self._wake_us = None
        for sim in self.nodes.values():
            sim.calls_out = 0

    # --- Reading ---------------------------------------------------------------------------------

    def read(self, first: int, last: int, bytes_max: int = 1 * MIB) -> Finish:
        """One read, to its end."""
        self.reader.want(WantedEntries(EntryId(first), EntryId(last), bytes_max), self.now_us)
        return self.finish()

    def finish(self) -> Finish:
        """What becomes of what is wanted."""
        deadline_us = self.now_us + 120 * SECOND
        while True:
            finish = self._carry_out()
            if finish is not None:
                return finish
            self._turn()
            assert self.now_us < deadline_us, f"stuck: {self.reader}"

    def read_all(self, *, tries: int = 1, bytes_max: int = 1 * MIB) -> list[tuple[int, Finish]]:
        """Read a CLOSED segment from the reader's position to the end; what failed, by entry.

        Asserts that what comes is what follows, once each.
        """
        assert self.segment.last_entry is not None
        at, failed, left = EntryId(0), [], tries
        while at <= self.segment.last_entry:
            absence = self.segment.absence_at(at)
            if absence is not None:
                at = EntryId(absence[1] + 1)
                continue
            finish = self.read(at, self.segment.last_entry, bytes_max)
            if finish.status is BookieStatus.OK:
                got = [entry for entry, _ in finish.entries]
                assert got == list(range(at, at + len(got))), (at, got)
                at, left = EntryId(at + len(got)), tries
                continue
            assert not finish.entries
            failed.append((int(at), finish))
            left -= 1
            if finish.absent is not None:
                assert finish.absent.first == at, finish
                assert finish.absent.nodes == self.segment.list_holders(at)
                at, left = EntryId(finish.absent.last + 1), tries
            elif left <= 0:
                break
            self.now_us += 300 * MS
        return failed

    def _carry_out(self) -> Finish | None:
        found = None
        for effect in self.reader.take_effects():
            match effect:
                case AskNode():
                    self._send(effect)
                case ForgetCall(call_id):
                    if (forgotten := self._out.pop(call_id, None)) is not None:
                        self._node_of(forgotten).calls_out -= 1
                case WakeAt(at_us):
                    self._wake_us = at_us
                case Finish():
                    assert found is None
                    found = effect
        return found

    def _turn(self) -> None:
        """The next answer, or the timer."""
        is_timer = self._wake_us is not None and (
            not self._events or self._wake_us <= self._events[0][0]
        )
        if is_timer:
            assert self._wake_us is not None
            self.now_us, self._wake_us = max(self.now_us, self._wake_us), None
            self.reader.on_timer(self.now_us)
            return
        assert self._events, f"nothing is waited for: {self.reader}"
        at_us, _, call_id = heapq.heappop(self._events)
        self.now_us = max(self.now_us, at_us)
        call = self._out.pop(call_id, None)
        if call is not None:
            sim = self._node_of(call)
            sim.calls_out -= 1
            is_late = sim.is_silent
            answer = NodeAnswer(BookieStatus.TIMEOUT) if is_late else self.answer(call)
            self.reader.on_answer(call_id, answer, self.now_us)

    def _send(self, call: AskNode) -> None:
        sim = self._node_of(call)
        assert sim.calls_out == 0, f"two calls to one node: {call}"
        sim.calls_out += 1
        self.call_count += 1
        terms = call.terms
        assert (
            terms is not None and len(terms.read_filter.senders if terms.read_filter else ()) <= 64
        )
        kind = (
            ("map" if terms.read_filter else "digest")
            if terms.is_digest
            else ("sent" if terms.read_filter else "held")
        )
        self.call_counts[kind] = self.call_counts.get(kind, 0) + 1
        self.on_call(call)
        delay_us = TIMEOUT_US if sim.is_silent else sim.delay_us + self.rng.randrange(300)
        self._out[call.call_id] = call
        heapq.heappush(self._events, (self.now_us + delay_us, next(self._tickets), call.call_id))

    def _node_of(self, call: AskNode) -> SimNode:
        assert call.terms is not None
        row = self.segment.find_row(call.terms.own)
        assert row is None or row.member == call.member, (call, row)
        return self.nodes[call.terms.own]

    # --- The bookie ------------------------------------------------------------------------------

    def answer(self, call: AskNode) -> NodeAnswer:
        """What the page says that a bookie answers."""
        sim, terms = self._node_of(call), call.terms
        assert terms is not None
        if sim.status is not BookieStatus.OK:
            return NodeAnswer(sim.status)
        shown = max(sim.lac, terms.bound)
        if call.first > shown:
            return NodeAnswer(BookieStatus.NOT_RELEASED, sim.lac)
        if not sim.order:
            sim.order = sorted(sim.copies)
        following = EntryId(min(call.last, shown, call.first + sim.span_max - 1) + 1)
        told: list[EntryId] = []
        unvouched: list[tuple[EntryId, EntryId]] = []
        runs: list[HintRun] = []
        before: Envelope | None = None
        left_bytes, here_count = call.bytes_max, 0
        for at in range(bisect_left(sim.order, call.first), len(sim.order)):
            entry = EntryId(sim.order[at])
            if entry >= following:
                break
            copy = sim.copies[entry]
            is_full = (
                here_count >= FILTERED_ENTRY_COUNT_MAX
                or max(len(runs), len(unvouched)) >= FILTERED_RANGE_COUNT_MAX
            )
            if is_full or left_bytes <= 0:
                following = entry
                break
            here_count += 1
            is_broken = copy.is_broken_on_the_way and not terms.is_digest
            if copy.is_damaged or is_broken:
                unvouched.append((entry, entry))
                continue
            if not has_to_send(terms.read_filter, copy.envelope, terms.own):
                continue
            told.append(entry)
            left_bytes -= 8 if terms.is_digest else len(self.body)
            if copy.envelope is not None and copy.envelope == before:
                runs[-1] = runs[-1]._replace(last=entry)
            elif copy.envelope is not None:
                runs.append(HintRun(entry, entry, copy.envelope))
            before = copy.envelope
        self.bytes_count += (
            40
            + sum(12 + 6 + 2 * len(run.envelope.copyset) for run in runs)
            + 8 * (len(told) + len(unvouched))
        )
        identities = [sim.copies[entry].identity for entry in told]
        if terms.is_digest:
            return NodeAnswer(
                BookieStatus.OK, sim.lac, next=following,
                digests=tuple(zip(told, identities, strict=True)), unvouched=unvouched, runs=runs,
            )  # fmt: skip
        self.bytes_count += len(told) * len(self.body)
        self.body_count += len(told)
        return NodeAnswer(
            BookieStatus.OK, sim.lac, [(entry, self.body) for entry in told], identities,
            following, unvouched=unvouched, runs=runs,
        )  # fmt: skip


def member_of(world: World, number: int) -> Member:
    """The bookie with a number."""
    row = world.segment.find_row(NodeNumber(number))
    assert row is not None
    return row.member


ENTRY_BYTES: Final = 1 * KIB


def store_blocks(
    world: World, last: int, *, block_entries: int = 32 * KIB, copies: int = 3
) -> None:
    """A log in sticky blocks without a failure: each block at random nodes."""
    for block in range(0, last + 1, block_entries):
        envelope = Envelope(tuple(world.rng.sample(world.numbers(), copies)), EntryId(block))
        for entry in range(block, min(block + block_entries, last + 1)):
            for number in envelope.copyset:
                world.nodes[number].copies[entry] = Copy(entry, envelope)
