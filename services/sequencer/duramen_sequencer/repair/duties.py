"""Drains: asked for, cancelled, and moved on after every whole round.

Asking is refused when the bookies that would be left cannot hold new segments of every log, with
the numbers. Each step of a drain is one compare-and-set on the bookie's own node, judged by
`core.repair.drain` on a whole round; the bookie follows its node and publishes that it does.

Called by `auditor`. Source: docs/protocol/repair.md.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from typing import Any, Final

from duramen.core.duty import Duty
from duramen.core.repair.cluster_view import ClusterView
from duramen.core.repair.drain import AnyNeed, NodesetNeed, advance, explain, shortages
from duramen.core.repair.tasks import Backlog
from duramen.errors import DuramenError
from duramen.ids import BookieId
from duramen.wire.metadata_json import BookieNode
from duramen_sequencer.repair.commits import Commits, Guard
from duramen_sequencer.repair.readings import Readings
from duramen_sequencer.repair.rounds import Round

_LOG = logging.getLogger(__name__)

_LOGS_SHOWN_MAX: Final = 10

_CANCEL: Final = dict.fromkeys((Duty.DRAINING, Duty.LEAVING, Duty.DRAINED), Duty.SERVING)


class Drains:
    """All drains of the cluster."""

    def __init__(self, readings: Readings, commits: Commits, rng: random.Random) -> None:
        self._readings = readings
        self._commits = commits
        self._rng = rng

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

    def list_drains(self, last: Round, backlog: Backlog) -> list[dict[str, Any]]:
        """Bookies that are being emptied or are empty, and what they wait for."""
        seen = last.seen() if last.is_whole else None
        drains = []
        for bookie, state in sorted(last.view.bookies.items()):
            if state.duty is Duty.SERVING:
                continue
            stuck = self.explain_stuck(bookie, last, backlog) or {}
            drains.append({
                "bookie": bookie,
                "duty": state.duty.value,
                "fragments": None if seen is None else seen.named.get(bookie, 0),
                "bytes": last.loads.size_bytes.get(bookie, 0),
                "waits_for": explain(state, seen, str(stuck.get("reason", ""))),
            })  # fmt: skip
        return drains

    def explain_stuck(
        self, bookie: BookieId, last: Round, backlog: Backlog
    ) -> dict[str, Any] | None:
        """What keeps copies on a bookie that drains, and of which logs; None: they move, as far as
        is known, or nothing of it is to move."""
        named_count = last.named.get(bookie, 0)
        if last.view.bookies[bookie].duty is Duty.SERVING or not named_count:
            return None
        if tasks := backlog.list_stuck(bookie):
            fragments = {task.finding.key.fragment for task in tasks}
            logs = sorted({task.log_name for task in tasks})
            return _describe_stuck(len(fragments), tasks[0].reason, logs)
        # The last fragment of an open segment leaves it when the next segment has a place.
        needs = last.needs
        found = shortages(last.view, [bookie], needs, self._rng, is_strict=False)
        if not found:
            return None
        logs = sorted({name for need in found for name in needs[need]})
        return _describe_stuck(named_count, _format_shortage(found[0], bookie, last.view), logs)

    def _refuse_shortage(self, bookie: BookieId, view: ClusterView, last: Round) -> None:
        found = shortages(view, [bookie], last.needs, self._rng)
        if not found:
            return
        raise DuramenError(
            "placement_impossible",
            f"{_format_shortage(found[0], bookie, view)} (logs {', '.join(last.needs[found[0]])}): "
            "add bookies, or cancel another drain",
            field="bookie",
        )


def _describe_stuck(fragments: int, reason: str, logs: Sequence[str]) -> dict[str, Any]:
    return {
        "fragments": fragments,
        "reason": reason,
        "logs": logs[:_LOGS_SHOWN_MAX],
        "logs_count": len(logs),
    }


def _format_shortage(need: AnyNeed, bookie: BookieId, view: ClusterView) -> str:
    left = [c for c in view.candidates() if c.member.bookie != bookie]
    racks = len({(candidate.region, candidate.rack) for candidate in left})
    return (
        f"without {bookie} {len(left)} bookies in {racks} racks take new data, and new segments "
        f"need {_format_need(need)}"
    )


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
