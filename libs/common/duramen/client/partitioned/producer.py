"""A producer for each partition, and the key that chooses one.

Each partition has its own order and its own exactly-once, as `sdk.producer` gives them; across
partitions nothing is promised. A partition whose producer ends takes nothing more, and the others
go on: calls for keys of that partition raise why. Room is each partition's own, too, so that one
that is slow does not hold up the others.

Made by `PartitionedLog.producer`. Source: docs/sdk.md "Partitioned logs".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from typing import Final, Self

from duramen.client.partitioned.keys import Key, find_partition
from duramen.client.sdk.producer import Producer, Ticket
from duramen.client.sdk.values import Headers

_OPENED_AT_ONCE: Final = 16
"""Each producer asks its log for a configuration; hundreds at once would be refused."""


class PartitionedProducer:
    """Appends records to the partitions of their keys; `async with` opens and closes it.

    The records of one key are in the log in the order of the calls, each once. A batch that is not
    stored for certain ends the producer of its partition alone: later calls for that partition
    raise why, the others go on. Make another producer to go on with all.
    """

    def __init__(self, producers: Sequence[Producer], check: Callable[[], Awaitable[None]]) -> None:
        """Use `PartitionedLog.producer`.

        Args:
            producers: of the partitions, in their order.
            check: raises where the partitions are not those that are there.
        """
        self._producers = list(producers)
        self._check = check

    @property
    def id(self) -> str | None:
        """The id of the first partition's producer; all have it where one was given."""
        return self._producers[0].id

    @property
    def partitions(self) -> Sequence[Producer]:
        """The producers of the partitions."""
        return self._producers

    async def __aenter__(self) -> Self:
        await self._check()
        limit = asyncio.Semaphore(_OPENED_AT_ONCE)

        async def enter(producer: Producer) -> None:
            async with limit:
                await producer.__aenter__()

        await asyncio.gather(*map(enter, self._producers))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.close()
        else:
            await self.abort()

    def append(
        self,
        key: Key,
        body: bytes,
        *,
        headers: Headers = (),
        txid: int | None = None,
        timestamp: int | datetime | None = None,
    ) -> Ticket:
        """Take one record in; it is sent when its batch is full or has lingered.

        Never waits: `await producer.room(key)` before, or use `send`, where there may be no room.

        Args:
            key: `str` or `bytes`; chooses the partition, and is not stored.
            body, headers, timestamp: as in `Producer.append`.
            txid: as in `Producer.append`, not below the greatest of the partition.

        Returns:
            A `Ticket`: awaiting it says where in its partition the record is, or why it is not
            there.

        Raises:
            DuramenError: nothing was taken. `overloaded`: too much of the partition is not
                acknowledged; a retry after `room` is safe. `record_too_large`, `invalid_argument`,
                or why the partition's producer ended: a retry is refused again. None is uncertain,
                the ticket may be.

        Example:
            async with client.partitioned_log("shop/clicks", partitions=4).producer() as clicks:
                ticket = clicks.append("customer-7", b"one")
                print((await ticket).seq_num)
        """
        return self._find(key).append(body, headers=headers, txid=txid, timestamp=timestamp)

    async def send(
        self,
        key: Key,
        body: bytes,
        *,
        headers: Headers = (),
        txid: int | None = None,
        timestamp: int | datetime | None = None,
    ) -> Ticket:
        """Wait for room in the key's partition, then take one record in.

        Args:
            key, body, headers, txid, timestamp: as in `append`.

        Returns:
            A `Ticket`, as `append`.

        Raises:
            DuramenError: as `append`, never `overloaded`.

        Example:
            async with client.partitioned_log("shop/clicks", partitions=4).producer() as clicks:
                ticket = await clicks.send("customer-7", b"one")
        """
        return await self._find(key).send(body, headers=headers, txid=txid, timestamp=timestamp)

    async def room(self, key: Key) -> None:
        """Wait until a record can be taken in for a key's partition.

        Args:
            key: as in `append`.

        Raises:
            DuramenError: why the partition's producer ended; a retry is refused again.

        Example:
            async with client.partitioned_log("shop/clicks", partitions=4).producer() as clicks:
                await clicks.room("customer-7")
                clicks.append("customer-7", b"one")
        """
        await self._find(key).room()

    async def flush(self) -> None:
        """Send what has been taken in, and wait until all of it is settled, in every partition.

        Raises:
            Uncertain: a partition's producer ended with a batch that may be stored; the tickets
                tell which.
            DuramenError: a partition's producer ended with a batch that is not stored. A retry is
                refused again. The other partitions are settled all the same.

        Example:
            async with client.partitioned_log("shop/clicks", partitions=4).producer() as clicks:
                clicks.append("customer-7", b"one")
                await clicks.flush()
        """
        await self._settle(producer.flush() for producer in self._producers)

    async def close(self) -> None:
        """Settle all that was taken in, then take nothing more.

        Raises:
            Uncertain, DuramenError: as `flush`.

        Example:
            async with client.partitioned_log("shop/clicks", partitions=4).producer() as clicks:
                await clicks.send("customer-7", b"one")
                await clicks.close()
        """
        await self._settle(producer.close() for producer in self._producers)

    async def abort(self) -> None:
        """Give up what is not acknowledged.

        Tickets of records that were sent raise `Uncertain`, those of the others `DuramenError`.

        Raises:
            Nothing.

        Example:
            async with client.partitioned_log("shop/clicks", partitions=4).producer() as clicks:
                await clicks.send("customer-7", b"one")
                await clicks.abort()
        """
        for producer in self._producers:
            await producer.abort()

    def statistics(self) -> dict[str, int]:
        """Count bytes and batches of all partitions.

        Returns:
            The sums of what `Producer.statistics` gives.

        Raises:
            Nothing.

        Example:
            async with client.partitioned_log("shop/clicks", partitions=4).producer() as clicks:
                print(clicks.statistics()["held_bytes"])
        """
        counted = [producer.statistics() for producer in self._producers]
        return {name: sum(each[name] for each in counted) for name in counted[0]}

    def _find(self, key: Key) -> Producer:
        return self._producers[find_partition(key, len(self._producers))]

    async def _settle(self, works: Iterable[Awaitable[None]]) -> None:
        """Wait for all; raise the first fault, an uncertain one before the others."""
        results = await asyncio.gather(*works, return_exceptions=True)
        faults = [result for result in results if isinstance(result, BaseException)]
        if faults:
            faults.sort(key=lambda fault: not getattr(fault, "uncertain", False))
            raise faults[0]
