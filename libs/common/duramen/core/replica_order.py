"""In which order the replicas of an entry are asked: live ones first, the nearest of them first.

Near means same rack, then same region, then anywhere. Equals are shuffled with the injected
randomness, so that readers spread over replicas. A bookie that failed a moment ago, that is absent
from the roster or whose place nobody knows goes to the end, never out: it is the last resort. One
that is overloaded is spared for a moment only: it is alive, and the others have the same load.

Pure. One instance serves all readers of a process, so that one reader's failure spares the others
the wait, and the delay of `speculation` is learnt from all of them. Called by the reader core and
its driver. Source: 01-protocol section 8.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from random import Random
from typing import Final, NamedTuple

from duramen.core.speculation import Speculation
from duramen.ids import BookieId, Member
from duramen.units import MS, SECOND

FAILURE_MEMORY_US: Final = 30 * SECOND
"""How long a failed bookie is asked last: a frozen one costs a whole time-out each time it is
tried, and being spared costs a healthy one nothing."""


OVERLOAD_MEMORY_US: Final = 250 * MS
"""How long an overloaded bookie is asked last: its queue is another one by then."""


class Place(NamedTuple):
    """Where a bookie or a reader is."""

    region: str
    rack: str


class ReplicaOrder:
    """Ranks members by what is known of their bookies."""

    def __init__(self, here: Place, rng: Random) -> None:
        self._here = here
        self._rng = rng
        self._places: Mapping[BookieId, Place] = {}
        self._last_until_us: dict[Member, int] = {}
        self.speculation = Speculation()

    def on_places(self, places: Mapping[BookieId, Place]) -> None:
        """The bookies that are there now, with their places."""
        self._places = dict(places)

    def on_failure(self, member: Member, now_us: int) -> None:
        """A request to the member failed: it is asked last for `FAILURE_MEMORY_US`."""
        self._ask_last(member, now_us + FAILURE_MEMORY_US)

    def on_overload(self, member: Member, now_us: int) -> None:
        """The member has no room for a request: it is asked last for `OVERLOAD_MEMORY_US`."""
        self._ask_last(member, now_us + OVERLOAD_MEMORY_US)

    def on_success(self, member: Member) -> None:
        """A request to the member succeeded."""
        self._last_until_us.pop(member, None)

    def rank(self, members: Iterable[Member], now_us: int) -> list[Member]:
        """The members in the order in which to ask them."""
        keyed = [
            (
                now_us < self._last_until_us.get(member, 0),
                self._distance(member),
                self._rng.random(),
                member,
            )
            for member in members
        ]
        return [member for _, _, _, member in sorted(keyed)]

    def _ask_last(self, member: Member, until_us: int) -> None:
        self._last_until_us[member] = max(until_us, self._last_until_us.get(member, 0))

    def _distance(self, member: Member) -> int:
        place = self._places.get(member.bookie)
        if place is None:
            return 3
        if place == self._here:
            return 0
        return 1 if place.region == self._here.region else 2
