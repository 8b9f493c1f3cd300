"""Removals in any weather: wishes, hands, crashes, silences, grants of others, drains by people.

Whatever came, nobody with copies is ever stopped by the operator (`removal_world` asserts that at
each step), and once it is quiet the set is as its spec says. Source: docs/kubernetes/removal.md.
"""

from __future__ import annotations

import random

import pytest

from duramen_operator.names import API_VERSION
from duramen_operator.plan.observed import Ref
from tests.kubernetes.plan.removal_world import OTHERS, SECURED, SHARED, Removing
from tests.tiers import sized

STEPS = 40


class Walk:
    """One walk over a world."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        spec = self.rng.choice([{}, SHARED, SECURED])
        self.is_shared = spec == SHARED
        self.own = Removing(self.rng.randrange(4, 8), self.rng.choice([0, 2]), **spec)

    def act(self) -> None:
        """Something happens."""
        own, rng = self.own, self.rng
        match rng.choice(
            ["look", "look", "crash", "tick", "tick", "wish", "name", "hand", "world"]
        ):
            case "look":
                own.look()
            case "crash":
                own.look(most=rng.randrange(6))
            case "tick":
                own.tick()
            case "wish":
                own.world.change("BookieSet", "bookies", replicas=rng.randrange(3, 9))
            case "name":
                name = rng.choice(own.world.names("Bookie"))
                own.world.change("Bookie", name, decommission=rng.random() < 0.5)
            case "hand":
                self._lay_hand()
            case "world":
                self._change_world()

    def _lay_hand(self) -> None:
        own, rng = self.own, self.rng
        name = rng.choice(own.world.names("Bookie"))
        match rng.choice(["forget", "undrain", "drain"]):
            case "forget":
                own.world.objects.pop(Ref(API_VERSION, "Bookie", name))
            case "undrain" if not own.grants and name in own.pods:
                own.rows[name]["duty"] = "serving"
            case "drain" if own.rows.get(name, {}).get("duty") == "serving" and name in own.pods:
                own.rows[name]["duty"] = "draining"

    def _change_world(self) -> None:
        own, rng = self.own, self.rng
        match rng.choice(["silence", "grant", "over"]):
            case "silence":
                own.is_reachable = not own.is_reachable
            case "grant":
                own.grants = own.grants or [dict(OTHERS)]
            case "over":
                own.grants = []

    def calm(self) -> None:
        """Everything answers, nobody else wants anything, and nobody goes by name."""
        own = self.own
        own.is_reachable = True
        own.grants = [one for one in own.grants if one["holder"] != "x"]
        for _ in range(60):
            own.look()
            own.tick()
            if self.is_shared:
                self._take_ways_out()

    def _take_ways_out(self) -> None:
        """What is told to people where bookies share a StatefulSet: nobody goes by name, and one
        in the middle that somebody drained leaves too few to drain the last one."""
        own = self.own
        for name in own.world.names("Bookie"):
            if own.world.find("Bookie", name)["spec"].get("decommission"):
                own.world.change("Bookie", name, decommission=False)
            if own.progress(name)[0] == "DrainedByOthers":
                own.rows[name]["duty"] = "serving"


@pytest.mark.parametrize("seed", range(sized(fast=5, gate=8, night=400)))
def test_whatever_came_the_set_ends_as_its_spec_says(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(STEPS):
        walk.act()
    walk.calm()
    own = walk.own
    wanted = own.world.find("BookieSet", "bookies")["spec"]["replicas"]
    told = {name: own.progress(name) for name in own.world.names("Bookie")}
    assert own.is_at_rest(), own.steps()
    assert own.grants == []
    assert own.world.names("Bookie") == own.pods
    assert len(own.pods) == wanted, told
    # What somebody else drained stays drained, and says so; nobody else is on the way.
    left = {name for name in own.pods if own.rows[name]["duty"] != "serving"}
    assert all(told[name][0] == "DrainedByOthers" for name in left), told
    assert {own.removal(name) for name in own.pods} == {""}
