"""What must hold in every state, said of disks, nodes and history alone.

Nothing here looks into a core, so that a core cannot argue itself right. Not here: what is judged
at the moment of an acknowledgement (F1, E1, sequence numbers), which `model.py` does.

Called by `model.World.judge`. Source: docs/testing.md "Invariants", docs/explorer.md.
"""

from __future__ import annotations

from duramen.core.flexible.segment import AnySegment, FlexibleSegment
from duramen.core.quorum import write_set
from duramen.ids import NOTHING, EntryId, Epoch, Member
from tests.explore.nodes import BookieFacts, StoreFacts


def judge_segment(segment: AnySegment, acked: dict[int, int], bookies: list[BookieFacts]) -> str:
    """D1, D2, D3, O1, L1, C1 for one epoch; readers are folded into it.

    A reader may ask any bookie for its LAC and then any holder for an entry, in any state. So
    instead of letting it take steps, every LAC and every copy that it could see is judged in every
    state: that is every interleaving of every reader.
    """
    epoch = segment.epoch
    last = segment.last_entry
    lac = max(bookie.lacs.get(epoch, NOTHING) for bookie in bookies)
    if any(entry not in acked for entry in range(lac + 1)):
        return f"L1: a reader sees LAC {lac}, but only {sorted(acked)} were acknowledged"
    if last is not None and any(entry > last for entry in acked):
        return f"D1: closed at {last}, but {sorted(acked)} were acknowledged"
    if last is not None and lac > last:
        return f"L1: closed at {last}, but a reader sees LAC {lac}"
    wanted = range(last + 1) if last is not None else sorted(acked)
    for entry in wanted:
        members = _list_members(segment, EntryId(entry))
        held = {m: bookies[int(m.bookie[1:])].entries.get((epoch, entry)) for m in members}
        copies = [crc for crc in held.values() if crc is not None]
        if segment.hole_at(EntryId(entry)):
            if entry in acked:
                return f"D1: closed with a hole at {entry}, which was acknowledged"
            continue
        if not _is_durable(segment, [m for m, crc in held.items() if crc is not None]):
            return f"D2: entry {entry} is durable at {len(copies)} of {[m.bookie for m in members]}"
        if any(crc != acked.get(entry, copies[0]) for crc in copies):
            return f"O1: entry {entry} reads differently from its holders"
    return _judge_missing(segment) if isinstance(segment, FlexibleSegment) else ""


def _list_members(segment: AnySegment, entry: EntryId) -> tuple[Member, ...]:
    """Whose copies count: those that the node names now; guests' once it is closed (R24)."""
    if isinstance(segment, FlexibleSegment):
        return segment.list_holders(entry) if segment.is_closed else segment.members
    return write_set(segment.fragment_of(entry).ensemble, segment.quorum, entry)


def _is_durable(segment: AnySegment, holders: list[Member]) -> bool:
    """R22 or R5, of copies that are on disk."""
    if isinstance(segment, FlexibleSegment):
        nodes = [row.node for row in segment.nodes if row.member in holders]
        return segment.replication.is_satisfied_by(nodes)
    return len(holders) >= segment.quorum.ack_quorum


def _judge_missing(segment: FlexibleSegment) -> str:
    """R29: each entry has one record here."""
    missing_count = sum(last - first + 1 for first, last in segment.holes)
    if segment.missing_record_count != missing_count:
        return f"G1: {segment.missing_record_count} records are missing, in holes {segment.holes}"
    return ""


def judge_chain(store: StoreFacts) -> str:
    """G1, E1: closed segments are a prefix, and each begins where the one before ended."""
    expected = 0
    for epoch in range(1, store.log.next_epoch):
        segment, _ = store.segments[Epoch(epoch)]
        if not segment.is_closed:
            break
        if segment.start_seq_num != expected or segment.totals is None:
            return f"G1: e{epoch} starts at {segment.start_seq_num}, not {expected}"
        # A hole's sequence numbers are gone: readers report the gap.
        if segment.last_entry is None or segment.totals.record_count != segment.last_entry + 1:
            return f"G1: e{epoch} counts {segment.totals.record_count} records"
        expected += segment.totals.record_count
    return ""
