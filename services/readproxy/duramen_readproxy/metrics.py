"""What Prometheus learns of a read proxy: read from its parts when a page is asked for.

The parts count for themselves (`statistics`), so nothing is counted twice here. What only grows is
a counter (`…_total`), so that Prometheus notices a restart. Labels hold no names of logs.

Called by `service`. Source: docs/protocol/admin.md "Metrics".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from duramen.runtime.reading.bookies import Bookies
from duramen.runtime.reading.cache import EntryCache
from duramen.runtime.reading.cold_reads import ColdReads
from duramen_readproxy.following.feed import Feeds
from duramen_readproxy.following.places import ReadingPlaces
from duramen_readproxy.following.streams import StreamCounts


class Reading(NamedTuple):
    """One number: its name without the component, what it says, where it comes from."""

    name: str
    text: str
    read: Callable[[], float]
    is_growing: bool = False


class ReadingCollector(Collector):
    """Numbers of one part of a read proxy."""

    def __init__(self, readings: Sequence[Reading]) -> None:
        self._readings = readings

    def collect(self) -> Iterator[Metric]:
        """All of them, as they are now."""
        for one in self._readings:
            family = CounterMetricFamily if one.is_growing else GaugeMetricFamily
            yield family(f"duramen_readproxy_{one.name}", one.text, value=float(one.read()))


def show_cache(registry: CollectorRegistry, cache: EntryCache, bookies: Bookies) -> None:
    """Numbers of the cache and of the reads from bookies."""
    readings = (
        Reading(
            "cache_hit_ratio",
            "entries served from the cache per entry served since the start",
            lambda: cache.hit_ratio,
        ),
        Reading("cache_bytes", "bytes of cached entries", lambda: cache.statistics()["bytes"]),
        Reading(
            "damaged_answers",
            "answers of bookies that held a damaged entry",
            lambda: bookies.statistics().get("damaged", 0),
            is_growing=True,
        ),
        Reading(
            "speculative_reads",
            "replicas asked because another one was late",
            lambda: bookies.order.speculation.request_count,
            is_growing=True,
        ),
    )
    registry.register(ReadingCollector(readings))


def show_readers(
    registry: CollectorRegistry, feeds: Feeds, streams: StreamCounts, places: ReadingPlaces
) -> None:
    """Numbers of those who wait at the tails of logs, and of those who catch up in turns."""
    readings = (
        Reading(
            "tail_feeds", "feeds at the tail of a log now", lambda: feeds.statistics()["feeds"]
        ),
        Reading(
            "tail_readers",
            "readers at the tail of a log now",
            lambda: feeds.statistics()["readers"],
        ),
        Reading("open_streams", "streams that are open now", lambda: streams.open_count),
        Reading(
            "held_places",
            "streams that catch up now",
            lambda: places.statistics()["held"],
        ),
        Reading(
            "waiting_streams",
            "streams that wait for a place to catch up now",
            lambda: places.statistics()["waiting"],
        ),
        Reading(
            "taken_away_places",
            "places taken away from streams whose clients took nothing",
            lambda: places.statistics()["taken_away"],
            is_growing=True,
        ),
    )
    registry.register(ReadingCollector(readings))


def show_cold(registry: CollectorRegistry, cold: ColdReads) -> None:
    """Numbers of the reads from the cold store."""
    readings = (
        Reading(
            "cold_cache_hit_ratio",
            "archived entries served from memory per archived entry served since the start",
            lambda: cold.hit_ratio,
        ),
        Reading(
            "cold_cache_bytes",
            "bytes of archived entries in memory",
            lambda: cold.statistics()["bytes"],
        ),
        Reading(
            "cold_loaded_bytes",
            "bytes of row groups that were read",
            lambda: cold.statistics()["loaded_bytes"],
            is_growing=True,
        ),
        Reading(
            "cold_failures",
            "reads that the cold store failed",
            lambda: cold.statistics()["failures"],
            is_growing=True,
        ),
        Reading(
            "cold_damaged",
            "reads that met damaged cold copies",
            lambda: cold.statistics()["damaged"],
            is_growing=True,
        ),
    )
    registry.register(ReadingCollector(readings))
