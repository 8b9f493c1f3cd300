"""Which bookies may take new data, where every bookie is, and how much of it each should get.

The facts are ZooKeeper's nodes. `available/<id>` says that a bookie lives, what it accepts and how
much is free. Its own node `bookies/<id>` says where it is and its weight, even while it is down.
New data go to bookies that live, are not read-only, have no duty but to serve, a weight above
0, and lie in a region that is not closed. A bookie that is out keeps its data, and is read.

    share of new data = weight · max(free bytes / greatest free bytes of a candidate, 1/16)

So an empty bookie beside half-full ones gets twice their share, and a nearly full one still gets
some. A bookie in doubt, after damage that hid what it held, gets weight · 1/16, so that three
bookies of which it is one go on. Spreading comes first (`choice`), steadiness last (`steadiness`).

Pure; what others wrote is not trusted. Called by `surveyor`. Source: docs/protocol/placement.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from duramen.core.duty import Duty
from duramen.core.hashing import weights_of
from duramen.core.placement.rule import Candidate
from duramen.ids import BookieId, Incarnation, Member

_FREE_SHARE_MIN: Final = 1 / 16
"""A disk is read-only at 95 % used: below this little is left that weights could steer."""

Nodes = Mapping[str, Mapping[str, Any]]
"""Name → fields."""


@dataclass(frozen=True, slots=True)
class BookieRow:
    """One bookie as the cluster sees it."""

    bookie: BookieId
    incarnation: Incarnation
    region: str
    rack: str
    state: str
    """`rw`, `ro`, or `absent`."""
    duty: Duty
    weight: float
    free_bytes: int | None
    is_closed: bool
    """Its region is closed for new data."""

    is_doubtful: bool = False
    """Damage may have held anything of what it stored: it vouches for no absence there (R15)."""
    steady_in_us: int = 0
    """How long it has to stay until new data go to it as to any other; 0: they do."""
    is_registered: bool = True
    """It has a node in `bookies/`, which stays while it is away."""
    keeps_envelopes: bool = False
    """It says that it stores entries of flexible segments (docs/protocol/flexible.md "Who may meet
    it"). While it is away, what its own node says holds."""

    @property
    def takes_new_data(self) -> bool:
        """Whether a new ensemble may name it."""
        takes_ledgers = self.duty.takes_new_ledgers
        return self.state == "rw" and takes_ledgers and self.weight > 0 and not self.is_closed

    @property
    def candidate(self) -> Candidate:
        """As placement sees it, its free space left out."""
        member = Member(self.bookie, self.incarnation)
        is_steady = self.steady_in_us == 0
        return Candidate(member, self.region, self.rack, self.weight, is_steady)


_ALL_STEADY: Final[Mapping[BookieId, int]] = {}


def read_rows(
    available: Nodes,
    registered: Nodes,
    closed: Collection[str],
    unsteady: Mapping[BookieId, int] = _ALL_STEADY,
) -> list[BookieRow]:
    """Every bookie that lives or was registered, by id.

    Args:
        available: nodes of `available/`.
        registered: nodes of `bookies/`; one without a node there is where it says itself.
        closed: regions closed for new data.
        unsteady: bookies that came back lately, with the µs until they count as steady.
    """
    rows = []
    for name in sorted({**registered, **available}):
        living, own = available.get(name, {}), registered.get(name, {})
        incarnation = living.get("incarnation", own.get("incarnation"))
        if not isinstance(incarnation, str):
            continue
        is_known = own.get("incarnation") == incarnation
        place = own if is_known else living
        region, rack = _text(place.get("region")), _text(place.get("rack"))
        free = living.get("free_bytes")
        rows.append(
            BookieRow(
                bookie=BookieId(name),
                incarnation=Incarnation(incarnation),
                region=region,
                rack=rack,
                state=_text(living.get("state")) if living else "absent",
                duty=_read_duty(own, living),
                weight=weights_of({name: own or living})[name],
                free_bytes=free if type(free) is int and free >= 0 else None,
                is_closed=region in closed,
                is_doubtful=living.get("doubtful") is True,
                steady_in_us=unsteady.get(BookieId(name), 0),
                is_registered=name in registered,
                keeps_envelopes=_keeps_envelopes(living or own),
            )
        )
    return rows


def choose_candidates(rows: Collection[BookieRow]) -> list[Candidate]:
    """Bookies that new data may go to, with their shares of it."""
    takers = [row for row in rows if row.takes_new_data]
    known = [row.free_bytes for row in takers if row.free_bytes is not None]
    greatest = max(known, default=0)
    candidates = []
    for row in takers:
        ratio = 1.0
        if row.is_doubtful:
            ratio = _FREE_SHARE_MIN
        elif row.free_bytes is not None and greatest:
            ratio = max(row.free_bytes / greatest, _FREE_SHARE_MIN)
        candidates.append(replace(row.candidate, weight=row.weight * ratio))
    return candidates


def list_present(rows: Collection[BookieRow]) -> dict[Member, bool]:
    """Bookies that are there, each with whether it stores entries of open segments."""
    return {
        row.candidate.member: row.state == "rw" and row.duty.takes_new_ledgers
        for row in rows
        if row.state != "absent"
    }


def _read_duty(own: Mapping[str, Any], living: Mapping[str, Any]) -> Duty:
    """What its node says, or else it itself; a duty that is not known here gets no new data."""
    text = _text(own.get("duty") or living.get("duty"))
    if not text:
        return Duty.DRAINING if living.get("draining") else Duty.SERVING
    return {duty.value: duty for duty in Duty}.get(text, Duty.DRAINING)


def _keeps_envelopes(said: Mapping[str, Any]) -> bool:
    formats = said.get("formats")
    version = formats.get("envelope") if isinstance(formats, Mapping) else None
    return type(version) is int and version >= 1


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
