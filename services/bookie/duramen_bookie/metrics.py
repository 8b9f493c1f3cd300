"""What Prometheus learns of a bookie; one set per process, without labels of logs.

Set by `storage` and `handlers`, served by the admin port. Source: 08-interfaces "Processes and
admin" (names and units).
"""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

JOURNAL_SYNC_SECONDS: Final = Histogram(
    "duramen_bookie_journal_sync_seconds",
    "Time of one journal commit: write and fdatasync",
    # From a fast NVMe's 50 us to a disk that is about to be given up.
    buckets=(0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2),
)
JOURNAL_QUEUE_BYTES: Final = Gauge(
    "duramen_bookie_journal_queue_bytes", "Records that wait for the journal or are being written"
)
ADD_ENTRIES: Final = Counter("duramen_bookie_add_entries", "Entries made durable")
ADD_BYTES: Final = Counter("duramen_bookie_add_bytes", "Bytes of entries made durable")
READ_BYTES: Final = Counter("duramen_bookie_read_bytes", "Bytes of entries read")
