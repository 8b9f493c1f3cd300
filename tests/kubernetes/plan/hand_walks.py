"""A person's hands on everything: wishes that make sense and some that do not, and on what is made.

They scale, edit and delete whatever the operator made, pause it and let it go on, while bookies
drain and the operator dies in the middle of passes. A pod that goes by a hand is no removal of the
operator's. Used by `test_hand_walks`.
"""

from __future__ import annotations

import copy
import random
from typing import Any, Final

from duramen_operator.names import COMPONENT_LABEL, PAUSED_ANNOTATION
from duramen_operator.plan.observed import Ref
from duramen_operator.resources.conditions import FOUNDATION_UNCLEAR
from tests.kubernetes.plan.removal_world import OTHERS, SECURED, Removing
from tests.kubernetes.plan.world import World, make_bookie_set, make_cluster

GENERATED: Final = (
    "StatefulSet", "Deployment", "Service", "PodDisruptionBudget", "ConfigMap", "CronJob",
)  # fmt: skip
KINDS_OF_HANDS: Final = ("scale", "edit", "delete", "delete pod", "unlabel")
SENSELESS: Final[tuple[dict[str, Any], ...]] = (
    {"zookeeper": {"members": 1}},
    {"zookeeper": {"external": {"servers": "zk.elsewhere:2181"}}},
    {"security": "migrate"},
)
"""Wishes that are refused: another ensemble, and security that one cannot turn on so."""


class HandWalk:
    """One walk over a world."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.own = Removing(
            self.rng.randrange(4, 7), self.rng.choice([0, 2]), **self.rng.choice([{}, SECURED])
        )
        self.sane = copy.deepcopy(self._cluster["spec"])
        """What the LogCluster says when nobody wishes what cannot be."""

    @property
    def _cluster(self) -> dict[str, Any]:
        return self.own.world.find("LogCluster", "main")

    def act(self) -> None:
        """Something happens."""
        own, rng = self.own, self.rng
        match rng.choice(["look", "crash", "tick", "tick", "wish", "hand", "hand", "cluster"]):
            case "look":
                own.look()
            case "crash":
                own.look(most=rng.randrange(6))
            case "tick":
                own.tick()
            case "wish":
                own.world.change("BookieSet", "bookies", replicas=rng.randrange(3, 8))
            case "hand":
                self.lay_hand()
            case "cluster":
                self._change_cluster()

    def lay_hand(self) -> str:
        """Somebody does something to what the operator made; gives what it was."""
        rng, objects = self.rng, self.own.world.objects
        made = [ref for ref in objects if ref.kind in GENERATED]
        kind, ref = rng.choice(KINDS_OF_HANDS), rng.choice(made)
        match kind:
            case "scale":
                scaled = ("StatefulSet", "Deployment")
                ref = rng.choice([one for one in made if one.kind in scaled])
                objects[ref]["spec"]["replicas"] = rng.randrange(4)
            case "edit":
                self._edit(objects[ref])
            case "delete":
                del objects[ref]
            case "delete pod":
                ref = rng.choice([one for one in objects if one.kind == "Pod"])
                del objects[ref]
            case "unlabel":
                objects[ref]["metadata"]["labels"] = {"somebody": "me"}
        self._have_pods_follow()
        return f"{kind} {ref.kind} {ref.name}"

    def _edit(self, item: dict[str, Any]) -> None:
        """One value inside it is another one, as with `kubectl edit`."""
        spec = item.get("spec", item.get("data", {}))
        template = spec.get("template", {}).get("spec", {})
        if "containers" in template:
            template["containers"][0] |= {"image": "of/somebody", "args": ["serve", "--nothing"]}
        elif item["kind"] == "PodDisruptionBudget":
            spec.pop("minAvailable", None)
            spec["maxUnavailable"] = 7
        elif item["kind"] == "Service":
            spec["ports"] = spec["ports"][:1]
        item["metadata"]["generation"] += 1
        item["metadata"]["resourceVersion"] += "0"

    def _have_pods_follow(self) -> None:
        """What its controller does at once: pods beyond a size, and those of nobody, end."""
        own = self.own
        sizes = {ref.name: item["spec"]["replicas"] for ref, item in own.world.objects.items()
                 if ref.kind == "StatefulSet"}  # fmt: skip
        for ref in [ref for ref in own.world.objects if ref.kind == "Pod"]:
            head, _, index = ref.name.rpartition("-")
            if COMPONENT_LABEL in own.world.objects[ref]["metadata"]["labels"] and (
                int(index) >= sizes.get(head, 0)
            ):
                del own.world.objects[ref]

    def _change_cluster(self) -> None:
        own, rng, cluster = self.own, self.rng, self._cluster
        match rng.choice(["pause", "go on", "sequencers", "image", "senseless", "sane", "silence",
                          "grant", "over"]):  # fmt: skip
            case "pause":
                cluster["metadata"].setdefault("annotations", {})[PAUSED_ANNOTATION] = "true"
            case "go on":
                cluster["metadata"].get("annotations", {}).pop(PAUSED_ANNOTATION, None)
            case "sequencers":
                self._wish(sequencers={"replicas": rng.randrange(2, 5)})
            case "image":
                self._wish(image=f"localhost/duramen:{rng.randrange(3)}")
            case "senseless":
                own.world.change("LogCluster", "main", **rng.choice(SENSELESS))
            case "sane":
                self._be_sane()
            case "silence":
                own.is_reachable = not own.is_reachable
            case "grant":
                own.grants = own.grants or [dict(OTHERS)]
            case "over":
                own.grants = []

    def _wish(self, **spec: Any) -> None:
        self.sane |= spec
        self.own.world.change("LogCluster", "main", **spec)

    def _be_sane(self) -> None:
        self._cluster["spec"] = copy.deepcopy(self.sane)
        self._cluster["metadata"]["generation"] += 1

    def calm(self) -> None:
        """Nobody does anything any more, what was refused is taken back, and everybody answers.

        What is refused still has a way out, which is taken.
        """
        own = self.own
        own.is_reachable = True
        own.grants = [one for one in own.grants if one["holder"] != "x"]
        self._cluster["metadata"].get("annotations", {}).pop(PAUSED_ANNOTATION, None)
        self._be_sane()
        own.run(passes=80)
        said = own.world.condition("LogCluster", "main", "Ready")
        if said["reason"] == FOUNDATION_UNCLEAR:
            # Both the record and what knew of it had hands on them: the way out is told.
            assert "delete that StatefulSet, which is made anew" in said["message"]
            del own.world.objects[Ref("apps/v1", "StatefulSet", "main-zookeeper")]
            self._have_pods_follow()
            own.run(passes=80)

    def make_untouched(self) -> World:
        """A world of this spec that nobody ever touched."""
        spec = copy.deepcopy(self._cluster["spec"])
        world = World(make_cluster(**spec), make_bookie_set(replicas=3))
        world.converge()
        return world


def describe(world: World) -> dict[Ref, Any]:
    """What was made, but for bookies, of which any may have gone, and the record."""
    return {
        ref: said for ref, said in world.manifests().items()
        if ref.kind in GENERATED and not ref.name.startswith("bookies") and "found" not in ref.name
    }  # fmt: skip
