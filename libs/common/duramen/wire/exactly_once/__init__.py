"""Bytes of exactly once: control records in the log, and what a rebuild reads of entries."""
