"""Partitioned logs for programs without an event loop; names as in `client.partitioned`.

Every method runs the asynchronous one of the same name in the client's thread and blocks until it
has ended; `append` blocks while its partition has no room. Docstrings say the same in the words of
this face; tests compare both. Made by `SyncClient.partitioned_log`. Source: docs/sdk.md.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from datetime import datetime
from typing import Any, Self

from duramen.client.blocking.portal import Portal
from duramen.client.blocking.producer import SyncProducer, SyncTicket
from duramen.client.partitioned.keys import Key, find_partition
from duramen.client.partitioned.log import PartitionedLog
from duramen.client.partitioned.producer import PartitionedProducer
from duramen.client.partitioned.reader import PartitionBatch, Positions
from duramen.client.sdk.producer import BATCH_BYTES_DEFAULT, IN_FLIGHT_BYTES_DEFAULT
from duramen.client.sdk.values import Compression, Headers, Mark
from duramen.limits import BATCH_RECORD_COUNT_MAX


class SyncPartitionedLog:
    """Several logs as one: append by key, read all, one order in each partition.

    Every call may raise what the calls of `SyncLog` raise; the methods list what comes on top.

    Attributes:
        namespace: the name of its namespace.
        name: its name.
        log_names: of the partitions' logs, `name.0-of-N` and so on.
    """

    def __init__(self, portal: Portal, log: PartitionedLog) -> None:
        self._portal = portal
        self._log = log
        self.namespace = log.namespace
        self.name = log.name
        self.log_names = log.log_names

    def __len__(self) -> int:
        return len(self._log)

    def __repr__(self) -> str:
        return f"<SyncPartitionedLog {self.namespace}/{self.name} of {len(self)}>"

    def partition_of(self, key: Key) -> int:
        """Which partition the records of a key go to.

        Args:
            key: `str` (its UTF-8 counts) or `bytes`.

        Returns:
            The partition's number, from 0; the same in every process, for ever.

        Raises:
            DuramenError: `invalid_argument`; a retry fails again.

        Example:
            print(client.partitioned_log("shop/clicks", partitions=4).partition_of("customer-7"))
        """
        return self._log.partition_of(key)

    def ensure(self, config: Mapping[str, Any] | None = None) -> bool:
        """Create the partitions that are missing.

        Args:
            config: of every partition: fields that are not to have their defaults
                (docs/protocol/configuration.md).

        Returns:
            True if this call created one of them.

        Raises:
            DuramenError: `log_exists_with_other_config`: there are partitions of another number, or
                one with another configuration; `placement_impossible`, `invalid_argument`: a retry
                is refused again.

        Example:
            client.partitioned_log("shop/clicks", partitions=4).ensure()
        """
        return self._portal.call(self._log.ensure(config))

    def producer(
        self,
        *,
        id: str | None = None,
        epoch: int | None = None,
        idempotent: bool = True,
        linger: float = 0.005,
        batch_bytes: int = BATCH_BYTES_DEFAULT,
        batch_records: int = BATCH_RECORD_COUNT_MAX,
        max_in_flight_bytes: int = IN_FLIGHT_BYTES_DEFAULT,
        compression: Compression | None = None,
    ) -> SyncPartitionedProducer:
        """A producer of all partitions, to be used with `with`; asks nobody before that.

        Args:
            id, epoch, idempotent, linger, batch_bytes, batch_records, compression: as in
                `SyncLog.producer`, for each partition.
            max_in_flight_bytes: of what is not acknowledged, from 1; 16 MiB. Each partition has an
                equal part of it.

        Returns:
            A `SyncPartitionedProducer`; entering it raises as `read`.

        Raises:
            DuramenError: `invalid_argument`, with the name as `field`; a retry fails again.

        Example:
            with client.partitioned_log("shop/clicks", partitions=4).producer() as clicks:
                clicks.send("customer-7", b"one")
        """
        producer = self._log.producer(
            id=id, epoch=epoch, idempotent=idempotent, linger=linger, batch_bytes=batch_bytes,
            batch_records=batch_records, max_in_flight_bytes=max_in_flight_bytes,
            compression=compression,
        )  # fmt: skip
        return SyncPartitionedProducer(self._portal, producer)

    def read(
        self,
        from_: str | datetime | Positions = "head",
        *,
        follow: bool = False,
        answer_bytes: int | None = None,
    ) -> Generator[PartitionBatch, None, None]:
        """Read the records of all partitions, those of each partition once and in order.

        Which partition gives a batch next says nothing of when its records were appended.

        Args:
            from_: one position for all, such as `head`, `tail` or a time; or a mapping of every
                partition's number to a position of its own, such as the `end` of its last batch.
            follow: wait at the tails for more; ends only when all partitions' logs are ended.
            answer_bytes: asked for at once of each partition, 1 byte to 16 MiB; None: 4 MiB shared
                by all, at least 64 KiB each. Three answers of each are held at most.

        Yields:
            A `PartitionBatch` each: `partition` and `batch`. An interrupted read is begun again
            with each partition's last `end`.

        Raises:
            DuramenError: `invalid_argument`: a partition has no position, or there are partitions
                of another number; `log_not_found`: not all of them are there; what `SyncLog.read`
                raises of one partition ends the read of all. A read is never uncertain.

        Example:
            clicks = client.partitioned_log("shop/clicks", partitions=4)
            for partition, batch in clicks.read("head"):
                print(partition, batch.first, batch.bodies)
        """
        return self._portal.iterate(self._log.read(from_, follow=follow, answer_bytes=answer_bytes))

    def tail(self) -> dict[int, Mark]:
        """Find the mark behind the last record of each partition.

        They are not of one moment.

        Returns:
            Partition → `Mark`; with the `seq_num` of each, positions to `read` from.

        Raises:
            DuramenError: as `read`; a retry of `data_unavailable` is safe.

        Example:
            tails = client.partitioned_log("shop/clicks", partitions=4).tail()
            positions = {partition: mark.seq_num for partition, mark in tails.items()}
        """
        return self._portal.call(self._log.tail())


class SyncPartitionedProducer:
    """Appends records to the partitions of their keys; `with` opens and closes it.

    Any number of threads may use one. The records of one key are in the log in the order of the
    calls, each once. A batch that is not stored for certain ends the producer of its partition
    alone: later calls for that partition raise why, the others go on. Make another producer to go
    on with all.
    """

    def __init__(self, portal: Portal, producer: PartitionedProducer) -> None:
        self._portal = portal
        self._producer = producer
        self._partitions = [SyncProducer(portal, each) for each in producer.partitions]

    @property
    def id(self) -> str | None:
        """The id of the first partition's producer; all have it where one was given."""
        return self._producer.id

    def __enter__(self) -> Self:
        self._portal.call(self._producer.__aenter__())
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._portal.call(self._producer.__aexit__(kind))

    def append(
        self,
        key: Key,
        body: bytes,
        *,
        headers: Headers = (),
        txid: int | None = None,
        timestamp: int | datetime | None = None,
    ) -> SyncTicket:
        """Take one record in; blocks while its partition has no room. `send` is the same.

        Args:
            key: `str` or `bytes`; chooses the partition, and is not stored.
            body, headers, timestamp: as in `SyncProducer.append`.
            txid: as in `SyncProducer.append`, not below the greatest of the partition.

        Returns:
            A `SyncTicket`: its result says where in its partition the record is, or why it is not
            there.

        Raises:
            DuramenError: nothing was taken. `record_too_large`, `invalid_argument`, or why the
                partition's producer ended: a retry is refused again. None is uncertain, the ticket
                may be.

        Example:
            with client.partitioned_log("shop/clicks", partitions=4).producer() as clicks:
                ticket = clicks.append("customer-7", b"one")
                print(ticket.result().seq_num)
        """
        partition = self._partitions[find_partition(key, len(self._partitions))]
        return partition.append(body, headers=headers, txid=txid, timestamp=timestamp)

    send = append
    """The same: a thread can wait, so that there is no need for two."""

    def room(self, key: Key) -> None:
        """Wait until a record can be taken in for a key's partition.

        Args:
            key: as in `append`.

        Raises:
            DuramenError: why the partition's producer ended; a retry is refused again.

        Example:
            with client.partitioned_log("shop/clicks", partitions=4).producer() as clicks:
                clicks.room("customer-7")
                clicks.append("customer-7", b"one")
        """
        self._portal.call(self._producer.room(key))

    def flush(self) -> None:
        """Send what has been taken in, and wait until all of it is settled, in every partition.

        Raises:
            Uncertain: a partition's producer ended with a batch that may be stored; the tickets
                tell which.
            DuramenError: a partition's producer ended with a batch that is not stored. A retry is
                refused again. The other partitions are settled all the same.

        Example:
            with client.partitioned_log("shop/clicks", partitions=4).producer() as clicks:
                clicks.append("customer-7", b"one")
                clicks.flush()
        """
        self._portal.call(self._producer.flush())

    def close(self) -> None:
        """Settle all that was taken in, then take nothing more.

        Raises:
            Uncertain, DuramenError: as `flush`.

        Example:
            with client.partitioned_log("shop/clicks", partitions=4).producer() as clicks:
                clicks.send("customer-7", b"one")
                clicks.close()
        """
        self._portal.call(self._producer.close())

    def abort(self) -> None:
        """Give up what is not acknowledged.

        Tickets of records that were sent raise `Uncertain`, those of the others `DuramenError`.

        Raises:
            Nothing.

        Example:
            with client.partitioned_log("shop/clicks", partitions=4).producer() as clicks:
                clicks.send("customer-7", b"one")
                clicks.abort()
        """
        self._portal.call(self._producer.abort())

    def statistics(self) -> dict[str, int]:
        """Count bytes and batches of all partitions.

        Returns:
            The sums of what `SyncProducer.statistics` gives.

        Raises:
            Nothing.

        Example:
            with client.partitioned_log("shop/clicks", partitions=4).producer() as clicks:
                print(clicks.statistics()["held_bytes"])
        """
        return self._producer.statistics()
