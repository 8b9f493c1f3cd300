"""What the calls of members have in common: their clock, and where a process can be called.

Beside `gossiping`, so that a bookie, which is asked and owns no log, loads nothing of sequencers.
Called by `gossiping`, `observing` and `witnessing`. Source: docs/protocol/members.md "The call".
"""

from __future__ import annotations

import time


def read_clock_us() -> int:
    """The monotonic clock."""
    return time.monotonic_ns() // 1_000


def is_url(text: object) -> bool:
    """Whether what a node says of its process's place can be called."""
    return isinstance(text, str) and text.startswith(("http://", "https://"))
