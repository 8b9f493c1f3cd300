"""Placement, first form: where an ensemble may lie, and a choice that satisfies it.

The rule (R20) is about ack sets: no Qa members of any write set may lie in fewer than `min_racks`
racks nor in fewer than `min_regions` regions. Equivalent, and checked here: in every write set the
(min − 1) fullest racks (regions) together hold fewer than Qa members. Choosing is greedy with
injected randomness and bounded tries; weights and nodesets come with the cluster's life.

Pure. Called by the log sequencer, the ledger writer and recovery. Source: 01-protocol section 7.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from duramen.core.quorum import Quorum, write_sets
from duramen.ids import Member

_TRIES: Final = 32
"""Random orders tried before giving up: a rule that holds at all is met in the first few."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A bookie that may take new data, and where it is."""

    member: Member
    region: str
    rack: str


@dataclass(frozen=True, slots=True)
class PlacementRule:
    """What R20 demands; 1 switches a check off. Strict refuses rather than degrades."""

    min_racks: int = 1
    min_regions: int = 1
    is_strict: bool = True


def satisfies(
    ensemble: tuple[Member, ...],
    quorum: Quorum,
    rule: PlacementRule,
    locations: Mapping[Member, Candidate],
) -> bool:
    """Whether every ack set of every write set spans enough racks and regions (R20).

    A member of unknown location counts as lying where every other unknown one does.
    """
    for members in write_sets(ensemble, quorum):
        places = [locations.get(member) for member in members]
        regions = Counter("" if place is None else place.region for place in places)
        racks = Counter(
            ("", "") if place is None else (place.region, place.rack) for place in places
        )
        if _fullest(regions, rule.min_regions - 1) >= quorum.ack_quorum:
            return False
        if _fullest(racks, rule.min_racks - 1) >= quorum.ack_quorum:
            return False
    return True


def choose_ensemble(
    candidates: Sequence[Candidate], quorum: Quorum, rule: PlacementRule, rng: random.Random
) -> tuple[Member, ...] | None:
    """An ensemble of E members that satisfies the rule, or None.

    With `prefer` an ensemble that does not satisfy it is given when no other is found.
    """
    spread: tuple[Member, ...] | None = None
    locations = {candidate.member: candidate for candidate in candidates}
    for _ in range(_TRIES):
        chosen = _spread(_shuffled(candidates, rng), quorum.ensemble_size)
        if chosen is None:
            return None
        spread = chosen
        if satisfies(chosen, quorum, rule, locations):
            return chosen
    return None if rule.is_strict else spread


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

    Args:
        locations: of every member known, also of those that are no candidates now.
    """
    free = [c for c in _shuffled(candidates, rng) if c.member not in ensemble]
    known = {**locations, **{candidate.member: candidate for candidate in candidates}}
    changed = list(ensemble)
    for index, member in enumerate(ensemble):
        if member not in failed:
            continue
        for candidate in free:
            # A replaced disk is a different node (R1): it may follow its own bookie's old one.
            others = {other.bookie for at, other in enumerate(changed) if at != index}
            if candidate.member.bookie in others:
                continue
            trial = (*changed[:index], candidate.member, *changed[index + 1 :])
            if not rule.is_strict or satisfies(trial, quorum, rule, known):
                changed[index] = candidate.member
                free.remove(candidate)
                break
    return tuple(changed) if tuple(changed) != ensemble else None


def _spread(order: Sequence[Candidate], size: int) -> tuple[Member, ...] | None:
    """Take `size` distinct bookies, always from the region and rack that has the fewest so far."""
    regions: Counter[str] = Counter()
    racks: Counter[tuple[str, str]] = Counter()
    chosen: list[Member] = []
    left = list(order)
    while left and len(chosen) < size:
        best = min(left, key=lambda c: (regions[c.region], racks[c.region, c.rack]))
        left = [c for c in left if c.member.bookie != best.member.bookie]
        regions[best.region] += 1
        racks[best.region, best.rack] += 1
        chosen.append(best.member)
    return tuple(chosen) if len(chosen) == size else None


def _shuffled(candidates: Sequence[Candidate], rng: random.Random) -> list[Candidate]:
    order = sorted(candidates, key=lambda candidate: candidate.member)
    rng.shuffle(order)
    return order


def _fullest(counts: Counter[str] | Counter[tuple[str, str]], number: int) -> int:
    return sum(count for _, count in counts.most_common(number))
