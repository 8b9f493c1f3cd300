"""The changes of a flexible segment that repair makes, each by one compare-and-set (R3, R26).

Every try reads both nodes after a sync and judges anew. A change that rests on evidence is sent
only while its marks are fresh, and in the session in which the attempt began: whoever slept longer
asks again, or is somebody whom the metadata store does not know any more.

Called by `attempts`. Source: docs/protocol/repair.md "Repair of a flexible segment".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from duramen.core.flexible.nodeset import NodesetRow, ServingBookie
from duramen.core.flexible.repair.audit import list_needed
from duramen.core.flexible.repair.evidence import EntryRange, Evidence
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.repair.audit import live_epochs
from duramen.ids import Epoch, LogId, Member
from duramen.runtime.sequencer.log_driver import now_us
from duramen_sequencer.repair.commits import Commits
from duramen_sequencer.repair.readings import Readings

NeededOf = Callable[[FlexibleSegment], Sequence[EntryRange]]


class ChangeResult(NamedTuple):
    """What became of a change that rests on evidence.

    `evidence`: what it is worth afterwards; None: nothing. `is_stale`: nothing was sent, since the
    marks are too old.
    """

    evidence: Evidence | None
    is_stale: bool = False


class SegmentChanges:
    """Changes one segment for one attempt."""

    def __init__(
        self,
        readings: Readings,
        commits: Commits,
        log_id: LogId,
        epoch: Epoch,
        session: Callable[[], int],
    ) -> None:
        self._readings = readings
        self._commits = commits
        self._log_id, self._epoch = log_id, epoch
        self._session = session
        self._began_in = session()

    async def add(self, node: ServingBookie) -> FlexibleSegment | None:
        """Append a row for a bookie, unless it has one; the segment as it is, None: it is gone.

        Raises:
            MetadataError, MetadataJsonError: it may be there or not.
        """
        member = Member(node.bookie, node.incarnation)

        def change(segment: FlexibleSegment, nonce: str) -> FlexibleSegment | None:
            if not segment.is_closed or not segment.has_room or segment.find_member(member):
                return None
            return segment.with_added(node, nonce)

        return await self._commits.change_flexible(self._log_id, self._epoch, change, "additions")

    async def prove(self, evidence: Evidence) -> ChangeResult:
        """Every copy that RP asks for was compared (R9)."""
        return await self._apply(evidence, evidence.prove, "proofs")

    async def relocate(self, evidence: Evidence) -> ChangeResult:
        """Rows are where their bookies are."""
        return await self._apply(evidence, evidence.relocate, "relocations")

    async def take_out(self, evidence: Evidence, row: NodesetRow) -> ChangeResult:
        """A row that is no witness goes."""

        def change(
            segment: FlexibleSegment, needed: Sequence[EntryRange], nonce: str
        ) -> FlexibleSegment | None:
            return evidence.take_out(segment, needed, row.number, nonce)

        return await self._apply(evidence, change, "removals")

    async def _apply(
        self,
        evidence: Evidence,
        judge: Callable[[FlexibleSegment, Sequence[EntryRange], str], FlexibleSegment | None],
        counted: str,
    ) -> ChangeResult:
        """Apply a change as often as it may be tried.

        Raises:
            MetadataError, MetadataJsonError, UnreadError: it may be applied or not.
        """
        needed_of = await self._read_needed()
        if needed_of is None:
            return ChangeResult(None)
        made: FlexibleSegment | None = None
        is_stale = False

        def change(segment: FlexibleSegment, nonce: str) -> FlexibleSegment | None:
            nonlocal made, is_stale
            changed = judge(segment, needed_of(segment), nonce)
            is_stale = changed is not None and not evidence.is_fresh(now_us())
            if is_stale or self._session() != self._began_in:
                return None
            made = changed or made
            return changed

        found = await self._commits.change_flexible(self._log_id, self._epoch, change, counted)
        if found is None or self._session() != self._began_in:
            return ChangeResult(None)
        if is_stale:
            return ChangeResult(evidence, is_stale=True)
        if made is not None and found.nonce == made.nonce:
            return ChangeResult(evidence.after(found))
        if evidence.holds(found, needed_of(found)):
            return ChangeResult(evidence)
        return ChangeResult(evidence.adopt(found))

    async def _read_needed(self) -> NeededOf | None:
        """What is needed of the segment, by the log's node as it is now; None: nothing any more."""
        log = await self._readings.read_log(self._log_id)
        if log is None or self._epoch not in live_epochs(log):
            return None
        return lambda segment: list_needed(log, segment)
