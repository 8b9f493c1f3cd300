"""The data source as PySpark sees it: one name, and a reader or writer for what is asked.

Spark makes one of these for every plan, here and in other processes, so it holds the options and
nothing else; each reader and writer reads its options anew and refuses what it does not know.
Made by Spark. Source: docs/spark.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from pyspark_duramen.options import ReadOptions, WriteOptions
from pyspark_duramen.table import DDL, check_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_duramen.reading.reader import LogReader
    from pyspark_duramen.streaming.reader import LogStreamReader
    from pyspark_duramen.writing.writers import LogStreamWriter, LogWriter

# Readers and writers are imported where they are made: Spark looks every package up at its start
# that is named pyspark_…, and should not have to load a client for it.


class DefaultSource(DataSource):
    """Logs of a Duramen cluster as a table, format `duramen`."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "duramen"

    def schema(self) -> str:
        """All columns; who wants fewer gives a schema of those."""
        return DDL

    def reader(self, schema: StructType) -> LogReader:
        """A batch read."""
        from pyspark_duramen.reading.reader import LogReader  # noqa: PLC0415

        return LogReader(ReadOptions.parse(self.options), check_schema(schema))

    def streamReader(self, schema: StructType) -> LogStreamReader:  # noqa: N802 - Spark's name
        """A streaming read."""
        from pyspark_duramen.streaming.reader import LogStreamReader  # noqa: PLC0415

        return LogStreamReader(ReadOptions.parse(self.options), check_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> LogWriter:
        """A batch write."""
        from pyspark_duramen.writing.writers import LogWriter  # noqa: PLC0415

        return LogWriter(WriteOptions.parse(self.options), schema, is_overwriting=overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> LogStreamWriter:
        """A streaming write."""
        from pyspark_duramen.writing.writers import LogStreamWriter  # noqa: PLC0415

        return LogStreamWriter(WriteOptions.parse(self.options), schema, is_overwriting=overwrite)
