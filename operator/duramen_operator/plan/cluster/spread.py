"""Which bookies each failure domain has: those that hold data, and as many more as are wished.

What exists counts first: nobody is taken away or moved here (`plan.removal` chooses who goes, by
the cluster's leave). So more bookies go where fewest are, and a wish for fewer changes nothing. A
disk beyond the wish is no bookie where the cluster says that nobody ever registered from it, as
when a StatefulSet was scaled by hand, or that its bookie is drained and was let go.

The bookies of a share are one StatefulSet, or, where each mounts a key that no other one may have,
one StatefulSet each; only then there may be gaps. Called by `bookies`. Pure.
Source: docs/kubernetes/one-hand.md 22; docs/kubernetes/removal.md; docs/kubernetes/security.md
"Which key lies where".
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from duramen.core.duty import Duty
from duramen_operator.names import APART, BOOKIE_SET_LABEL, REGION_LABEL, ZONE_LABEL, name_bookies
from duramen_operator.plan.evictions.lives import is_serving
from duramen_operator.plan.observed import Json, KubeObject, Observed
from duramen_operator.resources.clusters import Domain

_LEDGERS = "ledgers"


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
    indexes: tuple[int, ...]
    """The numbers of its bookies, rising; without gaps where they share a StatefulSet."""
    is_declared: bool = True
    """Whether the cluster's domains still name it; what is not named stays, and gets no more."""
    is_apart: bool = False
    """Whether each bookie is a StatefulSet by itself."""
    stranger_indexes: tuple[int, ...] = ()
    """Numbers of disks or objects that are of no bookie."""

    def __post_init__(self) -> None:
        is_whole = self.indexes == tuple(range(len(self.indexes)))
        assert self.is_apart or is_whole, "a number is a place in the StatefulSet that is shared"

    @property
    def count(self) -> int:
        """How many bookies it has."""
        return len(self.indexes)

    @property
    def bookies(self) -> tuple[str, ...]:
        """The names of its pods, which are the ids of its bookies."""
        return tuple(map(self.name_bookie, self.indexes))

    @property
    def strangers(self) -> tuple[str, ...]:
        """The names that bookies with those disks or objects would have."""
        return tuple(map(self.name_bookie, self.stranger_indexes))

    @property
    def groups(self) -> tuple[BookieGroup, ...]:
        """Its StatefulSets; none where there are no bookies."""
        if self.is_apart:
            return tuple(BookieGroup(name.removesuffix(APART), (name,)) for name in self.bookies)
        return (BookieGroup(self.name, self.bookies),) if self.indexes else ()

    @property
    def idle_groups(self) -> tuple[BookieGroup, ...]:
        """The StatefulSets that there may be, of which no pod is a bookie."""
        if self.is_apart:
            return tuple(BookieGroup(one.removesuffix(APART), (one,)) for one in self.strangers)
        is_idle = bool(self.stranger_indexes) and not self.indexes
        return (BookieGroup(self.name, ()),) if is_idle else ()

    @property
    def place(self) -> str:
        """For people."""
        return f"{self.region}/{self.zone}" if self.zone else "this zone"

    def name_bookie(self, index: int) -> str:
        """The name of the bookie with that number."""
        return f"{self.name}-{index}{APART if self.is_apart else ''}"


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
    evidence = _Evidence(observed, bookie_set, is_apart, replicas)
    known = list(map(evidence.list_known, names))
    bookies = _judge_known(evidence, names, known, replicas)
    going = [evidence.list_decommissioned(name) for name in names]
    used = [evidence.list_used(name) if is_apart else set[int]() for name in names]
    if evidence.may_grow:
        _grow(bookies, used, going, declared=declared, replicas=replicas)
    return tuple(
        DomainShare(
            name,
            *place,
            tuple(sorted(own)),
            is_declared=index < declared,
            is_apart=is_apart,
            stranger_indexes=tuple(sorted(there - own)),
        )
        for index, (name, place, own, there) in enumerate(
            zip(names, places, bookies, known, strict=True)
        )
    )


def add_evenly(there: Sequence[int], wanted: int) -> list[int]:
    """Add one by one where fewest are, the first of equals, until there are as many as wanted."""
    counts = list(there)
    while sum(counts) < wanted:
        counts[counts.index(min(counts))] += 1
    return counts


def _grow(
    bookies: Sequence[set[int]],
    used: Sequence[set[int]],
    going: Sequence[set[int]],
    *,
    declared: int,
    replicas: int,
) -> None:
    """Add to the declared shares until as many stay as are wished: the lowest numbers that nobody
    has or had, since what was let go may have gone for its disk."""
    staying = [len(own - gone) for own, gone in zip(bookies, going, strict=True)]
    wanted = add_evenly(staying[:declared], replicas - sum(staying[declared:]))
    for own, old, before, after in zip(bookies, used, staying, wanted, strict=False):
        for _ in range(after - before):
            taken = own | old
            own.add(min(set(range(len(taken) + 1)) - taken))


@dataclass(frozen=True, slots=True)
class _Evidence:
    """What says of a number whether it is a bookie's."""

    observed: Observed
    bookie_set: KubeObject
    is_apart: bool
    replicas: int

    @property
    def may_grow(self) -> bool:
        """Whether it is known which numbers are used. A set that never had a disk has none."""
        is_told = self.observed.admin.is_reachable and self.observed.admin.bookies is not None
        return not self.is_apart or is_told or not self._has_history

    @property
    def _has_history(self) -> bool:
        """Whether a bookie of the set may be registered: disks outlive objects in a reinstall."""
        claims = self.observed.list("PersistentVolumeClaim")
        has_disks = any(one.labels.get(BOOKIE_SET_LABEL) == self.bookie_set.name for one in claims)
        return has_disks or any(one.status.get("incarnation") for one in self._bookies())

    @property
    def _rows(self) -> Mapping[str, Json]:
        """Also of those that are away: registrations outlive them. Empty: it is not known."""
        admin = self.observed.admin
        return (admin.bookies if admin.is_reachable else None) or {}

    def list_known(self, name: str) -> set[int]:
        """The bookies that there are or were: by their objects, and by their disks.

        Not by the StatefulSet, where anybody may write a number: no bookie is there before its disk
        is. Disks count because data lies on them: a set that is made again after an uninstall, or a
        StatefulSet that somebody deleted, comes back with all its bookies.
        """
        claims = (claim.name for claim in self.observed.list("PersistentVolumeClaim"))
        disks = self._list(f"{_LEDGERS}-{name}", claims) - self._list_let_go(name)
        return self._close(self.list_objects(name) | disks)

    def list_used(self, name: str) -> set[int]:
        """Numbers that are, or were, somebody's: new bookies have new ones, where that may be."""
        claims = (claim.name for claim in self.observed.list("PersistentVolumeClaim"))
        return self._list(f"{_LEDGERS}-{name}", claims) | self._list(name, self._rows)

    def list_objects(self, name: str) -> set[int]:
        """Those that have an object."""
        return self._list(name, (one.name for one in self._bookies()))

    def _list_let_go(self, name: str) -> set[int]:
        """Those that are drained, have no object, and are made by nobody."""
        drained = [one for one, row in self._rows.items() if row.get("duty") == Duty.DRAINED.value]
        found = self._list(name, drained) - self.list_objects(name)
        return {index for index in found if not self._is_made(name, index)}

    def _is_made(self, name: str, index: int) -> bool:
        workload, place = (f"{name}-{index}", 0) if self.is_apart else (name, index)
        found = self.observed.find("StatefulSet", workload)
        return found is not None and int(found.spec.get("replicas", 1)) > place

    def list_decommissioned(self, name: str) -> set[int]:
        """Those that somebody asked to go by name; where others are in between, nobody can."""
        if not self.is_apart:
            return set()
        asked = (one.name for one in self._bookies() if one.spec.get("decommission") is True)
        return self._list(name, asked)

    def list_registered(self, name: str) -> set[int]:
        """Those that the cluster knows, but for those that were let go."""
        return self._list(name, self._rows) - self._list_let_go(name)

    def list_proven(self, name: str) -> set[int]:
        """Those that are registered, or were, or serve."""
        known = (one.name for one in self._bookies() if one.status.get("incarnation"))
        # Who serves is registered, whatever a view says that lags or passes over a node.
        serving = (pod.name for pod in self.observed.list("Pod") if is_serving(pod))
        found = self.list_registered(name) | self._list(name, known) | self._list(name, serving)
        return self._close(found)

    def list_running(self, name: str, known: set[int]) -> set[int]:
        """Those that there are if nothing is changed while nothing is known: those with an object,
        and of the others, of which there are only disks, those that may run."""
        objects = self._close(self.list_objects(name))
        if self.is_apart:
            return objects | {i for i in known - objects if self._count_replicas(f"{name}-{i}", 1)}
        return objects | {i for i in known if i < self._count_replicas(name, len(known))}

    def _count_replicas(self, name: str, wanted: int) -> int:
        """Of a StatefulSet. As many as are wanted where there is none: it is to be made anew; but
        where its bookies have objects and this one's is gone, or none is wished, it was let go."""
        found = self.observed.find("StatefulSet", name)
        if found is not None:
            return int(found.spec.get("replicas", 1))
        is_let_go = not self.replicas or any(True for _ in self._bookies())
        return 0 if self.is_apart and is_let_go else wanted

    def _bookies(self) -> Iterator[KubeObject]:
        uid = self.bookie_set.uid
        return (one for one in self.observed.list("Bookie") if uid in one.owner_uids)

    def _list(self, prefix: str, names: Iterable[str]) -> set[int]:
        end = APART if self.is_apart else ""
        pattern = re.compile(rf"{re.escape(prefix)}-(\d{{1,4}}){end}")
        found = (pattern.fullmatch(name) for name in names)
        return {int(match[1]) for match in found if match is not None}

    def _close(self, found: set[int]) -> set[int]:
        """With everybody below, where they share a StatefulSet: its ordinals have no gaps."""
        return found if self.is_apart else set(range(max(found, default=-1) + 1))


def _judge_known(
    evidence: _Evidence, names: Sequence[str], known: Sequence[set[int]], replicas: int
) -> list[set[int]]:
    """Which of what is known in each share are bookies: all, unless more stay than is wished.

    Where none of a set is registered nobody knows what lies on its disks: it may be that the
    cluster was founded anew beside them. Nothing is decided then, as while the cluster is silent.
    """
    if any(map(evidence.list_registered, names)):
        least = list(map(evidence.list_proven, names))
    else:
        least = list(map(evidence.list_running, names, known))
    bookies = [set(own) for own in known]
    going = [evidence.list_decommissioned(name) for name in names]
    staying = [len(own - gone) for own, gone in zip(bookies, going, strict=True)]
    while sum(staying) > replicas:
        doubtful = [
            own - sure - gone for own, sure, gone in zip(bookies, least, going, strict=True)
        ]
        left = [index for index, found in enumerate(doubtful) if found]
        if not left:
            break
        # What is a disk alone goes before what was made an object for.
        lone = [
            found - evidence.list_objects(name) for name, found in zip(names, doubtful, strict=True)
        ]
        left = [index for index in left if lone[index]] or left
        fullest = max(left, key=lambda index: (staying[index], index))
        # Those that share a StatefulSet have no gaps: what is sure is closed, so its last one goes.
        choice = lone[fullest] if evidence.is_apart else set[int]()
        bookies[fullest].discard(max(choice or doubtful[fullest]))
        staying[fullest] -= 1
    return bookies


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
