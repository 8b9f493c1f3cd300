"""Sees some violations while the load runs, so that a run need not go on to its end.

    O2  an append lies below what was acknowledged, read or told before it began
    refused  who shows a token that counts was told that it does not, or may not
    L1  a tail, or a read to the tail, ends below what was acknowledged, read or told before

Of a log that acknowledges out of order tails speak of what is shown, a little later: L1 compares
those alone. These two take one comparison for each operation, and most losses show in them: what
was lost makes the log shorter. They are rules of the `judge` too, whose verdict on the whole
history is the one that counts; what is seen here only comes earlier.

Pure. Called by `load`, in whose order of time the lines come. Source: docs/testing.md "Invariants".
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Final

from tests.chaos.history import Line
from tests.chaos.judge import Violation

_REFUSED: Final = ("unauthenticated", "forbidden")

SEEN_MAX: Final = 20
"""More of one load say nothing new."""


class Watch:
    """Takes the lines of all logs as they are completed.

    Args:
        is_ordered: what is acknowledged is shown.

    Attributes:
        violations: what was seen, the first `SEEN_MAX`.
    """

    def __init__(self, *, is_ordered: bool = True) -> None:
        self.violations: list[Violation] = []
        self._is_ordered = is_ordered
        self._floors: dict[str, _Floor] = {}
        self._shown: dict[str, _Floor] = {}

    def take(self, line: Line) -> None:
        """One completed operation; its time of completion is not before that of the last one."""
        if line.get("code") in _REFUSED and len(self.violations) < SEEN_MAX:
            # Whatever turns: nobody whose token counts is ever told that it does not.
            text = f"{line['op']} of {line['proc']} was refused: {line['code']}"
            self.violations.append(Violation("refused", line["log"], text))
        if line["outcome"] != "ok" or line["op"] not in ("append", "read", "tail"):
            return
        floor = self._floors.setdefault(line["log"], _Floor())
        shown = floor if self._is_ordered else self._shown.setdefault(line["log"], _Floor())
        match line["op"]:
            case "append":
                self._compare(line, "O2", line["start"], floor.at(line["t0_ns"]))
            case "read" if not line["tail"]:
                pass
            case _:
                self._compare(line, "L1", line["end"], shown.at(line["t0_ns"]))
        if line["op"] != "read" or line["batches"]:
            floor.rise(line["t1_ns"], line["end"])
        if line["op"] == "tail" or line.get("batches"):
            shown.rise(line["t1_ns"], line["end"])

    def format(self) -> list[list[str]]:
        """What was seen, for a line of progress."""
        return [list(violation) for violation in self.violations]

    def _compare(self, line: Line, code: str, place: int, settled: int) -> None:
        if place < settled and len(self.violations) < SEEN_MAX:
            text = f"{line['op']} of {line['proc']} is at {place}, {settled} was settled before"
            self.violations.append(Violation(code, line["log"], text))


class _Floor:
    """Where a log was known to end at least, over time."""

    def __init__(self) -> None:
        self._times_ns = array("q")
        self._ends = array("q")

    def at(self, time_ns: int) -> int:
        """What was settled before a moment."""
        index = bisect_left(self._times_ns, time_ns)
        return self._ends[index - 1] if index else 0

    def rise(self, time_ns: int, end: int) -> None:
        """From now on everything below `end` is settled."""
        if not self._ends or end > self._ends[-1]:
            self._times_ns.append(time_ns)
            self._ends.append(end)
