"""Ends or stops a process at a named step of the archive job; on PYTHONPATH in tests of that alone.

The job tells its steps to the logger `duramen.archive.steps`; a handler here acts on them, in the
driver's process and in Spark's Python workers alike. DURAMEN_KILL_POINTS: `step=kill;step=stop`;
each acts once among all processes that share the folder DURAMEN_KILL_MARKS.

Loaded by Python itself, at the start of every interpreter that finds it.
"""

import logging
import os
import signal
from pathlib import Path

_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


class KillPoints(logging.Handler):
    """Acts on the first message that begins with a step's name."""

    def __init__(self, points: dict[str, str], marks: Path) -> None:
        super().__init__()
        self._points = points
        self._marks = marks

    def emit(self, record: logging.LogRecord) -> None:
        """See the base class."""
        for name, action in self._points.items():
            if str(record.msg).startswith(name) and self._is_first(name):
                os.kill(os.getpid(), _SIGNALS[action])

    def _is_first(self, name: str) -> bool:
        try:
            (self._marks / name.replace(" ", "-")).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


if "DURAMEN_KILL_POINTS" in os.environ:
    pairs = [item.split("=") for item in os.environ["DURAMEN_KILL_POINTS"].split(";")]
    steps = logging.getLogger("duramen.archive.steps")
    steps.setLevel(logging.DEBUG)
    steps.propagate = False
    steps.addHandler(KillPoints(dict(pairs), Path(os.environ["DURAMEN_KILL_MARKS"])))
