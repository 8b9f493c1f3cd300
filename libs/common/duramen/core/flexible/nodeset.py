"""Which bookies an epoch may use, chosen by weight, and steady from one epoch to the next.

Weighted rendezvous: each bookie draws a number for the log, from their names alone, and those with
the least come first; the draw is exponential, so a bookie of twice the weight comes first twice as
often. Who comes or goes changes one member. Where the first ones do not span the places that are
wanted, the last one that can be missed makes way for the first one that helps.

A nodeset is *sound* if it stays appendable and recoverable (R26) with any `tolerate` of its nodes
away, and with any one rack away as far as all bookies together would.

Pure. Source: R23, R26, docs/protocol/placement.md "Nodesets".
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from duramen.core.flexible.property import Node, ReplicationProperty
from duramen.core.placement.rule import Refusal
from duramen.ids import BookieId, LogId

SIZE_DEFAULT_MAX = 20
"""Larger nodesets spread a log no better, and a recovery asks each node."""


@dataclass(frozen=True, slots=True)
class NodesetRule:
    """What a nodeset has to be.

    Args:
        size: nodes wanted; None: all, up to 20.
        tolerate: nodes that may be away at once, ≥ 0.
    """

    wanted: ReplicationProperty
    size: int | None = None
    tolerate: int = 1

    def size_of(self, bookie_count: int) -> int:
        """Nodes out of so many bookies."""
        return min(bookie_count, SIZE_DEFAULT_MAX if self.size is None else self.size)


def choose_nodeset(
    nodes: Collection[Node], weights: Mapping[BookieId, float], rule: NodesetRule, log_id: LogId
) -> tuple[Node, ...] | Refusal:
    """A sound nodeset, or why there is none.

    Args:
        nodes: who takes new data, each bookie once.
        weights: of each of them, > 0.
    """
    order = sorted(nodes, key=lambda node: _draw(node.bookie, weights[node.bookie], log_id))
    size = rule.size_of(len(order))
    chosen, rest = order[:size], order[size:]
    spans_without_a_rack = _spans_without_a_rack(order, rule.wanted)
    while (refusal := _find_lack(chosen, rule, spans_without_a_rack)) is not None:
        if not _swap(chosen, rest, refusal.reason):
            return refusal
    return tuple(sorted(chosen, key=lambda node: node.bookie))


def explain_soundness(
    chosen: Sequence[Node], everybody: Collection[Node], rule: NodesetRule
) -> Refusal | None:
    """Why these nodes are no sound nodeset out of all bookies; None: they are one."""
    return _find_lack(chosen, rule, _spans_without_a_rack(everybody, rule.wanted))


def _draw(bookie: BookieId, weight: float, log_id: LogId) -> float:
    digest = hashlib.blake2b(f"{log_id} {bookie}".encode(), digest_size=8).digest()
    ratio = (int.from_bytes(digest, "big") + 1) / (1 << 64)
    return -math.log(ratio) / weight


def _spans_without_a_rack(nodes: Collection[Node], wanted: ReplicationProperty) -> bool:
    """Whether what any one rack leaves of all bookies satisfies the property."""
    racks = {(node.region, node.rack) for node in nodes}
    return len(racks) > 1 and all(
        wanted.is_satisfied_by(n for n in nodes if (n.region, n.rack) != rack) for rack in racks
    )


def _find_lack(
    chosen: Sequence[Node], rule: NodesetRule, spans_without_a_rack: bool
) -> Refusal | None:
    wanted, tolerate = rule.wanted, rule.tolerate
    racks = Counter((node.region, node.rack) for node in chosen if node.region and node.rack)
    regions = Counter(node.region for node in chosen if node.region and node.rack)
    numbers = {
        "node": wanted.node, "rack": wanted.rack, "region": wanted.region, "tolerate": tolerate,
        "bookies": len(chosen), "racks": len(racks), "regions": len(regions),
    }  # fmt: skip
    if tolerate >= wanted.node and wanted.is_satisfied_by(chosen):
        detail = (
            f"with {tolerate} nodes away all {wanted.node} copies of an entry may be: "
            "nodeset.tolerate has to be less than replication.node"
        )
        return Refusal("tolerates_all_copies", numbers, detail)
    if len(chosen) - tolerate < wanted.wave_count - wanted.extras:
        detail = (
            f"{len(chosen)} bookies are less than replication.node {wanted.node} and "
            f"nodeset.tolerate {tolerate} together"
        )
        return Refusal("too_few_bookies", numbers, detail)
    for kind, places, least in (
        ("regions", regions, wanted.region), ("racks", racks, wanted.rack)
    ):  # fmt: skip
        left_count = _count_left(places, tolerate)
        if least > 1 and left_count < least:
            detail = (
                f"{left_count} of {len(places)} {kind} are left when {tolerate} nodes are away, "
                f"and {least} are wanted"
            )
            return Refusal(f"too_few_{kind}", {**numbers, "left": left_count}, detail)
    if spans_without_a_rack and not _spans_without_a_rack(chosen, wanted):
        detail = "one rack away leaves too few nodes, racks or regions of these"
        return Refusal("too_few_racks", numbers, detail)
    return None


def _count_left(places: Counter[str] | Counter[tuple[str, str]], away_count: int) -> int:
    """Places that still have a node when so many are away, the emptiest places first."""
    left_count = len(places)
    for count in sorted(places.values()):
        if count > away_count:
            break
        away_count -= count
        left_count -= 1
    return left_count


def _swap(chosen: list[Node], rest: list[Node], reason: str) -> bool:
    """Take in the first of the rest that helps, for the last one that can be missed."""
    if reason not in ("too_few_racks", "too_few_regions"):
        return False

    def place_of(node: Node) -> tuple[str, ...]:
        if not (node.region and node.rack):
            return ()
        return (node.region,) if reason == "too_few_regions" else (node.region, node.rack)

    counts = Counter(place_of(node) for node in chosen)
    best = min(
        (node for node in rest if place_of(node)), default=None,
        key=lambda node: counts[place_of(node)],
    )  # fmt: skip
    if best is None:
        return False
    fullest = max(counts.values())
    limit = counts[place_of(best)] + 1
    worst = next(
        (
            node
            for node in reversed(chosen)
            if not place_of(node) or counts[place_of(node)] == fullest > limit
        ),
        None,
    )
    if worst is None:
        return False
    chosen.remove(worst)
    rest.remove(best)
    chosen.append(best)
    return True
