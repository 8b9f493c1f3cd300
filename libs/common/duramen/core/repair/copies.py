"""Which entries a member is to hold, and what comparing copies says about them.

A copy is verified when it has every entry of its write sets, with the identity that the other
holders have. Four things keep it from that: an entry that nobody has, an entry that a member cannot
vouch for (R15), an entry that a member without an answer may hold, and an entry of which two
members hold different ones. Copies are compared piece by piece; an entry costs some bytes while its
piece is looked at.

Pure. Not here: reading the copies. Called by the auditor's workers.
Source: docs/protocol/repair.md, R9, R15, R21.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from duramen.core.entry_ranges import group_ranges
from duramen.core.repair.audit import Stretch
from duramen.core.segment import Segment
from duramen.ids import EntryId, Member


class Piece(NamedTuple):
    """Entries `first` … `last` of a fragment, compared and copied in one go."""

    first: EntryId
    last: EntryId


class EntryFault(enum.Enum):
    """Why an entry cannot be verified."""

    ABSENT = "absent"
    """Nobody who was asked has it."""
    UNKNOWN = "unknown"
    """Somebody cannot vouch for it, and nobody has it."""
    DIFFERENT = "different"
    """Two members hold different entries."""
    SILENT = "silent"
    """Nobody who may have it answered."""
    NOT_COPIED = "not copied"
    """Others have it, and the target still does not."""


@dataclass(slots=True)
class Holdings:
    """What one member was found to hold of a piece: identities, and what it cannot vouch for."""

    identities: dict[EntryId, int] = field(default_factory=dict)
    unknown: list[tuple[EntryId, EntryId]] = field(default_factory=list)

    def is_unknown(self, entry: EntryId) -> bool:
        """Whether the member cannot vouch for the entry."""
        return any(first <= entry <= last for first, last in self.unknown)


class Flaw(NamedTuple):
    """Entries `first` … `last` cannot be verified at `member`, for one reason."""

    member: Member
    first: EntryId
    last: EntryId
    fault: EntryFault


def cut(stretch: Stretch, entry_count: int) -> Iterator[Piece]:
    """The stretch in pieces of so many entries at most."""
    for first in range(stretch.first, stretch.last + 1, entry_count):
        yield Piece(EntryId(first), EntryId(min(first + entry_count - 1, stretch.last)))


def expected_entries(segment: Segment, stretch: Stretch, place: int, piece: Piece) -> list[EntryId]:
    """The entries of a piece that the member at `place` of the ensemble is to hold."""
    size, width = segment.quorum.ensemble_size, segment.quorum.write_quorum
    assert 0 <= place < size, (place, segment)
    return [
        EntryId(entry)
        for entry in range(piece.first, piece.last + 1)
        if (place - entry) % size < width and segment.absence_at(EntryId(entry)) is None
    ]


def missing_ranges(expected: Sequence[EntryId], held: Holdings) -> list[tuple[EntryId, EntryId]]:
    """What of the expected entries is not held with good bytes, as ranges of entries."""
    absent = [entry for entry in expected if entry not in held.identities]
    return [(EntryId(first), EntryId(last)) for first, last in group_ranges(absent)]


def compare(
    target: Member,
    expected: Sequence[EntryId],
    held: Holdings,
    sources: Mapping[Member, Holdings],
    silent: Sequence[Member] = (),
) -> list[Flaw]:
    """What keeps the target's copy of the expected entries from being verified; nothing: it is.

    Args:
        sources: what members other than the target hold; `silent`: those who did not answer.
    """
    faults: dict[EntryFault, list[EntryId]] = {fault: [] for fault in EntryFault}
    for entry in expected:
        fault = _find_fault(entry, held, sources, is_somebody_silent=bool(silent))
        if fault is not None:
            faults[fault].append(entry)
    return [
        Flaw(target, EntryId(first), EntryId(last), fault)
        for fault, entries in faults.items()
        for first, last in group_ranges(entries)
    ]


def _find_fault(
    entry: EntryId,
    held: Holdings,
    sources: Mapping[Member, Holdings],
    *,
    is_somebody_silent: bool,
) -> EntryFault | None:
    known = [found.identities[entry] for found in sources.values() if entry in found.identities]
    own = held.identities.get(entry)
    if any(identity != known[0] for identity in known) or (known and own not in (None, known[0])):
        return EntryFault.DIFFERENT
    if known:
        return EntryFault.NOT_COPIED if own is None else None
    if is_somebody_silent:
        return EntryFault.SILENT
    if own is not None:
        return None  # the only copy that is left, or the only one that there is to be
    if held.is_unknown(entry) or any(found.is_unknown(entry) for found in sources.values()):
        return EntryFault.UNKNOWN
    return EntryFault.ABSENT
