"""Which logs ask more of their owner than it can carry, by what the owner has counted lately.

A log has one owner, so no balancing helps it. Two signs, both of the last 5 to 10 s: the owner
refused appends because the log's window was full while it took appends, at REFUSED_MIN_PER_S or
more; or its event loop had BUSY_RATIO of a processor's time for work, and the log made half of
that work or more. The first may have slow bookies for its cause, which other figures tell.

Called by the sequencer's `ownership.hot_logs`. Source: docs/protocol/ownership.md "Hot logs".
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final, NamedTuple

from duramen.core.ownership.balance import LogLoad

REFUSED_MIN_PER_S: Final = 1.0
"""One refusal in a burst is no sign: a producer repeats it."""

BUSY_RATIO: Final = 0.9
"""Of one processor: a loop that is busier answers late, and later with each append more."""

MAIN_SHARE: Final = 0.5
"""A log with less of the work is helped when others leave."""

HOT_COUNT_MAX: Final = 8
"""Logs that are named at one time; the hottest come first."""


class HotReason(enum.Enum):
    """Why a log is more than its owner can carry."""

    WINDOW = "window"
    CPU = "cpu"


class LogStrain(NamedTuple):
    """A log's load, and how many of its appends were refused for a full window."""

    load: LogLoad
    refused_per_s: float


def find_hot_logs(strains: Iterable[LogStrain], busy_ratio: float) -> dict[str, HotReason]:
    """Log id → reason of at most HOT_COUNT_MAX logs, the greatest load first.

    Args:
        strains: of every log of one owner that takes appends.
        busy_ratio: which part of a processor's time the owner's event loop worked.
    """
    rows = sorted(strains, key=lambda row: (-row.load.cost, row.load.log_id))
    total = sum(row.load.cost for row in rows)
    hot: dict[str, HotReason] = {}
    for load, refused_per_s in rows:
        if refused_per_s >= REFUSED_MIN_PER_S:
            hot[load.log_id] = HotReason.WINDOW
        elif busy_ratio >= BUSY_RATIO and total > 0 and load.cost >= MAIN_SHARE * total:
            hot[load.log_id] = HotReason.CPU
        if len(hot) == HOT_COUNT_MAX:
            break
    return hot
