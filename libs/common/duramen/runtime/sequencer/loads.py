"""How much is appended to a log: counted as it comes, told as a rate.

A few numbers a log, over windows of WINDOW_US: the rate told is that of the last full window and of
the running one together, so it is neither empty at a window's start nor old. Windows are those of
the clock, the same for all logs: what stops a whole process for seconds makes every rate lower by
the same part, and a balancer that compares them moves nothing for it. Rates of logs that left are
kept for a while, because who takes over many logs at once begins with the hottest.

Called by `log_driver` and the sequencer's `log_host`; read by the balancer through control, and by
`ownership.hot_logs`.
"""

from __future__ import annotations

from typing import Final

from duramen.ids import LogId
from duramen.units import SECOND

WINDOW_US: Final = 5 * SECOND
_REGION_COUNT_MAX: Final = 16
"""What others call regions is counted up to here; a cluster has a few."""

_KNOWN_COUNT_MAX: Final = 10_000


class LoadMeter:
    """Appends and bytes of one log, refused appends, and regions that appends came from."""

    __slots__ = (
        "_bytes", "_count", "_last_bytes", "_last_count", "_last_refused", "_last_regions",
        "_refused", "_regions", "_window",
    )  # fmt: skip

    def __init__(self, now_us: int) -> None:
        self._window = now_us // WINDOW_US
        self._count = self._bytes = self._refused = 0
        self._last_count = self._last_bytes = self._last_refused = 0
        self._regions: dict[str, int] | None = None
        self._last_regions: dict[str, int] | None = None

    def note(self, size_bytes: int, now_us: int, region: str | None = None) -> None:
        """One append came, from a proxy in that region if it said so."""
        if now_us // WINDOW_US != self._window:
            self._turn(now_us)
        self._count += 1
        self._bytes += size_bytes
        if region is not None:
            if self._regions is None:
                self._regions = {}
            if region in self._regions or len(self._regions) < _REGION_COUNT_MAX:
                self._regions[region] = self._regions.get(region, 0) + 1

    def note_refused(self, now_us: int) -> None:
        """An append that came was refused, because the log's window is full."""
        if now_us // WINDOW_US != self._window:
            self._turn(now_us)
        self._refused += 1

    def refused_per_s(self, now_us: int) -> float:
        """Refused appends per second."""
        if now_us // WINDOW_US != self._window:
            self._turn(now_us)
        return (self._refused + self._last_refused) / _seconds(now_us)

    def regions_per_s(self, now_us: int) -> dict[str, float]:
        """Appends per second that came from each region."""
        if now_us // WINDOW_US != self._window:
            self._turn(now_us)
        counted: dict[str, int] = {}
        for counts in (self._last_regions, self._regions):
            for region, count in () if counts is None else counts.items():
                counted[region] = counted.get(region, 0) + count
        return {region: count / _seconds(now_us) for region, count in counted.items()}

    def rates(self, now_us: int) -> tuple[float, float]:
        """Appends and bytes per second."""
        if now_us // WINDOW_US != self._window:
            self._turn(now_us)
        seconds = _seconds(now_us)
        return (self._count + self._last_count) / seconds, (
            self._bytes + self._last_bytes
        ) / seconds

    def _turn(self, now_us: int) -> None:
        is_next = now_us // WINDOW_US == self._window + 1
        self._last_count = self._count if is_next else 0
        self._last_bytes = self._bytes if is_next else 0
        self._last_refused = self._refused if is_next else 0
        self._last_regions = self._regions if is_next else None
        self._regions = None
        self._count = self._bytes = self._refused = 0
        self._window = now_us // WINDOW_US


def _seconds(now_us: int) -> float:
    """What the running window and the last one have lasted."""
    return (now_us % WINDOW_US + WINDOW_US) / SECOND


class KnownRates:
    """Appends per second of logs that left this process, as last measured."""

    def __init__(self) -> None:
        self._rates: dict[LogId, float] = {}

    def note(self, log_id: LogId, appends_per_s: float) -> None:
        """A log leaves; logs without appends are not remembered."""
        self._rates.pop(log_id, None)
        if appends_per_s <= 0:
            return
        if len(self._rates) >= _KNOWN_COUNT_MAX:
            del self._rates[next(iter(self._rates))]
        self._rates[log_id] = appends_per_s

    def get(self, log_id: LogId) -> float:
        """0 where nothing is known."""
        return self._rates.get(log_id, 0.0)
