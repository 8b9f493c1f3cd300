"""What keepers of metadata logs take up, tell, refuse and begin anew: decisions of `Keeping`.

One sequencer's host on a store in memory, before bookies that do everything at once and keep what
they are given. What may leave ZooKeeper and what counts is in `tests/unit/test_metadata_log.py`.
Source: docs/protocol/metadata-logs.md "Words", "The record", "Who may meet it".
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from duramen.core.metadata_log.listing import find_counting
from duramen.core.metadata_log.moving import METADATA_SEGMENT_COUNT_MAX
from duramen.ids import (
    Epoch,
    LogId,
)
from duramen.runtime.stores.memory_store import WriteFate
from duramen.wire.metadata_json import (
    encode_node,
    read_node,
)
from duramen.wire.nodes.formats import FORMATS, PROCESS_FORMATS
from duramen_sequencer.flexible.tree_format import TreeFormat
from duramen_sequencer.life import keeping
from duramen_sequencer.life.keeping import ASKED_AGAIN_S
from duramen_sequencer.life.metadata_logs import MetadataLogNodes
from tests.component.host_world import PATHS
from tests.component.keeping_world import LOG, METADATA_LOG, World, play
from tests.waiting import wait_for


class Clock:
    """As much of `time` as is asked for."""

    def __init__(self) -> None:
        self.now_s = 5.0

    def monotonic(self) -> float:
        return self.now_s


# --- What is due ---------------------------------------------------------------------------------


def test_nothing_is_due_at_a_log_that_is_nobodys_and_keeps_everything() -> None:
    async def scenario(world: World) -> None:
        assert not await world.want()
        assert not await world.want()
        assert (world.count("passes"), world.tree.ask_count) == (0, 0)
        assert await world.read(METADATA_LOG) is None, "no metadata log without need"

    play(scenario)


def test_what_was_released_is_due_until_it_has_moved() -> None:
    async def scenario(world: World) -> None:
        await world.release_epochs(3)
        before = await world.log()
        assert await world.want()
        log = await world.log()
        assert (log.metadata.through, world.count("moved")) == (3, 3)
        assert await world.store.children(PATHS.segments(LOG)) == ("4",)
        assert set(find_counting(log, await world.records())) == {1, 2, 3}
        assert log.first_hot_epoch == before.first_hot_epoch
        assert not (await world.log(METADATA_LOG)).unclosed_epochs
        assert not await world.want()
        assert (world.count("passes"), world.count("failed")) == (1, 0)

    play(scenario)


@pytest.mark.parametrize("what", ["deleted", "of metadata"])
def test_no_pass_is_made_at_a_log_that(what: str) -> None:
    async def scenario(world: World) -> None:
        await world.release_epochs(1)
        log = await world.log()
        if what == "deleted":
            log = replace(log, is_deleted=True)
        else:
            log = replace(log, log_id=METADATA_LOG)
        assert world.keeping.want(log) is None
        await world.rest()
        assert world.count("passes") == 0

    play(scenario)


def test_a_log_with_a_metadata_log_is_looked_at_once_by_a_new_process() -> None:
    # Another keeper may have died between its rewrite and the trim, which nothing else shows.
    async def scenario(world: World) -> None:
        await world.release_epochs(1)
        assert await world.want()
        await world.keeping.stop()
        world.keeping = world.make_keeping()
        world.keeping.start()
        assert await world.want()
        assert not await world.want()
        assert (world.count("passes"), world.count("epochs")) == (1, 0), "nothing was to be written"

    play(scenario)


def test_a_segment_whose_cold_copy_is_fresh_rests_and_is_named_again_then() -> None:
    async def scenario(world: World) -> None:
        until_ms, world.now_ms = world.now_ms, world.now_ms - 1
        await world.release_epochs(2)
        assert world.keeping.want(await world.log()) == world.now_ms, "when is not known yet"
        await world.rest()
        assert await world.read(METADATA_LOG) is None
        assert world.keeping.want(await world.log()) == until_ms
        await world.rest()
        assert world.count("passes") == 1, "it is not looked at before"
        world.now_ms = until_ms
        assert await world.want()
        assert (await world.log()).metadata.through == 2
        assert world.keeping.want(await world.log()) is None

    play(scenario)


# --- History -------------------------------------------------------------------------------------


def test_an_epoch_is_told_when_it_is_opened_and_again_when_it_is_closed() -> None:
    async def scenario(world: World) -> None:
        await world.own()
        assert await world.want()
        assert await world.told() == [(1, False, True)]
        assert not await world.want()
        assert len(await world.told()) == 1, "once"

        assert await world.roll() == 2
        assert await world.want()
        assert await world.told() == [(1, False, True), (1, True, False), (2, False, True)]

        assert await world.host.drivers[LOG].leave(5)
        assert await world.want()
        assert (await world.told())[3:] == [(2, True, False)]
        assert not await world.want()

    play(scenario)


def test_what_was_there_before_is_not_told_by_who_appends_to_nothing() -> None:
    async def scenario(world: World) -> None:
        await world.own()
        assert await world.host.drivers[LOG].leave(5)
        world.keeping = world.make_keeping()
        assert world.keeping.want(await world.log()) is None

    play(scenario)


def test_what_could_not_be_told_is_told_in_the_next_round() -> None:
    async def scenario(world: World) -> None:
        await world.own()
        world.tree.refusal = "s1 is of an older version"
        assert await world.want()
        assert await world.read(METADATA_LOG) is None
        world.tree.refusal = ""
        world.keeping._asked_again_at_s = 0
        assert await world.want(), "it is due still"
        assert await world.told() == [(1, False, True)]

    play(scenario)


def test_a_forgotten_log_is_as_new() -> None:
    async def scenario(world: World) -> None:
        await world.own()
        await world.want()
        world.keeping.forget_others({LOG})
        assert not await world.want()
        world.keeping.forget_others(set())
        assert await world.want()

    play(scenario)


# --- What is in the way --------------------------------------------------------------------------


def test_nothing_is_made_while_a_process_does_not_understand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        clock = Clock()
        monkeypatch.setattr(keeping, "time", clock)
        await world.hosts.setup.create(PATHS.cluster, encode_node({}), make_parents=True)
        tree = TreeFormat(world.store, PATHS)
        await world.keeping.stop()
        world.keeping = world.make_keeping(tree)
        world.keeping.start()
        await world.release_epochs(2)
        assert await world.want()
        assert "sequencer s0" in str(world.keeping.statistics()["obstacle"])
        assert await world.read(METADATA_LOG) is None
        assert not (await world.log()).metadata.epoch

        path = f"{PATHS.sequencers}/s0"
        await world.hosts.setup.set(path, encode_node({FORMATS: dict(PROCESS_FORMATS)}), version=0)
        clock.now_s += ASKED_AGAIN_S - 1
        assert await world.want()
        assert await world.read(METADATA_LOG) is None, "nobody was asked again yet"
        clock.now_s += 1
        assert await world.want()
        assert world.keeping.statistics()["obstacle"] == ""
        assert (await world.log()).metadata.through == 2
        found = await world.store.get(PATHS.cluster)
        assert found is not None and read_node(found.data)["format"] == 3
        assert world.count("failed") == 0

    play(scenario)


def test_nothing_moves_where_there_are_too_few_bookies() -> None:
    async def scenario(world: World) -> None:
        context = world.hosts.contexts["s0"]
        everybody, context.candidates = context.candidates, context.candidates[:1]
        await world.release_epochs(2)
        assert await world.want()
        assert "too few bookies" in str(world.keeping.statistics()["obstacle"])
        assert await world.read(METADATA_LOG) is None
        context.candidates = everybody
        assert await world.want()
        assert world.keeping.statistics()["obstacle"] == ""
        assert (await world.log()).metadata.through == 2

    play(scenario)


def test_a_log_that_is_another_ones_by_now_is_left_alone() -> None:
    async def scenario(world: World) -> None:
        await world.release_epochs(2)
        world.is_ours = lambda _: False
        assert await world.want()
        assert await world.read(METADATA_LOG) is None and not world.count("failed")

        world.is_ours = lambda log: not log.metadata.epoch
        assert await world.want()
        log = await world.log()
        assert (log.metadata.epoch, log.metadata.through) == (1, 0), "claimed, then let go"
        assert not (await world.log(METADATA_LOG)).unclosed_epochs, "what it had open is closed"

    play(scenario)


def test_a_keeper_waits_until_what_another_one_left_is_closed() -> None:
    async def scenario(world: World) -> None:
        await world.release_epochs(1)
        driver = world.host.drive(METADATA_LOG)
        driver.take_over(close_only=True)
        assert not driver.is_done
        assert await world.want()
        assert await world.read(METADATA_LOG) is None
        driver.release()
        assert await world.want()
        assert (await world.log()).metadata.through == 1

    play(scenario)


def test_nothing_is_claimed_while_what_was_left_is_being_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        await world.release_epochs(1)
        make = world.keeping._nodes.make

        async def make_late(want: Any, **options: Any) -> None:
            await make(want, **options)
            world.host.drive(METADATA_LOG).take_over(close_only=True)  # the scan has found it

        monkeypatch.setattr(world.keeping._nodes, "make", make_late)
        assert await world.want()
        assert (world.count("failed"), (await world.log()).metadata.epoch) == (0, 0)
        world.host.drivers[METADATA_LOG].release()
        assert await world.want()
        assert (await world.log()).metadata.through == 1

    play(scenario)


def test_what_a_keeper_has_open_is_no_orphan_when_its_turn_comes() -> None:
    async def scenario(world: World) -> None:
        world.shelves.deaf.add(METADATA_LOG)
        await world.release_epochs(1)
        world.keeping.want(await world.log())
        await wait_for(lambda: world.shelves.unanswered_count > 0)
        world.host.take_over(METADATA_LOG, demand=0)
        assert METADATA_LOG not in world.host.drivers
        assert not world.host._takeovers._running, "and its place is free"

    play(scenario)


def test_a_claim_that_conflicts_is_not_made_again_in_the_same_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        await world.release_epochs(1)
        bind_claim = MetadataLogNodes.bind_claim

        def bind_to_an_older(self: Any, want: Any, epoch: Epoch, nonce: str) -> Any:
            return bind_claim(self, replace(want, version=want.version - 1), epoch, nonce)

        monkeypatch.setattr(MetadataLogNodes, "bind_claim", bind_to_an_older)
        assert await world.want()
        assert (await world.log(METADATA_LOG)).next_epoch == 1, "all of it or nothing"
        assert (world.count("epochs"), world.count("failed")) == (0, 0)
        monkeypatch.undo()
        assert await world.want()
        assert (await world.log()).metadata.through == 1

    play(scenario)


# --- What fails ----------------------------------------------------------------------------------


@pytest.mark.parametrize("fate", list(WriteFate))
def test_a_change_of_unknown_fate_is_judged_by_what_stands_there(
    fate: WriteFate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(world: World) -> None:
        await world.release_epochs(2)
        commit = MetadataLogNodes.commit

        async def doomed(self: MetadataLogNodes, want: Any) -> None:
            if world.count("moved") == 0:
                world.store.doom_next_write(fate)
            await commit(self, want)

        monkeypatch.setattr(MetadataLogNodes, "commit", doomed)
        assert await world.want()
        assert (await world.log()).metadata.through == 2
        world.store.deliver_late_writes()
        listed = find_counting(await world.log(), await world.records())
        assert sorted(listed) == [1, 2], "what came late changed nothing"

    play(scenario)


def test_a_pass_that_fails_is_made_anew_in_the_next_round() -> None:
    async def scenario(world: World) -> None:
        await world.release_epochs(2)
        path = PATHS.segment(LOG, Epoch(2))
        found = await world.hosts.setup.get(path)
        assert found is not None
        await world.hosts.setup.set(path, b"{}", version=found.version)
        assert await world.want()
        assert (world.count("failed"), (await world.log()).metadata.through) == (1, 0)
        await world.hosts.setup.set(path, found.data, version=found.version + 1)
        assert await world.want()
        assert (world.count("failed"), (await world.log()).metadata.through) == (1, 2)

    play(scenario)


def test_a_pass_without_answers_ends_and_the_next_one_closes_what_it_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        passes: list[asyncio.Timeout] = []

        def begin(delay_s: float | None) -> asyncio.Timeout:
            begun = timeout(delay_s)
            passes.extend([begun] * (delay_s == keeping.PASS_S))
            return begun

        timeout = asyncio.timeout
        monkeypatch.setattr(asyncio, "timeout", begin)
        world.shelves.deaf.add(METADATA_LOG)
        await world.release_epochs(2)
        world.keeping.want(await world.log())
        await wait_for(lambda: world.shelves.unanswered_count > 0)
        passes[0].reschedule(asyncio.get_running_loop().time())
        await world.rest()
        assert (world.count("failed"), world.count("moved")) == (1, 0)
        assert (await world.log(METADATA_LOG)).unclosed_epochs == (1,)
        assert not world.host._metadata_drivers, "nothing of it is left here"

        monkeypatch.undo()
        world.shelves.deaf.clear()
        assert await world.want()
        log, metadata_log = await world.log(), await world.log(METADATA_LOG)
        assert (log.metadata.epoch, log.metadata.through) == (2, 2)
        assert not metadata_log.unclosed_epochs

    play(scenario)


def test_a_lost_session_ends_what_is_under_way_and_what_waits() -> None:
    async def scenario(world: World) -> None:
        world.shelves.deaf.add(METADATA_LOG)
        await world.release_epochs(2)
        world.keeping.want(await world.log())
        await wait_for(lambda: world.shelves.unanswered_count > 0)
        (work,), driver = world.keeping._passes, world.host._metadata_drivers[METADATA_LOG]
        world.keeping._waiting[LogId(77)] = None
        world.store.disconnect()
        await wait_for(work.done)
        assert not world.keeping._waiting
        assert work.cancelled() and not world.host._metadata_drivers
        assert driver.fault is None, "an answer that nobody waits for any more"
        assert driver.is_done, "or nobody would close its epoch while this process lives"
        world.shelves.deaf.clear()
        world.store.reconnect()
        assert await world.want(), "the workers go on"
        assert (await world.log()).metadata.through == 2

    play(scenario)


def test_history_whose_epoch_was_fenced_is_told_in_the_next_round() -> None:
    async def scenario(world: World) -> None:
        world.shelves.deaf.add(METADATA_LOG)
        await world.own()
        world.keeping.want(await world.log())
        await wait_for(lambda: world.shelves.unanswered_count > 0)
        world.fence()
        await world.rest()
        assert world.count("failed") == 0 and not await world.told()
        world.shelves.deaf.clear()
        assert await world.want()
        assert await world.told() == [(1, False, True)]

    play(scenario)


@pytest.mark.parametrize("is_appending", [False, True])
def test_an_epoch_that_is_fenced_is_let_go_and_no_other_one_is_claimed(is_appending: bool) -> None:
    async def scenario(world: World) -> None:
        world.shelves.deaf.add(METADATA_LOG)
        await world.release_epochs(2)
        world.keeping.want(await world.log())
        if is_appending:
            await wait_for(lambda: world.shelves.unanswered_count > 0)
        else:
            await wait_for(lambda: world.count("epochs") == 1)
        driver = world.fence()
        await world.rest()
        assert driver.fault is None
        assert (await world.log(METADATA_LOG)).next_epoch == 2, "nobody claims but a keeper"
        assert (await world.log()).metadata.through == 0
        world.shelves.deaf.clear()
        assert await world.want()
        assert (await world.log()).metadata.through == 2

    play(scenario)


# --- Rewriting -----------------------------------------------------------------------------------


def test_a_metadata_log_of_many_epochs_is_rewritten_and_trimmed() -> None:
    async def scenario(world: World) -> None:
        for _ in range(METADATA_SEGMENT_COUNT_MAX + 3):
            await world.release_epochs(1)
            assert await world.want()
        log, metadata_log = await world.log(), await world.log(METADATA_LOG)
        first = log.metadata.first_lsn
        assert first is not None and metadata_log.trim.lsn == first
        assert (world.count("rewrites"), world.count("trims")) == (1, 1)
        assert metadata_log.truncated_unix_ms == world.now_ms
        counting = find_counting(log, await world.records())
        assert sorted(counting) == list(range(1, log.metadata.through + 1))
        assert world.shelves.read_count >= METADATA_SEGMENT_COUNT_MAX

    play(scenario)
