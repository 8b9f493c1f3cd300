"""Reads whole entries of striped segments through the lanes of a process that owns logs.

One replica after the other is asked for a range; what it returns together, whole and undamaged, is
the answer. Used for what a sequencer reads beside recovery: the records of metadata logs.

Called by `runtime.metadata_log.records`. Source: docs/protocol/reading.md "Which replica", R15.
"""

from __future__ import annotations

from duramen.core.segment_base import SegmentBase
from duramen.core.status import BookieStatus
from duramen.errors import DuramenError
from duramen.ids import EntryId
from duramen.limits import READ_TIMEOUT_US
from duramen.runtime.http_client import PeerError
from duramen.runtime.metadata_log.records import MetadataRecords
from duramen.runtime.metadata_log.segment_nodes import SegmentNodes
from duramen.runtime.sequencer.bookie_lanes import BookieLanes
from duramen.runtime.stores.metadata_store import MetadataStore
from duramen.wire import bookie_calls as calls
from duramen.wire.frame import FrameError
from duramen.wire.metadata_json import Paths


class EntryReads:
    """Entries from the bookies that a process knows."""

    def __init__(self, lanes: BookieLanes) -> None:
        self._lanes = lanes

    async def fetch_run(
        self, segment: SegmentBase, first: EntryId, last: EntryId, bytes_max: int
    ) -> list[tuple[EntryId, bytes]]:
        """Entries from `first` on without a gap; one at least.

        Raises:
            DuramenError: `data_unavailable`: no replica gives it now.
        """
        end = segment.end_of_place(first, last)
        wanted = calls.ReadRange(
            segment.ledger_id, first, end, bytes_max, service=calls.ServiceClass.CATCH_UP_READ
        )
        for member in segment.list_holders(first):
            body = calls.pack_reads(member.incarnation, [wanted])
            try:
                answer = await self._lanes.insist(member, "/b/read", body, READ_TIMEOUT_US)
                (found,) = calls.parse_read_answers(answer)
                entries = calls.verify_read(found, wanted).entries
            except (PeerError, FrameError, ValueError):
                continue
            if found.status is BookieStatus.OK and entries and entries[0][0] == first:
                return [(entry_id, bytes(entry)) for entry_id, entry in entries]
        raise DuramenError(
            "data_unavailable", f"no replica of e{segment.epoch}n{first} can be read now"
        )


def open_segment_nodes(store: MetadataStore, paths: Paths, lanes: BookieLanes) -> SegmentNodes:
    """What reads segments' metadata from both places in a process that owns logs."""
    records = MetadataRecords(store, paths, EntryReads(lanes).fetch_run)
    return SegmentNodes(store, paths, records)
