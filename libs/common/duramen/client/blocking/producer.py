"""`sdk.producer` for threads: `append` blocks while there is no room, tickets have `result()`.

Records are collected in the caller's thread; the loop's thread is woken once for each batch. Any
number of threads may use one producer. Made by `SyncLog.producer`; what each name means is said
once, in `sdk.producer`.
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
        """Whether `result` would give an answer at once."""
        return self._ticket.is_done()

    def result(self, timeout: float | None = None) -> Receipt:
        """The record's place. Raises as `await Ticket`; TimeoutError after `timeout` seconds."""
        return self._portal.call(self._ticket.receipt(), timeout)


class SyncBulkTicket:
    """Stands for the records of one `append_many`."""

    __slots__ = ("_portal", "_ticket")

    def __init__(self, portal: Portal, ticket: BulkTicket) -> None:
        self._portal = portal
        self._ticket = ticket

    def is_done(self) -> bool:
        """Whether `result` would give an answer at once."""
        return self._ticket.is_done()

    def result(self, timeout: float | None = None) -> tuple[Receipt, Receipt]:
        """Where the first and the last record stand. Raises as `SyncTicket.result`."""
        return self._portal.call(self._ticket.receipt(), timeout)


class SyncProducer:
    """Appends records to one log in the order of the calls; `with` opens and closes it."""

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
        """Take one record in; blocks while there is no room. Raises as `Producer.send`."""
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
        """Take in many records. As `Producer.append_many`."""
        return SyncBulkTicket(self._portal, self._portal.call(self._producer.append_many(bodies)))

    def room(self) -> None:
        """Wait until a record is taken in. As `Producer.room`."""
        self._portal.call(self._producer.room())

    def flush(self) -> None:
        """Send what has been taken in, and wait until it is settled. As `Producer.flush`."""
        self._portal.call(self._producer.flush())

    def close(self) -> None:
        """As `Producer.close`."""
        self._portal.call(self._producer.close())

    def abort(self) -> None:
        """As `Producer.abort`."""
        self._portal.call(self._producer.abort())

    def statistics(self) -> dict[str, int]:
        """As `Producer.statistics`."""
        return self._producer.statistics()
