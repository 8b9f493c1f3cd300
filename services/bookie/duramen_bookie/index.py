"""Where each hot entry lies in the journal: per ledger, compact arrays, 20 bytes an entry.

With the 8 bytes of the core's table that is 28 bytes an entry, and 4 more in a ledger whose entries
have envelopes: the number of a content in the ledger's table. Places come from the journal: at
replay and when a commit is durable, always before the core is told, so that whatever the core calls
hot is found here. A place that is given again (a resend, a copy at start) replaces the older. What
is settled leaves; the entry log's own index knows it then. The envelope in force is that of the
record whose place it is.

Not here: what may be read (`core.bookie`), the bytes (`storage`). Source:
docs/protocol/entry-log.md, docs/protocol/envelopes.md "On disk", V1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from duramen.core.entry_ranges import group_ranges
from duramen.core.entry_table import EntryTable
from duramen.ids import EntryId, LedgerId
from duramen.wire.disk.journal_format import Location, record_bytes
from duramen_bookie.entry_log.contents import (
    NO_CONTENT,
    ContentRun,
    ContentTable,
    group_contents,
)

_LENGTH: Final = 2
"""The column of the bytes of entries."""

_CONTENT: Final = 3
"""The column of the contents' numbers, where there is one."""


class EntryPlace(NamedTuple):
    """An entry and where it lies."""

    entry_id: EntryId
    location: Location


class HotPlaces(NamedTuple):
    """Places of some entries of a ledger as they were at one moment; looked at on any thread.

    The contents are the ledger's own: more are put behind them, and those that are there stay.
    """

    table: EntryTable
    contents: ContentTable | None = None

    @property
    def size_bytes(self) -> int:
        """Of all the entries together."""
        return self.table.sum_column(_LENGTH) if self.table else 0

    def sizes(self) -> dict[int, int]:
        """Bytes of each entry."""
        return dict(self.table.select_column(_LENGTH, 0, self.table.last()))

    def place_of(self, entry_id: EntryId) -> EntryPlace:
        """Where an entry lies, which is there."""
        found = self.table.get(entry_id)
        assert found is not None, entry_id
        return EntryPlace(entry_id, Location(*found[:3]))

    def list_contents(self) -> list[ContentRun]:
        """Contents of the envelopes of the entries, as runs."""
        if self.contents is None or not self.table:
            return []
        content_of = cache(self.contents.get)  # the entries of a block have one
        return group_contents(
            (entry_id, b"" if number == NO_CONTENT else content_of(number))
            for entry_id, number in self.table.select_column(_CONTENT, 0, self.table.last())
        )


class EntryIndex:
    """Ledger → entry → place."""

    def __init__(self) -> None:
        self._ledgers: dict[LedgerId, EntryTable] = {}
        self._contents: dict[LedgerId, ContentTable] = {}
        """Of ledgers in which an envelope was met; their tables have one more column."""
        self._entry_bytes = 0

    def put(
        self, ledger_id: LedgerId, entry_id: EntryId, location: Location, content: bytes = b""
    ) -> None:
        """An entry is durable at this place, with an envelope of this content (empty: none)."""
        table = self._ledgers.get(ledger_id)
        if table is None:
            table = self._ledgers[ledger_id] = EntryTable("IQI")
        contents = self._contents.get(ledger_id)
        if contents is None and content:
            contents = self._contents[ledger_id] = ContentTable()
            table.add_column("I", NO_CONTENT)
        if contents is None:
            is_new = table.put(entry_id, *location)
        else:
            number = contents.put(content) if content else NO_CONTENT
            is_new = table.put(entry_id, *location, number)
        if is_new:
            self._entry_bytes += location.length_bytes

    def select(
        self, ledger_id: LedgerId, first: EntryId, entry_count: int, bytes_max: int
    ) -> list[EntryPlace]:
        """Places of up to `entry_count` entries first, first + 1, … while they are here and fit.

        Returns:
            None of them if `first` is not here, one at least if it is.
        """
        table = self._ledgers.get(ledger_id)
        places: list[EntryPlace] = []
        if table is None:
            return places
        for entry_id in range(first, first + entry_count):
            values = table.get(entry_id)
            if values is None:
                break
            bytes_max -= values[2]
            if bytes_max < 0 and places:
                break
            places.append(EntryPlace(EntryId(entry_id), Location(*values[:3])))
        return places

    def list_contents(self, ledger_id: LedgerId, first: EntryId, last: EntryId) -> list[ContentRun]:
        """Contents of the envelopes of what is here from `first` to `last`, as runs."""
        return self.cut(ledger_id, first, last).list_contents()

    def renew_contents(self, ledger_id: LedgerId) -> None:
        """Keep only those contents that are used, after entries have left."""
        old = self._contents.get(ledger_id)
        if old is None:
            return
        new = self._contents[ledger_id] = ContentTable()
        self._ledgers[ledger_id].change_column(
            _CONTENT,
            lambda number: NO_CONTENT if number == NO_CONTENT else new.put(old.get(number)),
        )

    def cut(self, ledger_id: LedgerId, first: EntryId, last: EntryId) -> HotPlaces:
        """What is known of a ledger from `first` to `last`, copied."""
        table = self._ledgers.get(ledger_id)
        if table is None:
            return HotPlaces(EntryTable("IQI"))
        return HotPlaces(table.cut(first, last, last - first + 1), self._contents.get(ledger_id))

    def copy_places(self) -> list[tuple[LedgerId, EntryTable]]:
        """Every ledger with a copy of its places, ascending: to be looked at on another thread."""
        return [(ledger_id, table.copy()) for ledger_id, table in sorted(self._ledgers.items())]

    def list_ledgers(self) -> list[LedgerId]:
        """Every ledger with hot entries, ascending."""
        return sorted(self._ledgers)

    def split(self, ledger_id: LedgerId, part_bytes: int) -> Iterator[list[EntryPlace]]:
        """The places of a ledger as they are now, in parts of about `part_bytes`."""
        table = self._ledgers.get(ledger_id)
        part: list[EntryPlace] = []
        size = 0
        for entry_id, file_id, offset, length, *_ in [] if table is None else table.copy().rows():
            part.append(EntryPlace(EntryId(entry_id), Location(file_id, offset, length)))
            size += length
            if size >= part_bytes:
                yield part
                part, size = [], 0
        if part:
            yield part

    def list_newer(self, ledger_id: LedgerId, covered_file_id: int) -> frozenset[int]:
        """Entries of a ledger that lie in journal files above `covered_file_id`."""
        table = self._ledgers.get(ledger_id)
        rows = () if table is None else table.rows()
        return frozenset([row[0] for row in rows if row[1] > covered_file_id])

    def forget(self, ledger_id: LedgerId, entry_ids: Sequence[int]) -> None:
        """These entries, ascending, are settled or lost: their places are not needed any more."""
        table = self._ledgers.get(ledger_id)
        if table is None:
            return
        before = table.sum_column(2)
        table.remove_ranges(group_ranges(entry_ids))
        self._entry_bytes -= before - table.sum_column(2)
        if not table:
            del self._ledgers[ledger_id]
            self._contents.pop(ledger_id, None)

    def drop(self, ledger_id: LedgerId) -> None:
        """The whole ledger is gone."""
        table = self._ledgers.pop(ledger_id, None)
        self._contents.pop(ledger_id, None)
        if table is not None:
            self._entry_bytes -= table.sum_column(2)

    def envelope_bytes_max(self) -> int:
        """What the envelopes of hot entries can take of new files at most."""
        return sum([
            len(self._ledgers[ledger_id]) * record_bytes(table.content_bytes_max)
            for ledger_id, table in self._contents.items()
        ])  # fmt: skip

    def statistics(self) -> dict[str, Any]:
        """Sizes."""
        return {
            "ledgers": len(self._ledgers),
            "entries": sum(map(len, self._ledgers.values())),
            "entry_bytes": self._entry_bytes,
        }


def list_settleable(table: EntryTable, covered_file_id: int) -> list[EntryPlace]:
    """The places of a ledger that lie in journal files up to `covered_file_id`, by entry."""
    return [
        EntryPlace(EntryId(entry_id), Location(file_id, offset, length))
        for entry_id, file_id, offset, length, *_ in table.rows()
        if file_id <= covered_file_id
    ]
