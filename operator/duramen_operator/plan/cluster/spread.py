"""Which bookies each failure domain has: those that hold data, and as many more as are wished.

What exists counts first: nobody is taken away or moved here (`plan.removal` chooses who goes, by
the cluster's leave). So more bookies go where fewest are, and a wish for fewer changes nothing. A
disk beyond the wish is no bookie where the cluster says that nobody ever registered from it, as
when a StatefulSet was scaled by hand, or that its bookie is drained and was let go.

Every new bookie is a StatefulSet by itself (*lone*), so that any of them can go. Those of older
clusters without identities *share* one, and stay so until they go; their numbers have no gaps.
Called by `bookies`. Pure. Source: docs/kubernetes/one-hand.md 22; docs/kubernetes/removal.md;
docs/kubernetes/security.md "Which key lies where".
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from duramen.core.duty import Duty
from duramen_operator.names import APART, BOOKIE_SET_LABEL, REGION_LABEL, ZONE_LABEL, name_bookies
from duramen_operator.plan.evictions.lives import is_serving
from duramen_operator.plan.observed import NAME_TAKEN, Json, KubeObject, Observed
from duramen_operator.resources.clusters import Domain

_LEDGERS = "ledgers"
_JOURNAL = "journal"


class SetMember(NamedTuple):
    """A bookie of a share; those that share a StatefulSet sort before the others."""

    is_lone: bool
    """Whether it is a StatefulSet by itself."""
    number: int


@dataclass(frozen=True, slots=True)
class BookieGroup:
    """A StatefulSet of bookies: its name and those of its pods."""

    name: str
    bookies: tuple[str, ...]
    is_lone: bool
    """Whether it makes no more than one, ever."""


@dataclass(frozen=True, slots=True)
class DomainShare:
    """The bookies of one set in one failure domain."""

    name: str
    region: str
    zone: str
    members: tuple[SetMember, ...]
    """Its bookies, rising; those that share a StatefulSet have no gaps."""
    is_declared: bool = True
    """Whether the cluster's domains still name it; what is not named stays, and gets no more."""
    stranger_members: tuple[SetMember, ...] = ()
    """Disks or objects that are of no bookie."""
    missing_members: tuple[SetMember, ...] = ()
    """Registered, and nothing of them is here."""

    def __post_init__(self) -> None:
        numbers = self._sharing
        is_whole = numbers == tuple(range(len(numbers)))
        assert is_whole, "a number is a place in the StatefulSet that is shared"

    @property
    def count(self) -> int:
        """How many bookies it has."""
        return len(self.members)

    @property
    def bookies(self) -> tuple[str, ...]:
        """The names of its pods, which are the ids of its bookies."""
        return tuple(map(self.name_bookie, self.members))

    @property
    def strangers(self) -> tuple[str, ...]:
        """The names that bookies with those disks or objects would have."""
        return tuple(map(self.name_bookie, self.stranger_members))

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of those that are registered and made by nobody."""
        return tuple(map(self.name_bookie, self.missing_members))

    @property
    def groups(self) -> tuple[BookieGroup, ...]:
        """Its StatefulSets; none where there are no bookies."""
        sharing = tuple(self.name_bookie(SetMember(False, number)) for number in self._sharing)
        shared = (BookieGroup(self.name, sharing, is_lone=False),) if sharing else ()
        return (*shared, *self._make_lone(self.members))

    @property
    def idle_groups(self) -> tuple[BookieGroup, ...]:
        """The StatefulSets that there may be, of which no pod is a bookie."""
        is_idle = any(not one.is_lone for one in self.stranger_members) and not self._sharing
        shared = (BookieGroup(self.name, (), is_lone=False),) if is_idle else ()
        return (*shared, *self._make_lone(self.stranger_members))

    @property
    def place(self) -> str:
        """For people."""
        return f"{self.region}/{self.zone}" if self.zone else "this zone"

    def name_bookie(self, member: SetMember) -> str:
        """Its name, which is that of its pod."""
        return f"{self.name}-{member.number}{APART if member.is_lone else ''}"

    def find_group(self, bookie: str) -> BookieGroup:
        """The StatefulSet that makes a bookie of this share."""
        return next(group for group in self.groups if bookie in group.bookies)

    def _make_lone(self, members: Iterable[SetMember]) -> Iterator[BookieGroup]:
        for one in members:
            if one.is_lone:
                name = f"{self.name}-{one.number}"
                yield BookieGroup(name, (self.name_bookie(one),), is_lone=True)

    @property
    def _sharing(self) -> tuple[int, ...]:
        return tuple(one.number for one in self.members if not one.is_lone)


def share_out(
    observed: Observed,
    bookie_set: KubeObject,
    domains: Sequence[Domain],
    replicas: int,
    *,
    may_share: bool,
) -> tuple[DomainShare, ...]:
    """The shares of a set, declared ones in the order of the domains, then those that only stay.

    Args:
        may_share: whether bookies that share a StatefulSet count, which those with keys never do.
    """
    places = [(domain.region, domain.zone) for domain in domains] or [("", "")]
    names = [name_bookies(bookie_set.name, *place) for place in places]
    declared = len(names)
    for name, place in sorted(_find_places(observed, bookie_set).items()):
        if name not in names:
            names.append(name)
            places.append(place)
    evidence = _Evidence(observed, bookie_set, tuple(names), replicas, may_share)
    known = list(map(evidence.list_known, names))
    bookies = _judge_known(evidence, names, known, replicas)
    if evidence.may_grow:
        going = _find_going(bookies, evidence.list_named(names))
        used = list(map(evidence.list_used, names))
        _grow(bookies, used, going, declared=declared, replicas=replicas)
    return tuple(
        DomainShare(
            name,
            *place,
            tuple(sorted(own)),
            is_declared=index < declared,
            stranger_members=tuple(sorted(there - own)),
            missing_members=tuple(sorted(evidence.list_missing(name))),
        )
        for index, (name, place, own, there) in enumerate(
            zip(names, places, bookies, known, strict=True)
        )
    )


def select_going(
    members: Iterable[SetMember], is_asked: Callable[[SetMember], bool]
) -> set[SetMember]:
    """Those that go by their own names: of those that share a StatefulSet only the last ones."""
    own = sorted(members)
    sharing = [one for one in own if not one.is_lone]
    last = takewhile(is_asked, reversed(sharing))
    return {*last, *(one for one in own if one.is_lone and is_asked(one))}


def add_evenly(there: Sequence[int], wanted: int) -> list[int]:
    """Add one by one where fewest are, the first of equals, until there are as many as wanted."""
    counts = list(there)
    while sum(counts) < wanted:
        counts[counts.index(min(counts))] += 1
    return counts


def _grow(
    bookies: Sequence[set[SetMember]],
    used: Sequence[set[int]],
    going: Sequence[set[SetMember]],
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
            taken = {one.number for one in own} | old
            own.add(SetMember(True, min(set(range(len(taken) + 1)) - taken)))


@dataclass(frozen=True, slots=True)
class _Evidence:
    """What says of a number whether it is a bookie's."""

    observed: Observed
    bookie_set: KubeObject
    names: tuple[str, ...]
    """Of all shares."""
    replicas: int
    may_share: bool

    @property
    def may_grow(self) -> bool:
        """Whether it is known which numbers are used. A set that never had a disk has none."""
        return self.observed.admin.knows_bookies or not self._has_history

    @property
    def _has_history(self) -> bool:
        """Whether a bookie of the set may be registered: disks outlive objects in a reinstall."""
        has_disks = any(True for _ in self._disks())
        return has_disks or any(one.status.get("incarnation") for one in self._bookies())

    @property
    def _rows(self) -> Mapping[str, Json]:
        """Also of those that are away: registrations outlive them. Empty: it is not known."""
        admin = self.observed.admin
        return (admin.bookies if admin.is_reachable else None) or {}

    def list_known(self, name: str) -> set[SetMember]:
        """The bookies that there are or were: by their objects, and by their disks.

        Not by the StatefulSet, where anybody may write a number: no bookie is there before its disk
        is. Disks count because data lies on them: a set that is made again after an uninstall, or a
        StatefulSet that somebody deleted, comes back with all its bookies.
        """
        own = [claim.name for claim in self._disks(name)]
        disks = self._list(f"{_LEDGERS}-{name}", own) - self._list_let_go(name)
        # Who is registered and made is one whatever became of its claim's labels. So is who is made
        # and has its other disk alone: controllers make the two in any order, one after the other.
        signs = self.list_registered(name) | self._list(f"{_JOURNAL}-{name}", own)
        made = {one for one in signs if self._is_made(name, one)}
        return _close(self.list_objects(name) | disks | made)

    def list_used(self, name: str) -> set[int]:
        """Numbers that are, or were, somebody's, or whose names another one's objects have: of a
        set with a name like this one's, of another cluster, of nobody."""
        others = {kind: set(self._list_others(kind, name)) for kind in ("StatefulSet", "Bookie")}
        claims = [claim.name for claim in self.observed.list("PersistentVolumeClaim")]
        claims += [one.name for one in self.observed.taken if one.kind == "PersistentVolumeClaim"]
        found = (
            *_match(f"{_LEDGERS}-{name}", claims),
            *_match(f"{_JOURNAL}-{name}", claims),
            *_match(name, self._rows.keys() - others["Bookie"]),
            # What this share has by itself is made again under the same number.
            *(one for one in _match(name, others["StatefulSet"]) if not one.is_lone),
            *(one for one in _match(name, others["Bookie"]) if one.is_lone),
        )
        return {one.number for one in found}

    def _list_others(self, kind: str, name: str) -> Iterator[str]:
        """Names of objects that are not of this share, and of such as could not be made."""
        for one in self.observed.list(kind):
            if self.bookie_set.uid not in one.owner_uids or not self._is_of(one, name):
                yield one.name
        yield from self._list_refused(kind)

    def _list_refused(self, kind: str) -> Iterator[str]:
        """Names that others have, in this namespace."""
        refused = (ref for ref, told in self.observed.refusals.items() if told.code == NAME_TAKEN)
        yield from (ref.name for ref in (*self.observed.taken, *refused) if ref.kind == kind)

    def list_missing(self, name: str) -> set[SetMember]:
        """Those that are registered, and of which there is nothing; by their names they may be of
        another set, and then they are there."""
        there = {one.name for kind in ("Bookie", "Pod") for one in self.observed.list(kind)} | {
            one.name.removeprefix(f"{_LEDGERS}-") for one in self._disks()
        }
        return self._list(name, self._rows.keys() - there) - self._list_let_go(name)

    def list_objects(self, name: str) -> set[SetMember]:
        """Those that have an object."""
        return self._list(name, (one.name for one in self._bookies(name)))

    def _list_let_go(self, name: str) -> set[SetMember]:
        """Those that are drained, have no object, and are made by nobody."""
        drained = [one for one, row in self._rows.items() if row.get("duty") == Duty.DRAINED.value]
        found = self._list(name, drained) - self.list_objects(name)
        return {one for one in found if not self._is_made(name, one)}

    def _is_made(self, name: str, member: SetMember) -> bool:
        place = 0 if member.is_lone else member.number
        found = self.observed.find("StatefulSet", _name_set(name, member))
        if found is None or self.bookie_set.uid not in found.owner_uids:
            return False
        return self._is_of(found, name) and int(found.spec.get("replicas", 1)) > place

    def list_named(self, names: Sequence[str]) -> list[set[SetMember]]:
        """Those of each share that somebody asked to go by name."""
        return [
            self._list(
                name,
                (b.name for b in self._bookies(name) if b.spec.get("decommission") is True),
            )
            for name in names
        ]

    def list_registered(self, name: str) -> set[SetMember]:
        """Those that the cluster knows, but for those that were let go."""
        return self._list(name, self._rows) - self._list_let_go(name)

    def list_proven(self, name: str) -> set[SetMember]:
        """Those that are registered, or were, or serve."""
        known = (one.name for one in self._bookies(name) if one.status.get("incarnation"))
        # Who serves is registered, whatever a view says that lags or passes over a node.
        serving = (pod.name for pod in self.observed.list("Pod") if is_serving(pod))
        found = self.list_registered(name) | self._list(name, known) | self._list(name, serving)
        return _close(found)

    def list_running(self, name: str, known: set[SetMember]) -> set[SetMember]:
        """Those that there are if nothing is changed while nothing is known: those with an object,
        and of the others, of which there are only disks, those that may run."""
        objects = _close(self.list_objects(name))
        sharing_count = sum(not one.is_lone for one in known)

        def is_running(one: SetMember) -> bool:
            wanted, place = (1, 0) if one.is_lone else (sharing_count, one.number)
            return place < self._count_replicas(_name_set(name, one), wanted, is_lone=one.is_lone)

        return objects | set(filter(is_running, known - objects))

    def _count_replicas(self, name: str, wanted: int, *, is_lone: bool) -> int:
        """Of a StatefulSet. As many as are wanted where there is none and it is to be made anew."""
        found = self.observed.find("StatefulSet", name)
        if found is not None:
            return int(found.spec.get("replicas", 1))
        if name in (self._noted or ()):
            return wanted
        is_let_go = not self.replicas or any(True for _ in self._bookies())
        return 0 if is_lone and is_let_go else wanted

    @property
    def _noted(self) -> frozenset[str] | None:
        """The StatefulSets of the set when the cluster answered last, and what came since. None:
        it never did."""
        status = self.bookie_set.status
        return frozenset(status.get("statefulSets", ())) if status.get("wasAnswered") else None

    def list_dismissed(self, name: str, known: set[SetMember]) -> set[SetMember]:
        """Who is no bookie, however many are wished: disks alone that were let go before a silence,
        and objects of bookies that cannot be made, since somebody else has their names."""
        found = set[SetMember]()
        noted = self._noted
        if noted is not None and not self.observed.admin.knows_bookies:
            gone = {one for one in known if _name_set(name, one) not in noted}
            bare = gone - _close(self.list_objects(name))
            found = {one for one in bare if not self._is_made(name, one)}
        taken = set(self._list_refused("StatefulSet"))
        barred = {one for one in known if one.is_lone and _name_set(name, one) in taken}
        return found | barred - self.list_proven(name)

    def _bookies(self, name: str = "") -> Iterator[KubeObject]:
        """The objects of this set, or of one share of it."""
        for one in self.observed.list("Bookie"):
            if self.bookie_set.uid in one.owner_uids and (not name or self._is_of(one, name)):
                yield one

    def _disks(self, name: str = "") -> Iterator[KubeObject]:
        """The claims of this set, or of one share of it: sets may have names like one another's."""
        for claim in self.observed.list("PersistentVolumeClaim"):
            is_ours = claim.labels.get(BOOKIE_SET_LABEL) == self.bookie_set.name
            if is_ours and (not name or self._is_of(claim, name)):
                yield claim

    def _is_of(self, item: KubeObject, name: str) -> bool:
        """Whether an object of this set is of that share: labels say so, since bookies of two
        shares may have names that read like one another's. One whose labels a hand took off, with
        those of all that is called after its bookie, is of the one share that its name fits."""
        for labels in self._list_labels(item):
            if REGION_LABEL in labels:
                place = (labels[REGION_LABEL], labels.get(ZONE_LABEL, ""))
                return name == name_bookies(self.bookie_set.name, *place)
        bookie = _find_bookie(item)
        fitting = [one for one in self.names if any(True for _ in _match(one, [bookie]))]
        return fitting == [name]

    def _list_labels(self, item: KubeObject) -> Iterator[Mapping[str, str]]:
        """Its own, and those of others about the same bookie."""
        yield item.labels
        if item.ref.kind == "StatefulSet":
            yield item.spec.get("selector", {}).get("matchLabels", {})  # it never changes
            return
        bookie = _find_bookie(item)
        for kind, one in (
            ("Pod", bookie), ("Bookie", bookie), ("PersistentVolumeClaim", f"{_LEDGERS}-{bookie}"),
        ):  # fmt: skip
            found = self.observed.find(kind, one)
            if found is not None:
                yield found.labels

    def _list(self, prefix: str, names: Iterable[str]) -> set[SetMember]:
        return {one for one in _match(prefix, names) if one.is_lone or self.may_share}


def _name_set(share: str, member: SetMember) -> str:
    """The StatefulSet that makes a bookie."""
    return f"{share}-{member.number}" if member.is_lone else share


def _find_bookie(item: KubeObject) -> str:
    """The bookie that an object is called after."""
    return item.name.removeprefix(f"{_LEDGERS}-").removeprefix(f"{_JOURNAL}-")


def _match(prefix: str, names: Iterable[str]) -> Iterator[SetMember]:
    """The members that have these names behind a prefix; other names are passed over."""
    pattern = re.compile(rf"{re.escape(prefix)}-(\d{{1,4}})({APART})?")
    for match in map(pattern.fullmatch, names):
        if match is not None:
            yield SetMember(match[2] is not None, int(match[1]))


def _close(found: set[SetMember]) -> set[SetMember]:
    """With everybody below, of those that share a StatefulSet: its ordinals have no gaps."""
    last = max((one.number for one in found if not one.is_lone), default=-1)
    return found | {SetMember(False, number) for number in range(last + 1)}


def _judge_known(
    evidence: _Evidence, names: Sequence[str], known: Sequence[set[SetMember]], replicas: int
) -> list[set[SetMember]]:
    """Which of what is known in each share are bookies: all, unless more stay than is wished.

    Where none of a set is registered nobody knows what lies on its disks: it may be that the
    cluster was founded anew beside them. Nothing is decided then, as while the cluster is silent.
    """
    # A registration alone makes no bookie: a set with a name like this one's may have it.
    if any(evidence.list_registered(name) & own for name, own in zip(names, known, strict=True)):
        least = list(map(evidence.list_proven, names))
    else:
        least = list(map(evidence.list_running, names, known))
    dismissed = list(map(evidence.list_dismissed, names, known))
    bookies = [own - gone for own, gone in zip(known, dismissed, strict=True)]
    named, objects = evidence.list_named(names), list(map(evidence.list_objects, names))
    while True:
        # Anew each time: who goes by its name may be the last of its StatefulSet only now.
        going = _find_going(bookies, named)
        staying = [len(own - gone) for own, gone in zip(bookies, going, strict=True)]
        if sum(staying) <= replicas:
            break
        doubtful = [
            _list_removable(own) - sure - gone
            for own, sure, gone in zip(bookies, least, going, strict=True)
        ]
        left = [index for index, found in enumerate(doubtful) if found]
        if not left:
            break
        # What is a disk alone goes before what was made an object for.
        bare = [found - there for found, there in zip(doubtful, objects, strict=True)]
        left = [index for index in left if bare[index]] or left
        fullest = max(left, key=lambda index: (staying[index], index))
        # New ones have StatefulSets of their own: what shares one and is unknown came by a hand.
        sharing = {one for one in doubtful[fullest] if not one.is_lone}
        bookies[fullest].discard(max(sharing or bare[fullest] or doubtful[fullest]))
    return bookies


def _find_going(
    bookies: Sequence[set[SetMember]], named: Sequence[set[SetMember]]
) -> list[set[SetMember]]:
    """Who goes by its name, in each share."""
    return [select_going(own, one.__contains__) for own, one in zip(bookies, named, strict=True)]


def _list_removable(own: set[SetMember]) -> set[SetMember]:
    """Those without whom there is no gap: of those that share a StatefulSet only the last one."""
    last = max((one for one in own if not one.is_lone), default=None)
    return {one for one in own if one.is_lone or one == last}


def find_same_names(bookie_set: str, domains: Iterable[Domain]) -> tuple[str, ...]:
    """Names that two domains would share ("a-b/c" and "a/b-c"): their bookies would be one set."""
    names = [name_bookies(bookie_set, domain.region, domain.zone) for domain in domains]
    return tuple(sorted({name for name in names if names.count(name) > 1}))


def _find_places(observed: Observed, bookie_set: KubeObject) -> dict[str, tuple[str, str]]:
    """Where bookies of the set are or have disks: the name of their share, and their place."""
    made = (*observed.list("StatefulSet"), *observed.list("Bookie"))
    own = (one for one in made if bookie_set.uid in one.owner_uids)
    places = {}
    for found in (*own, *observed.list("PersistentVolumeClaim")):
        if found.labels.get(BOOKIE_SET_LABEL) == bookie_set.name:
            place = (found.labels.get(REGION_LABEL, ""), found.labels.get(ZONE_LABEL, ""))
            places[name_bookies(bookie_set.name, *place)] = place
    return places
