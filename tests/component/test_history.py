"""What a rebuild reads of bookies: stamps of real batches, replicas in turn, nothing damaged.

The lanes are stand-ins that answer from a table. Source: docs/protocol/recovery.md "Takeover".
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment, Totals
from duramen.core.sequencer.effects import ReadHistory
from duramen.core.sequencer.exactly_once.stamps import Stamp, StampedBatch, TokenRecord
from duramen.core.status import BookieStatus
from duramen.ids import BookieId, EntryId, Epoch, Incarnation, LogId, Member
from duramen.runtime.http_client import UnreachableError
from duramen.runtime.sequencer.bookie_lanes import BookieLanes
from duramen.runtime.sequencer.history import range_of, read_entries
from duramen.wire import bookie_calls as calls
from duramen.wire.control_record import encode_control
from duramen.wire.entry import CONTROL, HEADER_BYTES, STATE, encode_entry
from duramen.wire.entry_history import read_history
from duramen.wire.record_batch import BatchProducer, encode_batch

MEMBERS = tuple(Member(BookieId(f"b{i}"), Incarnation("0" * 32)) for i in range(4))
FRAGMENTS = (Fragment(EntryId(0), MEMBERS[:3]), Fragment(EntryId(2), MEMBERS[1:], Totals(1)))
SEGMENT = Segment(LogId(7), Epoch(3), Quorum(3, 3, 2), FRAGMENTS)


def entry_of(number: int, batches: list[bytes], count: int, flags: int = STATE) -> bytes:
    own = Totals(count, sum(map(len, batches)))
    return encode_entry(
        ledger_id=SEGMENT.ledger_id, entry_id=EntryId(number), before=Totals(10), batches=batches,
        record_count=count, after=Totals(10).plus(own), flags=flags,
    )  # fmt: skip


ENTRIES = [
    entry_of(number, [encode_batch([b"x"], 5, producer=BatchProducer("p", 0, number))], 1)
    for number in range(4)
]


class Lanes:
    """Bookies by name: what they hold, or None if they are down."""

    def __init__(self, held: dict[str, dict[int, bytes] | None]) -> None:
        self._held = held
        self.asked: list[tuple[str, int, int]] = []

    async def post(self, member: Member, path: str, body: bytes, _timeout_us: int) -> bytes:
        assert path == "/b/read"
        _, (wanted,) = calls.parse_reads(body)
        self.asked.append((member.bookie, wanted.first, wanted.last))
        held = self._held[member.bookie]
        if held is None:
            raise UnreachableError("down")
        size = HEADER_BYTES if wanted.headers_only else None
        found = [
            (EntryId(number), held[number][:size])
            for number in range(wanted.first, wanted.last + 1)
            if number in held
        ]
        status = BookieStatus.OK if found else BookieStatus.NO_ENTRY
        answer = calls.ReadAnswer(status, EntryId(3), EntryId(3), True, found)
        return calls.pack_read_answers([answer])


def read(lanes: Lanes, first: int, last: int, *, is_headers_only: bool = False) -> Any:
    effect = ReadHistory(1, SEGMENT, EntryId(first), EntryId(last), is_headers_only)
    return asyncio.run(read_entries(cast(BookieLanes, lanes), effect))


def test_the_stamps_of_an_entry_have_their_places() -> None:
    batches = [
        encode_batch([b"a", b"b"], 7, producer=BatchProducer("p", 1, 2)),
        encode_batch([b"c"], 8),
        encode_batch([b"d", b"e", b"f"], 9, producer=BatchProducer("q", 0, 0)),
    ]
    found = read_history(entry_of(0, batches, 6), is_header_only=False)
    assert found.stamped == (
        StampedBatch(Stamp("p", 1, 2), 0, 10, 2, 7),
        StampedBatch(Stamp("q", 0, 0), 3, 13, 3, 9),
    )
    assert read_history(entry_of(0, batches, 6), is_header_only=True).stamped == ()
    plain = read_history(entry_of(0, batches[1:2], 1, flags=0), is_header_only=False)
    assert not plain.has_state and plain.stamped == ()
    record = encode_control(TokenRecord("t"))
    control = read_history(entry_of(0, [record], 0, CONTROL | STATE), is_header_only=False)
    assert control.is_control and control.control == TokenRecord("t")


def test_replicas_are_asked_in_turn_and_never_beyond_the_fragment() -> None:
    lanes = Lanes({"b0": None, "b1": {}, "b2": dict(enumerate(ENTRIES)), "b3": None})
    assert [one.entry for one in read(lanes, 0, 3)] == [0, 1]
    assert {(first, last) for _, first, last in lanes.asked} == {(0, 1)}
    assert [one.entry for one in read(lanes, 2, 3, is_headers_only=True)] == [2, 3]
    wanted = range_of(ReadHistory(1, SEGMENT, EntryId(2), EntryId(9), True))
    assert (wanted.first, wanted.last, wanted.headers_only) == (2, 9, True)


def test_what_is_damaged_ends_the_answer_or_is_read_elsewhere() -> None:
    damaged = ENTRIES[3][:-1] + bytes([ENTRIES[3][-1] ^ 1])
    lanes = Lanes({"b1": {2: ENTRIES[2], 3: damaged}, "b2": {3: ENTRIES[3]}, "b3": None})
    assert [one.entry for one in read(lanes, 2, 3)] == [2]
    (found,) = read(lanes, 3, 3)
    assert found.stamped[0].stamp == Stamp("p", 0, 3)
    foreign = Lanes({"b1": {2: ENTRIES[3]}, "b2": {}, "b3": None})
    assert read(foreign, 2, 2) is None
