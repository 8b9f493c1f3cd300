"""Which bookies an epoch may use, chosen by weight, and steady from one epoch to the next.

Weighted rendezvous: each bookie draws a number for the log, from their names alone, and those with
the least come first; the draw is exponential, so a bookie of twice the weight comes first twice as
often. Who comes or goes changes one member. Where the first ones are not sound (`soundness`), the
last of one rack makes way for the first of another, as long as that helps: first to what lacks,
then to evenness, from which it may help again.

Who is absent counts as any other: else each restart of a bookie would be another nodeset. It is one
of those that may be away. Where more are absent than may be, it is asked whether the others do.

Pure. Source: R23, R26, docs/protocol/flexible.md "Choosing the nodeset".
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from duramen.core.flexible.alternatives import list_alternatives
from duramen.core.flexible.property import UNKNOWN, PlacedBookie
from duramen.core.flexible.soundness import (
    GROWING_REASONS,
    Lack,
    NodesetRule,
    Spread,
    count_places,
    count_regions,
    find_lacks,
)
from duramen.core.placement.room import Rack
from duramen.core.placement.roster import BookieRow
from duramen.core.placement.rule import Refusal
from duramen.ids import Incarnation, LogId, Member, NodeNumber


@dataclass(frozen=True, slots=True)
class ServingBookie(PlacedBookie):
    """A bookie in service, or what a segment's node keeps of one."""

    incarnation: Incarnation
    weight: float = 1.0
    """The one that was set, > 0; never what its free space makes of it."""
    is_absent: bool = field(default=False, compare=False)
    """It is away now and may come back; it is the same bookie."""


@dataclass(frozen=True, slots=True)
class NodesetRow:
    """A node of a segment: its number in it, and where and with what weight it was taken in."""

    number: NodeNumber
    node: ServingBookie

    @property
    def member(self) -> Member:
        """The bookie in the life in which it has entries of the segment."""
        return Member(self.node.bookie, self.node.incarnation)

    @property
    def weight(self) -> float:
        """Its share of new data, > 0."""
        return self.node.weight

    @property
    def rack(self) -> Rack | None:
        """Where it is; None: it counts for no place."""
        return None if self.node.place == UNKNOWN else self.node.place


class ChosenNodeset(NamedTuple):
    """What was chosen."""

    nodes: tuple[ServingBookie, ...]
    """By name; their numbers are their places here."""
    waived: tuple[Refusal, ...]
    """What `prefer` took it in spite of; with `strict` nothing."""


def list_serving(
    rows: Iterable[BookieRow], lost: Collection[Member] = frozenset()
) -> list[ServingBookie]:
    """Who may be in a nodeset: registered, with a weight and no duty but to serve, in an open
    region, absent or not, full or not; and it must keep envelopes.

    Args:
        lost: incarnations that were accepted as lost.
    """
    return [
        ServingBookie(
            row.bookie, row.region, row.rack, row.incarnation, row.weight, row.state == "absent"
        )
        for row in rows
        if row.is_registered
        and row.keeps_envelopes
        and row.duty.takes_new_ledgers
        and row.weight > 0
        and not row.is_closed
        and Member(row.bookie, row.incarnation) not in lost
    ]


def choose_nodeset(
    bookies: Collection[ServingBookie], rule: NodesetRule, log_id: LogId
) -> ChosenNodeset | Refusal:
    """A sound nodeset, or why there is none; if the rule is not strict, one that satisfies the
    property, with what it lacks.

    Args:
        bookies: all in service, each once. Who creates a log calls nobody absent.
    """
    draws = _Draws.draw(bookies, log_id)
    spread = draws.settle(rule)
    nodes = draws.take(spread)
    lacks = [*find_lacks(spread, draws.everybody, rule), *_find_absence_lacks(nodes, rule)]
    numbers = _list_numbers(spread, rule)
    # That a recovery would wait is no reason to stop appends now.
    refused = [lack for lack in lacks if lack.reason != "absent_hold_all_copies"]
    if refused and (rule.is_strict or refused[0].rule == 0):
        # Who is absent comes back: other values would not be the answer.
        is_of_absence = refused[0].reason == "too_many_absent"
        return _refuse(refused[0], numbers, "" if is_of_absence else _format_values(draws, rule))
    # One of each kind is enough to tell, and there may be one for each rack and set of regions.
    told = {(lack.rule, lack.reason): lack for lack in reversed(lacks)}
    return ChosenNodeset(nodes, tuple(_refuse(told[kind], numbers) for kind in sorted(told)))


def explain_soundness(
    chosen: Collection[PlacedBookie], everybody: Collection[PlacedBookie], rule: NodesetRule
) -> Refusal | None:
    """Why these nodes are no sound nodeset out of all bookies, absent or not; None: they are."""
    spread = count_places(chosen)
    lack = next(find_lacks(spread, count_places(everybody), rule), None)
    return None if lack is None else _refuse(lack, _list_numbers(spread, rule))


def _find_absence_lacks(nodes: Sequence[ServingBookie], rule: NodesetRule) -> Iterator[Lack]:
    """What rules 1 and 2 want of those that are there, where more are absent than may be away."""
    absent = [node for node in nodes if node.is_absent]
    if len(absent) <= rule.tolerate:
        return
    there = [node for node in nodes if not node.is_absent]
    words = f"{len(absent)} of {len(nodes)} nodes are absent"
    amount = len(absent) - rule.tolerate
    if not rule.wanted.has_wave(count_places(there)):
        detail = f"{words}, and the others are too few for the copies of an entry"
        yield Lack(2, "too_many_absent", len(absent), rule.tolerate, amount, detail)
    if rule.wanted.is_satisfied_by(absent):
        detail = f"{words}, and these may hold all copies of an entry: a recovery would wait"
        yield Lack(1, "absent_hold_all_copies", len(absent), rule.tolerate, amount, detail)


# --- The draw ------------------------------------------------------------------------------------


def _draw(bookie: ServingBookie, log_id: LogId) -> float:
    digest = hashlib.blake2b(f"{log_id} {bookie.bookie}".encode(), digest_size=8).digest()
    ratio = (int.from_bytes(digest, "big") + 1) / (1 << 64)
    return -math.log(ratio) / bookie.weight


class _Score(NamedTuple):
    """What an exchange is to make less; the first that differs decides."""

    floor_lack: int
    """Of rule 0."""
    lack: int
    unevenness: int


@dataclass(frozen=True, slots=True)
class _Draws:
    """All bookies in the order of their draws, as a whole and by rack."""

    order: Sequence[ServingBookie]
    by_rack: Mapping[Rack, Sequence[tuple[int, ServingBookie]]]
    """With the place in the order."""
    everybody: Spread

    @classmethod
    def draw(cls, bookies: Collection[ServingBookie], log_id: LogId) -> _Draws:
        order = sorted(bookies, key=lambda bookie: (_draw(bookie, log_id), bookie.bookie))
        by_rack: dict[Rack, list[tuple[int, ServingBookie]]] = {}
        for at, bookie in enumerate(order):
            by_rack.setdefault(bookie.place, []).append((at, bookie))
        return cls(order, by_rack, count_places(order))

    def take(self, spread: Spread) -> tuple[ServingBookie, ...]:
        """So many of each rack, its first ones; by name."""
        nodes = [b for place, count in spread.items() for _, b in self.by_rack[place][:count]]
        return tuple(sorted(nodes, key=lambda node: node.bookie))

    def settle(self, rule: NodesetRule) -> Counter[Rack]:
        """How many of each rack: as the first ones lie, with as few exchanges as help."""
        spread = count_places(self.order[: rule.size_of(len(self.order))])
        score = self._score(spread, rule)
        while score.floor_lack or score.lack:
            best = min(
                (
                    (self._score(moved, rule), ranks, moved)
                    for ranks, moved in self._list_exchanges(spread)
                ),
                default=None,
                key=lambda option: option[:2],
            )
            if best is None or best[0] >= score:
                break
            score, _, spread = best
        return spread

    def _score(self, spread: Spread, rule: NodesetRule) -> _Score:
        lacks = [0, 0]
        for lack in find_lacks(spread, self.everybody, rule):
            lacks[lack.rule > 0] += lack.amount
        uneven = sum(n * n for n in spread.values())
        uneven += sum(n * n for n in count_regions(spread).values())
        return _Score(lacks[0], lacks[1], uneven)

    def _list_exchanges(
        self, spread: Counter[Rack]
    ) -> Iterator[tuple[tuple[int, int], Counter[Rack]]]:
        """The last of a region's fullest rack makes way for the first of a region's emptiest one.
        Of exchanges that are alike it is the one that takes in who is drawn first, for who is drawn
        last; with the places in the order, less is better."""
        regions = count_regions(spread)
        racks = Counter(place.region for place in spread)
        leaving: dict[str, tuple[int, int, Rack]] = {}
        joining: dict[str, tuple[int, int, Rack]] = {}
        for place, ranked in self.by_rack.items():
            count = spread[place]
            if count:
                option = (-count, -ranked[count - 1][0], place)
                leaving[place.region] = min(leaving.get(place.region, option), option)
            if count < len(ranked):
                option = (count, ranked[count][0], place)
                joining[place.region] = min(joining.get(place.region, option), option)

        def kind_of(place: Rack) -> tuple[bool, int, int, int]:
            region = place.region
            return place == UNKNOWN, spread[place], racks[region], regions[region]

        best: dict[object, tuple[tuple[int, int], Rack, Rack]] = {}
        for _, out_rank, leaves in leaving.values():
            for _, in_rank, joins in joining.values():
                kind = kind_of(leaves), kind_of(joins), leaves.region == joins.region
                exchange = (in_rank, out_rank), leaves, joins
                if leaves != joins:
                    best[kind] = min(best.get(kind, exchange), exchange)
        for ranks, leaves, joins in best.values():
            yield ranks, spread + Counter({joins: 1}) - Counter({leaves: 1})


# --- Words ---------------------------------------------------------------------------------------


def _list_numbers(spread: Spread, rule: NodesetRule) -> dict[str, int]:
    wanted = rule.wanted
    return {
        "node": wanted.node, "rack": wanted.rack, "region": wanted.region,
        "extras": wanted.extras, "tolerate": rule.tolerate, "bookies": sum(spread.values()),
        "racks": sum(place != UNKNOWN for place in spread),
        "regions": len({place.region for place in spread if place != UNKNOWN}),
        "unlocated": spread.get(UNKNOWN, 0),
    }  # fmt: skip


def _refuse(lack: Lack, numbers: Mapping[str, int], advice: str = "") -> Refusal:
    found = {"rule": lack.rule, "found": lack.found, "wanted": lack.wanted}
    return Refusal(lack.reason, {**numbers, **found}, lack.detail + advice)


def _format_values(draws: _Draws, rule: NodesetRule) -> str:
    """The values with which these bookies would do."""
    everybody = draws.everybody

    def works(other: NodesetRule) -> bool:
        if any(lack.reason in GROWING_REASONS for lack in find_lacks(everybody, everybody, other)):
            # Where all together do not do, no nodeset does.
            return False
        return next(find_lacks(draws.settle(other), everybody, other), None) is None

    region_count = len({place.region for place in everybody if place != UNKNOWN})
    ways = list_alternatives(rule, len(draws.order), region_count, works)
    return f": {' or '.join(ways)} would work" if ways else ""
