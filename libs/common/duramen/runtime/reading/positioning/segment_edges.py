"""The first txid and the first time of CLOSED segments, read from their first entries and kept.

What a segment ends with its node says: the greatest txid and the greatest timestamp. What it begins
with no node says, so the entry is read, once in the life of the process. Listings ask for it, often
and of many segments: a few are looked up each time, the newest first, and what cannot be read now
(truncated, lost, no replica, no cold store) is not tried again for a while.

Not here: which segment a position lies in (`segment_maxima`). Called by the read proxy's listing.
Source: docs/protocol/rest.md "Segments".
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from duramen.core.segment_base import SegmentBase
from duramen.errors import DuramenError
from duramen.ids import EntryId, Epoch, LedgerId
from duramen.runtime.reading.positioning.entry_search import skip_absent
from duramen.runtime.reading.positioning.log_view import SearchableLog
from duramen.runtime.reading.positioning.record_search import (
    FoundRecord,
    Key,
    Range,
    SearchTarget,
    find_in_range,
)
from duramen.units import KIB
from duramen.wire.entry import EntryError
from duramen.wire.read_answers import place_batches
from duramen.wire.record_batch import BatchError

T = TypeVar("T")

KNOWN_MAX: Final = 100_000
"""Segments of which the first ones are kept: some 20 MB."""

LOOK_UP_COUNT_MAX: Final = 32
"""Segments that one listing looks up: a call or two each, all at once."""

LOOK_UP_S: Final = 2.0
"""How long a listing waits for them: what has not come by then is told another time."""

TRIED_AGAIN_S: Final = 30.0
"""When a segment of which nothing could be read is looked up once more."""

_ENTRY_BYTES: Final = 64 * KIB


class Edges(NamedTuple):
    """What a segment begins with; None: its records have none."""

    first_txid: int | None
    first_timestamp_ms: int | None


NO_RECORDS: Final = Edges(None, None)


class SegmentEdges:
    """What the CLOSED segments of all logs begin with; one instance per process."""

    def __init__(self, read_clock_s: Callable[[], float] = time.monotonic) -> None:
        self._read_clock_s = read_clock_s
        self._known: OrderedDict[LedgerId, Edges] = OrderedDict()
        self._tried_s: OrderedDict[LedgerId, float] = OrderedDict()
        """When a look-up failed last."""
        self._look_up_count = 0

    async def learn(
        self, view: SearchableLog, segments: Sequence[SegmentBase]
    ) -> Mapping[Epoch, Edges]:
        """What is known of these segments, after a few more were looked up.

        Args:
            segments: CLOSED ones of one log, that are there for readers, oldest first.

        Returns:
            By epoch; a segment of which nothing is known is not in it.
        """
        due = [segment for segment in reversed(segments) if self._is_due(segment)]
        if due:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_UP_S), asyncio.TaskGroup() as group:
                    for segment in due[:LOOK_UP_COUNT_MAX]:
                        group.create_task(self._look_up(view, segment))
        found = {segment.epoch: self._recall(segment) for segment in segments}
        return {epoch: edges for epoch, edges in found.items() if edges is not None}

    def statistics(self) -> dict[str, int]:
        """Segments that are known, and look-ups since the start."""
        return {"known": len(self._known), "look_ups": self._look_up_count}

    def _recall(self, segment: SegmentBase) -> Edges | None:
        assert segment.totals is not None, segment
        if segment.totals.record_count == 0:
            return NO_RECORDS
        if segment.ledger_id in self._known:
            self._known.move_to_end(segment.ledger_id)
        return self._known.get(segment.ledger_id)

    def _is_due(self, segment: SegmentBase) -> bool:
        if self._recall(segment) is not None:
            return False
        tried_s = self._tried_s.get(segment.ledger_id)
        return tried_s is None or self._read_clock_s() >= tried_s + TRIED_AGAIN_S

    async def _look_up(self, view: SearchableLog, segment: SegmentBase) -> None:
        self._look_up_count += 1
        # Also of one that is given up because it takes long.
        _keep(self._tried_s, segment.ledger_id, self._read_clock_s())
        with contextlib.suppress(DuramenError):
            edges = await find_edges(view, segment)
            _keep(self._known, segment.ledger_id, edges)
            self._tried_s.pop(segment.ledger_id, None)


async def find_edges(view: SearchableLog, segment: SegmentBase) -> Edges:
    """What a CLOSED segment with records begins with.

    Of records that are lost or in a hole nothing is known: the first that is left counts.

    Raises:
        DuramenError: `internal` (stored data are not valid), or of the view.
    """
    assert segment.totals is not None, segment
    first_ms = await _find_first(view, segment, Key.TIME)
    has_txids = segment.totals.max_txid is not None
    return Edges(await _find_first(view, segment, Key.TXID) if has_txids else None, first_ms)


async def _find_first(view: SearchableLog, segment: SegmentBase, key: Key) -> int | None:
    """The value of the first record that has one: nearly always in the first entry."""
    assert segment.start_seq_num is not None and segment.last_entry is not None, segment
    first = skip_absent(segment, EntryId(0))
    wanted, start = SearchTarget(key, 0), segment.start_seq_num
    whole = Range(segment, start, first, segment.last_entry, start)
    found = await find_in_range(view, whole._replace(last=min(first, whole.last)), wanted)
    if found is None:
        found = await find_in_range(view, whole, wanted)
    if found is None:
        return None
    entry = found.dlsn.entry
    ((_, body), *_) = await view.fetch_run(segment, entry, entry, _ENTRY_BYTES)
    return _read_value(body, segment, found, key)


def _read_value(body: bytes, segment: SegmentBase, found: FoundRecord, key: Key) -> int | None:
    assert segment.start_seq_num is not None, segment
    try:
        for placed in place_batches(body, segment.epoch, segment.start_seq_num):
            if placed.seq_num <= found.seq_num < placed.end_seq_num:
                batch = placed.decode()
                values = batch.txids if key is Key.TXID else batch.timestamps_ms
                return None if values is None else values[found.seq_num - placed.seq_num]
    except (EntryError, BatchError) as error:
        raise DuramenError("internal", f"stored data are not valid: {error}") from error
    return None


def _keep(kept: OrderedDict[LedgerId, T], ledger_id: LedgerId, value: T) -> None:
    kept[ledger_id] = value
    kept.move_to_end(ledger_id)
    while len(kept) > KNOWN_MAX:
        kept.popitem(last=False)
