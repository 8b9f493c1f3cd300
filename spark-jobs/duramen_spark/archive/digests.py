"""Identities of a flexible segment's entries, as all nodes of its map have them in their books.

Any node may hold any entry, so all are asked for digests: what is durable there, as what, without
a body. No filter is sent, since what a filter leaves out proves nothing, and what a node cannot
vouch for is no word of its (R15). Every copy that is told must be the same entry: two identities
are damage, of which nobody knows which one is right. Who does not answer tells nothing; each entry
needs one who does.

Called by `bookie_source`. Source: docs/protocol/envelopes.md "Read: `POST /b/read`, version 2",
R24, docs/protocol/archive.md "Flexible segments".
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from duramen.core.entry_ranges import EntryRanges
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.status import BookieStatus
from duramen.ids import EntryId, Member
from duramen.limits import OVERLOADED_PAUSE_US, READ_BYTES_MAX, READ_TIMEOUT_US
from duramen.runtime.reading.bookies import read_clock_us
from duramen.runtime.reading.flexible_reads import FilteredBookies
from duramen.units import SECOND
from duramen.wire.bookie_calls import ReadRange, ServiceClass
from duramen.wire.flexible.filtered_answers import FilteredAnswer
from duramen.wire.flexible.filtered_reads import FilteredRange

PATIENCE_US: Final = 10 * SECOND
"""How long a bookie that is overloaded is asked again."""


class SourceError(Exception):
    """Bookies do not tell what they hold of some entry, or not one thing; a later run may get
    on."""


class DigestReader:
    """Reads what the nodes of one CLOSED segment hold of a range."""

    def __init__(
        self, bookies: FilteredBookies, segment: FlexibleSegment, first: EntryId, last: EntryId
    ) -> None:
        self._bookies = bookies
        self._segment = segment
        self._first = first
        self._last = last
        self._missing = EntryRanges(segment.list_present(first, last))
        self._found: dict[EntryId, int] = {}

    async def read(self) -> list[tuple[EntryId, int]]:
        """(entry id, identity CRC32C) of every entry that is to be there.

        Raises:
            SourceError: nobody tells one of them, or two nodes tell different ones.
        """
        members = self._segment.list_holders(self._first)
        # A task of a group would wrap what it raises.
        await _gather([self._ask(member) for member in members])
        if ranges := self._missing.list_ranges():
            raise SourceError(
                f"no bookie says what it holds of e{self._segment.epoch}: {ranges[:3]}"
            )
        return sorted(self._found.items())

    async def _ask(self, member: Member) -> None:
        at = self._first
        while at <= self._last:
            answer = await self._look(member, at)
            if answer.status is not BookieStatus.OK or answer.next <= at:
                return
            self._take(member, answer)
            at = answer.next

    async def _look(self, member: Member, at: EntryId) -> FilteredAnswer:
        """What it says from an entry on; one that is overloaded is asked again for a while."""
        end = self._segment.last_entry
        assert end is not None, self._segment
        wanted = FilteredRange(
            ReadRange(
                self._segment.ledger_id, at, self._last, READ_BYTES_MAX,
                service=ServiceClass.CATCH_UP_READ,
            ),
            bound=end, is_digest=True,
        )  # fmt: skip
        deadline_us = read_clock_us() + PATIENCE_US
        while True:
            answer = await self._bookies.read_filtered(member, wanted, READ_TIMEOUT_US)
            if answer.status is not BookieStatus.OVERLOADED or read_clock_us() >= deadline_us:
                return answer
            await asyncio.sleep(OVERLOADED_PAUSE_US / SECOND)

    def _take(self, member: Member, answer: FilteredAnswer) -> None:
        assert answer.digests is not None, "what does not fit the request is no answer"
        for entry, identity in answer.digests:
            known = self._found.get(entry)
            if known is None:
                # What is lost, or in a hole, may still lie somewhere, and is no entry (R17).
                if entry not in self._missing:
                    continue
                self._found[entry] = identity
                self._missing.remove(entry)
            elif known != identity:
                raise SourceError(
                    f"bookie {member.bookie} holds another entry e{self._segment.epoch}n{entry} "
                    "than others do: `duramen verify` says who"
                )


async def _gather(asks: list[Coroutine[Any, Any, None]]) -> None:
    """All of them; the first failure ends the others."""
    tasks = [asyncio.create_task(ask) for ask in asks]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
