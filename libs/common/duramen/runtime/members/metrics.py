"""What Prometheus learns of members; counted by the core, shown from its statistics.

Called by `gossiping`. Source: docs/protocol/members.md "To see it".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from prometheus_client import Counter, Gauge

_COUNTERS: Final = {
    "pings": Counter("duramen_members_pings", "Pings of other sequencers"),
    "unanswered": Counter(
        "duramen_members_unanswered", "MemberProbes whose first ping had no answer"
    ),
    "suspected": Counter("duramen_members_suspected", "Members that this process suspected"),
    "confirmed": Counter("duramen_members_confirmed", "Members that this process confirmed"),
    "refuted": Counter("duramen_members_refuted", "Suspicions of itself that it contradicted"),
    "late_looks": Counter("duramen_members_late_looks", "Looks that this process slept through"),
}
_AWAY: Final = Gauge("duramen_members_away", "Sequencers that this process passes over now")


def show_gossip(now: Mapping[str, int], shown: dict[str, int]) -> None:
    """Tell what was counted since the last time; `shown` is kept by the caller."""
    for name, counter in _COUNTERS.items():
        counter.inc(now[name] - shown.get(name, 0))
        shown[name] = now[name]
    _AWAY.set(now["away"])
