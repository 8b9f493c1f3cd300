"""A partitioned log: N logs, a key that chooses one of them, and one order in each.

What the cluster knows are N logs with the number of partitions in their names; everything else is
here. A client that means another number than the one that is there is refused before it appends or
reads: it would put records of a key where nobody looks for them.

Made by `Client.partitioned_log`. Source: docs/sdk.md "Partitioned logs".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from datetime import datetime
from typing import Any

from duramen.client.partitioned.keys import (
    Key,
    check_partition_count,
    find_partition,
    name_partition,
    read_partition,
)
from duramen.client.partitioned.producer import PartitionedProducer
from duramen.client.partitioned.reader import (
    PartitionBatch,
    Positions,
    merge_batches,
    spread_position,
)
from duramen.client.sdk.log import Namespace
from duramen.client.sdk.producer import BATCH_BYTES_DEFAULT, IN_FLIGHT_BYTES_DEFAULT
from duramen.client.sdk.reader import ANSWER_BYTES
from duramen.client.sdk.values import Compression, Mark
from duramen.errors import DuramenError
from duramen.limits import BATCH_RECORD_COUNT_MAX


class PartitionedLog:
    """Several logs as one: append by key, read all, one order in each partition.

    Every call may raise what the calls of `Log` raise; the methods list what comes on top.

    Attributes:
        namespace: the name of its namespace.
        name: its name.
        log_names: of the partitions' logs, `name.0-of-N` and so on.
    """

    def __init__(self, namespace: Namespace, name: str, partitions: int) -> None:
        self._namespace = namespace
        self.namespace = namespace.name
        self.name = name
        count = check_partition_count(partitions)
        self.log_names = tuple(name_partition(name, each, count) for each in range(count))
        self._logs = [namespace[each] for each in self.log_names]

    def __len__(self) -> int:
        return len(self._logs)

    def __repr__(self) -> str:
        return f"<PartitionedLog {self.namespace}/{self.name} of {len(self)}>"

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
        return find_partition(key, len(self._logs))

    async def ensure(self, config: Mapping[str, Any] | None = None) -> bool:
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
            await client.partitioned_log("shop/clicks", partitions=4).ensure()
        """
        self._refuse_other_counts(await self._find_counts())
        created = [await log.ensure(config) for log in self._logs]
        # Two that create different numbers at the same time are both refused by this look.
        self._refuse_other_counts(await self._find_counts())
        return any(created)

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
    ) -> PartitionedProducer:
        """A producer of all partitions, to be used with `async with`; asks nobody before that.

        Args:
            id, epoch, idempotent, linger, batch_bytes, batch_records, compression: as in
                `Log.producer`, for each partition.
            max_in_flight_bytes: of what is not acknowledged, from 1; 16 MiB. Each partition has an
                equal part of it.

        Returns:
            A `PartitionedProducer`; entering it raises as `read`.

        Raises:
            DuramenError: `invalid_argument`, with the name as `field`; a retry fails again.

        Example:
            async with client.partitioned_log("shop/clicks", partitions=4).producer() as clicks:
                await clicks.send("customer-7", b"one")
        """
        room_bytes = max_in_flight_bytes
        if max_in_flight_bytes >= 1:
            room_bytes = max(max_in_flight_bytes // len(self._logs), 1)
        producers = [
            log.producer(
                id=id, epoch=epoch, idempotent=idempotent, linger=linger, batch_bytes=batch_bytes,
                batch_records=batch_records, max_in_flight_bytes=room_bytes,
                compression=compression,
            )
            for log in self._logs
        ]  # fmt: skip
        return PartitionedProducer(producers, self._check)

    async def read(
        self,
        from_: str | datetime | Positions = "head",
        *,
        follow: bool = False,
        answer_bytes: int | None = None,
    ) -> AsyncGenerator[PartitionBatch, None]:
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
                of another number; `log_not_found`: not all of them are there; what `Log.read`
                raises of one partition ends the read of all. A read is never uncertain.

        Example:
            clicks = client.partitioned_log("shop/clicks", partitions=4)
            async for partition, batch in clicks.read("head"):
                print(partition, batch.first, batch.bodies)
        """
        places = spread_position(from_, len(self._logs))
        most_bytes = answer_bytes or max(ANSWER_BYTES // len(self._logs), 64 * 1024)
        await self._check()
        batches = merge_batches(
            [
                log.read(place, follow=follow, answer_bytes=most_bytes)
                for log, place in zip(self._logs, places, strict=True)
            ]
        )
        try:
            async for batch in batches:
                yield batch
        finally:
            await batches.aclose()

    async def tail(self) -> dict[int, Mark]:
        """Find the mark behind the last record of each partition.

        They are not of one moment.

        Returns:
            Partition → `Mark`; with the `seq_num` of each, positions to `read` from.

        Raises:
            DuramenError: as `read`; a retry of `data_unavailable` is safe.

        Example:
            tails = await client.partitioned_log("shop/clicks", partitions=4).tail()
            positions = {partition: mark.seq_num for partition, mark in tails.items()}
        """
        await self._check()
        marks = await asyncio.gather(*(log.tail() for log in self._logs))
        return dict(enumerate(marks))

    # --- Are they the partitions that are there? -------------------------------------------------

    async def _check(self) -> None:
        """Refuse another number of partitions than the one that is there.

        Raises:
            DuramenError: `invalid_argument`, field `partitions`; `log_not_found`.
        """
        counts = await self._find_counts()
        if counts.keys() - {len(self._logs)}:
            raise DuramenError("invalid_argument", self._explain(counts), field="partitions")
        found_count = counts.get(len(self._logs), 0)
        if found_count < len(self._logs):
            detail = f"{found_count} of {len(self._logs)} partitions of {self.namespace}/"
            detail += f"{self.name} are there: `ensure` creates them"
            raise DuramenError("log_not_found", detail, field="log")

    def _refuse_other_counts(self, counts: Mapping[int, int]) -> None:
        if counts.keys() - {len(self._logs)}:
            raise DuramenError("log_exists_with_other_config", self._explain(counts))

    def _explain(self, counts: Mapping[int, int]) -> str:
        there = " and ".join(str(count) for count in sorted(counts.keys() - {len(self._logs)}))
        return (
            f"{self.namespace}/{self.name} has {there} partitions, not {len(self._logs)}: the "
            "number is for ever, because it decides where a key's records are. For another number "
            "make a partitioned log with another name"
        )

    async def _find_counts(self) -> dict[int, int]:
        """Number of partitions → how many of them are there."""
        counts: dict[int, int] = {}
        async for log in self._namespace.logs(prefix=f"{self.name}."):
            found = read_partition(self.name, log.name)
            if found is not None:
                counts[found[1]] = counts.get(found[1], 0) + 1
        return counts
