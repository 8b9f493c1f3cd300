"""Repair that yields: its rate by an invented clock and invented waits of clients.

A client adds every 10 ms; how long it waits is what a test says: 19 of 20 wait 10 ms and one waits
20 ms while nobody disturbs. Nothing here measures time. What bookies do with it is in
`test_repair_calls`; what it is worth under load is measured by `tests.process.drain_figures`.
Source: docs/protocol/repair.md "Yielding".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from duramen.units import MIB, MINUTE, MS, SECOND
from duramen_bookie.repair.yielding import PROBE_US, REST_US, Yielding, YieldingPace
from tests.component.upkeep_world import run
from tests.waiting import wait_for

_MAX, _MIN, _FIRST = 32 * MIB, 2 * MIB, 4 * MIB
_PERIOD_US = 10 * MS


class World:
    """A bookie's clock, one client, and repair that works all the time once it has begun."""

    def __init__(self) -> None:
        self.now_us = 1_000_000
        self.yielding = Yielding(
            _MAX,
            bytes_per_s_min=_MIN,
            bytes_per_s_first=_FIRST,
            rise_bytes_per_s=MIB,
            now_us=lambda: self.now_us,
        )
        self.late_count = 0
        self.count = 0

    def rest(self, duration_us: int, *, wait_us: int = 10 * MS) -> None:
        """The client alone."""
        for _ in range(duration_us // _PERIOD_US):
            self._add(wait_us)

    def work(
        self,
        duration_us: int,
        wait_us: Callable[[], int],
        *,
        piece_every_us: int | None = _PERIOD_US,
    ) -> None:
        """Repair at work, a piece each time; None: its pieces come as its rate lets them."""
        due_us = self.now_us
        for _ in range(duration_us // _PERIOD_US):
            if self.now_us >= due_us:
                self.yielding.on_piece()
                due_us += piece_every_us or MIB * SECOND // self.yielding.bytes_per_s
            self._add(wait_us())

    def _add(self, wait_us: int) -> None:
        self.now_us += _PERIOD_US
        self.count += 1
        waited_us = 2 * wait_us if self.count % 20 == 0 else wait_us
        self.late_count += waited_us > 20 * MS
        self.yielding.on_client_waited(waited_us)
        assert _MIN <= self.yielding.bytes_per_s <= _MAX


def working(wait_us: int) -> World:
    """A world that has learnt what 10 ms are, with repair at its whole rate."""
    world = World()
    world.rest(MINUTE)
    world.work(MINUTE, lambda: 10 * MS)
    assert world.yielding.bytes_per_s == _MAX
    return world


def test_repair_begins_slowly_and_rises_by_and_by_while_nobody_waits_longer() -> None:
    world = World()
    world.rest(MINUTE)
    world.work(_PERIOD_US, lambda: 10 * MS)
    assert _FIRST <= world.yielding.bytes_per_s < _FIRST + MIB
    world.work(10 * SECOND, lambda: 10 * MS)
    assert _FIRST + 10 * MIB <= world.yielding.bytes_per_s < _FIRST + 11 * MIB
    world.work(MINUTE, lambda: 10 * MS)
    assert world.yielding.bytes_per_s == _MAX
    assert world.yielding.statistics()["fall_count"] == 0


def test_the_rate_halves_with_every_second_that_clients_wait_longer_down_to_the_floor() -> None:
    world = working(10 * MS)
    rates = []
    for _ in range(8):
        world.work(SECOND + _PERIOD_US, lambda: 40 * MS)
        rates.append(world.yielding.bytes_per_s // MIB)
    assert rates[:4] == [16, 8, 4, 2], rates
    assert set(rates[4:]) == {2}, rates
    assert world.yielding.statistics()["fall_count"] >= 7


def test_it_rises_again_when_nobody_is_disturbed_any_more() -> None:
    world = working(10 * MS)
    world.work(10 * SECOND, lambda: 40 * MS)
    floor = world.yielding.bytes_per_s
    world.work(10 * SECOND, lambda: 10 * MS)
    assert 9 * MIB <= world.yielding.bytes_per_s - floor <= 11 * MIB


def test_a_few_adds_that_wait_long_change_nothing() -> None:
    world = working(10 * MS)
    waits = iter([100 * MS if n % 12 == 0 else 5 * MS for n in range(30_000)])
    world.work(MINUTE, lambda: next(waits))
    # One of 12 and no other: less than twice the part that is late at rest.
    assert world.yielding.statistics()["fall_count"] == 0


def test_no_client_no_reason_to_yield() -> None:
    world = World()
    world.yielding.on_piece()
    for _ in range(60):
        world.now_us += SECOND
        world.yielding.on_piece()
    assert world.yielding.bytes_per_s == _MAX


def test_what_is_short_disturbs_nobody() -> None:
    """On a fast disk ten times as long is still less than a thousandth of a second."""
    world = World()
    world.rest(MINUTE, wait_us=50)
    world.work(MINUTE, lambda: 500)
    assert world.yielding.bytes_per_s == _MAX


def test_what_arrives_waits_for_a_late_event_loop_before_it_is_seen() -> None:
    world = working(10 * MS)
    world.yielding.on_loop_late(30 * MS)
    world.work(2 * SECOND, lambda: 10 * MS)
    assert world.yielding.bytes_per_s < _MAX
    world.yielding.on_loop_late(-1)
    world.work(MINUTE, lambda: 10 * MS)
    assert world.yielding.bytes_per_s == _MAX


def test_nothing_is_judged_before_something_is_known() -> None:
    """A bookie that is filled from its first second on."""
    world = World()
    world.work(2 * SECOND, lambda: 5 * MS)
    world.work(SECOND, lambda: 40 * MS)
    assert world.yielding.statistics()["fall_count"] == 0
    world.work(10 * SECOND, lambda: 200 * MS)
    assert world.yielding.statistics()["fall_count"] > 0


def test_clients_that_wait_longer_for_a_reason_of_their_own_do_not_keep_repair_down() -> None:
    world = working(10 * MS)
    # Pieces at the floor are half a second apart: what is waited for in the gaps tells.
    world.work(20 * SECOND, lambda: 25 * MS, piece_every_us=None)
    assert world.yielding.bytes_per_s < 2 * _MIN
    world.work(10 * MINUTE, lambda: 25 * MS, piece_every_us=None)
    assert world.yielding.bytes_per_s > _MAX // 2


def test_waits_that_grow_with_the_rate_find_a_rate_that_clients_hardly_feel() -> None:
    """Closed loop: above 10 MiB/s every add waits in proportion to what is too much."""
    world = working(10 * MS)
    world.late_count = world.count = 0
    moved_bytes = 0

    def wait_us() -> int:
        nonlocal moved_bytes
        rate = world.yielding.bytes_per_s
        moved_bytes += rate * _PERIOD_US // SECOND
        return 10 * MS * max(1, rate // (5 * MIB))

    world.work(5 * MINUTE, wait_us)
    assert world.late_count < 0.3 * world.count
    assert 4 * MIB < moved_bytes / 300 < 12 * MIB


def test_a_rest_brings_the_slow_beginning_back() -> None:
    world = working(10 * MS)
    world.rest(REST_US + SECOND)
    assert world.yielding.bytes_per_s == _MAX
    world.work(_PERIOD_US, lambda: 10 * MS)
    assert world.yielding.bytes_per_s < _FIRST + MIB


# --- The gate ------------------------------------------------------------------------------------


class Clock:
    """Microseconds that pass when told to."""

    def __init__(self) -> None:
        self.now_us = 1_000_000

    def __call__(self) -> int:
        return self.now_us


def test_a_burst_is_an_eighth_of_a_second_of_the_rate_of_now() -> None:
    async def scenario() -> None:
        clock = Clock()
        pace = YieldingPace(now_us=clock)
        clock.now_us += MINUTE
        assert await pace.admit(_FIRST // 8)
        later = asyncio.create_task(pace.admit(_FIRST // 8))
        await wait_for(lambda: pace.statistics()["waiting_count"] == 1)
        clock.now_us += SECOND // 8 - 1
        for _ in range(10):
            await asyncio.sleep(0)
        assert not later.done()
        clock.now_us += 1
        assert await later
        assert pace.statistics()["bytes_per_s"] == _FIRST + MIB // 8

    run(scenario)


def test_whoever_is_impatient_waits_less_and_all_of_it_is_charged() -> None:
    async def scenario() -> None:
        clock = Clock()
        pace = YieldingPace(now_us=clock)
        assert await pace.admit(_FIRST // 8 + _FIRST // 100, patience_us=0)
        # It is overdrawn by a hundredth of a second: who comes next and is patient waits for that.
        patient = asyncio.create_task(pace.admit(1))
        impatient = asyncio.create_task(pace.admit(1, patience_us=MS))
        await wait_for(lambda: pace.statistics()["waiting_count"] == 2)
        clock.now_us += MS
        assert await impatient
        assert not patient.done()
        clock.now_us += 10 * MS
        assert await patient

    run(scenario)


def test_the_probe_tells_how_late_the_event_loop_is() -> None:
    async def scenario() -> None:
        told_us: list[int] = []

        class Told(Yielding):
            def on_loop_late(self, late_us: int) -> None:
                told_us.append(late_us)

        clock = Clock()
        probing = asyncio.create_task(YieldingPace(Told(now_us=clock), now_us=clock).probe())
        await asyncio.sleep(0)  # it has asked for its timer
        clock.now_us += PROBE_US + 7 * MS
        await wait_for(lambda: len(told_us) > 0)
        probing.cancel()
        assert told_us[0] == 7 * MS

    run(scenario)
