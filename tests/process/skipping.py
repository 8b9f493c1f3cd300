"""Skip a test and say so where it is seen: on the terminal, also under `pytest -q`.

A machine without root, loop devices or strace proves less; whoever reads the run must see how much.
Used by the tests of this folder that need such things.
"""

from __future__ import annotations

import pytest


def skip_if(reason: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    """Skip the running test if there is a reason."""
    if reason is not None:
        with capsys.disabled():
            print(f"\nskipped: {reason}")
        pytest.skip(reason)
