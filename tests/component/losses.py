"""Entries of a log that are lost on every bookie.

Used by the tests of what readers are told then. Source: docs/protocol/reading.md.
"""

from __future__ import annotations

from duramen.core.flexible.segment import FlexibleSegment
from duramen.ids import EntryId, Epoch
from duramen.wire.metadata_json import encode_segment, read_any_segment
from tests.component.readproxy_world import LOG, PATHS, World


async def lose(world: World, first: int, last: int) -> None:
    """No bookie has these entries of segment 1, and the segment says that they are lost."""
    path = PATHS.segment(LOG, Epoch(1))
    found = await world.store.get(path)
    assert found is not None
    segment = read_any_segment(found.data)
    if isinstance(segment, FlexibleSegment):
        missing_count = segment.missing_record_count
        segment = segment.with_lost([(first, last)], missing_count, "n")
    else:
        segment = segment.with_lost([(first, last)], "n")
    for entry in range(first, last + 1):
        for bookie in world.bookies.values():
            bookie.entries.pop((segment.ledger_id, EntryId(entry)), None)
    await world.put(path, encode_segment(segment))
