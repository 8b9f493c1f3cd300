"""Whether bookies may be stopped now, judged on metadata and on what owners say.

Owners are asked first, then bookies and segments are read: what an owner has in memory when it is
asked is in the metadata when its segment is closed. The walk takes a while where logs are many, so
bookies and owners are looked at once more behind it: who is newly away or behind has it judged
again, and a segment that nobody had spoken for is read again.

Called by `granting`. Source: docs/protocol/disruption.md "What owners are asked".
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from duramen.core.duty import Duty
from duramen.core.flexible.segment import AnySegment, FlexibleSegment
from duramen.core.log_node import LogNode
from duramen.core.repair.audit import Debts, FragmentKey
from duramen.core.repair.cluster_view import ClusterView
from duramen.core.repair.disruption import Disruption
from duramen.core.repair.disruption_grants import DisruptionKind, DisruptionTarget, TargetKind
from duramen.core.repair.standing import Standing
from duramen.core.segment_base import SegmentState
from duramen.errors import DuramenError
from duramen.ids import BookieId, Epoch, LedgerId, LogId, Member
from duramen.runtime.sequencer.log_driver import now_us
from duramen.runtime.sequencer.metadata_link import MetadataLink
from duramen.runtime.stores.metadata_store import Check, Op
from duramen.units import MS
from duramen.wire.metadata_json import read_bookie
from duramen_sequencer.life.workers import for_each
from duramen_sequencer.repair.disruption.lags import AskedSequencers, Lags, ask_lags
from duramen_sequencer.repair.readings import LogAudit, Readings, UnreadError
from duramen_sequencer.repair.rounds import need_of

_TRIES: Final = 3
_HEARD_AT_ONCE: Final = 16

Unreached = Callable[[], Collection[BookieId]]
AskedBookies = Disruption | Standing
AskedT = TypeVar("AskedT", Disruption, Standing)


@dataclass(frozen=True, slots=True)
class JudgedBookies:
    """The answer, and what a grant has to be bound to."""

    answer: dict[str, Any]
    checks: Sequence[Op] = ()


class BookieJudge:
    """Judges questions about bookies, for the auditor.

    Args:
        unreached: bookies that this process asks in vain, whatever their sessions say.
    """

    def __init__(
        self,
        readings: Readings,
        link: MetadataLink,
        sequencers: AskedSequencers,
        unreached: Unreached,
        rng: random.Random,
    ) -> None:
        self._readings = readings
        self._link = link
        self._sequencers = sequencers
        self._unreached = unreached
        self._rng = rng

    async def judge(
        self,
        target: DisruptionTarget,
        kind: DisruptionKind,
        accepts: Collection[str] = (),
        *,
        field: str = "target",
        is_granting: bool = False,
    ) -> JudgedBookies:
        """Whether what a target means may be stopped.

        Args:
            is_granting: a grant follows where nothing speaks against it.

        Raises:
            DuramenError: `invalid_argument`: no such bookie; `metadata_unavailable`: not everything
                can be read, or too much changes; `log_unavailable`: there is no sequencer.
            MetadataError: nothing is known.
        """

        def begin(view: ClusterView, unreached: frozenset[BookieId]) -> Disruption:
            return Disruption(_find_bookies(target, view, field), kind, view, unreached=unreached)

        async def conclude(question: Disruption) -> JudgedBookies:
            checks: Sequence[Op] = ()
            if is_granting and kind is DisruptionKind.REMOVE:
                checks = await self._bind_removal(question, BookieId(target.name))
            return JudgedBookies(question.conclude(self._rng, accepts), checks)

        # A removal is of what no segment names, and owners owe to whom their segments name.
        return await self._judge(begin, conclude, asks_owners=kind is DisruptionKind.RESTART)

    async def judge_all(self, given_up: Collection[FragmentKey] = ()) -> JudgedBookies:
        """How every registered bookie stands, each as if it alone were to be restarted.

        Args:
            given_up: fragments that cannot be repaired.

        Raises:
            DuramenError, MetadataError: as `judge`.
        """

        def begin(view: ClusterView, unreached: frozenset[BookieId]) -> Standing:
            return Standing(view, unreached=unreached, given_up=given_up)

        async def conclude(standing: Standing) -> JudgedBookies:
            return JudgedBookies({"bookies": standing.conclude(self._rng)})

        return await self._judge(begin, conclude, asks_owners=True)

    async def _judge(
        self,
        begin: Callable[[ClusterView, frozenset[BookieId]], AskedT],
        conclude: Callable[[AskedT], Awaitable[JudgedBookies]],
        *,
        asks_owners: bool,
    ) -> JudgedBookies:
        began_us = now_us()
        try:
            for _ in range(_TRIES):
                read_unix_ms = time.time_ns() // 1_000_000
                question = await self._try(begin, asks_owners=asks_owners)
                if question is None:
                    continue
                judged = await conclude(question)
                judged.answer["read_unix_ms"] = read_unix_ms
                judged.answer["metadata_age_ms"] = (now_us() - began_us) // MS
                return judged
        except UnreadError as error:
            raise DuramenError("metadata_unavailable", str(error)) from error
        detail = "bookies come and go while it is judged: try again"
        raise DuramenError("metadata_unavailable", detail)

    async def _try(
        self,
        begin: Callable[[ClusterView, frozenset[BookieId]], AskedT],
        *,
        asks_owners: bool,
    ) -> AskedT | None:
        """One look at everything; None: something got worse meanwhile."""
        lags = await ask_lags(self._sequencers) if asks_owners else None
        view = await self._readings.read_view()
        unreached = frozenset(self._unreached())
        question = begin(view, unreached)
        if lags is not None:
            question.note_recovering(lags.recovering)
        noted = await self._readings.list_noted(None, None)
        walk = _Walk(question, lags, self._readings)
        await self._readings.walk(
            walk.visit, question.note_unread, frozenset(LedgerId(number) for number in noted)
        )
        if lags is not None:
            later = await ask_lags(self._sequencers)
            await for_each(
                walk.list_left(later), lambda one: self._hear(question, *one, later), _HEARD_AT_ONCE
            )
            if later.has_news_for(lags, walk.unspoken):
                return None
        is_unreached = frozenset(self._unreached()) - unreached
        now = await self._readings.read_view()
        return None if is_unreached or _list_there(view) - _list_there(now) else question

    async def _hear(self, question: AskedBookies, log_id: LogId, epoch: Epoch, later: Lags) -> None:
        """What is so now of a segment for which nobody spoke at first, or nobody does any more."""
        log = await self._readings.read_log(log_id)
        found = await self._readings.read_segment(log_id, epoch)
        if log is None or found is None:
            return  # it was given up meanwhile
        segment = found[0]
        notes = await self._readings.read_notes(segment.ledger_id)
        debts = self._readings.debts_of(segment.ledger_id, notes)
        is_orphan = False
        if segment.state is SegmentState.OPEN:
            debts, is_orphan = await self._judge_writer(log, segment, debts, later)
        if question.note_segment(log, segment, debts, is_orphan=is_orphan):
            question.note_risk(log)

    async def _judge_writer(
        self, log: LogNode, segment: AnySegment, debts: Debts, later: Lags
    ) -> tuple[Debts, bool]:
        """What the writer of an open segment says, or can be known of one that is not asked.

        An embedded writer is no sequencer, and tells nobody what it owes. A bookie that was
        registered after its segment was made may have missed some of it.
        """
        if later.is_written(segment.ledger_id):
            return later.add_to(segment.ledger_id, debts), False
        try:
            owner = await self._link.read_owner(log.log_id)
        except (KeyError, ValueError) as error:
            raise UnreadError(f"the owner of log {log.log_id}: {error!r}") from error
        if owner is None or not owner.is_embedded:
            return debts, True
        if isinstance(segment, FlexibleSegment):
            return debts, False
        paths, store = self._link.paths, self._link.store
        node = await store.get(paths.segment(segment.log_id, segment.epoch))
        late: set[Member] = set()
        for member in {member for one in segment.fragments for member in one.ensemble}:
            there = await store.get(f"{paths.available}/{member.bookie}")
            if node is None or (there is not None and there.made > node.made):
                late.add(member)
        return replace(debts, presumed=frozenset(late)), False

    async def _bind_removal(self, question: Disruption, bookie: BookieId) -> Sequence[Op]:
        """A removal is granted of what is drained, and bound to that: one that is merely away may
        come back, and be named again."""
        path = self._link.paths.bookie(bookie)
        stored = await self._link.store.get(path)
        if stored is None or read_bookie(stored.data).duty is not Duty.DRAINED:
            question.note_undrained()
            return ()
        return (Check(path, stored.version),)


class _Walk:
    """One walk over all logs for a question.

    Args:
        lags: what owners said; None: they were not asked.

    Attributes:
        unspoken: ledgers of open segments that matter and for which nobody spoke.
    """

    def __init__(self, question: AskedBookies, lags: Lags | None, readings: Readings) -> None:
        self.unspoken: set[LedgerId] = set()
        self._question, self._lags, self._readings = question, lags, readings
        self._open: dict[LedgerId, tuple[LogId, Epoch]] = {}

    async def visit(self, audit: LogAudit) -> None:
        """A log with its live segments."""
        question, log, lags = self._question, audit.log, self._lags
        question.note_log(log, need_of(log))
        is_risky = False
        async for segment, debts in audit.segments:
            ledger_id, owed = segment.ledger_id, debts
            if not question.is_named(log, segment):
                continue
            if lags is not None and segment.state is SegmentState.OPEN:
                self._open[ledger_id] = (segment.log_id, segment.epoch)
                if not lags.is_written(ledger_id):
                    self.unspoken.add(ledger_id)
                    continue
                owed = lags.add_to(ledger_id, debts)
            elif lags is not None and lags.is_written(ledger_id):
                # It was closed behind the word of its owner, who may have noted what he owed since.
                notes = await self._readings.read_notes(ledger_id)
                owed = self._readings.debts_of(ledger_id, notes)
            is_risky |= question.note_segment(log, segment, owed)
        if is_risky:
            question.note_risk(log)

    def list_left(self, later: Lags) -> list[tuple[LogId, Epoch]]:
        """Segments to be read again: nobody spoke for them, or nobody does any more."""
        return [
            place
            for ledger_id, place in self._open.items()
            if ledger_id in self.unspoken or not later.is_written(ledger_id)
        ]


def _find_bookies(target: DisruptionTarget, view: ClusterView, field: str) -> list[BookieId]:
    """The bookies that a target means.

    Raises:
        DuramenError: `invalid_argument`: there are none.
    """
    found = [
        bookie
        for bookie, state in sorted(view.bookies.items())
        if target.name
        == (bookie if target.kind is TargetKind.BOOKIE else f"{state.region}/{state.rack}")
    ]
    if not found:
        what = "in rack " if target.kind is TargetKind.RACK else ""
        detail = f"{field}: there is no bookie {what}{target.name}: see duramen bookies list"
        raise DuramenError("invalid_argument", detail, field=field)
    return found


def _list_there(view: ClusterView) -> set[tuple[Member, bool]]:
    """Who is there, and whether nothing is known to be doubtful about it."""
    return {(s.member, s.is_doubtful) for s in view.bookies.values() if s.is_available}
