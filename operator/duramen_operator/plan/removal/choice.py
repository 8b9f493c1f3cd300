"""Who goes: those that were asked to by name, and as many more as are too many.

The choice is made anew in each pass. It comes out the same because what was begun comes first.
Called by `plan.cluster.bookies`. Pure. Source: docs/kubernetes/removal.md "Who goes".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from duramen.core.duty import Duty
from duramen_operator.plan.cluster.spread import DomainShare, SetMember, select_going
from duramen_operator.plan.observed import Observed
from duramen_operator.plan.removal.record import (
    CANCELLING,
    STOPPING,
    is_asked,
    is_past_return,
    know_bookies,
    read_removal,
)


class _Candidate(NamedTuple):
    share: DomainShare
    name: str
    member: SetMember


def choose_leaving(
    observed: Observed, shares: Sequence[DomainShare], replicas: int
) -> frozenset[str]:
    """Names of the bookies that are to go.

    Where bookies share a StatefulSet only the last ones of it can.
    """
    leaving = {name for share in shares for name in _list_named(observed, share)}
    while _count(shares, leaving) > replicas:
        found = _list_candidates(shares, leaving)
        left = [one for one in found if not _is_taken_back(observed, one.name)]
        # Of those that share a StatefulSet no other one can go instead.
        left = left or [one for one in found if not one.member.is_lone]
        if not left:
            break
        leaving.add(min(left, key=lambda one: _rank(observed, one, shares, leaving)).name)
    return frozenset(leaving)


def _list_named(observed: Observed, share: DomainShare) -> Iterator[str]:
    """Those that were asked to go by name, and can, or went so far that they cannot stay."""

    def is_going(member: SetMember) -> bool:
        name = share.name_bookie(member)
        is_past = member.is_lone and is_past_return(observed, name, share.find_group(name).name)
        return is_asked(observed.find("Bookie", name)) or is_past

    return map(share.name_bookie, sorted(select_going(share.members, is_going)))


def _is_taken_back(observed: Observed, name: str) -> bool:
    """Whether somebody changed his mind about this very bookie: then another one is too many."""
    item = observed.find("Bookie", name)
    is_by_name = item is not None and item.status.get("removalBy") == "name"
    return read_removal(observed, name) == CANCELLING or (is_by_name and not is_asked(item))


def _count(shares: Sequence[DomainShare], leaving: set[str]) -> int:
    return sum(name not in leaving for share in shares for name in share.bookies)


def _list_candidates(shares: Sequence[DomainShare], leaving: set[str]) -> list[_Candidate]:
    """Who may be chosen next."""
    found = []
    for share in shares:
        own = [_Candidate(share, share.name_bookie(one), one) for one in share.members]
        staying = [one for one in own if one.name not in leaving]
        found += [one for one in staying if one.member.is_lone]
        found += [one for one in staying if not one.member.is_lone][-1:]
    return found


def _rank(
    observed: Observed, one: _Candidate, shares: Sequence[DomainShare], leaving: set[str]
) -> tuple[int, ...]:
    """The least goes first. Of those that were begun how full domains are decides nothing: that
    changes while they go."""
    record = read_removal(observed, one.name)
    phase = {"": 0, CANCELLING: 0, STOPPING: 2}.get(record, 1)
    duty = know_bookies(observed, ()).find_duty(one.name)
    is_emptied = phase == 0 and duty not in {None, Duty.SERVING}
    staying = sum(name not in leaving for name in one.share.bookies)
    fullness = 0 if phase or is_emptied else -staying
    place = (-shares.index(one.share), -one.member.number)
    return (-phase, -is_emptied, one.share.is_declared, fullness, *place)
