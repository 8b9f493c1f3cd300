r"""Cuts a stream of bytes into lines, and lines into record batches, in bulk.

A record is a line without its "\n"; what follows the last "\n" is a record too unless it is empty.
The work per line is done by `bytes.split`, `accumulate` and `bisect`: no Python statement runs per
line. `LineCutter` is pure; `LineSource` reads a file descriptor and encodes. From a file batches
are full; from a pipe or terminal a batch is what was there, or what came within the linger time, so
that no line waits for others for longer than was asked for.

Called by `duramen append` and by the local cluster's demo.
"""

from __future__ import annotations

import math
import os
import select
import time
from bisect import bisect_right
from itertools import accumulate
from typing import Final

from duramen.client.bulk_append import PreparedBatch
from duramen.limits import BATCH_RECORD_COUNT_MAX, RECORD_BYTES_MAX
from duramen.units import MIB, MS
from duramen.wire.record_batch import BatchProducer, encode_batch

BATCH_BYTES_DEFAULT: Final = 1 * MIB
_CHUNK_BYTES: Final = 1 * MIB


class LineTooLongError(ValueError):
    """A line is larger than a record may be."""

    def __init__(self, line: int) -> None:
        super().__init__(f"line {line} is longer than a record may be ({RECORD_BYTES_MAX} bytes)")


class LineCutter:
    """Bytes in, groups of lines out; holds at most a batch and a chunk."""

    def __init__(
        self,
        *,
        batch_bytes: int = BATCH_BYTES_DEFAULT,
        record_count: int = BATCH_RECORD_COUNT_MAX,
        skip_lines: int = 0,
    ) -> None:
        """Groups have at most `record_count` lines and `batch_bytes` bytes; a longer line is a
        group of its own. The first `skip_lines` lines are left out."""
        self._batch_bytes = batch_bytes
        self._record_count = record_count
        self._skip = skip_lines
        self._carry = b""
        self._lines: list[bytes] = []
        self._at = 0
        self._is_ended = False
        self.next_line = skip_lines + 1
        """Number of the first line of the next group, from 1."""

    @property
    def is_holding_lines(self) -> bool:
        """Whether a partial group could be taken."""
        return self._at < len(self._lines)

    def on_chunk(self, chunk: bytes) -> None:
        """Take the next bytes of the stream.

        Raises:
            LineTooLongError: a line without an end so far is too long already.
        """
        assert not self._is_ended
        lines = (self._carry + chunk).split(b"\n")
        self._carry = lines.pop()
        self._keep(lines)
        if self._skip:
            self._carry = self._carry[:1]  # of a line that is left out only its being there counts
        elif len(self._carry) > RECORD_BYTES_MAX:
            raise LineTooLongError(self.next_line + len(self._lines))

    def on_end(self) -> None:
        """The stream is over: what is left is the last line."""
        self._is_ended = True
        if self._carry:
            self._keep([self._carry])
            self._carry = b""

    def take(self, *, is_partial_fine: bool) -> list[bytes] | None:
        """The next group; None if there is none yet, or only a partial one.

        Raises:
            LineTooLongError: a line in it is larger than a record may be.
        """
        window = self._lines[self._at : self._at + self._record_count]
        ends = list(accumulate(map(len, window)))
        count = max(bisect_right(ends, self._batch_bytes), min(1, len(window)))
        is_full = count == self._record_count or self._at + count < len(self._lines)
        if not count or not (is_full or is_partial_fine or self._is_ended):
            return None
        group = window[:count]
        if max(map(len, group)) > RECORD_BYTES_MAX:
            sizes = map(RECORD_BYTES_MAX.__lt__, map(len, group))
            raise LineTooLongError(self.next_line + list(sizes).index(True))
        self._at += count
        self.next_line += count
        return group

    def _keep(self, lines: list[bytes]) -> None:
        skipped = min(self._skip, len(lines))
        self._skip -= skipped
        self._lines = self._lines[self._at :] + lines[skipped:]
        self._at = 0


class LineSource:
    """The batches of the lines of an open file, pipe or terminal."""

    def __init__(
        self,
        fd: int,
        cutter: LineCutter,
        producer_id: str | None = None,
        *,
        linger_us: int = 0,
    ) -> None:
        """`fd` stays the caller's to close, after this source was closed.

        A batch that is not full waits for more lines for up to `linger_us`.

        With a producer id the batches are numbered, in an epoch that fences every earlier source
        of the same id: its numbers would begin at 0 again.
        """
        self._fd = fd
        self._next: BatchProducer | None = None
        if producer_id is not None:
            self._next = BatchProducer(producer_id, time.time_ns() // 1_000_000, 0)
        self._cutter = cutter
        self._linger_us = linger_us
        self._wake_read, self._wake_write = os.pipe()
        self._is_closed = False
        self._is_ended = False

    def next_batch(self) -> PreparedBatch | None:
        """The next batch, None at the end or after `close`; waits for input.

        Raises:
            LineTooLongError: see there.
            OSError: the input cannot be read.
        """
        lingers_until_us: int | None = None
        while not self._is_closed:
            first_line = self._cutter.next_line
            group = self._cutter.take(is_partial_fine=False)
            if group is None and self._cutter.is_holding_lines:
                now_us = time.monotonic_ns() // MS
                lingers_until_us = lingers_until_us or now_us + self._linger_us
                left_ms = math.ceil(max(lingers_until_us - now_us, 0) / MS)
                if not self._wait_input(left_ms) and not self._is_closed:
                    group = self._cutter.take(is_partial_fine=True)
            if group is not None:
                return self._prepare(first_line, group)
            if self._is_ended:
                return None
            if not self._wait_input(None):
                break
            chunk = os.read(self._fd, _CHUNK_BYTES)
            if chunk:
                self._cutter.on_chunk(chunk)
            else:
                self._is_ended = True
                self._cutter.on_end()
        return None

    def close(self) -> None:
        """Ends a waiting and every later `next_batch`. Safe to call twice."""
        if not self._is_closed:
            self._is_closed = True
            os.close(self._wake_write)

    def _prepare(self, first_line: int, lines: list[bytes]) -> PreparedBatch:
        producer = self._next
        encoded = encode_batch(lines, time.time_ns() // 1_000_000, producer=producer)
        if producer is not None:
            self._next = producer._replace(sequence=producer.sequence + 1)
        return PreparedBatch(first_line, lines, sum(map(len, lines)), encoded, producer)

    def _wait_input(self, timeout_ms: int | None) -> bool:
        """Whether input (or its end) is there; False after `close` or after the time."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        ready = dict(poll.poll(timeout_ms))
        return self._fd in ready and self._wake_read not in ready

    def __del__(self) -> None:
        self.close()
        os.close(self._wake_read)
