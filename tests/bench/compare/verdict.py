"""What pairs of measurements say: ratios pair by pair, and which of them are beyond tolerance.

Two measurements of one pair were made right after each other, so that what the machine did to one
it did to the other; the median over the pairs then passes over what hit one alone. A figure is
beyond when the median of its ratios is above the tolerance of its kind *and* the median of its
differences above its slack, which is there for counts near zero. Less than before is never beyond:
it is shown as such.

Pure arithmetic, no I/O. Called by `python -m tests.bench.compare` and `kept`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple

from tests.bench.report import format_number


class Kind(Enum):
    """How a figure is judged; in the order in which they are shown."""

    COUNT = "count"
    """Does not depend on timing: the load and the log's configuration see to that."""
    GROUPED = "grouped count"
    """Of what is done for several appends at once; how many those are depends on timing."""
    PACED = "paced count"
    """What comes with time as well as with appends: pairs cancel that, other days do not."""
    CPU = "CPU"
    CONTROL = "control"
    """What the machine takes for work that is not the product's: shown, never judged."""
    TIME = "time"
    """Shown, never judged."""


TOLERANCES: Final[Mapping[Kind, float]] = {
    Kind.COUNT: 1.02, Kind.GROUPED: 1.5, Kind.PACED: 1.5, Kind.CPU: 1.15,
}  # fmt: skip
"""The greatest median ratio that is let pass."""


class Figure(NamedTuple):
    """What was measured; `slack` is in `unit`, and differences up to it are never judged."""

    workload: str
    name: str
    unit: str
    kind: Kind
    slack: float = 0.0


Sample = Mapping[Figure, float]
"""One measurement: a value for each figure that could be read."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure over all pairs; `ratios` are working tree to base, in the order of the pairs."""

    figure: Figure
    base: float
    tree: float
    ratios: tuple[float, ...]
    difference: float
    tolerance: float | None

    @property
    def ratio(self) -> float:
        """The median."""
        return statistics.median(self.ratios)

    @property
    def is_beyond(self) -> bool:
        """Whether the tree does more than is let pass."""
        return (
            self.tolerance is not None
            and self.ratio > self.tolerance
            and self.difference > self.figure.slack
        )

    @property
    def verdict(self) -> str:
        """One word or two for the table."""
        if self.tolerance is None:
            return ""
        if self.is_beyond:
            return f"BEYOND {self.tolerance:.4g}"
        return "less" if self.ratio < 1 / self.tolerance else "ok"

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return {
            "workload": self.figure.workload,
            "name": self.figure.name,
            "unit": self.figure.unit,
            "kind": self.figure.kind.value,
            "base": self.base,
            "tree": self.tree,
            # JSON has no infinity: something where there was nothing has no ratio.
            "ratios": [ratio if math.isfinite(ratio) else None for ratio in self.ratios],
            "tolerance": self.tolerance,
            "is_beyond": self.is_beyond,
        }


def judge(
    pairs: Sequence[tuple[Sample, Sample]], tolerances: Mapping[Kind, float]
) -> list[Comparison]:
    """Compare figure by figure, what both sides have in every pair; counts come first.

    Args:
        pairs: (base, working tree), at least one.
        tolerances: of kinds that are judged.
    """
    order = list(Kind)
    shared = [
        figure
        for figure in pairs[0][0]
        if all(figure in base and figure in tree for base, tree in pairs)
    ]
    return [
        Comparison(
            figure,
            statistics.median(base[figure] for base, _ in pairs),
            statistics.median(tree[figure] for _, tree in pairs),
            tuple(find_ratio(base[figure], tree[figure]) for base, tree in pairs),
            statistics.median(tree[figure] - base[figure] for base, tree in pairs),
            tolerances.get(figure.kind),
        )
        for figure in sorted(shared, key=lambda figure: order.index(figure.kind))
    ]


def find_unshared(pairs: Sequence[tuple[Sample, Sample]]) -> list[Figure]:
    """What one side could not tell, in any pair: it is named, not passed over."""
    every = dict.fromkeys(figure for pair in pairs for sample in pair for figure in sample)
    return [figure for figure in every if not all(figure in sample for p in pairs for sample in p)]


def find_ratio(base: float, tree: float) -> float:
    """`tree` to `base`; nothing to nothing is 1, something to nothing infinite."""
    if base:
        return tree / base
    return 1.0 if not tree else math.inf


def take_medians(samples: Sequence[Sample]) -> dict[Figure, float]:
    """Of each figure that every sample has."""
    return {
        figure: statistics.median(sample[figure] for sample in samples)
        for figure in samples[0]
        if all(figure in sample for sample in samples)
    }


def format_comparisons(comparisons: Sequence[Comparison]) -> str:
    """A table: base, working tree, and the least, median and greatest ratio of a pair."""
    rows: list[tuple[str, ...]] = [
        ("kind", "load", "figure", "base", "tree", "", "min", "median", "max", "")
    ]
    previous = None
    for one in comparisons:
        figure = one.figure
        if figure.kind is not previous:
            rows.append(("",) * 10)
        kind = figure.kind.value if figure.kind is not previous else ""
        ratios = (min(one.ratios), one.ratio, max(one.ratios))
        rows.append((
            kind, figure.workload, figure.name, format_number(one.base), format_number(one.tree),
            figure.unit, *(f"{ratio:.3f}" for ratio in ratios), one.verdict,
        ))  # fmt: skip
        previous = figure.kind
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    is_number = (3, 4, 6, 7, 8)
    return "\n".join(
        "  ".join(
            text.rjust(width) if index in is_number else text.ljust(width)
            for index, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
