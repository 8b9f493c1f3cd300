"""Choosing: an ensemble or replacements that satisfy the rule, or why there is none.

The choice is even first: the next member comes from the region, then from the rack, that has the
fewest of the ensemble. Among equals the weight decides, by chance: of two bookies one is drawn
before the other with the odds of their weights. Bookies that came back lately are left out where
the others make an ensemble that satisfies the rule. Where they are needed they come last; they are
never a reason to refuse. A refusal of a strict rule means that no ensemble satisfies it, unless
`search_bound` says that the search was given up. `prefer` then takes an ensemble that breaks it.

Pure: randomness is injected. Called by the log sequencer, the ledger writer, recovery and repair.
Source: docs/protocol/placement.md "Choosing", R20.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from duramen.core.placement.room import Rack, limits_of, measure_room
from duramen.core.placement.rule import Candidate, PlacementRule, Refusal
from duramen.core.placement.search import STEPS_MAX, Free, Pool, Ring, Search
from duramen.core.quorum import Quorum
from duramen.ids import BookieId, Member

_ANYWHERE: Final = PlacementRule(is_strict=False)


def choose_ensemble(
    candidates: Sequence[Candidate], quorum: Quorum, rule: PlacementRule, rng: random.Random
) -> tuple[Member, ...] | None:
    """An ensemble of E members that satisfies the rule, or None; `explain_refusal` says why.

    With `prefer` an ensemble that does not satisfy it is given when no other is found.
    """
    order = _draw_order(candidates, rng)
    usable = _usable(order, rule)
    steady = [candidate for candidate in usable if candidate.is_steady]
    found = _find(steady, quorum, rule)[0]
    if found is None and len(steady) < len(usable):
        found = _find(usable, quorum, rule)[0]
    if found is None and not rule.is_strict:
        found = _find(order, quorum, _ANYWHERE)[0]
    return found


def explain_refusal(
    candidates: Sequence[Candidate],
    quorum: Quorum,
    rule: PlacementRule,
    *,
    steps_max: int = STEPS_MAX,
) -> Refusal | None:
    """Why `choose_ensemble` gives nothing, with the numbers; None if it gives something."""
    order = sorted(candidates, key=lambda candidate: candidate.member)
    usable = _usable(order, rule)
    size = quorum.ensemble_size
    numbers = {
        "ensemble_size": size, "write_quorum": quorum.write_quorum,
        "ack_quorum": quorum.ack_quorum, "min_racks": rule.min_racks,
        "min_regions": rule.min_regions, "bookies": len({c.member.bookie for c in usable}),
        "racks": len({(c.region, c.rack) for c in usable}),
        "regions": len({c.region for c in usable}),
        "unlocated": len(order) - len(usable),
    }  # fmt: skip
    if numbers["bookies"] < size:
        ignored = numbers["unlocated"]
        rest = f" ({ignored} of unknown location do not count)" if ignored else ""
        there = f"{numbers['bookies']} are available{rest}"
        return Refusal("too_few_bookies", numbers, f"an ensemble has {size} bookies, and {there}")
    if not rule.is_strict:
        return None
    found, is_proved = _find(usable, quorum, rule, steps_max)
    if found is not None:
        return None
    for kind, narrow in (
        ("regions", PlacementRule(1, rule.min_regions)),
        ("racks", PlacementRule(rule.min_racks, 1)),
        ("racks", rule),
    ):
        room = measure_room(_capacity(usable), size, *limits_of(quorum, narrow)).members
        if room < size:
            return Refusal(
                f"too_few_{kind}", {**numbers, "room": room},
                _format_room(usable, kind, room, quorum, rule),
            )  # fmt: skip
    if is_proved:
        detail = (
            f"no order of {size} bookies in {numbers['racks']} racks of {numbers['regions']} "
            f"regions gives every write set of {quorum.write_quorum} its places "
            f"(min_racks {rule.min_racks}, min_regions {rule.min_regions})"
        )
        return Refusal("no_order", numbers, detail)
    detail = f"no ensemble of {size} was found, and the search was given up: it proves nothing"
    return Refusal("search_bound", numbers, detail)


def choose_replacements(  # noqa: PLR0917 - plain inputs of a pure choice
    ensemble: tuple[Member, ...],
    failed: Collection[Member],
    candidates: Sequence[Candidate],
    quorum: Quorum,
    rule: PlacementRule,
    locations: Mapping[Member, Candidate],
    rng: random.Random,
) -> tuple[Member, ...] | None:
    """The ensemble with as many failed members replaced in place as can be, or None if none can.

    A failed member that stays will be caught up one day, so it binds those that are chosen.

    Args:
        locations: of every member known, also of those that are no candidates now.
    """
    order = _draw_order(candidates, rng)
    known = {**locations, **{candidate.member: candidate for candidate in order}}
    usable = _usable(order, rule)
    steady = [candidate for candidate in usable if candidate.is_steady]
    wanted_count = sum(member in failed for member in ensemble)
    chosen = _find_replacements(ensemble, failed, steady, quorum, rule, known)
    if len(chosen) < wanted_count and len(steady) < len(usable):
        wider = _find_replacements(ensemble, failed, usable, quorum, rule, known)
        chosen = max(chosen, wider, key=len)
    if not rule.is_strict and len(chosen) < wanted_count:
        chosen = _find_replacements(ensemble, failed, order, quorum, _ANYWHERE, known)
    changed = [chosen[at].member if at in chosen else member for at, member in enumerate(ensemble)]
    return tuple(changed) if chosen else None


def _find(
    usable: Sequence[Candidate],
    quorum: Quorum,
    rule: PlacementRule,
    steps_max: int = STEPS_MAX,
) -> tuple[tuple[Member, ...] | None, bool]:
    """An ensemble, or None and whether that is proved."""
    size = quorum.ensemble_size
    free = [Free(slot) for slot in range(size)]
    # An even spread satisfies nearly every rule that can be: the first way down is a straight one.
    search = Search(
        Ring(quorum, rule), _pools(usable), free, rule, is_whole=True, steps_max=2 * size
    )
    found = search.run()
    if not found:
        room = measure_room(_capacity(usable), size, *limits_of(quorum, rule))
        if room.members < size:
            return None, True
        if quorum.write_quorum == size:
            # The order means nothing: the counts are the ensemble.
            usable = _first_of(usable, room.counts)
        search = Search(
            Ring(quorum, rule), _pools(usable), free, rule, is_whole=True, steps_max=steps_max
        )
        found = search.run()
    if not found:
        return None, not search.is_exhausted
    return tuple(found[slot].member for slot in range(size)), True


def _find_replacements(  # noqa: PLR0917 - as `choose_replacements`
    ensemble: tuple[Member, ...],
    failed: Collection[Member],
    usable: Sequence[Candidate],
    quorum: Quorum,
    rule: PlacementRule,
    known: Mapping[Member, Candidate],
) -> dict[int, Candidate]:
    stay = {member.bookie for member in ensemble if member not in failed}
    former = {member.bookie for member in ensemble if member in failed}
    ring = Ring(quorum, rule)
    free = []
    is_sound = True
    for slot, member in enumerate(ensemble):
        place = _place_of(known.get(member))
        if member in failed:
            free.append(Free(slot, member, place))
        else:
            is_sound &= ring.put(slot, place)
    if not is_sound:
        # What stays breaks the rule by itself: nothing that is added can mend it.
        return {}
    pools = _pools(
        [c for c in usable if c.member not in ensemble and c.member.bookie not in stay], former
    )
    return Search(ring, pools, free, rule, is_whole=False).run()


def _usable(order: Sequence[Candidate], rule: PlacementRule) -> list[Candidate]:
    """Those that a rule about places may count on."""
    return [c for c in order if c.is_located or not rule.is_demanding]


def _draw_order(candidates: Sequence[Candidate], rng: random.Random) -> list[Candidate]:
    """By chance, the heavy ones rather before the light ones, steady ones before the others; one
    life of each bookie."""
    order = sorted(candidates, key=lambda candidate: candidate.member)
    rng.shuffle(order)
    if len({candidate.weight for candidate in order}) > 1:
        # An exponential variate of rate w is below one of rate v with odds w : v.
        order.sort(key=lambda candidate: -math.log(1.0 - rng.random()) / candidate.weight)
    order.sort(key=lambda candidate: not candidate.is_steady)
    lives: dict[BookieId, Candidate] = {}
    for candidate in order:
        lives.setdefault(candidate.member.bookie, candidate)
    return list(lives.values())


def _pools(order: Sequence[Candidate], former: Collection[BookieId] = ()) -> list[Pool]:
    pools: dict[object, Pool] = {}
    for rank, candidate in enumerate(order):
        place = Rack(candidate.region, candidate.rack)
        is_alone = candidate.member.bookie in former
        pool = pools.setdefault(
            candidate.member if is_alone else place, Pool(place, rank, [], is_alone)
        )
        pool.bookies.append(candidate)
    return list(pools.values())


def _capacity(usable: Sequence[Candidate]) -> Counter[Rack]:
    return Counter(Rack(candidate.region, candidate.rack) for candidate in usable)


def _first_of(usable: Sequence[Candidate], counts: Mapping[Rack, int]) -> list[Candidate]:
    """So many of each place, those in front."""
    left = dict(counts)
    kept = []
    for candidate in usable:
        place = Rack(candidate.region, candidate.rack)
        if left.get(place, 0):
            left[place] -= 1
            kept.append(candidate)
    return kept


def _place_of(candidate: Candidate | None) -> Rack | None:
    if candidate is None or not candidate.is_located:
        return None
    return Rack(candidate.region, candidate.rack)


def _format_room(
    usable: Sequence[Candidate], kind: str, room: int, quorum: Quorum, rule: PlacementRule
) -> str:
    least = rule.min_regions if kind == "regions" else rule.min_racks
    counts = Counter(c.region if kind == "regions" else f"{c.region}/{c.rack}" for c in usable)
    shown = ", ".join(f"{name}: {count}" for name, count in sorted(counts.items())[:9])
    more = ", …" if len(counts) > 9 else ""
    where = f"one {kind[:-1]}" if least == 2 else f"{least - 1} {kind} together"
    return (
        f"write quorum {quorum.write_quorum}, ack quorum {quorum.ack_quorum}, min_{kind} {least}: "
        f"{where} may hold {quorum.ack_quorum - 1} of a write set at most, "
        f"so that {room} of {quorum.ensemble_size} members have room in {len(counts)} {kind} "
        f"({shown}{more})"
    )
