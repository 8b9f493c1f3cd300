"""Metrics of the write proxy, for Prometheus at the admin port.

One process holds one write proxy, so they are made once, with the process. Labels hold no names of
logs; `outcome` is `ok` or a code of `duramen.errors`.

Called by `append_route`, `intake`, `lanes`, `service`. Source: docs/protocol/admin.md "Metrics".
"""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

APPEND_SECONDS: Final = Histogram(
    "duramen_writeproxy_append_seconds",
    "From the request's head to its answer",
    # A lone append takes about 1.5 ms; a takeover a few seconds.
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10),
)
APPENDS: Final = Counter(
    "duramen_writeproxy_appends", "Append requests by what became of them", ["outcome"]
)
FRAMES: Final = Counter("duramen_writeproxy_frames", "Frames sent to sequencers")
IN_FLIGHT_BYTES: Final = Gauge(
    "duramen_writeproxy_in_flight_bytes", "Bodies of append requests that are being served"
)
