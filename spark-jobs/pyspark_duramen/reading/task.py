"""What one task does: reads its ranges, archived ones from the archive and others by a proxy.

Called by `reading.reader` and `streaming.reader`, in executors. Source: docs/spark.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace

import pyarrow as pa

from pyspark_duramen.catalog import ProxyCatalog
from pyspark_duramen.options import ReadOptions
from pyspark_duramen.reading.cold import ColdReader, NotFromHere
from pyspark_duramen.reading.hot import HotReader
from pyspark_duramen.reading.places import find_places
from pyspark_duramen.reading.ranges import LogRange

_log = logging.getLogger(__name__)


def read_ranges(
    ranges: Iterable[LogRange], options: ReadOptions, schema: pa.Schema, *, is_planned: bool
) -> Iterator[pa.RecordBatch]:
    """The rows of ranges, one range after another.

    Args:
        is_planned: the ranges say already where they lie.

    Raises:
        DuramenError: as `HotReader.read`.
    """
    with ExitStack() as stack:
        hot = stack.enter_context(closing(HotReader(options.proxy, schema, options.on_truncation)))
        if options.cold_store is None:
            for wanted in ranges:
                yield from hot.read(wanted)
            return
        if not is_planned:
            with ProxyCatalog(options.proxy) as catalog:
                ranges = list(find_places(ranges, catalog))
        cold = stack.enter_context(closing(ColdReader(options.cold_store, schema)))
        for wanted in ranges:
            yield from _read_one(wanted, hot, cold)


def _read_one(wanted: LogRange, hot: HotReader, cold: ColdReader) -> Iterator[pa.RecordBatch]:
    if wanted.cold is not None:
        try:
            yield from cold.read(wanted)
            return
        except NotFromHere as reason:
            _log.warning("a proxy reads %s from %d on: %s", wanted.log, reason.at, reason)
            wanted = replace(wanted, first=reason.at, cold=None)
    yield from hot.read(wanted)
