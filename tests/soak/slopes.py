"""Whether a quantity grows: a robust slope through its samples, held against a tolerance.

A leak is growth that goes on while the work stays the same. So the first half of the samples, in
which caches fill, is left out, and the slope through the rest is Theil's and Sen's: the median of
the slopes between pairs of samples, which outliers do not move. Only pairs that are half of that
time or more apart count, as in Theil's incomplete method: what is filled and emptied again and
again (a journal, logs that are deleted when their time is over) rises between most of its near
samples, and goes nowhere. The tolerance is growth over the fitted time, so the longer the run, the
smaller the leak that it finds: what it amounts to in an hour is told beside it.

Pure. Called by `report`; shown by `test_slopes`. Source: Sen 1968, "Estimates of the regression
coefficient based on Kendall's tau".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

SAMPLES_MIN: Final = 8
"""Fewer in the fitted half say nothing."""

_POINTS_MAX: Final = 400
"""More are thinned out evenly: pairs grow with the square."""

_HOUR_S: Final = 3600.0


class Sample(NamedTuple):
    """A quantity at a moment."""

    at_s: float
    value: float


class Tolerance(NamedTuple):
    """Growth over the fitted time that is none: a floor, and a part of the median."""

    floor: float
    ratio: float
    unit: str

    def most(self, middle: float) -> float:
        """Of a quantity with that median."""
        return self.floor + self.ratio * abs(middle)


class Verdict(NamedTuple):
    """What the samples of one quantity amount to.

    Attributes:
        middle: median of the fitted samples.
        growth, most: over the fitted time, as fitted and as tolerated.
        per_hour, most_per_hour: the same as slopes.
        fault: why it fails; None if it does not.
    """

    name: str
    unit: str
    sample_count: int
    middle: float
    growth: float
    most: float
    per_hour: float
    most_per_hour: float
    fault: str | None


def find_slope(samples: Sequence[Sample]) -> float:
    """Median slope between samples that are far apart, per second; 0 where there are none."""
    if not samples:
        return 0.0
    far_s = (samples[-1].at_s - samples[0].at_s) / 2
    step = -(-len(samples) // _POINTS_MAX) or 1
    points = samples[::step]
    slopes = [
        (later.value - earlier.value) / (later.at_s - earlier.at_s)
        for index, earlier in enumerate(points)
        for later in points[index + 1 :]
        if later.at_s - earlier.at_s >= far_s > 0
    ]
    return median(slopes) if slopes else 0.0


def judge_slope(name: str, samples: Sequence[Sample], tolerance: Tolerance) -> Verdict:
    """The verdict on one quantity, of the second half of its time."""
    first_s, last_s = (samples[0].at_s, samples[-1].at_s) if samples else (0.0, 0.0)
    fitted = [sample for sample in samples if sample.at_s >= (first_s + last_s) / 2]
    window_s = fitted[-1].at_s - fitted[0].at_s if fitted else 0.0
    slope = find_slope(fitted)
    middle = median(sample.value for sample in fitted) if fitted else 0.0
    growth, most = slope * window_s, tolerance.most(middle)
    fault = None
    if len(fitted) < SAMPLES_MIN or not window_s:
        fault = f"{len(fitted)} samples in the fitted half, {SAMPLES_MIN} are needed"
    elif growth > most:
        fault = f"grew by {growth:.3g} {tolerance.unit} in {window_s:.0f} s, {most:.3g} at most"
    per_hour = _HOUR_S / window_s if window_s else 0.0
    return Verdict(
        name, tolerance.unit, len(fitted), middle, growth, most, slope * _HOUR_S,
        most * per_hour, fault,
    )  # fmt: skip


def judge_all(
    series: Mapping[str, Sequence[Sample]], tolerances: Mapping[str, Tolerance]
) -> list[Verdict]:
    """The verdicts on all quantities; the tolerance is that of the longest beginning of the name.

    Raises:
        KeyError: there is none for a quantity; nothing is left unjudged.
    """
    verdicts = []
    for name, samples in sorted(series.items()):
        fitting = [beginning for beginning in tolerances if name.startswith(beginning)]
        if not fitting:
            raise KeyError(name)
        verdicts.append(judge_slope(name, samples, tolerances[max(fitting, key=len)]))
    return verdicts
