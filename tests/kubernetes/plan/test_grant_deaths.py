"""The operator dies at every step of a LogGrant's life, and in lives of random changes.

However it dies, and whatever people do meanwhile: in the end the cluster has what the objects say,
no grant of an object is left behind, and what somebody gave by hand is there. Source:
docs/protocol/rights.md "Grants as objects of Kubernetes".
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.kubernetes.plan.grants_world import ANN, DeadOperatorError, Death, GrantsWorld, Triple
from tests.tiers import sized

DEATHS: tuple[Death, ...] = ("before", "after", "late")
TRIPLES: tuple[Triple, ...] = (
    ANN,
    ("user:corp/ann", "writer", "shop/ord*"),
    ("user:corp/bob", "reader", "shop"),
    ("user:corp/bob", "owner", "fair/orders"),
)


def live(world: GrantsWorld, dies_at: int, death: Death) -> bool:
    """Steps of as many passes as they take, and a death at one; False: there are not so many."""
    for _ in range(60):
        count = len(world.plan().steps)
        with suppress(DeadOperatorError):
            world.do_pass(dies_at if dies_at < count else None, death)
            if not count:
                return False
            dies_at -= count
            continue
        return True
    raise AssertionError("it never comes to rest")


def given(world: GrantsWorld) -> None:
    world.add("ann")


def taken(world: GrantsWorld) -> None:
    world.add("ann")
    world.settle()
    world.delete("ann")


def inherited(world: GrantsWorld) -> None:
    world.add("ann")
    world.settle()
    world.delete("ann")
    world.add("again")


def corrected(world: GrantsWorld) -> None:
    world.add("ann")
    world.settle()
    world.grants.take(*ANN)


@pytest.mark.parametrize("begin", [given, taken, inherited, corrected])
@pytest.mark.parametrize("death", DEATHS)
def test_a_pass_that_ends_anywhere_is_gone_on_with(
    begin: Callable[[GrantsWorld], None], death: Death
) -> None:
    step = 0
    while True:
        world = GrantsWorld()
        begin(world)
        if not live(world, step, death):
            break
        world.settle()
        assert world.grants.names() == ({ANN} if world.objects else set()), step
        for name in list(world.objects):
            assert world.said(name) == "True/AsWanted", step
            world.delete(name)
        world.settle()
        assert (world.grants.names(), world.objects) == (set(), {}), f"left behind at {step}"
        step += 1
    assert step >= 3


@pytest.mark.parametrize("death", DEATHS)
def test_an_object_that_is_deleted_right_after_a_death_leaves_nothing(death: Death) -> None:
    step = 0
    while True:
        world = GrantsWorld()
        world.add("ann")
        if not live(world, step, death):
            break
        world.delete("ann")
        while any(world.list_leaving()) or world.on_the_way:
            world.arrive()
            world.do_pass()
        assert (world.grants.names(), world.objects) == (set(), {}), f"left behind at {step}"
        step += 1
    assert step >= 5


@pytest.mark.parametrize("seed", range(sized(fast=60, gate=150, night=3000)))
def test_lives_of_random_changes_and_deaths_end_well(seed: int) -> None:
    dice = random.Random(seed)
    world = GrantsWorld()
    by_hand: set[Triple] = set()
    """Given by hand while no object said the same, and not taken by hand since."""
    touched: set[Triple] = set()
    """Given by hand while an object said the same: whose it is then depends on who was first."""
    says: dict[str, Triple] = {}
    for number in range(40):
        triple = dice.choice(TRIPLES)
        match dice.choice(("add", "delete", "give", "take", "silence", "pass", "pass", "death")):
            case "add":
                says[f"g{number}"] = triple
                world.add(f"g{number}", triple)
            case "delete" if world.objects:
                world.delete(dice.choice(list(world.objects)))
            case "give":
                is_new = triple not in world.grants.names()
                world.grants.give(*triple)
                is_said = any(says[name] == triple for name in world.objects)
                if is_said or world.on_the_way:
                    touched.add(triple)
                elif is_new:
                    by_hand.add(triple)
            case "take":
                world.grants.take(*triple)
                by_hand.discard(triple)
            case "silence":
                world.is_reachable = not world.is_reachable
            case "death":
                with suppress(DeadOperatorError):
                    world.do_pass(dice.randrange(8), dice.choice(DEATHS))
            case _:
                world.do_pass()
        world.arrive()
    world.is_reachable = True
    world.settle()
    said = {says[name] for name in world.objects}
    found = world.grants.names()
    assert said <= found
    assert by_hand <= found, "what somebody gave was taken"
    assert found - said - by_hand <= touched, "a grant of an object was left behind"
    for name in list(world.objects):
        world.delete(name)
    world.settle()
    assert by_hand <= world.grants.names() <= by_hand | touched
