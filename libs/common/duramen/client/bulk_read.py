"""Reads a log in large answers, with the next request under way while one is used.

Checks on the way that sequence numbers have no gap, and cuts whole batches to what was asked for.
What becomes of the records is the sink's matter; it runs in a thread, one answer at a time.

Called by `duramen read` and by the local cluster's demo. Source: 03-api "REST v1".
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from duramen.client.records import Records, open_batches
from duramen.client.rest_client import ReadAnswer, RestClient
from duramen.client.retry import repeat_while_refused
from duramen.runtime.http_client import NoAnswerError, PeerError
from duramen.texts import Position, PositionKind
from duramen.units import MIB

ANSWER_BYTES: Final = 4 * MIB
FOLLOW_WAIT_MS: Final = 20_000
"""One long poll of a follower: below what idle connections are cut after anywhere."""

Sink = Callable[[list[Records]], None]


class ReadFigures:
    """What a run has read so far."""

    def __init__(self) -> None:
        self.record_count = 0
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
        self._first: int | None = None
        self._stop: int | None = None
        self.figures = ReadFigures()

    async def run(
        self, position: Position, text: str, *, count: int | None, is_following: bool, sink: Sink
    ) -> None:
        """Read from a position to the tail, or on and on; `figures` count also when this raises.

        Args:
            position: where to begin; `text` is the same as it was written.
            count: how many records at most; None for no limit.

        Raises:
            DuramenError, PeerError: refused, unreachable, damaged, or a sequence number is missing.
            OSError: what the sink raises.
        """
        began_s = time.perf_counter()
        if position.kind is PositionKind.SEQ:
            self._first = position.number
        wait_ms = FOLLOW_WAIT_MS if is_following else 0
        # Not waiting, the first answer settles a position that is relative to tail or time.
        request = asyncio.create_task(self._ask(text, 0))
        try:
            is_last = count == 0
            while not is_last:
                answer = await request
                self._settle(answer, count)
                is_last = self._is_last(answer, is_following=is_following)
                if not is_last:
                    request = asyncio.create_task(self._ask(answer.next_position, wait_ms))
                if answer.batches:
                    await asyncio.to_thread(self._use, answer, sink)
        finally:
            self.figures.seconds = time.perf_counter() - began_s
            request.cancel()
            await asyncio.wait([request])

    def _settle(self, answer: ReadAnswer, count: int | None) -> None:
        """Know where the records begin, and where they end after `count` of them."""
        if answer.moved_to is not None:
            self._first = self.figures.moved_to = answer.moved_to
        elif self._first is None:
            self._first = answer.first_seq_num
        if count is not None and self._stop is None and self._first is not None:
            self._stop = self._first + count

    async def _ask(self, position: str, wait_ms: int) -> ReadAnswer:
        async def ask() -> ReadAnswer:
            answer = await self._client.read(
                self._namespace, self._log, position, most_bytes=ANSWER_BYTES, wait_ms=wait_ms
            )
            is_idle = not answer.batches and answer.next_position == position
            if is_idle and not answer.is_at_tail and not wait_ms:
                raise NoAnswerError(f"{self._client.url} gives nothing at {position}")
            return answer

        return await repeat_while_refused(ask, timeout_s=self._timeout_s, is_read=True)

    def _is_last(self, answer: ReadAnswer, *, is_following: bool) -> bool:
        batches = answer.batches
        if self._stop is not None and batches and batches[-1].end_seq_num >= self._stop:
            return True
        return answer.is_at_tail and not is_following

    def _use(self, answer: ReadAnswer, sink: Sink) -> None:
        """Open an answer and hand it on; runs in a thread."""
        try:
            found = list(open_batches(answer.batches, first=self._first, stop=self._stop))
        except ValueError as error:
            raise PeerError(f"{self._client.url} answered with damaged records: {error}") from error
        figures = self.figures
        for records in found:
            if self._first is not None and records.first != self._first:
                raise PeerError(f"sequence number {self._first} is missing, {records.first} came")
            if figures.first_seq_num is None:
                figures.first_seq_num = records.first
            figures.end_seq_num = self._first = records.end
            figures.record_count += records.stop - records.skip
            figures.body_bytes += sum(map(len, records.bodies))
        figures.answer_count += 1
        sink(found)
