"""How long bookies take to store an entry, as the logs of one process found, and what is late.

A store is late after three times what its peers need: the p99 of the middle one of the nodes of the
same region that the epoch may use. A bookie's own p99 is no measure: a slow one would be waited for
because it is slow. In a region with one node there is nobody else to go by.

Pure. One instance serves all logs of a process. Called by `flexible.wave_writer` through its ports;
told by `runtime.sequencer.node_watch`. Source: R27, docs/protocol/waves.md "The next wave".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from duramen.core.percentile import Percentile99
from duramen.ids import Member
from duramen.units import MS, SECOND

LATE_US_MIN: Final = 20 * MS
LATE_US_MAX: Final = 1 * SECOND
_FACTOR: Final = 3
_START_US: Final = LATE_US_MIN // _FACTOR
_LEAST_US: Final = MS // 10
MEMBERS_MAX: Final = 10_000
"""Members that are remembered; the one heard of least lately goes."""


class StoreTimes:
    """The p99 of stores by member."""

    def __init__(self) -> None:
        self._times: dict[Member, Percentile99] = {}

    def observe(self, member: Member, took_us: int) -> None:
        """It stored an entry after so long, or had not stored it by then."""
        times = self._times.pop(member, None)
        if times is None:
            times = Percentile99(_START_US, _LEAST_US, LATE_US_MAX)
        self._times[member] = times
        times.observe(took_us)
        while len(self._times) > MEMBERS_MAX:
            del self._times[next(iter(self._times))]

    def late_after_us(self, peers: Sequence[Member]) -> int:
        """After how long a store at one of these is late; each lies in the same region."""
        known = sorted(self._times[m].value_us for m in peers if m in self._times)
        middle_us = known[(len(known) - 1) // 2] if known else _START_US
        return min(max(_FACTOR * middle_us, LATE_US_MIN), LATE_US_MAX)
