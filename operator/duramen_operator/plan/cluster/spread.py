"""How many bookies each failure domain gets: evenly, and never fewer than there are.

What exists counts first: bookies hold data, and none is taken away or moved here. So more bookies
go where fewest are, and a wish for fewer changes nothing. A disk beyond the wish is no bookie where
the cluster says that nobody ever registered from it, as when a StatefulSet was scaled by hand.

The bookies of a share are one StatefulSet, or, where each mounts a key that no other one may have,
one StatefulSet each. Called by `bookies`. Pure. Source: docs/kubernetes/one-hand.md 22;
docs/kubernetes/security.md "Which key lies where".
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from duramen_operator.names import BOOKIE_SET_LABEL, REGION_LABEL, ZONE_LABEL, name_bookies
from duramen_operator.plan.evictions.lives import is_serving
from duramen_operator.plan.observed import Json, KubeObject, Observed
from duramen_operator.resources.clusters import Domain

_LEDGERS = "ledgers"
_APART = "-0"
"""What ends the name of the one pod of a StatefulSet."""


@dataclass(frozen=True, slots=True)
class BookieGroup:
    """A StatefulSet of bookies: its name and those of its pods."""

    name: str
    bookies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DomainShare:
    """The bookies of one set in one failure domain."""

    name: str
    region: str
    zone: str
    count: int
    is_declared: bool = True
    """Whether the cluster's domains still name it; what is not named stays, and gets no more."""
    is_apart: bool = False
    """Whether each bookie is a StatefulSet by itself."""
    stranger_count: int = 0
    """Disks or objects beyond `count` that are of no bookie."""

    @property
    def bookies(self) -> tuple[str, ...]:
        """The names of its pods, which are the ids of its bookies."""
        return tuple(map(self._name_bookie, range(self.count)))

    @property
    def strangers(self) -> tuple[str, ...]:
        """The names that bookies would have behind these, and that are none."""
        return tuple(map(self._name_bookie, range(self.count, self.count + self.stranger_count)))

    @property
    def groups(self) -> tuple[BookieGroup, ...]:
        """Its StatefulSets; none where there are no bookies."""
        if self.is_apart:
            return tuple(BookieGroup(name.removesuffix(_APART), (name,)) for name in self.bookies)
        return (BookieGroup(self.name, self.bookies),) if self.count else ()

    @property
    def idle_groups(self) -> tuple[BookieGroup, ...]:
        """The StatefulSets that there may be, of which no pod is a bookie."""
        if self.is_apart:
            return tuple(BookieGroup(one.removesuffix(_APART), (one,)) for one in self.strangers)
        return (BookieGroup(self.name, ()),) if self.stranger_count and not self.count else ()

    @property
    def place(self) -> str:
        """For people."""
        return f"{self.region}/{self.zone}" if self.zone else "this zone"

    def _name_bookie(self, index: int) -> str:
        return f"{self.name}-{index}{_end(self.is_apart)}"


def share_out(
    observed: Observed,
    bookie_set: KubeObject,
    domains: Sequence[Domain],
    replicas: int,
    *,
    is_apart: bool,
) -> tuple[DomainShare, ...]:
    """The shares of a set, declared ones in the order of the domains, then those that only stay.

    Args:
        is_apart: whether each bookie is a StatefulSet by itself. It stays so for good.
    """
    places = [(domain.region, domain.zone) for domain in domains] or [("", "")]
    names = [name_bookies(bookie_set.name, *place) for place in places]
    declared = len(names)
    for name, place in sorted(_find_places(observed, bookie_set).items()):
        if name not in names:
            names.append(name)
            places.append(place)
    known = [count_known(observed, bookie_set, name, is_apart=is_apart) for name in names]
    counts = _judge_known(_Evidence(observed, bookie_set, _end(is_apart)), names, known, replicas)
    kept = counts[declared:]
    counts = [*add_evenly(counts[:declared], replicas - sum(kept)), *kept]
    return tuple(
        DomainShare(
            name,
            *place,
            count,
            is_declared=index < declared,
            is_apart=is_apart,
            stranger_count=max(0, there - count),
        )
        for index, (name, place, count, there) in enumerate(
            zip(names, places, counts, known, strict=True)
        )
    )


def add_evenly(there: Sequence[int], wanted: int) -> list[int]:
    """Add one by one where fewest are, the first of equals, until there are as many as wanted."""
    counts = list(there)
    while sum(counts) < wanted:
        counts[counts.index(min(counts))] += 1
    return counts


def count_known(
    observed: Observed, bookie_set: KubeObject, name: str, *, is_apart: bool = False
) -> int:
    """How many bookies of a share there are or were: by their objects, and by their disks.

    Not by the StatefulSet, where anybody may write a number: no bookie is there before its disk is.
    Disks count because data lies on them: a set that is made again after an uninstall, or a
    StatefulSet that somebody deleted, comes back with all its bookies.
    """
    own = (item for item in observed.list("Bookie") if bookie_set.uid in item.owner_uids)
    end = _end(is_apart)
    bookies = _count_ordinals(name, end, (item.name for item in own))
    claims = observed.list("PersistentVolumeClaim")
    disks = _count_ordinals(f"{_LEDGERS}-{name}", end, (claim.name for claim in claims))
    return max(bookies, disks)


@dataclass(frozen=True, slots=True)
class _Evidence:
    """What says of a disk whether it is a bookie's."""

    observed: Observed
    bookie_set: KubeObject
    end: str

    @property
    def registered(self) -> Mapping[str, Json] | None:
        """Also of those that are away: registrations outlive them. None: it is not known."""
        admin = self.observed.admin
        return admin.bookies if admin.is_reachable else None

    def count_registered(self, name: str) -> int:
        """How many there must be, since the last of them is registered."""
        return _count_ordinals(name, self.end, self.registered or ())

    def count_proven(self, name: str) -> int:
        """How many there must be, since the last of them is registered, or was, or serves."""
        known = (one.name for one in self._list_bookies() if one.status.get("incarnation"))
        # Who serves is registered, whatever a view says that lags or passes over a node.
        pods = self.observed.list("Pod")
        serving = (pod.name for pod in pods if is_serving(pod))
        counts = (_count_ordinals(name, self.end, names) for names in (known, serving))
        return max(self.count_registered(name), *counts)

    def count_running(self, name: str, known: int) -> int:
        """How many there are if nothing is changed while nothing is known: those with an object,
        and of the others, of which there are only disks, those that may run."""
        count = _count_ordinals(name, self.end, (one.name for one in self._list_bookies()))
        if self.end:
            runs = (i for i in range(count, known) if self._count_replicas(f"{name}-{i}", 1))
            return max((index + 1 for index in runs), default=count)
        return max(count, min(known, self._count_replicas(name, known)))

    def _list_bookies(self) -> Iterator[KubeObject]:
        uid = self.bookie_set.uid
        return (one for one in self.observed.list("Bookie") if uid in one.owner_uids)

    def _count_replicas(self, name: str, wanted: int) -> int:
        """Of a StatefulSet; as many as are wanted where there is none: it is to be made anew."""
        found = self.observed.find("StatefulSet", name)
        return wanted if found is None else int(found.spec.get("replicas", 1))


def _judge_known(
    evidence: _Evidence, names: Sequence[str], known: Sequence[int], replicas: int
) -> list[int]:
    """How many of what is known in each share are bookies: all, unless there are more than wished.

    Where none of a set is registered nobody knows what lies on its disks: it may be that the
    cluster was founded anew beside them. Nothing is decided then, as while the cluster is silent.
    """
    if any(map(evidence.count_registered, names)):
        least = list(map(evidence.count_proven, names))
    else:
        least = list(map(evidence.count_running, names, known))
    counts = list(known)
    while sum(counts) > replicas:
        doubtful = [index for index, count in enumerate(counts) if count > least[index]]
        if not doubtful:
            break
        counts[max(doubtful, key=lambda index: (counts[index], index))] -= 1
    return counts


def find_same_names(bookie_set: str, domains: Iterable[Domain]) -> tuple[str, ...]:
    """Names that two domains would share ("a-b/c" and "a/b-c"): their bookies would be one set."""
    names = [name_bookies(bookie_set, domain.region, domain.zone) for domain in domains]
    return tuple(sorted({name for name in names if names.count(name) > 1}))


def _find_places(observed: Observed, bookie_set: KubeObject) -> dict[str, tuple[str, str]]:
    """Where bookies of the set are or have disks: the name of their share, and their place."""
    sets = (s for s in observed.list("StatefulSet") if bookie_set.uid in s.owner_uids)
    places = {}
    for found in (*sets, *observed.list("PersistentVolumeClaim")):
        if found.labels.get(BOOKIE_SET_LABEL) == bookie_set.name:
            place = (found.labels.get(REGION_LABEL, ""), found.labels.get(ZONE_LABEL, ""))
            places[name_bookies(bookie_set.name, *place)] = place
    return places


def _end(is_apart: bool) -> str:
    return _APART if is_apart else ""


def _count_ordinals(prefix: str, end: str, names: Iterable[str]) -> int:
    pattern = re.compile(rf"{re.escape(prefix)}-(\d{{1,4}}){end}")
    found = (pattern.fullmatch(name) for name in names)
    return max((int(match[1]) + 1 for match in found if match is not None), default=0)
