"""What happened to each log in this process, and why: a short memory for people.

An event is a time, a word, an epoch and a reason; a log keeps its newest EVENT_COUNT_MAX, the
process the logs that something happened to last. It is no record of truth: metadata is, and a
process that dies forgets. Kept small, because idle logs are many: words are shared, lists are
short.

Written by `log_driver` and `log_host`, read by the admin route and control.
Source: docs/protocol/ownership.md "Story".
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from duramen.core.flexible.segment import AnySegment, FlexibleSegment
from duramen.ids import LogId
from duramen.units import agree

EVENT_COUNT_MAX: Final = 40
"""Events of one log: several takeovers and rolls."""

LOG_COUNT_MAX: Final = 2_000
"""Logs with a story: some 6 MB when each has all its events, a tenth of it when they are idle."""

REASON_COUNT_MAX: Final = 5
"""Reasons of one event that are spelled out; a nodeset may be another in 64 places."""

NODE_COUNT_MAX: Final = 10
"""Bookies of a nodeset that are named."""


class StoryEvent(NamedTuple):
    """One thing that happened; `epoch` 0: it is about no epoch."""

    unix_ms: int
    event: str
    epoch: int
    reason: str


def format_reasons(reasons: Sequence[str]) -> str:
    """The first ones, and how many more there are."""
    shown = "; ".join(reasons[:REASON_COUNT_MAX])
    more = len(reasons) - REASON_COUNT_MAX
    return f"{shown}; and {more} more" if more > 0 else shown


def explain_nodeset(segment: AnySegment) -> str:
    """Where the copies of a flexible segment's entries may lie; nothing of a striped one."""
    if not isinstance(segment, FlexibleSegment):
        return ""
    wanted = segment.replication
    spans = f"{wanted.node} bookies in {wanted.rack} racks and {wanted.region} regions"
    names = ", ".join(member.bookie for member in segment.members[:NODE_COUNT_MAX])
    more = len(segment.members) - NODE_COUNT_MAX
    return f"{agree(spans)} of {names}" + (f" and {more} more" if more > 0 else "")


class Stories:
    """The stories of all logs that were here lately."""

    def __init__(self) -> None:
        self._events: dict[LogId, list[StoryEvent]] = {}

    def note(self, log_id: LogId, event: str, epoch: int = 0, reason: str = "") -> None:
        """Something happened to a log now."""
        events = self._events.pop(log_id, None)
        if events is None:
            events = []
            if len(self._events) >= LOG_COUNT_MAX:
                del self._events[next(iter(self._events))]
        elif len(events) >= EVENT_COUNT_MAX:
            del events[0]
        events.append(StoryEvent(time.time_ns() // 1_000_000, event, epoch, reason))
        self._events[log_id] = events

    def report(self, log_id: LogId) -> list[dict[str, Any]]:
        """The log's events as JSON values, oldest first; empty if nothing is remembered."""
        return [
            {
                "unix_ms": event.unix_ms,
                "event": event.event,
                **({"epoch": event.epoch} if event.epoch else {}),
                **({"reason": event.reason} if event.reason else {}),
            }
            for event in self._events.get(log_id, ())
        ]

    def __len__(self) -> int:
        return len(self._events)
