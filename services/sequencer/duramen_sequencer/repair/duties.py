"""Drains: asked for, cancelled, and moved on after every whole round.

Asking is refused when the bookies that would be left cannot hold new segments of every log, with
the numbers. Each step of a drain is one compare-and-set on the bookie's own node, judged by
`core.repair.drain` on a whole round; the bookie follows its node and publishes that it does.

Called by `auditor`. Source: docs/protocol/repair.md.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from duramen.core.duty import Duty
from duramen.core.repair.audit import Action
from duramen.core.repair.cluster_view import ClusterView
from duramen.core.repair.drain import (
    LOGS_SHOWN_MAX,
    AnyNeed,
    LogNames,
    NodesetNeed,
    advance,
    explain,
    list_unplaced,
    shortages,
)
from duramen.core.repair.tasks import Backlog, StuckKind, Task
from duramen.errors import DuramenError
from duramen.ids import BookieId
from duramen.units import agree
from duramen.wire.metadata_json import BookieNode
from duramen_sequencer.repair.commits import Commits, Guard
from duramen_sequencer.repair.readings import Readings
from duramen_sequencer.repair.rounds import Round

_LOG = logging.getLogger(__name__)

_CANCEL: Final = dict.fromkeys((Duty.DRAINING, Duty.LEAVING, Duty.DRAINED), Duty.SERVING)


class Drains:
    """All drains of the cluster."""

    def __init__(self, readings: Readings, commits: Commits, rng: random.Random) -> None:
        self._readings = readings
        self._commits = commits
        self._rng = rng
        self._unplaced: dict[AnyNeed, int] = {}
        """What found no place in the last whole round, and since when."""
        self._noted_us = 0

    async def begin(self, bookie: BookieId, last: Round | None) -> dict[str, Any]:
        """Empty a bookie; asked for twice is the same as once.

        Raises:
            DuramenError: `invalid_argument`: no such bookie; `placement_impossible`: those that
                would be left cannot hold new segments; `metadata_unavailable`: no whole round yet.
            MetadataError: try again.
        """
        if last is None or not last.is_whole:
            raise DuramenError(
                "metadata_unavailable", "the auditor has not read every log yet: try again"
            )
        view = await self._readings.read_view()
        state = view.bookies.get(bookie)
        if state is None or state.duty is Duty.SERVING:
            self._refuse_shortage(bookie, view, last)
        node = await self._commits.change_duty(bookie, {Duty.SERVING: Duty.DRAINING}, "drain")
        return _describe(bookie, node)

    async def cancel(self, bookie: BookieId, guard: Guard) -> dict[str, Any]:
        """Let a bookie serve again, in whatever state its drain is.

        Args:
            guard: what the change is bound to.

        Raises:
            DuramenError: `invalid_argument`: no such bookie; what the guard raises.
            MetadataError: try again.
        """
        node = await self._commits.change_duty(bookie, _CANCEL, "cancel-drain", guard)
        return _describe(bookie, node)

    async def advance(self, last: Round) -> int:
        """Move every drain on as far as a whole round allows; gives how many were moved.

        Raises:
            MetadataError, UnreadError: the others are moved after the next round.
        """
        draining = [s for s in last.view.bookies.values() if s.duty is not Duty.SERVING]
        if not draining:
            return 0
        moved = 0
        now = await self._readings.read_view()
        for bookie, state in sorted(now.bookies.items()):
            step = advance(state, last.seen())
            if step is not None:
                _LOG.info("bookie %s is %s now: %s", bookie, step.duty.value, step.reason)
                await self._commits.change_duty(bookie, {state.duty: step.duty}, "drain")
                moved += 1
        return moved

    def list_drains(
        self, last: Round, stuck: Mapping[BookieId, StuckCopies]
    ) -> list[dict[str, Any]]:
        """Bookies that are being emptied or are empty, and what they wait for."""
        seen = last.seen() if last.is_whole else None
        drains = []
        for bookie, state in sorted(last.view.bookies.items()):
            if state.duty is Duty.SERVING:
                continue
            waits_for = explain(state, seen)
            if bookie in stuck:
                waits_for += f", and {stuck[bookie].describe()}"
            drains.append({
                "bookie": bookie,
                "duty": state.duty.value,
                "fragments": None if seen is None else seen.named.get(bookie, 0),
                "bytes": last.loads.size_bytes.get(bookie, 0),
                "waits_for": waits_for,
            })  # fmt: skip
        return drains

    def note_round(self, last: Round, time_us: int) -> None:
        """A whole round is over: note what open segments on bookies that drain need of their next
        one, and those that take new data cannot meet; and since when."""
        draining = _list_draining(last)
        needs = sorted({n for by_need in last.waiting.values() for n in by_need}, key=repr)
        unplaced = list_unplaced(last.view, draining, needs, self._rng)
        self._unplaced = {need: self._unplaced.get(need, time_us) for need in unplaced}
        self._noted_us = time_us

    def forget(self) -> None:
        """A new term of leadership: what was noted before counts for nothing."""
        self._unplaced = {}

    def find_stuck(
        self, last: Round, backlog: Backlog, time_us: int
    ) -> dict[BookieId, StuckCopies]:
        """What has kept copies on bookies that drain for longer than the grace; of who is not among
        them copies leave, as far as is known.

        Args:
            last: the last whole round.
        """
        before_us, draining = time_us - last.view.grace_us, _list_draining(last)
        tasks: dict[BookieId, list[Task]] = {}
        for task in backlog.list_stuck(before_us) if draining else ():
            for bookie in task.holders & draining:
                tasks.setdefault(bookie, []).append(task)
        noted_us = self._noted_us - last.view.grace_us
        unplaced = [need for need, since_us in self._unplaced.items() if since_us <= noted_us]
        found = {}
        for bookie in sorted(draining & (tasks.keys() | last.waiting.keys())):
            by_need = last.waiting.get(bookie, {})
            waiting = {need: by_need[need] for need in unplaced if need in by_need}
            # Its owner was asked in vain: the next segment has no place.
            others = [t for t in tasks.get(bookie, ()) if not (waiting and _is_roll(t))]
            if waiting:
                reason = _format_shortage(next(iter(waiting)), draining, last.view)
                found[bookie] = _sum_up(others, waiting, StuckKind.PLACE, reason)
            elif others and others[0].stuck is not None:
                kind, reason, *_ = others[0].stuck
                found[bookie] = _sum_up(others, waiting, kind, reason)
        return found

    def _refuse_shortage(self, bookie: BookieId, view: ClusterView, last: Round) -> None:
        found = shortages(view, [bookie], last.needs, self._rng)
        if not found:
            return
        need = min(found, key=repr)
        logs = last.needs[need]
        raise DuramenError(
            "placement_impossible",
            f"without {bookie} {_format_shortage(need, [bookie], view)} "
            f"(logs {_list_logs(logs.list_names(), logs.count)}): add bookies, or cancel another "
            "drain",
            field="bookie",
        )


class StuckCopies(NamedTuple):
    """What keeps copies on a bookie.

    Args:
        kind: what would have the first one leave.
        logs: the first ones; `log_count`: all that are known.
    """

    fragment_count: int
    kind: StuckKind
    reason: str
    logs: tuple[str, ...]
    log_count: int

    def describe(self) -> str:
        """For people."""
        count = agree(f"{self.fragment_count} fragments")
        logs = _list_logs(self.logs, self.log_count)
        return f"{count} of {logs} cannot leave it: {self.reason}"

    def to_json(self) -> dict[str, Any]:
        return {
            "fragments": self.fragment_count,
            "kind": self.kind.value,
            "reason": self.reason,
            "logs": list(self.logs),
            "logs_count": self.log_count,
        }


def _sum_up(
    tasks: Sequence[Task], waiting: Mapping[AnyNeed, LogNames], kind: StuckKind, reason: str
) -> StuckCopies:
    names = {task.log_name for task in tasks}
    unnamed_count = 0
    for logs in waiting.values():
        names.update(logs.list_names())
        unnamed_count += logs.count - len(logs.first)
    fragment_count = len({task.finding.key.fragment for task in tasks})
    fragment_count += sum(logs.count for logs in waiting.values())
    shown = tuple(sorted(names)[:LOGS_SHOWN_MAX])
    return StuckCopies(fragment_count, kind, reason, shown, len(names) + unnamed_count)


def _is_roll(task: Task) -> bool:
    return task.finding.key.action is Action.ROLL


def _list_draining(last: Round) -> set[BookieId]:
    return {b for b, state in last.view.bookies.items() if state.duty is not Duty.SERVING}


def _list_logs(names: Sequence[str], count: int) -> str:
    more = f" and {count - len(names)} more" if count > len(names) else ""
    return ", ".join(names) + more


def _format_shortage(need: AnyNeed, without: Collection[BookieId], view: ClusterView) -> str:
    left = [c for c in view.candidates() if c.member.bookie not in without]
    racks = len({(candidate.region, candidate.rack) for candidate in left})
    there = agree(f"{len(left)} bookies in {racks} racks")
    return f"{there} may take new data, and new segments need {_format_need(need)}"


def _format_need(need: AnyNeed) -> str:
    if isinstance(need, NodesetNeed):
        wanted, tolerate = need.rule.wanted, need.rule.tolerate
        return (
            f"replication.node {wanted.node} with rack {wanted.rack}, region {wanted.region} and "
            f"nodeset.tolerate {tolerate}"
        )
    quorum, rule = need
    return (
        f"ensemble_size {quorum.ensemble_size} with min_racks {rule.min_racks} and min_regions "
        f"{rule.min_regions}"
    )


def _describe(bookie: BookieId, node: BookieNode) -> dict[str, Any]:
    return {"bookie": bookie, "incarnation": node.incarnation, "duty": node.duty.value}
