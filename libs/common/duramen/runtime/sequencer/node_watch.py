"""What entries of this process meet at bookies, told to the lists that all its logs share.

Lanes report each frame of entries: answered or silent. The lists (`core.placement.node_states`)
decide; here are their clock and their timer, and who is told when they have others.
Writes of LACs are not told: a bookie whose disk hangs answers those that change nothing.

Called by `bookie_lanes`; followed by whoever drives the logs. Source: R27, docs/protocol/write.md
"Silent and full bookies".
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import prometheus_client

from duramen.core.placement.node_states import ListChange, ListReason, NodeStates
from duramen.core.status import BookieStatus
from duramen.ids import Member
from duramen.limits import STORE_TIMEOUT_US
from duramen.units import MS, SECOND

LISTED: Final = prometheus_client.Gauge(
    "duramen_sequencer_listed_bookies",
    "Bookies that new data avoids, because they are silent or refuse it",
    ["reason"],
)
for _reason in ListReason:
    LISTED.labels(_reason.value)

_ASLEEP_US: Final = STORE_TIMEOUT_US + 500 * MS
"""A silence that is told later than that was ours: the process was stopped."""

_TIMER_SLACK_S: Final = 0.001
"""Timers may come a little early."""


class NodeWatch:
    """The lists of one process, kept by what its lanes meet.

    Args:
        nodes: asked by the cores through their context.
    """

    def __init__(self, nodes: NodeStates) -> None:
        self.on_lists_changed: Callable[[ListChange], None] = _nothing
        """Told of each change that writers may have to act upon."""
        self._nodes = nodes
        self._change_count = 0
        self._shunned: frozenset[Member] = frozenset()
        self._listings: frozenset[tuple[Member, ListReason]] = frozenset()
        self._counts: Counter[ListReason] = Counter()
        self._next_us: int | None = None
        self._timer: asyncio.TimerHandle | None = None

    def on_answered(self, member: Member, statuses: Sequence[BookieStatus], sent_us: int) -> None:
        """A frame of entries that was sent then was answered, with so many statuses as rows."""
        self._nodes.on_answered(member, statuses, sent_us, _read_clock_us())
        self._follow()

    def on_failed(self, member: Member, status: BookieStatus, sent_us: int) -> None:
        """A frame of entries that was sent then has no answer, or a refusal, as its status."""
        now_us = _read_clock_us()
        if status is BookieStatus.OVERLOADED:
            self._nodes.on_answered(member, [status], sent_us, now_us)
        elif now_us - sent_us <= _ASLEEP_US:
            self._nodes.on_silent(member, sent_us, now_us)
        self._follow()

    def on_late(self, member: Member, since_us: int) -> None:
        """Too much waits for it, the oldest of that since then."""
        self._nodes.on_late(member, since_us, _read_clock_us())
        self._follow()

    def statistics(self) -> dict[str, Any]:
        """Who is listed, why, for how long."""
        return self._nodes.statistics(_read_clock_us())

    def stop(self) -> None:
        """Look at no time any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._show(Counter())

    def _follow(self) -> None:
        """Do what a change of the lists asks for."""
        next_us = self._nodes.next_expiry_us
        if next_us != self._next_us:
            self._set_timer(next_us)
        if self._nodes.change_count == self._change_count:
            return
        self._change_count = self._nodes.change_count
        self._show(self._nodes.count_reasons())
        came, self._shunned = self._nodes.shunned - self._shunned, self._nodes.shunned
        before, self._listings = self._listings, self._nodes.listings
        members = frozenset(member for member, _ in before ^ self._listings)
        if members:
            self.on_lists_changed(ListChange(came, members))

    def _set_timer(self, next_us: int | None) -> None:
        self._next_us = next_us
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if next_us is not None:
            left_s = max(next_us - _read_clock_us(), 0) / SECOND + _TIMER_SLACK_S
            self._timer = asyncio.get_running_loop().call_later(left_s, self._expire)

    def _expire(self) -> None:
        self._timer = self._next_us = None
        self._nodes.expire(_read_clock_us())
        self._follow()

    def _show(self, counts: Counter[ListReason]) -> None:
        """The gauge is that of the process, in which there may be several."""
        for reason in ListReason:
            LISTED.labels(reason.value).inc(counts[reason] - self._counts[reason])
        self._counts = counts


def _nothing(_change: ListChange) -> None:
    """Nobody follows."""


def _read_clock_us() -> int:
    return time.monotonic_ns() // 1_000
