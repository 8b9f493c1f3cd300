"""Of several operators one holds, and never two at once, whatever the way to the API server does.

All of it in virtual time: hours of it are a second of ours.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from duramen_operator.leading.claim import Claimant
from duramen_operator.leading.hand import HELD_S, LEASE_S, RENEW_EVERY_S, Hand, HandLostError
from duramen_operator.leading.keeper import LeaseKeeper
from tests.kubernetes.leading.lease_world import LeaseStore, Wire
from tests.kubernetes.leading.virtual_time import run
from tests.pauses import let_pass
from tests.tiers import sized
from tests.waiting import wait_for

Clock = Callable[[], float]
SEED_COUNT = sized(fast=10, gate=40, night=2_000)
LOOK_S = 0.1
PLAYED_S = 600.0
HAND_S = 2 * RENEW_EVERY_S
"""How long a holder may not notice that somebody removed its Lease by hand."""


class Process:
    """One operator: it waits, holds, loses, and waits again."""

    def __init__(self, store: LeaseStore, clock_s: Clock, pod: str, life: int = 0) -> None:
        self.pod, self.life = pod, life
        self.wire = Wire(store, random.Random(f"{pod}/{life}"))
        self.hand = Hand(clock_s)
        self.terms: list[float] = []
        self._clock_s = clock_s
        self.keeper = LeaseKeeper(self.wire, Claimant(pod, str(life)), self.hand, clock_s)
        self.task = asyncio.create_task(self._live())

    async def _live(self) -> None:
        while True:
            await self.keeper.acquire()
            self.terms.append(self._clock_s())
            await self.keeper.keep()

    async def end(self, *, is_killed: bool) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task
        if is_killed:
            self.hand.give_up()
        else:
            await self.keeper.give_back()


def play(work: Callable[[LeaseStore, Clock], Coroutine[Any, Any, None]]) -> None:
    """Run a scenario in virtual time."""
    run(lambda clock_s: work(LeaseStore(), clock_s))


async def measure_wait(condition: Callable[[], bool], within_s: float, clock_s: Clock) -> float:
    """How long it takes until it is so."""
    began_s = clock_s()
    await wait_for(condition, within_s, "somebody to hold, or nobody", rest_s=LOOK_S)
    return clock_s() - began_s


def test_the_first_one_holds_at_once_and_the_second_one_waits() -> None:
    async def scenario(store: LeaseStore, clock_s: Clock) -> None:
        one = Process(store, clock_s, "one")
        assert await measure_wait(lambda: one.hand.is_held, 1, clock_s) <= LOOK_S
        two = Process(store, clock_s, "two")
        await let_pass(10 * LEASE_S, what="virtual time in which operators renew")
        assert one.hand.is_held
        assert not two.hand.is_held
        two.hand.give_up()
        with pytest.raises(HandLostError):
            two.hand.check()
        await one.end(is_killed=True)
        waited_s = await measure_wait(lambda: two.hand.is_held, 3 * LEASE_S, clock_s)
        assert HELD_S < waited_s <= LEASE_S + RENEW_EVERY_S + 1
        await two.end(is_killed=False)

    play(scenario)


def test_who_ends_properly_leaves_no_lease_and_the_next_one_begins_at_once() -> None:
    async def scenario(store: LeaseStore, clock_s: Clock) -> None:
        one = Process(store, clock_s, "one")
        await measure_wait(lambda: one.hand.is_held, 1, clock_s)
        await one.end(is_killed=False)
        assert store.record is None
        two = Process(store, clock_s, "two")
        assert await measure_wait(lambda: two.hand.is_held, 1, clock_s) <= LOOK_S
        await two.end(is_killed=False)

    play(scenario)


def test_a_process_that_is_started_again_in_its_pod_goes_on_at_once() -> None:
    async def scenario(store: LeaseStore, clock_s: Clock) -> None:
        one = Process(store, clock_s, "one", life=1)
        await measure_wait(lambda: one.hand.is_held, 1, clock_s)
        await one.end(is_killed=True)
        again = Process(store, clock_s, "one", life=2)
        assert await measure_wait(lambda: again.hand.is_held, 1, clock_s) <= LOOK_S
        await again.end(is_killed=False)

    play(scenario)


def test_two_processes_of_one_name_do_not_take_it_from_each_other_for_ever() -> None:
    """As somebody's `kubectl exec` in the operator's pod: the later one has it, and keeps it."""

    async def scenario(store: LeaseStore, clock_s: Clock) -> None:
        one = Process(store, clock_s, "pod", life=1)
        await measure_wait(lambda: one.hand.is_held, 1, clock_s)
        two = Process(store, clock_s, "pod", life=2)
        await measure_wait(lambda: two.hand.is_held and not one.hand.is_held, HAND_S, clock_s)
        await let_pass(20 * LEASE_S, what="virtual time in which operators renew")
        assert (len(one.terms), len(two.terms)) == (1, 1)
        await one.end(is_killed=False)
        await two.end(is_killed=False)

    play(scenario)


def test_a_holder_that_is_cut_off_stops_before_anybody_else_begins() -> None:
    async def scenario(store: LeaseStore, clock_s: Clock) -> None:
        one, two = Process(store, clock_s, "one"), Process(store, clock_s, "two")
        await measure_wait(lambda: one.hand.is_held, 1, clock_s)
        one.wire.is_cut = True
        await measure_wait(lambda: not one.hand.is_held, HELD_S + 1, clock_s)
        gap_s = await measure_wait(lambda: two.hand.is_held, 2 * LEASE_S, clock_s)
        assert gap_s >= LEASE_S - HELD_S - LOOK_S
        one.wire.is_cut = False
        await let_pass(5 * LEASE_S, what="virtual time in which operators renew")
        assert two.hand.is_held
        assert not one.hand.is_held
        for process in (one, two):
            await process.end(is_killed=True)

    play(scenario)


@pytest.mark.parametrize("duration_s", [0, 1, 10**9])
def test_no_duration_that_somebody_writes_hurries_or_locks_out(duration_s: int) -> None:
    async def scenario(store: LeaseStore, clock_s: Clock) -> None:
        one = Process(store, clock_s, "one")
        await measure_wait(lambda: one.hand.is_held, 1, clock_s)
        await one.end(is_killed=True)
        store.edit(duration_s=duration_s)
        two = Process(store, clock_s, "two")
        waited_s = await measure_wait(lambda: two.hand.is_held, 100, clock_s)
        assert LEASE_S <= waited_s <= 66
        await two.end(is_killed=False)

    play(scenario)


@pytest.mark.parametrize("hand", ["delete", "empty", "other", "label"])
def test_hands_on_the_lease_end_with_one_holder(hand: str) -> None:
    async def scenario(store: LeaseStore, clock_s: Clock) -> None:
        one, two = Process(store, clock_s, "one"), Process(store, clock_s, "two")
        await measure_wait(lambda: one.hand.is_held, 1, clock_s)
        await let_pass(LEASE_S, what="virtual time in which operators renew")
        if hand == "delete":
            store.record = None
        else:
            store.edit(**{"empty": {"holder": ""}, "other": {"holder": "x_1"}}.get(hand, {}))
        for _ in range(int(4 * LEASE_S / LOOK_S)):
            assert not (one.hand.is_held and two.hand.is_held)
            await let_pass(LOOK_S, what="between two looks at the holders")
        assert one.hand.is_held or two.hand.is_held
        if hand in ("delete", "empty", "label"):
            assert one.terms == one.terms[:1], "it was not even interrupted"
            assert one.hand.is_held
        for process in (one, two):
            await process.end(is_killed=True)

    play(scenario)


def test_an_uninstall_takes_it_from_a_holder_and_nobody_writes_meanwhile() -> None:
    async def scenario(store: LeaseStore, clock_s: Clock) -> None:
        one = Process(store, clock_s, "one")
        await measure_wait(lambda: one.hand.is_held, 1, clock_s)
        hand = Hand(clock_s)
        keeper = LeaseKeeper(Wire(store), Claimant("release", "1"), hand, clock_s)
        one.wire.is_cut = True  # at the worst: it does not hear of that
        await keeper.seize()
        assert hand.is_held
        assert not one.hand.is_held
        keeping = asyncio.create_task(keeper.keep())
        await let_pass(4 * LEASE_S, what="virtual time in which operators renew")
        assert not one.hand.is_held
        keeping.cancel()
        await keeper.give_back()
        assert store.record is None
        one.wire.is_cut = False  # it never saw whose the Lease was meanwhile
        waited_s = await measure_wait(lambda: one.hand.is_held, 3 * LEASE_S, clock_s)
        assert waited_s >= LEASE_S, "what is uninstalled is gone by then"
        await one.end(is_killed=False)

    play(scenario)


@pytest.mark.parametrize("seed", range(SEED_COUNT))
def test_never_two_hold_while_processes_die_stop_and_are_cut_off(seed: int) -> None:
    async def scenario(store: LeaseStore, clock_s: Clock) -> None:
        rng = random.Random(seed)

        def delay(own: random.Random) -> float:
            """Mostly quick; now and then as long as a process may be stopped, or a call last."""
            return own.choice((0.0, 0.01, 0.2)) if own.random() < 0.95 else own.uniform(0, 40)

        def begin(pod: str, life: int) -> Process:
            process = Process(store, clock_s, pod, life)
            process.wire.delay_s = delay
            return process

        alive = [begin(f"pod-{n}", 0) for n in range(3)]
        held_s, life = 0.0, 0
        while clock_s() < PLAYED_S:
            await let_pass(LOOK_S, what="between two looks at the holders")
            holders = [one for one in alive if one.hand.is_held]
            assert len(holders) <= 1, [one.pod for one in holders]
            held_s += LOOK_S * len(holders)
            if rng.random() < 0.002:
                victim, life = rng.choice(alive), life + 1
                match rng.choice(("kill", "end", "cut", "heal", "heal")):
                    case "kill" | "end" as how:
                        await victim.end(is_killed=how == "kill")
                        alive[alive.index(victim)] = begin(victim.pod, life)
                    case "cut":
                        victim.wire.is_cut = True
                    case _:
                        victim.wire.is_cut = False
        assert held_s > PLAYED_S / 10, "most of the time somebody serves"
        for process in alive:
            await process.end(is_killed=True)

    play(scenario)
