"""A log with holes, striped or flexible, before a read proxy and what reads through one.

`fill` writes segment 1, which a recovery closed (`out_of_order`), and segment 2, which is open:

    e1n0  records 0 to 2         e1n5  control
    e1n1  hole: 3 to 5           e1n6  record 12
    e1n2  hole: 6                e1n7  hole: 13 and 14
    e1n3  records 7 to 9         e1n8  control, the last one
    e1n4  hole: 10 and 11        e2n0  records 15 and 16

One bookie holds each entry of a hole, as one may; the node has a range for each of e1n1 and e1n2.
`GAPS` is what readers are to be told.
Used by the tests of what readers are told of holes. Source: R25, docs/protocol/reading.md "Holes".
"""

from __future__ import annotations

from typing import Any, Final

from duramen.core.flexible.property import ReplicationProperty
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment
from duramen.ids import LAST_ENTRY_ID, EntryId, Epoch
from duramen.wire.metadata_json import encode_log, encode_segment
from tests.component.readproxy_world import LOG, PATHS, A, B, C, D, World
from tests.unit.flexible_segments import node

KINDS: Final = ("striped", "flexible")

HOLES: Final = ((3, 7, 1, 2), (10, 12, 4, 4), (13, 15, 7, 7))
"""Sequence numbers from the first to before the last one, first and last entry."""

GAPS: Final[list[dict[str, Any]]] = [
    {
        "kind": "hole", "from": f"seq:{first}", "next": f"seq:{end}",
        "first_lsn": f"e1n{begin}", "last_lsn": f"e1n{last}",
    }
    for first, end, begin, last in HOLES
]  # fmt: skip

NUMBERS: Final = (0, 1, 2, 7, 8, 9, 12, 15, 16)
"""Of the records that there are."""


async def open_out_of_order(world: World, kind: str) -> None:
    """The next segment, in which appends are acknowledged out of order."""
    epoch = world.log.next_epoch
    world.log = world.log.with_new_epoch("n")
    if kind == "striped":
        fragments = (Fragment(EntryId(0), (A, B, C)),)
        world.segment = Segment(LOG, epoch, Quorum(3, 3, 2), fragments, ack_mode="out_of_order")
    else:
        nodes = [
            node(member.bookie, f"r{member.bookie}", life=int(member.incarnation, 16))
            for member in (A, B, C, D)
        ]
        world.segment = FlexibleSegment.opened(
            LOG, epoch, ReplicationProperty(3), nodes, ack_mode="out_of_order",
            placement="strict", created_unix_ms=0, nonce="s",
        )  # fmt: skip
    world.totals = world.totals._replace(record_count=0, length_bytes=0)
    world.entry_count = 0
    await put_segment(world)


async def put_segment(world: World) -> None:
    """Segment and log node, as they are now."""
    assert world.segment is not None
    await world.put(PATHS.segment(LOG, world.segment.epoch), encode_segment(world.segment))
    await world.put(PATHS.log(LOG), encode_log(world.log))


async def miss(world: World, count: int, *, txids: list[int] | None = None) -> None:
    """An entry of so many records that is acknowledged to nobody: one bookie stored it."""
    assert world.segment is not None
    entry = EntryId(world.entry_count)
    body = world.make_entry(count, txids=txids)
    world.lac_max = min(world.lac_max, entry - 1)
    await world.bookies[B.bookie].change(world.segment.ledger_id, -1, (entry, body))
    world.entry_count += 1


async def recover(world: World, *holes: tuple[int, int], missing_count: int) -> None:
    """A recovery closes the segment at the last entry that was stored."""
    segment = world.segment
    assert segment is not None
    end: dict[str, Any] = {
        "last_entry": EntryId(world.entry_count - 1),
        "totals": world.totals,
        "start_seq_num": world.log.totals.record_count,
        "completed_unix_ms": 5_000,
        "nonce": "c",
        "holes": tuple((EntryId(first), EntryId(last)) for first, last in holes),
    }
    if isinstance(segment, FlexibleSegment):
        marked = segment.marked("m")
        world.segment = marked.closed_by_recovery(**end, missing_record_count=missing_count)
    else:
        world.segment = segment.marked("m").closed(**end)
    world.log = world.log.with_clean(world.segment, "n")
    world.lac_max = LAST_ENTRY_ID
    await put_segment(world)


async def fill(world: World, kind: str) -> None:
    """The log of the module's text; it is ordered from segment 2 on."""
    await open_out_of_order(world, kind)
    await world.append(2, 1)
    await miss(world, 3)
    await miss(world, 1)
    await world.append(3, is_confirmed=False)
    await miss(world, 2)
    await world.append_control(is_confirmed=False)
    await world.append(1, is_confirmed=False)
    await miss(world, 2)
    await world.append_control(is_confirmed=False)
    await recover(world, (1, 1), (2, 2), (4, 4), (7, 7), missing_count=8)
    assert world.segment is not None and world.segment.epoch == Epoch(1)
    await world.open_segment()
    await world.append(2)
