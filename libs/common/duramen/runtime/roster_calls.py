"""Control calls to the sequencers of the roster: one of them, or all at once.

A sequencer that does not answer is named, not passed over in silence. Nothing is remembered and
nothing is repeated. What `owned` tells of loads is read here, for whoever plans moves of it.

Called by the write proxy's `cluster.sequencers`, and by the sequencer's `ownership.balancing` and
`repair.disruption.lags`.
Source: docs/protocol/wire.md "`POST /s/control`", docs/protocol/ownership.md "Balancing".
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import orjson

from duramen.core.hashing import weights_of
from duramen.core.ownership.balance import LogLoad
from duramen.errors import DuramenError, read_problem
from duramen.runtime.http_client import PeerClient, PeerError
from duramen.runtime.registry import Roster
from duramen.units import SECOND

ASK_TIMEOUT_US: Final = 5 * SECOND
HAND_OVER_TIMEOUT_US: Final = 12 * SECOND
"""Closing in peace is bounded by 8 s, and telling the target by 2 s."""

Answers = list[tuple[str, dict[str, Any]]]
"""Answers with the sequencers that gave them, by id."""


class RosterCalls:
    """Asks the sequencers of a roster."""

    def __init__(self, roster: Roster, peers: PeerClient) -> None:
        self._roster = roster
        self._peers = peers

    async def ask_all(
        self, message: Mapping[str, Any], timeout_us: int = ASK_TIMEOUT_US
    ) -> tuple[Answers, list[str]]:
        """Answers by sequencer, and those who gave none.

        Raises:
            DuramenError: `log_unavailable`: there is no sequencer.
        """
        names = sorted(self._roster.nodes)
        if not names:
            raise DuramenError("log_unavailable", "there is no sequencer")
        results = await asyncio.gather(
            *(self.ask(name, message, timeout_us) for name in names), return_exceptions=True
        )
        answers = []
        silent = []
        for name, result in zip(names, results, strict=True):
            if isinstance(result, dict):
                answers.append((name, result))
            elif isinstance(result, DuramenError):
                silent.append(name)
            else:
                raise result
        return answers, silent

    def weight_of(self, name: str) -> float:
        """A sequencer's share of the logs, as it is registered."""
        return weights_of(self._roster.nodes).get(name, 0.0)

    async def ask(self, name: str, message: Mapping[str, Any], timeout_us: int) -> dict[str, Any]:
        """The answer of one sequencer to a control call.

        Raises:
            DuramenError: its refusal; `log_unavailable`, uncertain: it did not answer.
        """
        url = self._roster.nodes.get(name, {}).get("data_url")
        try:
            status, data = await self._peers.request_json(
                "POST", f"{url}/s/control", orjson.dumps(message), timeout_us
            )
            document = orjson.loads(data)
        except (PeerError, orjson.JSONDecodeError) as error:
            raise DuramenError(
                "log_unavailable", f"{name} did not answer: {error}", uncertain=True
            ) from error
        if not isinstance(document, dict):
            raise DuramenError("internal", f"{name}: its answer is not understood")
        if status != 200:
            raise read_problem(document) or DuramenError("internal", f"{name}: HTTP {status}")
        return document


def movable_logs(answers: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[tuple[str, Any]]:
    """Owner and row of each log that can be handed over, of answers to `owned`.

    Only what takes appends can be; the rest is on its way already.
    """
    for sequencer_id, answer in answers:
        for log in answer.get("logs", ()):
            if log.get("state") == "active":
                yield sequencer_id, log


def read_load(sequencer_id: str, log: Mapping[str, Any]) -> LogLoad:
    """What a row says that its log asks of its owner."""
    return LogLoad(str(log["log_id"]), sequencer_id, log["appends_per_s"], log["bytes_per_s"])
