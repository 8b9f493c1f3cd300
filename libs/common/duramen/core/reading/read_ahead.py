"""How many bytes a reader asks for at once: little at first and at the tail, much to catch up.

A reader that has more to read than one range doubles the next one, up to its limit. A reader that
has come to the end begins small again. So a look-up, or a reader that follows, never fetches
megabytes that it does not take; a reader that catches up soon makes one call for some MiB.

Pure. Called by the reader core. Source: docs/protocol/reading.md "Read-ahead".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from duramen.units import KIB, MIB

FIRST_BYTES: Final = 256 * KIB
"""The first range: a call's fixed price is that of copying about so much."""


@dataclass(frozen=True, slots=True)
class ReaderLimits:
    """How much a reader asks for at once, and how much it holds for its consumer."""

    range_bytes: int = 4 * MIB
    buffer_bytes: int = 8 * MIB
    poll_bytes: int = 1 * MIB


DEFAULT_LIMITS: Final = ReaderLimits()


class ReadAhead:
    """Bytes of the next range, between `FIRST_BYTES` (or the limit, if that is less) and it."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.range_bytes = min(FIRST_BYTES, bytes_max)

    def on_delivered(self, *, is_at_end: bool) -> None:
        """A range came; `is_at_end`: there is nothing behind it to be read now."""
        if is_at_end:
            self.range_bytes = min(FIRST_BYTES, self._bytes_max)
        else:
            self.range_bytes = min(2 * self.range_bytes, self._bytes_max)

    def __repr__(self) -> str:
        return f"<read-ahead {self.range_bytes} of {self._bytes_max}>"
