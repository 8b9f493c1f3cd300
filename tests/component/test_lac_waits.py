"""Waits for a LAC at a sequencer: real hosts and drivers of logs, bookies that do all at once.

Source: docs/protocol/owner-lac.md "Rules" 1 to 3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from duramen.ids import NOTHING, EntryId, Epoch, LogId
from duramen.runtime.http_server import Reply
from duramen.wire import sequencer_calls
from duramen.wire.frame import RETRY_AFTER_HEADER, FrameError
from duramen.wire.sequencer_calls import LacWait, OpenLac, pack_lac_wait, parse_open_lac
from duramen_sequencer.log_host import LogHost
from duramen_sequencer.ownership import lac_waits
from duramen_sequencer.ownership.lac_waits import LacWaits
from tests.component.host_world import HostWorld, host_world
from tests.waiting import wait_for

LOG = LogId(5)
LONG_MS = 600_000
"""Longer than anybody may ask for: whoever is not woken fails by the bound of `host_world`."""


@pytest.fixture(autouse=True)
def _waits_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequencer_calls, "LAC_WAIT_MS_MAX", LONG_MS)


class WaitWorld:
    """One sequencer that owns a log with one entry in epoch 1."""

    def __init__(self, hosts: HostWorld, host: LogHost) -> None:
        self.hosts = hosts
        self.host = host
        self.waits = LacWaits(host.drivers.get)

    async def append(self) -> None:
        await self.hosts.append(self.host, LOG)

    def wait(
        self, above: int, *, epoch: int = 1, wait_ms: int = LONG_MS
    ) -> asyncio.Task[OpenLac | None]:
        return asyncio.create_task(self._wait(LacWait(LOG, Epoch(epoch), EntryId(above), wait_ms)))

    async def _wait(self, wait: LacWait) -> OpenLac | None:
        status, _, answer, _ = Reply(*await self.waits.on_call(pack_lac_wait(wait)))
        assert status == 200
        return parse_open_lac(answer)

    async def count_waiting(self, count: int) -> None:
        await wait_for(lambda: self.waits.statistics()["waiting"] == count)


def play(scenario: Callable[[WaitWorld], Awaitable[None]]) -> None:
    async def work() -> None:
        async with host_world() as hosts:
            await hosts.add_log(LOG)
            world = WaitWorld(hosts, await hosts.add_host("s0"))
            await world.append()
            await scenario(world)
            await world.count_waiting(0)

    asyncio.run(work())


def test_who_knows_less_is_told_at_once_and_who_knows_all_waits_for_more() -> None:
    async def scenario(world: WaitWorld) -> None:
        first = await world.wait(NOTHING)
        assert first == (1, 0)
        waits = [world.wait(0) for _ in range(3)]
        await world.count_waiting(3)
        await world.append()
        assert await asyncio.gather(*waits) == [(1, 1)] * 3
        assert world.waits.statistics() == {
            "waiting": 0, "waiting_max": lac_waits.WAIT_COUNT_MAX,
            "asked": 4, "told": 4, "refused": 0,
        }  # fmt: skip

    play(scenario)


def test_what_is_stored_and_not_acknowledged_is_not_told() -> None:
    async def scenario(world: WaitWorld) -> None:
        world.hosts.lanes["s0"].is_silent = True
        wait = world.wait(0)
        await world.count_waiting(1)
        unanswered = world.hosts.append(world.host, LOG)
        driver = world.host.drivers[LOG]
        await wait_for(lambda: driver.core.writer is not None and driver.core.writer.lap == 1)
        for _ in range(5):
            driver.flush()
        assert driver.open_lac == (1, 0) and not wait.done()
        world.waits.stop()
        assert await wait is None and not unanswered.done()
        driver.release()

    play(scenario)


def test_a_wait_ends_in_its_time_with_what_is_then() -> None:
    async def scenario(world: WaitWorld) -> None:
        assert await world.wait(0, wait_ms=1) == (1, 0)
        assert await world.wait(7, wait_ms=0) == (1, 0)
        assert world.waits.statistics()["told"] == 0

    play(scenario)


def test_who_asks_for_another_epoch_or_an_unknown_log_is_told_at_once() -> None:
    async def scenario(world: WaitWorld) -> None:
        assert await world.wait(99, epoch=7) == (1, 0)
        unknown = LacWait(LogId(6), Epoch(1), NOTHING, LONG_MS)
        assert await world._wait(unknown) is None

    play(scenario)


@pytest.mark.parametrize("end", ["closed", "let go", "broken", "stopped"])
def test_whatever_ends_the_epoch_ends_the_waits(end: str) -> None:
    async def scenario(world: WaitWorld) -> None:
        driver = world.host.drivers[LOG]
        wait = world.wait(0)
        await world.count_waiting(1)
        match end:
            case "closed":
                assert await driver.leave(5)
            case "let go":
                driver.release()
            case "broken":
                driver.stop_at(AssertionError("the core's"))
                assert driver.core.open_epoch is not None and driver.open_lac is None
            case _:
                world.waits.stop()
        assert await wait is None
        assert await world.wait(0) is None, "and nobody waits here again"

    play(scenario)


def test_a_roll_is_told() -> None:
    async def scenario(world: WaitWorld) -> None:
        wait = world.wait(0)
        await world.count_waiting(1)
        driver = world.host.drivers[LOG]
        driver.core.request_roll()
        driver.flush()
        found = await wait
        assert found is None or found.epoch == 2
        await world.append()
        assert driver.open_lac is not None and driver.open_lac.epoch == 2

    play(scenario)


def test_one_wait_too_many_is_refused_and_who_is_told_at_once_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: WaitWorld) -> None:
        wait = world.wait(0)
        await world.count_waiting(1)
        body = pack_lac_wait(LacWait(LOG, Epoch(1), EntryId(0), LONG_MS))
        status, _, _, headers = Reply(*await world.waits.on_call(body))
        assert (status, dict(headers)) == (503, {RETRY_AFTER_HEADER: "30000"})
        assert await world.wait(NOTHING) == (1, 0)
        assert world.waits.statistics()["refused"] == 1
        await world.append()
        assert await wait == (1, 1)

    monkeypatch.setattr(lac_waits, "WAIT_COUNT_MAX", 1)
    play(scenario)


def test_who_gives_a_wait_up_leaves_nothing() -> None:
    async def scenario(world: WaitWorld) -> None:
        wait = world.wait(0)
        await world.count_waiting(1)
        wait.cancel()
        await asyncio.gather(wait, return_exceptions=True)
        assert not world.host.drivers[LOG]._lac_waiters

    play(scenario)


def test_what_is_no_wait_is_refused_and_nothing_waits() -> None:
    async def scenario(world: WaitWorld) -> None:
        too_long = pack_lac_wait(LacWait(LOG, Epoch(1), EntryId(0), LONG_MS + 1))
        for body in (b"", too_long[:-1], too_long):
            with pytest.raises(FrameError):
                await world.waits.on_call(body)

    play(scenario)
