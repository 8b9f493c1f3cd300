"""Reads a log in large answers, with the next request under way while one is used.

`follow_answers` asks and knows where it is; `open_answer` decodes, cuts whole batches to what was
asked for and finds what is missing. Each record comes once, in order: after a lost connection the
same position is asked for again, and that is always the one behind the last answer.
Used by `sdk.log` and `client.bulk_read`. Source: docs/protocol/read-answers.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import datetime
from typing import Final, NamedTuple

from duramen.client.records import Records, open_batches
from duramen.client.rest_client import BulkReadAnswer
from duramen.client.sdk.read_batch import ReadBatch
from duramen.client.sdk.values import Lost, Moved, find_time_ms
from duramen.errors import DuramenError
from duramen.runtime.http_client import NoAnswerError
from duramen.texts import Position, PositionKind
from duramen.units import MIB

ANSWER_BYTES: Final = 4 * MIB
FOLLOW_WAIT_MS: Final = 20_000
"""One long poll of a follower: below what idle connections are cut after anywhere."""

Ask = Callable[[str, int], Awaitable[BulkReadAnswer]]
"""Asks for the records from a position, waiting so many milliseconds at the tail."""


class CutAnswer(NamedTuple):
    """An answer and what of it was asked for.

    Attributes:
        wanted: the position that was asked for.
        first: the sequence number that the records should begin with, if that is known.
        stop: the sequence number before which they end, if there is a bound.
        lost: what was asked for is lost, and this is what stands behind it.
    """

    answer: BulkReadAnswer
    wanted: str
    first: int | None
    stop: int | None
    lost: Lost | None = None

    @property
    def end(self) -> int:
        """The sequence number at which reading goes on, or ends."""
        end = int(self.answer.next_position.removeprefix("seq:"))
        return end if self.stop is None else min(end, self.stop)

    @property
    def hole_count(self) -> int:
        """So many sequence numbers before `end` belong to no record: a hole ends the answer."""
        ends = [
            batch.end_seq_num
            for batch in self.answer.batches
            if self.stop is None or batch.seq_num < self.stop
        ]
        known = [*ends[-1:], *([] if self.first is None else [self.first])]
        return max(0, self.end - max(known)) if known else 0


def format_position(position: str | int | datetime) -> str:
    """A position in the grammar of docs/protocol/rest.md "Records".

    Raises:
        DuramenError: `invalid_argument`: a time without a zone.
    """
    if isinstance(position, datetime):
        return f"time:{find_time_ms(position)}"
    return f"seq:{position}" if isinstance(position, int) else position


async def follow_answers(
    ask: Ask,
    position: Position,
    text: str,
    *,
    count: int | None,
    until: int | None = None,
    is_following: bool,
    is_passing_losses: bool,
) -> AsyncGenerator[CutAnswer, None]:
    """The answers from a position on, each with what of it is wanted.

    Args:
        position: where to begin; `text` is the same as it was written.
        count: how many records at most; None for no limit.
        until: the sequence number to end before.
        is_following: wait for more at the tail.
        is_passing_losses: go on behind records whose loss was accepted, and say so.

    Raises:
        As `ask`; `data_lost` only where losses are not passed.
    """
    first = position.number if position.kind is PositionKind.SEQ else None
    stop = until
    if count == 0:
        return
    lost: Lost | None = None
    # Not waiting, the first answer settles a position that is relative to tail or time.
    request = asyncio.ensure_future(ask(text, 0))
    try:
        while True:
            try:
                answer = await request
            except DuramenError as error:
                lost = _find_loss(error, text, lost) if is_passing_losses else None
                if lost is None:
                    raise
                text = lost.next
                request = asyncio.ensure_future(ask(text, 0))
                continue
            if answer.moved_to is not None:
                first = answer.moved_to
            elif first is None:
                first = answer.first_seq_num
            begin = first if lost is None else answer.first_seq_num
            if count is not None and begin is not None:
                stop = begin + count if stop is None else min(stop, begin + count)
                count = None
            next_seq_num = int(answer.next_position.removeprefix("seq:"))
            is_last = _is_last(answer, next_seq_num, stop, is_following=is_following)
            wanted = text if lost is None else lost.wanted
            text = answer.next_position
            if not is_last:
                wait_ms = FOLLOW_WAIT_MS if is_following else 0
                request = asyncio.ensure_future(ask(text, wait_ms))
            cut = CutAnswer(answer, wanted, first, stop, lost)
            if answer.batches or answer.moved_to is not None or lost is not None or cut.hole_count:
                yield cut
            first, lost = next_seq_num, None
            if is_last:
                return
    finally:
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)


def _find_loss(error: DuramenError, position: str, before: Lost | None) -> Lost | None:
    """What is lost at a position, together with a loss before it; None: it is no loss."""
    after = error.facts.get("next")
    if error.code != "data_lost" or not isinstance(after, str) or after == position:
        return None
    return Lost(position if before is None else before.wanted, after)


def _is_last(
    answer: BulkReadAnswer, next_seq_num: int, stop: int | None, *, is_following: bool
) -> bool:
    if stop is not None and next_seq_num >= stop:
        return True
    return answer.is_ended or (answer.is_at_tail and not is_following)


def check_progress(answer: BulkReadAnswer, position: str, wait_ms: int) -> BulkReadAnswer:
    """The answer itself, unless it gives nothing where it should: that is asked again.

    Raises:
        NoAnswerError: no record, no tail and no wait.
    """
    is_idle = not answer.batches and answer.next_position == position
    if is_idle and not answer.is_at_tail and not wait_ms:
        raise NoAnswerError(f"nothing was given at {position}")
    return answer


def open_answer(cut: CutAnswer) -> list[Records]:
    """The records that were asked for, decoded.

    Raises:
        BatchError: a batch is damaged.
    """
    return list(open_batches(cut.answer.batches, first=cut.first, stop=cut.stop))


def make_batches(cut: CutAnswer) -> list[ReadBatch]:
    """The answer as readers get it: one batch, or more where sequence numbers are missing inside;
    an empty one behind them where they are missing at its end.

    Raises:
        BatchError: a batch is damaged.
    """
    answer = cut.answer
    moved = None if answer.moved_to is None else Moved(cut.wanted, answer.moved_to)
    runs: list[list[Records]] = []
    for piece in open_answer(cut):
        if runs and runs[-1][-1].end == piece.first:
            runs[-1].append(piece)
        else:
            runs.append([piece])
    if not runs:
        return _make_empty(cut, moved)
    made = []
    expected = cut.first
    for index, run in enumerate(runs):
        first = run[0].first
        batch = ReadBatch(
            run,
            first,
            is_at_tail=answer.is_at_tail and index == len(runs) - 1 and not cut.hole_count,
            moved_to=moved if index == 0 else None,
            lost=cut.lost if index == 0 else None,
            missing_count=0 if expected is None else first - expected,
        )
        expected = batch.end
        made.append(batch)
    if cut.hole_count:
        made += _make_empty(cut._replace(lost=None), None)
    return made


def _make_empty(cut: CutAnswer, moved: Moved | None) -> list[ReadBatch]:
    """What an answer tells besides its records: that something is missing, if it is."""
    first = _find_first(cut.answer)
    missing_count = cut.hole_count
    if cut.lost is not None:
        missing_count = 0 if cut.first is None else first - cut.first
    elif cut.hole_count:
        first = cut.end
    elif moved is None:
        return []
    empty = ReadBatch(
        (), first, is_at_tail=cut.answer.is_at_tail, moved_to=moved, lost=cut.lost,
        missing_count=missing_count,
    )  # fmt: skip
    return [empty]


def _find_first(answer: BulkReadAnswer) -> int:
    """The sequence number at which an answer begins, or would."""
    for seq_num in (answer.moved_to, answer.first_seq_num):
        if seq_num is not None:
            return seq_num
    return int(answer.next_position.removeprefix("seq:"))
