"""What a mutant is: a rule, what breaks it, and the attributes that are replaced for that.

Part of `tests.sim.mutants`, whose modules hold them by subject.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.sim.focus import Focus

Patch = tuple[Any, str, Any]
"""An owner, the name of its attribute, and what is put in its place."""


class Mutant(NamedTuple):
    """One broken rule."""

    rule: str
    """R and its number, an invariant, or the page that has the promise (docs/protocol/rules.md)."""

    text: str
    patches: tuple[Patch, ...]
    is_standing: bool = False
    """Hunted in the runs of `tests.sim.standing`."""

    focus: Focus | None = None
    """Hunted in runs in which nothing else goes wrong: what is needed is too rare in the others."""

    copysets: str = "striped"
    """Of the logs of the runs in which it is hunted, unless these have a focus."""
