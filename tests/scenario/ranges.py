"""Reads of flexible segments in a scenario: what one bookie tells of a range, and a whole pass.

What is told follows from the core's plan and the production choice of what is sent; a pass over
all nodes is the production core, asked and answered in one moment, since which node sends is no
story. Who is down, or has other disks by now, says so.

Called by the actors and the stage. Source: docs/protocol/envelopes.md, R25, R30.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from duramen.core.bookie.bookie_state import RangePlan
from duramen.core.bookie.range_choice import AnswerRoom, MetEntry, Wish, choose
from duramen.core.flexible.reading.flexible_pass import FlexiblePass
from duramen.core.flexible.reading.senders import SegmentHints
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.reading import effects as rx
from duramen.core.reading.range_read import (
    AskNode,
    Finish,
    ForgetCall,
    HintRun,
    NodeAnswer,
    WakeAt,
    WantedEntries,
)
from duramen.core.reading.replica_order import ReplicaOrder
from duramen.ids import NOTHING, EntryId, LedgerId
from duramen.units import MS
from duramen.wire.bookie_calls import ReadRange, ServiceClass
from duramen.wire.entry import check_entry
from duramen.wire.flexible.envelope import Envelope
from duramen.wire.flexible.filtered_reads import FilteredRange

_TURN_COUNT_MAX: Final = 1_000


class Kept(NamedTuple):
    """An entry on a disk."""

    payload: bytes
    envelope: Envelope | None


def answer_range(asked: FilteredRange, plan: RangePlan, kept: Mapping[EntryId, Kept]) -> NodeAnswer:
    """What a bookie sends of the range that its core planned.

    Args:
        kept: what its disk has of the ledger.
    """
    wanted = asked.wanted
    met = [
        MetEntry(entry, check_entry(one.payload).crc, len(one.payload), one.envelope)
        for entry, one in sorted(kept.items())
        if entry in plan.hot
    ]
    wish = Wish(
        asked.read_filter, asked.own, wanted.bytes_max, wanted.headers_only, asked.is_digest
    )
    choice = choose(plan, met, wish, AnswerRoom())
    identities = [(one.entry_id, one.identity or 0) for one in choice.sent]
    runs = [
        HintRun(one.entry_id, one.entry_id, one.envelope)
        for one in choice.sent
        if one.envelope is not None
    ]
    bodies = () if asked.is_digest else [(e, kept[e].payload) for e, _ in identities]
    return NodeAnswer(
        plan.status, plan.lac, bodies, [identity for _, identity in identities],
        EntryId(choice.next), identities if asked.is_digest else (), choice.unvouched, runs,
    )  # fmt: skip


def filter_call(ledger_id: LedgerId, call: AskNode) -> FilteredRange:
    """A pass's question, as it travels."""
    terms = call.terms
    assert terms is not None, call
    wanted = ReadRange(
        ledger_id, call.first, call.last, call.bytes_max, service=ServiceClass.CATCH_UP_READ
    )
    return FilteredRange(
        wanted, terms.filter_number, terms.bound, terms.read_filter, terms.own,
        with_envelopes=True, is_digest=terms.is_digest,
    )  # fmt: skip


def filter_poll(read: rx.SendRead) -> FilteredRange:
    """A long poll of one node."""
    wanted = ReadRange(
        read.ledger_id, read.first, read.last, read.bytes_max,
        wait_ms=read.wait_us // MS, wait_for=read.wait_for, service=ServiceClass.TAIL_READ,
    )  # fmt: skip
    return FilteredRange(wanted, bound=NOTHING if read.bound is None else read.bound)


def read_nodes(
    segment: FlexibleSegment,
    read: rx.SendRead,
    order: ReplicaOrder,
    ask: Callable[[AskNode], NodeAnswer],
    now_us: int,
) -> Finish:
    """One read of all nodes, to its end."""
    core = FlexiblePass(segment, read.first, SegmentHints(), order)
    core.want(WantedEntries(read.first, read.last, read.bytes_max), now_us)
    for _ in range(_TURN_COUNT_MAX):
        effects = core.take_effects()
        finishes = [effect for effect in effects if isinstance(effect, Finish)]
        if finishes:
            return finishes[0]
        calls = [effect for effect in effects if isinstance(effect, AskNode)]
        for call in calls:
            core.on_answer(call.call_id, ask(call), now_us)
        if not calls:
            now_us = max(effect.at_us for effect in effects if isinstance(effect, WakeAt))
            core.on_timer(now_us)
        assert all(isinstance(e, AskNode | ForgetCall | WakeAt) for e in effects), effects
    raise AssertionError(f"a pass that never ends: {core}")
