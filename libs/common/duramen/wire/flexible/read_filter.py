"""A reader's filter as a read request carries it: who is up, and who is to send which block.

One filter has one encoding: numbers and blocks rise. What is not in that form, or damaged, makes
the whole frame a 400, since a bookie that read another filter than the reader's would leave an
entry to somebody whom the reader does not ask.

Not here: what follows from a filter (`core.flexible.sending`). Called by `filtered_reads`. Source:
docs/protocol/envelopes.md "Read: `POST /b/read`, version 2".
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import google_crc32c

from duramen.core.flexible.sending import ReadFilter
from duramen.ids import WIRE_NOTHING, EntryId, NodeNumber
from duramen.limits import FILTER_BLOCK_COUNT_MAX, MAP_NODE_COUNT_MAX
from duramen.wire.frame import FrameError

# offset       size  field
# 0            2     nodes n, at most 256
# 2            2     blocks b, at most 64
# 4            2n    numbers of the nodes that are up, rising
# 4 + 2n       6b    first entry of a block u32, number of its sender u16, rising
# 4 + 2n + 6b  4     CRC32C of all bytes before

NO_NUMBER: Final = 0xFFFF
"""In place of a node's number: it has none."""

_HEAD: Final = struct.Struct("<HH")
_BLOCK: Final = struct.Struct("<IH")
_CRC: Final = struct.Struct("<I")


def encode_filter(read_filter: ReadFilter) -> bytes:
    """Encode a filter."""
    up, blocks = sorted(read_filter.up), sorted(read_filter.senders.items())
    assert len(up) <= MAP_NODE_COUNT_MAX and len(blocks) <= FILTER_BLOCK_COUNT_MAX, read_filter
    data = _HEAD.pack(len(up), len(blocks)) + struct.pack(f"<{len(up)}H", *up)
    data += b"".join([_BLOCK.pack(*block) for block in blocks])
    return data + _CRC.pack(google_crc32c.value(data))


def parse_filter(data: bytes) -> ReadFilter:
    """Read a filter.

    Raises:
        FrameError: the bytes are none, or damaged.
    """
    if len(data) < _HEAD.size + _CRC.size:
        raise FrameError(f"a filter of {len(data)} bytes")
    content, crc = data[: -_CRC.size], data[-_CRC.size :]
    if _CRC.unpack(crc)[0] != google_crc32c.value(content):
        raise FrameError("the filter's CRC does not match")
    node_count, block_count = _HEAD.unpack_from(content)
    if node_count > MAP_NODE_COUNT_MAX:
        raise FrameError(f"a filter names {MAP_NODE_COUNT_MAX} nodes at most")
    if block_count > FILTER_BLOCK_COUNT_MAX:
        raise FrameError(f"a filter names {FILTER_BLOCK_COUNT_MAX} blocks at most")
    blocks_at = _HEAD.size + 2 * node_count
    if len(content) != blocks_at + _BLOCK.size * block_count:
        raise FrameError("the filter's lengths do not add up")
    up = read_numbers(content[_HEAD.size : blocks_at], "a filter's nodes")
    return ReadFilter(frozenset(up), _read_senders(list(_BLOCK.iter_unpack(content[blocks_at:]))))


def read_numbers(data: bytes, what: str) -> tuple[NodeNumber, ...]:
    """Numbers of nodes, rising.

    Raises:
        FrameError: they do not rise, or one is no number.
    """
    numbers = struct.unpack(f"<{len(data) // 2}H", data)
    if any(one >= two for one, two in pairwise(numbers)):
        raise FrameError(f"{what} rise")
    if NO_NUMBER in numbers[-1:]:
        raise FrameError(f"{what}: {NO_NUMBER} is no number")
    return tuple(NodeNumber(number) for number in numbers)


def _read_senders(blocks: Sequence[tuple[int, int]]) -> dict[EntryId, NodeNumber]:
    if any(one[0] >= two[0] for one, two in pairwise(blocks)):
        raise FrameError("a filter's blocks rise")
    if any(block == WIRE_NOTHING or sender == NO_NUMBER for block, sender in blocks):
        raise FrameError("a filter's block has a first entry and a sender")
    return {EntryId(block): NodeNumber(sender) for block, sender in blocks}
