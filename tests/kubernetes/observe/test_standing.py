"""When a cluster's auditor is asked how the bookies stand, and how long an answer counts.

The loop's time is virtual: an auditor that thinks for a minute costs nothing. Source:
docs/kubernetes/evictions.md 2 and 3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from duramen.errors import DuramenError
from duramen.runtime.http_client import NoAnswerError
from duramen_operator.observe.standing import (
    HASTE_S,
    LOOK_AGAIN_S,
    PAUSE_S,
    WAIT_S,
    StandingQuestion,
)
from duramen_operator.plan.observed import Observed, PodLife, StandingView
from tests.kubernetes.leading.virtual_time import run
from tests.kubernetes.plan.world import World, make_bookie_set, make_cluster
from tests.pauses import let_pass

NAME = "bookies-0-0"
ANSWER = {"bookies": [{"bookie": NAME, "there": True, "reasons": [], "lacks_count": 0}]}


class Auditor:
    """Answers after so long, or raises."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self.clock_s = clock_s
        self.question = StandingQuestion(clock_s)
        self.took_s = 0.0
        self.error: Exception | None = None
        self.asked_s: list[float] = []

    async def ask(self) -> dict[str, Any]:
        self.asked_s.append(round(self.clock_s(), 3))
        if self.took_s:
            await let_pass(self.took_s, what="the auditor reads all metadata")
        if self.error is not None:
            raise self.error
        return ANSWER

    async def look(self, seen: Observed) -> StandingView | None:
        return await self.question.look(self.ask, seen)

    async def look_on(self, seen: Observed, until_s: float) -> None:
        """Looks as a worker has them: each half a minute, or when it is told to."""
        while self.clock_s() < until_s:
            await self.look(seen)
            again_s = self.question.look_again_s(seen)
            await let_pass(min(30.0, again_s or 30.0), what="the next look")


def play(scenario: Callable[[Auditor], Coroutine[Any, Any, None]]) -> None:
    async def scene(clock_s: Callable[[], float]) -> None:
        auditor = Auditor(clock_s)
        await scenario(auditor)
        await auditor.question.forget()
        assert len(asyncio.all_tasks()) == 1, "nothing is left behind"

    run(scene)


@pytest.fixture
def world() -> World:
    """A cluster of one bookie, that serves, is told so, and has an open budget."""
    made = World(make_cluster(), make_bookie_set(replicas=1))
    made.converge()
    pod = made.find("Pod", NAME)
    del pod["spec"]["readinessGates"]
    made.have_pod_serve(NAME)
    made.find("PodDisruptionBudget", "main-bookie")["spec"].pop("maxUnavailable", None)
    return made


def test_in_calm_days_it_is_asked_each_half_a_minute(world: World) -> None:
    async def scenario(auditor: Auditor) -> None:
        seen = world.observe()
        await auditor.look_on(seen, 300)
        assert len(auditor.asked_s) == 10
        assert auditor.question.look_again_s(seen) is None, "and no look comes for it"
        found = await auditor.look(seen)
        assert found == StandingView({NAME: _life(world)}, {NAME: ANSWER["bookies"][0]})

    play(scenario)


def _life(world: World) -> PodLife:
    return PodLife(world.find("Pod", NAME)["metadata"]["uid"], 0)


def test_while_somebody_waits_it_is_asked_sooner_and_less_and_less_so(world: World) -> None:
    async def scenario(auditor: Auditor) -> None:
        world.find("PodDisruptionBudget", "main-bookie")["spec"]["maxUnavailable"] = 0
        await auditor.look_on(world.observe(), 100)
        pauses = [b - a for a, b in zip(auditor.asked_s, auditor.asked_s[1:], strict=False)]
        assert pauses[:3] == [HASTE_S, 2 * HASTE_S, 3 * HASTE_S] and pauses == sorted(pauses)
        assert max(pauses) <= PAUSE_S and len(auditor.asked_s) > 8

    play(scenario)


def test_a_pod_that_is_another_one_is_a_reason_to_ask(world: World) -> None:
    async def scenario(auditor: Auditor) -> None:
        await auditor.look(world.observe())
        world.find("Pod", NAME)["metadata"]["uid"] = "another"
        seen = world.observe()
        found = await auditor.look(seen)
        assert len(auditor.asked_s) == 1 and auditor.question.look_again_s(seen) == LOOK_AGAIN_S
        assert found is not None and found.lives[NAME].uid != "another", "it says of whom"
        await let_pass(LOOK_AGAIN_S, what="the next look")
        found = await auditor.look(seen)
        assert found is not None and found.lives[NAME].uid == "another"
        assert auditor.question.look_again_s(seen) is None

    play(scenario)


def test_a_look_waits_a_little_and_what_comes_later_counts_in_the_next(world: World) -> None:
    async def scenario(auditor: Auditor) -> None:
        auditor.took_s = 40.0
        seen = world.observe()
        began_s = auditor.clock_s()
        assert await auditor.look(seen) is None
        assert auditor.clock_s() - began_s == WAIT_S
        assert auditor.question.look_again_s(seen) == LOOK_AGAIN_S
        await let_pass(40.0, what="the auditor ends")
        found = await auditor.look(seen)
        assert found is not None and found.rows
        await auditor.look_on(seen, 700)
        assert len(auditor.asked_s) == 1, "twenty times as long as it took"
        assert await auditor.look(seen) is not None

    play(scenario)


def test_an_answer_grows_old(world: World) -> None:
    async def scenario(auditor: Auditor) -> None:
        seen = world.observe()
        assert await auditor.look(seen) is not None
        auditor.took_s = 1_000.0
        await let_pass(2 * PAUSE_S, what="two pauses")
        assert await auditor.look(seen) is None, "asked anew, and not answered yet"

    play(scenario)


@pytest.mark.parametrize(
    ("error", "is_unknown"),
    [
        (DuramenError("invalid_argument", "op: standing"), True),
        (DuramenError("forbidden", "no"), False),
        (DuramenError("metadata_unavailable", "no auditor"), False),
        (NoAnswerError("nobody"), False),
    ],
)
def test_no_answer_says_why(world: World, error: Exception, is_unknown: bool) -> None:
    async def scenario(auditor: Auditor) -> None:
        auditor.error = error
        found = await auditor.look(world.observe())
        assert found is not None and found.rows is None
        assert (found.is_unknown_call, found.why) == (is_unknown, str(error))

    play(scenario)


def test_an_answer_that_is_not_understood_is_none_and_is_asked_for_again(world: World) -> None:
    async def scenario(auditor: Auditor) -> None:
        auditor.error = KeyError("bookies")
        found = await auditor.look(world.observe())
        assert found is not None and "not understood" in found.why
        auditor.error = None
        await let_pass(PAUSE_S, what="a pause")
        found = await auditor.look(world.observe())
        assert found is not None and found.rows

    play(scenario)


def test_a_question_that_fails_takes_no_answer_back(world: World) -> None:
    async def scenario(auditor: Auditor) -> None:
        seen = world.observe()
        good = await auditor.look(seen)
        auditor.error, auditor.took_s = NoAnswerError("a new auditor"), 60.0
        await let_pass(PAUSE_S, what="a pause")
        assert await auditor.look(seen) == good
        await let_pass(60.0, what="the question ends")
        assert (await auditor.look(seen)) != good, "two pauses are over"
        assert len(auditor.asked_s) == 2
        await let_pass(PAUSE_S, what="a pause, however long the failure took")
        await auditor.look(seen)
        assert len(auditor.asked_s) == 3

    play(scenario)


def test_services_of_before_are_asked_no_more_often_for_it(world: World) -> None:
    async def scenario(auditor: Auditor) -> None:
        auditor.error = DuramenError("invalid_argument", "op: standing")
        world.find("PodDisruptionBudget", "main-bookie")["spec"]["maxUnavailable"] = 0
        await auditor.look_on(world.observe(), 300)
        assert len(auditor.asked_s) == 10

    play(scenario)


def test_a_question_that_is_given_up_leaves_nothing_behind(world: World) -> None:
    async def scenario(auditor: Auditor) -> None:
        auditor.took_s = 1_000.0
        await auditor.look(world.observe())

    play(scenario)
