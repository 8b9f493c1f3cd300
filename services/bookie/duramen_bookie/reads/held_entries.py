"""What a plan of a range has, entry by entry, with the envelope of each.

Of hot entries everything is in memory: it is copied on the event loop in one step, and looked at on
any thread. Of settled ones the indexes and the data files are asked, some entries at a time, on the
thread that reads. An entry of which no index can say what it is, or where, is met without an
identity: nobody vouches for it.

Not here: which of them are sent (`core.bookie.range_choice`), their bytes (`entry_bodies`). Called
by `range_reads`. Source: docs/protocol/envelopes.md "On disk", R15.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from duramen.core.bookie.bookie_state import NO_ENTRIES, RangePlan, ReadPlan
from duramen.core.bookie.range_choice import MetEntry
from duramen.core.status import BookieStatus
from duramen.ids import EntryId, LedgerId
from duramen.wire.flexible.envelope import Envelope, parse_content
from duramen_bookie.entry_log.entry_log import ReadFault
from duramen_bookie.index import HotPlaces

if TYPE_CHECKING:
    from duramen_bookie.entry_log.contents import ContentRun
    from duramen_bookie.storage import Storage

_STEP_COUNT: Final = 512
"""Settled entries whose rows and envelopes are read at once: as many reads at most if no two have
the same envelope."""

Met = MetEntry[Envelope]


class HotEntries(NamedTuple):
    """The hot entries of a plan: none of it changes any more.

    `pin` keeps the journal's files from being recycled as long as this is kept.
    """

    places: HotPlaces
    pin: object = None


NOTHING_HOT: Final = HotEntries(HotPlaces(NO_ENTRIES))


def copy_hot(storage: Storage, plan: RangePlan) -> HotEntries:
    """Copy what memory knows of a plan's hot entries; on the event loop, with the plan."""
    if not plan.hot:
        return NOTHING_HOT
    first, last = plan.hot.next_id(0), plan.hot.last()
    one = ReadPlan(
        BookieStatus.OK, plan.lac, plan.highest, plan.is_sealed, plan.ledger_id, first, 1, 0, False
    )
    ((reading,), _) = storage.select([one])
    return HotEntries(storage.index.cut(plan.ledger_id, first, last), reading.pin)


def list_hot(plan: RangePlan, hot: HotEntries, *, with_envelopes: bool) -> Iterator[Met]:
    """The hot entries of a plan, ascending; on any thread."""
    envelopes = _Envelopes(hot.places.list_contents() if with_envelopes else ())
    sizes = hot.places.sizes()
    for entry, identity in plan.hot.rows():
        entry_id = EntryId(entry)
        yield MetEntry(entry_id, identity, sizes[entry], envelopes.of(entry_id))


class SettledEntries:
    """The settled entries of a plan; on any thread, blocks for the disk.

    Attributes:
        unreadable: entries that no file has any more, met up to now: the core is to be told.
    """

    def __init__(self, storage: Storage, plan: RangePlan, *, with_envelopes: bool) -> None:
        self._storage = storage
        self._plan = plan
        self._with_envelopes = with_envelopes
        self.unreadable: list[tuple[LedgerId, EntryId]] = []

    def __iter__(self) -> Iterator[Met]:
        """The entries, ascending; what is not asked for is not read."""
        for first, last in self._plan.settled:
            start = first
            while start <= last:
                met = self._read(start, EntryId(min(last, start + _STEP_COUNT - 1)))
                yield from met
                start = EntryId(start + len(met))

    def _read(self, first: EntryId, last: EntryId) -> list[Met]:
        """Entries from `first` on, one at least."""
        ledger_id, log = self._plan.ledger_id, self._storage.entry_log
        rows, fault = log.list_rows(ledger_id, first, last - first + 1)
        if not rows:
            if fault is ReadFault.UNREADABLE:
                self.unreadable.append((ledger_id, first))
            return [MetEntry(first, None, 0, None)]
        runs: Sequence[ContentRun] = ()
        if self._with_envelopes:
            runs = self._storage.settled_contents(ledger_id, first, rows[-1].entry_id)
        envelopes = _Envelopes(runs)
        return [
            MetEntry(row.entry_id, row.crc, row.length_bytes, envelopes.of(row.entry_id))
            for row in rows
        ]


class _Envelopes:
    """Envelopes of entries that are asked for in their order; each content is read once a run."""

    def __init__(self, runs: Sequence[ContentRun]) -> None:
        self._runs = iter(runs)
        self._run = next(self._runs, None)
        self._envelope: Envelope | None = None
        self._content = b""

    def of(self, entry_id: EntryId) -> Envelope | None:
        while self._run is not None and self._run.last < entry_id:
            self._run = next(self._runs, None)
        if self._run is None or self._run.first > entry_id:
            return None
        if self._run.content != self._content:
            self._content = self._run.content
            self._envelope = parse_content(self._content)
        return self._envelope
