"""One table of ratios: each of our workloads beside the best that each peer did of its family.

Medians over the rows of a run. A peer's way is the one with the greatest rate in its family and
record size; its CPU is that way's. A ratio is ours to theirs: above 1 is more, which is better for
a rate alone.

Called by `python -m tests.bench.peers`. Source: docs/benchmarks.md "Beside real peers".
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from tests.bench.peers.rows import OWN, Row
from tests.bench.report import align, format_number


class Measure(NamedTuple):
    """A figure of a row; `families` has it in those, empty: in all."""

    name: str
    read: Callable[[Row], float | None]
    families: tuple[str, ...] = ()


_PACED: Final = ("W1b", "W5")
_FAST: Final = ("W1", "W3-100", "W7")
MEASURES: Final = (
    Measure("records/s", lambda row: row.records_per_s, _FAST),
    Measure("MB/s", lambda row: row.mb_per_s, _FAST),
    Measure("p50 ms", lambda row: row.p50_ms, _PACED),
    Measure("p99 ms", lambda row: row.p99_ms, _PACED),
    Measure("servers' CPU µs a record", lambda row: row.server_cpu_us),
    Measure("client's CPU µs a record", lambda row: row.client_cpu_us),
)


class Way(NamedTuple):
    """All rows of one workload of one product."""

    rows: list[Row]

    @property
    def name(self) -> str:
        return self.rows[0].workload

    def find(self, measure: Measure) -> float | None:
        """The median; None: it is not measured here."""
        found = [value for value in map(measure.read, self.rows) if value is not None]
        return statistics.median(found) if found else None


class Comparison(NamedTuple):
    """One figure of ours and of the peers that have it: peer → way, value."""

    workload: str
    size_bytes: int
    name: str
    own: float
    peers: dict[str, tuple[str, float]]

    def to_json(self) -> dict[str, Any]:
        """For a program."""
        peers = {
            peer: {"workload": way, "value": value, "ratio": self.own / value if value else None}
            for peer, (way, value) in self.peers.items()
        }
        return {**self._asdict(), "peers": peers}


def compare(rows: Sequence[Row]) -> list[Comparison]:
    """Every figure of ours, in the order of our rows."""
    grouped: dict[tuple[str, str, int], list[Row]] = defaultdict(list)
    for row in rows:
        grouped[row.peer, row.workload, row.size_bytes].append(row)
    ways = {key: Way(found) for key, found in grouped.items()}
    peers = sorted({row.peer for row in rows} - {OWN})
    found = []
    for (peer, workload, size_bytes), own in ways.items():
        if peer != OWN:
            continue
        family = own.rows[0].family
        best = {name: _find_best(ways, name, family, size_bytes) for name in peers}
        for measure in MEASURES:
            value = own.find(measure)
            if value is None or (measure.families and family not in measure.families):
                continue
            theirs = {
                name: (way.name, at)
                for name, way in best.items()
                if way is not None and (at := way.find(measure)) is not None
            }
            found.append(Comparison(workload, size_bytes, measure.name, value, theirs))
    return found


def _find_best(
    ways: dict[tuple[str, str, int], Way], peer: str, family: str, size_bytes: int
) -> Way | None:
    its = [
        way for (name, _, size), way in ways.items()
        if name == peer and size == size_bytes and way.rows[0].family == family
    ]  # fmt: skip
    rate = MEASURES[0]
    return max(its, key=lambda way: way.find(rate) or 0.0, default=None)


def format_comparisons(found: Sequence[Comparison]) -> str:
    """The table."""
    peers = sorted({peer for one in found for peer in one.peers})
    lines = [["workload", "bytes", "figure", OWN]]
    for peer in peers:
        lines[0] += [peer, "ratio"]
    before = ""
    for one in found:
        label = f"{one.workload} {one.size_bytes}"
        if label != before:
            lines.append([""] * len(lines[0]))
        first = [one.workload, f"{one.size_bytes:,}"] if label != before else ["", ""]
        line = [*first, one.name, format_number(one.own)]
        for peer in peers:
            way, value = one.peers.get(peer, ("", 0.0))
            shown = f"{format_number(value)} ({way})" if label != before else format_number(value)
            line += [shown, f"{one.own / value:.2f} ×"] if value else ["–", ""]
        lines.append(line)
        before = label
    columns = len(lines[0])
    return align(lines, to_the_right={1, 3, *range(5, columns, 2)})
