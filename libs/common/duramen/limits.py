"""Every default limit and time-out of the product, in one place, with its reason.

A value that an operator may want to change is also a configuration field somewhere; this is where
its default lives. Bytes end in `_BYTES`, durations are microseconds and end in `_US`.

Called by everybody. Source: 08-interfaces "Other defaults".
"""

from __future__ import annotations

from typing import Final

from duramen.units import KIB, MIB, MS, SECOND

RECORD_BYTES_MAX: Final = 1 * MIB
"""One record's body with its headers: a log carries events, not files."""

BATCH_BYTES_MAX: Final = 4 * MIB
"""One record batch: what a slow client may make every hop hold at once."""

BATCH_RECORD_COUNT_MAX: Final = 10_000
"""Records of one batch: bounds the per-record work of one call at an edge."""

FRAME_BYTES_MAX: Final = 16 * MIB
"""One data-plane request or answer body, checked before it is allocated."""

ENTRY_BYTES_MAX: Final = BATCH_BYTES_MAX + 512 * KIB
"""One entry: a batch of the largest legal records with every column (24 bytes a record) fits."""

ENTRY_TARGET_BYTES: Final = 1 * MIB
"""Batches that wait are packed up to this: past it the bytes per call no longer gain anything."""

STORE_TIMEOUT_US: Final = 2 * SECOND
"""An add that a bookie has not answered by then counts as a failed member."""

READ_TIMEOUT_US: Final = 5 * SECOND
"""A read (beyond its long poll) that is not answered by then is tried elsewhere."""

SEAL_TIMEOUT_US: Final = 5 * SECOND
"""A seal that is not answered by then is asked again."""

CLOSE_OWED_WAIT_US: Final = 2 * SECOND
"""A roll waits this long at most for copies that are still owed (R9)."""

ROLL_DRAIN_US: Final = 2 * SECOND
"""A roll whose window does not drain by then is called off and tried later (R19)."""

APPEND_TIMEOUT_US: Final = 10 * SECOND
"""An append that is not acknowledged by then is answered: uncertain if it was ever sent."""

APPEND_TIMEOUT_MAX_US: Final = 60 * SECOND
"""The most that a client may ask for instead (`Duramen-Timeout`)."""

PROBE_INTERVAL_US: Final = 500 * MS
"""How often a suspended member is tried again with the oldest entry that it is owed."""

RETRY_DELAY_US: Final = 200 * MS
"""First pause before a metadata or recovery step is tried again; doubles up to RETRY_DELAY_MAX."""

RETRY_DELAY_MAX_US: Final = 2 * SECOND
"""Longest pause between two tries of the same step."""

OWED_BYTES_MAX_PER_LOG: Final = 64 * MIB
"""Entries that one log keeps in memory for members that missed them (R9)."""

LONG_POLL_MAX_US: Final = 60 * SECOND
"""The longest `wait` of a read: below the idle time-outs of common load balancers."""

READ_BYTES_DEFAULT: Final = 1 * MIB
"""Bytes of one read answer when the reader names no bound."""

READ_BYTES_MAX: Final = 16 * MIB
"""The most that one read answer may carry."""

JOURNAL_QUEUE_BYTES_MAX: Final = 64 * MIB
"""Adds that may wait for the journal of one bookie before it refuses as overloaded."""

JOURNAL_FILE_BYTES: Final = 256 * MIB
"""Size that a journal file is preallocated with."""

SEQ_NUM_MAX: Final = (1 << 53) - 1
"""Sequence numbers stay exact in every JSON reader (documented limit)."""

ZOOKEEPER_SESSION_S: Final = 4.0
"""Session time-out of every service: how long a dead owner keeps its logs."""
