"""Kinds of logs that a test of striped, ordered logs runs with too: copysets × ack mode.

The gate has no time for all of them, so that each test draws one; the night plays all. What was
drawn is printed, where pytest shows it with a failure, with the variable that repeats it:
DURAMEN_COMBINATION=flexible/ordered for one, `all` for all of them.

Called by tests of scenarios and chaos. Source: docs/testing.md "Kinds of logs".
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Final, NamedTuple

from tests.tiers import Tier, read_tier

VARIABLE: Final = "DURAMEN_COMBINATION"


class Combination(NamedTuple):
    """What a log is, as far as its configuration says."""

    copysets: str
    ack_mode: str

    def __str__(self) -> str:
        return f"{self.copysets}/{self.ack_mode}"


FIRST: Final = Combination("striped", "ordered")
"""What tests were written for."""

OTHERS: Final = (
    Combination("striped", "out_of_order"),
    Combination("flexible", "ordered"),
    Combination("flexible", "out_of_order"),
)


def choose_combinations(test: str, possible: Sequence[Combination] = OTHERS) -> list[Combination]:
    """Those of the possible ones that a test runs with now, told on standard output.

    Args:
        test: its name, for people.

    Raises:
        ValueError: the variable names none.
    """
    asked = os.environ.get(VARIABLE, "")
    known = {str(one): one for one in (FIRST, *OTHERS)}
    if asked not in ("", "all", *known):
        raise ValueError(f"{VARIABLE}={asked!r} is none of {', '.join(known)}, all")
    if asked in known:
        chosen = [one for one in possible if one == known[asked]]
    elif asked or read_tier() is Tier.NIGHT:
        chosen = list(possible)
    else:
        chosen = [random.SystemRandom().choice(possible)] if possible else []
    for one in chosen:
        print(f"{test} with {one}; again: {VARIABLE}={one}")
    return chosen
