"""A producer: records go in one by one, batches go out in order, and every record has a ticket.

Batches are numbered by producer id, epoch and sequence, so that the log knows a repetition and
keeps their order; several are on their way at once. Where a try fails, only the oldest batch that
is not settled is repeated, at the pace of the policy; the ones behind it wait for it and are then
sent again, so that an outage meets one repetition at a time from each producer. A batch that
cannot be settled with success ends the producer: what follows it in order is never appended.

Made by `Log.producer`. Source: docs/sdk.md, docs/protocol/rest.md "Append".
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Sequence
from datetime import datetime
from typing import Final, Self

from duramen.client.rest_client import Appended
from duramen.client.retry import Pauses, is_repeatable
from duramen.client.sdk.collector import Collector, PendingBatch, RecordRun
from duramen.client.sdk.delivery import deliver
from duramen.client.sdk.faults import Uncertain, translate_fault
from duramen.client.sdk.values import (
    Headers,
    Receipt,
    check_body,
    check_txid,
    encode_headers,
    find_time_ms,
)
from duramen.errors import DuramenError
from duramen.limits import BATCH_BYTES_MAX, BATCH_RECORD_COUNT_MAX
from duramen.runtime.http_client import UnreachableError
from duramen.units import MIB
from duramen.wire.edge.batch_codec import Codec
from duramen.wire.record_batch import BatchProducer as Stamp

BATCH_BYTES_DEFAULT: Final = 1 * MIB
BATCH_BYTES_MOST: Final = BATCH_BYTES_MAX - 2 * BATCH_RECORD_COUNT_MAX
"""Once one record of a batch has headers, all others count two bytes for having none."""

IN_FLIGHT_BYTES_DEFAULT: Final = 16 * MIB
PIPELINE_COUNT: Final = 4
PIPELINE_COUNT_MAX: Final = 16
"""Batches on their way at once, at first and at most (a quarter of what a log remembers of its
producers by default). A write proxy sends four frames to a sequencer at once: of more batches one
may overtake another in a frame of its own, and all behind it have to be sent again."""

_CLEAN_COUNT: Final = 64
"""After so many batches without an overtaking one, one more is on its way at once."""

_EARLY: Final = ("producer_gap", "producer_unknown")
"""How the log refuses a batch that comes before the one before it; it knows none before the first.
"""

Send = Callable[[bytes, int], Awaitable[Appended]]
"""One try to append an encoded batch of so many records; raises as `RestClient.append`."""


class Ticket:
    """Stands for one record; `await ticket` gives its `Receipt` once it is acknowledged."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: PendingBatch, index: int) -> None:
        self._batch = batch
        self._index = index

    def __await__(self) -> Generator[object, None, Receipt]:
        """The record's place, once it is acknowledged.

        Returns:
            A `Receipt`.

        Raises:
            Uncertain: the record may be in the log, or come to be there. Read before a retry.
            DuramenError: the record is not in the log. A retry by another producer is safe; what
                `Log.append` calls refused is refused again.

        Example:
            ticket = producer.append(b"one")
            receipt = await ticket
        """
        return self.receipt().__await__()

    def is_done(self) -> bool:
        """Whether awaiting it would give an answer at once.

        Returns:
            True once the record is stored or has failed.

        Raises:
            Nothing.

        Example:
            print(ticket.is_done())
        """
        return self._batch.is_settled

    async def receipt(self) -> Receipt:
        """The same as awaiting the ticket.

        Returns:
            A `Receipt`.

        Raises:
            Uncertain, DuramenError: as awaiting the ticket.

        Example:
            receipt = await ticket.receipt()
        """
        await wait_settled(self._batch)
        return self._batch.receipt(self._index)


class BulkTicket:
    """Stands for the records of one `append_many`; `await ticket` gives their receipts' ends."""

    __slots__ = ("_places",)

    def __init__(self, places: Sequence[RecordRun]) -> None:
        self._places = places

    def __await__(self) -> Generator[object, None, tuple[Receipt, Receipt]]:
        """Where the first and the last record are, once all are acknowledged.

        Records of other calls may be between them.

        Returns:
            The `Receipt` of the first record, and that of the last.

        Raises:
            Uncertain, DuramenError: as awaiting a `Ticket`, for the first record that failed.
                Records before that one are stored.

        Example:
            ticket = await producer.append_many([b"one", b"two"])
            first, last = await ticket
        """
        return self.receipt().__await__()

    def is_done(self) -> bool:
        """Whether awaiting it would give an answer at once.

        Returns:
            True once every record is stored or has failed.

        Raises:
            Nothing.

        Example:
            ticket = await producer.append_many([b"one", b"two"])
            print(ticket.is_done())
        """
        return all(place.batch.is_settled for place in self._places)

    async def receipt(self) -> tuple[Receipt, Receipt]:
        """The same as awaiting the ticket.

        Returns:
            The `Receipt` of the first record, and that of the last.

        Raises:
            Uncertain, DuramenError: as awaiting the ticket.

        Example:
            ticket = await producer.append_many([b"one", b"two"])
            first, last = await ticket.receipt()
        """
        for place in self._places:
            await wait_settled(place.batch)
            place.batch.receipt(place.first)
        first, last = self._places[0], self._places[-1]
        return first.batch.receipt(first.first), last.batch.receipt(
            last.first + last.record_count - 1
        )


async def wait_settled(batch: PendingBatch) -> None:
    """Return once the batch is settled, whatever way; in the thread of the producer's loop."""
    if batch.is_settled:
        return
    future = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not future.done():
            future.set_result(None)

    batch.listeners.append(wake)
    await future


class Producer:
    """Appends records to one log in the order of the calls; `async with` opens and closes it.

    A batch that is not stored for certain ends the producer: nothing behind it is appended, and
    later calls raise why. Make another producer to go on.
    """

    def __init__(
        self,
        send: Send,
        find_results_kept: Callable[[], Awaitable[int]],
        make_pauses: Callable[[], Pauses | None],
        *,
        stamp: Stamp | None,
        codec: Codec,
        may_repeat_uncertain: bool,
        linger_s: float,
        batch_bytes: int,
        batch_records: int,
        max_in_flight_bytes: int,
        is_ordered: bool,
    ) -> None:
        """Use `Log.producer`.

        Args:
            stamp: id and epoch, with sequence 0; None: not idempotent, one batch at a time.
            codec: of every batch.
            may_repeat_uncertain: the policy lets a batch of unknown fate be sent again.
            is_ordered: the connection keeps the order of what is sent.
        """
        self._send = send
        self._codec = codec
        self._find_results_kept = find_results_kept
        self._make_pauses = make_pauses
        self._stamp = stamp
        self._has_producer = stamp is not None and may_repeat_uncertain
        self._linger_s = linger_s
        self._pipeline_max = PIPELINE_COUNT_MAX if stamp is not None and is_ordered else 1
        self._pipeline_count = min(PIPELINE_COUNT, self._pipeline_max)
        self._clean_count = 1
        self._collector = Collector(
            batch_bytes=batch_bytes,
            batch_records=batch_records,
            held_bytes_max=max_in_flight_bytes,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_its_way: deque[PendingBatch] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: list[asyncio.Future[None]] = []
        self._sent_count = self._again_count = self._acknowledged_count = self._sent_bytes = 0
        self._failing_count = 0
        self._fault: DuramenError | None = None

    @property
    def id(self) -> str | None:
        """The producer's id; None without idempotence."""
        return None if self._stamp is None else self._stamp.producer_id

    @property
    def has_room(self) -> bool:
        """Whether `append` takes a record in now."""
        return self._collector.has_room

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        if self._stamp is not None:
            kept = await self._find_results_kept()
            self._pipeline_max = min(self._pipeline_max, kept)
            self._pipeline_count = min(self._pipeline_count, kept)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.close()
        else:
            await self.abort()

    # --- records in ------------------------------------------------------------------------------

    def append(
        self,
        body: bytes,
        *,
        headers: Headers = (),
        txid: int | None = None,
        timestamp: int | datetime | None = None,
    ) -> Ticket:
        """Take one record in; it is sent when its batch is full or has lingered.

        Never waits: `await producer.room()` before, or use `send`, where there may be no room.

        Args:
            body: at most 1 MiB, headers included.
            headers: pairs or a mapping of `str` or `bytes`; at most 1,000, names of 1 to 65,535
                bytes.
            txid: 0 … 2^63 − 1, not below the greatest of the log; None: none.
            timestamp: unix milliseconds, or a datetime with a zone; None: when it is sent.

        Returns:
            A `Ticket`: awaiting it says where the record is, or why it is not there.

        Raises:
            DuramenError: nothing was taken. `overloaded`: `max_in_flight_bytes` are not
                acknowledged; a retry after `room` is safe. `record_too_large`, `invalid_argument`,
                or why the producer ended: a retry is refused again. None is uncertain, the ticket
                may be.

        Example:
            ticket = producer.append(b"one", headers={"kind": "order"})
            print((await ticket).seq_num)
        """
        check_body(body)
        if txid is not None:
            check_txid(txid)
        batch, index, is_news = self._collector.add(
            body,
            encode_headers(headers) if headers else (),
            txid,
            None if timestamp is None else find_time_ms(timestamp),
        )
        if is_news:
            self._notify(batch)
        return Ticket(batch, index)

    async def send(
        self,
        body: bytes,
        *,
        headers: Headers = (),
        txid: int | None = None,
        timestamp: int | datetime | None = None,
    ) -> Ticket:
        """Wait for room, then take one record in.

        Args:
            body, headers, txid, timestamp: as in `append`.

        Returns:
            A `Ticket`, as `append`.

        Raises:
            DuramenError: as `append`, never `overloaded`.

        Example:
            ticket = await producer.send(b"one")
            print((await ticket).seq_num)
        """
        while not self.has_room:
            await self.room()
        return self.append(body, headers=headers, txid=txid, timestamp=timestamp)

    async def append_many(self, bodies: Sequence[bytes]) -> BulkTicket:
        """Take in many records without headers and txids, in order; waits for room as it goes.

        A tenth of the work a record that `append` is. Other calls' records may come between.

        Args:
            bodies: at least one, each of at most 1 MiB.

        Returns:
            A `BulkTicket` for all of them.

        Raises:
            DuramenError: as `append`, never `overloaded`. Records before the failed one are sent
                all the same, so a retry of the whole list may store them twice.

        Example:
            ticket = await producer.append_many([b"one", b"two"])
            first, last = await ticket
        """
        if not bodies:
            raise DuramenError("invalid_argument", "at least one record", field="records")
        if set(map(type, bodies)) != {bytes}:
            raise DuramenError("invalid_argument", "every body is bytes", field="body")
        places: list[RecordRun] = []
        at = 0
        while at < len(bodies):
            while not self.has_room:
                await self.room()
            place = self._collector.add_many(bodies, at)
            self._notify(place.batch)
            places.append(place)
            at += place.record_count
        return BulkTicket(places)

    async def room(self) -> None:
        """Wait until a record can be taken in.

        Raises:
            DuramenError: why the producer ended; a retry is refused again.

        Example:
            await producer.room()
            producer.append(b"one")
        """
        while not self.has_room:
            self._collector.check_alive()
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future
        self._collector.check_alive()

    # --- its end ---------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Send what has been taken in, and wait until all of it is settled.

        Raises:
            Uncertain: the producer ended with a batch that may be stored; the tickets tell which.
            DuramenError: the producer ended with a batch that is not stored. A retry is refused
                again.

        Example:
            producer.append(b"one")
            await producer.flush()
        """
        self._collector.make_due()
        self._pump()
        for batch in [*self._on_its_way, *self._collector.waiting()]:
            await wait_settled(batch)
        self._check_alive()

    async def close(self) -> None:
        """Settle all that was taken in, then take nothing more.

        Raises:
            Uncertain, DuramenError: as `flush`.

        Example:
            await producer.send(b"one")
            await producer.close()
        """
        try:
            await self.flush()
        finally:
            await self.abort()

    async def abort(self) -> None:
        """Give up what is not acknowledged.

        Tickets of records that were sent raise `Uncertain`, those of the others `DuramenError`.

        Raises:
            Nothing.

        Example:
            await producer.send(b"one")
            await producer.abort()
        """
        if self._collector.fault is None:
            self._give_up(DuramenError("invalid_argument", "the producer is closed"), None)
        if self._tasks:
            await asyncio.wait(self._tasks)

    def statistics(self) -> dict[str, int]:
        """Count bytes and batches.

        Returns:
            `held_bytes`, `held_bytes_max`, `sent_bytes`; of batches `full_batches`, `on_their_way`,
            `on_their_way_max`, `sent`, `acknowledged` and `sent_again`.

        Raises:
            Nothing.

        Example:
            print(producer.statistics()["held_bytes"])
        """
        return {
            **self._collector.statistics(),
            "on_their_way": len(self._on_its_way),
            "on_their_way_max": self._pipeline_count,
            "sent": self._sent_count,
            "sent_bytes": self._sent_bytes,
            "acknowledged": self._acknowledged_count,
            "sent_again": self._again_count,
        }

    # --- batches out, in the loop's thread -------------------------------------------------------

    def _notify(self, batch: PendingBatch) -> None:
        """Have the loop look at a batch that is new or full; from any thread."""
        loop = self._loop
        assert loop is not None, "a producer is used inside `async with`"
        if _running_loop() is loop:
            self._look(batch)
        else:
            loop.call_soon_threadsafe(self._look, batch)

    def _look(self, batch: PendingBatch) -> None:
        assert self._loop is not None
        if batch is self._collector.open_batch() and not batch.is_due:
            self._loop.call_later(self._linger_s, self._on_lingered, batch)
        self._pump()

    def _on_lingered(self, batch: PendingBatch) -> None:
        batch.is_due = True
        self._pump()

    def _pump(self) -> None:
        """Send batches while there is room on the way, oldest first.

        None while one has to be sent again: it could only come too early.
        """
        while (
            len(self._on_its_way) < self._pipeline_count
            and not self._failing_count
            and self._collector.fault is None
        ):
            batch = self._collector.take()
            if batch is None:
                return
            stamp = self._stamp
            if stamp is not None:
                stamp = stamp._replace(sequence=self._sent_count)
            batch.sequence = self._sent_count
            self._sent_count += 1
            count = len(batch.bodies)
            batch.encode(stamp, self._codec)
            self._sent_bytes += len(batch.encoded)
            before = self._on_its_way[-1] if self._on_its_way else None
            self._on_its_way.append(batch)
            task = asyncio.ensure_future(self._carry(batch, count, before))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self, batch: PendingBatch, count: int, before: PendingBatch | None) -> None:
        """Bring one batch into the log, and settle it."""
        was_uncertain = False
        batch.is_sent = True
        try:
            try:
                appended = await self._send(batch.encoded, count)
            except (DuramenError, UnreachableError) as error:
                was_uncertain = isinstance(error, DuramenError) and error.uncertain
                self._failing_count += 1
                try:
                    appended = await self._carry_again(batch, count, before, error)
                finally:
                    self._failing_count -= 1
        except (DuramenError, UnreachableError) as error:
            fault = translate_fault(error, is_change=True)
            if was_uncertain and not fault.uncertain:
                fault = Uncertain("append_uncertain", f"an earlier try may be stored: {fault}")
            self._fault = self._fault or fault
            self._give_up(fault, batch)
        except asyncio.CancelledError:
            if not batch.is_settled:
                # Not `_give_up`, but whoever ends the loop, which may be before `close` is reached.
                detail = "its task was cancelled before the answer came"
                self._fault = self._fault or Uncertain("append_uncertain", detail)
                self._give_up(self._fault, batch)
            raise
        except Exception as error:
            # A mistake of ours must not leave anybody waiting for ever.
            self._fault = Uncertain("internal", f"the SDK failed: {error!r}", uncertain=True)
            self._give_up(self._fault, batch)
            raise
        else:
            self._on_acknowledged(batch, appended)

    async def _carry_again(
        self,
        batch: PendingBatch,
        count: int,
        before: PendingBatch | None,
        error: DuramenError | UnreachableError,
    ) -> Appended:
        """After a failed try: behind the batch before it, or at the pace of the policy."""
        pauses = self._make_pauses()
        is_again = False
        is_early = isinstance(error, DuramenError) and error.code in _EARLY
        if before is not None and (is_early or not before.is_settled):
            # It overtook the batch before it, or failed with it: there is no need for a pause. One
            # that is settled by now may not have been there yet when the log refused this one.
            if is_early:
                self._on_early()
            if not before.is_settled:
                await wait_settled(before)
            pauses = self._make_pauses()
            may_repeat = is_repeatable(error, is_read=False, has_producer=self._has_producer)
            is_again = is_early or (pauses is not None and may_repeat)
        failed = [] if is_again else [error]

        async def send() -> Appended:
            if failed:
                raise failed.pop()
            self._again_count += 1
            return await self._send(batch.encoded, count)

        return await deliver(send, pauses, may_be_sent_twice=self._has_producer)

    def _on_early(self) -> None:
        """A batch overtook another: fewer at once, once for all that failed with it."""
        if self._clean_count:
            self._clean_count = 0
            self._pipeline_count = max(1, self._pipeline_count // 2)

    def _on_acknowledged(self, batch: PendingBatch, appended: Appended) -> None:
        if batch.is_settled:
            return  # given up in the moment of its answer
        self._acknowledged_count += 1
        if not self._failing_count:
            self._clean_count += 1
            if self._clean_count % _CLEAN_COUNT == 0:
                self._pipeline_count = min(self._pipeline_count + 1, self._pipeline_max)
        self._collector.settle(batch, appended)
        while self._on_its_way and self._on_its_way[0].is_settled:
            self._on_its_way.popleft()
        self._wake()
        self._pump()

    def _give_up(self, fault: DuramenError, failed: PendingBatch | None) -> None:
        """`failed` ends the producer, and everything behind it; None: it was closed."""
        if self._collector.fault is not None:
            return
        left = self._collector.refuse(_not_taken(fault))
        if failed is not None:
            self._collector.settle(failed, fault)
        for batch in [*self._on_its_way, *left]:
            if not batch.is_settled:
                self._collector.settle(batch, _fault_behind(fault, batch, failed))
        self._on_its_way.clear()
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()
        self._wake()

    def _wake(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    def _check_alive(self) -> None:
        if self._fault is not None:
            raise self._fault.with_traceback(None)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _not_taken(fault: DuramenError) -> DuramenError:
    """What is said of records that were not sent: nothing of them has happened."""
    code = "log_unavailable" if fault.kind.uncertain else fault.code
    detail = f"not sent, because the producer ended before: {fault.detail}"
    return DuramenError(code, detail, uncertain=False, facts=fault.facts)


def _fault_behind(
    fault: DuramenError, batch: PendingBatch, failed: PendingBatch | None
) -> DuramenError:
    """What the tickets of a batch say whose producer failed or was closed."""
    if not batch.is_sent:
        return _not_taken(fault)
    if failed is not None and batch.sequence > failed.sequence and not fault.uncertain:
        # The log takes a producer's batches in order: without that one it takes none behind it.
        detail = f"a batch before it was refused: {fault.detail}"
        return DuramenError(fault.code, detail, uncertain=False, facts=fault.facts)
    return Uncertain("append_uncertain", f"it was sent, and the producer ended: {fault.detail}")
