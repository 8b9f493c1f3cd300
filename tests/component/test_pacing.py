"""Paces and rounds of upkeep: bytes a second by an invented clock, suspensions, rounds that fail.

Nothing here measures time: what a wait would be is computed, and whoever waits is watched until it
does, or does not any more.
"""

from __future__ import annotations

import asyncio

import pytest

from duramen.units import DAY, MIB, SECOND
from duramen_bookie.upkeep.pacing import ByteBucket, Pace, PaceState, Periodic
from duramen_bookie.upkeep.settling import SettlingPace
from tests.component.upkeep_world import run
from tests.waiting import wait_for


class Clock:
    """Microseconds that pass when told to."""

    def __init__(self) -> None:
        self.now_us = 1_000_000

    def __call__(self) -> int:
        return self.now_us

    def advance(self, duration_us: int) -> None:
        self.now_us += duration_us


# --- The bucket ----------------------------------------------------------------------------------


def test_a_burst_goes_through_at_once_and_then_the_rate_counts() -> None:
    bucket = ByteBucket(1_000, burst_bytes=500, now_us=Clock())
    assert bucket.delay_s(500) == 0
    assert bucket.delay_s(250) == 0.25
    assert bucket.delay_s(250) == 0.5


def test_credit_grows_with_time_up_to_the_burst() -> None:
    clock = Clock()
    bucket = ByteBucket(1_000, burst_bytes=500, now_us=clock)
    assert bucket.delay_s(1_500) == 1.0
    clock.advance(1 * SECOND)
    assert bucket.delay_s(0) == 0
    clock.advance(DAY)
    assert bucket.delay_s(500) == 0
    assert bucket.delay_s(1) == 0.001


def test_a_piece_larger_than_the_burst_is_let_through_and_paid_for_by_the_next() -> None:
    clock = Clock()
    bucket = ByteBucket(8 * MIB, burst_bytes=MIB, now_us=clock)
    assert bucket.delay_s(17 * MIB) == 2.0
    clock.advance(2 * SECOND)
    assert bucket.delay_s(4 * MIB) == 0.5


def test_nothing_is_lost_by_rounding_over_many_small_pieces() -> None:
    clock = Clock()
    bucket = ByteBucket(3, burst_bytes=0, now_us=clock)
    for _ in range(3_000):
        bucket.delay_s(1)
        clock.advance(333_333)
    # 3,000 bytes at 3 bytes a second are 1,000 s; 999.999 of them have passed.
    assert bucket.delay_s(0) == pytest.approx(0.001)


def test_another_rate_counts_from_now_on_and_keeps_what_is_owed() -> None:
    clock = Clock()
    bucket = ByteBucket(1_000, burst_bytes=1_000, now_us=clock)
    assert bucket.delay_s(3_000) == 2.0
    clock.advance(1 * SECOND)
    bucket.change(100, burst_bytes=50)
    assert bucket.delay_s(0) == 10.0, "1,000 of 2,000 were paid at the old rate"
    clock.advance(DAY)
    assert bucket.delay_s(50) == 0
    assert bucket.delay_s(1) == 0.01
    bucket.change(1_000, burst_bytes=0)
    assert bucket.delay_s(0) == 0.001


# --- The gate ------------------------------------------------------------------------------------


def test_pieces_within_the_burst_do_not_wait() -> None:
    async def scenario() -> None:
        pace = Pace(1, burst_bytes=100, now_us=Clock())
        assert await pace.admit(60)
        assert await pace.admit(40)
        assert pace.statistics()["admitted_bytes"] == 100

    run(scenario)


def test_a_piece_beyond_the_burst_waits_for_its_share() -> None:
    async def scenario() -> None:
        clock = Clock()
        pace = Pace(1_000_000, burst_bytes=0, now_us=clock)
        piece = asyncio.create_task(pace.admit(1_000))
        await wait_for(lambda: pace.statistics()["waiting_count"] == 1)
        assert not piece.done()
        clock.advance(1_000)
        assert await piece

    run(scenario)


@pytest.mark.parametrize(
    ("sealed_count", "mib_per_s"), [(1, 64), (2, 64), (3, 128), (4, 256), (5, 256), (10_000, 256)]
)
def test_settling_is_as_slow_as_the_files_that_wait_allow(
    sealed_count: int, mib_per_s: int
) -> None:
    async def scenario() -> None:
        clock = Clock()
        pace = SettlingPace(lambda: sealed_count, now_us=clock)
        assert await pace.admit(MIB), "a piece at once, and no second's worth of them"
        piece = asyncio.create_task(pace.admit(MIB))
        await wait_for(lambda: pace.statistics()["waiting_count"] == 1)
        assert pace.bytes_per_s == mib_per_s * MIB
        clock.now_us += SECOND // mib_per_s - 1_000
        for _ in range(10):
            await asyncio.sleep(0)
        assert not piece.done()
        clock.now_us += 1_000
        assert await piece

    run(scenario)


def test_nothing_passes_while_suspended_and_everything_after() -> None:
    async def scenario() -> None:
        pace = Pace(MIB)
        pace.suspend()
        pieces = [asyncio.create_task(pace.admit(10)) for _ in range(3)]
        await wait_for(lambda: pace.statistics()["waiting_count"] == 3)
        assert pace.state is PaceState.SUSPENDED
        assert not any(piece.done() for piece in pieces)
        pace.resume()
        assert await asyncio.gather(*pieces) == [True] * 3
        assert pace.statistics()["state"] == "running"

    run(scenario)


def test_a_suspension_meets_a_piece_that_waits_for_its_share_already() -> None:
    async def scenario() -> None:
        clock = Clock()
        pace = Pace(1, burst_bytes=0, now_us=clock)
        piece = asyncio.create_task(pace.admit(3_600))
        await wait_for(lambda: pace.statistics()["waiting_count"] == 1)
        pace.suspend()
        clock.advance(3_600 * SECOND)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not piece.done()
        pace.resume()
        assert await piece

    run(scenario)


@pytest.mark.parametrize("is_suspended", [False, True])
def test_a_stop_turns_away_who_waits_and_who_comes_for_ever(is_suspended: bool) -> None:
    async def scenario() -> None:
        pace = Pace(1, burst_bytes=0)
        if is_suspended:
            pace.suspend()
        piece = asyncio.create_task(pace.admit(3_600))
        await wait_for(lambda: pace.statistics()["waiting_count"] == 1)
        pace.stop()
        assert not await piece
        pace.suspend()
        pace.resume()
        assert pace.state is PaceState.STOPPED
        assert not await pace.admit(0)
        assert pace.statistics()["admitted_count"] == 0

    run(scenario)


# --- Rounds --------------------------------------------------------------------------------------


def test_rounds_follow_each_other_and_end_with_stop() -> None:
    async def scenario() -> None:
        count = 0

        async def run_round() -> None:
            nonlocal count
            count += 1

        rounds = Periodic("a test", run_round, rest_us=0)
        rounds.start()
        await wait_for(lambda: count >= 3)
        await rounds.stop()
        ended = count
        for _ in range(10):
            await asyncio.sleep(0)
        assert count == ended == rounds.statistics()["round_count"]

    run(scenario)


def test_a_round_that_fails_is_counted_and_followed_by_another() -> None:
    async def scenario() -> None:
        rounds = Periodic("a test", fail, rest_us=0)
        rounds.start()
        await wait_for(lambda: rounds.statistics()["failed_round_count"] >= 3)
        await rounds.stop()
        assert rounds.statistics()["round_count"] == 0

    async def fail() -> None:
        raise RuntimeError("no such luck")

    run(scenario)


def test_hurry_ends_a_rest() -> None:
    async def scenario() -> None:
        count = 0

        async def run_round() -> None:
            nonlocal count
            count += 1

        rounds = Periodic("a test", run_round, rest_us=DAY)
        rounds.start()
        await wait_for(lambda: rounds.statistics()["is_resting"])
        assert count == 1
        rounds.hurry()
        await wait_for(lambda: count == 2)
        await rounds.stop()

    run(scenario)


def test_hurry_during_a_round_is_not_forgotten() -> None:
    async def scenario() -> None:
        begun: list[asyncio.Event] = []

        async def run_round() -> None:
            begun.append(asyncio.Event())
            await begun[-1].wait()

        rounds = Periodic("a test", run_round, rest_us=DAY)
        rounds.start()
        await wait_for(lambda: len(begun) == 1)
        rounds.hurry()
        begun[0].set()
        await wait_for(lambda: len(begun) == 2)
        await rounds.stop()

    run(scenario)


def test_stop_without_start_is_no_mistake() -> None:
    async def scenario() -> None:
        async def run_round() -> None:
            raise AssertionError("never begun")

        await Periodic("a test", run_round, rest_us=0).stop()

    run(scenario)
