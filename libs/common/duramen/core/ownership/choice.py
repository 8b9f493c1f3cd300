"""Which sequencer should get a log's appends: this one, another, or nobody can say yet.

The owner node is advice, and so is the hash. The sequencers that a proxy has tried in vain are
better advice than either. A sequencer that was tried is never named again. So if two sequencers
each believe in the other, one of them ends up claiming or waiting, and the append does not circle.
Safety is not decided here: seals and compare-and-set keep a log right whoever claims it (R2).

Called by the sequencer's `ownership.claims` and by the simulator.
Source: docs/protocol/ownership.md "Whose is a log" and "Failure detection".
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from typing import NamedTuple


class OwnerVerdict(enum.Enum):
    """What to do with an append for the log."""

    OURS = "ours"
    """Take the log over, or go on: it is this sequencer's."""
    HELD = "held"
    """The named owner is an embedded writer: it takes no appends of others, and nobody takes its
    log while its session lives (ADR 0013)."""
    REDIRECT = "redirect"
    """The named sequencer should get it."""
    PROBE = "probe"
    """The named owner did not take it: look whether its process is there at all, then ask
    `choose_next_owner` if it is not, and wait for it if it is."""


class OwnerChoice(NamedTuple):
    """The verdict and the sequencer that it names."""

    verdict: OwnerVerdict
    sequencer_id: str


def choose_owner(
    self_id: str,
    *,
    owner: str | None,
    is_embedded: bool = False,
    pending_owner: str | None,
    ranked: Sequence[str],
    live: Collection[str],
    tried: Collection[str],
) -> OwnerChoice:
    """Decide about a log that this sequencer does not run.

    Args:
        owner: whom the owner node names.
        is_embedded: whether that is an embedded writer.
        pending_owner: to whom this sequencer handed the log over lately.
        ranked: live sequencers by their claim on the log, strongest first.
        live: sequencers of the roster; also those of weight 0, which `ranked` leaves out.
        tried: sequencers that the append has been to in vain.
    """
    if owner == self_id:
        return OwnerChoice(OwnerVerdict.OURS, self_id)
    if owner is not None and is_embedded:
        return OwnerChoice(OwnerVerdict.HELD, owner)
    if owner is not None:
        is_asked = owner in live and owner not in tried
        return OwnerChoice(OwnerVerdict.REDIRECT if is_asked else OwnerVerdict.PROBE, owner)
    return choose_next_owner(
        self_id,
        pending_owner=pending_owner if pending_owner in live else None,
        ranked=ranked,
        tried=tried,
    )


def choose_next_owner(
    self_id: str, *, pending_owner: str | None, ranked: Sequence[str], tried: Collection[str]
) -> OwnerChoice:
    """Whose a log without a living owner becomes; this sequencer's when nobody else is left."""
    known = ranked if pending_owner is None else (pending_owner, *ranked)
    first = next((name for name in known if name not in tried), self_id)
    return OwnerChoice(OwnerVerdict.OURS if first == self_id else OwnerVerdict.REDIRECT, first)
