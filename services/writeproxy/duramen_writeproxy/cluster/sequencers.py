"""Owners, stories, hand-overs and balancing over all sequencers of the roster.

Each sequencer knows its own logs; here their answers are put together. A sequencer that does not
answer is named in the answer, not passed over in silence. Nothing is remembered between calls, and
a hand-over is never repeated: the owner either did it, or says why not.

Called by `routes`. The plan of moves is `core.ownership.balance`'s.
Source: docs/protocol/ownership.md "Through one address".
"""

from __future__ import annotations

from typing import Any, Final

from duramen.core.hashing import weights_of
from duramen.core.ownership.balance import LogMove, plan_moves
from duramen.errors import DuramenError
from duramen.runtime.http_client import PeerClient
from duramen.runtime.public.answers import read_answer
from duramen.runtime.public.cluster_answers import (
    BalancedAnswer,
    HandedOverAnswer,
    MembersAnswer,
    OwnersAnswer,
    StoryAnswer,
    WeighedAnswer,
)
from duramen.runtime.registry import Roster
from duramen.runtime.roster_calls import (
    ASK_TIMEOUT_US,
    HAND_OVER_TIMEOUT_US,
    RosterCalls,
    movable_logs,
    read_load,
)
from duramen.units import SECOND
from duramen_writeproxy.logs.names import NameCache

_MEMBERS_TIMEOUT_US: Final = 1 * SECOND
"""Who is asked about is, as a rule, whoever does not answer."""


class Cluster:
    """The sequencers of the roster, asked together."""

    def __init__(self, names: NameCache, roster: Roster, peers: PeerClient) -> None:
        self._names = names
        self._roster = roster
        self.calls = RosterCalls(roster, peers)

    async def owners(self) -> OwnersAnswer:
        """Every log with an open segment, its owner and its load, by name.

        Raises:
            DuramenError: `log_unavailable`: no sequencer is there.
        """
        answers, silent = await self.calls.ask_all({"op": "owned"})
        logs = [
            {"sequencer": name, **log} for name, answer in answers for log in answer.get("logs", ())
        ]
        logs.sort(key=lambda log: (str(log.get("name")), str(log.get("log_id"))))
        return read_answer(
            OwnersAnswer, {"logs": logs, "sequencers": self._describe(), "silent": silent}
        )

    async def members(self) -> MembersAnswer:
        """What every sequencer makes of the others.

        Raises:
            DuramenError: `log_unavailable`: no sequencer is there.
        """
        answers, silent = await self.calls.ask_all({"op": "members"}, _MEMBERS_TIMEOUT_US)
        told = [{"sequencer": name, "members": answer.get("members")} for name, answer in answers]
        return read_answer(MembersAnswer, {"views": told, "silent": silent})

    async def story(self, namespace: str, log: str) -> StoryAnswer:
        """What happened to a log, as far as the processes that live remember, oldest first.

        Raises:
            DuramenError: `log_not_found`, `namespace_not_found`, `metadata_unavailable`,
                `log_unavailable`.
        """
        log_id = await self._names.find(namespace, log)
        answers, silent = await self.calls.ask_all({"op": "story", "log_id": str(log_id)})
        events = [
            {"sequencer": name, **event}
            for name, answer in answers
            for event in answer.get("events", ())
        ]
        events.sort(key=lambda event: event["unix_ms"])
        name = f"{namespace}/{log}"
        whole = {"name": name, "log_id": str(log_id), "events": events, "silent": silent}
        return read_answer(StoryAnswer, whole)

    async def hand_over(self, namespace: str, log: str, to: str | None) -> HandedOverAnswer:
        """Let the log's owner hand it over; the owner's answer.

        Raises:
            DuramenError: as `story`; `log_unavailable`: nobody owns the log now, or the owner does
                not answer (it may have begun); `invalid_argument`, field `to`.
        """
        log_id = await self._names.find(namespace, log)
        return read_answer(HandedOverAnswer, await self._hand_over(str(log_id), to))

    async def balance(self, *, is_dry_run: bool, move_count_max: int) -> BalancedAnswer:
        """Move logs from sequencers that carry more than their share; one round.

        Returns:
            `moves`, each with what became of it unless it was a dry run, and `silent`.

        Raises:
            DuramenError: `log_unavailable`: a sequencer does not answer, so the loads are not
                known: nothing was moved.
        """
        answers, silent = await self.calls.ask_all({"op": "owned"})
        if silent:
            raise DuramenError(
                "log_unavailable", f"{', '.join(silent)} did not answer: loads are not known"
            )
        logs = list(movable_logs(answers))
        loads = [read_load(sequencer_id, log) for sequencer_id, log in logs]
        names = {str(log["log_id"]): log.get("name") for _, log in logs}
        moves = plan_moves(loads, weights_of(self._roster.nodes), move_count_max=move_count_max)
        done = []
        for move in moves:
            row = {"name": names.get(move.log_id), **_encode(move)}
            if not is_dry_run:
                row["outcome"] = await self._move(move)
            done.append(row)
        return read_answer(BalancedAnswer, {"dry_run": is_dry_run, "moves": done})

    async def weigh(self, name: str, weight: object) -> WeighedAnswer:
        """Give a sequencer another share of the logs, until it restarts.

        Raises:
            DuramenError: `invalid_argument`: there is no such sequencer, or the share is none;
                `log_unavailable`, uncertain: it did not answer, the call may be repeated.
        """
        if name not in self._roster.nodes:
            raise DuramenError("invalid_argument", f"there is no sequencer {name}", field="id")
        message = {"op": "weigh", "sequencer_weight": weight}
        return read_answer(WeighedAnswer, await self.calls.ask(name, message, ASK_TIMEOUT_US))

    # --- Calls -----------------------------------------------------------------------------------

    async def _move(self, move: LogMove) -> str:
        message = {"op": "hand_over", "log_id": move.log_id, "to": move.target}
        try:
            await self.calls.ask(move.source, message, HAND_OVER_TIMEOUT_US)
        except DuramenError as error:
            return f"{error.code}: {error.detail}"
        return "moved"

    async def _hand_over(self, log_id: str, to: str | None) -> dict[str, Any]:
        message = {"op": "hand_over", "log_id": log_id, **({} if to is None else {"to": to})}
        silent = []
        for name in sorted(self._roster.nodes):
            try:
                return await self.calls.ask(name, message, HAND_OVER_TIMEOUT_US)
            except DuramenError as error:
                if error.code != "log_unavailable":
                    raise
                if error.uncertain:
                    silent.append(name)
        detail = "no sequencer has an open segment of the log: it belongs to nobody now"
        if silent:
            detail = f"{', '.join(silent)} did not answer; no other sequencer has the log"
        raise DuramenError("log_unavailable", detail)

    def _describe(self) -> list[dict[str, Any]]:
        weights = weights_of(self._roster.nodes)
        return [{"id": name, "weight": weight} for name, weight in sorted(weights.items())]


def _encode(move: LogMove) -> dict[str, Any]:
    return {
        "log_id": move.log_id,
        "from": move.source,
        "to": move.target,
        "cost": round(move.cost, 3),
    }
