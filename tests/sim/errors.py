"""What ended a run, in words: a checker's violation, or an error and where it was raised.

Called by `run`. Documented in docs/testing.md.
"""

from __future__ import annotations

from tests.sim.checkers import Violation


def format_finding(error: Exception) -> str:
    """As a text: not every error travels between processes."""
    if isinstance(error, Violation):
        return str(error)
    if isinstance(error, AssertionError):
        return f"assertion at {_place_of(error)}: {error}"
    return f"{error!r} at {_place_of(error)}"


def _place_of(error: BaseException) -> str:
    trace = error.__traceback__
    places = []
    while trace is not None:
        code = trace.tb_frame.f_code
        places.append(f"{code.co_filename.rsplit('/', 1)[-1]}:{trace.tb_lineno} {code.co_name}")
        trace = trace.tb_next
    return " < ".join(reversed(places[-6:]))
