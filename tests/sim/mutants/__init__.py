"""Mutants: each breaks one rule of the protocol in the production cores; the simulator must see it.

A mutant is a set of replaced attributes, put in place for the length of a run and only here: no
flag of it exists in production code. `python -m tests.sim.mutants` runs seeds against each until a
checker, a core's invariant or the convergence at the end objects, and prints the first seed that
catches it and by what; one that survives all its seeds fails the command.

The modules hold them by subject. Source: docs/protocol/rules.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from tests.sim.mutants import (
    archive,
    bookie,
    drivers,
    early_appends,
    exactly_once,
    flexible,
    healing,
    hints,
    life,
    metadata_logs,
    readers,
    repair,
    sequencer,
    writer,
)
from tests.sim.mutants.mutant import Mutant, Patch

__all__ = ["MUTANTS", "Mutant", "Patch", "mutated"]

MUTANTS: Final[dict[str, Mutant]] = {
    **bookie.MUTANTS,
    **writer.MUTANTS,
    **drivers.MUTANTS,
    **sequencer.MUTANTS,
    **exactly_once.MUTANTS,
    **early_appends.MUTANTS,
    **life.MUTANTS,
    **archive.MUTANTS,
    **metadata_logs.MUTANTS,
    **repair.MUTANTS,
    **healing.MUTANTS,
    **readers.MUTANTS,
    **flexible.MUTANTS,
    **hints.MUTANTS,
}


@contextlib.contextmanager
def mutated(name: str | None) -> Iterator[None]:
    """Run the block with a mutant in place; None: with none."""
    patches = () if name is None else MUTANTS[name].patches
    kept = [(owner, attribute, vars(owner).get(attribute)) for owner, attribute, _ in patches]
    for owner, attribute, value in patches:
        setattr(owner, attribute, value)
    try:
        yield
    finally:
        for owner, attribute, value in kept:
            if value is None:  # it was inherited
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, value)
