"""In which order the replicas of an entry are asked: live ones first, the nearest of them first.

Near means same rack, then same region, then anywhere. Among equals those come first whose answers
took less than twice as long as the fastest one's, shuffled with the injected randomness, so that
readers spread over replicas; then those up to four times, and so on. What was measured is forgotten
after a while, so that a bookie that was slow gets another chance.

A bookie that failed a moment ago, that is absent from the roster or whose place nobody knows goes
to the end, never out: it is the last resort. One that is overloaded is spared for a moment only: it
is alive, and the others have the same load.

Pure. One instance serves all readers of a process, so that one reader's failure spares the others
the wait, and the delay of `speculation` is learnt from all of them. Called by the reader core and
its driver. Source: 01-protocol section 8.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from random import Random
from typing import Final, NamedTuple

from duramen.core.reading.speculation import Speculation
from duramen.ids import BookieId, Member
from duramen.units import MS, SECOND

FAILURE_MEMORY_US: Final = 30 * SECOND
"""How long a failed bookie is asked last: a frozen one costs a whole time-out each time it is
tried, and being spared costs a healthy one nothing."""


LATENCY_MEMORY_US: Final = 15 * SECOND
"""A latency older than this says nothing: its bookie is taken for as fast as the fastest."""

_LATENCY_SHARE: Final = 1 / 8
"""Of the newest answer in the average: eight answers replace most of it."""

_LATENCY_MIN_US: Final = 500
"""Differences below are noise of the network's and ours."""

OVERLOAD_MEMORY_US: Final = 250 * MS
"""How long an overloaded bookie is asked last: its queue is another one by then."""


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

    def rank(self, members: Iterable[Member], now_us: int) -> list[Member]:
        """The members in the order in which to ask them."""
        far = {member: self._distance(member) for member in members}
        means = {member: self._mean_us(member, now_us) for member in far}
        fastest: dict[int, float] = {}
        for member, distance in far.items():
            fastest[distance] = min(means[member] or math.inf, fastest.get(distance, math.inf))
        keyed = [
            (
                now_us < self._last_until_us.get(member, 0),
                distance,
                _slowness(means[member], fastest[distance]),
                self._rng.random(),
                member,
            )
            for member, distance in far.items()
        ]
        return [member for _, _, _, _, member in sorted(keyed)]

    def _mean_us(self, member: Member, now_us: int) -> float | None:
        known = self._latencies.get(member.bookie)
        return known.mean_us if known is not None and now_us < known.until_us else None

    def _ask_last(self, member: Member, until_us: int) -> None:
        self._last_until_us[member] = max(until_us, self._last_until_us.get(member, 0))

    def _distance(self, member: Member) -> int:
        place = self._places.get(member.bookie)
        if place is None:
            return 3
        if place == self._here:
            return 0
        return 1 if place.region == self._here.region else 2


def _slowness(mean_us: float | None, fastest_us: float) -> int:
    """How often it is twice as slow as the fastest; 0 where nothing is known."""
    if mean_us is None:
        return 0
    ratio = max(mean_us, _LATENCY_MIN_US) / max(fastest_us, _LATENCY_MIN_US)
    return int(math.log2(ratio))
