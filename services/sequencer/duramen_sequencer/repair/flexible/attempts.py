"""One attempt at repairing a flexible segment, carried out to its end.

The core's attempt says what to do next; here it is done: calls to bookies, the rows that are added,
and after evidence the changes: places, proved, rows that go. Before a change whose marks are too
old the witnesses are asked again. Whatever is cut off in between is found by the next audit.

Not here: which segments, and what becomes of the task (`worker`). Called by `worker`. Source: R26,
docs/protocol/repair.md "Repair of a flexible segment".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from duramen.core.flexible.repair.attempt import (
    AttemptEnd,
    CopyOrders,
    HoldingsQuestion,
    MarkQuestion,
    RepairAttempt,
    RowAddition,
)
from duramen.core.flexible.repair.audit import list_needed
from duramen.core.flexible.repair.evidence import Evidence
from duramen.core.flexible.repair.losses import find_lost_entries
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.log_node import LogNode
from duramen.core.repair.cluster_view import ClusterView
from duramen.core.repair.copies import Flaw
from duramen.core.repair.swap import Swap
from duramen.ids import Member
from duramen.limits import REPAIR_PIECE_ENTRY_COUNT
from duramen.runtime.sequencer.log_driver import now_us
from duramen_sequencer.repair.commits import Commits
from duramen_sequencer.repair.copying import OnBytes
from duramen_sequencer.repair.flexible.calls import AttemptCalls
from duramen_sequencer.repair.flexible.changes import ChangeResult, SegmentChanges
from duramen_sequencer.repair.flexible.losses import LossRecorder
from duramen_sequencer.repair.readings import Readings

_STALE_COUNT_MAX: Final = 5
"""Questions whose answers came too late for a change, in one attempt."""


class AttemptResult(NamedTuple):
    """What one attempt came to.

    `whole`: members that were witnesses of evidence; nobody: there was none. `reason`: why it could
    not be ended. `lacks_place`: no bookie can take the copies that are wanted.
    """

    whole: Sequence[Member] = ()
    flaws: Sequence[Flaw] = ()
    reason: str = ""
    lacks_place: bool = False
    is_lost: bool = False
    """What nobody can have any more was recorded, or somebody was found who kept it."""


class FlexibleRepair:
    """Carries out attempts for one auditor.

    Args:
        session: the metadata store's session of now.
    """

    def __init__(
        self,
        readings: Readings,
        commits: Commits,
        calls: AttemptCalls,
        losses: LossRecorder,
        session: Callable[[], int],
        *,
        piece_entry_count: int = REPAIR_PIECE_ENTRY_COUNT,
    ) -> None:
        self._readings = readings
        self._commits = commits
        self._calls = calls
        self._losses = losses
        self._session = session
        self._piece_entry_count = piece_entry_count

    async def repair(
        self,
        log: LogNode,
        segment: FlexibleSegment,
        view: ClusterView,
        move: Swap | None,
        on_bytes: OnBytes,
    ) -> AttemptResult:
        """Compare and copy, and change what evidence allows.

        Args:
            move: of a rebalance.

        Raises:
            MetadataError, MetadataJsonError, UnreadError: try again; a change may be applied.
        """
        moved = None if move is None else segment.find_member(move.old)
        attempt = RepairAttempt(
            segment,
            list_needed(log, segment),
            view,
            view.flexible_candidates(),
            piece_entry_count=self._piece_entry_count,
            moved=None if moved is None else moved.number,
            taker=None if move is None else move.new,
        )
        changes = SegmentChanges(
            self._readings, self._commits, segment.log_id, segment.epoch, self._session
        )
        end = await self._compare(attempt, changes, view, on_bytes)
        if end.evidence is None:
            lost = find_lost_entries(attempt.segment, end.flaws, view)
            if lost and not _is_archived(log, segment):
                reason = await self._losses.record(log, attempt.segment, lost, view, changes)
                return AttemptResult(reason=reason, is_lost=True)
            return AttemptResult((), end.flaws, end.reason, end.lacks_place)
        rows = attempt.segment.nodes
        whole = [row.member for row in rows if row.number in end.evidence.witnesses]
        wanted: list[Callable[[Evidence], Awaitable[ChangeResult]]]
        wanted = [changes.relocate, changes.prove]
        wanted += [partial(changes.take_out, row=row) for row in attempt.going]
        reason = await self._change(attempt, changes, view, end.evidence, wanted)
        return AttemptResult(whole, reason=reason)

    async def _compare(
        self,
        attempt: RepairAttempt,
        changes: SegmentChanges,
        view: ClusterView,
        on_bytes: OnBytes,
    ) -> AttemptEnd:
        """Do what the attempt says until it ends."""
        ledger_id = attempt.segment.ledger_id
        while True:
            match step := attempt.next_step():
                case MarkQuestion():
                    asked_us = now_us()
                    marks = await self._calls.ask_marks(ledger_id, step.rows, view)
                    attempt.on_marks(marks.told, asked_us, marks.unaware)
                case HoldingsQuestion():
                    attempt.on_holdings(await self._calls.ask_holdings(ledger_id, step, view))
                case CopyOrders():
                    await self._calls.copy(ledger_id, step, view, on_bytes)
                    attempt.on_copied()
                case RowAddition():
                    segment = await changes.add(step.node)
                    if segment is None:
                        return AttemptEnd(None, (), "the segment is gone")
                    attempt.on_added(segment)
                case AttemptEnd():
                    return step

    async def _change(
        self,
        attempt: RepairAttempt,
        changes: SegmentChanges,
        view: ClusterView,
        evidence: Evidence,
        wanted: list[Callable[[Evidence], Awaitable[ChangeResult]]],
    ) -> str:
        """Make the changes one by one; why not all were made, or nothing."""
        stale_count = 0
        while wanted and stale_count < _STALE_COUNT_MAX:
            result = await wanted[0](evidence)
            if result.evidence is None:
                return "somebody else changed the map, or this session is over"
            evidence = result.evidence
            if not result.is_stale:
                wanted.pop(0)
                continue
            stale_count += 1
            attempt.ask_again()
            end = await self._compare(attempt, changes, view, lambda _: None)
            if end.evidence is None:
                return end.reason
            evidence = evidence.refreshed(end.evidence.asked_us)
        return "the bookies answer too slowly to be believed" if wanted else ""


def _is_archived(log: LogNode, segment: FlexibleSegment) -> bool:
    """Whether readers have it elsewhere, and takeovers, which ask bookies alone, do not need it."""
    return segment.cold_copy is not None and segment.epoch < log.first_stateful_epoch
