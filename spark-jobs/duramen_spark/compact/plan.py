"""Which segments of a log are to share a file: consecutive ones with small files, up to a size.

A segment without files (it closed empty) is passed over, a large one ends a group. What one shared
file holds already, and nothing else would join, is left alone: running twice changes nothing. Pure.

Called by `compact.driver`. Source: ADR 0016.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from duramen.ids import Epoch


class CompactionCandidate(NamedTuple):
    """An archived segment.

    Attributes:
        size_bytes: what of its files is its own.
        paths: its files, relative to the store's root; shared ones are other segments' too.
        is_rechecked: only such a copy may be replaced.
    """

    epoch: Epoch
    size_bytes: int
    paths: tuple[str, ...]
    is_rechecked: bool


def plan_compaction(
    candidates: Sequence[CompactionCandidate],
    *,
    small_bytes: int,
    target_bytes: int,
    count_max: int,
) -> list[list[Epoch]]:
    """Groups of epochs, ascending, each to become one file.

    Args:
        candidates: of one log, by epoch.
        small_bytes: a segment is small when the mean of its own bytes per file is less.
        target_bytes: of a group; a segment that is small and larger than that stands alone.
        count_max: segments of a group, whose nodes change in one `multi()`.
    """
    assert count_max > 0 and target_bytes > 0
    groups: list[list[CompactionCandidate]] = [[]]
    size_bytes = 0
    for candidate in candidates:
        if not candidate.paths:
            continue
        is_small = candidate.size_bytes < small_bytes * len(candidate.paths)
        if not candidate.is_rechecked or not is_small:
            groups.append([])
            size_bytes = 0
            continue
        is_full = len(groups[-1]) == count_max
        if groups[-1] and (is_full or size_bytes + candidate.size_bytes > target_bytes):
            groups.append([])
            size_bytes = 0
        groups[-1].append(candidate)
        size_bytes += candidate.size_bytes
    return [[one.epoch for one in group] for group in groups if _is_worth_it(group)]


def _is_worth_it(group: Sequence[CompactionCandidate]) -> bool:
    """Whether there are fewer files afterwards."""
    return len({path for candidate in group for path in candidate.paths}) > 1
