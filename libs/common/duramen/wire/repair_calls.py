"""Requests and answers with which copies are compared and made: inventory and pull.

`inventory` asks a bookie what it holds of a ledger, read anew from its disks; `pull` tells it to
fetch entries from other bookies, and is answered when they are durable. Each is one frame
(`wire.frame`) of one row; ranges, identities and sources are its payload, whose checksum stands in
the row. A request names the incarnation that it is meant for (R1). LACs and entry ids are encoded
as in `wire.bookie_calls`.

Not here: which entries are to be compared or copied (`core.repair`), and the adds and reads that a
pull is made of (`wire.bookie_calls`). Called by the auditor and by bookies. Source:
docs/protocol/repair.md, R9, R21, docs/protocol/wire.md, docs/protocol/envelopes.md.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import google_crc32c

from duramen.core.status import BookieStatus
from duramen.ids import (
    NOTHING,
    WIRE_NOTHING,
    BookieId,
    EntryId,
    Incarnation,
    LedgerId,
    Member,
    NodeNumber,
)
from duramen.limits import (
    INVENTORY_ROW_COUNT_MAX,
    MAP_NODE_COUNT_MAX,
    PULL_RANGE_COUNT_MAX,
    PULL_SOURCE_COUNT_MAX,
)
from duramen.wire.flexible.read_filter import read_numbers
from duramen.wire.frame import VERSION, FrameError, frame_version, pack_frame, parse_frame

# inventory  row  ledger u64, first u32, last u32 (of version 2 0 and "nothing": no range)
#            row  status u8, 0 u8, 0 u16, LAC u32, highest entry u32, next u32, entries u32,
#                 unknown ranges u32, CRC32C of the payload u32, of version 2: damage mark u64
#                 payload: entries × (entry u32, identity u32), ranges × (first u32, last u32)
# pull       row  ledger u64, LAC u32, most bytes u32, ranges u32, CRC32C of the payload u32
#                 payload: ranges × (first u32, last u32), then the sources as JSON
#                 (of version 1 each source has its data URL as a third part)
#            row  of version 3: … number of who pulls u16, numbers u16
#                 payload: ranges, then numbers × u16, then the sources
#            row  status u8, 0 u8, 0 u16, next u32, entries u32, bytes u64, ranges u32,
#                 CRC32C of the payload u32
#                 payload: ranges × (first u32, last u32, status u32)

_INVENTORY = struct.Struct("<QII")
_INVENTORY_ANSWER = struct.Struct("<BBHIIIIII")
_INVENTORY_ANSWER_V2 = struct.Struct("<BBHIIIIIIQ")
_PULL = struct.Struct("<QIIII")
_PULL_V3 = struct.Struct("<QIIIIHH")
_PULL_ANSWER = struct.Struct("<BBHIIQII")
_PAIR = struct.Struct("<II")
_RESULT = struct.Struct("<III")

INVENTORY_PATH: Final = "/b/inventory"
PULL_PATH: Final = "/b/pull"

INVENTORY_VERSION_MARKED: Final = 2
PULL_VERSION_MAPPED: Final = 3

_TEXT_LENGTH_MAX: Final = 512


class Inventory(NamedTuple):
    """Entries `first` … `last` of a ledger, both inclusive: which do you hold, unharmed?

    `is_marked`: tell the damage mark too (version 2); with it the range may be empty, 0 … NOTHING.
    """

    ledger_id: LedgerId
    first: EntryId
    last: EntryId
    is_marked: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be read."""
        return self.last < self.first


def mark_question(ledger_id: LedgerId) -> Inventory:
    """Ask for the damage mark of a ledger alone."""
    return Inventory(ledger_id, EntryId(0), NOTHING, is_marked=True)


class InventoryAnswer(NamedTuple):
    """What was read anew of a range, up to before `next`.

    `entries`: (entry id, identity CRC) of those whose bytes are good, ascending. `unknown`: closed
    ranges that the bookie cannot vouch for: damage, or doubt whether it ever had them (R15). What
    is in neither is absent by the right incarnation's word. `next`: where to ask again; None: all
    was answered. `status` is OK, or says why nothing was looked at. `mark`: the damage mark of the
    ledger before the first byte was read, for who asked; None: not asked, or not told.
    """

    status: BookieStatus
    lac: EntryId = NOTHING
    highest: EntryId = NOTHING
    next: EntryId | None = None
    entries: Sequence[tuple[EntryId, int]] = ()
    unknown: Sequence[tuple[EntryId, EntryId]] = ()
    mark: int | None = None


class Source(NamedTuple):
    """A bookie in one life of its disks, and where its data port is.

    Of a pull that was read `data_url` is empty: the bookie that pulls finds out by itself where the
    other one is. A request of version 1 names an address.
    """

    member: Member
    data_url: str


class PullMap(NamedTuple):
    """The nodes of a flexible segment that a copyset may name, who pulls among them."""

    own: NodeNumber
    """Of who pulls: it is in the map before it has anything."""
    numbers: tuple[NodeNumber, ...]
    """Rising, at most MAP_NODE_COUNT_MAX."""


class Pull(NamedTuple):
    """Fetch `ranges` of a ledger from `sources`, tried in their order.

    `lac` is stored beside the entries and raises nothing (R13). The call ends after about
    `budget_bytes`, or sooner.
    """

    ledger_id: LedgerId
    ranges: Sequence[tuple[EntryId, EntryId]]
    sources: Sequence[Source]
    lac: EntryId
    budget_bytes: int
    node_map: PullMap | None = None
    """Of a flexible segment: each copy gets an envelope made of the source's (version 3)."""


class PulledRange(NamedTuple):
    """Entries `first` … `last`: OK is here and durable now; otherwise why they are not.

    NO_ENTRY: every source says that it has none. UNKNOWN: a source holds a damaged copy or cannot
    say, and no other has a good one. UNREACHABLE: a source that might have it did not answer.
    DIFFERENT: what came is another entry than the one that is stored here. READ_ONLY, OVERLOADED:
    no room here.
    """

    first: EntryId
    last: EntryId
    status: BookieStatus


class PullAnswer(NamedTuple):
    """What became of a pull, up to before `next` (None: of all of it).

    `copied_count`, `copied_bytes`: entries that were written by this call; those that were here
    already are in `ranges` as OK and not counted. `status` is OK, or says why nothing was tried:
    WRONG_INCARNATION, GONE, OVERLOADED, READ_ONLY.
    """

    status: BookieStatus
    next: EntryId | None = None
    copied_count: int = 0
    copied_bytes: int = 0
    ranges: Sequence[PulledRange] = ()

    @property
    def missing(self) -> list[PulledRange]:
        """What was asked for, was tried, and is not here."""
        return [part for part in self.ranges if part.status is not BookieStatus.OK]


def pack_inventory(incarnation: Incarnation, inventory: Inventory) -> bytes:
    """Encode an inventory request."""
    ledger_id, first, last, is_marked = inventory
    row = (ledger_id, first, _encode(last))
    version = INVENTORY_VERSION_MARKED if is_marked else VERSION
    return pack_frame(b"DIVQ", _INVENTORY, [row], incarnation=incarnation, version=version)


def parse_inventory(data: bytes) -> tuple[Incarnation, Inventory]:
    """Read an inventory request.

    Raises:
        FrameError: no such frame, or no range where one has to be.
    """
    is_marked = frame_version(data) == INVENTORY_VERSION_MARKED
    version = INVENTORY_VERSION_MARKED if is_marked else VERSION
    frame = parse_frame(data, b"DIVQ", _INVENTORY, version=version)
    ledger_id, first, last = _only_row(frame.rows)
    if is_marked and (first, last) == (0, WIRE_NOTHING):
        return frame.incarnation, mark_question(ledger_id)
    _check_ranges([(first, last)])
    return frame.incarnation, Inventory(ledger_id, first, last, is_marked)


def pack_inventory_answer(answer: InventoryAnswer) -> bytes:
    """Encode an inventory answer; with a mark it is version 2."""
    payload = b"".join([_PAIR.pack(*pair) for pair in (*answer.entries, *answer.unknown)])
    row = (
        answer.status, 0, 0, _encode(answer.lac), _encode(answer.highest), _encode(answer.next),
        len(answer.entries), len(answer.unknown), google_crc32c.value(payload),
    )  # fmt: skip
    if answer.mark is None:
        return pack_frame(b"DIVR", _INVENTORY_ANSWER, [row], [payload])
    return pack_frame(
        b"DIVR", _INVENTORY_ANSWER_V2, [(*row, answer.mark)], [payload],
        version=INVENTORY_VERSION_MARKED,
    )  # fmt: skip


def parse_inventory_answer(data: bytes) -> InventoryAnswer:
    """Read an inventory answer.

    Raises:
        FrameError: no such frame, or its payload is damaged.
    """
    mark = None
    if frame_version(data) == INVENTORY_VERSION_MARKED:
        version = INVENTORY_VERSION_MARKED
        frame = parse_frame(data, b"DIVR", _INVENTORY_ANSWER_V2, version=version)
        *row, mark = _only_row(frame.rows)
    else:
        frame = parse_frame(data, b"DIVR", _INVENTORY_ANSWER)
        row = [*_only_row(frame.rows)]
    status, _, _, lac, highest, following, entry_count, range_count, crc = row
    payload = _checked(frame.payload, crc)
    if entry_count > INVENTORY_ROW_COUNT_MAX or range_count > INVENTORY_ROW_COUNT_MAX:
        raise FrameError(f"an inventory has {INVENTORY_ROW_COUNT_MAX} rows at most")
    if len(payload) != (entry_count + range_count) * _PAIR.size:
        raise FrameError("the frame's lengths do not add up")
    pairs = tuple(_PAIR.iter_unpack(payload))
    entries, unknown = pairs[:entry_count], pairs[entry_count:]
    if any(one[0] >= two[0] for one, two in pairwise(entries)):
        raise FrameError("an inventory's entries rise")
    _check_ranges(unknown)
    return InventoryAnswer(
        _status(status), _read(lac), _read(highest), _read_next(following), entries, unknown, mark
    )


def pack_pull(incarnation: Incarnation, pull: Pull) -> bytes:
    """Encode a pull request; where the sources are is not told. With a map it is version 3."""
    sources = [[*source.member] for source in pull.sources]
    node_map = pull.node_map
    table = b"".join([_PAIR.pack(*pair) for pair in pull.ranges])
    if node_map is not None:
        table += struct.pack(f"<{len(node_map.numbers)}H", *node_map.numbers)
    payload = table + json.dumps(sources, separators=(",", ":")).encode()
    row = (
        pull.ledger_id, _encode(pull.lac), pull.budget_bytes, len(pull.ranges),
        google_crc32c.value(payload),
    )  # fmt: skip
    if node_map is None:
        return pack_frame(b"DPLQ", _PULL, [row], [payload], incarnation=incarnation)
    mapped = (*row, node_map.own, len(node_map.numbers))
    return pack_frame(
        b"DPLQ", _PULL_V3, [mapped], [payload],
        incarnation=incarnation, version=PULL_VERSION_MAPPED,
    )  # fmt: skip


def parse_pull(data: bytes) -> tuple[Incarnation, Pull]:
    """Read a pull request of a version before 3.

    Raises:
        FrameError: no such frame, its payload is damaged, too many or no ranges or sources, or
            ranges that do not rise.
    """
    frame = parse_frame(data, b"DPLQ", _PULL)
    pull, rest = _read_pull(_only_row(frame.rows), frame.payload)
    return frame.incarnation, pull._replace(sources=_read_sources(rest))


def parse_any_pull(data: bytes) -> tuple[Incarnation, Pull]:
    """Read a pull request of any version, for who keeps envelopes.

    Raises:
        FrameError: as of `parse_pull`; or a map that does not rise, has no or too many numbers, or
            lacks who pulls.
    """
    if frame_version(data) != PULL_VERSION_MAPPED:
        return parse_pull(data)
    frame = parse_frame(data, b"DPLQ", _PULL_V3, version=PULL_VERSION_MAPPED)
    *row, own, count = _only_row(frame.rows)
    pull, rest = _read_pull(tuple(row), frame.payload)
    if not 0 < count <= MAP_NODE_COUNT_MAX:
        raise FrameError(f"a pull's map has 1 to {MAP_NODE_COUNT_MAX} numbers")
    if len(rest) < 2 * count:
        raise FrameError("the frame's lengths do not add up")
    numbers = read_numbers(rest[: 2 * count], "the numbers of a pull's map")
    if own not in numbers:
        raise FrameError(f"who pulls, {own}, is not in the pull's map")
    node_map = PullMap(NodeNumber(own), numbers)
    sources = _read_sources(rest[2 * count :])
    return frame.incarnation, pull._replace(sources=sources, node_map=node_map)


def _read_pull(row: tuple[Any, ...], whole: memoryview) -> tuple[Pull, bytes]:
    """What all versions have, and the payload behind the ranges."""
    ledger_id, lac, budget_bytes, range_count, crc = row
    payload = _checked(whole, crc)
    if not 0 < range_count <= PULL_RANGE_COUNT_MAX:
        raise FrameError(f"a pull has 1 to {PULL_RANGE_COUNT_MAX} ranges")
    ranges_end = range_count * _PAIR.size
    if len(payload) < ranges_end:
        raise FrameError("the frame's lengths do not add up")
    ranges = list(_PAIR.iter_unpack(payload[:ranges_end]))
    _check_ranges(ranges)
    return Pull(ledger_id, ranges, (), _read(lac), budget_bytes), payload[ranges_end:]


def pack_pull_answer(answer: PullAnswer) -> bytes:
    """Encode a pull answer."""
    payload = b"".join([_RESULT.pack(*part) for part in answer.ranges])
    row = (
        answer.status, 0, 0, _encode(answer.next), answer.copied_count, answer.copied_bytes,
        len(answer.ranges), google_crc32c.value(payload),
    )  # fmt: skip
    return pack_frame(b"DPLR", _PULL_ANSWER, [row], [payload])


def parse_pull_answer(data: bytes) -> PullAnswer:
    """Read a pull answer.

    Raises:
        FrameError: no such frame, or its payload is damaged.
    """
    frame = parse_frame(data, b"DPLR", _PULL_ANSWER)
    status, _, _, following, copied_count, copied_bytes, count, crc = _only_row(frame.rows)
    payload = _checked(frame.payload, crc)
    if len(payload) != count * _RESULT.size:
        raise FrameError("the frame's lengths do not add up")
    parts = list(_RESULT.iter_unpack(payload))
    _check_ranges([part[:2] for part in parts])
    ranges = tuple(PulledRange(EntryId(a), EntryId(b), _status(number)) for a, b, number in parts)
    return PullAnswer(_status(status), _read_next(following), copied_count, copied_bytes, ranges)


def _only_row(rows: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    if len(rows) != 1:
        raise FrameError("the frame has one row")
    return rows[0]


def _checked(payload: memoryview, crc: int) -> bytes:
    data = bytes(payload)
    if google_crc32c.value(data) != crc:
        raise FrameError("the payload's CRC does not match")
    return data


def _check_ranges(ranges: Sequence[tuple[int, int]]) -> None:
    if any(first > last or last == WIRE_NOTHING for first, last in ranges):
        raise FrameError("a range goes from its first entry to its last one")
    if any(one[1] >= two[0] for one, two in pairwise(ranges)):
        raise FrameError("ranges rise and do not overlap")


def _read_sources(data: bytes) -> list[Source]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FrameError("the sources are no JSON") from error
    if not isinstance(document, list) or not 0 < len(document) <= PULL_SOURCE_COUNT_MAX:
        raise FrameError(f"a pull has 1 to {PULL_SOURCE_COUNT_MAX} sources")
    return [_read_source(item) for item in document]


def _read_source(item: object) -> Source:
    match item:
        case [str(bookie), str(incarnation)]:
            url = ""
        case [str(bookie), str(incarnation), str(url)]:  # version 1
            pass
        case _:
            raise FrameError("a source is a bookie and its incarnation")
    if not (
        _is_name(bookie)
        and len(url) <= _TEXT_LENGTH_MAX
        and len(incarnation) == 32
        and all(digit in "0123456789abcdef" for digit in incarnation)
    ):
        raise FrameError("a source is a bookie and its incarnation")
    return Source(Member(BookieId(bookie), Incarnation(incarnation)), url)


def _is_name(bookie: str) -> bool:
    """Whether a text can be one part of a path of nodes."""
    is_short = 0 < len(bookie) <= _TEXT_LENGTH_MAX
    return is_short and bookie.isprintable() and "/" not in bookie and bookie not in (".", "..")


def _encode(entry: EntryId | None) -> int:
    return WIRE_NOTHING if entry is None else entry & WIRE_NOTHING


def _read(number: int) -> EntryId:
    return NOTHING if number == WIRE_NOTHING else EntryId(number)


def _read_next(number: int) -> EntryId | None:
    return None if number == WIRE_NOTHING else EntryId(number)


def _status(number: int) -> BookieStatus:
    try:
        return BookieStatus(number)
    except ValueError:
        raise FrameError(f"status {number} is not known") from None
