"""Carries out one task: reads what is true now, copies, verifies, and only then changes metadata.

Nothing of the finding is believed: the log, the segment and the notes are read again, the fragment
is judged again, and what is no work any more is done. A swap is committed after the new copy was
verified, never before (R21); a fragment is proved, and a note settled, after the copies were
compared (R9). Whatever is cut off in between is found again by the next audit.

Called by `auditor`. Source: docs/protocol/repair.md, R3, R9, R21.
"""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from duramen.core.flexible.repair.audit import (
    WHOLE,
    NextNodeset,
    audit_flexible,
    names_anybody,
    share_of,
)
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.log_node import LogNode
from duramen.core.repair.audit import (
    Action,
    Debts,
    Finding,
    RepairProblem,
    Stretch,
    audit_segment,
    list_stretches,
    live_epochs,
)
from duramen.core.repair.cluster_view import ClusterView, CopyFate
from duramen.core.repair.copies import EntryFault, Flaw
from duramen.core.repair.drain import Need, list_unplaced
from duramen.core.repair.losses import find_lost
from duramen.core.repair.rebalance import RowCopy
from duramen.core.repair.swap import Swap, SwapChoice, can_take
from duramen.core.repair.tasks import Backlog, StuckKind, Task
from duramen.core.segment import Segment
from duramen.core.sequencer.proposals import rule_of
from duramen.errors import DuramenError
from duramen.ids import LogId, Member, epoch_of, log_of
from duramen.runtime.sequencer.log_driver import now_us
from duramen.units import MINUTE, SECOND
from duramen_sequencer.repair.commits import Commits, settled_fragment
from duramen_sequencer.repair.copying import Copier
from duramen_sequencer.repair.flexible.attempts import FlexibleRepair
from duramen_sequencer.repair.readings import Notes, Readings
from duramen_sequencer.repair.rounds import need_after, next_nodeset, subtract

_LOG = logging.getLogger(__name__)

_BUSY_PAUSE_US: Final = 1 * SECOND
"""Until a bookie that is copying for others is looked at again."""

_ROLL_PAUSE_US: Final = 10 * SECOND
"""Between two requests to roll one segment: a roll waits 4 s at most for what is in its window."""

AskRoll = Callable[[LogId], Awaitable[object]]


class Done(NamedTuple):
    """Mended, or no work any more. `next`: what the same fragment lacks still."""

    next: Sequence[Finding] = ()


class Postponed(NamedTuple):
    """Nothing was tried."""

    pause_us: int
    asked_to_roll: bool = False


class Failed(NamedTuple):
    """It may go better later."""

    reason: str


class Unrepairable(NamedTuple):
    """Not while things are as they are."""

    reason: str
    flaws: Sequence[Flaw] = ()
    kind: StuckKind = StuckKind.ENTRIES


Outcome = Done | Postponed | Failed | Unrepairable


class _NoRoom(Exception):
    """A target has as many tasks as it may."""


class _Subject(NamedTuple):
    """One fragment as it stands in the metadata now."""

    log: LogNode
    segment: Segment
    stretch: Stretch
    notes: Notes
    debts: Debts


class _FlexibleSubject(NamedTuple):
    """A flexible segment as it stands in the metadata now."""

    log: LogNode
    segment: FlexibleSegment
    notes: Notes
    debts: Debts


class RepairWorker:
    """Carries out tasks for one auditor.

    Args:
        view: the bookies as they were seen last.
        ask_roll: asks the owner of a log to end its segment.
    """

    def __init__(  # noqa: PLR0917 - what an auditor is made of
        self,
        readings: Readings,
        commits: Commits,
        copier: Copier,
        flexible: FlexibleRepair,
        backlog: Backlog,
        view: Callable[[], ClusterView],
        ask_roll: AskRoll,
        rng: random.Random,
    ) -> None:
        self._flexible = flexible
        self._readings = readings
        self._commits = commits
        self._copier = copier
        self._backlog = backlog
        self._view = view
        self._ask_roll = ask_roll
        self._rng = rng

    async def run(self, task: Task) -> Outcome:
        """Carry out one task.

        Raises:
            MetadataError, UnreadError: try again later; a change may be applied or not.
        """
        subject = await self._read(task)
        if subject is None:
            return Done()
        if isinstance(subject, _FlexibleSubject):
            return await self._run_flexible(task, subject)
        if task.swap is not None:
            return await self._move(task, subject, task.swap)
        finding = self._find(task, subject)
        if finding is None:
            return Done()
        task.judged_facts = finding.facts
        match finding.key.action:
            case Action.ROLL:
                return await self._roll(subject, finding)
            case Action.FILL:
                return await self._fill(task, subject, finding)
            case Action.SWAP:
                return await self._swap(task, subject, finding)

    async def _read(self, task: Task) -> _Subject | _FlexibleSubject | None:
        """The task's fragment, unless nobody may read it any more."""
        key = task.finding.key
        log_id, epoch = log_of(key.ledger_id), epoch_of(key.ledger_id)
        log = await self._readings.read_log(log_id)
        if log is None or epoch not in live_epochs(log):
            return None
        found = await self._readings.read_segment(log_id, epoch)
        if found is None:
            return None
        segment = found[0]
        task.log_name = f"{log.namespace}/{log.name}"
        if isinstance(segment, FlexibleSegment):
            if not names_anybody(log, segment):
                return None
            task.holders = frozenset(row.node.bookie for row in segment.nodes)
            notes = await self._readings.read_notes(key.ledger_id)
            debts = self._readings.debts_of(key.ledger_id, notes)
            return _FlexibleSubject(log, segment, notes, debts)
        for stretch in list_stretches(log, segment):
            if stretch.fragment.first_entry == key.first_entry:
                if key.action is not Action.FILL:
                    task.holders = frozenset(one.bookie for one in stretch.fragment.ensemble)
                notes = await self._readings.read_notes(key.ledger_id)
                debts = self._readings.debts_of(key.ledger_id, notes)
                return _Subject(log, segment, stretch, notes, debts)
        return None

    def _find(self, task: Task, subject: _Subject | _FlexibleSubject) -> Finding | None:
        return next((f for f in self._audit(subject) if f.key == task.finding.key), None)

    def _audit(self, subject: _Subject | _FlexibleSubject) -> list[Finding]:
        log, view = subject.log, self._view()
        if isinstance(subject, _FlexibleSubject):

            def find_next() -> NextNodeset:
                return next_nodeset(log, view, time.time_ns() // 1_000_000)

            return audit_flexible(log, subject.segment, view, subject.debts, find_next)
        return audit_segment(log, subject.segment, rule_of(log), view, subject.debts)

    async def _done(self, task: Task, judged: Finding | None) -> Outcome:
        """Look at the fragment again: what is left there is done without waiting for a round."""
        subject = await self._read(task)
        if subject is None:
            return Done()
        left = [f for f in self._audit(subject) if f.key.fragment == task.finding.key.fragment]
        if judged is not None and judged in left:
            return Failed("somebody else changed what was to be changed")
        return Done(left)

    # --- Rolls -----------------------------------------------------------------------------------

    async def _roll(self, subject: _Subject, finding: Finding) -> Outcome:
        """The owner changes its last fragment by ending the segment (R21)."""
        log, view = subject.log, self._view()
        need = need_after(log, subject.segment)
        if finding.problem is RepairProblem.MISPLACED and isinstance(need, Need):
            # One that lies no better would be the reason for the next roll.
            need = need._replace(rule=replace(need.rule, is_strict=True))
        if list_unplaced(view, (), [need], self._rng):
            return Postponed(MINUTE)  # the next segment would have no better place
        return await self._ask_for_roll(log)

    async def _ask_for_roll(self, log: LogNode) -> Outcome:
        try:
            await self._ask_roll(log.log_id)
        except DuramenError as error:
            return Failed(f"the owner was asked to roll: {error}")
        return Postponed(_ROLL_PAUSE_US, asked_to_roll=True)

    # --- Flexible segments -----------------------------------------------------------------------

    async def _run_flexible(self, task: Task, subject: _FlexibleSubject) -> Outcome:
        """One attempt, or a roll; a move of a rebalance if it is as good as when it was planned."""
        log, segment, view = subject.log, subject.segment, self._view()
        judged = self._find(task, subject)
        move = task.swap
        if move is not None:
            row = segment.find_member(move.old)
            if row is None or not segment.is_closed or not segment.is_proved:
                return Done()
            copy = RowCopy(share_of(segment, row), segment.ledger_id, segment, move.old)
            if not copy.can_go(move.new, view):
                return Done()
        elif judged is None:
            return Done()
        elif judged.key.action is Action.ROLL:
            return await self._ask_for_roll(log)
        if judged is not None:
            task.judged_facts = judged.facts
        result = await self._flexible.repair(log, segment, view, move, self._progress(task))
        for member in result.whole:
            queued = subject.notes.queued if member in subject.debts.damaged else None
            self._readings.clear(segment.ledger_id, queued, member, WHOLE)
        if result.reason:
            return Failed(result.reason)
        if result.is_lost:
            return await self._done(task, None)
        if result.lacks_place:
            wanted = segment.replication
            return Unrepairable(
                f"no bookie can take the copies: {len(view.flexible_candidates())} take new data "
                f"of flexible logs, and node {wanted.node}, rack {wanted.rack}, region "
                f"{wanted.region} must hold for every entry",
                result.flaws[:100],
                StuckKind.PLACE,
            )
        if result.flaws:
            return _judge(result.flaws)
        return await self._done(task, judged)

    # --- Swaps -----------------------------------------------------------------------------------

    async def _swap(self, task: Task, subject: _Subject, finding: Finding) -> Outcome:
        old, view = finding.member, self._view()
        candidates = view.candidates()
        free = [c for c in candidates if self._backlog.has_room(c.member)]
        quorum, rule = subject.segment.quorum, rule_of(subject.log)
        fragment = subject.stretch.fragment
        choice = SwapChoice(quorum, rule, view, free, self._rng)
        swap = choice.choose(fragment, old)
        if swap is not None:
            return await self._carry_out(task, subject, swap, finding)
        if replace(choice, candidates=candidates).choose(fragment, old) is not None:
            return Postponed(_BUSY_PAUSE_US)
        return Unrepairable(
            f"no bookie can take the copy: {len(candidates)} take new data, and min_racks "
            f"{rule.min_racks}, min_regions {rule.min_regions} must hold for every write set",
            kind=StuckKind.PLACE,
        )

    async def _move(self, task: Task, subject: _Subject, swap: Swap) -> Outcome:
        """A move of a rebalance, if it is as good as when it was planned."""
        view, segment = self._view(), subject.segment
        fragment = subject.stretch.fragment
        is_good = (
            settled_fragment(segment, fragment.first_entry) is not None
            and fragment.is_proved
            and swap.old in fragment.ensemble
            and any(candidate.member == swap.new for candidate in view.candidates())
            and can_take(fragment, swap, segment.quorum, rule_of(subject.log), view)
        )
        return await self._carry_out(task, subject, swap, None) if is_good else Done()

    async def _carry_out(
        self, task: Task, subject: _Subject, swap: Swap, judged: Finding | None
    ) -> Outcome:
        segment, stretch = subject.segment, subject.stretch
        place = stretch.fragment.ensemble.index(swap.old)
        try:
            async with self._target(swap.new):
                flaws = await self._copier.copy(
                    segment, stretch, place, swap.new, self._view(), self._progress(task)
                )
        except _NoRoom:
            return Postponed(_BUSY_PAUSE_US)
        if flaws:
            return await self._lose(task, subject, flaws) or _judge(flaws)
        fragment = stretch.fragment
        if not await self._commits.swap(segment.log_id, segment.epoch, fragment, swap):
            return Failed("the fragment was changed by somebody else")
        return await self._done(task, judged)

    async def _lose(self, task: Task, subject: _Subject, flaws: Sequence[Flaw]) -> Outcome | None:
        """Record what nobody can have any more, if a person accepts that; None: nothing is lost.

        What the archive has is not lost to readers; to a takeover it is, which asks bookies alone.
        """
        segment = subject.segment
        if segment.cold_copy is not None and segment.epoch < subject.log.first_stateful_epoch:
            return None
        ranges = find_lost(segment, flaws, self._view())
        if not ranges:
            return None
        fragment = subject.stretch.fragment
        if not await self._commits.lose(segment.log_id, segment.epoch, fragment, ranges):
            return Failed("the fragment was changed by somebody else")
        _LOG.error("lost for ever of %s: entries %s", segment, ranges)
        return await self._done(task, None)

    # --- Fills -----------------------------------------------------------------------------------

    async def _fill(self, task: Task, subject: _Subject, judged: Finding) -> Outcome:
        """Compare all copies, have each fetch what it misses, and note what was found whole."""
        segment, stretch = subject.segment, subject.stretch
        fragment, view = stretch.fragment, self._view()
        noted = [
            member
            for member in fragment.ensemble
            if view.fate(member) in (CopyFate.HERE, CopyFate.LEAVING)
            and subject.debts.is_noted(member, stretch)
        ]
        try:
            async with contextlib.AsyncExitStack() as targets:
                for member in noted:
                    await targets.enter_async_context(self._target(member))
                found = await self._copier.fill(segment, stretch, view, self._progress(task))
        except _NoRoom:
            return Postponed(_BUSY_PAUSE_US)
        await self._note_whole(subject, found.whole)
        is_proof = len(found.whole) == len(fragment.ensemble)
        if is_proof and not fragment.is_proved:
            await self._commits.prove(segment.log_id, segment.epoch, fragment)
        flaws = [flaw for flaw in found.flaws if not noted or flaw.member in noted]
        if flaws:
            return _judge(flaws)
        if not noted and not is_proof:
            return Failed(f"{_list(found.silent)} did not answer")
        if any(member not in found.whole for member in noted):
            return Failed(f"{_list([m for m in noted if m not in found.whole])} did not answer")
        return await self._done(task, judged)

    async def _note_whole(self, subject: _Subject, whole: Sequence[Member]) -> None:
        """Settle what was noted about copies that were found whole."""
        stretch, notes = subject.stretch, subject.notes
        ledger_id = subject.segment.ledger_id
        for member in whole:
            owed = notes.owed.get(member)
            if owed is not None and subject.debts.is_owed(member, stretch.first, stretch.last):
                left = subtract(owed.ranges, stretch.first, stretch.last)
                await self._commits.settle_owed(owed, left)
            queued = notes.queued if member in subject.debts.damaged else None
            self._readings.clear(ledger_id, queued, member, stretch.fragment.first_entry)

    # --- Targets, progress -----------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _target(self, member: Member) -> AsyncIterator[None]:
        if not self._backlog.claim(member):
            raise _NoRoom
        try:
            yield
        finally:
            self._backlog.release(member)

    def _progress(self, task: Task) -> Callable[[int], None]:
        return lambda copied_bytes: self._backlog.on_progress(task, copied_bytes, now_us())


def _judge(flaws: Sequence[Flaw]) -> Outcome:
    """Whether waiting may help: who is silent may speak, who has no room may get some."""
    final = [flaw for flaw in flaws if flaw.fault not in (EntryFault.SILENT, EntryFault.NOT_COPIED)]
    if not final:
        reasons = sorted({flaw.fault.value for flaw in flaws})
        return Failed(f"{len(flaws)} ranges at {flaws[0].member.bookie}: {', '.join(reasons)}")
    entries = sum(flaw.last - flaw.first + 1 for flaw in final)
    return Unrepairable(f"{entries} entries have no copy that can be verified", final[:100])


def _list(members: Sequence[Member]) -> str:
    return ", ".join(member.bookie for member in members) or "nobody"
