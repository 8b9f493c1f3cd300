"""Requests of reads of flexible segments: version 2 of `POST /b/read`.

A row is a range of version 1 and what single-copy delivery needs beside it: the reader's filter,
which number in its map the bookie has, and up to where entries may be shown (R30). Its answer is
in `filtered_answers`, and has one row per row in the same order.

Whoever knows version 1 alone refuses the whole frame. Fields that contradict each other are
refused here, before anything is looked up or sealed.

Called by readers and recoverers of flexible segments, and by bookies. Source:
docs/protocol/envelopes.md "Read: `POST /b/read`, version 2", R24, R30.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from duramen.core.flexible.sending import ReadFilter
from duramen.ids import NOTHING, EntryId, Incarnation, NodeNumber
from duramen.wire.bookie_calls import (
    ReadRange,
    ServiceClass,
    check_ranges,
    encode_entry_id,
    list_range_fields,
    read_entry_id,
    read_range,
)
from duramen.wire.flexible.read_filter import NO_NUMBER, encode_filter, parse_filter
from duramen.wire.frame import FrameError, pack_frame, parse_frame, split_payload

# row  of version 1: ledger u64, first u32, last u32, most bytes u32, seal epoch u32, wait ms u32,
#      wait for u32, class u8; then flags u8, member number u16, filter number u32, bound u32,
#      bytes of the filter u16, 0 u16
#      payload: the filters

READ_VERSION_FILTERED: Final = 2

_ROW: Final = struct.Struct("<QIIIIIIBBHIIHH")
_FILTER_BYTES_MAX: Final = 1_024
_HEADERS_ONLY, _SINGLE_COPY, _ENVELOPES, _DIGESTS = 1, 2, 4, 8
_FLAGS: Final = _HEADERS_ONLY | _SINGLE_COPY | _ENVELOPES | _DIGESTS


class FilteredRange(NamedTuple):
    """A range of a ledger, of which a bookie sends what the filter leaves to it."""

    wanted: ReadRange
    filter_number: int = 0
    """The reader's date of what it asks with: answers of two of them are not put together."""
    bound: EntryId = NOTHING
    """Up to here entries may be shown, whatever the bookie was told (R30)."""
    read_filter: ReadFilter | None = None
    """None: whatever is here."""
    own: NodeNumber | None = None
    """The asked bookie's number in the reader's map; None: it has none there."""
    with_envelopes: bool = False
    is_digest: bool = False
    """Identities are wanted and no bodies."""

    @property
    def is_cut(self) -> bool:
        """Whether the answer ends at what may be shown; recovery and repair look at all."""
        return self.wanted.service in (ServiceClass.TAIL_READ, ServiceClass.CATCH_UP_READ)


def pack_filtered_reads(incarnation: Incarnation, ranges: Sequence[FilteredRange]) -> bytes:
    """Encode a read request of version 2."""
    filters = [b"" if one.read_filter is None else encode_filter(one.read_filter) for one in ranges]
    rows = [
        (
            *list_range_fields(one.wanted), _encode_flags(one),
            NO_NUMBER if one.own is None else one.own, one.filter_number,
            encode_entry_id(one.bound), len(spelt), 0,
        )
        for one, spelt in zip(ranges, filters, strict=True)
    ]  # fmt: skip
    return pack_frame(
        b"DRDQ", _ROW, rows, filters, incarnation=incarnation, version=READ_VERSION_FILTERED
    )


def parse_filtered_reads(data: bytes) -> tuple[Incarnation, list[FilteredRange]]:
    """Read a read request of version 2; only a request of a single range may wait.

    Raises:
        FrameError: no such frame, a damaged filter, fields that contradict each other, too many
            ranges, or a wait that is too long or in company.
    """
    frame = parse_frame(data, b"DRDQ", _ROW, version=READ_VERSION_FILTERED)
    filters = split_payload(frame.payload, [row[12] for row in frame.rows])
    ranges = [_read_row(row, bytes(spelt)) for row, spelt in zip(frame.rows, filters, strict=True)]
    check_ranges([one.wanted for one in ranges])
    return frame.incarnation, ranges


def _encode_flags(one: FilteredRange) -> int:
    return (
        one.wanted.headers_only * _HEADERS_ONLY
        | (one.read_filter is not None) * _SINGLE_COPY
        | one.with_envelopes * _ENVELOPES
        | one.is_digest * _DIGESTS
    )


def _read_row(row: tuple[Any, ...], spelt: bytes) -> FilteredRange:
    flags, own, filter_number, bound, filter_bytes, _ = row[8:]
    if flags & ~_FLAGS:
        raise FrameError(f"flags {flags:#x} of a read are not known")
    if flags & _HEADERS_ONLY and flags & _DIGESTS:
        raise FrameError("a read is of headers or of digests")
    if filter_bytes > _FILTER_BYTES_MAX:
        raise FrameError(f"a filter has {_FILTER_BYTES_MAX} bytes at most")
    if bool(flags & _SINGLE_COPY) != bool(filter_bytes):
        raise FrameError("a filter comes with the flag of a single copy, and only with it")
    wanted = read_range(row[:8], headers_only=bool(flags & _HEADERS_ONLY))
    if wanted.service is ServiceClass.APPEND:
        raise FrameError("a filtered read is not of the class of appends")
    return FilteredRange(
        wanted, filter_number, read_entry_id(bound),
        parse_filter(spelt) if flags & _SINGLE_COPY else None,
        None if own == NO_NUMBER else NodeNumber(own),
        bool(flags & _ENVELOPES), bool(flags & _DIGESTS),
    )  # fmt: skip
