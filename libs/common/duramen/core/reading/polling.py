"""Waiting at the tail: for how long a bookie is polled, and what the owner's own word saves.

A poll brings the next entry as soon as the polled bookie has it, mostly before its LAC. While the
log's owner tells LACs, that LAC is waited for from the owner, and no second poll is sent for it;
where the LAC comes first, the poll that is out is waited for. Either for a moment, once an entry.

Pure. Called by the reader core. Source: docs/protocol/reading.md "Long polls",
docs/protocol/owner-lac.md "Rules" 9 and 10.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from duramen.core.reading.effects import ALL_NODES
from duramen.core.reading.runs import list_replicas
from duramen.core.segment_base import SegmentBase
from duramen.ids import NOTHING, EntryId, Epoch, Member
from duramen.units import MS, SECOND

POLL_US: Final = 1 * SECOND
"""One long poll."""

SECOND_POLL_US: Final = 250 * MS
"""How long a bookie that lags or is frozen can hide the tail: then another one is polled besides.
A log whose records follow one another faster has one poll at a time."""

LOOK_US: Final = POLL_US * 3 // 4
"""At a quiet tail the metadata are looked at when a poll ends, and no more often than this."""

POLL_GRACE_US: Final = 1 * SECOND
"""How long after the end of its wait a long poll counts as not answered."""

OWNER_US: Final = 1 * SECOND
"""For so long after a LAC that the owner told the next one is counted on."""

OWNER_WAIT_US: Final = 10 * MS
"""How long a poll is waited for whose entry the owner has told of, and the owner's LAC of an entry
that a poll has brought."""


class OwnerPace:
    """Whether the owner of the log tells LACs, and how long the next one is waited for."""

    def __init__(self) -> None:
        self._told_at_us: int | None = None
        self._awaited = (Epoch(0), NOTHING)
        self._until_us = 0

    def on_told(self, now_us: int) -> None:
        """The owner told a LAC."""
        self._told_at_us = now_us

    def find_end(self, position: tuple[Epoch, EntryId], now_us: int) -> int | None:
        """Until when the LAC of the entry at a position, which is here, is waited for.

        None: no longer, or the owner is not counted on.
        """
        if self._told_at_us is None or now_us - self._told_at_us >= OWNER_US:
            return None
        if self._awaited != position:
            self._awaited, self._until_us = position, now_us + OWNER_WAIT_US
        return self._until_us if now_us < self._until_us else None

    def __repr__(self) -> str:
        return f"<owner pace told={self._told_at_us} awaited={self._awaited}>"


def is_to_bring(
    polled: Collection[Member], kept: Member | None, segment: SegmentBase, entry: EntryId
) -> bool:
    """Whether an entry is to come from a poll that is out: of nodes, `kept` sends those next."""
    replicas = list_replicas(segment, entry)
    return kept in polled if replicas == (ALL_NODES,) else any(m in replicas for m in polled)
