"""Placement: where an ensemble may lie (R20), a choice that satisfies it, and why there is none.

`rule` is the rule and its check, `choice` what the sequencer asks, `search` and `room` how it is
answered, `roster` who may be chosen, `advice` what a configuration could ever do.
"""

from duramen.core.placement.choice import choose_ensemble, choose_replacements, explain_refusal
from duramen.core.placement.rule import (
    Candidate,
    PlacementRule,
    Refusal,
    Violation,
    find_violations,
    satisfies,
)

__all__ = [
    "Candidate",
    "PlacementRule",
    "Refusal",
    "Violation",
    "choose_ensemble",
    "choose_replacements",
    "explain_refusal",
    "find_violations",
    "satisfies",
]
