"""The profile of hypothesis is in force in every test: what failed is kept, CI draws nothing.

CI is played by its variable, in a process of its own. Source: tests/examples.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase

from tests.examples import EXAMPLES, PROFILE

ROOT = Path(__file__).parents[2]
SHOW = """
from hypothesis import settings
from tests.examples import load_profile
load_profile()
print(settings().deadline, settings().derandomize, getattr(settings().database, "path", None))
"""


def test_the_profile_is_in_force() -> None:
    assert settings.get_current_profile_name() == PROFILE
    used = settings()
    assert used.deadline is None and HealthCheck.too_slow in used.suppress_health_check


@pytest.mark.parametrize(
    ("ci", "expected"),
    [("", ["None", "False", str(EXAMPLES)]), ("true", ["None", "True", "None"])],
    ids=["people", "CI"],
)
def test_people_draw_and_keep_and_ci_repeats(ci: str, expected: list[str]) -> None:
    environment = {**os.environ, "CI": ci, "PYTHONPATH": str(ROOT)}
    said = subprocess.run(
        [sys.executable, "-c", SHOW], env=environment, check=True, capture_output=True, text=True
    )
    assert said.stdout.split() == expected


def test_what_failed_is_tried_first_in_the_next_run(tmp_path: Path) -> None:
    database = DirectoryBasedExampleDatabase(tmp_path)
    seen: list[int] = []

    @settings(database=database, derandomize=False)
    @given(st.integers(0, 1 << 40))
    def fails_above(number: int) -> None:
        seen.append(number)
        assert number < 123_456

    with pytest.raises(AssertionError):
        fails_above()
    first = len(seen)
    with pytest.raises(AssertionError):
        fails_above()
    assert seen[first] == 123_456, "the smallest one that fails was found by the run before"
