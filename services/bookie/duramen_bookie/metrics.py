"""What Prometheus learns of a bookie; one set per process, without labels of logs.

Set by `storage` and `handlers`, served by the admin port. What a queue holds is asked for when it
is scraped (`show_…`) and costs nothing else. Source: docs/protocol/admin.md "Metrics".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

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
APPEND_WAIT_SECONDS: Final = Histogram(
    "duramen_bookie_append_wait_seconds",
    "How long adds of clients took to become durable, from the request's arrival on",
    buckets=(0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2),
)
PULLED_ENTRIES: Final = Counter(
    "duramen_bookie_pulled_entries", "Entries fetched from other bookies for repair"
)
PULLED_BYTES: Final = Counter(
    "duramen_bookie_pulled_bytes", "Bytes of entries fetched from other bookies for repair"
)

REPAIR_BYTES_PER_S: Final = Gauge(
    "duramen_bookie_repair_bytes_per_second",
    "What repair may move here by now: it falls while clients wait longer than without it",
)
REPAIR_LATE_SECONDS: Final = Gauge(
    "duramen_bookie_repair_late_seconds",
    "An add of a client that waits longer than this counts as late; 0: not known yet",
)

# --- Classes of service, the data server ----------------------------------------------------------

CLASS_REFUSALS: Final = Counter(
    "duramen_bookie_class_refusals",
    "Requests or rows refused because their class is full",
    ["class"],
)
READ_WAIT_SECONDS: Final = Histogram(
    "duramen_bookie_read_wait_seconds",
    "How long a read waited for a thread of its class",
    ["class"],
    # From a hand-over between threads to the time after which a read is refused.
    buckets=(0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2),
)

_CLASS_GAUGES: Final = {
    "requests": Gauge(
        "duramen_bookie_class_requests", "Requests that are under way, long polls apart", ["class"]
    ),
    "add_bytes": Gauge(
        "duramen_bookie_class_add_bytes", "Bytes of records that wait for the journal", ["class"]
    ),
    "answer_bytes": Gauge(
        "duramen_bookie_class_answer_bytes", "Bytes of answers that are being prepared", ["class"]
    ),
    "reads_waiting": Gauge(
        "duramen_bookie_class_waiting_reads", "Reads that wait for a thread", ["class"]
    ),
    "reads_running": Gauge(
        "duramen_bookie_class_running_reads", "Reads that have a thread", ["class"]
    ),
}
_SERVER_GAUGES: Final = {
    "connections": Gauge(
        "duramen_bookie_open_connections", "Connections to the data port that are read from"
    ),
    "connections_waiting": Gauge(
        "duramen_bookie_waiting_connections", "Connections that wait because too many are open"
    ),
    "bodies_bytes": Gauge(
        "duramen_bookie_arriving_body_bytes", "Bytes of the request bodies that are arriving"
    ),
    "bodies_waiting": Gauge(
        "duramen_bookie_waiting_bodies", "Request bodies that wait for room before they are read"
    ),
}
_WAITING_POLLS: Final = Gauge("duramen_bookie_waiting_polls", "Long polls that wait")


def show_classes(statistics: Callable[[], Mapping[str, Mapping[str, Any]]]) -> None:
    """Show what `Admission.statistics` says at every scrape."""
    for name in statistics():
        for field, gauge in _CLASS_GAUGES.items():
            gauge.labels(name).set_function(partial(_look_up, statistics, name, field))


def show_server(statistics: Callable[[], Mapping[str, int | None]]) -> None:
    """Show what the data server's `statistics` say at every scrape."""
    for field, gauge in _SERVER_GAUGES.items():
        gauge.set_function(partial(_look_up_number, statistics, field))


def show_repair(statistics: Callable[[], Mapping[str, Any]]) -> None:
    """Show at every scrape how repair yields, see `YieldingPace.statistics`."""
    REPAIR_BYTES_PER_S.set_function(lambda: statistics()["bytes_per_s"])
    REPAIR_LATE_SECONDS.set_function(lambda: statistics()["late_beyond_us"] / 1e6)


def show_polls(count: Callable[[], int]) -> None:
    """Show how many long polls wait at every scrape."""
    _WAITING_POLLS.set_function(count)


def _look_up(
    statistics: Callable[[], Mapping[str, Mapping[str, Any]]], name: str, field: str
) -> float:
    return float(statistics()[name][field])


def _look_up_number(statistics: Callable[[], Mapping[str, int | None]], field: str) -> float:
    number = statistics()[field]
    return float("nan") if number is None else float(number)


ENTRY_LOG_DATA_BYTES: Final = Gauge("duramen_bookie_shelf_data_bytes", "Bytes of entry log files")
ENTRY_LOG_LIVE_BYTES: Final = Gauge(
    "duramen_bookie_shelf_live_bytes", "Bytes of their records of ledgers that are alive"
)
JOURNAL_SEALED_FILES: Final = Gauge(
    "duramen_bookie_journal_sealed_files", "Journal files that wait to be settled"
)
SETTLED_ENTRIES: Final = Gauge(
    "duramen_bookie_settled_entries", "Entries copied to the entry log or within it since the start"
)
REPAIR_QUEUE_LEDGERS: Final = Gauge(
    "duramen_bookie_repair_queue_ledgers", "Damaged ledgers that wait to be reported"
)
DISK_USED_RATIO: Final = Gauge(
    "duramen_bookie_disk_used_ratio", "Used part of the fullest disk, 0 to 1"
)


def show_upkeep(
    upkeep: Callable[[], dict[str, Any]], storage: Callable[[], dict[str, Any]]
) -> None:
    """Have the gauges of upkeep computed when they are asked for."""
    ENTRY_LOG_DATA_BYTES.set_function(lambda: storage()["shelf"]["data_bytes"])
    ENTRY_LOG_LIVE_BYTES.set_function(lambda: storage()["shelf"]["live_bytes"])
    JOURNAL_SEALED_FILES.set_function(lambda: len(storage()["journal"]["sealed_file_ids"]))
    SETTLED_ENTRIES.set_function(lambda: upkeep()["carrier"]["copied_entry_count"])
    REPAIR_QUEUE_LEDGERS.set_function(lambda: upkeep()["repair_queue"]["waiting"])
    DISK_USED_RATIO.set_function(
        lambda: max(disk["used_ratio"] for disk in upkeep()["space"]["disks"])
    )
