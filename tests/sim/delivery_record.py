"""What subscribers of one log got, judged by G1: every record once, in order, from the start on.

A subscriber begins at a position and goes on whatever dies. Record by record, nothing may come
again. At the end the complete read tells what there was: a subscriber has missed no record between
its start and what it got last, but where it was told of a gap, and one that is still there has all
of them. The start is judged too: the first record at or above the position that was asked for.

Part of `checkers`. What is truncated is not asked for. O(1) for each record, and a search or two
for each run of numbers at the end. Source: docs/testing.md "Invariants",
docs/protocol/reading.md "Positions".
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

from duramen.ids import LogId
from duramen.runtime.reading.positioning.positions import Start
from duramen.texts import Position, PositionKind
from tests.sim.log_record import TailQuestion, key_of
from tests.sim.segment_record import Record, Tally


class Delivery:
    """What one subscriber got."""

    def __init__(self, log_id: LogId, tally: Tally, start_seq_num: int) -> None:
        self.next_seq_num = start_seq_num
        self.is_over = False
        self._log_id = log_id
        self._tally = tally
        self._start_seq_num = start_seq_num
        self._runs: list[list[int]] = []
        """Numbers that came: from … to before …"""
        self._gaps: dict[int, int] = {}
        """It was told that what lies between these is gone."""
        self._is_gap_open = False

    def take(self, seq_num: int) -> None:
        """A record comes."""
        is_later = seq_num >= self.next_seq_num
        self._check(is_later, "is given seq", seq_num, "where", self.next_seq_num, "is due")
        if self._is_gap_open:
            self._end_gap(seq_num)
        if self._runs and self._runs[-1][1] == seq_num:
            self._runs[-1][1] += 1
        else:
            self._runs.append([seq_num, seq_num + 1])
        self.next_seq_num = seq_num + 1

    def pass_gap(self, seq_num: int | None = None) -> None:
        """It is told that what is due is gone; None: up to what comes next."""
        self._is_gap_open = True
        if seq_num is not None:
            self._end_gap(max(seq_num, self.next_seq_num))

    def leave(self) -> None:
        """It does not want what is left."""
        self.is_over = True

    def finish(self, seq_nums: Sequence[int]) -> None:
        """Judge by the numbers of all records that are there, ascending."""
        if not seq_nums:
            return
        due = self._start_seq_num
        for begin, end in self._runs:
            self._check_none(seq_nums, due, begin)
            first = max(begin, seq_nums[0])
            count = bisect_left(seq_nums, end) - bisect_left(seq_nums, first)
            self._check(count == max(end - first, 0), "was given some of seq", begin, "to", end)
            due = end
        if not self.is_over:
            self._check_none(seq_nums, due, seq_nums[-1] + 1)

    def _check_none(self, seq_nums: Sequence[int], due: int, end: int) -> None:
        """Nothing lies between the two but what it was told of."""
        for begin, gap_end in [*self._gaps.items(), (end, end)]:
            if begin < due or begin > end:
                continue
            missed = bisect_left(seq_nums, begin) - bisect_left(seq_nums, due)
            self._check(missed <= 0, "was not given", missed, "records from seq", due, "on")
            due = gap_end

    def _end_gap(self, seq_num: int) -> None:
        self._is_gap_open = False
        self._gaps[self.next_seq_num] = seq_num
        self.next_seq_num = seq_num

    def _check(self, is_kept: bool, *what: object) -> None:
        self._tally.check("G1", is_kept, "a subscriber of log", self._log_id, *what)


class _Asked(NamedTuple):
    """A position that was asked for, and where it is said to lie."""

    question: TailQuestion
    position: Position
    start: Start
    head_seq_num: int


class DeliveryRecord:
    """The subscribers of one log."""

    def __init__(self, log_id: LogId, tally: Tally) -> None:
        self._log_id = log_id
        self._tally = tally
        self._deliveries: list[Delivery] = []
        self._asked: list[_Asked] = []

    def on_start(
        self, question: TailQuestion, position: Position, start: Start, head_seq_num: int
    ) -> Delivery:
        """A subscriber asks for a position and is told where that is.

        Args:
            head_seq_num: of the first live record, when it is told.
        """
        self._asked.append(_Asked(question, position, start, head_seq_num))
        delivery = Delivery(self._log_id, self._tally, start.seq_num)
        self._deliveries.append(delivery)
        return delivery

    def finish(self, complete: Sequence[Record], read_ms: Callable[[bytes], int]) -> None:
        """Judge by the final complete read.

        Args:
            read_ms: the timestamp of the record with a body.
        """
        if not complete:
            return
        seq_nums = [seq_num for _, seq_num, _ in complete]
        for delivery in self._deliveries:
            delivery.finish(seq_nums)
        keys = [key_of(dlsn) for dlsn, _, _ in complete]
        times_ms = [read_ms(body) for _, _, body in complete]
        for asked in self._asked:
            self._check_start(asked, seq_nums, keys, times_ms)

    def _check_start(
        self, asked: _Asked, seq_nums: list[int], keys: list[int], times_ms: list[int]
    ) -> None:
        """What lives before the start lies below the position, and the start lies at or above it,
        or is the tail."""
        question, position, start, head_seq_num = asked
        if start.is_moved or start.seq_num < seq_nums[0]:
            return
        match position.kind:
            case PositionKind.SEQ:
                wanted, places = position.number, seq_nums
            case PositionKind.DLSN | PositionKind.LSN:
                wanted, places = _key_at(position), keys
            case PositionKind.TIME:
                wanted, places = position.number, times_ms
            case _:
                return
        at = bisect_left(seq_nums, start.seq_num)
        before = places[bisect_left(seq_nums, head_seq_num) : at]
        is_first = max(before, default=-1) < wanted
        tail = start.tail
        # Where a time lies behind a tail that is not sure, reading begins there: too early.
        is_early = tail is not None and not tail.is_sure and tail.seq_num == start.seq_num
        is_tail = is_early or start.seq_num >= question.end
        is_there = at == len(places) or places[at] >= wanted or is_tail
        what = "log", self._log_id, position, "is said to begin at", start
        self._tally.check("G1", is_first and is_there, *what)


def _key_at(position: Position) -> int:
    if position.kind is PositionKind.LSN:
        return position.number << 32
    assert position.dlsn is not None
    return key_of(position.dlsn)
