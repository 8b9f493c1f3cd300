"""What one task does: reads its ranges, hot ones by a proxy and cold ones from the archive.

Called by `reading.reader` and `streaming.reader`, in executors. Source: 04-platform "Spark".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from pyspark_duramen.options import ReadOptions
from pyspark_duramen.reading.hot import HotReader
from pyspark_duramen.reading.ranges import LogRange


def read_ranges(
    ranges: Iterable[LogRange], options: ReadOptions, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The rows of ranges, one range after another.

    Raises:
        DuramenError: as `HotReader.read`.
    """
    reader = HotReader(options.url, schema, options.on_truncation)
    try:
        for wanted in ranges:
            yield from reader.read(wanted)
    finally:
        reader.close()
