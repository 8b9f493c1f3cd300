"""Answers that say "come again" are counted for the test that runs, and too many fail it.

Source: `tests.process.answers`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from duramen.errors import DuramenError
from tests.process import answers

MANY = 1_000


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "_FIRST_PAUSE_S", 0.0)


def refuse(times: int, **problem: Any) -> Callable[[], httpx.Response]:
    """A service that refuses so often, and then serves."""
    said = {"code": "metadata_unavailable", "retryable": True, "uncertain": False, **problem}
    left = iter(range(times))
    return lambda: httpx.Response(200 if next(left, None) is None else 503, json=said)


def test_who_is_sent_away_for_a_moment_comes_again_and_is_served() -> None:
    assert answers.ask_until_settled(refuse(answers.COME_AGAINS_MAX)).status_code == 200


def test_who_is_sent_away_too_often_in_one_test_fails_it_whatever_was_asked() -> None:
    for _ in range(answers.COME_AGAINS_MAX):
        assert answers.ask_until_settled(refuse(1)).status_code == 200
    with pytest.raises(AssertionError, match=r"sent away 9 times.*metadata_unavailable"):
        answers.ask_until_settled(refuse(1))


def test_a_service_that_never_serves_is_noticed() -> None:
    with pytest.raises(AssertionError, match="sent away"):
        answers.ask_until_settled(refuse(MANY))


@pytest.mark.parametrize("problem", [{"retryable": False}, {"uncertain": True}], ids=str)
def test_what_is_final_or_may_have_happened_is_the_answer(problem: dict[str, bool]) -> None:
    assert answers.ask_until_settled(refuse(1, **problem)).status_code == 503


def test_a_call_that_may_be_made_twice_is_repeated_so_often_and_no_more() -> None:
    calls = []

    async def call() -> None:
        calls.append(1)
        raise DuramenError("metadata_unavailable", "no session")

    with pytest.raises(AssertionError, match="sent away 6 times, at last by metadata_unavailable"):
        asyncio.run(answers.repeat_safely(call, at_most=5))
    assert len(calls) == 6
    with pytest.raises(DuramenError, match="log_not_found"):
        asyncio.run(answers.repeat_safely(refuse_for_good))


async def refuse_for_good() -> None:
    raise DuramenError("log_not_found", "there is none")
