"""What a driver and its link keep and tell beside the core: owed copies, refusals, unknown ends.

A real driver on a store in memory, its lanes do everything at once; what the core would say is said
by the test. What the core itself says is in `tests/unit/test_ledger_writer.py`.
"""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from duramen.core.sequencer.effects import (
    CommitOutcome,
    Expected,
    Fail,
    PersistOwed,
    SetLog,
    TailMark,
)
from duramen.core.sequencer.log_state import LogState
from duramen.ids import Dlsn, EntryId, Epoch, LogId, SequencerId, ledger_of
from duramen.runtime.sequencer import log_driver
from duramen.runtime.sequencer.bookie_lanes import BookieLanes
from duramen.runtime.sequencer.log_driver import LogDriver
from duramen.runtime.sequencer.metadata_link import LOOK_COUNT_MAX, MetadataLink, merge_ranges
from duramen.runtime.sequencer.process import make_context
from duramen.runtime.sequencer.story import Stories
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree, WriteFate
from duramen.units import SECOND
from duramen.wire.metadata_json import Paths, encode_log, encode_node, read_node
from tests.complaints import hear_complaints
from tests.component.host_world import MEMBER, Lanes
from tests.unit.core_fakes import LOG_ID
from tests.unit.flexible_segments import OPEN
from tests.unit.nodes import make_log
from tests.waiting import wait_for

LOG = LogId(LOG_ID)
LEDGER = ledger_of(LOG, Epoch(1))


class Link:
    """Writes what is owed when it may."""

    def __init__(self) -> None:
        self.written: list[tuple[int, int]] = []
        self.may_write = asyncio.Event()

    async def persist_owed(self, owed: PersistOwed) -> bool:
        self.written.append((owed.first, owed.last))
        await self.may_write.wait()
        return True


class StillWatch:
    """Has nothing to stop."""

    def stop(self) -> None:
        """Nothing is watched."""


class World:
    """A driver that nothing happens to but what a test does."""

    def __init__(self) -> None:
        self.context = make_context("s1")
        self.link = Link()
        lanes, home = cast(Any, Lanes()), cast(Any, None)
        self.driver = LogDriver(LOG, self.context, lanes, cast(Any, self.link), home)
        self.settled: list[PersistOwed] = []
        core: Any = self.driver.core
        core.on_owed_persisted = self.settled.append

    def owe(self, first: int, last: int) -> None:
        self.driver._note_owed(PersistOwed(LEDGER, MEMBER, EntryId(first), EntryId(last)))


@pytest.mark.parametrize(("first", "last"), [(3, 5), (8, 12)])
def test_a_range_that_is_owed_only_grows_and_is_written_as_it_became(first: int, last: int) -> None:
    async def scenario() -> None:
        world = World()
        world.owe(0, 9)
        await wait_for(lambda: bool(world.link.written))
        world.owe(first, last)
        world.link.may_write.set()
        await wait_for(lambda: bool(world.settled))
        whole = (0, max(9, last))
        assert world.link.written[-1] == whole
        assert (world.settled[0].first, world.settled[0].last) == whole

    asyncio.run(scenario())


@pytest.mark.parametrize("stops_first", [False, True])
def test_work_that_never_begins_is_left_behind_by_nobody(*, stops_first: bool) -> None:
    """The lanes end it before its first step, or take no more of it."""

    async def scenario() -> None:
        world = World()
        lanes = BookieLanes(cast(Any, None), lambda _: None, cast(Any, StillWatch()))
        world.driver._lanes = lanes
        async with hear_complaints() as heard:
            if stops_first:
                await lanes.stop()
            world.owe(0, 9)
            await lanes.stop()
        assert (heard, world.link.written) == ([], [])

    asyncio.run(scenario())


def test_owed_bytes_follow_the_writer_up_and_down() -> None:
    async def scenario() -> None:
        world = World()

        class Writer:
            owed_bytes = 0

        for owed_bytes in (100, 100, 30, 0):
            Writer.owed_bytes = owed_bytes
            world.driver._count_owed(cast(Any, Writer))
            assert world.context.owed_bytes == owed_bytes

    asyncio.run(scenario())


def test_the_story_tells_of_a_nodeset_and_of_waves_ten_times_as_many_each_time() -> None:
    async def scenario() -> None:
        world, stories = World(), Stories()
        world.driver._home = cast(Any, SimpleNamespace(stories=stories))
        writer = SimpleNamespace(segment=OPEN, change_count=0, rewaved_count=0)
        writer.explain_waves = lambda: f"{writer.rewaved_count} entries"
        for count in (0, 1, 2, 9, 10, 11, 250, 999, 1_000):
            writer.rewaved_count = count
            world.driver._note_writer(cast(Any, writer))
        told = [(row["event"], row["reason"]) for row in stories.report(LOG)]
        opened, *waves = told
        assert opened == ("appends in", "3 bookies in 2 racks and 1 region of b0, b1, b2, b3, b4")
        assert waves == [("waves", f"{count} entries") for count in (1, 10, 250, 1_000)]

    asyncio.run(scenario())


def test_the_story_tells_an_owner_that_takes_its_log_over_from_one_that_lost_it() -> None:
    async def scenario() -> None:
        driver, stories = World().driver, Stories()
        driver._home = cast(Any, SimpleNamespace(stories=stories))
        driver._state = LogState.READING
        core: Any = SimpleNamespace(state=LogState.READING, view=None, writer=None)
        driver.core = core
        for core.stall_count, core.reason in ((0, "sealed"), (1, "incomplete"), (1, "sealed")):
            driver._report_story(LogState.ACTIVE)
        told = [(row["event"], row["reason"]) for row in stories.report(LOG)]
        assert told == [("fenced", "sealed"), ("stalled", "incomplete"), ("fenced", "sealed")]

    asyncio.run(scenario())


def test_a_timer_that_comes_first_is_left_alone() -> None:
    """It sets the next one: a batch of events costs no timer of the loop."""

    async def scenario() -> None:
        driver = World().driver
        core: Any = driver.core
        timers = []
        now_us = log_driver.now_us()
        for delay_us in (10 * SECOND, 20 * SECOND, 10 * SECOND, 5 * SECOND, None):
            at_us = None if delay_us is None else now_us + delay_us
            core.wakeup_at_us = lambda _, at_us=at_us: at_us
            driver._set_timer()
            timers.append(driver._timer)
        first, second, third, earlier, none = timers
        assert first is second is third and earlier is not first and none is None
        assert first is not None and earlier is not None
        assert first.cancelled() and earlier.cancelled()

    asyncio.run(scenario())


def test_a_refusal_tells_a_number_also_if_it_is_zero() -> None:
    tail = TailMark(Dlsn(Epoch(1), EntryId(0), 0), 0, 0)
    refused = Fail(
        1, "condition_failed", "the first record would get 0", expected=Expected(tail, 0, 0)
    )
    facts = log_driver._failed(refused).problem()
    assert (facts["expected_seq_num"], facts["expected_producer_seq"]) == (0, 0)


def test_who_lost_a_log_did_not_hand_it_over() -> None:
    async def leave(reason: str) -> bool:
        driver = World().driver
        core = SimpleNamespace(state=LogState.IDLE, reason=reason, stop=lambda _: None)
        driver.core = cast(Any, core)
        driver.flush = lambda: None  # type: ignore[method-assign]  # nothing is left to do
        return await driver.leave(1.0)

    assert asyncio.run(leave(""))
    assert not asyncio.run(leave("another sequencer took the log over"))


def test_a_takeover_reads_what_is_true_now_and_an_unknown_end_stays_unknown() -> None:
    async def scenario() -> None:
        tree = MemoryTree()
        store, paths = MemoryStore(tree), Paths("test")
        await store.start()
        log = make_log()
        await store.create(paths.log(LOG), encode_log(log), make_parents=True)
        read: list[str] = []
        sync, get = store.sync, store.get

        async def note_sync(path: str) -> None:
            read.append("sync")
            await sync(path)

        async def note_get(path: str, watch: Any = None) -> Any:
            read.append("get")
            return await get(path, watch)

        store.sync, store.get = note_sync, note_get  # type: ignore[method-assign]
        link = MetadataLink(store, paths, SequencerId("s1"), "http://s1")
        view = await link.read_view(LOG)
        assert view is not None and view.log == log
        assert read[:2] == ["sync", "get"], "else it may be long ago"
        store.doom_next_write(WriteFate.LATE)
        assert await link.commit(LOG, [SetLog(log, view.log_version)]) is CommitOutcome.UNKNOWN
        store.deliver_late_writes()
        assert await link.commit(LOG, [SetLog(log, view.log_version)]) is CommitOutcome.CONFLICT

    asyncio.run(scenario())


def test_changes_do_not_wait_behind_looks() -> None:
    """Thousands of logs may miss the same bookies at once, while the store is slow."""

    async def scenario() -> None:
        store, paths = MemoryStore(MemoryTree()), Paths("test")
        await store.start()
        await store.create(paths.log(LOG), encode_log(make_log()), make_parents=True)
        sync, may_sync = store.sync, asyncio.Event()
        under_way = 0

        async def sync_slowly(path: str) -> None:
            nonlocal under_way
            under_way += 1
            await may_sync.wait()
            await sync(path)

        store.sync = sync_slowly  # type: ignore[method-assign]
        link = MetadataLink(store, paths, SequencerId("s1"), "http://s1")
        async with asyncio.TaskGroup() as group:
            looks = [group.create_task(link.look_at_view(LOG)) for _ in range(200)]
            await wait_for(lambda: under_way == LOOK_COUNT_MAX)
            read = group.create_task(link.read_view(LOG))
            await wait_for(lambda: under_way == LOOK_COUNT_MAX + 1)
            may_sync.set()
        assert read.result() is not None
        assert all(look.result() == read.result() for look in looks)

    asyncio.run(scenario())


def test_ranges_are_merged_to_all_that_they_cover() -> None:
    assert merge_ranges([[0, 9], [2, 3]]) == [[0, 9]]
    assert merge_ranges([[5, 9], [0, 4], [20, 21]]) == [[0, 9], [20, 21]]


def test_the_owner_node_is_of_this_session_and_nobody_elses_is_touched() -> None:
    async def scenario() -> None:
        tree, paths = MemoryTree(), Paths("test")
        before, store = MemoryStore(tree), MemoryStore(tree)
        for one in (before, store):
            await one.start()
        owner = paths.owner(LOG)

        async def own(session: MemoryStore, name: str) -> None:
            fields = {"sequencer": name, "epoch": 1, "data_url": f"http://{name}"}
            await session.create(owner, encode_node(fields), ephemeral=True, make_parents=True)

        await own(before, "s1")
        link = MetadataLink(store, paths, SequencerId("s1"), "http://s1")
        assert await link.keep_owner(LOG, Epoch(1))
        await before.close()
        found = tree.get(owner)
        assert found is not None and found.ephemeral_session == store.session_id

        await link.drop_owner(LOG)
        assert tree.get(owner) is None
        await own(store, "s2")
        await link.drop_owner(LOG)
        found = tree.get(owner)
        assert found is not None and read_node(found.data)["sequencer"] == "s2"

    asyncio.run(scenario())
