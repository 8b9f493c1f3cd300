"""What one task of a write does: its rows into their logs, each log's by a delivery of its own.

Called by `writing.writers`, in executors. Source: docs/spark.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from duramen.client.blocking.portal import Portal
from duramen.units import MIB
from duramen.wire.record_batch import BatchProducer
from pyspark_duramen.catalog import LogName
from pyspark_duramen.options import WriteOptions
from pyspark_duramen.writing.delivery import RowDelivery
from pyspark_duramen.writing.log_port import RestLogPort
from pyspark_duramen.writing.rows import read_rows

WAITING_BYTES_MAX: Final = 64 * MIB
"""Of a task that writes to many logs: beyond it the log that most waits for is written to."""


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What one task has written.

    Attributes:
        repeated_count: of the records, those that an earlier try had written.
    """

    partition: int
    record_count: int
    batch_count: int
    repeated_count: int


def write_rows(
    batches: Iterable[pa.RecordBatch], options: WriteOptions, stamp: BatchProducer, partition: int
) -> Written:
    """Write a task's rows.

    Args:
        stamp: the task's producer id and epoch.

    Raises:
        DuramenError: refused, or their fate is open: the task may be repeated; see `RowDelivery`.
    """
    portal = Portal()
    client = options.proxy.open()
    deliveries: dict[LogName, RowDelivery] = {}

    def find(log: LogName) -> RowDelivery:
        if log not in deliveries:
            port = RestLogPort(portal, client, log, stamp, options.codec)
            name = f"{'/'.join(log)}, producer {stamp.producer_id}, epoch {stamp.epoch},"
            deliveries[log] = RowDelivery(port, options.batch_bytes, name=name)
        return deliveries[log]

    try:
        for batch in batches:
            for log, rows in read_rows(batch, options.log):
                find(log).add(rows)
                waiting = deliveries.values()
                while sum(each.waiting_bytes for each in waiting) > WAITING_BYTES_MAX:
                    max(waiting, key=lambda each: each.waiting_bytes).flush()
        for delivery in deliveries.values():
            delivery.finish()
    finally:
        portal.call(client.close())
        portal.close()
    done = deliveries.values()
    return Written(
        partition,
        sum(each.record_count for each in done),
        sum(each.sequence for each in done),
        sum(each.repeated_count for each in done),
    )
