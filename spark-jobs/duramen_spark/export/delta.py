"""A Delta table as a sink: appended by deltalake (delta-rs), without Spark.

The epoch is the version of an application transaction in the table's log, which Delta keeps for
this purpose: it is committed with the files that it speaks of. Two writers of one application
conflict, so one of them looks again.

Called by the command `duramen-spark export`. Source: Delta protocol, "Transaction Identifiers".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError

from duramen.ids import Epoch
from duramen_spark.export.rows import EXPORT_SCHEMA
from duramen_spark.export.sinks import ExportConflict

_APPEND_ONLY = {"delta.appendOnly": "true"}


class DeltaSink:
    """A Delta table; made if there is none.

    Args:
        url: a folder, or `s3://…` with credentials in the environment.
    """

    def __init__(self, url: str) -> None:
        try:
            self._table = DeltaTable(url)
        except TableNotFoundError:
            self._table = DeltaTable.create(
                url,
                EXPORT_SCHEMA,
                mode="ignore",
                partition_by=["namespace", "log"],
                configuration=_APPEND_ONLY,
            )

    def read_epoch(self, key: str) -> int:
        """See the port."""
        self._table.update_incremental()
        version = self._table.transaction_version(key)
        return 0 if version is None else int(version)

    def append(self, key: str, epoch: Epoch, rows: Iterable[pa.RecordBatch]) -> int:
        """See the port."""
        count = 0

        def counted() -> Iterator[pa.RecordBatch]:
            nonlocal count
            for batch in rows:
                count += batch.num_rows
                yield batch

        try:
            write_deltalake(
                self._table,
                pa.RecordBatchReader.from_batches(EXPORT_SCHEMA, counted()),
                mode="append",
                commit_properties=CommitProperties(
                    custom_metadata={"duramen.log": key, "duramen.epoch": str(epoch)},
                    app_transactions=[Transaction(key, epoch)],
                ),
            )
        except CommitFailedError as error:
            raise ExportConflict(str(error)) from error
        return count
