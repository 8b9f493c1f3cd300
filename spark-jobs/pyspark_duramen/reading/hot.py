"""Reads a range of a log by a proxy, as rows: what bookies have, or a proxy fetches for them.

The next answer is asked for while one is made into rows. What is gone (truncated, lost) is a gap's
row or the end of the task, as the policy says; a hole is a row always. An answer that ends before
the range does is an error. Called by `reading.reader` and `streaming.reader`, in executors.
Source: docs/protocol/read-answers.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Final

import pyarrow as pa

from duramen.client.blocking.portal import Portal
from duramen.client.rest_client import BulkReadAnswer
from duramen.client.retry import repeat_while_refused
from duramen.client.sdk.reader import CutAnswer, check_progress, follow_answers
from duramen.errors import DuramenError
from duramen.runtime.http_client import PeerError
from duramen.texts import parse_position
from duramen.units import MIB
from duramen.wire.record_batch import BatchError
from pyspark_duramen.catalog import RETRY_S
from pyspark_duramen.options import OnTruncation
from pyspark_duramen.proxy_place import ProxyPlace
from pyspark_duramen.reading.columns import BatchSlice, make_rows, open_pieces
from pyspark_duramen.reading.gaps import GapReason, RecordGap, make_gap_row, refuse_gap
from pyspark_duramen.reading.ranges import LogRange

ANSWER_BYTES: Final = 8 * MIB
"""Two of them are held at a time, and what one of them comes to as rows."""


class HotReader:
    """Reads ranges one after another; one for each task."""

    def __init__(self, proxy: ProxyPlace, schema: pa.Schema, policy: OnTruncation) -> None:
        """Connects with the first read."""
        self._schema = schema
        self._policy = policy
        self._portal = Portal()
        self._client = proxy.open()

    def close(self) -> None:
        """Close the connection, and end the thread."""
        self._portal.call(self._client.close())
        self._portal.close()

    def read(self, wanted: LogRange) -> Iterator[pa.RecordBatch]:
        """The rows of a range, in order, an answer's at a time.

        Raises:
            DuramenError: `data_lost`: records are not there any more, and the policy is fail;
                others as of a read.
        """
        at = wanted.first
        for cut in self._portal.iterate(self._ask(wanted)):
            # Batches are whole: the first may begin with records that are truncated.
            found = min(max(at, _begin_of(cut)), wanted.end)
            gap = _find_gap(cut, at, found) if found > at else None
            if gap is not None:
                yield self._note(gap, wanted.log)
            try:
                pieces = open_pieces(cut.answer.batches, found, wanted.end)
            except BatchError as error:
                detail = f"the records of {'/'.join(wanted.log)} at {at} came damaged: {error}"
                raise DuramenError("internal", detail) from error
            if gap is not None:
                at = found
            for run in _divide(pieces, wanted.log, at):
                if run[0].first > at:
                    yield self._note(RecordGap(GapReason.HOLE, at, run[0].first), wanted.log)
                yield make_rows(run, wanted.log, self._schema)
                at = run[-1].end
            end = min(cut.end, wanted.end)
            if at < end:
                yield self._note(RecordGap(GapReason.HOLE, at, end), wanted.log)
                at = end
            if at >= wanted.end:
                return
        if at < wanted.end:
            detail = f"{'/'.join(wanted.log)} ended at {at}, {wanted.end - at} records too early"
            raise DuramenError("internal", detail)

    def _note(self, gap: RecordGap, log: tuple[str, str]) -> pa.RecordBatch:
        if self._policy is OnTruncation.FAIL and gap.reason is not GapReason.HOLE:
            raise refuse_gap(gap, log)
        return make_gap_row(gap, log, self._schema)

    def _ask(self, wanted: LogRange) -> AsyncIterator[CutAnswer]:
        async def ask(position: str, wait_ms: int) -> BulkReadAnswer:
            async def ask_once() -> BulkReadAnswer:
                answer = await self._client.read(
                    *wanted.log, position, most_bytes=ANSWER_BYTES, wait_ms=wait_ms
                )
                return check_progress(answer, position, wait_ms)

            try:
                return await repeat_while_refused(ask_once, timeout_s=RETRY_S, is_read=True)
            except PeerError as error:
                raise DuramenError("log_unavailable", str(error)) from error

        text = f"seq:{wanted.first}"
        return follow_answers(
            ask, parse_position(text), text, count=None, until=wanted.end, is_following=False,
            is_passing_losses=True,
        )  # fmt: skip


def _divide(
    pieces: list[BatchSlice], log: tuple[str, str], first: int
) -> Iterator[list[BatchSlice]]:
    """Pieces that follow one another without a hole.

    Args:
        first: nothing before it may come again.

    Raises:
        DuramenError: `internal`: a record came twice.
    """
    run: list[BatchSlice] = []
    for piece in pieces:
        if piece.first < first:
            detail = f"record {piece.first} of {'/'.join(log)} came twice"
            raise DuramenError("internal", detail)
        if run and piece.first > first:
            yield run
            run = []
        run.append(piece)
        first = piece.end
    if run:
        yield run


def _begin_of(cut: CutAnswer) -> int:
    """The first record that is there, of those that were asked for."""
    for known in (cut.answer.moved_to, cut.answer.first_seq_num):
        if known is not None:
            return known
    return int(cut.answer.next_position.removeprefix("seq:"))


def _find_gap(cut: CutAnswer, first: int, end: int) -> RecordGap | None:
    """What is gone, before what came; None: no record ever had these numbers (a hole)."""
    if cut.answer.moved_to is not None:
        return RecordGap(GapReason.TRUNCATED, first, end)
    return None if cut.lost is None else RecordGap(GapReason.LOST, first, end)
