"""Importing this lets a service that is the first process of its container be stopped at once.

The kernel gives the first process of a namespace only those signals that it has a handler for. A
service takes seconds to load its modules before its frame (`runtime.service`) sets handlers of its
own, and a pod that is deleted meanwhile would sit out its whole grace period. Until then nothing
has been begun that would have to be ended. Every service's `main` imports this before anything
that is large. Elsewhere than in a container nothing happens.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

__all__ = ["end_early"]


def end_early(number: int, _frame: FrameType | None) -> NoReturn:
    """Handler: end with the status of a process that the signal ended."""
    sys.exit(128 + number)


if os.getpid() == 1:
    signal.signal(signal.SIGTERM, end_early)
