"""Reads of the simulated archive: the production `ColdReads` over the entry log.

What a manifest and its files would tell is made of the entries themselves; that these are right is
not looked at here, as the production archive does. Its chance is its own.

Made by `proxy`. Documented in docs/testing.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

from duramen.core.flexible.segment import AnySegment
from duramen.core.segment import Totals
from duramen.errors import DuramenError
from duramen.ids import EntryId, LedgerId
from duramen.runtime.cold import ColdStore, ColdStoreDown
from duramen.runtime.reading.cold_reads import ColdReads
from duramen.units import MS
from duramen.wire.entry import read_entry_info
from tests.sim.archive.cold_files import ColdFiles

if TYPE_CHECKING:
    from tests.sim.reading.proxy import ReadProxy

T = TypeVar("T")

_GROUP_COUNT: Final = 8
"""Entries of a row group: few, so that a segment has several."""

_DELAY_US: Final = (5 * MS, 60 * MS)


class _Group(NamedTuple):
    """A row group."""

    entries: list[tuple[EntryId, bytes]]
    totals_before: Totals

    @property
    def size_bytes(self) -> int:
        return sum(len(body) for _, body in self.entries)


class _Manifest(NamedTuple):
    """What a layout is known by."""

    attempt: str


class EntryLogLayout:
    """`archive.ColdLayout` of an attempt in the entry log."""

    def __init__(
        self, ledger_id: LedgerId, attempt: str, entries: Sequence[tuple[EntryId, bytes]]
    ) -> None:
        self.ledger_id = ledger_id
        self.manifest = _Manifest(attempt)
        self._groups: list[_Group] = []
        before = Totals()
        for at in range(0, len(entries), _GROUP_COUNT):
            rows = list(entries[at : at + _GROUP_COUNT])
            self._groups.append(_Group(rows, before))
            before = read_entry_info(rows[-1][1]).totals

    def __len__(self) -> int:
        return len(self._groups)

    def find(self, entry: EntryId) -> int | None:
        """Index of the row group with an entry."""
        for index, group in enumerate(self._groups):
            if group.entries[0][0] <= entry <= group.entries[-1][0]:
                return index
        return None

    def group(self, index: int) -> _Group:
        """A row group."""
        return self._groups[index]

    def list_points(self) -> list[tuple[EntryId, Totals]]:
        """The first entry of each row group, and the totals before it."""
        return [(group.entries[0][0], group.totals_before) for group in self._groups]


class EntryLogArchive:
    """`archive.Archive` over the entry log."""

    def __init__(self, cold_files: ColdFiles) -> None:
        self._cold_files = cold_files

    def load_layout(self, segment: AnySegment) -> EntryLogLayout:
        """The row groups of a segment with a cold copy."""
        copy = segment.cold_copy
        assert copy is not None, segment
        return EntryLogLayout(segment.ledger_id, copy.attempt, self._find(copy.attempt))

    def read_group(self, layout: EntryLogLayout, index: int) -> list[tuple[EntryId, bytes]]:
        """The entries of a row group."""
        self._find(layout.manifest.attempt)
        return layout.group(index).entries

    def _find(self, attempt: str) -> list[tuple[EntryId, bytes]]:
        if self._cold_files.is_down:
            raise ColdStoreDown("the shelf is out of reach")
        entries = self._cold_files.find(attempt)
        if entries is None:
            raise DuramenError("data_unavailable", f"{attempt} is not there")
        return sorted(entries.items())


class ColdFileReads(ColdReads):
    """The cold store of one process; each look at the entry log takes a while."""

    def __init__(self, cold_files: ColdFiles, node: ReadProxy) -> None:
        super().__init__(cast(ColdStore, cold_files), _never_asked)
        self._archive = cast(Any, EntryLogArchive(cold_files))
        self._node = node
        self._cold_files_counts = cold_files.counts

    async def _run(self, work: Callable[[], T]) -> T:
        await self._node.pass_time(self._node.rng.randrange(*_DELAY_US))
        try:
            found = await super()._run(work)
        except ColdStoreDown:
            self._cold_files_counts["cold store unreachable"] += 1
            raise
        self._cold_files_counts["cold read"] += 1
        return found


async def _never_asked() -> str:
    raise AssertionError("the archive is known")
