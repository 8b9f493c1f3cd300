"""One audit of all metadata: what every live segment of every log lacks, and who is named where.

A round reads the bookies first, then every log by its number, and puts what it finds into the
backlog while it goes on. Only a round that read everything is whole: it alone may say of a bookie
that nobody names it, end work that was not found again, and settle notes of ledgers that are gone.

Called by `auditor`. Source: docs/protocol/repair.md, R4.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import Any

from duramen.core.duty import Duty
from duramen.core.entry_ranges import EntryRanges
from duramen.core.flexible.nodeset import choose_nodeset
from duramen.core.flexible.nodeset_plan import make_nodeset_rule
from duramen.core.flexible.repair.audit import (
    NO_NODESET,
    WHOLE,
    NextNodeset,
    audit_flexible,
    list_in_service,
    names_anybody,
)
from duramen.core.flexible.repair.repair_map import RepairMap
from duramen.core.flexible.segment import AnySegment, FlexibleSegment
from duramen.core.log_node import LogNode
from duramen.core.placement import PlacementRule, Refusal
from duramen.core.quorum import Quorum
from duramen.core.repair.audit import (
    Debts,
    WorkKey,
    audit_segment,
    is_misplaced,
    list_stretches,
    live_epochs,
    remaining_debt,
)
from duramen.core.repair.cluster_view import ClusterView
from duramen.core.repair.drain import AnyNeed, LogNames, Need, NodesetNeed, WholeRound
from duramen.core.repair.rebalance import Loads
from duramen.core.repair.tasks import Backlog
from duramen.core.segment import Segment, SegmentState
from duramen.core.sequencer.proposals import rule_of
from duramen.ids import BookieId, EntryId, LedgerId, Member, epoch_of, log_of
from duramen.runtime.stores.metadata_store import Watch
from duramen.wire.metadata_json import MetadataJsonError
from duramen_sequencer.repair.commits import Commits
from duramen_sequencer.repair.readings import LogAudit, Notes, Readings, UnreadError

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class Round:
    """What one round has found so far."""

    view: ClusterView
    began_unix_ms: int
    is_whole: bool = False
    ended_unix_ms: int = 0
    log_count: int = 0
    segment_count: int = 0
    recovering_count: int = 0
    unproved_count: int = 0
    violation_count: int = 0
    unread: list[str] = field(default_factory=list)
    unread_count: int = 0
    noted: frozenset[LedgerId] = frozenset()
    named: dict[BookieId, int] = field(default_factory=dict)
    in_doubt: dict[Member, int] = field(default_factory=dict)
    """Ended fragments that were not compared since their member became doubtful."""
    found: set[WorkKey] = field(default_factory=set)
    needs: dict[AnyNeed, LogNames] = field(default_factory=dict)
    """What logs ask of new segments, and which logs do."""
    waiting: dict[BookieId, dict[AnyNeed, LogNames]] = field(default_factory=dict)
    """Of bookies that drain: logs whose open segment names them until it has rolled, by what they
    ask of the next one."""
    loads: Loads = field(default_factory=Loads)

    def seen(self) -> WholeRound:
        """What a drain may be judged by."""
        assert self.is_whole, "a round that left something out says of nobody that he is not named"
        return WholeRound(self.view, self.named, self.recovering_count)

    def describe(self) -> dict[str, Any]:
        """For people."""
        return {
            "began_unix_ms": self.began_unix_ms,
            "ended_unix_ms": self.ended_unix_ms,
            "whole": self.is_whole,
            "logs": self.log_count,
            "segments": self.segment_count,
            "segments_in_recovery": self.recovering_count,
            "unproved_fragments": self.unproved_count,
            "fragments_in_doubt": sum(self.in_doubt.values()),
            "placement_violations": self.violation_count,
            "unread": self.unread,
            "unread_count": self.unread_count,
        }


_UNREAD_SHOWN: int = 20


class Rounds:
    """Carries rounds out."""

    def __init__(self, readings: Readings, backlog: Backlog, commits: Commits) -> None:
        self._readings = readings
        self._backlog = backlog
        self._commits = commits

    async def run(self, watch_owed: Watch | None = None, watch_queue: Watch | None = None) -> Round:
        """One round.

        Raises:
            MetadataError, UnreadError: it could not begin, or not go on; what it found stays.
        """
        view = await self._readings.read_view()
        this = Round(view, time.time_ns() // 1_000_000)
        noted = await self._readings.list_noted(watch_owed, watch_queue)
        ledgers = frozenset(LedgerId(number) for number in noted)

        def on_unread(what: str) -> None:
            this.unread_count += 1
            if len(this.unread) < _UNREAD_SHOWN:
                this.unread.append(what)
            _LOG.warning("the audit passes over %s", what)

        async def visit(audit: LogAudit) -> None:
            await self._visit(audit, this)

        this.is_whole = await self._readings.walk(visit, on_unread, ledgers)
        this.noted = ledgers
        this.ended_unix_ms = time.time_ns() // 1_000_000
        return this

    async def finish(self, this: Round) -> None:
        """End what a whole round did not find again, and settle notes that mean nothing any more.

        Raises:
            MetadataError: the rest is settled after another round.
        """
        if not this.is_whole:
            return
        self._backlog.keep_only(this.found)
        self._readings.doubts.end_round(this.in_doubt)
        for ledger_id in sorted(this.noted):
            await self._settle(ledger_id)

    async def _visit(self, audit: LogAudit, this: Round) -> None:
        log, rule = audit.log, rule_of(audit.log)
        this.log_count += 1
        if not log.is_ended and not log.is_deleted:
            this.needs.setdefault(need_of(log), LogNames()).note(log)
        async for segment, debts in audit.segments:
            this.segment_count += 1
            if isinstance(segment, FlexibleSegment):
                self._visit_flexible(log, segment, debts, this)
                continue
            _count(log, segment, rule, debts, this)
            for finding in audit_segment(log, segment, rule, this.view, debts):
                this.found.add(finding.key)
                self._backlog.put(finding)

    def _visit_flexible(
        self, log: LogNode, segment: FlexibleSegment, debts: Debts, this: Round
    ) -> None:
        _count_flexible(log, segment, debts, this)

        def find_next() -> NextNodeset:
            return next_nodeset(log, this.view, time.time_ns() // 1_000_000)

        for finding in audit_flexible(log, segment, this.view, debts, find_next):
            this.found.add(finding.key)
            self._backlog.put(finding)

    async def _settle(self, ledger_id: LedgerId) -> None:
        """Take notes away that mean nothing any more: nobody is to hold what they speak of."""
        try:
            log = await self._readings.read_log(log_of(ledger_id))
            found = await self._readings.read_segment(log_of(ledger_id), epoch_of(ledger_id))
            notes = await self._readings.read_notes(ledger_id)
        except (UnreadError, MetadataJsonError):
            return
        if not notes.owed:
            await self._commits.remove_parent(ledger_id)
        if log is None or epoch_of(ledger_id) >= log.next_epoch:
            return  # nothing is known of such a ledger: a missing node proves nothing (R4)
        segment = None if found is None else found[0]
        if epoch_of(ledger_id) in live_epochs(log):
            if segment is not None:
                await self._settle_segment(log, segment, notes)
            return
        for note in notes.owed.values():
            await self._commits.settle_owed(note, EntryRanges())
        if notes.queued is not None:
            for member in notes.queued.members()[:1]:
                await self._commits.settle_report(notes.queued, member)

    async def _settle_segment(self, log: LogNode, segment: AnySegment, notes: Notes) -> None:
        if isinstance(segment, FlexibleSegment):
            await self._settle_flexible(log, segment, notes)
            return
        for member, note in notes.owed.items():
            ranges = EntryRanges(remaining_debt(log, segment, member, note.ranges))
            if ranges.list_ranges() != EntryRanges(note.ranges).list_ranges():
                await self._commits.settle_owed(note, ranges)
        if notes.queued is None:
            return
        debts = self._readings.debts_of(segment.ledger_id, notes)
        for member in notes.queued.members():
            stretches = [
                stretch
                for stretch in list_stretches(log, segment)
                if member in stretch.fragment.ensemble
            ]
            if not any(debts.is_damaged(member, s.fragment.first_entry) for s in stretches):
                await self._commits.settle_report(notes.queued, member)
                return  # the note has another version now; the others are settled next time

    async def _settle_flexible(self, log: LogNode, segment: FlexibleSegment, notes: Notes) -> None:
        """Nobody is owed an entry of a flexible segment; reports stay until it was compared."""
        for note in notes.owed.values():
            await self._commits.settle_owed(note, EntryRanges())
        if notes.queued is None:
            return
        debts = self._readings.debts_of(segment.ledger_id, notes)
        is_needed = names_anybody(log, segment)
        for member in notes.queued.members():
            is_named = is_needed and segment.find_member(member) is not None
            if not is_named or not debts.is_damaged(member, WHOLE):
                await self._commits.settle_report(notes.queued, member)
                return  # the note has another version now; the others are settled next time


def next_nodeset(log: LogNode, view: ClusterView, unix_ms: int) -> NextNodeset:
    """Whom the log's next segment would name; nobody, if none could be made now."""
    if not log.config.is_flexible:
        return NextNodeset([candidate.member for candidate in view.candidates()], unix_ms)
    chosen = choose_nodeset(list_in_service(view), make_nodeset_rule(log.config), log.log_id)
    if isinstance(chosen, Refusal):
        return NO_NODESET
    members = [Member(node.bookie, node.incarnation) for node in chosen.nodes]
    return NextNodeset(members, unix_ms)


def need_of(log: LogNode) -> AnyNeed:
    """What the log's configuration asks of every new segment."""
    if log.config.is_flexible:
        return NodesetNeed(make_nodeset_rule(log.config))
    config = log.config.striped
    quorum = Quorum(config.ensemble_size, config.write_quorum, config.ack_quorum)
    return Need(quorum, rule_of(log))


def need_after(log: LogNode, segment: AnySegment) -> AnyNeed:
    """What is worth the end of an open segment: as many members as its log asks for by now, or as
    it has, if that is less. A log that prefers to go on would take fewer: nobody asks that of it.
    """
    need = need_of(log)
    if isinstance(need, NodesetNeed) or isinstance(segment, FlexibleSegment):
        return need
    is_narrow = segment.quorum.write_quorum < need.quorum.write_quorum
    return need._replace(quorum=segment.quorum) if is_narrow else need


def subtract(ranges: list[tuple[int, int]], first: EntryId, last: EntryId) -> EntryRanges:
    """The ranges without the entries `first` … `last`."""
    left = EntryRanges(ranges)
    left.remove(first, last)
    return left


def _count_flexible(log: LogNode, segment: FlexibleSegment, debts: Debts, this: Round) -> None:
    this.recovering_count += segment.state is SegmentState.IN_RECOVERY
    if not names_anybody(log, segment):
        return
    this.loads.note_flexible(log, segment)
    for bookie in {row.node.bookie for row in segment.nodes}:
        this.named[bookie] = this.named.get(bookie, 0) + 1
    if not segment.is_closed:
        _note_open(log, segment, {row.node.bookie for row in segment.nodes}, this)
        return
    this.unproved_count += not segment.is_proved
    this.violation_count += bool(RepairMap(segment, this.view).list_moves())
    for row in segment.nodes:
        if debts.is_doubted(row.member, WHOLE):
            this.in_doubt[row.member] = this.in_doubt.get(row.member, 0) + 1


def _count(log: LogNode, segment: Segment, rule: PlacementRule, debts: Debts, this: Round) -> None:
    this.loads.note(log, segment, rule)
    this.recovering_count += segment.state is SegmentState.IN_RECOVERY
    for stretch in list_stretches(log, segment):
        if not stretch.is_open and not stretch.fragment.is_proved:
            this.unproved_count += 1
        if debts.doubtful and not stretch.is_open:
            fragment = stretch.fragment
            for member in fragment.ensemble:
                if debts.is_doubted(member, fragment.first_entry):
                    this.in_doubt[member] = this.in_doubt.get(member, 0) + 1
        ensemble = stretch.fragment.ensemble
        owed = [m for m in ensemble if debts.is_owed(m, stretch.first, stretch.last)]
        if is_misplaced(segment, stretch.fragment, rule, this.view, discounted=owed):
            this.violation_count += 1
        bookies = {member.bookie for member in stretch.fragment.ensemble}
        for bookie in bookies:
            this.named[bookie] = this.named.get(bookie, 0) + 1
        if stretch.is_open:
            _note_open(log, segment, bookies, this)


def _note_open(log: LogNode, segment: AnySegment, bookies: set[BookieId], this: Round) -> None:
    """Note who is left once the segment has rolled; one in recovery does not roll."""
    if segment.state is SegmentState.IN_RECOVERY:
        return
    for bookie in bookies:
        state = this.view.bookies.get(bookie)
        if state is not None and state.duty is not Duty.SERVING:
            by_need = this.waiting.setdefault(bookie, {})
            by_need.setdefault(need_after(log, segment), LogNames()).note(log)
