"""The first record of a segment, in the order of the log, with a txid or timestamp of at least N.

Running maxima in the entry headers lead to the first entry whose maximum reaches N, and its batches
to the record. Where every record may be shown that entry holds it, whatever the order of the txids
or times. It may not be there if what raised the maximum was truncated, lies in a hole or has no
record (control entries share txids): then the entries behind are looked at, one after another.

Pure but for the port. Called by `positions`. Source: docs/protocol/reading.md "Positions".
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final, NamedTuple

from duramen.core.segment_base import SegmentBase, Totals
from duramen.errors import DuramenError
from duramen.ids import LAST_ENTRY_ID, Dlsn, EntryId, Epoch
from duramen.runtime.reading.positioning.entry_search import bisect_entries, skip_absent
from duramen.runtime.reading.positioning.log_view import SearchableLog
from duramen.units import KIB, MIB
from duramen.wire.entry import EntryError
from duramen.wire.read_answers import PlacedBatch, place_batches
from duramen.wire.record_batch import BatchError, read_info

FIRST_RUN_BYTES: Final = 64 * KIB
"""Usually the first entry has the record: little is read before it was looked at."""

RUN_BYTES: Final = 1 * MIB


class Key(enum.Enum):
    """What records are looked for by."""

    TXID = "txid"
    TIME = "time"


class SearchTarget(NamedTuple):
    """The first record whose txid, or timestamp in unix ms, is `number` or greater."""

    key: Key
    number: int

    def is_reached(self, totals: Totals) -> bool:
        """Whether what `totals` are of may hold such a record."""
        greatest = totals.max_txid if self.key is Key.TXID else totals.max_timestamp_ms
        return greatest is not None and greatest >= self.number


class FoundRecord(NamedTuple):
    """A record."""

    dlsn: Dlsn
    seq_num: int


class Range(NamedTuple):
    """The part of a segment to search: entries `low` … `last`, records from `seq_num` on.

    `last` may be shown, and the segment's running maximum reaches what is wanted there.
    """

    segment: SegmentBase
    start_seq_num: int
    """Of the segment's first record."""
    low: EntryId
    last: EntryId
    seq_num: int


async def find_in_range(
    view: SearchableLog, where: Range, wanted: SearchTarget
) -> FoundRecord | None:
    """The first wanted record of a part of a segment.

    Raises:
        DuramenError: `internal` (stored data are not valid), or of the view.
    """
    segment = where.segment
    if where.low > where.last:
        return None
    low, high = _narrow(where, wanted, await view.list_points(segment))
    entry = await bisect_entries(
        view, segment, low, high, lambda info: wanted.is_reached(info.totals)
    )
    entry = skip_absent(segment, entry)
    bytes_max = FIRST_RUN_BYTES
    while entry <= where.last:
        absent = (first for first, _ in (*segment.holes, *segment.lost) if first > entry)
        hole_begins = min(absent, default=LAST_ENTRY_ID)
        end = EntryId(min(where.last, hole_begins - 1))
        run = await view.fetch_run(segment, entry, end, bytes_max)
        for entry_id, body in run:
            found = find_in_entry(body, segment.epoch, where.start_seq_num, where.seq_num, wanted)
            if found is not None:
                return found
            entry = skip_absent(segment, EntryId(entry_id + 1))
        bytes_max = RUN_BYTES
    return None


def find_in_entry(
    body: bytes, epoch: Epoch, start_seq_num: int, first_seq_num: int, wanted: SearchTarget
) -> FoundRecord | None:
    """The first wanted record of an entry that is not before `first_seq_num`.

    Args:
        start_seq_num: sequence number of the segment's first record.

    Raises:
        DuramenError: `internal`: the entry or a batch of it is not valid.
    """
    try:
        for placed in place_batches(body, epoch, start_seq_num):
            if placed.end_seq_num > first_seq_num:
                index = _find_in_batch(placed, max(0, first_seq_num - placed.seq_num), wanted)
                if index is not None:
                    dlsn = placed.dlsn._replace(slot=placed.dlsn.slot + index)
                    return FoundRecord(dlsn, placed.seq_num + index)
    except (EntryError, BatchError) as error:
        raise DuramenError("internal", f"stored data are not valid: {error}") from error
    return None


def _find_in_batch(placed: PlacedBatch, first: int, wanted: SearchTarget) -> int | None:
    info = read_info(placed.batch)
    if not wanted.is_reached(Totals(0, 0, info.max_txid, info.max_timestamp_ms)):
        return None
    batch = placed.decode()
    values = batch.txids if wanted.key is Key.TXID else batch.timestamps_ms
    if values is None:
        return None
    later = range(first, len(values))
    return next((index for index in later if values[index] >= wanted.number), None)


def _narrow(
    where: Range, wanted: SearchTarget, points: Sequence[tuple[EntryId, Totals]]
) -> tuple[EntryId, EntryId]:
    """Bounds of the bisection: at some points the totals before them are known."""
    low, high = where.low, where.last
    for entry, totals_before in points:
        if where.low < entry <= where.last:
            if wanted.is_reached(totals_before):
                high = EntryId(min(high, entry - 1))
            else:
                low = max(low, entry)
    return low, max(low, high)
