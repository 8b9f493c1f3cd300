"""The archive job: closed segments become Parquet files, verified before they count."""
