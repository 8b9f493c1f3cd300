"""Explains a flexible log's placement to people: its nodeset, who may be away, and what is wrong.

The nodeset is the one that would be chosen now, as the log's owner does. A segment breaks its rule
if its nodes, where they are today, cannot hold the copies of one entry: what is promised of a
segment holds by the places in its node, and the difference is what a person wants to know.

Pure; called by `placement_operations`. Source: docs/protocol/flexible.md "Choosing the nodeset",
R22, R26.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from duramen.core.flexible.nodeset import ServingBookie
from duramen.core.flexible.nodeset_plan import make_nodeset_rule, plan_nodeset
from duramen.core.flexible.property import UNKNOWN, PlacedBookie, ReplicationProperty
from duramen.core.flexible.segment import AnySegment, FlexibleSegment
from duramen.core.flexible.soundness import NodesetRule, count_places, find_lacks
from duramen.core.log_node import LogNode
from duramen.core.placement.rule import Candidate, Refusal
from duramen.core.segment import SegmentState
from duramen.ids import Member
from duramen.runtime.public.cluster_answers import (
    MisplacedCopyAnswer,
    NodesetAnswer,
    NodesetMemberAnswer,
    NodesetPlaceAnswer,
    ViolationAnswer,
)
from duramen.units import agree


def describe_nodeset(
    log: LogNode, newest: AnySegment | None, serving: Sequence[ServingBookie]
) -> NodesetAnswer:
    """The nodeset of the log's next epoch, or why there is none.

    Args:
        newest: the log's newest segment.
        serving: who may be in a nodeset.
    """
    rule = make_nodeset_rule(log.config)
    plan = plan_nodeset(log, serving)
    if isinstance(plan, Refusal):
        return _answer(rule, refusal=plan.detail)
    reopens: list[str] = []
    if isinstance(newest, FlexibleSegment) and newest.state is SegmentState.OPEN:
        reopens = [reason.detail for reason in plan.explain_reopening(newest)]
    nodes = plan.chosen.nodes
    return _answer(
        rule,
        nodes=[
            NodesetMemberAnswer(
                bookie=node.bookie, incarnation=node.incarnation, region=node.region,
                rack=node.rack, weight=node.weight, absent=node.is_absent,
            )
            for node in nodes
        ],
        waived=[waived.detail for waived in plan.chosen.waived],
        may_be_away=list(_list_spare(nodes, serving, rule)),
        places=_list_places(nodes, rule.wanted),
        reopens=reopens,
    )  # fmt: skip


def _answer(
    rule: NodesetRule,
    *,
    nodes: Sequence[NodesetMemberAnswer] = (),
    refusal: str | None = None,
    waived: Sequence[str] = (),
    may_be_away: Sequence[str] = (),
    places: Sequence[NodesetPlaceAnswer] = (),
    reopens: Sequence[str] = (),
) -> NodesetAnswer:
    wanted = rule.wanted
    return NodesetAnswer(
        node=wanted.node, rack=wanted.rack, region=wanted.region, extras=wanted.extras,
        tolerate=rule.tolerate, nodes=list(nodes), refusal=refusal, waived=list(waived),
        may_be_away=list(may_be_away), places=list(places), reopens=list(reopens),
    )  # fmt: skip


def _list_spare(
    nodes: Sequence[ServingBookie], everybody: Sequence[ServingBookie], rule: NodesetRule
) -> Iterator[str]:
    """What may be away at once: the rest can be appended to, and what is away recovered without."""
    broken = {lack.rule for lack in find_lacks(count_places(nodes), count_places(everybody), rule)}
    if rule.tolerate and not broken & {0, 1, 2}:
        yield agree(f"any {rule.tolerate} nodes")
    if _can_spare(_lose_each("rack", nodes, rule.wanted)):
        yield "any one rack"
    regions = {node.region for node in everybody if node.place != UNKNOWN}
    away_count = len(regions) - (rule.regions_that_must_suffice or len(regions))
    if away_count > 1 and 4 not in broken:
        yield f"any {away_count} regions"
    elif _can_spare(_lose_each("region", nodes, rule.wanted)):
        yield "any one region"


def _can_spare(places: Iterable[NodesetPlaceAnswer]) -> bool:
    return all(place.appendable and place.recoverable for place in places)


def _list_places(
    nodes: Sequence[PlacedBookie], wanted: ReplicationProperty
) -> list[NodesetPlaceAnswer]:
    regions = list(_lose_each("region", nodes, wanted))
    return [*_lose_each("rack", nodes, wanted), *(regions if len(regions) > 1 else ())]


def _lose_each(
    kind: Literal["rack", "region"], nodes: Sequence[PlacedBookie], wanted: ReplicationProperty
) -> Iterator[NodesetPlaceAnswer]:
    """What still works with one place away, for each; nobody else is taken for away (R26)."""
    places = [_name_place(kind, node) for node in nodes]
    for place in sorted(set(places)):
        away = [node for node, at in zip(nodes, places, strict=True) if at == place]
        rest = [node for node, at in zip(nodes, places, strict=True) if at != place]
        yield NodesetPlaceAnswer(
            kind=kind, place=place, nodes=len(away),
            appendable=wanted.is_satisfied_by(rest), recoverable=not wanted.is_satisfied_by(away),
        )  # fmt: skip


def _name_place(kind: Literal["rack", "region"], node: PlacedBookie) -> str:
    if kind == "region":
        return node.region
    return "" if node.place == UNKNOWN else f"{node.region}/{node.rack}"


def find_narrowness(
    segment: FlexibleSegment, locations: Mapping[Member, Candidate]
) -> list[ViolationAnswer]:
    """What the nodes of a segment lack to hold the copies of one entry, where they are today."""
    wanted = segment.replication
    places = {
        row.member: locations.get(row.member)
        or Candidate(row.member, row.node.region, row.node.rack)
        for row in segment.nodes
    }
    known = [place for place in places.values() if place.is_located]
    spans = (
        ("bookies", len({member.bookie for member in places}), wanted.node),
        ("racks", len({(place.region, place.rack) for place in known}), wanted.rack),
        ("regions", len({place.region for place in known}), wanted.region),
    )
    return [
        ViolationAnswer(
            epoch=segment.epoch,
            first_entry=0,
            kind=kind,
            found=found,
            limit=least,
            detail=agree(f"the segment spans {found} {kind}, and each entry wants {least}"),
            write_set=[
                MisplacedCopyAnswer(
                    bookie=member.bookie, incarnation=member.incarnation, region=place.region,
                    rack=place.rack, owed=False,
                )
                for member, place in places.items()
            ],
        )
        for kind, found, least in spans
        if found < least and (least > 1 or kind == "bookies")
    ]  # fmt: skip
