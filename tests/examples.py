"""How hypothesis makes examples in every test: without a deadline, and what failed is kept.

A deadline measures the machine, and so does the check for slow strategies: both fail where others
work there too. Examples that failed are kept in `.hypothesis/examples` at the root of the checkout,
which is hypothesis' own place, left out by git and removed by `make clean`: they are tried first in
the next run. In CI every run tries the same ones: a change does not fail on what it did not touch;
people and nights draw new ones.

Imported by tests/conftest.py. A test says what it needs otherwise with `settings`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase

PROFILE: Final = "duramen"
EXAMPLES: Final = Path(__file__).parents[1] / ".hypothesis" / "examples"


def load_profile() -> None:
    """From now on `settings` begins with these."""
    is_repeated = bool(os.environ.get("CI"))
    settings.register_profile(
        PROFILE,
        deadline=None,
        # Hypothesis keeps nothing of what it does not draw.
        database=None if is_repeated else DirectoryBasedExampleDatabase(EXAMPLES),
        derandomize=is_repeated,
        suppress_health_check=(HealthCheck.too_slow,),
    )
    settings.load_profile(PROFILE)
