"""What a run tells of its findings: the first one, also to another process.

Not here: which histories are findings (`test_checkers`).
"""

from __future__ import annotations

import pickle

import pytest

from duramen.errors import DuramenError
from duramen.units import MS
from tests.sim.run import Result, Run
from tests.sim.segment_record import Violation


def test_a_violation_travels_between_processes() -> None:
    found = pickle.loads(pickle.dumps(Violation("O3", "one lies before another")))
    assert (found.code, found.text, str(found)) == (
        "O3", "one lies before another", "O3: one lies before another",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("first", "error", "told"),
    [
        ("D2: lost", Violation("O3", "x"), "D2: lost"),
        (None, Violation("O3", "x"), "at the end: O3: x"),
        (None, AssertionError("x"), "at the end: assertion at"),
        (None, DuramenError("internal", "x"), "at the end: DuramenError('internal: x') at"),
    ],
)
def test_what_ends_after_a_finding_does_not_replace_it(
    first: str | None, error: Exception, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    play, tear_down = Run._play, Run._tear_down

    def find(run: Run) -> Result:
        result = play(run)
        result.violation = first
        return result

    def violate(run: Run) -> None:
        tear_down(run)
        raise error

    monkeypatch.setattr(Run, "_play", find)
    monkeypatch.setattr(Run, "_tear_down", violate)
    violation = Run(3, duration_us=300 * MS).play().violation
    assert violation is not None and violation.startswith(told)
