"""What holds for every test run, whatever its layer.

A run that has ended must end: a thread that a failed test left behind would keep the interpreter
waiting for it after pytest's closing line, and CI silent until its own limit.
"""

import faulthandler
import sys

import pytest

EXIT_WITHIN_S = 60


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """Let the interpreter end soon, or with the stacks of what keeps it and status 1."""
    faulthandler.dump_traceback_later(EXIT_WITHIN_S, exit=True, file=sys.stderr)
