"""`python -m tests.sim.mutants [NAME…]`, which is `make mutants`: hunt all, or those named.

For each the first seed that catches it is printed, and who objected there. Exit codes: 0 all were
caught, 1 one survived its seeds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from functools import partial
from typing import NamedTuple

from tests.sim.focus import play_focused
from tests.sim.mutants import MUTANTS, mutated
from tests.sim.run import run_seed
from tests.sim.standing import play_standing


class Catch(NamedTuple):
    """Who saw a mutant first: the seed, and the checker, invariant or liveness that objected."""

    seed: int
    by: str


def hunt(name: str, seed_count: int, *, first: int = 1, jobs: int = 2) -> Catch | None:
    """The first of the seeds (in order) that catches the mutant, or None if it survives them."""
    with multiprocessing.Pool(jobs, maxtasksperchild=1) as pool:
        seeds = range(first, first + seed_count)
        for seed, violation in pool.imap(partial(_play, name), seeds):
            if violation is not None:
                pool.terminate()
                return Catch(seed, violation.partition("\n")[0][:60])
    return None


def _play(name: str, seed: int) -> tuple[int, str | None]:
    mutant = MUTANTS[name]
    with mutated(name):
        if mutant.focus is not None:
            return seed, play_focused(seed, mutant.focus).violation
        if mutant.is_standing:
            return seed, play_standing(seed).violation
        return seed, run_seed(seed, copysets=mutant.copysets).violation


def main() -> int:
    """Hunt every mutant, or those named; 1 if one survives."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.mutants")
    parser.add_argument("names", nargs="*", help="all if none is named")
    parser.add_argument(
        "--seeds", type=int, default=2_000, help="a mutant that survives them fails"
    )
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    seeds = []
    for name in options.names or MUTANTS:
        catch = hunt(name, options.seeds, jobs=options.jobs)
        found = "SURVIVES" if catch is None else f"seed {catch.seed:<5} {catch.by}"
        print(f"{MUTANTS[name].rule:12} {name:38} {found}", flush=True)
        seeds.append(None if catch is None else catch.seed)
    caught = sorted(seed for seed in seeds if seed is not None)
    if caught:
        print(f"{len(caught)} of {len(seeds)} caught, median seed {caught[len(caught) // 2]}")
    return 0 if len(caught) == len(seeds) else 1


if __name__ == "__main__":
    sys.exit(main())
