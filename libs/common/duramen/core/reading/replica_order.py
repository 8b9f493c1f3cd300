"""In which order the replicas of an entry are asked: live ones first, the nearest of them first.

A replica of the own rack comes first, then one of another rack of the region, then one of each
region in turn: replicas that fail together are not asked one after the other. Among equals those
come first that answer in less than twice the time of the fastest. The first of them is the one that
a reader keeps; the others are shuffled, which spreads readers over replicas. A replica that takes
`MUCH_SLOWER` times as long as the next comes behind it. Measurements are forgotten after a while.

A bookie that failed a moment ago, that is absent from the roster or whose place nobody knows goes
to the end and stays in the order as the last resort. Pure. One instance serves all readers of a
process: one reader's failure spares the others the wait, and all teach the delay of `speculation`.
Called by the reader core and its driver. Source: docs/protocol/reading.md "Which replica".
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from random import Random
from typing import Final, NamedTuple

from duramen.core.reading.speculation import Speculation
from duramen.ids import BookieId, Member
from duramen.units import MS, SECOND

FAILURE_MEMORY_US: Final = 30 * SECOND
"""How long a failed bookie is asked last: a frozen one costs a whole time-out each time it is
tried, and being spared costs a healthy one nothing."""


SILENCE_MEMORY_US: Final = 5 * SECOND
"""How long a bookie is asked last that was silent where another one had news. One that is alive may
have had them a moment later: that costs it little."""

LATENCY_MEMORY_US: Final = 15 * SECOND
"""A latency older than this says nothing: its bookie is taken for as fast as the fastest."""

_LATENCY_SHARE: Final = 1 / 8
"""Of the newest answer in the average: eight answers replace most of it."""

_LATENCY_MIN_US: Final = 500
"""Differences below are noise of the network's and ours."""

MUCH_SLOWER: Final = 4
"""So many times slower than the next one, a bookie loses its place to it."""

_OWN_RACK: Final = 0
_OWN_REGION: Final = 1
_ELSEWHERE: Final = 2
_NOWHERE: Final = 3

OVERLOAD_MEMORY_US: Final = 250 * MS
"""How long an overloaded bookie is asked last: it is alive, and its queue is another one by then.
The others have the same load."""


class Place(NamedTuple):
    """Where a bookie or a reader is."""

    region: str
    rack: str


class _Latency(NamedTuple):
    mean_us: float
    until_us: int


class ReplicaOrder:
    """Ranks members by what is known of their bookies."""

    def __init__(self, here: Place, rng: Random) -> None:
        self._here = here
        self._rng = rng
        self._places: Mapping[BookieId, Place] = {}
        self._last_until_us: dict[Member, int] = {}
        self._latencies: dict[BookieId, _Latency] = {}
        self.speculation = Speculation()

    def on_places(self, places: Mapping[BookieId, Place]) -> None:
        """The bookies that are there now, with their places."""
        self._places = dict(places)
        self._latencies = {b: known for b, known in self._latencies.items() if b in places}

    def on_failure(self, member: Member, now_us: int) -> None:
        """A request to the member failed: it is asked last for `FAILURE_MEMORY_US`."""
        self._ask_last(member, now_us + FAILURE_MEMORY_US)

    def on_overload(self, member: Member, now_us: int) -> None:
        """The member has no room for a request: it is asked last for `OVERLOAD_MEMORY_US`."""
        self._ask_last(member, now_us + OVERLOAD_MEMORY_US)

    def on_silence(self, member: Member, now_us: int) -> None:
        """The member was polled for a while, and another one has brought what there is: it is asked
        last for `SILENCE_MEMORY_US`."""
        self._ask_last(member, now_us + SILENCE_MEMORY_US)

    def on_success(self, member: Member) -> None:
        """A request to the member succeeded."""
        self._last_until_us.pop(member, None)

    def on_latency(self, member: Member, latency_us: int, now_us: int) -> None:
        """The member answered a read that did not wait for anything."""
        known = self._latencies.get(member.bookie)
        mean_us = float(latency_us)
        if known is not None and now_us < known.until_us:
            mean_us = known.mean_us + _LATENCY_SHARE * (latency_us - known.mean_us)
        self._latencies[member.bookie] = _Latency(mean_us, now_us + LATENCY_MEMORY_US)

    def on_late(self, member: Member, waited_us: int, now_us: int) -> None:
        """Another one answered what the member has not for so long.

        Where that is longer than answers take, it is that slow at least.
        """
        known_us = self._mean_us(member, now_us) or 0.0
        if waited_us >= self.speculation.delay_us(1) and waited_us > known_us:
            self._latencies[member.bookie] = _Latency(float(waited_us), now_us + LATENCY_MEMORY_US)

    def rank(
        self, members: Iterable[Member], now_us: int, kept: Member | None = None
    ) -> list[Member]:
        """The members in the order in which to ask them.

        Args:
            kept: comes before its equals.
        """
        draws = {member: -1.0 if member == kept else self._rng.random() for member in members}
        means = {member: self._mean_us(member, now_us) for member in draws}
        failed = {member for member in draws if now_us < self._last_until_us.get(member, 0)}
        return [
            *self._rank_alike([member for member in draws if member not in failed], draws, means),
            *self._rank_alike(list(failed), draws, means),
        ]

    def _rank_alike(
        self,
        members: list[Member],
        draws: Mapping[Member, float],
        means: Mapping[Member, float | None],
    ) -> list[Member]:
        """By nearness, then slow ones behind faster ones."""
        if len(members) < 2:
            return members
        equals: dict[tuple[int, str], list[Member]] = {}
        for member in members:
            equals.setdefault(self._nearness(member), []).append(member)
        regions: dict[str, list[Member]] = {}
        nowhere: list[Member] = []
        for (nearness, region), alike in sorted(
            equals.items(), key=lambda item: (item[0][0], min(draws[m] for m in item[1]))
        ):
            known_us = [mean for m in alike if (mean := means[m]) is not None]
            fastest_us = min(known_us, default=0.0)
            alike.sort(key=lambda m: (_slowness(means[m], fastest_us), draws[m]))
            if nearness == _NOWHERE:
                nowhere += alike
            else:
                regions.setdefault(region, []).extend(alike)
        order = [*self._take_in_turn(regions), *nowhere]
        for _ in order:
            for at in range(len(order) - 1):
                near, far = order[at], order[at + 1]
                if _is_much_slower(means[near], means[far]):
                    order[at : at + 2] = far, near
        return order

    def _take_in_turn(self, regions: Mapping[str, list[Member]]) -> Iterator[Member]:
        """The nearest, one of another rack nearby, then one of each region in turn: what fails
        together is not asked one after the other.

        Args:
            regions: the nearest one first, and in it the own rack.
        """
        left = [deque(self._take_racks_in_turn(members)) for members in regions.values()]
        if left and next(iter(regions)) == self._here.region:
            near = left.pop(0)
            first = near.popleft()
            yield first
            if near and self._rack(near[0]) != self._rack(first):
                yield near.popleft()
            left.append(near)
        while any(left):
            for members in left:
                if members:
                    yield members.popleft()

    def _take_racks_in_turn(self, members: list[Member]) -> Iterator[Member]:
        racks: dict[str, deque[Member]] = {}
        for member in members:
            racks.setdefault(self._rack(member), deque()).append(member)
        while any(racks.values()):
            for rack in racks.values():
                if rack:
                    yield rack.popleft()

    def _mean_us(self, member: Member, now_us: int) -> float | None:
        known = self._latencies.get(member.bookie)
        return known.mean_us if known is not None and now_us < known.until_us else None

    def _ask_last(self, member: Member, until_us: int) -> None:
        self._last_until_us[member] = max(until_us, self._last_until_us.get(member, 0))

    def _rack(self, member: Member) -> str:
        return self._places[member.bookie].rack

    def _nearness(self, member: Member) -> tuple[int, str]:
        """How near its place is, and the region; equal for equals."""
        place = self._places.get(member.bookie)
        if place is None:
            return _NOWHERE, ""
        if place == self._here:
            return _OWN_RACK, place.region
        return _OWN_REGION if place.region == self._here.region else _ELSEWHERE, place.region


def _is_much_slower(mean_us: float | None, other_us: float | None) -> bool:
    """Whether both are known, and nearness does not make up for the difference."""
    if mean_us is None or other_us is None:
        return False
    return mean_us >= MUCH_SLOWER * max(other_us, _LATENCY_MIN_US)


def _slowness(mean_us: float | None, fastest_us: float) -> int:
    """How often it is twice as slow as the fastest; 0 where nothing is known."""
    if mean_us is None:
        return 0
    ratio = max(mean_us, _LATENCY_MIN_US) / max(fastest_us, _LATENCY_MIN_US)
    return int(math.log2(ratio))
