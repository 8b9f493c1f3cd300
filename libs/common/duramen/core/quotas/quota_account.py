"""What one party has of a process: its two buckets, and what it has under way.

A call is judged by all limits before it takes from any. What was begun is to be ended, once.

Called by `quota_table` and the runtime's door.
Source: docs/protocol/limits.md "How it is counted".
"""

from __future__ import annotations

from typing import Final, NamedTuple

from duramen.core.quotas.token_bucket import TokenBucket
from duramen.units import SECOND

UNDER_WAY_WAIT_US: Final = 1 * SECOND
"""When what is under way may have ended, nobody knows."""

WAIT_US_MAX: Final = 60 * SECOND


class Quota(NamedTuple):
    """The limits of one party; None: no limit."""

    calls_per_s: int | None
    bytes_per_s: int | None
    open_calls: int | None
    open_streams: int | None
    in_flight_bytes: int | None


class Excess(NamedTuple):
    """The limit by which a call is refused, and when to come again."""

    limit: str
    most: int
    wait_us: int


class CallShape(NamedTuple):
    """What is known of a call before its body is read."""

    is_stream: bool
    announced_bytes: int
    """Of the body, where it is no stream."""


class QuotaAccount:
    """One party's use of one process."""

    __slots__ = ("_bytes", "_calls", "in_flight_bytes", "open_calls", "open_streams", "quota")

    def __init__(self, quota: Quota, now_us: int) -> None:
        self.quota = quota
        self._calls = TokenBucket(quota.calls_per_s, now_us)
        self._bytes = TokenBucket(quota.bytes_per_s, now_us)
        self.open_calls = 0
        self.open_streams = 0
        self.in_flight_bytes = 0

    def change(self, quota: Quota, now_us: int) -> None:
        """Other limits count from now on; what is under way goes on."""
        self.quota = quota
        self._calls.change(quota.calls_per_s, now_us)
        self._bytes.change(quota.bytes_per_s, now_us)

    def find_excess(self, shape: CallShape, now_us: int) -> Excess | None:
        """The first limit that a call does not fit in; None: it may begin."""
        quota = self.quota
        if wait_us := self._calls.find_wait_us(now_us):
            return Excess("calls_per_s", quota.calls_per_s or 0, min(wait_us, WAIT_US_MAX))
        if wait_us := self._bytes.find_wait_us(now_us):
            return Excess("bytes_per_s", quota.bytes_per_s or 0, min(wait_us, WAIT_US_MAX))
        most = quota.open_calls
        if most is not None and self.open_calls >= most:
            return Excess("open_calls", most, UNDER_WAY_WAIT_US)
        most = quota.open_streams
        if shape.is_stream and most is not None and self.open_streams >= most:
            return Excess("open_streams", most, UNDER_WAY_WAIT_US)
        most_bytes = quota.in_flight_bytes
        # The first body passes whatever its size: else a small limit would let none pass ever.
        if most_bytes is not None and self.in_flight_bytes and shape.announced_bytes:
            held_bytes = self.in_flight_bytes + shape.announced_bytes
            if held_bytes > most_bytes:
                return Excess("in_flight_bytes", most_bytes, UNDER_WAY_WAIT_US)
        return None

    def begin(self, shape: CallShape, now_us: int) -> None:
        """A call begins that no limit is against; to be ended."""
        self._calls.take(1, now_us)
        self.open_calls += 1
        self.open_streams += shape.is_stream

    def hold(self, size_bytes: int) -> None:
        """So many bytes of a body are in flight until the end of their call."""
        self.in_flight_bytes += size_bytes

    def end(self, shape: CallShape, held_bytes: int = 0) -> None:
        """A call that was begun is over, and so is all that it held."""
        self.open_calls -= 1
        self.open_streams -= shape.is_stream
        self.in_flight_bytes -= held_bytes
        assert self.open_calls >= self.open_streams >= 0, "a call was ended twice"

    def spend(self, size_bytes: int, now_us: int) -> None:
        """So many bytes came or went."""
        self._bytes.take(size_bytes, now_us)

    def find_debt_us(self, now_us: int) -> int:
        """How long a stream of this party is to wait before its next piece; 0: not at all."""
        return self._bytes.find_wait_us(now_us)
