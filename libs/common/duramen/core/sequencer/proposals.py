"""Metadata changes that a log's sequencer proposes, as plain functions of what was read.

Each function takes the view that its compare-and-set will check. It gives the writes of one
`multi()`, or None where no such change is possible. Nothing here waits, sends or remembers.

Called by `takeover`, `epoch` and `own_changes`. Source: docs/protocol/metadata.md "The changes",
R2, docs/protocol/write.md "Roll", R19.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import NamedTuple

from duramen.config import FlexibleReplication, Replication
from duramen.core.flexible.nodeset_plan import NodesetPlan, plan_nodeset
from duramen.core.flexible.segment import AnySegment, FlexibleSegment
from duramen.core.log_node import Ending, LogNode
from duramen.core.placement import (
    Candidate,
    PlacementRule,
    choose_ensemble,
    explain_refusal,
    satisfies,
)
from duramen.core.placement.rule import Refusal
from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment, Totals
from duramen.core.sequencer.context import SequencerContext
from duramen.core.sequencer.effects import (
    CreateSegment,
    LogView,
    Owner,
    ReplaceOwner,
    SetLog,
    SetSegment,
    Write,
)
from duramen.ids import EntryId, Lsn, Member, SequencerId


class Proposal(NamedTuple):
    """One `multi()` and the view of the log once it is applied."""

    nonce: str
    writes: tuple[Write, ...]
    view: LogView


def rule_of(log: LogNode) -> PlacementRule:
    """What the log's configuration demands of every write set (R20).

    Where it is flexible by now, a striped segment of before spreads as well as it can.
    """
    replication = log.config.replication
    if isinstance(replication, FlexibleReplication):
        return PlacementRule(replication.rack, replication.region, is_strict=False)
    return rule_of_replication(log.config.striped)


def rule_of_replication(config: Replication) -> PlacementRule:
    """As `rule_of`, of a log that is still to be made."""
    return PlacementRule(
        config.min_racks, config.min_regions, is_strict=config.placement == "strict"
    )


class PlacementChoice(NamedTuple):
    """Where a segment shall lie, chosen before it is needed."""

    config: Replication
    quorum: Quorum
    ensemble: tuple[Member, ...]

    @property
    def is_full(self) -> bool:
        """Whether it has as many bookies as the configuration asks for."""
        return self.quorum.ensemble_size == self.config.ensemble_size

    def fits(self, log: LogNode, candidates: Sequence[Candidate]) -> bool:
        """Whether log and bookies still want it where it is, and no more bookies came."""
        members = [candidate.member for candidate in candidates]
        unsteady = [candidate.member for candidate in candidates if not candidate.is_steady]
        if any(member in unsteady for member in self.ensemble):
            return False  # it came back since, or another one may be steady by now
        is_wanted = self.config == log.config.striped
        is_widest = self.is_full or len(members) == len(self.ensemble)
        if not (is_wanted and is_widest and all(member in members for member in self.ensemble)):
            return False
        places = {candidate.member: candidate for candidate in candidates}
        rule = rule_of(log)
        return not rule.is_strict or satisfies(self.ensemble, self.quorum, rule, places)


SegmentPlan = PlacementChoice | NodesetPlan
"""Where a log's next segment shall lie."""


def plan_segment(log: LogNode, context: SequencerContext) -> SegmentPlan | None:
    """Where the log's next segment shall lie, or None if it cannot be placed."""
    if log.config.is_flexible:
        plan = plan_nodeset(log, context.serving)
        return plan if isinstance(plan, NodesetPlan) else None
    return choose_segment(log, context.list_candidates(), context.rng)


def fits(plan: SegmentPlan, log: LogNode, context: SequencerContext) -> bool:
    """Whether log and bookies still want it there."""
    if isinstance(plan, NodesetPlan):
        return log.config.is_flexible and plan.fits(log, context.serving)
    return not log.config.is_flexible and plan.fits(log, context.list_candidates())


def make_segment(
    view: LogView, plan: SegmentPlan, *, nonce: str, created_unix_ms: int
) -> AnySegment:
    """The segment of the log's next epoch.

    Args:
        view: of the log before that epoch is opened.
    """
    log, ack_mode = view.log, choose_ack_mode(view)
    if isinstance(plan, NodesetPlan):
        return plan.make_segment(
            log, ack_mode=ack_mode, nonce=nonce, created_unix_ms=created_unix_ms
        )
    return new_segment(log, plan, ack_mode=ack_mode, nonce=nonce, created_unix_ms=created_unix_ms)


def choose_ack_mode(view: LogView) -> str:
    """How the log's next epoch acknowledges (R29).

    The configuration's mode is a wish. While an older epoch is not closed its mode stays, since
    nobody knows yet what it left behind. `out_of_order` follows only upon epochs that are known to
    have left no producers and no token: of an epoch of that mode nobody ever reads them back.
    """
    if view.segments:
        return view.segments[-1][0].ack_mode
    return view.log.config.ack_mode if view.log.is_stateless else "ordered"


def explain_unplaced(log: LogNode, context: SequencerContext) -> str:
    """Why `plan_segment` gives nothing, in a sentence with the numbers."""
    if not log.config.is_flexible:
        return refuse_segment(log, context.candidates)
    plan = plan_nodeset(log, context.serving)
    detail = plan.detail if isinstance(plan, Refusal) else "the bookies have changed meanwhile"
    return f"no nodeset can be chosen: {detail}"


def refuse_segment(log: LogNode, candidates: Sequence[Candidate]) -> str:
    """Why `choose_segment` gives nothing, in a sentence with the numbers."""
    config = log.config.striped
    quorum = Quorum(config.ensemble_size, config.write_quorum, config.ack_quorum)
    refusal = explain_refusal(candidates, quorum, rule_of(log))
    detail = "the bookies have changed meanwhile" if refusal is None else refusal.detail
    return f"no ensemble can be placed: {detail}"


def choose_segment(
    log: LogNode, candidates: Sequence[Candidate], rng: random.Random
) -> PlacementChoice | None:
    """Where the log's next segment shall lie, or None if no ensemble can be placed.

    With fewer than E bookies `strict` refuses and `prefer` takes E = Qw = those if ≥ Qa.
    """
    config = log.config.striped
    quorum = Quorum(config.ensemble_size, config.write_quorum, config.ack_quorum)
    usable = len(candidates)
    if usable < quorum.ensemble_size and config.placement == "prefer":
        if usable < quorum.ack_quorum:
            return None
        quorum = Quorum(usable, usable, quorum.ack_quorum)
    ensemble = choose_ensemble(candidates, quorum, rule_of(log), rng)
    return None if ensemble is None else PlacementChoice(config, quorum, ensemble)


def new_segment(
    log: LogNode, choice: PlacementChoice, *, ack_mode: str, nonce: str, created_unix_ms: int
) -> Segment:
    """The segment of the log's next epoch."""
    return Segment(
        log_id=log.log_id,
        epoch=log.next_epoch,
        quorum=choice.quorum,
        fragments=(Fragment(EntryId(0), choice.ensemble),),
        ack_mode=ack_mode,
        placement=choice.config.placement,
        created_unix_ms=created_unix_ms,
        nonce=nonce,
    )


def propose_claim(
    view: LogView, segment: AnySegment, claimant: SequencerId, *, by_hint: bool = False
) -> Proposal:
    """Epoch bump, segment creation and replacement of the owner in one `multi()` (R2)."""
    log = view.log.with_new_epoch(segment.nonce)
    writes: tuple[Write, ...] = (
        SetLog(log, view.log_version),
        CreateSegment(segment),
        ReplaceOwner(segment.epoch, view.owner, by_hint),
    )
    owner = Owner(claimant, segment.epoch, "", 0, by_hint)
    after = LogView(log, view.log_version + 1, (*view.segments, (segment, 0)), owner)
    return Proposal(segment.nonce, writes, after)


def propose_new_epoch(view: LogView, context: SequencerContext, now_us: int) -> Proposal | str:
    """A claim of the log's next epoch, or why it cannot be placed."""
    plan = plan_segment(view.log, context)
    if plan is None:
        return explain_unplaced(view.log, context)
    nonce, unix_ms = context.new_nonce(), context.unix_ms(now_us)
    segment = make_segment(view, plan, nonce=nonce, created_unix_ms=unix_ms)
    by_hint = context.hints.has(view.log.log_id, now_us)
    return propose_claim(view, segment, context.sequencer_id, by_hint=by_hint)


def propose_close(
    view: LogView,
    *,
    last_entry: EntryId,
    totals: Totals,
    completed_unix_ms: int,
    nonce: str,
    ending: Ending | None = None,
    snapshot_lsn: Lsn | None,
    proved: Collection[EntryId] = (),
) -> Proposal:
    """Close the one unclosed segment of the view and leave the log to nobody.

    Args:
        ending: the log ends, or is deleted, with the segment.
        snapshot_lsn: producers and token are known up to there; None: what the node says stays.
        proved: as `Segment.closed` has it.
    """
    ((segment, version),) = view.segments
    start_seq_num = view.log.totals.record_count
    closed: AnySegment
    if isinstance(segment, FlexibleSegment):
        closed = segment.closed_by_owner(
            last_entry=last_entry,
            totals=totals,
            start_seq_num=start_seq_num,
            completed_unix_ms=completed_unix_ms,
            nonce=nonce,
        )
    else:
        closed = segment.closed(
            last_entry=last_entry,
            totals=totals,
            start_seq_num=start_seq_num,
            completed_unix_ms=completed_unix_ms,
            nonce=nonce,
            proved=proved,
        )
    log = view.log.with_clean(closed, nonce)
    if ending is not None:
        log = log.with_ending(ending, unix_ms=completed_unix_ms, nonce=nonce)
    if snapshot_lsn is not None:
        log = log.with_snapshot(snapshot_lsn)
    writes: list[Write] = [SetSegment(closed, version), SetLog(log, view.log_version)]
    if view.owner is not None:
        writes.append(ReplaceOwner(None, view.owner))
    return Proposal(nonce, tuple(writes), LogView(log, view.log_version + 1, (), None))


def propose_roll(
    view: LogView,
    close: Proposal,
    following: AnySegment,
    claimant: SequencerId,
    *,
    by_hint: bool = False,
) -> Proposal:
    """Close epoch e as `close` does and open e + 1, all in one `multi()` (R19)."""
    log = close.view.log.with_new_epoch(close.nonce)
    writes: tuple[Write, ...] = (
        close.writes[0],
        SetLog(log, view.log_version),
        CreateSegment(following),
        ReplaceOwner(following.epoch, view.owner, by_hint),
    )
    owner = Owner(claimant, following.epoch, "", 0, by_hint)
    after = LogView(log, view.log_version + 1, ((following, 0),), owner)
    return Proposal(close.nonce, writes, after)
