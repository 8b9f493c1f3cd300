"""In which region a log's writers are, near the bounds.

Source: core.ownership.writers_region, docs/protocol/ownership.md.
"""

from __future__ import annotations

import pytest

from duramen.core.ownership.writers_region import MAIN_SHARE, RATE_MIN, find_writers_region


@pytest.mark.parametrize(
    ("rates", "total", "region"),
    [
        ({}, 100.0, None),
        ({"eu": 100.0}, 100.0, "eu"),
        ({"eu": 100 * MAIN_SHARE, "us": 40.0}, 100.0, "eu"),
        ({"eu": 100 * MAIN_SHARE - 1, "us": 41.0}, 100.0, None),
        ({"eu": 50.0}, 100.0, None),  # the others do not say where they are
        ({"eu": RATE_MIN}, RATE_MIN, "eu"),
        ({"eu": RATE_MIN * 0.9}, RATE_MIN * 0.9, None),
    ],
)
def test_the_region_of_most_appends_counts(
    rates: dict[str, float], total: float, region: str | None
) -> None:
    assert find_writers_region(rates, total) == region
