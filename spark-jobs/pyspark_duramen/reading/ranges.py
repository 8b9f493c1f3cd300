"""Which records a task reads: ranges of logs, cut and put together by bytes.

A batch read knows the segments and balances their bytes. A micro-batch is cut by record numbers
alone: a replay of it after a restart must get the same rows in the same partitions, although
segments were closed, archived or released in between.

Pure. Called by `reading.reader` and `streaming.reader`. Source: docs/spark.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql.datasource import InputPartition

from pyspark_duramen.reading.gaps import RecordGap


class ColdPlace(NamedTuple):
    """Where a segment lies in the archive.

    Attributes:
        attempt, manifest_sha256: which copy, as the segment's node vouches for it.
    """

    log_id: int
    epoch: int
    attempt: str
    manifest_sha256: str


@dataclass(frozen=True, slots=True)
class LogRange:
    """Records `first` up to, not including, `end` of a log, which are about `size_bytes`.

    Attributes:
        log: namespace and name.
        cold: where to read them from the archive; None: by a proxy.
    """

    log: tuple[str, str]
    first: int
    end: int
    size_bytes: float
    cold: ColdPlace | None = None


class RangePartition(InputPartition):
    """What one task reads, in this order; `gaps` are known before, with the log of each."""

    def __init__(
        self,
        ranges: Sequence[LogRange],
        gaps: Sequence[tuple[tuple[str, str], RecordGap]] = (),
    ) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)
        self.gaps = tuple(gaps)


def balance(ranges: Iterable[LogRange], partition_bytes: int) -> list[RangePartition]:
    """Partitions of about so many bytes, of the ranges in their order.

    Args:
        ranges: of any size; large ones are cut by records, small ones share a partition.
    """
    partitions: list[RangePartition] = []
    held: list[LogRange] = []
    held_bytes = 0.0
    for part in _cut(ranges, partition_bytes):
        if held and held_bytes + part.size_bytes > partition_bytes:
            partitions.append(RangePartition(_merge(held)))
            held, held_bytes = [], 0.0
        held.append(part)
        held_bytes += part.size_bytes
    if held:
        partitions.append(RangePartition(_merge(held)))
    return partitions


def cut_by_records(log: tuple[str, str], first: int, end: int, count: int) -> list[RangePartition]:
    """Partitions of so many records each, the last of what is left."""
    return [
        RangePartition([LogRange(log, at, min(at + count, end), 0)])
        for at in range(first, end, count)
    ]


def _cut(ranges: Iterable[LogRange], partition_bytes: int) -> Iterator[LogRange]:
    for whole in ranges:
        count = whole.end - whole.first
        if count <= 0:
            continue
        parts = min(count, max(1, -(-int(whole.size_bytes) // partition_bytes)))
        edges = [whole.first + count * part // parts for part in range(parts + 1)]
        for first, end in itertools.pairwise(edges):
            size_bytes = whole.size_bytes * (end - first) / count
            yield LogRange(whole.log, first, end, size_bytes, whole.cold)


def _merge(ranges: Sequence[LogRange]) -> list[LogRange]:
    """Ranges that go on where the one before ends, read from the same place, as one."""
    merged: list[LogRange] = []
    for part in ranges:
        last = merged[-1] if merged else None
        is_next = last is not None and (last.log, last.end, last.cold) == (
            part.log, part.first, part.cold,
        )  # fmt: skip
        if last is not None and is_next:
            size_bytes = last.size_bytes + part.size_bytes
            merged[-1] = LogRange(part.log, last.first, part.end, size_bytes, part.cold)
        else:
            merged.append(part)
    return merged
