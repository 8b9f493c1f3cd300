"""Restarts of bookies in any weather: images good and bad, crashes, drains, grants, silences.

Whatever came, the operator asks for no bookie while another one is not ready, stops none without a
grant in which a process runs, and what it sends late hits nobody beside somebody else
(`restarting_world` asserts all that at each stop). Once it is quiet all run as the spec says, and
no grant is left.
Source: docs/kubernetes/restarts.md.
"""

from __future__ import annotations

import random
from datetime import timedelta

import pytest

from duramen_operator.names import PAUSED_ANNOTATION
from tests.kubernetes.plan.restarting_world import BAD, OTHERS, UNKNOWN, Restarting
from tests.tiers import sized

STEPS = 50


class Walk:
    """One walk over a world."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        spec = self.rng.choice([{}, {"security": "on", "acceptAnybody": False}])
        self.own = Restarting(
            self.rng.randrange(3, 6), self.rng.choice(["one", BAD, UNKNOWN]), **spec
        )

    def act(self) -> None:
        """Something happens."""
        own, rng = self.own, self.rng
        match rng.choice(
            ["look", "look", "tick", "tick", "die", "catch up", "pod", "hand", "spec"]
        ):
            case "look":
                own.look()
            case "tick":
                own.tick()
                own.now += timedelta(seconds=20)
            case "die":
                own.look(most=rng.randrange(6))
            case "sleep":
                own.is_asleep = rng.random() < 0.5
                own.wake()
            case "catch up":
                own.catch_up()
            case "pod":
                self._hit_pod()
            case "hand":
                self._lay_hand()
            case "spec":
                image = rng.choice(["one", "two", "three", BAD, UNKNOWN])
                own.world.change("LogCluster", "main", image=image)

    def _hit_pod(self) -> None:
        own, rng = self.own, self.rng
        name = rng.choice(own.pods)
        match rng.choice(["crash", "hang", "heal", "heal", "drain", "drain", "server"]):
            case "crash":
                own.crash(name)
            case "hang":
                own.hung.add(name)
            case "heal":
                own.heal()
            case "server":
                servers = [one for one in own.world.names("Pod") if one not in own.pods]
                own.world.have_pod_serve(rng.choice(servers), is_serving=False)
            case "drain":
                own.drain(name)

    def _lay_hand(self) -> None:
        own = self.own
        match self.rng.choice(["over", "other", "silence", "pause"]):
            case "over":
                own.grants = []
            case "other":
                own.grants = own.grants or [dict(OTHERS)]
            case "silence":
                own.is_reachable = not own.is_reachable
            case "pause":
                metadata = own.world.find("LogCluster", "main")["metadata"]
                paused = metadata.get("annotations", {}).get(PAUSED_ANNOTATION) == "true"
                metadata["annotations"] = {PAUSED_ANNOTATION: str(not paused).lower()}

    def calm_down(self) -> None:
        """Nobody disturbs any more, and the image is one that serves."""
        own = self.own
        own.grants = [one for one in own.grants if one["holder"] != OTHERS["holder"]]
        own.world.find("LogCluster", "main")["metadata"]["annotations"] = {}
        own.is_reachable, own.is_asleep = True, False
        own.heal()
        own.world.change("LogCluster", "main", image="last")
        for _ in range(4):
            own.look()
            own.tick()
        own.delete_stuck()


@pytest.mark.parametrize("seed", range(sized(fast=4, gate=6, night=300)))
def test_whatever_came_all_run_as_the_spec_says(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(STEPS):
        walk.act()
    walk.calm_down()
    own = walk.own
    own.run()
    assert not own.outdated and own.is_at_rest(), own.told()
    assert not own.grants and all(map(own.is_ready, own.pods))
    assert own.told()[0] == "Settled"
