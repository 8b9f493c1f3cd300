"""Positions on a log in memory: what the read proxy finds, without a cluster.

`segment` writes one segment after the other: a word is an entry, the txids of its records, or
`control`; a record's time is its sequence number in seconds. The last one is OPEN. `trim` leaves
the last records, and perhaps deletes the first segments' nodes; `find` looks positions up.

Called by the interpreter. The log is `tests.unit.memory_log`; docs/scenarios.md lists the commands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from duramen.errors import DuramenError
from duramen.runtime.reading.positioning.positions import Positions
from duramen.texts import parse_position
from tests.scenario.stage import Line
from tests.unit.memory_log import BatchPlan, EntryPlan, MemoryLog, SegmentPlan


class Finding:
    """One log, and what positions in it are."""

    def __init__(self) -> None:
        self._plans: list[SegmentPlan] = []
        self._log = MemoryLog([], is_closed=True)
        self._positions = Positions(lambda: 0)

    def add_segment(self, words: Sequence[str]) -> list[Line]:
        """One more segment, which closes the one before."""
        count = len(self._log.records)
        entries = []
        for word in words:
            txids = [] if word == "control" else [int(txid) for txid in word.split(",")]
            times = [1_000 * (count + index) for index in range(len(txids))]
            batches = [BatchPlan(times, txids)] if txids else []
            entries.append(EntryPlan(batches, is_control=not txids))
            count += len(txids)
        self._plans.append(SegmentPlan(entries))
        self._log = MemoryLog(self._plans, is_closed=False)
        last = self._log.segments[max(self._log.segments)]
        return [Line(f"e{last.epoch}", f"begins at seq {self._log.log.totals.record_count}")]

    def trim(self, live_count: int, first_live: int) -> list[Line]:
        """Leave the last `live_count` records, and the nodes from `first_live` on."""
        self._log.truncate(live_count, first_live)
        return [Line("log", f"begins at {self._log.trim}, seq {self._log.log.trim_seq_num}")]

    def find(self, words: Sequence[str]) -> list[Line]:
        """Where reads from positions begin."""
        return [Line(word, self._find(word)) for word in words]

    def _find(self, word: str) -> str:
        try:
            start = asyncio.run(self._positions.find(self._log, parse_position(word), clamp=False))
        except DuramenError as error:
            return error.code
        moved = ", moved" * start.is_moved
        seq_nums = self._log.read(start)
        if not seq_nums:
            return f"the tail, seq {start.seq_num}{moved}"
        (made,) = (made for made in self._log.records if made.seq_num == seq_nums[0])
        return f"{made.dlsn}, seq {made.seq_num}, txid {made.txid}{moved}"
