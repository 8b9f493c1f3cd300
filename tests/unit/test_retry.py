"""Pauses and the budget of repetitions, on a clock that the test turns.

What is repeated at all is shown with real calls in tests/component/test_sdk.py.
"""

from __future__ import annotations

import asyncio
import math
import random

import pytest

from duramen.client.retry import Pauses, RetryBudget, RetryPolicy, is_repeatable, repeat
from duramen.errors import ERRORS, DuramenError, Retry
from duramen.runtime.http_client import NoAnswerError, UnreachableError

NO_ADVICE = UnreachableError("nobody")


class Clock:
    """Turned by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


class NoJitter(random.Random):
    """Never any."""

    def random(self) -> float:
        return 0.0


def make(policy: RetryPolicy, clock: Clock, budget: RetryBudget | None = None) -> Pauses:
    return Pauses(policy, budget, clock=clock, rng=NoJitter())


def test_pauses_double_up_to_the_longest() -> None:
    policy = RetryPolicy(within_s=100, first_pause_s=0.5, longest_pause_s=3)
    pauses = make(policy, Clock())
    assert [pauses.next_s(NO_ADVICE) for _ in range(5)] == [0.5, 1, 2, 3, 3]


def test_a_pause_may_have_no_bound() -> None:
    policy = RetryPolicy(within_s=100, first_pause_s=0.5, longest_pause_s=math.inf)
    pauses = make(policy, Clock())
    assert [pauses.next_s(NO_ADVICE) for _ in range(5)] == [0.5, 1, 2, 4, 8]


def test_advice_counts_instead() -> None:
    pauses = make(RetryPolicy(first_pause_s=0.5), Clock())
    assert pauses.next_s(DuramenError("overloaded", "", retry_after_ms=1_500)) == 1.5


def test_jitter_only_ever_adds_a_quarter() -> None:
    policy = RetryPolicy(first_pause_s=1, longest_pause_s=1)
    pauses = Pauses(policy, clock=Clock(), rng=random.Random(1))
    found = [pauses.next_s(NO_ADVICE) for _ in range(20)]
    assert all(pause is not None and 1 <= pause <= 1.25 for pause in found)
    assert len(set(found)) == 20


def test_no_try_begins_after_the_time() -> None:
    clock = Clock()
    pauses = make(RetryPolicy(within_s=1, first_pause_s=0.5), clock)
    assert pauses.next_s(NO_ADVICE) == 0.5
    clock.now = 0.5
    assert pauses.next_s(NO_ADVICE) is None
    assert make(RetryPolicy(within_s=0), clock).next_s(NO_ADVICE) is None


def test_an_outage_meets_a_bounded_number_of_repetitions() -> None:
    clock = Clock()
    # Its clock stands still: to the budget all of this happens in one moment.
    budget = RetryBudget(tokens_per_s=10, token_count=20, clock=Clock())
    policy = RetryPolicy(within_s=10, first_pause_s=0.01, longest_pause_s=0.01)
    tries = 0

    async def call() -> None:
        nonlocal tries
        tries += 1
        raise NO_ADVICE

    async def outage() -> None:
        for _ in range(20):
            with pytest.raises(UnreachableError):
                await repeat(call, make(policy, clock, budget), is_read=True, sleep=clock.sleep)
            clock.now = 0  # all of them in the same ten seconds

    asyncio.run(outage())
    repeated_count = tries - 20
    assert repeated_count <= 20 + 10 * 10
    statistics = budget.statistics()
    assert statistics["taken"] == repeated_count
    # No debt that would keep repetitions away long after the outage.
    assert statistics["tokens"] >= -10 * 10


def test_the_budget_fills_again() -> None:
    clock = Clock()
    budget = RetryBudget(tokens_per_s=10, token_count=2, clock=clock)
    assert [budget.take() for _ in range(4)] == [0, 0, 0.1, 0.2]
    clock.now = 100
    assert [budget.take() for _ in range(3)] == [0, 0, 0.1]


@pytest.mark.parametrize("has_producer", [False, True])
@pytest.mark.parametrize("code", sorted(ERRORS))
def test_the_table_says_what_is_repeated(code: str, has_producer: bool) -> None:
    error = DuramenError(code, "")
    expected = has_producer if error.uncertain else error.kind.retry is Retry.AFTER
    assert is_repeatable(error, is_read=False, has_producer=has_producer) is expected


def test_no_answer_is_repeated_for_reads_alone() -> None:
    assert is_repeatable(NoAnswerError(""), is_read=True)
    assert not is_repeatable(NoAnswerError(""), is_read=False)
    assert not is_repeatable(ValueError(), is_read=True)
