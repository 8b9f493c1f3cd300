"""Compares copies and has them made, through the data ports of the bookies.

Works piece by piece: what the members hold (`inventory`), what is missing at the target (`pull`, by
the target itself), what it holds then. What comes back are flaws: entries that could not be
verified, and why. No metadata is read or changed here.

Not here: which copies, and what follows (`worker`). Called by `worker`.
Source: docs/protocol/repair.md, R1, R9, R13, R15.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from duramen.client.bookie_client import BookieClient
from duramen.core.flexible.repair.evidence import DamageMark
from duramen.core.repair.audit import Stretch
from duramen.core.repair.cluster_view import ClusterView
from duramen.core.repair.copies import (
    EntryFault,
    Flaw,
    Holdings,
    Piece,
    compare,
    cut,
    expected_entries,
    missing_ranges,
)
from duramen.core.segment import Segment
from duramen.core.status import BookieStatus
from duramen.ids import EntryId, LedgerId, Member
from duramen.limits import (
    PULL_BYTES_MAX,
    PULL_RANGE_COUNT_MAX,
    REPAIR_CALL_TIMEOUT_US,
    REPAIR_PIECE_ENTRY_COUNT,
)
from duramen.wire.repair_calls import Inventory, Pull, PullMap, Source, mark_question

_CALLS_WITHOUT_GAIN_MAX: Final = 3
"""Answers of one bookie in a row that do not get further: then it counts as silent."""

OnBytes = Callable[[int], None]


class Comparison(NamedTuple):
    """What a comparison of all copies of a fragment came to.

    `whole`: members whose every entry was verified; `silent`: members that were not asked, or did
    not answer.
    """

    flaws: list[Flaw]
    whole: list[Member]
    silent: list[Member]


class Copier:
    """Compares and copies for one auditor.

    Args:
        piece_entry_count: entries that are compared in one go.
    """

    def __init__(
        self, client: BookieClient, *, piece_entry_count: int = REPAIR_PIECE_ENTRY_COUNT
    ) -> None:
        self._client = client
        self._piece_entry_count = piece_entry_count
        self._counts = dict.fromkeys(
            ("marks", "inventories", "pulls", "entries_compared", "entries_copied", "bytes_copied"),
            0,
        )

    def statistics(self) -> dict[str, int]:
        """Calls and what came of them."""
        return dict(self._counts)

    async def copy(  # noqa: PLR0917 - one verified copy, named in full
        self,
        segment: Segment,
        stretch: Stretch,
        place: int,
        target: Member,
        view: ClusterView,
        on_bytes: OnBytes,
    ) -> list[Flaw]:
        """Make the copy of the member at `place` at `target`, and verify it; no flaws: it is whole.

        Ends with the first piece that has flaws: the copy cannot be used then.
        """
        ensemble = stretch.fragment.ensemble
        others = [member for member in ensemble if member != target and view.is_there(member)]
        # The one that is to go comes last: it may be slow, or about to stop.
        others.sort(key=lambda member: member == ensemble[place])
        silent = [m for m in ensemble if m not in others and not view.is_gone(m)]
        for piece in cut(stretch, self._piece_entry_count):
            expected = expected_entries(segment, stretch, place, piece)
            if not expected:
                continue
            flaws = await self._copy_piece(
                segment.ledger_id, piece, expected, target, others, silent, view, on_bytes
            )
            if flaws:
                return flaws
        return []

    async def fill(
        self, segment: Segment, stretch: Stretch, view: ClusterView, on_bytes: OnBytes
    ) -> Comparison:
        """Compare the copies of all members and have each fetch what it misses."""
        ensemble = stretch.fragment.ensemble
        there = [member for member in ensemble if view.is_there(member)]
        flaws: list[Flaw] = []
        silent = {member: None for member in ensemble if member not in there}
        for piece in cut(stretch, self._piece_entry_count):
            held, quiet = await self.take_holdings_of(segment.ledger_id, piece, there, view)
            silent.update(dict.fromkeys(quiet))
            expected = {
                member: expected_entries(segment, stretch, ensemble.index(member), piece)
                for member in held
            }
            for member in list(held):
                missing = missing_ranges(expected[member], held[member])
                if missing:
                    sources = [other for other in held if other != member]
                    await self.pull(segment.ledger_id, member, missing, sources, view, on_bytes)
                    again = await self.take_holdings(segment.ledger_id, piece, member, view)
                    held[member] = held[member] if again is None else again
            for member in held:
                others = {other: found for other, found in held.items() if other != member}
                flaws += compare(member, expected[member], held[member], others, list(silent))
                self._counts["entries_compared"] += len(expected[member])
        flawed = {flaw.member for flaw in flaws}
        whole = [member for member in there if member not in silent and member not in flawed]
        return Comparison(flaws, whole, list(silent))

    async def _copy_piece(  # noqa: PLR0917 - as `copy`, of one piece
        self,
        ledger_id: LedgerId,
        piece: Piece,
        expected: Sequence[EntryId],
        target: Member,
        others: Sequence[Member],
        silent: Sequence[Member],
        view: ClusterView,
        on_bytes: OnBytes,
    ) -> list[Flaw]:
        held = await self.take_holdings(ledger_id, piece, target, view)
        if held is None:
            return _all_flawed(target, piece)
        missing = missing_ranges(expected, held)
        if missing:
            await self.pull(ledger_id, target, missing, others, view, on_bytes)
            held = await self.take_holdings(ledger_id, piece, target, view)
        if held is None:
            return _all_flawed(target, piece)
        found, quiet = await self.take_holdings_of(ledger_id, piece, others, view)
        self._counts["entries_compared"] += len(expected)
        return compare(target, expected, held, found, [*silent, *quiet])

    # --- Calls -----------------------------------------------------------------------------------

    async def take_holdings_of(
        self, ledger_id: LedgerId, piece: Piece, members: Sequence[Member], view: ClusterView
    ) -> tuple[dict[Member, Holdings], list[Member]]:
        """What members hold, and those who did not answer."""
        answers = await asyncio.gather(
            *(self.take_holdings(ledger_id, piece, member, view) for member in members)
        )
        pairs = list(zip(members, answers, strict=True))
        found = {member: held for member, held in pairs if held is not None}
        return found, [member for member, held in pairs if held is None]

    async def take_holdings(
        self, ledger_id: LedgerId, piece: Piece, member: Member, view: ClusterView
    ) -> Holdings | None:
        """What one member holds of a piece, read anew from its disks; None: it did not say."""
        source = _source_of(member, view)
        if source is None:
            return None
        held = Holdings()
        first: EntryId | None = piece.first
        while first is not None:
            self._counts["inventories"] += 1
            answer = await self._client.take_inventory(
                source, Inventory(ledger_id, first, piece.last), REPAIR_CALL_TIMEOUT_US
            )
            if answer.status is not BookieStatus.OK:
                return None
            held.identities.update(answer.entries)
            held.unknown += answer.unknown
            if answer.next is not None and answer.next <= first:
                return None
            first = answer.next if answer.next is None or answer.next <= piece.last else None
        return held

    async def ask_mark(
        self, ledger_id: LedgerId, member: Member, view: ClusterView
    ) -> DamageMark | BookieStatus:
        """The damage mark of a ledger at one member, or why it did not tell one."""
        source = _source_of(member, view)
        if source is None:
            return BookieStatus.UNREACHABLE
        self._counts["marks"] += 1
        answer = await self._client.take_inventory(
            source, mark_question(ledger_id), REPAIR_CALL_TIMEOUT_US
        )
        if answer.status is not BookieStatus.OK:
            return answer.status
        return BookieStatus.UNKNOWN if answer.mark is None else DamageMark(answer.mark)

    async def pull(  # noqa: PLR0917 - one call, spelled out
        self,
        ledger_id: LedgerId,
        target: Member,
        missing: Sequence[tuple[EntryId, EntryId]],
        others: Sequence[Member],
        view: ClusterView,
        on_bytes: OnBytes,
        node_map: PullMap | None = None,
    ) -> None:
        """Have `target` fetch entries, call after call; the inventory tells what came of it.

        Args:
            node_map: of a flexible segment; copies get envelopes by it.
        """
        where = _source_of(target, view)
        sources = [s for s in (_source_of(member, view) for member in others) if s is not None]
        left = list(missing)
        tries = 0
        while left and where is not None and sources and tries < _CALLS_WITHOUT_GAIN_MAX:
            self._counts["pulls"] += 1
            ranges = left[:PULL_RANGE_COUNT_MAX]
            lac = EntryId(ranges[0][0] - 1)
            pull = Pull(ledger_id, ranges, sources, lac, PULL_BYTES_MAX, node_map)
            answer = await self._client.pull(where, pull, REPAIR_CALL_TIMEOUT_US)
            self._counts["entries_copied"] += answer.copied_count
            self._counts["bytes_copied"] += answer.copied_bytes
            on_bytes(answer.copied_bytes)
            if answer.status is not BookieStatus.OK:
                return
            rest = left[PULL_RANGE_COUNT_MAX:]
            if answer.next is not None:
                rest = [(max(a, answer.next), b) for a, b in ranges if b >= answer.next] + rest
            tries = 0 if rest != left else tries + 1
            left = rest


def _source_of(member: Member, view: ClusterView) -> Source | None:
    state = view.bookies.get(member.bookie)
    if state is None or state.member != member or not state.data_url:
        return None
    return Source(member, state.data_url)


def _all_flawed(target: Member, piece: Piece) -> list[Flaw]:
    return [Flaw(target, piece.first, piece.last, EntryFault.SILENT)]
