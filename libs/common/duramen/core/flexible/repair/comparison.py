"""Which needed entries of a piece the witnesses do not hold as RP asks, and why not.

Every entry is judged by itself, from what nodes were found to hold of the piece. Short entries that
the same nodes hold, and of which the same nodes are unsure, are one group: they are copied alike.
An entry that nobody holds, or of which two identities are there, cannot be copied.

Pure. Not here: who shall hold more (`targets`). Called by `attempt`. Source: R15, R26,
docs/protocol/repair.md "Repair of a flexible segment".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from duramen.core.entry_ranges import EntryRanges, join_entries
from duramen.core.flexible.nodeset import NodesetRow
from duramen.core.flexible.repair.repair_map import RepairMap
from duramen.core.repair.copies import Flaw, Holdings, compare
from duramen.ids import EntryId, Member, NodeNumber


class ShortGroup(NamedTuple):
    """Entries that want the same copies.

    `holders`: all who are there and hold them, going ones too. `unsure`: witnesses that cannot
    vouch for them; a copy there mends them.
    """

    entries: tuple[EntryId, ...]
    holders: tuple[NodesetRow, ...]
    unsure: tuple[NodesetRow, ...]


class PieceJudgement(NamedTuple):
    """What is to be copied, and what cannot be."""

    short: Sequence[ShortGroup]
    hopeless: Sequence[EntryId]


def join_ranges(groups: Collection[ShortGroup]) -> tuple[tuple[EntryId, EntryId], ...]:
    """All entries of some groups as closed ranges, ascending."""
    return join_entries(sorted(entry for group in groups for entry in group.entries))


def judge_piece(
    needed: Sequence[EntryId],
    found: Mapping[NodeNumber, Holdings],
    repair_map: RepairMap,
) -> PieceJudgement:
    """Judge the needed entries of a piece.

    Args:
        found: what each node that answered holds of the piece.
    """
    rows = [row for row in repair_map.there if row.number in found]
    witnesses = frozenset(row.number for row in repair_map.witnesses)
    unknown = {number: EntryRanges(held.unknown) for number, held in found.items()}
    groups: dict[tuple[tuple[NodesetRow, ...], tuple[NodesetRow, ...]], list[EntryId]] = {}
    hopeless = []
    for entry in needed:
        holders = tuple([row for row in rows if entry in found[row.number].identities])
        identities = {found[row.number].identities[entry] for row in holders}
        if len(identities) != 1:
            # With two of them nobody knows which is right: a copy of one would outvote the other.
            hopeless.append(entry)
            continue
        if repair_map.satisfies([row.number for row in holders if row.number in witnesses]):
            continue
        unsure = tuple(
            [
                row
                for row in repair_map.witnesses
                if row not in holders and row.number in unknown and entry in unknown[row.number]
            ]
        )
        groups.setdefault((holders, unsure), []).append(entry)
    short = [ShortGroup(tuple(entries), *key) for key, entries in groups.items()]
    return PieceJudgement(short, hopeless)


def find_flaws(
    entries: Collection[EntryId],
    found: Mapping[NodeNumber, Holdings],
    repair_map: RepairMap,
) -> list[Flaw]:
    """Why these entries are not held as RP asks, each named with a row that stands in the way."""
    rows = repair_map.segment.nodes
    silent = [
        row.member
        for row in rows
        if row.number not in found and not repair_map.view.is_gone(row.member)
    ]
    sources = {row.member: found[row.number] for row in rows if row.number in found}
    blamed: Member = silent[0] if silent else rows[0].member
    return compare(blamed, sorted(entries), Holdings(), sources, silent)
