"""The bookies of a cluster as repair sees them: which are there, lost, or to be emptied.

A view is a value made from nodes that were read after a `sync`: `bookies/<id>` (incarnation, place,
duty), `available/<id>` (registered now, and what the bookie publishes), `repair/lost`. The fate of
every member that a segment names follows from it. A bookie that is not registered as available
counts as lost after a grace. While no bookie at all is registered, none counts as lost, because
then the metadata store or the network has failed (R4).

Pure. Called by `audit`, `drain`, `disruption` and `rebalance`; the auditor's readings build it.
Source: docs/protocol/wire.md "Identities", R1, docs/protocol/placement.md "The rule (R20)",
docs/protocol/repair.md.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from duramen.core.duty import Duty
from duramen.core.placement import Candidate
from duramen.ids import BookieId, Incarnation, Member

ACCEPTED: Final = "accepted_unix_ms"
"""Field of `repair/lost/<incarnation>`: since when a person accepts the loss."""


class CopyFate(enum.Enum):
    """What can be expected of the copies that a member of an ensemble holds."""

    HERE = "here"
    LEAVING = "leaving"
    """There, and to be replaced while it is there."""
    AWAY = "away"
    """Not registered for less than the grace: it may come back."""
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class BookieState:
    """One registered bookie.

    While it is not available `published_duty` is None, and nothing else that it publishes is said:
    `is_doubtful` among them, that damage may have held anything (R15).
    """

    member: Member
    region: str
    rack: str
    weight: float = 1.0
    duty: Duty = Duty.SERVING
    published_duty: Duty | None = None
    is_writable: bool = False
    data_url: str = ""
    free_bytes: int = 0
    absent_since_us: int | None = None
    is_doubtful: bool = False
    keeps_envelopes: bool = False

    @property
    def is_available(self) -> bool:
        """Whether this incarnation is registered as available."""
        return self.published_duty is not None

    @property
    def place(self) -> Candidate:
        """The member where it is."""
        return Candidate(self.member, self.region, self.rack, self.weight)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """All bookies at one time.

    Args:
        lost: incarnations whose disks are gone for ever.
        accepted: those of them of which a person accepts that with them entries may be lost.
        lost_places: where those were, as far as it is known.
        watched_since_us: since when the auditor has seen bookies without a break; None: not now.
        now_us: monotonic; `grace_us`: how long a bookie may be away before it counts as lost.
    """

    bookies: Mapping[BookieId, BookieState]
    lost: frozenset[Incarnation] = frozenset()
    accepted: frozenset[Incarnation] = frozenset()
    lost_places: Mapping[Member, Candidate] = field(default_factory=dict)
    closed_regions: frozenset[str] = frozenset()
    watched_since_us: int | None = None
    now_us: int = 0
    grace_us: int = 0
    _places: Mapping[Member, Candidate] = field(init=False, repr=False, compare=False)
    _facts: Hashable = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Asked for with every fragment of every round, so they are made once.
        known = {state.member: state.place for state in self.bookies.values()}
        object.__setattr__(self, "_places", {**self.lost_places, **known})
        object.__setattr__(self, "_facts", self._gather_facts())

    def fate(self, member: Member) -> CopyFate:
        """What can be expected of a member that a segment names."""
        if member.incarnation in self.lost:
            return CopyFate.LOST
        state = self.bookies.get(member.bookie)
        if state is None:
            return self._away(self.watched_since_us)
        if state.member != member:
            return CopyFate.LOST  # its disks were formatted anew, at a person's word (R1)
        if state.is_available:
            return CopyFate.HERE if state.duty is Duty.SERVING else CopyFate.LEAVING
        return self._away(state.absent_since_us)

    def is_there(self, member: Member) -> bool:
        """Whether the member can be asked for its copies now."""
        return self.fate(member) in (CopyFate.HERE, CopyFate.LEAVING)

    def is_gone(self, member: Member) -> bool:
        """Whether nobody waits for the member's word any more: its disks are gone for ever."""
        state = self.bookies.get(member.bookie)
        return member.incarnation in self.lost or (state is not None and state.member != member)

    def flexible_candidates(self) -> list[Candidate]:
        """Those that may take copies of flexible segments, too."""
        return [c for c in self.candidates() if self.bookies[c.member.bookie].keeps_envelopes]

    def candidates(self) -> list[Candidate]:
        """Bookies that may take new data, in the order of their ids."""
        return [
            state.place
            for _, state in sorted(self.bookies.items())
            if state.is_writable
            and self.fate(state.member) is CopyFate.HERE
            and state.published_duty is Duty.SERVING
            and state.weight > 0
            and state.region not in self.closed_regions
        ]

    def locations(self) -> Mapping[Member, Candidate]:
        """Where members are, or were, as far as it is known."""
        return self._places

    def facts(self) -> Hashable:
        """What must change before something that could not be repaired is worth another try."""
        return self._facts

    def _gather_facts(self) -> Hashable:
        fates = tuple(
            (state.member, state.place, self.fate(state.member).value)
            for _, state in sorted(self.bookies.items())
        )
        takers = tuple(candidate.member for candidate in self.candidates())
        flexible_takers = tuple(candidate.member for candidate in self.flexible_candidates())
        return fates, takers, flexible_takers, tuple(sorted(self.accepted))

    def next_loss_us(self) -> int | None:
        """When the next bookie that is away will count as lost."""
        return min(
            (
                state.absent_since_us + self.grace_us
                for state in self.bookies.values()
                if state.absent_since_us is not None and self.fate(state.member) is CopyFate.AWAY
            ),
            default=None,
        )

    def _away(self, since_us: int | None) -> CopyFate:
        if since_us is None or self.now_us - since_us < self.grace_us:
            return CopyFate.AWAY
        return CopyFate.LOST


class Absences:
    """Since when bookies have been away, as far as one auditor has seen without a break."""

    def __init__(self) -> None:
        self._since_us: dict[BookieId, int] = {}
        self.watched_since_us: int | None = None

    def observe(
        self, registered: Collection[BookieId], available: Collection[BookieId], now_us: int
    ) -> None:
        """Note who is there; with nobody there every clock begins anew (R4)."""
        if not available:
            self._since_us.clear()
            self.watched_since_us = None
            return
        if self.watched_since_us is None:
            self.watched_since_us = now_us
        self._since_us = {
            bookie: self._since_us.get(bookie, now_us)
            for bookie in sorted(registered)
            if bookie not in available
        }

    def since_us(self, bookie: BookieId) -> int | None:
        """Since when; None while it is there, or while nobody is."""
        return self._since_us.get(bookie)

    def forget(self) -> None:
        """The auditor looked away: what it knew of the time before counts for nothing."""
        self._since_us.clear()
        self.watched_since_us = None


def build_view(
    registered: Iterable[BookieState],
    available: Mapping[str, Mapping[str, Any]],
    lost: Mapping[str, Mapping[str, Any]],
    closed_regions: Collection[str],
    absences: Absences,
    *,
    now_us: int,
    grace_us: int,
) -> ClusterView:
    """The view that nodes give; `absences` learns who is there.

    Args:
        registered: what `bookies/<id>` say, by themselves.
        available: fields of `available/<id>`; `lost`: of `repair/lost/<incarnation>`.

    Raises:
        ValueError: a node does not hold what its place promises.
    """
    known = sorted(registered, key=lambda state: state.member)
    present = {
        state.member.bookie
        for state in known
        if available.get(state.member.bookie, {}).get("incarnation") == state.member.incarnation
    }
    absences.observe([state.member.bookie for state in known], present, now_us)
    try:
        bookies = {
            state.member.bookie: _publish(state, available[state.member.bookie])
            if state.member.bookie in present
            else replace(state, absent_since_us=absences.since_us(state.member.bookie))
            for state in known
        }
        places = {}
        for incarnation, node in sorted(lost.items()):
            member = Member(BookieId(node["bookie"]), Incarnation(incarnation))
            if node.get("region") is not None and node.get("rack") is not None:
                places[member] = Candidate(member, node["region"], node["rack"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"a bookie's node lacks something: {error!r}") from error
    return ClusterView(
        bookies,
        frozenset(Incarnation(name) for name in lost),
        frozenset(Incarnation(name) for name, node in lost.items() if ACCEPTED in node),
        places,
        frozenset(closed_regions),
        absences.watched_since_us,
        now_us,
        grace_us,
    )


def _publish(state: BookieState, published: Mapping[str, Any]) -> BookieState:
    """The bookie with what it says of itself; a duty that is not known here gets no new data."""
    text = published.get("duty", Duty.SERVING.value)
    duty = {duty.value: duty for duty in Duty}.get(text, Duty.DRAINING)
    if duty is Duty.SERVING and published.get("draining"):
        duty = Duty.DRAINING
    return replace(
        state,
        published_duty=duty,
        is_writable=published.get("state") == "rw",
        data_url=str(published["data_url"]),
        free_bytes=int(published.get("free_bytes", 0)),
        is_doubtful=published.get("doubtful") is True,
        keeps_envelopes=_knows_envelopes(published.get("formats")),
    )


def _knows_envelopes(formats: Any) -> bool:
    version = formats.get("envelope") if isinstance(formats, Mapping) else None
    return type(version) is int and version >= 1
