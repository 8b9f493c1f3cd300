"""Which fragments were compared since a bookie of theirs became doubtful, in bounded memory.

A doubtful bookie lost records of its journal without knowing which (R15). A record that is lost
whole has no report of its own, so every ended fragment that names the bookie is compared once. The
memory of that is a pass over the ledgers in their order, one for each bookie: a *floor* up to which
nothing is asked any more, and the compared fragments above it. When those are too many the floor
rises. It may rise over fragments that were not ended or could not be compared yet; another pass
follows for them. A bookie that was away, or comes back in doubt, begins anew.

Pure; one object per auditor. Called by the auditor's readings.
Source: R9, R15; docs/protocol/repair.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from duramen.core.repair.cluster_view import BookieState
from duramen.ids import EntryId, LedgerId, Member
from duramen.limits import DOUBT_FRAGMENT_COUNT_MAX

_BELOW_ALL = LedgerId(-1)


class LedgerDoubts(NamedTuple):
    """Members in doubt about one ledger, and (member, first entry) of what was compared since."""

    doubtful: frozenset[Member] = frozenset()
    compared: frozenset[tuple[Member, EntryId]] = frozenset()


@dataclass(slots=True)
class _Pass:
    """Of one bookie: ledgers up to `floor` are done with; `above`: what else was compared."""

    floor: LedgerId = _BELOW_ALL
    above: dict[LedgerId, set[EntryId]] = field(default_factory=dict)
    has_skipped: bool = False

    @property
    def fragment_count(self) -> int:
        return sum(map(len, self.above.values()))


class Doubts:
    """The passes of all doubtful bookies.

    Invariants:
     1 at most `count_max` fragments are remembered, over all bookies.
     2 nothing is remembered at or below a floor.
    """

    def __init__(self, count_max: int = DOUBT_FRAGMENT_COUNT_MAX) -> None:
        assert count_max >= 1, count_max
        self._count_max = count_max
        self._passes: dict[Member, _Pass] = {}
        self._count = 0
        self._counts = dict.fromkeys(("compared", "floors_raised", "passes_repeated"), 0)

    def observe(self, states: Iterable[BookieState]) -> None:
        """The bookies as they are now; who is not there is not known to be in the same doubt."""
        doubtful = [s.member for s in states if s.is_doubtful]
        self._passes = {m: self._passes.get(m) or _Pass() for m in sorted(doubtful)}
        self._count = sum(one.fragment_count for one in self._passes.values())

    def forget(self) -> None:
        """The auditor looked away."""
        self._passes, self._count = {}, 0

    def about(self, ledger_id: LedgerId) -> LedgerDoubts:
        """Who is in doubt about a ledger, and of which fragments no more."""
        asked = {m: one for m, one in self._passes.items() if ledger_id > one.floor}
        if not asked:
            return _NO_DOUBTS
        compared = [(m, e) for m, one in asked.items() for e in one.above.get(ledger_id, ())]
        return LedgerDoubts(frozenset(asked), frozenset(compared))

    def clear(self, member: Member, ledger_id: LedgerId, first: EntryId) -> None:
        """The member's copy of a fragment was compared, and is whole."""
        one = self._passes.get(member)
        if one is None or ledger_id <= one.floor or first in one.above.get(ledger_id, ()):
            return
        one.above.setdefault(ledger_id, set()).add(first)
        self._count += 1
        self._counts["compared"] += 1
        if self._count > self._count_max:
            self._raise_floor(max(self._passes.values(), key=lambda other: other.fragment_count))

    def end_round(self, in_doubt: Mapping[Member, int]) -> None:
        """A whole round is over. `in_doubt`: fragments that are still to be compared."""
        for member, one in self._passes.items():
            if one.has_skipped and not in_doubt.get(member):
                self._count -= one.fragment_count
                one.floor, one.has_skipped = _BELOW_ALL, False
                one.above.clear()
                self._counts["passes_repeated"] += 1

    def statistics(self) -> dict[str, Any]:
        """What is remembered, and how often it was too much."""
        return {
            "bookies": sorted(member.bookie for member in self._passes),
            "fragments": self._count,
            "fragments_max": self._count_max,
            **self._counts,
        }

    def validate(self) -> None:
        """Assert the invariants."""
        assert self._count == sum(one.fragment_count for one in self._passes.values())
        assert self._count <= self._count_max, f"1: {self._count}"
        for one in self._passes.values():
            assert all(ledger_id > one.floor for ledger_id in one.above), f"2: {one}"

    def _raise_floor(self, one: _Pass) -> None:
        """Forget the lower half of a pass; at least one ledger, whatever was skipped below it."""
        ledgers = sorted(one.above)
        done = ledgers[: max(1, len(ledgers) // 2)]
        for ledger_id in done:
            self._count -= len(one.above.pop(ledger_id))
        one.floor, one.has_skipped = done[-1], True
        self._counts["floors_raised"] += 1


_NO_DOUBTS = LedgerDoubts()
