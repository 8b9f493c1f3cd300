"""Which seeds the gate plays: the first few of a long sweep, and those that meet what is rare.

A sweep of a hundred seeds meets by its length what happens in one of twenty. A tenth of the seeds
meets it too, if they are chosen for it: `python -m tests.sim --seeds 130 --choose 4` plays the long
sweep and says which. Called by `__main__`; `test_sim` plays what was chosen.

Not here: what has to be met (`__main__`). Documented in docs/testing.md "A run".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tests.sim.run import Result


class Chosen(NamedTuple):
    """A seed, and what is met in no seed chosen before it, the rarest first."""

    seed: int
    names: tuple[str, ...]


def choose_seeds(
    results: Sequence[Result], kept_count: int, required: Iterable[str]
) -> list[Chosen]:
    """Seeds to play besides the first `kept_count` of a sweep, in order of their numbers.

    Greedy: again and again the seed that meets most of what is still missed, of equals the one
    with the fewest events.
    """
    met_in = {name: [result.seed for result in results if result.counts[name]] for name in required}
    missed = {name for name, seeds in met_in.items() if seeds}
    for result in results[:kept_count]:
        missed -= _list_met(missed, result)
    left = list(results[kept_count:])
    chosen = []
    while missed:
        best = max(left, key=lambda result: (len(_list_met(missed, result)), -result.event_count))
        names = sorted(_list_met(missed, best), key=lambda name: (len(met_in[name]), name))
        chosen.append(Chosen(best.seed, tuple(names)))
        missed -= {*names}
        left.remove(best)
    return sorted(chosen)


def _list_met(missed: set[str], result: Result) -> set[str]:
    return {name for name in missed if result.counts[name]}
