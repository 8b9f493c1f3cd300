"""Wishes and hands on everything, in any order: what is there in the end is what the spec says.

Whatever came, nobody with copies is ever stopped by the operator (`removal_world` asserts that at
each step); the last hand costs three passes that write, at most. Source:
docs/kubernetes/one-hand.md 14, docs/kubernetes/operations.md.
"""

from __future__ import annotations

import pytest

from duramen_operator.plan.steps import Event, Status
from tests.kubernetes.plan.hand_walks import HandWalk, describe
from tests.tiers import sized

STEPS = 30
WRITING_PASSES_MAX = 3
ROUNDS = 12


@pytest.mark.parametrize("seed", range(sized(fast=5, gate=30, night=300)))
def test_whatever_hands_did_all_is_as_the_spec_says(seed: int) -> None:
    walk = HandWalk(seed)
    for _ in range(STEPS):
        walk.act()
    walk.calm()
    own = walk.own
    assert own.is_at_rest(), own.steps()
    assert len(own.pods) == own.world.find("BookieSet", "bookies")["spec"]["replicas"]
    assert describe(own.world) == describe(walk.make_untouched())
    last = walk.lay_hand()
    writing = 0
    for _ in range(ROUNDS):
        writing += any(not isinstance(step, Status | Event) for step in own.steps())
        own.look()
        own.tick()
    assert own.is_at_rest(), (last, own.steps())
    assert describe(own.world) == describe(walk.make_untouched()), last
    assert writing <= WRITING_PASSES_MAX, last
