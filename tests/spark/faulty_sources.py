"""The data source with a fault: tasks and commits that die once, at a named moment.

Registered by tests under names of their own. A fault happens where the marker file is not
there yet, and leaves it behind; processes die by SIGKILL, so that nothing of them tells anybody.
Used by `test_source_queries`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_duramen import DefaultSource
from pyspark_duramen.options import WriteOptions
from pyspark_duramen.writing.writers import LogStreamWriter, LogWriter

DIE_OPTION = "die_marker"


def happens_now(marker: Path) -> bool:
    """Whether this is the first time; of several processes one is told so."""
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def die() -> None:
    """End this process without a word."""
    os.kill(os.getpid(), signal.SIGKILL)


class DyingWriter(LogWriter):
    """The task of partition 1 dies between its last acknowledgement and its answer to Spark."""

    marker: Path

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        message = super().write(iterator)
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 1 and happens_now(self.marker):
            die()
        return message


class DyingStreamWriter(LogStreamWriter):
    """As `DyingWriter` in micro-batch 1; the driver's commit of micro-batch 2 fails besides."""

    marker: Path

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        message = super().write(iterator)
        context = TaskContext.get()
        assert context is not None
        is_it = context.getLocalProperty("streaming.sql.batchId") == "1"
        if is_it and context.partitionId() == 1 and happens_now(self.marker):
            die()
        return message

    def commit(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 - Spark's name
    ) -> None:
        super().commit(messages, batchId)
        if batchId == 2 and happens_now(self.marker.with_suffix(".commit")):
            raise RuntimeError("the driver dies here")


class DyingSource(DefaultSource):
    """Format `dying_duramen`; option `die_marker` names the file that says it has happened."""

    @classmethod
    def name(cls) -> str:
        return "dying_duramen"

    def writer(self, schema: StructType, overwrite: bool) -> LogWriter:
        options, marker = self._split()
        writer = DyingWriter(options, schema, is_overwriting=overwrite)
        writer.marker = marker
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> LogStreamWriter:  # noqa: N802
        options, marker = self._split()
        writer = DyingStreamWriter(options, schema, is_overwriting=overwrite)
        writer.marker = marker
        return writer

    def _split(self) -> tuple[WriteOptions, Path]:
        given: dict[str, Any] = dict(self.options)
        marker = Path(given.pop(DIE_OPTION))
        return WriteOptions.parse(given), marker
