"""Formats of the cold store: paths, manifest, Parquet files of records, checksum chains."""
