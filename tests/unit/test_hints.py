"""Logs that were taken over by a hint: how long that is remembered, and of how many.

Source: `duramen.core.ownership.hints`.
"""

from __future__ import annotations

from duramen.core.ownership import hints
from duramen.core.ownership.hints import KEPT_US, HintedLogs
from duramen.ids import LogId
from duramen.units import SECOND


def test_a_mark_lasts_longer_than_what_is_promised_on_it() -> None:
    marks = HintedLogs()
    marks.note(LogId(1), 5)
    assert marks.has(LogId(1), 5 + KEPT_US - 1) and not marks.has(LogId(1), 5 + KEPT_US)
    assert KEPT_US > 10 * SECOND
    marks.forget(LogId(1))
    assert not marks.has(LogId(1), 5)


def test_the_oldest_marks_are_forgotten_first() -> None:
    marks = HintedLogs()
    for number in range(1, hints.LOG_COUNT_MAX + 3):
        marks.note(LogId(number), 0)
    assert len(marks) == hints.LOG_COUNT_MAX
    assert not marks.has(LogId(2), 0) and marks.has(LogId(3), 0)
