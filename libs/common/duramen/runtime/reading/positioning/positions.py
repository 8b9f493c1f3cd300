"""Where a position of the REST API lies: (epoch, entry) to begin at and the first record to show.

By DLSN and LSN directly; by sequence number first over the segments (closed ones know their start),
then inside one: the totals before its fragments and what earlier reads have shown narrow it, and
bisection by entry headers finds the entry; by txid and time over the maxima of the segments, then
inside one by running maxima. Readers that go on where they stopped never bisect, because the end
of every answer is remembered.

The searches themselves are in `positioning`. Called by the read proxy's routes and by
`duramen.client.core`.
Source: docs/protocol/reading.md "Positions", docs/protocol/rest.md "Records".
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from duramen.core.log_node import LogNode
from duramen.core.segment_base import SegmentBase
from duramen.errors import DuramenError
from duramen.ids import NOTHING, Dlsn, EntryId, Epoch, LedgerId, LogId
from duramen.runtime.reading.positioning.entry_search import (
    SparseIndex,
    bisect_entries,
    skip_absent,
    skip_hole,
)
from duramen.runtime.reading.positioning.log_view import SearchableLog
from duramen.runtime.reading.positioning.record_search import (
    FoundRecord,
    Key,
    Range,
    SearchTarget,
    find_in_range,
)
from duramen.runtime.reading.positioning.segment_maxima import SegmentMaxima
from duramen.runtime.reading.tail import Tail
from duramen.texts import Position, PositionKind
from duramen.units import MS
from duramen.wire.entry import EntryInfo

LEDGERS_MAX: Final = 10_000

MAXIMA_LOGS_MAX: Final = 1_000
MAXIMA_SEGMENTS_MAX: Final = 200_000
"""Logs, and segments over all of them, whose maxima are kept: some 30 MB at most."""


def read_unix_ms() -> int:
    """Wall clock, from which `ago:…` counts back."""
    return time.time_ns() // 1_000_000


class Start(NamedTuple):
    """Where to begin; records before `seq_num` are not shown."""

    epoch: Epoch
    entry: EntryId
    seq_num: int
    tail: Tail | None = None
    """The tail, if finding the start took finding it."""
    is_sequential: bool = False
    """Whether an earlier answer ended here: worth reading ahead."""
    is_moved: bool = False
    """Whether the position lies in the truncated prefix: `seq_num` is what it moved to."""

    def find_end(self) -> Tail | None:
        """The tail, if that is where to begin, and if it is sure."""
        tail = self.tail
        if tail is None or not tail.is_sure:
            return None
        return tail if self[:3] == (tail.epoch, tail.entry, tail.seq_num) else None


class Positions:
    """Finds starts; one instance per process."""

    def __init__(self, read_unix_ms: Callable[[], int] = read_unix_ms) -> None:
        self._read_unix_ms = read_unix_ms
        self._indexes: OrderedDict[LedgerId, SparseIndex] = OrderedDict()
        self._maxima: OrderedDict[LogId, SegmentMaxima] = OrderedDict()
        self._search_count = 0

    def note(self, entry: EntryInfo | None) -> None:
        """Remember where an entry begins and ends, because an answer ended in it or behind it."""
        if entry is None:
            return
        index = self._index_of(entry.ledger_id)
        index.add(entry.first_position, entry.entry_id)
        index.add(entry.totals.record_count, EntryId(entry.entry_id + 1))

    async def find(self, view: SearchableLog, position: Position, *, clamp: bool) -> Start:
        """The start of a position.

        Raises:
            DuramenError: `beyond_tail` (with the tail as `problem_tail`) unless `clamp`;
                `data_unavailable` where the tail that it would lie beyond is not sure;
                `invalid_position` (by txid in a log without); whatever the view raises.
        """
        match position.kind:
            case PositionKind.HEAD:
                return find_head(await view.read_log())
            case PositionKind.TAIL:
                tail = await view.find_tail()
                if position.number == 0:
                    return at_tail(tail)
                return await self._find_seq(view, max(0, tail.seq_num - position.number), tail)
            case PositionKind.SEQ:
                return await self._find_seq_or_refuse(view, position.number, clamp=clamp)
            case PositionKind.DLSN:
                assert position.dlsn is not None
                return await self._find_dlsn(view, position.dlsn, clamp=clamp)
            case PositionKind.LSN:
                lsn = position.number
                dlsn = Dlsn(Epoch(lsn >> 32), EntryId(lsn & 0xFFFF_FFFF), 0)
                return await self._find_dlsn(view, dlsn, clamp=clamp)
            case PositionKind.TXID:
                return await self._find_record(
                    view, SearchTarget(Key.TXID, position.number), clamp=clamp
                )
            case PositionKind.TIME:
                return await self._find_record(
                    view, SearchTarget(Key.TIME, position.number), clamp=clamp
                )
            case PositionKind.AGO:
                time_ms = max(0, self._read_unix_ms() - position.number // MS)
                return await self._find_record(view, SearchTarget(Key.TIME, time_ms), clamp=clamp)

    async def find_end(self, view: SearchableLog, position: Position) -> int:
        """The sequence number that `until` stands for; beyond the tail it is the tail.

        A sequence number is taken as it is: it may be that of a record that is yet to come.

        Raises:
            DuramenError: as `find`, but for `beyond_tail`.
        """
        if position.kind is PositionKind.SEQ:
            return position.number
        try:
            return (await self.find(view, position, clamp=True)).seq_num
        except DuramenError as error:
            if error.code == "invalid_position":
                error.field = "until"
            raise

    def statistics(self) -> dict[str, int]:
        """What is known of ledgers and logs, and searches inside segments since the start."""
        return {
            "ledgers": len(self._indexes),
            "logs": len(self._maxima),
            "searches": self._search_count,
        }

    # --- By sequence number ----------------------------------------------------------------------

    async def _find_seq_or_refuse(self, view: SearchableLog, seq_num: int, *, clamp: bool) -> Start:
        """Begin at a sequence number that may lie beyond what is known."""
        log = await view.read_log()
        if seq_num < max(log.totals.record_count, log.trim_seq_num):
            return await self._find_seq(view, seq_num, None)
        epoch = Epoch(log.last_clean_epoch + 1)
        segment = await view.read_segment(epoch)
        if segment is not None and not segment.is_closed:
            entry = self._known_end(segment, seq_num - log.totals.record_count)
            if entry is not None:
                return Start(epoch, entry, seq_num, is_sequential=True)
        tail = await view.find_reach()
        if seq_num < tail.seq_num:
            return await self._find_seq(view, seq_num, tail)
        if seq_num > tail.seq_num:
            _check_beyond(f"seq:{seq_num}", tail, clamp=clamp)
        return at_tail(tail)

    def _known_end(self, segment: SegmentBase, position: int) -> EntryId | None:
        """The entry at which an earlier answer ended: a point there is no guess."""
        index = self._indexes.get(segment.ledger_id)
        if index is None:
            return None
        low, _, is_known = index.narrow(position, EntryId(0))
        return low if is_known else None

    async def _find_seq(self, view: SearchableLog, seq_num: int, tail: Tail | None) -> Start:
        """Begin at a sequence number at or below the tail; one that was truncated moves."""
        log = await view.read_log()
        if seq_num < log.trim_seq_num:
            return find_head(log)._replace(is_moved=True)
        if seq_num >= log.totals.record_count:
            tail = tail or await view.find_reach()
            log = await view.read_log()
        if seq_num < log.totals.record_count:
            segment = await _find_segment(view, log, seq_num)
            last = segment.last_entry
        else:
            assert tail is not None
            if seq_num >= tail.seq_num:
                return at_tail(tail)
            segment, last = await _read_segment(view, tail.epoch), tail.lac
        assert last is not None, segment
        position = seq_num - await _find_start_seq_num(view, segment)
        entry, is_known = await self._find_entry(view, segment, position, last)
        return Start(segment.epoch, entry, seq_num, tail, is_known)

    async def _find_entry(
        self, view: SearchableLog, segment: SegmentBase, position: int, last: EntryId
    ) -> tuple[EntryId, bool]:
        """The entry of a record position, and whether no search was needed."""
        index = self._index_of(segment.ledger_id)
        for first_entry, totals in await view.list_points(segment):
            index.add(totals.record_count, first_entry)
        low, high, is_known = index.narrow(position, last)
        if is_known:
            return low, True
        self._search_count += 1

        def is_reached(info: EntryInfo) -> bool:
            index.add(info.first_position, info.entry_id)
            return info.totals.record_count > position

        entry = await bisect_entries(view, segment, low, high, is_reached)
        behind = skip_absent(segment, entry)
        if segment.lost_at(entry) is None or behind > last:
            return entry, False
        # The record is lost, or it is the first one behind what is lost.
        is_behind = (await view.fetch_header(segment, behind)).first_position <= position
        return behind if is_behind else entry, False

    # --- By DLSN ---------------------------------------------------------------------------------

    async def _find_dlsn(self, view: SearchableLog, dlsn: Dlsn, *, clamp: bool) -> Start:
        """Begin at a DLSN; the end of a closed segment is the beginning of the next one."""
        log = await view.read_log()
        head = find_head(log)
        if (dlsn.epoch, dlsn.entry) < (head.epoch, head.entry):
            return head._replace(is_moved=head.seq_num > 0)
        tail = None
        if dlsn.epoch > log.last_clean_epoch:
            tail = await view.find_reach()
            if (dlsn.epoch, dlsn.entry) >= (tail.epoch, tail.entry):
                if dlsn > (tail.epoch, tail.entry, 0):
                    _check_beyond(f"dlsn:{dlsn}", tail, clamp=clamp)
                return at_tail(tail)
        start = await _place(view, await _read_segment(view, dlsn.epoch), dlsn, tail)
        return head._replace(is_moved=True) if start.seq_num < head.seq_num else start

    # --- By txid and time ------------------------------------------------------------------------

    async def _find_record(
        self, view: SearchableLog, wanted: SearchTarget, *, clamp: bool
    ) -> Start:
        """Begin at the first record, in the order of the log, with at least a txid or time.

        What was truncated cannot be asked any more: a record that turns out to be the oldest one
        left may have had a predecessor there, and the position counts as moved.
        """
        self._search_count += 1
        log = await view.read_log()
        maxima = self._maxima_of(log.log_id)
        head, closed, tail = find_head(log), log.last_clean_epoch, None
        found = await _search_closed(view, maxima, wanted, head, first=head.epoch, last=closed)
        if found is None:
            tail = await view.find_reach()
            since, last = Epoch(max(head.epoch, closed + 1)), tail.epoch - 1
            found = await _search_closed(view, maxima, wanted, head, first=since, last=last)
            found = found or await _search_open(view, wanted, head, tail)
        self._bound_maxima()
        if found is not None:
            is_moved = found.seq_num == head.seq_num > 0
            epoch, entry, _ = found.dlsn
            return Start(epoch, entry, found.seq_num, tail, is_moved=is_moved)
        assert tail is not None
        if head.seq_num and await _is_truncated(view, maxima, wanted, head, tail):
            return head._replace(is_moved=True)
        tail.check_covered()
        if wanted.key is Key.TXID and tail.seq_num and not await _has_txids(view, tail):
            tail.check_sure()
            raise DuramenError(
                "invalid_position",
                "no record of this log has a txid: use another kind of position",
                field="from",
            )
        if wanted.key is Key.TXID and not clamp:
            _check_beyond(f"txid:{wanted.number}", tail, clamp=clamp)
        return at_tail(tail)

    # --- What is remembered ----------------------------------------------------------------------

    def _index_of(self, ledger_id: LedgerId) -> SparseIndex:
        index = self._indexes.get(ledger_id)
        if index is None:
            index = self._indexes[ledger_id] = SparseIndex()
            if len(self._indexes) > LEDGERS_MAX:
                self._indexes.popitem(last=False)
        self._indexes.move_to_end(ledger_id)
        return index

    def _maxima_of(self, log_id: LogId) -> SegmentMaxima:
        maxima = self._maxima.setdefault(log_id, SegmentMaxima())
        self._maxima.move_to_end(log_id)
        return maxima

    def _bound_maxima(self) -> None:
        segment_count = sum(maxima.count for maxima in self._maxima.values())
        while self._maxima and (
            len(self._maxima) > MAXIMA_LOGS_MAX or segment_count > MAXIMA_SEGMENTS_MAX
        ):
            _, forgotten = self._maxima.popitem(last=False)
            segment_count -= forgotten.count


class PositionBeyondTailError(DuramenError):
    """The position lies beyond the tail, which the problem tells."""

    def __init__(self, position: str, tail: Tail) -> None:
        super().__init__(
            "beyond_tail",
            f"{position} is beyond the tail seq:{tail.seq_num}; clamp=true begins at the tail",
            field="from",
        )
        self.tail = tail

    def problem(self) -> dict[str, Any]:
        """The problem of the table, with the tail."""
        return {**super().problem(), "tail": self.tail.encode()}


def _check_beyond(position: str, tail: Tail, *, clamp: bool) -> None:
    """Refuse a position beyond the tail.

    Raises:
        PositionBeyondTailError: unless `clamp`.
        DuramenError: `data_unavailable`: the tail may be higher, so that nobody knows yet. A reader
            that has read up to there must not be told that its position is wrong, nor be put back.
    """
    tail.check_sure()
    if not clamp:
        raise PositionBeyondTailError(position, tail)


def find_head(log: LogNode) -> Start:
    """The start of the oldest record that is left: the trim point, maybe inside an entry."""
    trim = Epoch(log.trim_lsn >> 32), EntryId(log.trim_lsn & 0xFFFF_FFFF)
    epoch, entry = max(trim, (log.first_live_epoch, EntryId(0)))
    return Start(epoch, entry, log.trim_seq_num)


def at_tail(tail: Tail) -> Start:
    """The start of a reader that wants only what comes."""
    return Start(tail.epoch, tail.entry, tail.seq_num, tail=tail)


async def _read_segment(view: SearchableLog, epoch: Epoch) -> SegmentBase:
    """A segment that has live records.

    Raises:
        DuramenError: `metadata_unavailable`: it is gone, so it was truncated just now.
    """
    segment = await view.read_segment(epoch)
    if segment is None:
        raise DuramenError("metadata_unavailable", f"e{epoch} was truncated just now: ask again")
    return segment


async def _find_segment(view: SearchableLog, log: LogNode, seq_num: int) -> SegmentBase:
    """The last CLOSED segment that begins at or before a live `seq_num`, which lies below LCE."""
    low, high = log.first_live_epoch, log.last_clean_epoch
    while low < high:
        middle = Epoch((low + high + 1) // 2)
        if await _find_start_seq_num(view, await _read_segment(view, middle)) > seq_num:
            high = middle - 1
        else:
            low = middle
    return await _read_segment(view, low)


async def _find_start_seq_num(view: SearchableLog, segment: SegmentBase) -> int:
    """Sequence number of the first record of a segment at or below LCE + 1.

    Raises:
        DuramenError: `metadata_unavailable`: what is before it is not seen closed yet.
    """
    if segment.start_seq_num is not None:
        return segment.start_seq_num
    log = await view.read_log()
    if log.last_clean_epoch + 1 == segment.epoch:
        return log.totals.record_count
    if log.last_clean_epoch < segment.epoch:
        raise DuramenError(
            "metadata_unavailable", f"what precedes e{segment.epoch} is not seen closed yet"
        )
    closed = await _read_segment(view, segment.epoch)  # it was closed meanwhile
    if closed.start_seq_num is None:
        raise DuramenError("metadata_unavailable", f"e{segment.epoch} is not seen closed yet")
    return closed.start_seq_num


async def _place(view: SearchableLog, segment: SegmentBase, dlsn: Dlsn, tail: Tail | None) -> Start:
    """The start of a DLSN below the tail, in a live segment."""
    start_seq_num = await _find_start_seq_num(view, segment)
    if segment.last_entry is not None and dlsn.entry > segment.last_entry:
        assert segment.totals is not None, segment
        end_seq_num = start_seq_num + segment.totals.record_count
        return Start(Epoch(dlsn.epoch + 1), EntryId(0), end_seq_num, tail)
    entry = skip_hole(segment, dlsn.entry)
    if segment.lost_at(entry) is not None:  # reading there tells of the loss
        return Start(dlsn.epoch, entry, await _seq_num_behind(view, segment, entry), tail)
    info = await view.fetch_header(segment, entry)
    slot = min(dlsn.slot, info.record_count) if entry == dlsn.entry else 0
    return Start(dlsn.epoch, entry, start_seq_num + info.first_position + slot, tail)


async def _seq_num_behind(view: SearchableLog, segment: SegmentBase, entry: EntryId) -> int:
    """Sequence number of what follows upon a lost entry of a CLOSED segment."""
    assert segment.totals is not None and segment.last_entry is not None, segment
    start_seq_num = await _find_start_seq_num(view, segment)
    behind = skip_absent(segment, entry)
    if behind > segment.last_entry:
        return start_seq_num + segment.totals.record_count
    return start_seq_num + (await view.fetch_header(segment, behind)).first_position


async def _search_closed(
    view: SearchableLog,
    maxima: SegmentMaxima,
    wanted: SearchTarget,
    head: Start,
    *,
    first: Epoch,
    last: int,
) -> FoundRecord | None:
    """The first wanted live record in the CLOSED segments `first` … `last`."""
    await maxima.learn(view, head.epoch, last)
    epoch = maxima.find_next(first, wanted, last)
    while epoch is not None:
        segment = await view.read_segment(epoch)
        if segment is not None and segment.last_entry is not None:
            found = await _search(view, segment, segment.last_entry, wanted, head)
            if found is not None:
                return found
        epoch = maxima.find_next(Epoch(epoch + 1), wanted, last)
    return None


async def _search_open(
    view: SearchableLog, wanted: SearchTarget, head: Start, tail: Tail
) -> FoundRecord | None:
    """The first wanted live record in the segment that the tail is in."""
    if tail.lac == NOTHING:
        return None
    segment = await _read_segment(view, tail.epoch)
    if not wanted.is_reached((await view.fetch_header(segment, tail.lac)).totals):
        return None
    return await _search(view, segment, tail.lac, wanted, head)


async def _is_truncated(
    view: SearchableLog, maxima: SegmentMaxima, wanted: SearchTarget, head: Start, tail: Tail
) -> bool:
    """Whether a wanted record was truncated, where no live one is left.

    Where a maximum behind the truncated prefix is of no record (a hole, a control entry), that of
    the log tells nothing about the prefix, and the answer is no.
    """
    log = await view.read_log()
    segment = await view.read_segment(head.epoch)
    last = None if segment is None else segment.last_entry
    last = tail.lac if last is None and head.epoch == tail.epoch else last
    if segment is not None and last is not None and last != NOTHING:
        entry = min(skip_absent(segment, head.entry), last)
        is_there = segment.lost_at(entry) is None
        if is_there and wanted.is_reached((await view.fetch_header(segment, entry)).totals):
            return True
    is_behind = maxima.find_next(head.epoch, wanted, log.last_clean_epoch) is not None
    return wanted.is_reached(log.totals) and not is_behind


async def _has_txids(view: SearchableLog, tail: Tail) -> bool:
    """Whether any record up to the tail has or had a txid."""
    if (await view.read_log()).totals.max_txid is not None:
        return True
    if tail.lac == NOTHING:
        return False
    segment = await _read_segment(view, tail.epoch)
    return (await view.fetch_header(segment, tail.lac)).totals.max_txid is not None


async def _search(
    view: SearchableLog, segment: SegmentBase, last: EntryId, wanted: SearchTarget, head: Start
) -> FoundRecord | None:
    """The first wanted live record in a segment whose maximum at `last` reaches what is wanted."""
    low = head.entry if segment.epoch == head.epoch else EntryId(0)
    start_seq_num = await _find_start_seq_num(view, segment)
    where = Range(segment, start_seq_num, low, last, head.seq_num)
    return await find_in_range(view, where, wanted)
