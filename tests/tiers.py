"""How much a sweep does: by the tier that runs it.

Three tiers (CONTRIBUTING.md): `fast` is the inner loop, `gate` what every change must pass and the
default, `night` as much as there is time for. DURAMEN_TIER names it. Only what is a sample has
sizes; what a page or an issue promises stands in the gate as promised, and what is exhaustive there
stays so. A variable of one sweep (DURAMEN_CRASH_STATES and its like) goes before its tier.

Not here: which files a tier runs (Makefile), hypothesis' profile. Called by sweeps in the tests.
"""

from __future__ import annotations

import os
from enum import Enum
from typing import Final

VARIABLE: Final = "DURAMEN_TIER"


class Tier(Enum):
    """In order of what they cost."""

    FAST = "fast"
    GATE = "gate"
    NIGHT = "night"


def read_tier() -> Tier:
    """The tier of this run.

    Raises:
        ValueError: the variable names none; a misspelt night would be a gate that nobody notices.
    """
    name = os.environ.get(VARIABLE, Tier.GATE.value)
    try:
        return Tier(name)
    except ValueError:
        known = ", ".join(tier.value for tier in Tier)
        raise ValueError(f"{VARIABLE}={name!r} is none of {known}") from None


def sized(*, fast: int, gate: int, night: int) -> int:
    """The size of a sweep in this run's tier; never less in a dearer one."""
    assert 0 < fast <= gate <= night, (fast, gate, night)
    return {Tier.FAST: fast, Tier.GATE: gate, Tier.NIGHT: night}[read_tier()]
