"""Search: fill places of an ensemble so that no write set breaks the rule; complete within a bound.

The ensemble is a ring of slots, some of them fixed, and the write sets are its windows. The search
fills one free slot after the other and always tries first the region and the rack that have the
fewest members. It drops a window as soon as its members break the rule, whatever would follow. It
tries alternatives that cannot make a difference once: bookies of one rack are alike, and so are
racks, and whole regions, that have equal room and hold nothing yet. If the search ends without an
ensemble and below the bound, there is none.

Pure and deterministic: the order of the bookies is the caller's. Called by `choice`.
Source: docs/protocol/placement.md "Choosing", R20.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from duramen.core.placement.room import Rack
from duramen.core.placement.rule import Candidate, PlacementRule, fullest
from duramen.core.quorum import Quorum
from duramen.ids import BookieId, Member

STEPS_MAX: Final = 40_000
"""Attempts to put a bookie somewhere: under a second, and above what any cluster of 9 bookies needs
(tests/unit/test_placement_force.py)."""


@dataclass(slots=True)
class Pool:
    """Bookies that are alike, the one to take first in front."""

    place: Rack
    rank: int
    bookies: list[Candidate]
    is_alone: bool = False
    """One bookie like no other: a former life of it is in the ensemble, and may have to stay."""

    taken: int = 0

    @property
    def left(self) -> int:
        """Bookies that are not taken yet."""
        return len(self.bookies) - self.taken


def windows_of(quorum: Quorum) -> list[tuple[int, ...]]:
    """The slots of each write set: one if Qw = E, otherwise E."""
    size = quorum.ensemble_size
    if quorum.write_quorum == size:
        return [tuple(range(size))]
    return [tuple((i + k) % size for k in range(quorum.write_quorum)) for i in range(size)]


class Ring:
    """Places of an ensemble's slots, and whether any write set has too much in one place."""

    def __init__(self, quorum: Quorum, rule: PlacementRule) -> None:
        self.in_region: Counter[str] = Counter()
        self.in_rack: Counter[Rack] = Counter()
        self.size = quorum.ensemble_size
        windows = windows_of(quorum)
        self._of_slot = [
            [at for at, window in enumerate(windows) if slot in window]
            for slot in range(quorum.ensemble_size)
        ]
        self._regions: list[Counter[Any]] = [Counter() for _ in windows]
        self._racks: list[Counter[Any]] = [Counter() for _ in windows]
        self._unknown = [0] * len(windows)
        self.reach = quorum.write_quorum - 1
        self._ack_quorum = quorum.ack_quorum
        self.rule = rule

    def put(self, slot: int, place: Rack | None) -> bool:
        """Put a member there, if no write set that it is in breaks the rule by that."""
        self._count(slot, place, 1)
        if all(self.holds(at) for at in self._of_slot[slot]):
            return True
        self._count(slot, place, -1)
        return False

    def take(self, slot: int, place: Rack | None) -> None:
        """Undo `put`."""
        self._count(slot, place, -1)

    def _count(self, slot: int, place: Rack | None, change: int) -> None:
        if place is not None:
            self.in_region[place.region] += change
            self.in_rack[place] += change
        for at in self._of_slot[slot]:
            if place is None:
                self._unknown[at] += change
            else:
                self._regions[at][place.region] += change
                self._racks[at][place] += change

    def holds(self, at: int) -> bool:
        """Whether a write set, as far as it is filled, keeps the rule."""
        rule, unknown = self.rule, self._unknown[at]
        return not (
            rule.min_regions > 1
            and fullest(self._regions[at].values(), rule.min_regions - 1) + unknown
            >= self._ack_quorum
        ) and not (
            rule.min_racks > 1
            and fullest(self._racks[at].values(), rule.min_racks - 1) + unknown >= self._ack_quorum
        )


@dataclass(frozen=True, slots=True)
class Free:
    """A slot to fill; `stays`: who is there and remains if nobody can take the place."""

    slot: int
    stays: Member | None = None
    place: Rack | None = None


@dataclass(slots=True)
class Search:
    """One search; `run` once.

    Args:
        is_whole: every slot must be filled; otherwise as many as can be.
    """

    ring: Ring
    pools: Sequence[Pool]
    free: Sequence[Free]
    rule: PlacementRule
    is_whole: bool
    steps_max: int = STEPS_MAX
    steps: int = 0
    best: dict[int, Candidate] | None = None
    _chosen: dict[int, Candidate] = field(default_factory=dict)
    _used: set[BookieId] = field(default_factory=set)
    """Bookies in slots that are dealt with: chosen, or a former life of them stays there."""

    _dead: set[object] = field(default_factory=set)
    _racks_of: dict[str, list[Pool]] = field(default_factory=dict)
    _known_racks: set[Rack] = field(default_factory=set)
    _known_regions: set[str] = field(default_factory=set)

    @property
    def is_exhausted(self) -> bool:
        """The bound was reached: nothing found proves nothing."""
        return self.steps >= self.steps_max

    def run(self) -> dict[int, Candidate]:
        """Slot → bookie, of those that can be filled; empty if none, or not all, can."""
        for pool in self.pools:
            self._racks_of.setdefault(pool.place.region, []).append(pool)
        # Where somebody may stay is like no other place, even while nothing lies there.
        self._known_racks = {free.place for free in self.free if free.place is not None}
        self._known_regions = {place.region for place in self._known_racks}
        self._descend(0)
        return self.best or {}

    def _descend(self, index: int) -> bool:
        """Fill from `index` on; True ends the search."""
        least = len(self.free) - 1 if self.is_whole else len(self.best or ())
        if len(self._chosen) + len(self.free) - index <= least:
            return False
        if index == len(self.free):
            self.best = dict(self._chosen)
            return len(self.best) == len(self.free)
        state = self._state(index) if self.is_whole else None
        if state in self._dead:
            return False
        if self._fill(self.free[index], index):
            return True
        if state is not None:
            self._dead.add(state)
        return False

    def _fill(self, free: Free, index: int) -> bool:
        for pool in self._options():
            if self.is_exhausted:
                return True
            self.steps += 1
            if self._try(pool, free, index):
                return True
        if free.stays is None or free.stays.bookie in self._used:
            return False
        if not self.ring.put(free.slot, free.place):
            return False
        self._used.add(free.stays.bookie)
        is_over = self._descend(index + 1)
        self._used.remove(free.stays.bookie)
        self.ring.take(free.slot, free.place)
        return is_over

    def _try(self, pool: Pool, free: Free, index: int) -> bool:
        bookie = pool.bookies[pool.taken]
        if bookie.member.bookie in self._used or not self.ring.put(free.slot, pool.place):
            return False
        pool.taken += 1
        self._chosen[free.slot] = bookie
        self._used.add(bookie.member.bookie)
        is_over = self._descend(index + 1)
        self._used.remove(bookie.member.bookie)
        del self._chosen[free.slot]
        pool.taken -= 1
        self.ring.take(free.slot, pool.place)
        return is_over

    def _options(self) -> Iterator[Pool]:
        """Pools that differ, in the order in which to try them."""
        ring = self.ring
        left = [pool for pool in self.pools if pool.left]
        left.sort(
            key=lambda p: (ring.in_region[p.place.region], ring.in_rack[p.place], p.rank + p.taken)
        )
        seen = set()
        for pool in left:
            sign = self._sign(pool)
            if sign not in seen:
                seen.add(sign)
                yield pool

    def _sign(self, pool: Pool) -> object:
        """Equal for two pools exactly if no choice from here on can tell them apart."""
        if pool.is_alone:
            return pool.bookies[0].member
        place = pool.place
        if not self.rule.is_demanding:
            return None
        rack: object = place
        if self.rule.min_racks == 1:
            rack = None
        elif not self.ring.in_rack[place] and place not in self._known_racks:
            rack = pool.left
        region: object = place.region
        if self.rule.min_regions == 1:
            return rack
        if not self.ring.in_region[place.region] and place.region not in self._known_regions:
            pools = self._racks_of[place.region]
            region = tuple(sorted((other.left, other.is_alone) for other in pools))
            region = (*region, *(p.bookies[0].member for p in pools if p.is_alone))
        return region, rack

    def _state(self, index: int) -> object:
        """Equal for two fillings of the slots before `index` if both can be completed, or none.

        Slots to come share write sets with the last Qw − 1 of those before and with the first.
        """
        reach = self.ring.reach
        seen: dict[Rack, list[int]] = {}
        for slot, candidate in self._chosen.items():
            if slot < reach or slot >= index - reach:
                place = Rack(candidate.region, candidate.rack)
                seen.setdefault(place, []).append(slot)
        regions: dict[str, list[tuple[int, tuple[int, ...]]]] = {}
        for pool in self.pools:
            region = pool.place.region if self.rule.min_regions > 1 else ""
            regions.setdefault(region, []).append((pool.left, tuple(seen.get(pool.place, ()))))
        if self.rule.min_racks > 1:
            return index, tuple(sorted(tuple(sorted(racks)) for racks in regions.values()))
        merged = [
            (sum(left for left, _ in racks), tuple(sorted(s for _, slots in racks for s in slots)))
            for racks in regions.values()
        ]
        return index, tuple(sorted(merged))
