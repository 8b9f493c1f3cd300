"""Which logs are more than their owner can carry, and which are not, near the bounds.

Source: core.ownership.hot_logs, docs/protocol/ownership.md "Hot logs".
"""

from __future__ import annotations

from duramen.core.ownership.balance import LogLoad
from duramen.core.ownership.hot_logs import (
    BUSY_RATIO,
    HOT_COUNT_MAX,
    REFUSED_MIN_PER_S,
    HotReason,
    LogStrain,
    find_hot_logs,
)


def strain(log_id: str, cost: float, refused_per_s: float = 0.0) -> LogStrain:
    return LogStrain(LogLoad(log_id, "s1", cost, 0.0), refused_per_s)


def test_a_log_whose_window_refuses_appends_is_hot_however_idle_its_owner_is() -> None:
    below = REFUSED_MIN_PER_S * 0.99
    rows = [strain("1", 10, REFUSED_MIN_PER_S), strain("2", 1_000, below), strain("3", 0, 9.0)]
    assert find_hot_logs(rows, 0.1) == {"1": HotReason.WINDOW, "3": HotReason.WINDOW}


def test_a_busy_owner_is_hot_by_the_log_that_makes_half_of_its_work() -> None:
    rows = [strain("1", 500), strain("2", 300), strain("3", 200)]
    assert find_hot_logs(rows, BUSY_RATIO) == {"1": HotReason.CPU}
    assert find_hot_logs(rows, BUSY_RATIO - 0.01) == {}
    assert find_hot_logs([strain("1", 490), strain("2", 300), strain("3", 210)], 1.0) == {}
    assert find_hot_logs([strain("1", 0)], 1.0) == {} == find_hot_logs([], 1.0)


def test_the_hottest_are_named_and_not_too_many() -> None:
    rows = [strain(str(number), number, 5.0) for number in range(100)]
    assert list(find_hot_logs(rows, 0.0)) == [str(99 - place) for place in range(HOT_COUNT_MAX)]
