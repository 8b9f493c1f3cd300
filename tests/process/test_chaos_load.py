"""A violation fails whoever waits for the load, at once, and before anything else is looked at.

No cluster is started: what the load tells is written by the test.
"""

from __future__ import annotations

import asyncio
from array import array
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from tests.chaos.judge import Verdict, Violation
from tests.chaos.load import LoadOptions
from tests.process.chaos_load import ChaosLoad, require_good

LOGS = ["a", "b"]
SEEN = ["L1", "a", "the tail went back"]
HANG_S = 30.0


def report(*, acked: bool = True, violations: list[list[str]] | None = None) -> bytes:
    """A line of progress."""
    told = {
        "acked_ns": dict.fromkeys(LOGS, int(acked)), "codes": {}, "appends": dict.fromkeys(LOGS, 9),
        "reads": dict.fromkeys(LOGS, 9), "violations": violations or [],
    }  # fmt: skip
    return orjson.dumps(told) + b"\n"


class Load:
    """A load whose output is fed by the test; it ends with 0."""

    def __init__(self, *lines: bytes) -> None:
        self.stdout = asyncio.StreamReader()
        for line in lines:
            self.stdout.feed_data(line)
        self.stdin = SimpleNamespace(write=lambda data: None, drain=self.wait)
        options = LoadOptions("", [], [], LOGS, writers=1, readers=1, seed=1)
        self.load = ChaosLoad(options, cast(Any, self))
        self.follower = asyncio.ensure_future(self.load.follow())

    async def wait(self) -> int:
        self.stdout.feed_eof()
        return 0


def test_a_violation_ends_every_wait_at_once() -> None:
    async def scenario() -> None:
        told = Load(report(acked=False, violations=[SEEN]))
        with pytest.raises(AssertionError, match="the tail went back"):
            await told.load.wait_acked_since(0, 10 * HANG_S)
        told = Load(report())
        await told.load.wait_acked_since(0, HANG_S)
        told.stdout.feed_data(report(violations=[SEEN]))
        with pytest.raises(AssertionError, match="the tail went back"):
            await told.load.wait_worked(appends=1, reads=1, timeout_s=10 * HANG_S)

    asyncio.run(asyncio.wait_for(scenario(), HANG_S))


def test_what_the_load_tells_last_counts_too() -> None:
    async def scenario() -> None:
        told = Load(report())
        await told.load.wait_acked_since(0, HANG_S)
        await told.load.finish()
        told = Load(report())
        await told.load.wait_acked_since(0, HANG_S)
        told.stdout.feed_data(report(violations=[SEEN]))
        with pytest.raises(AssertionError, match="the tail went back"):
            await told.load.finish()

    asyncio.run(asyncio.wait_for(scenario(), HANG_S))


def verdict(log: str, *violations: Violation, appends: int = 9) -> Verdict:
    counts = {"ok": appends, "read": 9}
    return Verdict(log, list(violations), counts, {}, array("q"), 1)


def test_violations_of_all_logs_are_told_before_a_want_of_load() -> None:
    lost = Violation("D1", "b", "gone")
    with pytest.raises(AssertionError, match="gone"):
        require_good([verdict("a", appends=0), verdict("b", lost)], appends=5, reads=5)
    with pytest.raises(AssertionError, match="'a'"):
        require_good([verdict("b"), verdict("a", appends=5)], appends=5, reads=5)
    good = [verdict("a"), verdict("b")]
    assert require_good(good, appends=5, reads=5) == {"ok": 18, "read": 18}
