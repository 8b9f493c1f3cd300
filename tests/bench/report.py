"""Figures, targets, and how a run is shown: a plain table for people, JSON for comparisons.

A figure may carry a target (reached or missed, with the ratio) and the share of the machine's own
limit that it is. Percentiles are by nearest rank over all samples.

Called by `workloads` (makes figures) and `python -m tests.bench` (shows them).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from duramen.cli.figures import find_percentile


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure should be: at least `bound`, or at most."""

    bound: float
    is_floor: bool

    def is_reached_by(self, value: float) -> bool:
        """Whether a value is good enough."""
        return value >= self.bound if self.is_floor else value <= self.bound

    def format(self, value: float) -> str:
        """Such as `≥ 40: reached, 1.25 ×`."""
        verdict = "reached" if self.is_reached_by(value) else "missed"
        sign = "≥" if self.is_floor else "≤"
        ratio = f", {value / self.bound:.2f} ×" if self.bound else ""
        return f"{sign} {format_number(self.bound)}: {verdict}{ratio}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value; `of_limit` is its share of the machine's own limit."""

    workload: str
    name: str
    value: float
    unit: str
    of_limit: float | None = None
    target: Target | None = None

    def to_json(self) -> dict[str, Any]:
        """The figure with what its target says."""
        document: dict[str, Any] = {
            "workload": self.workload,
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
        }
        if self.of_limit is not None:
            document["of_limit"] = self.of_limit
        if self.target is not None:
            document["target"] = {
                "bound": self.target.bound,
                "kind": "at_least" if self.target.is_floor else "at_most",
                "is_reached": self.target.is_reached_by(self.value),
                "ratio": self.value / self.target.bound if self.target.bound else None,
            }
        return document


def at_least(bound: float) -> Target:
    """More is better."""
    return Target(bound, is_floor=True)


def at_most(bound: float) -> Target:
    """Less is better."""
    return Target(bound, is_floor=False)


def find_ms(latencies_s: Sequence[float], percent: float) -> float:
    """A percentile of latencies, in milliseconds."""
    found = find_percentile(latencies_s, percent)
    assert found is not None, "no samples"
    return found * 1e3


def format_table(figures: Sequence[Figure]) -> str:
    """The figures as lines of columns, a blank line between workloads."""
    rows = [("workload", "figure", "value", "", "of limit", "target")]
    previous = ""
    for figure in figures:
        if figure.workload != previous:
            rows.append(("",) * 6)
        limit = "" if figure.of_limit is None else f"{figure.of_limit:.1%}"
        target = "" if figure.target is None else figure.target.format(figure.value)
        name = figure.workload if figure.workload != previous else ""
        value = format_number(figure.value)
        rows.append((name, figure.name, value, figure.unit, limit, target))
        previous = figure.workload
    return align(rows, to_the_right={2, 4})


def align(rows: Sequence[Sequence[str]], *, to_the_right: Collection[int]) -> str:
    """Lines of columns; those of numbers to the right, all else to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(_format_row(row, widths, to_the_right) for row in rows)


def _format_row(row: Sequence[str], widths: Sequence[int], to_the_right: Collection[int]) -> str:
    cells = [
        text.rjust(width) if index in to_the_right else text.ljust(width)
        for index, (text, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


def format_number(value: float) -> str:
    """Three significant digits, without a power of ten."""
    if value == 0 or not math.isfinite(value):
        return str(value)
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{round(value, digits):,.{digits}f}"
