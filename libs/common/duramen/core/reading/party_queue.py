"""Those who wait, of several parties: each party in its turn, and within it who came first.

A party that has a thousand waiting is served as often as one that has a single one. What is kept
is bounded by who adds: an item for each of its open calls. Not here: what is waited for.

Called by the read proxy's `following.turns` and `following.places`.
Source: docs/protocol/read-answers.md "Turns of readers".
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

P = TypeVar("P", bound=Hashable)
T = TypeVar("T", bound=Hashable)


class PartyQueue(Generic[P, T]):
    """See the module; an item is in it once."""

    __slots__ = ("_count", "_rows")

    def __init__(self) -> None:
        self._rows: OrderedDict[P, OrderedDict[T, None]] = OrderedDict()
        """By party; the one whose turn is next is first."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def party_count(self) -> int:
        """How many parties wait."""
        return len(self._rows)

    def add(self, party: P, item: T) -> None:
        """Behind the others of its party, and a party that comes behind the other parties."""
        row = self._rows.setdefault(party, OrderedDict())
        assert item not in row, item
        row[item] = None
        self._count += 1

    def discard(self, party: P, item: T) -> None:
        """It waits no more, if it still did."""
        row = self._rows.get(party)
        if row is not None and item in row:
            del row[item]
            self._count -= 1
            if not row:
                del self._rows[party]

    def has(self, may: Callable[[P], bool]) -> bool:
        """Whether `take` has something to give."""
        return any(map(may, self._rows))

    def take(self, may: Callable[[P], bool]) -> tuple[P, T] | None:
        """The next item of the first party that may have one; None where there is none."""
        for party in self._rows:
            if may(party):
                break
        else:
            return None
        row = self._rows[party]
        item, _ = row.popitem(last=False)
        self._count -= 1
        if row:
            self._rows.move_to_end(party)
        else:
            del self._rows[party]
        return party, item
