"""Advice before a log exists: could any cluster satisfy its replication (R20), and what would?

The judgement assumes `regions_that_must_suffice` regions (by default `min_regions`) with unlimited
bookies and racks. A replication that fails here fails on every cluster that has lost as many
regions as the log is meant to survive.

Not here: what the present cluster cannot do (`choice.explain_refusal`). Pure. Called when the
sequencer creates or reconfigures a log. Source: docs/protocol/placement.md "Will it work?".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from duramen.config import Replication
from duramen.core.placement.choice import explain_refusal
from duramen.core.placement.rule import Candidate, PlacementRule
from duramen.core.quorum import Quorum
from duramen.ids import BookieId, Incarnation, Member

_STEPS_MAX: Final = 300
"""What so many steps do not show to work is not offered, what they do not show to fail stays."""


class Advice(NamedTuple):
    """A field that cannot stay as it is, and what would work."""

    field: str
    detail: str


def advise(replication: Replication) -> Advice | None:
    """What is wrong with it on any cluster; None: nothing."""
    least, size = replication.min_regions, replication.ensemble_size
    left = replication.regions_that_must_suffice or least
    field = "replication.regions_that_must_suffice"
    if left < least:
        return Advice(field, f"{left} regions are never min_regions {least}: {least} would work")
    if _fault(replication, left) in (None, "search_bound"):
        return None
    acks = range(replication.ack_quorum + 1, replication.write_quorum + 1)
    ways = [
        *_first("ack_quorum", acks, replication, left),
        *_first("ensemble_size", range(size + 1, 2 * size + 1), replication, left),
    ]
    for regions in range(left + 1, size + 1):
        if _fault(replication, regions) is None:
            ways.append(f"regions_that_must_suffice {regions}")
            break
    ways.append(f"min_regions {least - 1}")
    return Advice(
        field,
        f"with {left} regions left, {replication.ack_quorum} of the {replication.write_quorum} "
        f"copies of some entry lie in {_count(least - 1)}, and min_regions is {least}: "
        f"{' or '.join(ways)} would work",
    )


def _first(field: str, values: Iterable[int], replication: Replication, regions: int) -> list[str]:
    """The first value of a field that works."""
    for value in values:
        if _fault(replication.model_copy(update={field: value}), regions) is None:
            return [f"{field} {value}"]
    return []


def _fault(replication: Replication, regions: int) -> str | None:
    """Why it fails on so many regions; racks are no matter: there are as many as are wanted."""
    size, least = replication.ensemble_size, replication.min_regions
    if least == 1:
        return None
    quorum = Quorum(size, replication.write_quorum, replication.ack_quorum)
    bookies = [
        Candidate(Member(BookieId(f"{region}.{at}"), Incarnation("")), str(region), "any")
        for region in range(regions)
        for at in range(size)
    ]
    rule = PlacementRule(1, least)
    refusal = explain_refusal(bookies, quorum, rule, steps_max=_STEPS_MAX)
    return None if refusal is None else refusal.reason


def _count(regions: int) -> str:
    return "one region" if regions == 1 else f"{regions} regions"
