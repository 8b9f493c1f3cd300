"""Reads a log for a sink that takes decoded batches in a thread, one answer at a time.

Each record comes once and in order; numbers that no record has (a hole of an `out_of_order` log)
are told where they are missing. It ends at records that are lost. Asking and cutting are the SDK's
(`sdk.reader`); what becomes of the records is the sink's matter.

Called by `duramen read` and by the local cluster's demo. Source: docs/protocol/read-answers.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from duramen.client.records import Records
from duramen.client.rest_client import BulkReadAnswer, RestClient
from duramen.client.retry import repeat_while_refused
from duramen.client.sdk.reader import (
    ANSWER_BYTES,
    CutAnswer,
    check_progress,
    follow_answers,
    open_answer,
)
from duramen.runtime.http_client import PeerError
from duramen.texts import Position

Sink = Callable[[list[Records]], None]
HoleSink = Callable[[int, int], None]
"""Takes the first sequence number of a hole, and the one behind it."""


class ReadFigures:
    """What a run has read so far."""

    def __init__(self) -> None:
        self.record_count = 0
        self.missing_count = 0
        """Sequence numbers of holes."""
        self.body_bytes = 0
        self.answer_count = 0
        self.seconds = 0.0
        self.first_seq_num: int | None = None
        self.end_seq_num: int | None = None
        self.moved_to: int | None = None
        """Where reading began or went on after what was asked for had been truncated."""


class BulkReader:
    """Reads from one log."""

    def __init__(self, client: RestClient, namespace: str, log: str, *, timeout_s: float) -> None:
        """`timeout_s` bounds the repeated tries of one request."""
        self._client = client
        self._namespace = namespace
        self._log = log
        self._timeout_s = timeout_s
        self.figures = ReadFigures()

    async def run(
        self,
        position: Position,
        text: str,
        *,
        count: int | None,
        is_following: bool,
        sink: Sink,
        on_hole: HoleSink = lambda first, end: None,
    ) -> None:
        """Read from a position to the tail, or on and on; `figures` count also when this raises.

        Args:
            position: where to begin; `text` is the same as it was written.
            count: how many records at most; None for no limit.
            on_hole: is told of each between the records before and behind it.

        Raises:
            DuramenError, PeerError: refused, unreachable, damaged, or a record came twice.
            OSError: what the sink raises.
        """
        began_s = time.perf_counter()
        answers = follow_answers(
            self._ask, position, text, count=count, is_following=is_following,
            is_passing_losses=False,
        )  # fmt: skip
        try:
            async with contextlib.aclosing(answers):
                async for cut in answers:
                    if cut.answer.moved_to is not None:
                        self.figures.moved_to = cut.answer.moved_to
                    if cut.answer.batches or cut.hole_count:
                        await asyncio.to_thread(self._use, cut, sink, on_hole)
        finally:
            self.figures.seconds = time.perf_counter() - began_s

    async def _ask(self, position: str, wait_ms: int) -> BulkReadAnswer:
        async def ask() -> BulkReadAnswer:
            answer = await self._client.read(
                self._namespace, self._log, position, most_bytes=ANSWER_BYTES, wait_ms=wait_ms
            )
            return check_progress(answer, position, wait_ms)

        return await repeat_while_refused(ask, timeout_s=self._timeout_s, is_read=True)

    def _use(self, cut: CutAnswer, sink: Sink, on_hole: HoleSink) -> None:
        """Open an answer and hand it on; runs in a thread."""
        try:
            found = open_answer(cut)
        except ValueError as error:
            raise PeerError(f"{self._client.url} answered with damaged records: {error}") from error
        self.figures.answer_count += 1
        run: list[Records] = []
        expected = cut.first
        for records in found:
            if expected is not None and records.first < expected:
                raise PeerError(f"sequence number {records.first} came again")
            if expected is not None and records.first > expected:
                self._hand_on(run, sink)
                self._pass_hole(expected, records.first, on_hole)
                run = []
            run.append(records)
            expected = records.end
        self._hand_on(run, sink)
        if cut.hole_count:
            self._pass_hole(cut.end - cut.hole_count, cut.end, on_hole)

    def _hand_on(self, run: list[Records], sink: Sink) -> None:
        """Records that follow one another."""
        figures = self.figures
        for records in run:
            if figures.first_seq_num is None:
                figures.first_seq_num = records.first
            figures.end_seq_num = records.end
            figures.record_count += records.stop - records.skip
            figures.body_bytes += sum(map(len, records.bodies))
        if run:
            sink(run)

    def _pass_hole(self, first: int, end: int, on_hole: HoleSink) -> None:
        self.figures.missing_count += end - first
        on_hole(first, end)
