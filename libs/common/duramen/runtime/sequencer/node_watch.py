"""What stores of this process meet at bookies, told to the lists that all its logs share.

Lanes report each frame: answered, silent or refused. The lists (`core.placement.node_states`)
decide; here are their clock and their timer, and who is told when writers have to leave a member.

Called by `bookie_lanes`; followed by whoever drives the logs. Source: R27, docs/protocol/write.md
"Silent and full bookies".
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, Final

import prometheus_client

from duramen.core.placement.node_states import ListReason, NodeStates
from duramen.core.status import BookieStatus
from duramen.ids import Member
from duramen.units import SECOND

LISTED: Final = prometheus_client.Gauge(
    "duramen_sequencer_listed_bookies",
    "Bookies that new data avoids, because they are silent or refuse it",
    ["reason"],
)


class NodeWatch:
    """The lists of one process, kept by what its lanes meet.

    Args:
        nodes: asked by the cores through their context.
    """

    def __init__(self, nodes: NodeStates) -> None:
        self.on_shunned: Callable[[], None] = _nothing
        """Told when there are more members that writers leave."""
        self._nodes = nodes
        self._timer: asyncio.TimerHandle | None = None

    def on_answered(
        self, member: Member, sent_us: int, statuses: Collection[BookieStatus], *, is_entry: bool
    ) -> None:
        """A frame that was sent then was answered.

        Args:
            is_entry: new entries, which a bookie without space refuses; not LACs or recovery.
        """
        refusals = [status for status in set(statuses) if NodeStates.is_refusal(status)]
        if not refusals:
            self._follow(self._nodes.on_answered(member, sent_us, is_entry=is_entry))
        for status in refusals:
            self._follow(self._nodes.on_refused(member, status, _read_clock_us()))

    def on_failed(self, member: Member, sent_us: int, status: BookieStatus) -> None:
        """A frame that was sent then had no answer, or one of an overloaded bookie to the end."""
        if NodeStates.is_refusal(status):
            self._follow(self._nodes.on_refused(member, status, _read_clock_us()))
        else:
            self._follow(self._nodes.on_silent(member, sent_us, _read_clock_us()))

    def statistics(self) -> dict[str, Any]:
        """Who is listed, why, for how long."""
        return self._nodes.statistics(_read_clock_us())

    def stop(self) -> None:
        """Look at no time any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _follow(self, shunned_before: frozenset[Member] | None) -> None:
        """The lists changed, unless None; `shunned_before`: whom writers left until now."""
        if shunned_before is None:
            return
        self.stop()
        next_us = self._nodes.next_expiry_us
        if next_us is not None:
            left_us = max(next_us - _read_clock_us(), 0)
            self._timer = asyncio.get_running_loop().call_later(left_us / SECOND, self._expire)
        counts = Counter(self._nodes.list_reasons())
        for reason in ListReason:
            LISTED.labels(reason.value).set(counts[reason])
        if self._nodes.shunned - shunned_before:
            self.on_shunned()

    def _expire(self) -> None:
        self._follow(self._nodes.expire(_read_clock_us()))


def _nothing() -> None:
    """Nobody follows."""


def _read_clock_us() -> int:
    return time.monotonic_ns() // 1_000
