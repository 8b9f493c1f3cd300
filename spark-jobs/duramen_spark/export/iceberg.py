"""An Iceberg table as a sink: appended by pyiceberg, in whatever catalog its options name.

The epoch is a property of the table, set in the transaction that appends; the catalog swaps the
table's metadata by compare-and-set, so of two exporters one fails and looks again. A segment of
several row groups is several snapshots of one commit.

Called by the command `duramen-spark export`. Source: Iceberg specification, section
"Optimistic Concurrency".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import TableProperties

from duramen.ids import Epoch
from duramen_spark.export.rows import EXPORT_SCHEMA
from duramen_spark.export.sinks import ExportConflict

_NO_RETRIES: Final = {TableProperties.COMMIT_NUM_RETRIES: "0"}
"""Repeating a commit on top of another's is what pyiceberg does unless the table forbids it: the
other may have added the same segment."""


class IcebergSink:
    """An Iceberg table; made if there is none.

    Args:
        table: `namespace.name` in the catalog; one that is there has its commits' retries ended.
    """

    def __init__(self, catalog: Catalog, table: str) -> None:
        catalog.create_namespace_if_not_exists(table.rpartition(".")[0])
        self._table = catalog.create_table_if_not_exists(
            table, EXPORT_SCHEMA, properties=_NO_RETRIES
        )
        if self._table.properties.get(TableProperties.COMMIT_NUM_RETRIES) != "0":
            with self._table.transaction() as transaction:
                transaction.set_properties(_NO_RETRIES)

    def read_epoch(self, key: str) -> int:
        """See the port."""
        self._table.refresh()
        return int(self._table.properties.get(key, "0"))

    def append(self, key: str, epoch: Epoch, rows: Iterable[pa.RecordBatch]) -> int:
        """See the port."""
        count = 0
        try:
            with self._table.transaction() as transaction:
                for batch in rows:
                    transaction.append(pa.Table.from_batches([batch], EXPORT_SCHEMA))
                    count += batch.num_rows
                transaction.set_properties({key: str(epoch)})
        except CommitFailedException as error:
            raise ExportConflict(str(error)) from error
        return count
