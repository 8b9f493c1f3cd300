"""Logs as tables: the data source `duramen` of PySpark, which finds it by this package's name.

    spark.read.format("duramen").option("url", …).option("logs", "shop/orders").load()

Batch and streaming, read and write; docs/spark.md is the user's page.
"""

from pyspark_duramen.source import DefaultSource
from pyspark_duramen.streaming.lag import find_lag

__all__ = ["DefaultSource", "find_lag"]
