"""How many bookies each failure domain gets: evenly, and never fewer than there are.

What exists counts first: bookies hold data, and none is taken away or moved here. So more bookies
go where fewest are, and a wish for fewer changes nothing. Called by `bookies`. Pure.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from duramen_operator.names import BOOKIE_SET_LABEL, REGION_LABEL, ZONE_LABEL, name_bookies
from duramen_operator.plan.observed import KubeObject, Observed
from duramen_operator.resources.clusters import Domain

_LEDGERS = "ledgers"


@dataclass(frozen=True, slots=True)
class DomainShare:
    """The bookies of one set in one failure domain: one StatefulSet."""

    name: str
    region: str
    zone: str
    count: int
    is_declared: bool = True
    """Whether the cluster's domains still name it; what is not named stays, and gets no more."""

    @property
    def bookies(self) -> tuple[str, ...]:
        """The names of its pods, which are the ids of its bookies."""
        return tuple(f"{self.name}-{index}" for index in range(self.count))

    @property
    def place(self) -> str:
        """For people."""
        return f"{self.region}/{self.zone}" if self.zone else "this zone"


def share_out(
    observed: Observed, bookie_set: KubeObject, domains: Sequence[Domain], replicas: int
) -> tuple[DomainShare, ...]:
    """The shares of a set, declared ones in the order of the domains, then those that only stay."""
    places = [(domain.region, domain.zone) for domain in domains] or [("", "")]
    names = [name_bookies(bookie_set.name, *place) for place in places]
    kept = [
        DomainShare(name, *place, count_known(observed, bookie_set, name), is_declared=False)
        for name, place in sorted(_find_places(observed, bookie_set).items())
        if name not in names
    ]
    known = [count_known(observed, bookie_set, name) for name in names]
    counts = add_evenly(known, replicas - sum(share.count for share in kept))
    shares = [
        DomainShare(name, *place, count)
        for name, place, count in zip(names, places, counts, strict=True)
    ]
    return (*shares, *kept)


def add_evenly(there: Sequence[int], wanted: int) -> list[int]:
    """Add one by one where fewest are, the first of equals, until there are as many as wanted."""
    counts = list(there)
    while sum(counts) < wanted:
        counts[counts.index(min(counts))] += 1
    return counts


def count_known(observed: Observed, bookie_set: KubeObject, name: str) -> int:
    """How many bookies of a StatefulSet there are or were: by their objects, and by their disks.

    Not by the StatefulSet, where anybody may write a number: no bookie is there before its disk is.
    Disks count because data lies on them: a set that is made again after an uninstall, or a
    StatefulSet that somebody deleted, comes back with all its bookies.
    """
    own = (item for item in observed.list("Bookie") if bookie_set.uid in item.owner_uids)
    bookies = _count_ordinals(name, (item.name for item in own))
    claims = observed.list("PersistentVolumeClaim")
    disks = _count_ordinals(f"{_LEDGERS}-{name}", (claim.name for claim in claims))
    return max(bookies, disks)


def find_same_names(bookie_set: str, domains: Iterable[Domain]) -> tuple[str, ...]:
    """Names that two domains would share ("a-b/c" and "a/b-c"): their bookies would be one set."""
    names = [name_bookies(bookie_set, domain.region, domain.zone) for domain in domains]
    return tuple(sorted({name for name in names if names.count(name) > 1}))


def _find_places(observed: Observed, bookie_set: KubeObject) -> dict[str, tuple[str, str]]:
    """Where bookies of the set are or have disks: the name of their StatefulSet, and their
    place."""
    sets = (s for s in observed.list("StatefulSet") if bookie_set.uid in s.owner_uids)
    places = {}
    for found in (*sets, *observed.list("PersistentVolumeClaim")):
        if found.labels.get(BOOKIE_SET_LABEL) == bookie_set.name:
            place = (found.labels.get(REGION_LABEL, ""), found.labels.get(ZONE_LABEL, ""))
            places[name_bookies(bookie_set.name, *place)] = place
    return places


def _count_ordinals(prefix: str, names: Iterable[str]) -> int:
    pattern = re.compile(rf"{re.escape(prefix)}-(\d{{1,4}})")
    found = (pattern.fullmatch(name) for name in names)
    return max((int(match[1]) + 1 for match in found if match is not None), default=0)
