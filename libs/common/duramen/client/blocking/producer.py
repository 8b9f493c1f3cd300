"""`sdk.producer` for threads: `append` blocks while there is no room, tickets have `result()`.

Records are collected in the caller's thread; the loop's thread is woken once for each batch. Any
number of threads may use one producer. Made by `SyncLog.producer`. What runs in the loop's thread
is `sdk.producer`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Self

from duramen.client.blocking.portal import Portal
from duramen.client.sdk.producer import BulkTicket, Producer, Ticket
from duramen.client.sdk.values import Headers, Receipt
from duramen.errors import DuramenError


class SyncTicket:
    """Stands for one record; `ticket.result()` gives its `Receipt` once it is acknowledged."""

    __slots__ = ("_portal", "_ticket")

    def __init__(self, portal: Portal, ticket: Ticket) -> None:
        self._portal = portal
        self._ticket = ticket

    def is_done(self) -> bool:
        """Whether `result` would give an answer at once.

        Returns:
            True once the record is stored or has failed.

        Raises:
            Nothing.

        Example:
            print(ticket.is_done())
        """
        return self._ticket.is_done()

    def result(self, timeout: float | None = None) -> Receipt:
        """Wait for the record's place.

        Args:
            timeout: seconds to wait, from 0; None: for ever.

        Returns:
            A `Receipt`.

        Raises:
            Uncertain: the record may be in the log, or come to be there. Read before a retry.
            DuramenError: the record is not in the log. A retry by another producer is safe; what
                `SyncLog.append` calls refused is refused again.
            TimeoutError: it is not settled yet; ask the same ticket again.

        Example:
            receipt = producer.append(b"one").result(timeout=30)
        """
        return self._portal.call(self._ticket.receipt(), timeout)


class SyncBulkTicket:
    """Stands for the records of one `append_many`."""

    __slots__ = ("_portal", "_ticket")

    def __init__(self, portal: Portal, ticket: BulkTicket) -> None:
        self._portal = portal
        self._ticket = ticket

    def is_done(self) -> bool:
        """Whether `result` would give an answer at once.

        Returns:
            True once every record is stored or has failed.

        Raises:
            Nothing.

        Example:
            ticket = producer.append_many([b"one", b"two"])
            print(ticket.is_done())
        """
        return self._ticket.is_done()

    def result(self, timeout: float | None = None) -> tuple[Receipt, Receipt]:
        """Wait for the places of the first and the last record; others' may be between.

        Args:
            timeout: seconds to wait for all of them, from 0; None: for ever.

        Returns:
            The `Receipt` of the first record, and that of the last.

        Raises:
            Uncertain, DuramenError: as `SyncTicket.result`, for the first record that failed.
                Records before that one are stored.
            TimeoutError: not all are settled yet; ask the same ticket again.

        Example:
            ticket = producer.append_many([b"one", b"two"])
            first, last = ticket.result(timeout=30)
        """
        return self._portal.call(self._ticket.receipt(), timeout)


class SyncProducer:
    """Appends records to one log in the order of the calls; `with` opens and closes it.

    Any number of threads may use one. A batch that is not stored for certain ends the producer:
    nothing behind it is appended, and later calls raise why. Make another producer to go on.
    """

    def __init__(self, portal: Portal, producer: Producer) -> None:
        self._portal = portal
        self._producer = producer

    @property
    def id(self) -> str | None:
        """The producer's id; None without idempotence."""
        return self._producer.id

    def __enter__(self) -> Self:
        self._portal.call(self._producer.__aenter__())
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._portal.call(self._producer.__aexit__(kind))

    def append(
        self,
        body: bytes,
        *,
        headers: Headers = (),
        txid: int | None = None,
        timestamp: int | datetime | None = None,
    ) -> SyncTicket:
        """Take one record in; blocks while there is no room. `send` is the same.

        Args:
            body: at most 1 MiB, headers included.
            headers: pairs or a mapping of `str` or `bytes`; at most 1,000, names of 1 to 65,535
                bytes.
            txid: 0 … 2^63 − 1, not below the greatest of the log; None: none.
            timestamp: unix milliseconds, or a datetime with a zone; None: when it is sent.

        Returns:
            A `SyncTicket`: its result says where the record is, or why it is not there.

        Raises:
            DuramenError: nothing was taken. `record_too_large`, `invalid_argument`, or why the
                producer ended: a retry is refused again. None is uncertain, the ticket may be.

        Example:
            ticket = producer.append(b"one", headers={"kind": "order"})
            print(ticket.result().seq_num)
        """
        producer = self._producer
        while True:
            try:
                ticket = producer.append(body, headers=headers, txid=txid, timestamp=timestamp)
            except DuramenError as error:
                if error.code != "overloaded" or producer.has_room:
                    raise
                self.room()
            else:
                return SyncTicket(self._portal, ticket)

    send = append
    """The same: a thread can wait, so that there is no need for two."""

    def append_many(self, bodies: Sequence[bytes]) -> SyncBulkTicket:
        """Take in many records without headers and txids, in order; blocks while there is no room.

        A tenth of the work a record that `append` is. Other calls' records may come between.

        Args:
            bodies: at least one, each of at most 1 MiB.

        Returns:
            A `SyncBulkTicket` for all of them.

        Raises:
            DuramenError: as `append`. Records before the failed one are sent all the same, so a
                retry of the whole list may store them twice.

        Example:
            ticket = producer.append_many([b"one", b"two"])
            first, last = ticket.result()
        """
        return SyncBulkTicket(self._portal, self._portal.call(self._producer.append_many(bodies)))

    def room(self) -> None:
        """Wait until a record can be taken in.

        Raises:
            DuramenError: why the producer ended; a retry is refused again.

        Example:
            producer.room()
            producer.append(b"one")
        """
        self._portal.call(self._producer.room())

    def flush(self) -> None:
        """Send what has been taken in, and wait until all of it is settled.

        Raises:
            Uncertain: the producer ended with a batch that may be stored; the tickets tell which.
            DuramenError: the producer ended with a batch that is not stored. A retry is refused
                again.

        Example:
            producer.append(b"one")
            producer.flush()
        """
        self._portal.call(self._producer.flush())

    def close(self) -> None:
        """Settle all that was taken in, then take nothing more.

        Raises:
            Uncertain, DuramenError: as `flush`.

        Example:
            producer.send(b"one")
            producer.close()
        """
        self._portal.call(self._producer.close())

    def abort(self) -> None:
        """Give up what is not acknowledged.

        Tickets of records that were sent raise `Uncertain`, those of the others `DuramenError`.

        Raises:
            Nothing.

        Example:
            producer.send(b"one")
            producer.abort()
        """
        self._portal.call(self._producer.abort())

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
        return self._producer.statistics()
