"""Reads of a striped segment behind the port: one replica after the other, the next one when late.

The first replica that gives the first entry wins; who is late goes on meanwhile. A replica that
does not give it is passed over, and when none is left the read fails: nobody's absence is
believed, since an entry lies at its whole write set.

Not here: what a reader of a log remembers between its reads (`core.reading.reader`).
Driven by `runtime.reading.range_reads`. Source: docs/protocol/reading.md "Which replica".
"""

from __future__ import annotations

from collections import deque

from duramen.core.reading.range_read import (
    AskNode,
    Finish,
    ForgetCall,
    NodeAnswer,
    RangeEffect,
    WakeAt,
    WantedEntries,
)
from duramen.core.reading.replica_order import ReplicaOrder
from duramen.core.reading.runs import last_of_run
from duramen.core.segment import Segment
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, Member
from duramen.limits import READ_TIMEOUT_US


class StripedRead:
    """Reads of one striped segment."""

    def __init__(self, segment: Segment, order: ReplicaOrder) -> None:
        self._segment = segment
        self._order = order
        self._effects: list[RangeEffect] = []
        self._wanted: WantedEntries | None = None
        self._left: deque[Member] = deque()
        self._asked: dict[int, tuple[Member, int]] = {}
        self._last_call_id = 0
        self._wake_us = 0
        self._is_overloaded = False

    def take_effects(self) -> list[RangeEffect]:
        """The effects since the last call, in order."""
        effects, self._effects = self._effects, []
        return effects

    def want(self, wanted: WantedEntries, now_us: int) -> None:
        """Ask the replica that comes first."""
        assert self._wanted is None, self._wanted
        self._wanted = wanted
        self._is_overloaded = False
        self._left = deque(self._order.rank(self._segment.write_set_of(wanted.first), now_us))
        self._ask(wanted, now_us)

    def on_answer(self, call_id: int, answer: NodeAnswer, now_us: int) -> None:
        """The first entry ends the read; otherwise the next replica is asked."""
        known, wanted = self._asked.pop(call_id, None), self._wanted
        if known is None or wanted is None:
            return
        if answer.entries and answer.entries[0][0] == wanted.first:
            for member, asked_us in self._asked.values():
                self._order.on_late(member, now_us - asked_us, now_us)
            self._order.on_success(known[0])
            self._finish(
                Finish(BookieStatus.OK, tuple(answer.entries), answer.lac, sender=known[0])
            )
            return
        self._is_overloaded |= answer.status is BookieStatus.OVERLOADED
        if self._left:
            self._ask(wanted, now_us)
        elif not self._asked:
            status = BookieStatus.OVERLOADED if self._is_overloaded else BookieStatus.UNKNOWN
            self._finish(Finish(status, lac=NOTHING))

    def on_timer(self, now_us: int) -> None:
        """All who were asked are late: the next one is asked as well."""
        if self._wanted is None or not self._left:
            return
        if now_us < self._wake_us:
            self._effects.append(WakeAt(self._wake_us))
            return
        self._order.speculation.on_request()
        self._ask(self._wanted, now_us)

    def _ask(self, wanted: WantedEntries, now_us: int) -> None:
        member = self._left.popleft()
        self._last_call_id += 1
        self._asked[self._last_call_id] = member, now_us
        last = min(wanted.last, last_of_run(self._segment, wanted.first, member))
        self._effects.append(
            AskNode(
                self._last_call_id, member, wanted.first, last, wanted.bytes_max, READ_TIMEOUT_US,
                wanted.headers_only,
            )
        )  # fmt: skip
        if self._left:
            self._wake_us = now_us + self._order.speculation.delay_us(len(self._asked))
            self._effects.append(WakeAt(self._wake_us))

    def _finish(self, finish: Finish) -> None:
        self._effects += [ForgetCall(call_id) for call_id in self._asked]
        self._asked.clear()
        self._wanted = None
        self._effects.append(finish)
