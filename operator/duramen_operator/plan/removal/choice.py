"""Who goes: those that were asked to by name, and as many more as are too many.

The choice is made anew in each pass. It comes out the same because what was begun comes first.
Called by `plan.cluster.bookies`. Pure. Source: docs/kubernetes/removal.md "Who goes".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from duramen.core.duty import Duty
from duramen_operator.plan.cluster.spread import DomainShare
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
    number: int


def choose_leaving(
    observed: Observed, shares: Sequence[DomainShare], replicas: int
) -> frozenset[str]:
    """Names of the bookies that are to go.

    Where bookies share a StatefulSet only the last ones of it can, and nobody goes by name.
    """
    leaving = {
        name
        for share in shares
        if share.is_apart
        for name in share.bookies
        if is_asked(observed.find("Bookie", name)) or is_past_return(observed, name)
    }
    while _count(shares, leaving) > replicas:
        left = [
            one
            for one in _list_candidates(shares, leaving)
            if not (one.share.is_apart and _is_taken_back(observed, one.name))
        ]
        if not left:
            break
        leaving.add(min(left, key=lambda one: _rank(observed, one, shares, leaving)).name)
    return frozenset(leaving)


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
        own = [_Candidate(share, share.name_bookie(index), index) for index in share.indexes]
        staying = [one for one in own if one.name not in leaving]
        found += staying if share.is_apart else staying[-1:]
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
    place = (-shares.index(one.share), -one.number)
    return (-phase, -is_emptied, one.share.is_declared, fullness, *place)
