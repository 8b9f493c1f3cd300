"""Entries of flexible segments that nobody can have any more: looked for once more, then recorded.

Before a loss stands in the segment's node every bookie that is there is asked, in the map or not:
who was taken out keeps its copies, and is added again if it has one. Then the entries around all
holes and losses tell how many records are missing, and one change records both (R15).

Called by `attempts`. Source: docs/protocol/repair.md "Repair of a flexible segment".
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from duramen.client.bookie_client import BookieClient
from duramen.core.flexible.repair.audit import list_needed
from duramen.core.flexible.repair.evidence import EntryRange
from duramen.core.flexible.repair.losses import (
    RecordCounts,
    count_missing,
    list_neighbours,
    record_lost,
)
from duramen.core.flexible.repair.repair_map import as_serving
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.log_node import LogNode
from duramen.core.repair.cluster_view import BookieState, ClusterView
from duramen.core.repair.copies import Piece
from duramen.ids import EntryId, LedgerId
from duramen.wire.bookie_calls import ReadRange, ServiceClass
from duramen.wire.entry import EntryError, read_entry_info
from duramen.wire.repair_calls import Source
from duramen_sequencer.repair.commits import Commits
from duramen_sequencer.repair.copying import Copier
from duramen_sequencer.repair.flexible.changes import SegmentChanges

_LOG = logging.getLogger(__name__)

_HEADERS_PER_CALL: Final = 256
_PIECE_ENTRY_COUNT: Final = 8_192


class LossRecorder:
    """Records losses for one auditor."""

    def __init__(self, client: BookieClient, copier: Copier, commits: Commits) -> None:
        self._client = client
        self._copier = copier
        self._commits = commits

    async def record(
        self,
        log: LogNode,
        compared: FlexibleSegment,
        ranges: Sequence[EntryRange],
        view: ClusterView,
        changes: SegmentChanges,
    ) -> str:
        """Find who kept a copy, or record the loss; why neither was done, or nothing.

        Raises:
            MetadataError, MetadataJsonError: it may be recorded or not.
        """
        keeper = await self._find_keeper(compared, ranges, view)
        if keeper is not None:
            _LOG.warning("%s kept entries that seemed lost of %s", keeper.member, compared)
            node = as_serving(keeper.place)
            await changes.add(replace(node, weight=node.weight or 1.0))
            return ""
        counts = await self._read_counts(log, compared, ranges, view)
        if counts is None:
            return "the entries around what is lost cannot be read now"
        missing_count = count_missing(compared, ranges, counts)

        made: FlexibleSegment | None = None

        def change(segment: FlexibleSegment, nonce: str) -> FlexibleSegment | None:
            nonlocal made
            changed = record_lost(segment, compared, ranges, missing_count, nonce)
            made = changed or made
            return changed

        found = await self._commits.change_flexible(
            compared.log_id, compared.epoch, change, "losses"
        )
        if found is None or made is None or found.nonce != made.nonce:
            return "somebody else changed the segment"
        _LOG.error("lost for ever of %s: entries %s", compared, list(ranges))
        return ""

    async def _find_keeper(
        self, segment: FlexibleSegment, ranges: Sequence[EntryRange], view: ClusterView
    ) -> BookieState | None:
        """A bookie in no row that has one of the entries; who is silent hinders nothing."""
        members = {row.member for row in segment.nodes}
        others = [
            state
            for _, state in sorted(view.bookies.items())
            if state.member not in members and view.is_there(state.member)
        ]
        for first, last in ranges:
            for begin in range(first, last + 1, _PIECE_ENTRY_COUNT):
                end = EntryId(min(begin + _PIECE_ENTRY_COUNT - 1, last))
                found, _ = await self._copier.take_holdings_of(
                    segment.ledger_id,
                    Piece(EntryId(begin), end),
                    [state.member for state in others],
                    view,
                )
                for state in others:
                    if state.member in found and found[state.member].identities:
                        return state
        return None

    async def _read_counts(
        self,
        log: LogNode,
        segment: FlexibleSegment,
        ranges: Sequence[EntryRange],
        view: ClusterView,
    ) -> dict[EntryId, RecordCounts] | None:
        """Record counts around all absences; None: one that is needed cannot be read."""
        wanted = list_neighbours(segment, ranges)
        counts: dict[EntryId, RecordCounts] = {}
        for row in segment.nodes:
            state = view.bookies.get(row.node.bookie)
            if state is None or state.member != row.member or not view.is_there(row.member):
                continue
            left = [entry for entry in wanted if entry not in counts]
            source = Source(row.member, state.data_url)
            for at in range(0, len(left), _HEADERS_PER_CALL):
                part = left[at : at + _HEADERS_PER_CALL]
                counts.update(await self._read_headers(source, segment.ledger_id, part))
        needed = list_needed(log, segment)
        missed = [entry for entry in wanted if entry not in counts]
        is_missed = any(first <= entry <= last for entry in missed for first, last in needed)
        return None if is_missed else counts

    async def _read_headers(
        self, source: Source, ledger_id: LedgerId, entries: Sequence[EntryId]
    ) -> dict[EntryId, RecordCounts]:
        asked = [
            ReadRange(ledger_id, e, e, 1, service=ServiceClass.REPAIR, headers_only=True)
            for e in entries
        ]
        counts = {}
        for entry, answer in zip(entries, await self._client.read(source, asked), strict=True):
            try:
                info = read_entry_info(bytes(answer.entries[0][1])) if answer.entries else None
            except EntryError:
                continue
            if info is not None and (info.ledger_id, info.entry_id) == (ledger_id, entry):
                total = info.totals.record_count
                counts[entry] = (total - info.record_count, total)
        return counts
