"""The streaming read: where it begins, how far each micro-batch goes, what its tasks read.

Runs in one process beside the driver for as long as the query does; tasks run in executors. Rolls,
takeovers and proxies that come and go are nothing that it sees: sequence numbers go on. A
micro-batch is a pure function of its offsets, so that a repeated one has the same rows in the same
partitions: what writes exactly once relies on that.
Made by `source`. Source: docs/spark.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from duramen.errors import DuramenError
from pyspark_duramen.catalog import LogFacts, LogName, ProxyCatalog
from pyspark_duramen.options import OnTruncation, ReadOptions
from pyspark_duramen.reading.gaps import GapReason, RecordGap, make_gap_row
from pyspark_duramen.reading.places import RECORD_BYTES
from pyspark_duramen.reading.ranges import RangePartition, cut_by_records
from pyspark_duramen.reading.task import read_ranges
from pyspark_duramen.streaming.offsets import (
    LogOffset,
    Offsets,
    encode_offsets,
    find_begin,
    read_offsets,
    share,
)


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming read."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        if options.until is not None:
            detail = "option until: a stream has no end; Trigger.AvailableNow ends at the tail"
            raise DuramenError("invalid_argument", detail, field="until")
        self._options = options
        self._schema = schema
        self._opened: ProxyCatalog | None = None
        self._ends: dict[LogName, LogFacts] | None = None
        """With Trigger.AvailableNow: what there was when the query began."""
        self._last: Offsets = {}

    # --- in the query's own process --------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a new query begins in the logs that there are."""
        facts = self._find_facts()
        starts = {log: each.head for log, each in facts.items()}
        if self._options.start != "head":
            starts |= self._catalog.locate(facts, self._options.start)
        return encode_offsets(
            {log: LogOffset(each.log_id, starts[log], starts[log]) for log, each in facts.items()}
        )

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Of each micro-batch, from the options; with both, bytes count besides."""
        options = self._options
        if options.records_per_trigger is not None:
            return ReadMaxRows(options.records_per_trigger)
        if options.bytes_per_trigger is not None:
            return ReadMaxBytes(options.bytes_per_trigger)
        return ReadAllAvailable()

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """How far the next micro-batch goes.

        Raises:
            DuramenError: `data_lost`: a log that was being read is gone, and the policy is fail.
        """
        before = read_offsets(start)
        facts = self._find_facts() if self._ends is None else self._ends
        ends: Offsets = {}
        for log, each in facts.items():
            known = before.get(log)
            if known is not None and known.log_id == each.log_id:
                ends[log] = known._replace(seq=max(known.seq, each.tail))
            else:
                if known is not None:
                    self._check_gone(log, known)
                # A log that came later is read from its beginning, whatever `from` says.
                ends[log] = LogOffset(each.log_id, each.head, each.tail)
        for log, known in before.items():
            if log not in ends:
                if self._ends is None:
                    self._check_gone(log, known)
                ends[log] = known
        self._last = self._limit(before, ends, limit)
        return encode_offsets(self._last)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """The tails, for the progress: what `find_lag` subtracts from."""
        if not self._last:
            return None
        facts = self._find_facts()
        latest = {
            log: LogOffset(each.log_id, each.head, each.tail)
            for log, each in facts.items()
            if log not in self._last
        }
        for log, known in self._last.items():
            each = facts.get(log)
            is_same = each is not None and each.log_id == known.log_id
            seq = max(known.seq, each.tail) if each is not None and is_same else known.seq
            latest[log] = known._replace(seq=seq)
        return encode_offsets(latest)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Nothing that comes later is read."""
        self._ends = self._find_facts()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """What the tasks of a micro-batch read: of its offsets alone, see `ranges`."""
        before = read_offsets(start)
        found: list[InputPartition] = []
        for log, after in sorted(read_offsets(end).items()):
            known = before.get(log)
            if known is not None and known.log_id != after.log_id:
                gap = RecordGap(GapReason.DELETED, known.seq, None)
                found.append(RangePartition([], [(log, gap)]))
            begin = find_begin(known, after)
            found += cut_by_records(log, begin, after.seq, self._options.partition_records)
        return found

    def stop(self) -> None:
        """Close the connections."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    # --- in executors ----------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        assert isinstance(partition, RangePartition), partition
        for log, gap in partition.gaps:
            yield make_gap_row(gap, log, self._schema)
        yield from read_ranges(partition.ranges, self._options, self._schema, is_planned=False)

    # ---------------------------------------------------------------------------------------------

    @property
    def _catalog(self) -> ProxyCatalog:
        if self._opened is None:
            self._opened = ProxyCatalog(self._options.proxy)
        return self._opened

    def _find_facts(self) -> dict[LogName, LogFacts]:
        catalog = self._catalog
        return catalog.find_facts(catalog.find_logs(self._options.patterns))

    def _check_gone(self, log: LogName, known: LogOffset) -> None:
        if self._options.on_truncation is OnTruncation.FAIL:
            detail = (
                f"{'/'.join(log)} was deleted when it had been read up to {known.seq}; option "
                "on_truncation=skip goes on without what was left"
            )
            raise DuramenError("data_lost", detail)

    def _limit(self, before: Offsets, ends: Offsets, limit: ReadLimit) -> Offsets:
        """Ends that a micro-batch may reach."""
        begins = {log: find_begin(before.get(log), end) for log, end in ends.items()}
        lags = {log: ends[log].seq - begin for log, begin in begins.items()}
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        most_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        if most is not None:
            most_bytes = self._options.bytes_per_trigger
        if most_bytes is not None:
            fitting = self._count_fitting(lags, most_bytes)
            most = fitting if most is None else min(most, fitting)
        if most is not None:
            lags = share(lags, most)
        return {log: end._replace(seq=begins[log] + lags[log]) for log, end in ends.items()}

    def _count_fitting(self, lags: dict[LogName, int], most_bytes: int) -> int:
        """Records in so many bytes, as closed segments go; one at least, so that it goes on."""
        waiting = [log for log, lag in lags.items() if lag]
        segments = self._catalog.find_segments(waiting)
        rows = [segment for found in segments.values() for segment in found]
        count = sum(segment.record_count for segment in rows)
        size_bytes = sum(segment.size_bytes for segment in rows)
        return max(1, int(most_bytes / (size_bytes / count if count else RECORD_BYTES)))
