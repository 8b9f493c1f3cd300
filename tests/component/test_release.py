"""Hot copies released by retention, on a store in memory: the one change, and its races.

What may be released is judged in tests/unit/test_release.py. Source: docs/protocol/archive.md, R3.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from duramen.core.cold_copy import ColdCopy
from duramen.core.segment import Segment
from duramen.ids import Epoch, LogId
from duramen.runtime.stores.metadata_store import Op, Set
from duramen.wire.metadata_json import encode_segment, read_segment
from tests.component.life_world import HOUR_MS, PATHS, World, run

COPY = ColdCopy("0a" * 16, "1b" * 32, size_bytes=100, verified_unix_ms=5)
MOVE = {"tiering": {"policy": "move", "keep_hot": "1h"}, "retention": {"age": None}}


async def change_segment(
    world: World, log_id: str, epoch: int, change: Callable[[Segment], Segment]
) -> None:
    path = PATHS.segment(LogId(int(log_id)), Epoch(epoch))
    stored = await world.store.get(path)
    assert stored is not None
    segment = change(read_segment(stored.data))
    await world.store.set(path, encode_segment(segment), version=stored.version)


async def archive(world: World, log_id: str, *epochs: int) -> None:
    """Two changes, as the archive makes them: verified, and found whole again."""
    for epoch in epochs:
        await change_segment(world, log_id, epoch, lambda s: s.with_cold_copy(COPY, "cold"))
        await change_segment(world, log_id, epoch, lambda s: s.with_recheck(9, "again"))


async def make_log(world: World, *counts: int) -> str:
    log_id = await world.create(MOVE)
    await world.add_segments(log_id, *counts)
    world.now_ms = HOUR_MS
    return log_id


async def first_hot(world: World, log_id: str) -> int:
    return (await world.log(log_id)).first_hot_epoch


def test_what_is_archived_leaves_the_bookies_and_stays_in_the_log() -> None:
    async def act(world: World) -> None:
        log_id = await make_log(world, 5, 3, 4)
        await archive(world, log_id, 1, 2)
        await world.run_rounds()
        log = await world.log(log_id)
        assert (log.first_hot_epoch, log.first_live_epoch, log.trim_seq_num) == (3, 1, 0)
        assert await world.segments(log_id) == ("1", "2", "3"), "readers need the nodes"
        assert world.retention.statistics()["segments_released"] == 2
        assert world.retention.statistics()["waiting_for_archive"] == {log_id: 3}
        await archive(world, log_id, 3)
        await world.run_rounds(1)
        assert await first_hot(world, log_id) == 3, "looked at again after ten minutes"
        world.retention.want_round()
        await world.run_rounds()
        assert await first_hot(world, log_id) == 4
        assert world.retention.statistics()["waiting_for_archive"] == {}

    run(act)


def before_the_release(world: World, act: Callable[[], Awaitable[None]]) -> None:
    """Something happens between the judgement and the change."""
    commit = world.store.commit

    async def late(ops: list[Op]) -> Any:
        world.store.commit = commit  # type: ignore[method-assign]
        await act()
        return await commit(ops)

    world.store.commit = late  # type: ignore[assignment, method-assign]


def test_a_copy_that_is_found_broken_in_between_keeps_the_hot_ones() -> None:
    async def act(world: World) -> None:
        log_id = await make_log(world, 5, 3)
        await archive(world, log_id, 1, 2)

        async def break_second() -> None:
            await change_segment(world, log_id, 2, lambda s: s.without_cold_copy("broken"))

        before_the_release(world, break_second)
        await world.run_rounds(1)
        assert await first_hot(world, log_id) == 1
        assert world.retention.statistics()["conflicts"] == 1
        await world.run_rounds(1)
        assert await first_hot(world, log_id) == 2, "judged anew: the first one may still go"

    run(act)


def test_whoever_changes_the_log_node_first_wins() -> None:
    async def act(world: World) -> None:
        log_id = await make_log(world, 5, 3)
        await archive(world, log_id, 1, 2)

        async def truncate() -> None:
            assert (await world.ask("truncate", log_id=log_id, to="seq:5"))["changed"]

        before_the_release(world, truncate)
        await world.run_rounds(1)
        log = await world.log(log_id)
        assert (log.first_hot_epoch, log.trim_seq_num) == (1, 5)
        await world.run_rounds(1)
        assert await first_hot(world, log_id) == 3

    run(act)


def test_released_segments_go_with_the_log_and_come_back_with_it() -> None:
    async def act(world: World) -> None:
        log_id = await make_log(world, 5, 3)
        await archive(world, log_id, 1, 2)
        await world.run_rounds()
        await world.ask("delete", log_id=log_id)
        await world.run_rounds()
        assert (await world.ask("undelete", namespace="ns", log="log"))["log_id"] == log_id
        log = await world.log(log_id)
        assert (log.first_hot_epoch, log.is_deleted) == (3, False)
        assert await world.segments(log_id) == ("1", "2")
        await world.ask("delete", log_id=log_id)
        world.now_ms += HOUR_MS
        await world.run_rounds()
        assert (await world.log(log_id)).is_purged and await world.segments(log_id) == ()

    run(act)


def test_a_deleted_log_releases_nothing() -> None:
    async def act(world: World) -> None:
        log_id = await make_log(world, 5)
        await archive(world, log_id, 1)
        await world.ask("delete", log_id=log_id)
        await world.run_rounds()
        assert await first_hot(world, log_id) == 1

    run(act)


def test_released_and_truncated_segments_are_given_up_as_others() -> None:
    async def act(world: World) -> None:
        log_id = await world.create({**MOVE, "retention": {"age": "2h", "truncated": "0s"}})
        await world.add_segments(log_id, 5, 3)
        await archive(world, log_id, 1, 2)
        world.now_ms = HOUR_MS
        await world.run_rounds()
        assert await first_hot(world, log_id) == 3
        world.now_ms = 2 * HOUR_MS
        await world.run_rounds(3)
        log = await world.log(log_id)
        assert (log.trim_seq_num, log.first_live_epoch, log.first_hot_epoch) == (8, 3, 3)
        assert await world.segments(log_id) == ()

    run(act)


def test_the_release_checks_every_segment_that_it_passes() -> None:
    async def act(world: World) -> None:
        log_id = await make_log(world, 1, 1, 1)
        await archive(world, log_id, 1, 2)
        seen: list[Op] = []
        commit = world.store.commit

        async def watch(ops: list[Op]) -> Any:
            seen.extend(ops)
            return await commit(ops)

        world.store.commit = watch  # type: ignore[assignment, method-assign]
        await world.run_rounds(1)
        paths = [op.path for op in seen if not isinstance(op, Set)]
        assert paths == [PATHS.segment(LogId(int(log_id)), Epoch(epoch)) for epoch in (1, 2)]

    run(act)
