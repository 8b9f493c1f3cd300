"""The core of a reader on a bench: segments, bookies by name, and reads that a test answers.

Used by the tests of the reader's core. Source: docs/protocol/reading.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from duramen.config import parse_log_config
from duramen.core.log_node import LogNode
from duramen.core.quorum import Quorum
from duramen.core.reading.effects import (
    Deliver,
    Effect,
    SendRead,
    SetTimer,
    Skip,
)
from duramen.core.reading.polling import POLL_US
from duramen.core.reading.range_read import NodesAbsence
from duramen.core.reading.read_ahead import ReaderLimits
from duramen.core.reading.reader import Reader
from duramen.core.reading.replica_order import (
    Place,
    ReplicaOrder,
)
from duramen.core.segment import Fragment, Segment, SegmentState, Totals
from duramen.core.segment_base import SegmentBase
from duramen.core.status import BookieStatus
from duramen.ids import (
    BookieId,
    EntryId,
    Epoch,
    Incarnation,
    LogId,
    Member,
)

A, B, C, D = (Member(BookieId(n), Incarnation(n * 32)) for n in "abcd")
HERE = Place("eu", "r1")
PLACES = {
    A.bookie: Place("eu", "r1"),
    B.bookie: Place("eu", "r2"),
    C.bookie: Place("us", "r1"),
}


def make_segment(
    epoch: int,
    *,
    last: int | None = None,
    start: int | None = None,
    fragments: Sequence[tuple[int, tuple[Member, ...]]] = ((0, (A, B, C)),),
    write_quorum: int = 3,
    state: SegmentState = SegmentState.OPEN,
) -> Segment:
    return Segment(
        LogId(7),
        Epoch(epoch),
        Quorum(len(fragments[0][1]), write_quorum, 2),
        tuple(Fragment(EntryId(first), members) for first, members in fragments),
        state=state if last is None else SegmentState.CLOSED,
        last_entry=None if last is None else EntryId(last),
        totals=None if last is None else Totals(last + 1, 10 * (last + 1)),
        start_seq_num=start,
    ).validated()


def make_log(next_epoch: int, clean: int, records: int = 0, first_live: int = 1) -> LogNode:
    return LogNode(
        LogId(7), "ns", "log", parse_log_config({}), next_epoch=Epoch(next_epoch),
        last_clean_epoch=clean, totals=Totals(records), first_live_epoch=Epoch(first_live),
    ).validated()  # fmt: skip


class Bench:
    """A reader, the effects that wait for the test, and what was delivered."""

    def __init__(
        self,
        position: tuple[int, int] = (1, 0),
        *,
        is_following: bool = True,
        limits: ReaderLimits | None = None,
    ) -> None:
        self.now_us = 1_000_000
        self.order = ReplicaOrder(HERE, Random(1))
        self.order.on_places(PLACES)
        self.reader = Reader(
            (Epoch(position[0]), EntryId(position[1])), self.order, is_following=is_following,
            limits=limits or ReaderLimits(),
        )  # fmt: skip
        self.delivered: list[tuple[int, int]] = []
        self.starts: list[int] = []
        self.skipped: list[tuple[int, int, int]] = []
        self.speculate_at_us = 0

    def take(self) -> list[Effect]:
        """The effects that are no deliveries."""
        rest: list[Effect] = []
        for effect in self.reader.take_effects():
            match effect:
                case Deliver(epoch, start, entries):
                    self.delivered += [(epoch, entry_id) for entry_id, _ in entries]
                    self.starts.append(start)
                case Skip(epoch, entry, seq_num):
                    self.skipped.append((epoch, entry, seq_num))
                case SetTimer(at_us) if rest and isinstance(rest[-1], SendRead):
                    self.speculate_at_us = at_us
                case _:
                    rest.append(effect)
        return rest

    def metadata(self, log: LogNode, segment: SegmentBase | None) -> list[Effect]:
        self.reader.on_metadata(log, segment, self.now_us)
        return self.take()

    def answer(
        self,
        read: Effect,
        *entries: int,
        status: BookieStatus = BookieStatus.OK,
        lac: int = -1,
        highest: int = -1,
        is_sealed: bool = False,
        after_us: int = 1_000,
        sender: Member | None = None,
        absent: NodesAbsence | None = None,
    ) -> list[Effect]:
        assert isinstance(read, SendRead)
        self.now_us += after_us
        self.reader.on_read_answer(
            read.read_id, status=status, lac=EntryId(lac), highest=EntryId(highest),
            is_sealed=is_sealed, entries=[(EntryId(n), b"x" * 10) for n in entries],
            now_us=self.now_us, sender=sender,
            absent=absent,
        )  # fmt: skip
        return self.take()

    def empty_poll(self, poll: Effect, *, is_sealed: bool = False) -> list[Effect]:
        return self.answer(
            poll, status=BookieStatus.NO_ENTRY, is_sealed=is_sealed, after_us=POLL_US
        )


def one_read(effects: list[Effect]) -> SendRead:
    (read,) = effects
    assert isinstance(read, SendRead), effects
    return read
