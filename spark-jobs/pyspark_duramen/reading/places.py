"""Where the records of a range lie: in segments that are archived, or behind a proxy.

A batch read asks when it plans, a micro-batch when a task runs, because its plan may not depend on
what was archived meanwhile. Called by `reading.reader` and `reading.task`.
Source: docs/spark.md, docs/protocol/archive.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from pyspark_duramen.catalog import CatalogSegment, LogFacts, LogName, ProxyCatalog
from pyspark_duramen.reading.ranges import ColdPlace, LogRange

RECORD_BYTES: Final = 256.0
"""A guess for a log without a closed segment, where it is not worth a look."""


def find_places(ranges: Iterable[LogRange], catalog: ProxyCatalog) -> Iterator[LogRange]:
    """The same records, in pieces that lie in one place each as of now.

    What was truncated meanwhile is the proxy's to tell.
    """
    wanted = list(ranges)
    logs = {each.log for each in wanted}
    facts, segments = catalog.find_facts(logs), catalog.find_segments(logs)
    for each in wanted:
        known = facts.get(each.log)
        if known is None:
            yield each
            continue
        first = min(max(each.first, known.head), each.end)
        if each.first < first:
            yield LogRange(each.log, each.first, first, 0)
        yield from split_by_segments(
            each.log, known, segments.get(each.log, []), first, each.end, has_cold_store=True
        )


def split_by_segments(
    log: LogName,
    facts: LogFacts,
    segments: list[CatalogSegment],
    first: int,
    end: int,
    *,
    has_cold_store: bool,
    open_record_bytes: float = RECORD_BYTES,
) -> Iterator[LogRange]:
    """A range of a log in pieces that lie in one place each, with about their bytes.

    Args:
        segments: closed ones, in order; what follows them is in segments that are still open.
        has_cold_store: executors may read the archive themselves.
        open_record_bytes: of a record, where no closed segment tells.
    """
    at = first
    total = sum(segment.record_count for segment in segments)
    record_bytes = sum(s.size_bytes for s in segments) / total if total else open_record_bytes
    for segment in segments:
        stop = min(segment.end, end)
        if stop <= at:
            continue
        if segment.first > at:
            # Lost or in a hole: the proxy says which.
            yield LogRange(log, at, segment.first, 0)
            at = segment.first
        size_bytes = segment.size_bytes * (stop - at) / segment.record_count
        copy = segment.cold_copy if has_cold_store else None
        cold = None if copy is None else ColdPlace(int(facts.log_id), segment.epoch, *copy)
        yield LogRange(log, at, stop, size_bytes, cold)
        at = stop
        if at >= end:
            return
    if at < end:
        yield LogRange(log, at, end, (end - at) * record_bytes)
