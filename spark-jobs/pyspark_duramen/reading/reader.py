"""The batch read: plans ranges in the driver, reads them in executors.

The plan holds for the moment in which it is made: the tail is linearizable and ends the read where
`until` is not given, so records that come later are not in it.
Made by `source`. Source: docs/spark.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from duramen.errors import DuramenError
from pyspark_duramen.catalog import LogFacts, LogName, ProxyCatalog
from pyspark_duramen.options import OnTruncation, ReadOptions
from pyspark_duramen.reading.places import split_by_segments
from pyspark_duramen.reading.predicates import Predicates, split_filters
from pyspark_duramen.reading.ranges import RangePartition, balance
from pyspark_duramen.reading.task import read_ranges


class _FilterPush:
    """`pushFilters` for Spark with and without `spark.sql.python.filterPushdown.enabled`.

    Spark refuses every read of a source whose `pushFilters` is its own while that setting is off,
    which is its default; it looks at `__func__`. A source that can do without need not be refused.
    """

    def __init__(self, reader: LogReader) -> None:
        self.__func__ = DataSourceReader.pushFilters
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        reader = self._reader
        reader.predicates, left = split_filters(filters, reader.schema.names)
        return left


class LogReader(DataSourceReader):
    """One batch read. Spark pickles it for the executors."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self.options = options
        self.schema = schema
        self.predicates = Predicates()
        self.pushFilters: Any = _FilterPush(self)

    def partitions(self) -> list[InputPartition]:
        """What each task reads.

        Raises:
            DuramenError: `log_not_found`, `data_lost` (it begins in what is truncated), …
        """
        with ProxyCatalog(self.options.proxy) as catalog:
            named = [log for log in self._find_logs(catalog) if self.predicates.has_log(log)]
            facts = catalog.find_facts(named)
            _check_all_there(self.options.patterns, named, facts)
            bounds = self._find_bounds(catalog, facts)
            segments = catalog.find_segments(bounds)
            # Nothing tells how large an open segment is: its first records do, where it is alone.
            alone = {log: first for log, (first, _) in bounds.items() if not segments.get(log)}
            sampled = catalog.sample_record_bytes(alone)
            ranges = [
                part
                for log, (first, end) in bounds.items()
                for part in split_by_segments(
                    log, facts[log], segments.get(log, []), first, end,
                    has_cold_store=self.options.cold_store is not None,
                    open_record_bytes=sampled.get(log, 0.0),
                )
            ]  # fmt: skip
        # Spark calls `read` once where there is nothing to read.
        return cast(
            "list[InputPartition]",
            balance(ranges, self.options.partition_bytes) or [RangePartition([])],
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        assert isinstance(partition, RangePartition), partition
        for rows in read_ranges(partition.ranges, self.options, self.schema, is_planned=True):
            kept = self.predicates.keep(rows)
            if len(kept):
                yield kept

    def _find_logs(self, catalog: ProxyCatalog) -> list[LogName]:
        return catalog.find_logs(self.options.patterns)

    def _find_bounds(
        self, catalog: ProxyCatalog, facts: dict[LogName, LogFacts]
    ) -> dict[LogName, tuple[int, int]]:
        """First and end of what is to be read of each log."""
        low, high = self.predicates.find_bounds("seq_num")
        first = {log: max(low, each.head) for log, each in facts.items()}
        end = {log: min(high, each.tail) for log, each in facts.items()}
        start = self.options.start
        if start != "head":
            begins = catalog.locate(facts, start)
            first = {log: max(first[log], begins.get(log, 0)) for log in first}
            number = start.removeprefix("seq:")
            if number.isdigit():
                self._check_truncated(int(number), facts)
                # What is missing before the head has a row of its own, where that is allowed.
                first = {log: min(first[log], max(low, int(number))) for log in first}
        for position in self.predicates.list_starts():
            begins = catalog.locate(facts, position)
            first = {log: max(first[log], begins.get(log, 0)) for log in first}
        for ending in (self.options.until, self.predicates.find_end()):
            if ending is not None:
                ends = catalog.locate(facts, ending)
                end = {log: min(end[log], ends.get(log, end[log])) for log in end}
        return {log: (first[log], end[log]) for log in facts if first[log] < end[log]}

    def _check_truncated(self, number: int, facts: dict[LogName, LogFacts]) -> None:
        """A sequence number that is named is meant, unless the policy says otherwise."""
        if self.options.on_truncation is OnTruncation.SKIP:
            return
        for log, each in facts.items():
            if number < each.head:
                detail = (
                    f"{'/'.join(log)} begins at {each.head}, records {number} to {each.head - 1} "
                    "are truncated: read from head, or set on_truncation=skip"
                )
                raise DuramenError("data_lost", detail)


def _check_all_there(
    patterns: Iterable[str], logs: list[LogName], facts: dict[LogName, LogFacts]
) -> None:
    """A log that is named without a pattern has to be there."""
    for log in logs:
        if log not in facts and "/".join(log) in patterns:
            raise DuramenError("log_not_found", f"there is no log {'/'.join(log)}")
