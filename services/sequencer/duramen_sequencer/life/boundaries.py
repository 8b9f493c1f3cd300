"""Which record boundary a position of a log is: its entry, its slot there, its sequence number.

A sequence number is found over the segments (closed ones know their start), then by bisection over
entry headers, which any replica gives; a DLSN by the header of its entry. Only entries at or below
the release pointer are read, without any seal: what they hold never changes.

A position of which the entry is lost (R15), or a hole, is the first record behind it that is there,
as for readers. So a truncation to there leaves every record that is left at or above the position,
removes every one below it, and the head is a record that can be read.

Segments that the bookies have released are asked of the cold store; their metadata may have moved
to the metadata log, which is read for a position in such a segment alone.

Not here: positions by txid and time, which a reader resolves first. Called by `operations`.
Source: docs/protocol/reading.md "What may be shown", docs/protocol/retention.md.
"""

from __future__ import annotations

from typing import NamedTuple

from duramen.core.flexible.segment import AnySegment
from duramen.core.life.trim import end_of
from duramen.core.log_node import LogNode, TrimPoint
from duramen.core.segment import Segment
from duramen.errors import BeyondTailError, DuramenError
from duramen.ids import EntryId, Epoch, lsn_of
from duramen.limits import READ_TIMEOUT_US
from duramen.runtime.http_client import PeerError
from duramen.runtime.metadata_log.segment_nodes import SegmentNodes
from duramen.runtime.reading.cold_reads import ColdReads
from duramen.runtime.sequencer.bookie_lanes import BookieLanes
from duramen.texts import Position, PositionKind
from duramen.wire import bookie_calls as calls
from duramen.wire.entry import EntryError, EntryInfo, read_entry_info
from duramen.wire.frame import FrameError
from duramen.wire.record_json import encode_tail

_HEADER_ANSWER_BYTES = 4096


class Extent(NamedTuple):
    """A log as far as its records may be shown."""

    log: LogNode
    version: int
    end: TrimPoint
    """The release pointer: what follows the LAC of the open segment, or the last closed one."""
    timestamp_ms: int
    open_segment: AnySegment | None
    """Of epoch LCE + 1."""

    def encode_tail(self) -> dict[str, object]:
        """The tail, as a position P of docs/protocol/rest.md "Texts"."""
        return encode_tail(self.end.seq_num, self.timestamp_ms, self.end.dlsn)


class Boundaries:
    """Finds record boundaries for one sequencer."""

    def __init__(
        self, segments: SegmentNodes, lanes: BookieLanes, cold: ColdReads | None = None
    ) -> None:
        self._segments = segments
        self._lanes = lanes
        self._cold = cold
        self.header_count = 0

    async def find(self, position: Position, extent: Extent, *, field: str) -> TrimPoint:
        """The boundary of a position; what was truncated gives the present trim point.

        Raises:
            DuramenError: `beyond_tail` with the tail, `invalid_position`, `data_unavailable` (no
                replica gives a header now: retry), `cold_store_unavailable` (the same of what was
                released), `metadata_unavailable` (the same of metadata that have moved),
                `log_unavailable` (retry).
            MetadataError: a segment node cannot be read.
        """
        match position.kind:
            case PositionKind.HEAD:
                return extent.log.trim
            case PositionKind.TAIL:
                seq_num = max(extent.end.seq_num - position.number, 0)
                return await self._find_seq_num(seq_num, extent, field)
            case PositionKind.SEQ:
                return await self._find_seq_num(position.number, extent, field)
            case PositionKind.DLSN:
                assert position.dlsn is not None
                epoch, entry, slot = position.dlsn
                return await self._find_slot(epoch, entry, slot, extent, field)
            case PositionKind.LSN:
                epoch, entry = Epoch(position.number >> 32), EntryId(position.number & 0xFFFF_FFFF)
                return await self._find_slot(epoch, entry, 0, extent, field)
            case PositionKind.TXID | PositionKind.TIME | PositionKind.AGO:
                raise DuramenError(
                    "invalid_position",
                    f"{field}: read one record from this position and give its seq_num: a "
                    "truncation takes head, tail, tail-N, seq:N, dlsn:… or lsn:…",
                    field=field,
                )

    async def _find_seq_num(self, seq_num: int, extent: Extent, field: str) -> TrimPoint:
        log = extent.log
        if seq_num > extent.end.seq_num:
            raise _beyond_tail(f"seq:{seq_num}", extent, field)
        if seq_num == extent.end.seq_num:
            return extent.end
        if seq_num <= log.trim.seq_num:
            return log.trim
        if seq_num >= log.totals.record_count:
            segment, start = extent.open_segment, log.totals.record_count
            last = EntryId((extent.end.lsn & 0xFFFF_FFFF) - 1)
        else:
            segment = await self._find_segment(seq_num, log)
            start, last = segment.start_seq_num or 0, segment.last_entry or EntryId(0)
        assert segment is not None and last >= 0, extent
        if seq_num == start and segment.absence_at(EntryId(0)) is None:
            return TrimPoint(lsn_of(segment.epoch, EntryId(0)), 0, seq_num)
        info = await self._bisect(log, segment, seq_num - start, last)
        if info is None:
            return end_of(segment)
        position = max(seq_num - start, info.first_position)
        lsn = lsn_of(segment.epoch, info.entry_id)
        return TrimPoint(lsn, position - info.first_position, start + position)

    async def _find_slot(
        self, epoch: Epoch, entry: EntryId, slot: int, extent: Extent, field: str
    ) -> TrimPoint:
        log, lsn = extent.log, lsn_of(epoch, entry)
        if (lsn, slot) <= (log.trim.lsn, log.trim.slot):
            return log.trim
        if (lsn, slot) > (extent.end.lsn, 0):
            raise _beyond_tail(f"e{epoch}n{entry}s{slot}", extent, field)
        if lsn == extent.end.lsn:
            return extent.end
        segment, start = extent.open_segment, log.totals.record_count
        if epoch <= log.last_clean_epoch:
            segment = await self._read_segment(log, epoch)
            start = segment.start_seq_num or 0
            if segment.last_entry is None or entry > segment.last_entry:
                return end_of(segment)
        assert segment is not None, extent
        absence = segment.absence_at(entry)
        if absence is not None:
            return await self._find_behind(log, segment, absence[1], start)
        if (entry, slot) == (0, 0):
            return TrimPoint(lsn, 0, start)
        info = await self._read_header(log, segment, entry)
        if slot < info.record_count:
            return TrimPoint(lsn, slot, start + info.first_position + slot)
        following = EntryId(entry + 1)
        if entry == segment.last_entry or segment.absence_at(following) is not None:
            return await self._find_behind(log, segment, entry, start)
        return TrimPoint(lsn_of(epoch, following), 0, start + info.totals.record_count)

    async def _find_behind(
        self, log: LogNode, segment: AnySegment, entry: EntryId, start: int
    ) -> TrimPoint:
        """The beginning of the first entry behind `entry` of a CLOSED segment that is there."""
        assert segment.last_entry is not None, segment
        present = segment.list_present(EntryId(entry + 1), segment.last_entry)
        if not present:
            return end_of(segment)
        info = await self._read_header(log, segment, present[0][0])
        return TrimPoint(lsn_of(segment.epoch, info.entry_id), 0, start + info.first_position)

    async def _find_segment(self, seq_num: int, log: LogNode) -> AnySegment:
        """The last CLOSED segment that begins at or before `seq_num`: it holds it."""
        low, high = log.first_live_epoch, Epoch(log.last_clean_epoch)
        stored = Epoch(log.metadata.through + 1)
        if low < stored <= high:
            # What is stored is found without the metadata log, be it within reach or not.
            if ((await self._read_segment(log, stored)).start_seq_num or 0) <= seq_num:
                low = stored
            else:
                high = Epoch(stored - 1)
        while low < high:
            middle = Epoch((low + high + 1) // 2)
            if ((await self._read_segment(log, middle)).start_seq_num or 0) <= seq_num:
                low = middle
            else:
                high = Epoch(middle - 1)
        return await self._read_segment(log, low)

    async def _read_segment(self, log: LogNode, epoch: Epoch) -> AnySegment:
        segment = await self._segments.find(log.log_id, epoch)
        if segment is None or not segment.is_closed:
            raise DuramenError(
                "log_unavailable", f"e{epoch} cannot be read now, or was given up: try again"
            )
        return segment

    async def _bisect(
        self, log: LogNode, segment: AnySegment, position: int, last: EntryId
    ) -> EntryInfo | None:
        """The first entry that is there with more than `position` records before its end."""
        first = EntryId(0)
        for fragment in segment.fragments if isinstance(segment, Segment) else ():
            if fragment.totals_before.record_count <= position:
                first = max(first, fragment.first_entry)
        if segment.epoch < log.first_hot_epoch and self._cold is not None:
            for begin, totals in await self._cold.list_points(segment):
                if totals.record_count <= position:
                    first = max(first, begin)
                else:  # more records lie before its end; it is there, as a row group's first entry
                    last = min(last, begin)
        present = segment.list_present(first, last)
        low, high = 0, sum(end + 1 - begin for begin, end in present)
        found: EntryInfo | None = None
        while low < high:
            middle = (low + high) // 2
            info = await self._read_header(log, segment, _pick(present, middle))
            if info.totals.record_count > position:
                high, found = middle, info
            else:
                low = middle + 1
        return found

    async def _read_header(self, log: LogNode, segment: AnySegment, entry: EntryId) -> EntryInfo:
        """The header of an entry at or below the release pointer, from whoever has it."""
        self.header_count += 1
        if segment.epoch < log.first_hot_epoch:
            if self._cold is None:
                raise DuramenError(
                    "cold_store_unavailable",
                    f"e{segment.epoch} lies in the cold store alone, and this sequencer was "
                    "started without --cold-store",
                )
            return await self._cold.fetch_header(segment, entry)
        wanted = calls.ReadRange(
            segment.ledger_id, entry, entry, _HEADER_ANSWER_BYTES, headers_only=True,
            service=calls.ServiceClass.CATCH_UP_READ,
        )  # fmt: skip
        for member in segment.list_holders(entry):
            body = calls.pack_reads(member.incarnation, [wanted])
            try:
                answer = await self._lanes.insist(member, "/b/read", body, READ_TIMEOUT_US)
                (found,) = calls.parse_read_answers(answer)
                ((entry_id, view),) = found.entries
                info = read_entry_info(bytes(view))
            except (PeerError, FrameError, EntryError, ValueError):
                continue
            if (info.ledger_id, info.entry_id, entry_id) == (segment.ledger_id, entry, entry):
                return info
        raise DuramenError(
            "data_unavailable", f"no replica of e{segment.epoch}n{entry} can be read now"
        )


def _pick(ranges: list[tuple[EntryId, EntryId]], index: int) -> EntryId:
    """The entry with that index among all of the ranges."""
    for first, last in ranges:
        if index <= last - first:
            return EntryId(first + index)
        index -= last + 1 - first
    raise AssertionError("the index is beyond the ranges")


def _beyond_tail(position: str, extent: Extent, field: str) -> BeyondTailError:
    detail = f"{position} is beyond the tail seq:{extent.end.seq_num}"
    return BeyondTailError(detail, extent.encode_tail(), field=field)
