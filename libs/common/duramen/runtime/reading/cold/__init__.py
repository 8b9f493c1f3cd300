"""Reads of what has left the bookies: row groups of the archive as sealed entries.

`reads` is what readers use (cache, read-ahead, threads), `archive` the blocking part, which alone
needs pyarrow.
"""
