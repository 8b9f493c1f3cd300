"""The hang bound is shorter than what the product does by itself after a while.

A longer one would let a test pass where nothing came but the end of a grant, or a record that was
asked for anew because it was old.
"""

from __future__ import annotations

from duramen.core.repair.disruption_grants import LIFE_DEFAULT_MS
from duramen.limits import METADATA_AGE_MAX_US
from duramen.units import SECOND
from tests.process.times import HANG_S


def test_what_comes_by_age_alone_has_not_come_by_then() -> None:
    assert HANG_S < METADATA_AGE_MAX_US / SECOND
    assert HANG_S < LIFE_DEFAULT_MS / 1000
