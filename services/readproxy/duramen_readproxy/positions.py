"""Where a position of the REST API lies: (epoch, entry) to begin at and the first record to show.

By DLSN and LSN directly; by sequence number first over the segments (closed ones know their start),
then inside one: the totals before its fragments and what earlier reads have shown narrow it, and
bisection by entry headers finds the entry. Readers that go on where they stopped never bisect,
because the end of every answer is remembered.

Positions by txid and time come with the full positioning of section 8 and are refused until then.
Called by the REST routes. Source: 01-protocol section 8, 08-interfaces "Texts".
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from typing import Any, Final, NamedTuple

from duramen.core.log_node import LogNode
from duramen.core.segment import Segment
from duramen.errors import DuramenError
from duramen.ids import Dlsn, EntryId, Epoch, LedgerId
from duramen.texts import Position, PositionKind
from duramen.wire.entry import EntryInfo
from duramen_readproxy.bookies import RangeFetcher
from duramen_readproxy.metadata import LogFollower
from duramen_readproxy.tail import Tail, TailFinder

LEDGERS_MAX: Final = 10_000
POINTS_MAX: Final = 512
"""Known points per ledger: bisection between two of them takes a few headers at most."""


class Start(NamedTuple):
    """Where to begin; records before `seq_num`, or before `slot` of `entry`, are not shown."""

    epoch: Epoch
    entry: EntryId
    seq_num: int = 0
    slot: int = 0
    tail: Tail | None = None
    """The tail, if finding the start took finding it."""
    is_sequential: bool = False
    """Whether an earlier answer ended here: worth reading ahead."""


class EntryIndex:
    """Points of one ledger: record position → entry that begins there. Sorted, bounded."""

    def __init__(self) -> None:
        self._positions: list[int] = []
        self._entries: list[EntryId] = []

    def add(self, position: int, entry: EntryId) -> None:
        """`position` records of the segment precede `entry`."""
        at = bisect_right(self._positions, position)
        if at and self._positions[at - 1] == position:
            # Entries without records share a position: the later one is nearer to the record.
            self._entries[at - 1] = max(self._entries[at - 1], entry)
            return
        self._positions.insert(at, position)
        self._entries.insert(at, entry)
        if len(self._positions) > POINTS_MAX:
            del self._positions[1::2], self._entries[1::2]

    def narrow(self, position: int, last: EntryId) -> tuple[EntryId, EntryId, bool]:
        """Bounds (low, high) for the entry of `position`; whether it is known to be low."""
        at = bisect_right(self._positions, position)
        low = self._entries[at - 1] if at else EntryId(0)
        high = EntryId(min(self._entries[at] - 1, last)) if at < len(self._entries) else last
        is_exact = bool(at) and self._positions[at - 1] == position
        is_enclosed = bool(at) and at < len(self._entries) and self._entries[at] == low + 1
        return low, max(low, high), is_exact or is_enclosed


class Positions:
    """Finds starts; one instance per process."""

    def __init__(self, fetcher: RangeFetcher, tails: TailFinder) -> None:
        self._fetcher = fetcher
        self._tails = tails
        self._indexes: OrderedDict[LedgerId, EntryIndex] = OrderedDict()
        self._header_count = 0

    def note(self, entry: EntryInfo) -> None:
        """Remember where an entry begins and ends, because an answer ended in it or behind it."""
        index = self._index_of(entry.ledger_id)
        index.add(entry.first_position, entry.entry_id)
        index.add(entry.totals.record_count, EntryId(entry.entry_id + 1))

    async def find(self, follower: LogFollower, position: Position, *, clamp: bool) -> Start:
        """The start of a position.

        Raises:
            DuramenError: `beyond_tail` (with the tail as `problem_tail`) unless `clamp`;
                `invalid_position`; whatever finding the tail raises.
        """
        if is_truncated(await follower.current_log(), position):
            return await self._find_head(follower)
        match position.kind:
            case PositionKind.HEAD:
                return await self._find_head(follower)
            case PositionKind.TAIL:
                tail = await self._tails.find(follower)
                if position.number == 0:
                    return at_tail(tail)
                return await self._find_seq(follower, max(0, tail.seq_num - position.number), tail)
            case PositionKind.SEQ:
                return await self._find_seq_or_refuse(follower, position.number, clamp=clamp)
            case PositionKind.DLSN:
                assert position.dlsn is not None
                return await self._find_dlsn(follower, position.dlsn, clamp=clamp)
            case PositionKind.LSN:
                lsn = position.number
                dlsn = Dlsn(Epoch(lsn >> 32), EntryId(lsn & 0xFFFF_FFFF), 0)
                return await self._find_dlsn(follower, dlsn, clamp=clamp)
            case PositionKind.TXID | PositionKind.TIME | PositionKind.AGO:
                raise DuramenError(
                    "invalid_position",
                    f"positions by {position.kind.value} are not served yet: they come later; "
                    "use head, tail, tail-N, seq:N, dlsn:… or lsn:…",
                    field="from",
                )

    def statistics(self) -> dict[str, int]:
        """Ledgers with known points, and headers read to find positions."""
        return {"ledgers": len(self._indexes), "headers_read": self._header_count}

    async def _find_head(self, follower: LogFollower) -> Start:
        log = await follower.current_log()
        epoch, entry, slot = log.trim.dlsn
        return Start(epoch, entry, log.trim_seq_num, slot)

    async def _find_seq_or_refuse(
        self, follower: LogFollower, seq_num: int, *, clamp: bool
    ) -> Start:
        """Begin at a sequence number that may lie beyond what is known."""
        log = await follower.current_log()
        if seq_num < log.totals.record_count:
            return await self._find_seq(follower, seq_num, None)
        epoch = Epoch(log.last_clean_epoch + 1)
        segment = (await follower.current(epoch))[1]
        if segment is not None and not segment.is_closed:
            entry = self._known_end(segment, seq_num - log.totals.record_count)
            if entry is not None:
                return Start(epoch, entry, seq_num, is_sequential=True)
        tail = await self._tails.find(follower)
        if seq_num < tail.seq_num:
            return await self._find_seq(follower, seq_num, tail)
        if seq_num > tail.seq_num and not clamp:
            raise BeyondTailError(f"seq:{seq_num}", tail)
        return at_tail(tail)

    def _known_end(self, segment: Segment, position: int) -> EntryId | None:
        """The entry at which an earlier answer ended: a point there is no guess."""
        index = self._indexes.get(segment.ledger_id)
        if index is None:
            return None
        low, _, is_known = index.narrow(position, EntryId(0))
        return low if is_known else None

    async def _find_seq(self, follower: LogFollower, seq_num: int, tail: Tail | None) -> Start:
        """Begin at a sequence number below the tail (above what was truncated)."""
        log = await follower.current_log()
        seq_num = max(seq_num, log.trim_seq_num)
        low, high = log.first_live_epoch, Epoch(log.last_clean_epoch)
        if seq_num >= log.totals.record_count:
            epoch = Epoch(log.last_clean_epoch + 1)
            start_seq_num = log.totals.record_count
            segment = (await follower.current(epoch))[1]
            if segment is None or (segment.is_closed and segment.start_seq_num is None):
                return Start(epoch, EntryId(0), seq_num, tail=tail)
        else:
            segment = await self._find_segment(follower, seq_num, low, high)
            if segment is None:
                return Start(log.first_live_epoch, EntryId(0), seq_num, tail=tail)
            epoch, start_seq_num = segment.epoch, segment.start_seq_num or 0
        last = segment.last_entry
        if last is None:
            last = tail.lac if tail is not None and tail.epoch == epoch else None
        entry, is_known = await self._find_entry(segment, seq_num - start_seq_num, last)
        return Start(epoch, entry, seq_num, tail=tail, is_sequential=is_known)

    async def _find_segment(
        self, follower: LogFollower, seq_num: int, low: Epoch, high: Epoch
    ) -> Segment | None:
        """The last CLOSED segment that begins at or before `seq_num`."""
        found = None
        while low <= high:
            middle = Epoch((low + high) // 2)
            segment = (await follower.current(middle))[1]
            if segment is None or segment.start_seq_num is None or segment.start_seq_num > seq_num:
                high = Epoch(middle - 1)
            else:
                found = segment
                low = Epoch(middle + 1)
        return found

    async def _find_entry(
        self, segment: Segment, position: int, last: EntryId | None
    ) -> tuple[EntryId, bool]:
        """The entry of a record position; or one before it, if the end is not known."""
        index = self._index_of(segment.ledger_id)
        for fragment in segment.fragments:
            index.add(fragment.totals_before.record_count, fragment.first_entry)
        low, high, is_known = index.narrow(position, EntryId(0) if last is None else last)
        if is_known or last is None:
            return low, is_known
        while low < high:
            middle = EntryId((low + high) // 2)
            info = await self._fetcher.fetch_header(segment, middle)
            self._header_count += 1
            index.add(info.first_position, middle)
            if info.totals.record_count > position:
                high = middle
            else:
                low = EntryId(middle + 1)
        return low, False

    async def _find_dlsn(self, follower: LogFollower, dlsn: Dlsn, *, clamp: bool) -> Start:
        """Begin at a DLSN; the end of a closed segment is the beginning of the next one."""
        log = await follower.current_log()
        if dlsn.epoch < log.first_live_epoch:
            return await self._find_head(follower)
        if dlsn.epoch <= log.last_clean_epoch:
            segment = (await follower.current(dlsn.epoch))[1]
            if segment is None:
                return await self._find_head(follower)  # given up since the log node was read
            assert segment.last_entry is not None, segment
            if dlsn.entry <= segment.last_entry:
                return Start(dlsn.epoch, dlsn.entry, log.trim_seq_num, dlsn.slot)
            if dlsn.epoch < log.last_clean_epoch:
                return Start(Epoch(dlsn.epoch + 1), EntryId(0))
        tail = await self._tails.find(follower)
        if (dlsn.epoch, dlsn.entry) < (tail.epoch, tail.entry):
            return Start(dlsn.epoch, dlsn.entry, log.trim_seq_num, dlsn.slot, tail)
        is_beyond = (dlsn.epoch, dlsn.entry, dlsn.slot) > (tail.epoch, tail.entry, 0)
        if is_beyond and not clamp:
            raise BeyondTailError(f"dlsn:{dlsn}", tail)
        return at_tail(tail)

    def _index_of(self, ledger_id: LedgerId) -> EntryIndex:
        index = self._indexes.get(ledger_id)
        if index is None:
            index = self._indexes[ledger_id] = EntryIndex()
            if len(self._indexes) > LEDGERS_MAX:
                self._indexes.popitem(last=False)
        self._indexes.move_to_end(ledger_id)
        return index


class BeyondTailError(DuramenError):
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
        return {**super().problem(), "tail": self.tail.spell()}


def is_truncated(log: LogNode, position: Position) -> bool:
    """Whether a position lies before the trim point: reading begins there instead."""
    match position.kind:
        case PositionKind.SEQ:
            return position.number < log.trim_seq_num
        case PositionKind.DLSN:
            return position.dlsn is not None and position.dlsn < log.trim.dlsn
        case PositionKind.LSN:
            return position.number < log.trim.lsn
        case _:
            return False


def at_tail(tail: Tail) -> Start:
    """The start of a reader that wants only what comes."""
    return Start(tail.epoch, tail.entry, tail.seq_num, tail=tail)
