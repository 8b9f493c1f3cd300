"""Which bookie takes whose place in a fragment, so that R20 holds for every write set afterwards.

One place changes at a time, because each change is a copy, its verification and one
compare-and-set. If several members are lost, or the fragment was misplaced before, a single change
may not be enough for the rule. The change is then the first step of a plan that is. Strict and
preferred logs are treated alike: repair has time, and waits for a good place rather than take a bad
one.

Pure. Not here: copying and the compare-and-set (`duramen_sequencer.repair`). Called by the
auditor's workers, and by `rebalance` for the rule. Source: R20, R21.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from duramen.core.placement import Candidate, PlacementRule, choose_replacements, satisfies
from duramen.core.quorum import Quorum
from duramen.core.repair.cluster_view import ClusterView, CopyFate
from duramen.core.segment import Fragment
from duramen.ids import Member

_TRIES: Final = 32
"""Random orders of the candidates that are tried for several members at once."""

_PLAN_COUNT_MAX: Final = 200
"""Sets of members that are tried for a misplaced fragment: all pairs of an ensemble of twenty."""


class Swap(NamedTuple):
    """`new` shall take the place of `old`."""

    old: Member
    new: Member


@dataclass(frozen=True, slots=True)
class SwapChoice:
    """Chooses swaps for the fragments of one segment.

    Args:
        candidates: those of the view that have room for one more task.
    """

    quorum: Quorum
    rule: PlacementRule
    view: ClusterView
    candidates: Sequence[Candidate]
    rng: random.Random

    def choose(self, fragment: Fragment, old: Member | None) -> Swap | None:
        """The next swap, or None if no candidate helps.

        Args:
            old: the member to be replaced; None: whichever makes a misplaced fragment placed well.
        """
        if old is None:
            return self._choose_move(fragment)
        going = (CopyFate.LOST, CopyFate.LEAVING)
        bad = [m for m in fragment.ensemble if m == old or self.view.fate(m) in going]
        for failed in ([old], bad):
            plan = self._plan(fragment, failed)
            if plan is not None:
                return next((swap for swap in plan if swap.old == old), plan[0])
        return None

    def _choose_move(self, fragment: Fragment) -> Swap | None:
        """The first swap of the smallest set of members whose replacement places a fragment."""
        sizes = range(1, len(fragment.ensemble) + 1)
        sets = itertools.chain.from_iterable(
            itertools.combinations(fragment.ensemble, size) for size in sizes
        )
        for members in itertools.islice(sets, _PLAN_COUNT_MAX):
            plan = self._plan(fragment, members)
            if plan is not None:
                return plan[0]
        return None

    def _plan(self, fragment: Fragment, failed: Collection[Member]) -> list[Swap] | None:
        """Swaps after all of which the rule holds, each for a bookie not in the ensemble."""
        locations = self.view.locations()
        strict = replace(self.rule, is_strict=True)
        # Of several the choice may ask at each place what only the whole can promise: then chance
        # proposes, and the rule disposes.
        lenient = [] if len(failed) == 1 else [replace(self.rule, is_strict=False)] * _TRIES
        for step_rule in (strict, *lenient):
            ensemble = choose_replacements(
                fragment.ensemble,
                failed,
                self.candidates,
                self.quorum,
                step_rule,
                locations,
                self.rng,
            )
            if ensemble is not None and satisfies(ensemble, self.quorum, strict, locations):
                pairs = zip(fragment.ensemble, ensemble, strict=True)
                return [Swap(old, new) for old, new in pairs if old != new]
        return None


def can_take(
    fragment: Fragment, swap: Swap, quorum: Quorum, rule: PlacementRule, view: ClusterView
) -> bool:
    """Whether the fragment satisfies the rule after the swap, with bookies that are there."""
    taken = {member.bookie for member in fragment.ensemble if member != swap.old}
    ensemble = tuple(swap.new if member == swap.old else member for member in fragment.ensemble)
    strict = replace(rule, is_strict=True)
    return swap.new.bookie not in taken and satisfies(ensemble, quorum, strict, view.locations())
