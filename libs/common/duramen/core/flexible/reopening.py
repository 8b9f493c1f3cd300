"""Why an epoch's nodeset should be another one: in words, for the story of the log.

What is compared is the nodeset that would be chosen now with the rows of N(e), which are frozen.
Who is absent is in service, so that nothing changes when a bookie goes and comes back; free space,
doubt and lists are not asked at all. Where no nodeset can be chosen now there is nothing to
compare: the epoch goes on.

Pure. Source: R28, docs/protocol/flexible.md "Choosing the nodeset".
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from duramen.core.flexible.nodeset import ServingBookie
from duramen.core.flexible.property import ReplicationProperty
from duramen.ids import BookieId


class ReopeningReason(NamedTuple):
    """Something that is another now."""

    kind: str
    """`property`, `size`, `left`, `replaced`, `relabelled`, `weight`, `passed_over` or `added`."""
    detail: str
    """What was and what is, for people."""


def explain_reopening(
    held: Collection[ServingBookie],
    held_property: ReplicationProperty,
    chosen: Collection[ServingBookie],
    wanted: ReplicationProperty,
    serving: Collection[ServingBookie],
) -> list[ReopeningReason]:
    """What the segment's nodeset differs in from the one that would be chosen now; empty: nothing.

    Args:
        held: the rows of N(e), without guests.
        held_property: RP of the segment, and its extras.
        chosen: the nodeset that would be chosen now, by `wanted`, out of `serving`.
    """
    reasons = []
    if held_property != wanted:
        detail = f"replication {_format(held_property)} becomes {_format(wanted)}"
        reasons.append(ReopeningReason("property", detail))
    if len(held) != len(chosen):
        reasons.append(ReopeningReason("size", f"{len(chosen)} nodes instead of {len(held)}"))
    now = {bookie.bookie: bookie for bookie in serving}
    picked = {bookie.bookie for bookie in chosen}
    for row in sorted(held, key=lambda row: row.bookie):
        reasons += _compare(row, now.get(row.bookie), picked)
    before = {row.bookie for row in held}
    reasons += [
        ReopeningReason("added", f"{bookie} joins the nodeset")
        for bookie in sorted(picked - before)
    ]
    return reasons


def _compare(
    row: ServingBookie, now: ServingBookie | None, picked: Collection[BookieId]
) -> list[ReopeningReason]:
    """What became of one member, the most telling first."""
    name = row.bookie
    if now is None:
        return [ReopeningReason("left", f"{name} is not in service")]
    if now.incarnation != row.incarnation:
        detail = f"{name} has another incarnation: {row.incarnation} became {now.incarnation}"
        return [ReopeningReason("replaced", detail)]
    reasons = []
    if (now.region, now.rack) != (row.region, row.rack):
        detail = f"{name} is in {_name(now)} and was in {_name(row)}"
        reasons.append(ReopeningReason("relabelled", detail))
    if now.weight != row.weight:
        detail = f"{name} has weight {now.weight:g} and had {row.weight:g}"
        reasons.append(ReopeningReason("weight", detail))
    if not reasons and name not in picked:
        reasons.append(ReopeningReason("passed_over", f"{name} makes way for another bookie"))
    return reasons


def _format(wanted: ReplicationProperty) -> str:
    return f"node {wanted.node}, rack {wanted.rack}, region {wanted.region}, extras {wanted.extras}"


def _name(bookie: ServingBookie) -> str:
    return f"{bookie.region or '?'}/{bookie.rack or '?'}"
