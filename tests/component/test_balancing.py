"""The balancer's process: whom it asks, what it has moved, and when it does nothing at all.

Sequencers are answers by name; what they are asked is written down. Which moves follow from which
loads is tests/unit/test_balancer.py's. Source: docs/protocol/ownership.md "Balancing".
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from duramen.core.ownership.balancer import HOLD_OFF_US, SAMPLE_COUNT, SAMPLE_INTERVAL_US
from duramen.core.sequencer.log_state import LogState
from duramen.errors import DuramenError
from duramen.ids import LogId
from duramen.runtime.http_client import NoAnswerError
from duramen.runtime.roster_calls import RosterCalls
from duramen.runtime.sequencer.loads import LoadMeter
from duramen.runtime.sequencer.log_driver import LogDriver
from duramen.units import SECOND as SECOND_US
from duramen.wire.sequencer_calls import AppendedBatch
from duramen_sequencer.ownership import balancing
from duramen_sequencer.ownership.balancing import Balancing
from tests.component.host_world import HostWorld
from tests.component.ownership_world import FIRST, SECOND, two_hosts
from tests.component.ownership_world import play as play_hosts
from tests.waiting import wait_for

HELD_S = HOLD_OFF_US // SECOND_US


class Peers:
    """Two sequencers, the first of which has four hot logs."""

    def __init__(self) -> None:
        self.is_stopping = self.is_silent = False
        self.held_s: int | None = HELD_S
        self.moves: list[dict[str, Any]] = []
        self.refusal: DuramenError | None = None
        self.told: dict[str, Any] = {}
        self.roster = SimpleNamespace(nodes={name: {"data_url": name} for name in ("s1", "s2")})

    def _row(self, number: int) -> dict[str, Any]:
        row: dict[str, Any] = {
            "log_id": str(number), "name": f"a/{number}", "state": "active",
            "appends_per_s": 300.0, "bytes_per_s": 0,
        }  # fmt: skip
        row |= self.told
        return row if self.held_s is None else {**row, "held_s": self.held_s}

    async def request_json(
        self, _method: str, url: str, body: bytes, _timeout_us: int
    ) -> tuple[int, bytes]:
        name, request = url.removesuffix("/s/control"), json.loads(body)
        if request["op"] == "owned":
            if self.is_silent and name == "s2":
                raise NoAnswerError("silent")
            logs = [self._row(number) for number in range(1, 5)] if name == "s1" else []
            answer = {"sequencer": name, "stopping": self.is_stopping, "logs": logs}
            return 200, json.dumps(answer).encode()
        self.moves.append({"asked": name, **request})
        if self.refusal is not None:
            return self.refusal.kind.status, json.dumps(self.refusal.problem()).encode()
        return 200, b'{"to": "s2"}'


class Play:
    """A balancer over two sequencers, and a clock that a test turns."""

    def __init__(self, *, is_wanted: bool = True) -> None:
        self.peers = Peers()
        self.may_move = True
        self._now_us = 0
        roster = cast(Any, self.peers.roster)
        calls = RosterCalls(roster, cast(Any, self.peers))
        self.balancing = Balancing(roster, calls, lambda: self.may_move, is_wanted=is_wanted)

    async def look(self, count: int = 1) -> list[dict[str, Any]]:
        """So many samples; the moves that came of them."""
        known = len(self.peers.moves)
        for _ in range(count):
            self._now_us += SAMPLE_INTERVAL_US
            await self.balancing.balance(lambda: self._now_us)
        return self.peers.moves[known:]


def play(scenario: Callable[[Play], Awaitable[None]], *, is_wanted: bool = True) -> None:
    async def run() -> None:
        world = Play(is_wanted=is_wanted)
        await scenario(world)
        await world.balancing.stop()

    asyncio.run(run())


def test_the_giver_is_asked_to_hand_over_and_told_why() -> None:
    async def scenario(world: Play) -> None:
        assert await world.look(SAMPLE_COUNT - 1) == []
        first, second = await world.look()
        assert first == {
            "asked": "s1", "op": "hand_over", "log_id": "1", "to": "s2", "balancing": True,
            "reason": "s1 carried 2.0 times its share",
        }  # fmt: skip
        assert second["log_id"] == "2"
        told = world.balancing.statistics()
        assert (told["moved"], told["load_ratio"]) == (2, 2.0)

    play(scenario)


def change(name: str, value: object) -> Callable[[Play], None]:
    return lambda world: setattr(world.peers, name, value)


@pytest.mark.parametrize(
    "spoil",
    [
        change("is_silent", True),
        change("is_stopping", True),
        change("held_s", HELD_S - 1),
        change("held_s", None),
        lambda world: setattr(world, "may_move", False),
    ],
    ids=["silent", "stopping", "fresh", "of-an-older-version", "suspended"],
)
def test_nothing_moves_while_something_is_in_doubt(spoil: Callable[[Play], None]) -> None:
    async def scenario(world: Play) -> None:
        await world.look(SAMPLE_COUNT - 1)
        spoil(world)
        assert await world.look(2 * SAMPLE_COUNT) == []

    play(scenario)


def test_a_log_is_handed_over_to_the_region_of_its_writers_and_its_target_is_told() -> None:
    async def scenario(world: Play) -> None:
        for name, node in world.peers.roster.nodes.items():
            node["region"] = {"s1": "eu", "s2": "us"}[name]
        world.peers.told = {"appends_per_s": 2.0, "writers_region": "us", "came_for_region": False}
        assert await world.look(SAMPLE_COUNT - 1) == []
        moves = await world.look()
        assert {move["log_id"] for move in moves} == {"1", "2", "3", "4"}
        assert moves[0] == {
            "asked": "s1", "op": "hand_over", "log_id": "1", "to": "s2", "balancing": True,
            "reason": "its writers are in that region", "for_region": True,
        }  # fmt: skip
        world.peers.told["came_for_region"] = True
        assert await world.look(2 * SAMPLE_COUNT) == []

    play(scenario)


def test_one_sequencer_in_doubt_begins_the_row_anew() -> None:
    async def scenario(world: Play) -> None:
        await world.look(SAMPLE_COUNT - 1)
        world.peers.is_silent = True
        await world.look()
        world.peers.is_silent = False
        assert await world.look(SAMPLE_COUNT - 1) == []
        assert await world.look()

    play(scenario)


def test_a_refusal_is_counted_and_moves_nothing_else() -> None:
    async def scenario(world: Play) -> None:
        world.peers.refusal = DuramenError("log_unavailable", "it has just come here")
        assert len(await world.look(SAMPLE_COUNT)) == 2
        assert world.balancing.statistics()["moves_failed"] == 2

    play(scenario)


def test_moves_end_where_rolling_is_suspended_meanwhile() -> None:
    async def scenario(world: Play) -> None:
        await world.look(SAMPLE_COUNT - 1)
        answers = iter((True, True, False))
        world.balancing._may_move = lambda: next(answers)
        assert len(await world.look()) == 1

    play(scenario)


def test_only_the_auditor_balances_and_only_if_it_is_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balancing, "SAMPLE_INTERVAL_US", 1_000)

    async def scenario(world: Play) -> None:
        assert not world.balancing.statistics()["is_balancer"]
        world.balancing.on_leadership(True)
        await wait_for(lambda: len(world.peers.moves) >= 2)
        world.balancing.on_leadership(False)
        assert not world.balancing.statistics()["is_balancer"]

    play(scenario)

    async def unwanted(world: Play) -> None:
        world.balancing.on_leadership(True)
        assert not world.balancing.statistics()["is_balancer"]

    play(unwanted, is_wanted=False)


# --- With owners that are real -------------------------------------------------------------------


def test_logs_move_to_the_other_host_and_stay_there(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: HostWorld) -> None:
        wire, first, second, _ = await two_hosts(world)
        log_ids = [LogId(100 + number) for number in range(4)]
        for log_id in log_ids:
            await world.add_log(log_id, f"log-{log_id}")
            assert isinstance(await world.append(first, log_id, tried=(SECOND,)), AppendedBatch)
        monkeypatch.setattr(LoadMeter, "rates", lambda _meter, _now_us: (300.0, 0.0))
        monkeypatch.setattr(LogDriver, "held_us", HOLD_OFF_US)
        roster = cast(Any, SimpleNamespace(nodes={FIRST: {}, SECOND: {}}))
        for name, url in ((FIRST, "http://127.0.0.1:1"), (SECOND, "http://127.0.0.1:2")):
            roster.nodes[name]["data_url"] = url
        balancers = [
            Balancing(roster, RosterCalls(roster, cast(Any, wire)), lambda: True) for _ in range(2)
        ]
        for step in range(3 * SAMPLE_COUNT):
            for each in balancers:
                await each.balance(lambda: step * SAMPLE_INTERVAL_US)  # noqa: B023 - called at once
            await wait_for(
                lambda: all(d.core.state is LogState.ACTIVE for d in second.drivers.values())
            )
        assert sorted(first.drivers) == log_ids[2:] and sorted(second.drivers) == log_ids[:2]
        assert second.statistics()["recoveries"] == 0
        assert sum(each.statistics()["moved"] for each in balancers) == 2
        told = second.stories.report(log_ids[0])[0]["reason"]
        assert told == f"handed over by {FIRST}, because {FIRST} carried 2.0 times its share"

    play_hosts(scenario)
