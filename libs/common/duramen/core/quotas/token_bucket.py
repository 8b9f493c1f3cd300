"""A token bucket that goes into debt: what a rate allows now, and how long until it allows more.

A bucket holds what comes in a second. Whoever takes from one that has a token gets all it wants,
and who comes later waits for it: so the largest body passes the smallest rate, and over a long time
the rate is kept. Time is the caller's.

Called by `quota_account`. Source: docs/protocol/limits.md "How it is counted".
"""

from __future__ import annotations

from duramen.units import SECOND


class TokenBucket:
    """Tokens that come evenly, `per_s` of them at most.

    Attributes:
        per_s: how many come in a second; None: no limit.
    """

    __slots__ = ("_at_us", "_tokens", "per_s")

    def __init__(self, per_s: int | None, now_us: int) -> None:
        self.per_s = per_s
        self._tokens: float = per_s or 0
        self._at_us = now_us

    def change(self, per_s: int | None, now_us: int) -> None:
        """Fill at another rate from now on; what was taken beyond the former one stays a debt."""
        if per_s == self.per_s:
            return
        self._fill(now_us)
        had_limit, self.per_s = self.per_s is not None, per_s
        if per_s is not None:
            self._tokens = min(self._tokens, per_s) if had_limit else per_s

    def find_wait_us(self, now_us: int) -> int:
        """Until something may be taken; 0: now."""
        # What came since the last filling can only be more.
        if self.per_s is None or self._tokens >= 1:
            return 0
        self._fill(now_us)
        if self._tokens >= 1:
            return 0
        return int((1 - self._tokens) * SECOND / self.per_s) + 1

    def take(self, count: int, now_us: int) -> None:
        """Take so many, into debt if need be: `find_wait_us` says whether to."""
        if self.per_s is not None:
            self._fill(now_us)
            self._tokens -= count

    def _fill(self, now_us: int) -> None:
        # A clock that stands still or goes back gives nothing, and takes nothing.
        if self.per_s is not None and now_us > self._at_us:
            came = (now_us - self._at_us) * self.per_s / SECOND
            self._tokens = min(self._tokens + came, self.per_s)
            self._at_us = now_us
