"""When a feed asks the owner of its log for the LAC, and when it leaves it alone.

Owners are in the test's hands, under a standing clock. That the LAC may be shown is for the core of
readers and the simulator. Source: docs/protocol/owner-lac.md "Rules" 4 to 8.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from duramen.ids import NOTHING, EntryId, Epoch, LogId
from duramen.wire.sequencer_calls import LacWait, OpenLac
from duramen_readproxy.following.owner_follower import (
    CALL_COUNT_MAX,
    PAUSE_FIRST_S,
    PAUSE_MOST_S,
    OwnerCalls,
    OwnerFollower,
)
from tests.component.hand_owners import HandOwners
from tests.component.still_clock import count_timers, run_still, wait_clock, wait_quiet

LOG = LogId(9)
WAIT_S = 10.0
MOMENT_S = 0.001


class FollowerWorld:
    """A follower, and what a feed would be told."""

    def __init__(self) -> None:
        self.owners = HandOwners()
        self.calls = OwnerCalls(self.owners)
        self.known = OpenLac(Epoch(3), NOTHING)
        self.told: list[tuple[int, int]] = []
        self.follower = OwnerFollower(LOG, self.calls, lambda: self.known, self._on_lac)

    @property
    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def answer(self, epoch: int, lac: int) -> None:
        self.owners.answers.put_nowait(OpenLac(Epoch(epoch), EntryId(lac)))
        await wait_quiet()

    async def fail(self) -> None:
        """The owner does not answer, and the log is busy still."""
        self.owners.answers.put_nowait(None)
        await wait_quiet()

    async def begin(self) -> None:
        self.follower.begin()
        await wait_quiet()

    def _on_lac(self, epoch: Epoch, lac: EntryId) -> None:
        self.told.append((epoch, lac))
        self.known = max(self.known, OpenLac(epoch, lac))


def play(scenario: Callable[[FollowerWorld], Awaitable[None]]) -> None:
    async def work() -> None:
        world = FollowerWorld()
        await scenario(world)
        world.follower.end()
        await wait_quiet()
        assert world.calls.open_count == 0 and count_timers() == 0

    run_still(work())


def test_each_answer_is_told_and_the_next_one_waited_for() -> None:
    async def scenario(world: FollowerWorld) -> None:
        assert not world.owners.asked
        await world.begin()
        await world.begin()
        assert world.owners.asked == [("http://s0", LacWait(LOG, Epoch(3), NOTHING, 10_000))], (
            "one at a time"
        )
        await world.answer(3, 4)
        await world.answer(3, 5)
        assert world.told == [(3, 4), (3, 5)]
        assert [wait.above for _, wait in world.owners.asked] == [-1, 4, 5]
        assert world.owners.find_count == 1
        assert world.calls.statistics() == {
            "owner_calls": 1, "owner_calls_max": CALL_COUNT_MAX, "owner_lacs": 2,
            "owner_calls_ended": 0,
        }  # fmt: skip

    play(scenario)


def test_what_others_learnt_meanwhile_is_not_waited_for_again() -> None:
    async def scenario(world: FollowerWorld) -> None:
        await world.begin()
        world.known = OpenLac(Epoch(3), EntryId(7))
        await world.answer(3, 5)
        assert world.told == [(3, 5)], "known already, and no harm"
        world.known = OpenLac(Epoch(4), NOTHING)
        await world.answer(3, 8)
        assert world.owners.asked[-1][1][1:3] == (4, -1), "the cursor is in the next segment"

    play(scenario)


def test_a_quiet_log_costs_a_call_each_ten_seconds() -> None:
    async def scenario(world: FollowerWorld) -> None:
        await world.begin()
        for count in range(2, 6):
            await wait_clock(world.now_s + WAIT_S)
            await world.answer(3, -1)
            assert len(world.owners.asked) == count and not world.told

    play(scenario)


def test_an_owner_that_does_not_wait_is_not_asked_in_a_tight_loop() -> None:
    async def scenario(world: FollowerWorld) -> None:
        await world.begin()
        await world.answer(3, -1)
        assert len(world.owners.asked) == 1 and world.calls.open_count == 0
        await world.begin()
        assert len(world.owners.asked) == 1
        await wait_clock(world.now_s + PAUSE_FIRST_S)
        await world.begin()
        assert len(world.owners.asked) == 2

    play(scenario)


def test_another_epoch_is_not_told_and_the_owner_is_looked_for_anew() -> None:
    async def scenario(world: FollowerWorld) -> None:
        await world.begin()
        await world.answer(4, 9)
        assert not world.told
        world.owners.url = "http://s1"
        await wait_clock(world.now_s + PAUSE_FIRST_S)
        await world.begin()
        assert [url for url, _ in world.owners.asked] == ["http://s0", "http://s1"]

    play(scenario)


def test_pauses_double_and_begin_anew_with_an_answer() -> None:
    async def scenario(world: FollowerWorld) -> None:
        pause_s = PAUSE_FIRST_S
        for count in range(1, 13):
            await world.begin()
            assert len(world.owners.asked) == count
            await world.fail()
            failed_s = world.now_s
            await wait_clock(failed_s + pause_s - MOMENT_S)
            await world.begin()
            assert len(world.owners.asked) == count, "not yet"
            await wait_clock(failed_s + pause_s + MOMENT_S)
            pause_s = min(2 * pause_s, PAUSE_MOST_S)
        assert pause_s == PAUSE_MOST_S
        await world.begin()
        await world.answer(3, 0)
        await world.fail()
        await wait_clock(world.now_s + PAUSE_FIRST_S + MOMENT_S)
        await world.begin()
        assert len(world.owners.asked) == 15

    play(scenario)


def test_where_nobody_owns_the_log_nobody_is_asked() -> None:
    async def scenario(world: FollowerWorld) -> None:
        world.owners.url = None
        await world.begin()
        await world.begin()
        assert (world.owners.find_count, world.owners.asked) == (1, [])

    play(scenario)


def test_no_more_calls_wait_than_may() -> None:
    async def scenario(world: FollowerWorld) -> None:
        world.calls.open_count = CALL_COUNT_MAX
        await world.begin()
        assert world.owners.find_count == 0
        world.calls.open_count -= 1
        await world.begin()
        assert world.owners.find_count == 1 and world.calls.open_count == CALL_COUNT_MAX
        world.calls.open_count = 1

    play(scenario)


def test_who_has_ended_asks_nobody_and_is_told_nothing() -> None:
    async def scenario(world: FollowerWorld) -> None:
        await world.begin()
        world.owners.answers.put_nowait(OpenLac(Epoch(3), EntryId(1)))
        world.follower.end()
        await wait_quiet()
        await world.begin()
        assert not world.told and len(world.owners.asked) == 1

    play(scenario)
