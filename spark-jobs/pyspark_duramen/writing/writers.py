"""The batch write and the streaming write, as Spark calls them.

Who a task is, and so its producer, comes from Spark: the query's id and the micro-batch of a
stream; of a batch write its `write_id`, which is made up unless it is given. Records are in the log
as soon as they are acknowledged: a log takes nothing back, so a write that fails leaves what it has
written, and its repetition completes it. `commit` has nothing to do but to count.
Made by `source`. Source: docs/spark.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from duramen.errors import DuramenError
from duramen.wire.record_batch import BatchProducer
from pyspark_duramen.options import WriteOptions
from pyspark_duramen.writing.rows import check_columns
from pyspark_duramen.writing.task import Written, write_rows

_QUERY_PROPERTY: Final = "sql.streaming.queryId"
_BATCH_PROPERTY: Final = "streaming.sql.batchId"
"""What Spark tells the tasks of a micro-batch; the query's id stays over restarts."""

_log = logging.getLogger(__name__)


class LogWriter(DataSourceArrowWriter):
    """One batch write. Spark pickles it for the executors."""

    def __init__(self, options: WriteOptions, schema: StructType, *, is_overwriting: bool) -> None:
        """Raises DuramenError `invalid_argument`: columns, options or mode cannot be."""
        check_write(options, schema, is_overwriting=is_overwriting)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """The rows of one task."""
        partition = _find_context().partitionId()
        stamp = BatchProducer(f"spark-{self._options.write_id}-{partition}", 0, 0)
        return write_rows(iterator, self._options, stamp, partition)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Every task has written its rows."""
        _log.info("write %s: %s", self._options.write_id, describe(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Some tasks have; what they wrote stays. The same `write_id` completes it."""
        _log.warning("write %s failed: %s", self._options.write_id, describe(messages))


class LogStreamWriter(DataSourceStreamArrowWriter):
    """One streaming write. Spark pickles it for the executors."""

    def __init__(self, options: WriteOptions, schema: StructType, *, is_overwriting: bool) -> None:
        """Raises DuramenError `invalid_argument`: columns, options or mode cannot be."""
        check_write(options, schema, is_overwriting=is_overwriting)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """The rows of one task of a micro-batch."""
        context = _find_context()
        query = context.getLocalProperty(_QUERY_PROPERTY)
        batch = context.getLocalProperty(_BATCH_PROPERTY)
        if query is None or batch is None:
            detail = "Spark does not tell which query and micro-batch this is"
            raise DuramenError("internal", detail)
        partition = context.partitionId()
        stamp = BatchProducer(f"spark-{query}-{partition}", int(batch), 0)
        return write_rows(iterator, self._options, stamp, partition)

    def commit(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 - Spark's name
    ) -> None:
        """Every task of a micro-batch has written its rows."""
        _log.info("micro-batch %d: %s", batchId, describe(messages))

    def abort(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 - Spark's name
    ) -> None:
        """Some tasks have; the repeated micro-batch completes what they wrote."""
        _log.warning("micro-batch %d failed: %s", batchId, describe(messages))


def check_write(options: WriteOptions, schema: StructType, *, is_overwriting: bool) -> None:
    """Refuse what cannot be written, before a task begins.

    Raises:
        DuramenError: `invalid_argument`.
    """
    if is_overwriting:
        raise DuramenError("invalid_argument", "a log is appended to: mode('append')", field="mode")
    check_columns(schema, options.log)


def describe(messages: Sequence[WriterCommitMessage | None]) -> str:
    """What the tasks of a write did, in one line."""
    done = [each for each in messages if isinstance(each, Written)]
    records = sum(each.record_count for each in done)
    repeated = sum(each.repeated_count for each in done)
    batches = sum(each.batch_count for each in done)
    return (
        f"{len(done)} of {len(messages)} tasks, {records} records in {batches} batches, "
        f"{repeated} of them there already"
    )


def _find_context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "a task writes, in an executor"
    return context
