"""Flexible segments for tests: one in each state, and whole lives as hypothesis draws them.

Used by the tests of the value and of its stored form. Source: docs/protocol/flexible.md "The
segment node".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from hypothesis import strategies as st

from duramen.core.cold_copy import ColdCopy
from duramen.core.flexible.nodeset import ServingBookie
from duramen.core.flexible.property import ReplicationProperty
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.placement.room import Rack
from duramen.core.segment_base import SegmentState, Totals
from duramen.ids import NOTHING, BookieId, EntryId, Epoch, Incarnation, LogId, Member, NodeNumber

RP: Final = ReplicationProperty(3, 2, 1, extras=1)


def node(name: str, rack: str = "k0", *, life: int = 1, weight: float = 1.0) -> ServingBookie:
    """A bookie of region `eu`."""
    return ServingBookie(BookieId(name), "eu", rack, Incarnation(f"{life:032x}"), weight)


def number(value: int) -> NodeNumber:
    """A node's number."""
    return NodeNumber(value)


OPEN: Final = FlexibleSegment.opened(
    LogId(7),
    Epoch(3),
    RP,
    [node(f"b{n}", f"k{n % 3}", weight=n + 0.5) for n in range(5)],
    ack_mode="out_of_order",
    placement="strict",
    created_unix_ms=1_700_000_000_000,
    nonce="s1.0",
)
IN_RECOVERY: Final = (
    OPEN.marked("s2.0")
    .with_guest(node("g0", "k1"), "s2.1")
    .with_guest(node("b1", "k4", life=2), "s2.2")
)


def close(
    segment: FlexibleSegment,
    last_entry: int = 40,
    *,
    holes: tuple[tuple[int, int], ...] = (),
    lost: tuple[tuple[int, int], ...] = (),
    missing: int = 0,
) -> FlexibleSegment:
    """By recovery."""
    return segment.closed_by_recovery(
        last_entry=EntryId(last_entry),
        totals=Totals(100, 10_000, 5, 1_700_000_001_000),
        start_seq_num=1_000,
        completed_unix_ms=1_700_000_002_000,
        nonce="s2.3",
        holes=tuple((EntryId(first), EntryId(last)) for first, last in holes),
        lost=tuple((EntryId(first), EntryId(last)) for first, last in lost),
        missing_record_count=missing,
    )


def close_as_owner(segment: FlexibleSegment, last_entry: int = 40) -> FlexibleSegment:
    """By its owner."""
    return segment.closed_by_owner(
        last_entry=EntryId(last_entry),
        totals=Totals(100, 10_000, 5, 1_700_000_001_000),
        start_seq_num=1_000,
        completed_unix_ms=1_700_000_002_000,
        nonce="s1.1",
    )


CLOSED: Final = close(IN_RECOVERY, holes=((3, 5), (9, 9)), lost=((12, 14),), missing=17)
COPY: Final = ColdCopy("0a" * 16, "1b" * 32, size_bytes=100, verified_unix_ms=5)

_names = st.sampled_from([f"b{n}" for n in range(7)])
_racks = st.sampled_from(["", "k0", "k1", "k2"])
_weights = st.floats(1e-6, 1e9)
_nodes = st.builds(
    lambda name, rack, life, weight: node(name, rack, life=life, weight=weight),
    _names, _racks, st.integers(1, 2), _weights,
)  # fmt: skip


@st.composite
def opened(draw: st.DrawFn) -> FlexibleSegment:
    """The first version of a life."""
    names = draw(st.lists(_names, min_size=3, max_size=7, unique=True))
    return FlexibleSegment.opened(
        LogId(draw(st.integers(1, 2**31 - 1))),
        Epoch(draw(st.integers(1, 2**32 - 1))),
        ReplicationProperty(draw(st.integers(1, 3)), extras=draw(st.integers(0, 2))),
        [node(name, draw(_racks), weight=draw(_weights)) for name in names],
        ack_mode=draw(st.sampled_from(["ordered", "out_of_order"])),
        placement=draw(st.sampled_from(["strict", "prefer"])),
        created_unix_ms=draw(st.integers(0, 2**50)),
        nonce=draw(st.text(max_size=5)),
    )


@st.composite
def lives(draw: st.DrawFn) -> list[FlexibleSegment]:
    """The versions of one segment, from its creation on, each made of the one before."""
    versions = [draw(opened())]
    for step in range(draw(st.integers(0, 14))):
        versions.append(_go_on(draw, versions[-1], f"n{step}"))
    return versions


def _go_on(draw: st.DrawFn, segment: FlexibleSegment, nonce: str) -> FlexibleSegment:
    if segment.state is SegmentState.OPEN:
        return segment.marked(nonce) if draw(st.booleans()) else close_as_owner(segment)
    if segment.is_closed:
        return _repair(draw, segment, nonce)
    newcomer = draw(_nodes)
    match draw(st.sampled_from(["guest", "guest", "bound", "close"])):
        case "guest" if segment.find_member(_member_of(newcomer)) is None:
            return segment.with_guest(newcomer, nonce)
        case "bound" if segment.bound is None:
            return segment.bounded(EntryId(draw(st.integers(-1, 60))), nonce)
        case _:
            return _recover(draw, segment)


def _recover(draw: st.DrawFn, segment: FlexibleSegment) -> FlexibleSegment:
    last = draw(st.integers(NOTHING, 40 if segment.bound is None else min(segment.bound, 40)))
    entries = draw(st.permutations(range(0, max(last, 0), 2)))
    cut = draw(st.integers(0, len(entries)))
    absent = sorted(entries[:cut])
    is_hole = [segment.ack_mode == "out_of_order" and draw(st.booleans()) for _ in absent]
    pairs = list(zip(absent, is_hole, strict=True))
    return close(
        segment,
        last,
        holes=tuple((entry, entry) for entry, hole in pairs if hole),
        lost=tuple((entry, entry) for entry, hole in pairs if not hole),
        missing=draw(st.integers(0, 50)),
    )


def _repair(draw: st.DrawFn, segment: FlexibleSegment, nonce: str) -> FlexibleSegment:
    numbers = [row.number for row in segment.nodes]
    newcomer, other = draw(_nodes), replace(segment.replication, node=draw(st.integers(1, 5)))
    steps = ["add", "remove", "move", "property", "lost", "proved", "cold", "recheck", "broken"]
    match draw(st.sampled_from(steps)):
        case "add" if segment.find_member(_member_of(newcomer)) is None:
            return segment.with_added(newcomer, nonce)
        case "remove" if numbers:
            return segment.without_node(draw(st.sampled_from(numbers)), nonce)
        case "move" if numbers:
            place = Rack("us", f"{nonce}-rack")
            return segment.with_locations({draw(st.sampled_from(numbers)): place}, nonce)
        case "property" if other != segment.replication:
            return segment.with_property(other, nonce)
        case "lost":
            return _lose(draw, segment, nonce)
        case "cold" if segment.cold_copy is None:
            return segment.with_cold_copy(COPY, nonce)
        case "recheck" if segment.cold_copy is not None:
            return segment.with_recheck(7, nonce)
        case "broken" if segment.cold_copy is not None:
            return segment.without_cold_copy(nonce)
        case _:
            return segment.with_proved(nonce)


def _lose(draw: st.DrawFn, segment: FlexibleSegment, nonce: str) -> FlexibleSegment:
    assert segment.last_entry is not None
    present = segment.list_present(EntryId(0), segment.last_entry)
    if not present:
        return segment.with_proved(nonce)
    missing = draw(st.integers(segment.missing_record_count, 100))
    return segment.with_lost([draw(st.sampled_from(present))], missing, nonce)


def _member_of(bookie: ServingBookie) -> Member:
    return Member(bookie.bookie, bookie.incarnation)
