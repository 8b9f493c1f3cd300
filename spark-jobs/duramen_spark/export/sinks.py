"""What an export writes to: the port, and the name under which a table remembers a log.

A segment is appended in one commit of the table, which also records its epoch: so an export that is
repeated, killed or run beside another one never adds a segment twice.

Implementations: `delta`, `iceberg`. Called by `export.driver`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import pyarrow as pa

from duramen.ids import Epoch, LogId


class ExportConflict(Exception):
    """Another export has changed the table meanwhile, and nothing was added: look again."""


class TableSink(Protocol):
    """A table of records that only grows. Blocking; one thread."""

    def read_epoch(self, key: str) -> int:
        """The last epoch that the table has of a log; 0: none."""

    def append(self, key: str, epoch: Epoch, rows: Iterable[pa.RecordBatch]) -> int:
        """Append a segment's records and record its epoch, both or neither; how many records.

        Raises:
            ExportConflict: see there.
        """


def key_of(cluster: str, log_id: LogId) -> str:
    """What a table calls a log: names of logs are taken again, ids are not."""
    return f"duramen.{cluster}.{log_id:08x}"
