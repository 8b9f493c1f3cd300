"""Quorum arithmetic: write sets, ack sets, and when responders cover every possible ack set.

`covers` alone answers "may a recoverer conclude?". A fence must hit every ack set of every write
set; the proof of one entry's absence must hit every ack set of that entry's write set. A majority
of the ensemble is wrong in general. The same function serves the striped form (write sets are runs
of the ensemble) and, later, the flexible form (the caller lists the write sets).

Pure. Called by the ledger writer, recovery and the reader. Source: docs/protocol/write.md "Write
sets", R12.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from duramen.ids import EntryId, Member


@dataclass(frozen=True, slots=True)
class Quorum:
    """Ensemble size E, write quorum Qw and ack quorum Qa, with E ≥ Qw ≥ Qa ≥ 1."""

    ensemble_size: int
    write_quorum: int
    ack_quorum: int

    def __post_init__(self) -> None:
        if not self.ensemble_size >= self.write_quorum >= self.ack_quorum >= 1:
            raise ValueError(
                f"ensemble {self.ensemble_size}, write {self.write_quorum}, ack "
                f"{self.ack_quorum}: ensemble ≥ write ≥ ack ≥ 1 must hold"
            )

    @property
    def cover_count(self) -> int:
        """Members of one write set that must answer: (Qw − Qa) + 1."""
        return self.write_quorum - self.ack_quorum + 1


def write_set(ensemble: tuple[Member, ...], quorum: Quorum, entry: EntryId) -> tuple[Member, ...]:
    """The Qw consecutive members that hold `entry`, beginning at entry mod E."""
    size = len(ensemble)
    if quorum.write_quorum == size:
        return ensemble
    start = entry % size
    return tuple(ensemble[(start + k) % size] for k in range(quorum.write_quorum))


def write_sets(ensemble: tuple[Member, ...], quorum: Quorum) -> tuple[tuple[Member, ...], ...]:
    """Every write set that the ensemble has: one if Qw = E, otherwise E."""
    if quorum.write_quorum == len(ensemble):
        return (ensemble,)
    return tuple(write_set(ensemble, quorum, EntryId(i)) for i in range(len(ensemble)))


def has_ack_set(holders: Collection[Member], ensemble: tuple[Member, ...], quorum: Quorum) -> bool:
    """Whether Qa members of one write set are among them."""
    sets = write_sets(ensemble, quorum)
    return any(sum(m in holders for m in one) >= quorum.ack_quorum for one in sets)


def covers(
    responders: Collection[Member], sets: Iterable[tuple[Member, ...]], ack_quorum: int
) -> bool:
    """Whether the responders hit every possible ack set of every write set (R12).

    An ack set avoids the responders exactly if Qa members of a write set are not among them.
    """
    return all(sum(member not in responders for member in one) < ack_quorum for one in sets)
