"""When to ask the next replica as well: after the time within which 99 of 100 answers come.

Each further request of one read waits twice as long, so the chance of an n-th request falls
exponentially. No samples are kept and no clock is read (`core.percentile`).

Pure. One instance serves all readers of a process, in `replica_order`.
Source: docs/protocol/reading.md "Which replica".
"""

from __future__ import annotations

from typing import Final

from duramen.core.percentile import Percentile99
from duramen.units import MS

_START_US: Final = 50 * MS
_SHORTEST_US: Final = 2 * MS
"""Below it a second request costs more than it saves: it is a turn of a busy event loop."""

_LONGEST_US: Final = 1_000 * MS


class Speculation:
    """The observed 99th percentile of reads, and the delays that follow from it."""

    def __init__(self) -> None:
        self._p99 = Percentile99(_START_US, _SHORTEST_US, _LONGEST_US)
        self.answer_count = 0
        self.request_count = 0

    def on_answer(self, took_us: int) -> None:
        """A read that was worth waiting for was answered after `took_us`."""
        self.answer_count += 1
        self._p99.observe(took_us)

    def on_request(self) -> None:
        """A replica is asked besides one that is late."""
        self.request_count += 1

    def delay_us(self, asked_count: int) -> int:
        """How long to wait for the last of `asked_count` ≥ 1 replicas before the next is asked."""
        assert asked_count >= 1, asked_count
        return self._p99.value_us << (asked_count - 1)

    def __repr__(self) -> str:
        return f"<speculation p99={self._p99.value_us}us answers={self.answer_count}>"
