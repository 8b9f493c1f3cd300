"""A rebalance: asked for once, carried out round by round, and over when nothing is worth moving.

The request is a node, so that the next auditor goes on where this one stopped. Each whole round
plans a handful of moves anew from what is true then (`core.repair.rebalance`) and puts them into
the backlog behind every repair; a move is a swap like any other.

Called by `auditor` and `operations`. Source: docs/protocol/repair.md.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from duramen.core.repair.audit import Action, Finding, RepairProblem, WorkKey
from duramen.core.repair.rebalance import TOLERANCE_DEFAULT, CopyMove, plan_moves, spread
from duramen.core.repair.tasks import Backlog
from duramen.errors import DuramenError
from duramen.ids import epoch_of, log_of
from duramen.runtime.stores.metadata_store import MetadataStore
from duramen.wire.metadata_json import MetadataJsonError, Paths, read_node
from duramen_sequencer.repair.commits import Commits
from duramen_sequencer.repair.rounds import Round

_LOG = logging.getLogger(__name__)


class Rebalancing:
    """The cluster's rebalance, if one runs."""

    def __init__(
        self, store: MetadataStore, paths: Paths, commits: Commits, backlog: Backlog
    ) -> None:
        self._store = store
        self._path = paths.rebalance
        self._commits = commits
        self._backlog = backlog

    async def request(self, tolerance: float) -> None:
        """Begin; asked for twice, the last tolerance counts.

        Raises:
            DuramenError, MetadataError: it may be begun or not.
        """
        fields = {"tolerance": tolerance, "requested_unix_ms": time.time_ns() // 1_000_000}
        await self._commits.put(self._path, fields)

    async def cancel(self) -> None:
        """Plan no more moves; those that are under way end.

        Raises:
            DuramenError, MetadataError: it may be cancelled or not.
        """
        await self._commits.put(self._path, None)

    async def plan(self, this: Round) -> int:
        """Put the next moves of a running rebalance into the backlog; gives how many.

        Raises:
            MetadataError: it is not known whether one runs.
        """
        request = await self.read()
        if request is None:
            return 0
        moves = plan_moves(this.loads, this.view, tolerance=request["tolerance"])
        for move in moves:
            finding = _as_finding(move)
            if finding.key not in this.found:  # a repair of the same fragment comes first
                this.found.add(finding.key)
                self._backlog.put(finding, move.swap)
        if not moves and not self._backlog.is_repairing():
            _LOG.info("the rebalance is over: nothing more is worth moving")
            await self._commits.put(self._path, None)
        return len(moves)

    async def read(self) -> dict[str, Any] | None:
        """The request that runs, or None.

        Raises:
            MetadataError: it is not known.
        """
        stored = await self._store.get(self._path)
        if stored is None:
            return None
        try:
            node = read_node(stored.data)
            return {**node, "tolerance": float(node["tolerance"])}
        except (MetadataJsonError, KeyError, TypeError, ValueError) as error:
            _LOG.error("%s is not understood: %r", self._path, error)
            return {"tolerance": TOLERANCE_DEFAULT}

    @staticmethod
    def dry_run(last: Round | None, tolerance: float) -> dict[str, Any]:
        """The moves that a rebalance would begin with.

        Raises:
            DuramenError: `metadata_unavailable`: nobody has read what there is to move yet.
        """
        if last is None or not last.is_whole:
            raise DuramenError(
                "metadata_unavailable", "the auditor has not read every log yet: try again"
            )
        moves = plan_moves(last.loads, last.view, tolerance=tolerance)
        return {
            "dry_run": True,
            "moves": [_describe(move) for move in moves],
            "bytes": sum(move.copy.size_bytes for move in moves),
            "shares": spread(last.loads, last.view),
        }


def _as_finding(move: CopyMove) -> Finding:
    copy = move.copy
    key = WorkKey(copy.ledger_id, copy.first_entry, Action.SWAP)
    return Finding(
        key,
        RepairProblem.UNBALANCED,
        copy.good_count,
        copy.size_bytes,
        move.swap.old,
        (copy.facts, move.target),
    )


def _describe(move: CopyMove) -> dict[str, Any]:
    copy = move.copy
    return {
        "log_id": str(log_of(copy.ledger_id)),
        "epoch": epoch_of(copy.ledger_id),
        "first_entry": copy.first_entry,
        "bytes": copy.size_bytes,
        "from": copy.member.bookie,
        "to": move.target.bookie,
    }
