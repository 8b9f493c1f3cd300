"""Reads one log from bookies: by position, bounded or following, each record once and in order.

The rules of what may be shown are those of the read proxy, because the same reader decides
(`core.reading.reader`, driven by `runtime.reading.log_reader`): nothing above the LAC, segment
e + 1 only after e is closed, losses told and never passed over. What is missing here is what a
proxy is for: a cache and a feed that many readers share.

Made by `CoreClient`. Source: docs/protocol/reading.md, docs/sdk.md, docs/protocol/read-answers.md.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime
from typing import Final

from duramen.client.core.parts import ReadParts
from duramen.client.rest_client import BulkReadAnswer
from duramen.client.sdk.read_batch import ReadBatch
from duramen.client.sdk.reader import CutAnswer, format_position, make_batches
from duramen.client.sdk.values import Mark, Moved
from duramen.core.reading.effects import Deliver
from duramen.core.reading.read_ahead import ReaderLimits
from duramen.errors import DuramenError
from duramen.ids import Dlsn, EntryId
from duramen.runtime.reading.log_reader import LogCursor, Truncated
from duramen.runtime.reading.metadata import LogFollower
from duramen.runtime.reading.positioning.positions import Start
from duramen.runtime.reading.tail import Tail
from duramen.texts import check_log_name, check_namespace, parse_position
from duramen.units import MIB
from duramen.wire.entry import EntryError, read_entry_info
from duramen.wire.read_answers import place_batches
from duramen.wire.record_batch import BatchError

_OPENED_BYTES_MAX: Final = 8 * MIB
"""Of batches whose records are made at once: a reader's buffer, and each entry for itself fits."""


class ReadLog:
    """A log, to be read; making one asks nobody."""

    def __init__(self, reading: ReadParts, namespace: str, name: str) -> None:
        self._reading = reading
        self.namespace = check_namespace(namespace)
        self.name = check_log_name(name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.namespace}/{self.name}>"

    async def read(
        self,
        from_: str | int | datetime = "head",
        *,
        follow: bool = False,
        count: int | None = None,
        until: int | None = None,
    ) -> AsyncGenerator[ReadBatch, None]:
        """Read the records from a position on, each once and in order.

        Truncated records are passed, and the batch behind them says so (`moved_to`).

        Args:
            from_: a sequence number, a time, or a position: `head`, `tail`, `tail-N`, `seq:N`,
                `dlsn:…`, `lsn:…`, `txid:N`, `time:…`, `ago:1h30m`.
            follow: wait at the tail for more; ends only at the end of an ended log.
            count: how many records at most; None: no limit.
            until: the sequence number to end before; None: no limit.

        Yields:
            A `ReadBatch` each; an interrupted read is begun again at the last one's `end`.

        Raises:
            DuramenError: `invalid_position`, `beyond_tail`, `namespace_not_found`, `log_not_found`,
                `log_deleted`, `data_lost` (records are lost for ever, the text says where the log
                goes on): a retry is refused again. `data_unavailable`, `metadata_unavailable`,
                `cold_store_unavailable`: a retry is safe. `internal`: stored records are not valid.
                A read is never uncertain.
        """
        text = format_position(from_)
        position, left = parse_position(text), count
        follower = await self._find()
        view = self._reading.view(follower)
        while True:
            start = await self._reading.positions.find(view, position, clamp=False)
            at, stop = start.seq_num, _find_stop(start.seq_num, left, until)
            batches = self._read_from(follower, start, stop, text, is_following=follow)
            try:
                async with aclosing(batches):
                    async for batch in batches:
                        at = batch.end
                        yield batch
                return
            except Truncated:
                # Given up while it was read: the next start tells where it goes on.
                left = None if left is None else left - (at - start.seq_num)
                text = f"seq:{at}"
                position = parse_position(text)

    async def tail(self) -> Mark:
        """Find the mark behind the last record; every append acknowledged before is in front of it.

        Returns:
            A `Mark`.

        Raises:
            DuramenError: `namespace_not_found`, `log_not_found`, `log_deleted`: a retry is refused
                again. `data_unavailable`, `metadata_unavailable`: a retry is safe.
        """
        tail = await self._find_tail()
        return _make_mark(tail, tail.entry, tail.seq_num, tail.timestamp_ms)

    async def acknowledged(self) -> Mark:
        """Find the mark behind the highest record that is acknowledged, released or not.

        It is behind `tail` only of a log with `ack_mode: out_of_order`, and only for a while.

        Returns:
            A `Mark`.

        Raises:
            DuramenError: those of `tail`.
        """
        tail = await self._find_tail()
        end = tail.acknowledged or (tail.entry, tail.seq_num, tail.timestamp_ms)
        return _make_mark(tail, *end)

    async def _find_tail(self) -> Tail:
        tail = await self._reading.tails.find(await self._find())
        tail.check_sure()
        return tail

    async def _find(self) -> LogFollower:
        return await self._reading.catalog.find(self.namespace, self.name)

    async def _read_from(
        self,
        follower: LogFollower,
        start: Start,
        stop: int | None,
        text: str,
        *,
        is_following: bool,
    ) -> AsyncGenerator[ReadBatch, None]:
        """The records from a start on, before `stop`; `text` is the position as it was asked for.

        Raises:
            Truncated: what comes next was given up.
            DuramenError: as `read`.
        """
        wanted, moved_to = start.seq_num, start.seq_num if start.is_moved else None
        reading, limits = self._reading, ReaderLimits()
        position = (start.epoch, start.entry)
        is_waiting = False
        async with LogCursor(follower, reading.fetcher, position, limits) as cursor:
            while stop is None or wanted < stop:
                delivered = await cursor.take(wanted)
                if delivered is not None:
                    parts = _divide(delivered)
                    for index, part in enumerate(parts, 1):
                        if stop is not None and wanted >= stop:
                            break
                        batches = _open(
                            part,
                            text,
                            wanted=wanted,
                            stop=stop,
                            moved_to=moved_to,
                            is_at_tail=cursor.tail is not None and index == len(parts),
                        )
                        for batch in batches:
                            moved_to, wanted = None, batch.end
                            yield batch
                    continue
                if is_waiting:
                    break  # a reader that waits comes to an end only where its log has ended
                tail = cursor.end
                if tail is None:
                    tail = await reading.tails.find_reach(follower)
                    if await cursor.on_tail(tail):
                        continue
                if cursor.is_at_end_of_stream:
                    break
                if not is_following:
                    tail.check_sure()
                    break
                cursor.follow()
                is_waiting = True
        if moved_to is not None:
            yield ReadBatch((), moved_to, is_at_tail=True, moved_to=Moved(text, moved_to))


def _make_mark(tail: Tail, entry: EntryId, seq_num: int, timestamp_ms: int) -> Mark:
    dlsn = Dlsn(tail.epoch, entry, 0)
    return Mark(seq_num, timestamp_ms if seq_num else None, str(dlsn))


def _find_stop(first: int, count: int | None, until: int | None) -> int | None:
    if count is None:
        return until
    return first + count if until is None else min(until, first + count)


def _divide(delivered: Deliver) -> list[Deliver]:
    """Delivered entries in parts whose records may be in memory at once: of compressed entries a
    few KiB may be gigabytes."""
    parts: list[list[tuple[EntryId, bytes]]] = []
    size_bytes = _OPENED_BYTES_MAX
    for entry_id, body in delivered.entries:
        payload_bytes = read_entry_info(body).payload_bytes
        if size_bytes + payload_bytes > _OPENED_BYTES_MAX:
            parts.append([])
            size_bytes = 0
        parts[-1].append((entry_id, body))
        size_bytes += payload_bytes
    return [replace(delivered, entries=tuple(part)) for part in parts]


def _open(
    delivered: Deliver,
    text: str,
    *,
    wanted: int,
    stop: int | None,
    moved_to: int | None,
    is_at_tail: bool,
) -> list[ReadBatch]:
    """What of delivered entries was asked for, as readers get it."""
    try:
        last = read_entry_info(delivered.entries[-1][1])
        end = max(wanted, delivered.start_seq_num + last.totals.record_count)
        placed = [
            batch
            for _, body in delivered.entries
            for batch in place_batches(body, delivered.epoch, delivered.start_seq_num)
        ]
        answer = BulkReadAnswer(placed, f"seq:{end}", is_at_tail, wanted, moved_to)
        return make_batches(CutAnswer(answer, text, wanted, stop))
    except (BatchError, EntryError) as error:
        raise DuramenError("internal", f"stored records are not valid: {error}") from error
