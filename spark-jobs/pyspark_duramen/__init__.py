"""Logs as tables: the data source `duramen` of PySpark, which finds it by this package's name."""
