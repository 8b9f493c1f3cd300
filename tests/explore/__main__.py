"""`python -m tests.explore`: explore the clean worlds of a bound, or one mutant, and print.

    python -m tests.explore [--bound small|large] [--only NAME]
    python -m tests.explore --mutant NAME        prints the counterexample

Exit codes: 0 as expected (clean worlds without a fault, a mutant with one), 1 not, 2 usage.
Source: docs/explorer.md.
"""

from __future__ import annotations

import argparse
import sys

from tests.explore.mutants import MUTANTS
from tests.explore.search import search
from tests.explore.worlds import BOUNDS


def main() -> int:
    """Explore, print, judge."""
    parser = argparse.ArgumentParser(prog="python -m tests.explore", description=__doc__)
    parser.add_argument("--bound", choices=BOUNDS, default="small")
    parser.add_argument("--only", help="one clean world of the bound")
    parser.add_argument("--mutant", choices=MUTANTS)
    options = parser.parse_args()
    if options.mutant is not None:
        result = search(MUTANTS[options.mutant], state_count_max=10_000_000)
        sys.stdout.write(f"{result}\n")
        return 0 if result.fault else 1
    names = {world.scenario.name for world in BOUNDS[options.bound]}
    if options.only is not None and options.only not in names:
        parser.error(f"--only: one of {', '.join(sorted(names))}")
    is_clean = True
    for world in BOUNDS[options.bound]:
        if options.only in {None, world.scenario.name}:
            result = search(
                world.scenario, state_count_max=world.state_count_max, is_deep=world.is_deep
            )
            sys.stdout.write(f"{result}\n")
            sys.stdout.flush()
            is_clean &= not result.fault
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
