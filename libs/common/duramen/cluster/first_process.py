"""Importing this prepares a process for the seconds in which it loads its modules.

A service that is the first process of its container can be stopped at once, not only once it runs.
The kernel gives the first process of a namespace only those signals that it has a handler for. A
service takes seconds to load its modules before its frame (`runtime.service`) sets handlers of its
own, and a pod that is deleted meanwhile would sit out its whole grace period. Until then nothing
has been begun that would have to be ended. Every service's `main` imports this before anything
that is large. Elsewhere than in a container no handler is set.

The collector of cycles looks rarely from here on: hundreds of thousands of objects that loading
makes stay, and to look at them again and again is a sixth of a start.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from types import FrameType
from typing import Final, NoReturn

__all__ = ["end_early"]

_COLLECT_AFTER_COUNT: Final = 20_000
"""New objects between two looks for cycles; Python's own 700 are for programs that hold little.

Requests leave tuples and buffers, which go by themselves, and hardly any cycle.
"""


def end_early(number: int, _frame: FrameType | None) -> NoReturn:
    """Handler: end with the status of a process that the signal ended."""
    sys.exit(128 + number)


if os.getpid() == 1:
    signal.signal(signal.SIGTERM, end_early)

gc.set_threshold(_COLLECT_AFTER_COUNT)
