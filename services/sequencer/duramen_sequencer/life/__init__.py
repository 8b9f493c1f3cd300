"""The end of a log's records and of the log itself: truncate, expire, end, delete, purge."""
