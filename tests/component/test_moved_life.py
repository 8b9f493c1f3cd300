"""A sequencer looks after a log whose segments' metadata have moved to its metadata log.

Retention and truncations read them there; audits and drains do not, and look after the metadata log
as after any other. What cannot be read is no reason to give anything up.
Source: docs/protocol/metadata-logs.md "Reading", "Attacks" 12 and 13.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from duramen.core.cold_copy import ColdCopy
from duramen.core.log_node import LogNode
from duramen.core.repair.audit import live_epochs
from duramen.ids import EntryId, Epoch, LogId, SequencerId, ledger_of, metadata_log_of
from duramen.runtime.sequencer.metadata_link import MetadataLink
from duramen.wire.metadata_json import encode_log, encode_segment, read_segment
from duramen_sequencer.repair.readings import LogAudit, Readings
from tests.component import repair_world
from tests.component.life_world import HOUR_MS, PATHS, World, run
from tests.component.moved_segments import MovedSegments, released
from tests.component.repair_world import RepairWorld
from tests.unit.repair_world import make_segment
from tests.waiting import wait_for

COPY = ColdCopy("0a" * 16, "1b" * 32, size_bytes=100, verified_unix_ms=5, rechecked_unix_ms=9)
MOVE = {"tiering": {"policy": "move", "keep_hot": "1h"}}
COUNTS = (5, 3, 4, 2)
THROUGH = 3
METADATA_LOG = metadata_log_of(LogId(5))


async def archive(world: World, log_id: str, epochs: Iterable[int]) -> None:
    for epoch in epochs:
        path = PATHS.segment(LogId(int(log_id)), Epoch(epoch))
        stored = await world.store.get(path)
        assert stored is not None
        segment = read_segment(stored.data).with_cold_copy(COPY, "cold")
        await world.store.set(path, encode_segment(segment), version=stored.version)


async def make_moved(
    world: World, retention: dict[str, Any], *, unrecorded: tuple[int, ...] = ()
) -> str:
    """Four segments of five, three, four and two records; three are released and have moved."""
    log_id = await world.create({**MOVE, "retention": retention})
    await world.add_segments(log_id, *COUNTS)
    await archive(world, log_id, range(1, THROUGH + 1))
    world.now_ms = HOUR_MS
    await world.run_rounds()
    assert (await world.log(log_id)).first_hot_epoch == THROUGH + 1
    await world.moved.move(THROUGH, unrecorded=unrecorded)
    return log_id


async def state(world: World, log_id: str) -> tuple[int, int, int]:
    """How many records are truncated, the first live epoch, the first hot one."""
    log = await world.log(log_id)
    return log.trim_seq_num, log.first_live_epoch, log.first_hot_epoch


# --- Retention ------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_required", [False, True])
@pytest.mark.parametrize("limit", [{"age": "2h"}, {"age": None, "bytes": "95"}])
def test_what_has_moved_is_truncated_and_given_up_by_age_and_size(
    limit: dict[str, Any], is_required: bool
) -> None:
    async def act(world: World) -> None:
        retention = {**limit, "truncated": "1h", "require_cold_copy": is_required}
        log_id = await make_moved(world, retention)
        await world.add_segments(log_id, 100)
        world.now_ms = 2 * HOUR_MS
        await world.run_rounds()
        # Of what is hot the fourth has no copy yet.
        trimmed = 12 if is_required else 14
        assert (await state(world, log_id))[:2] == (trimmed, 1)
        world.now_ms += HOUR_MS
        await world.run_rounds()
        assert (await state(world, log_id))[1] == (4 if is_required else 5)

    run(act)


@pytest.mark.parametrize("unrecorded", [(), (1,), (3,)])
def test_what_cannot_be_read_is_no_reason_to_give_anything_up(unrecorded: tuple[int, ...]) -> None:
    async def act(world: World) -> None:
        retention = {"age": "2h", "truncated": "1h"}
        log_id = await make_moved(world, retention, unrecorded=unrecorded)
        await world.ask("truncate", log_id=log_id, to="tail")
        world.moved.is_away = not unrecorded
        trimmed = await state(world, log_id)
        assert trimmed == (14, 1, 4)
        world.now_ms = 9 * HOUR_MS
        await world.run_rounds()
        assert await state(world, log_id) == trimmed, "its time has come, and nothing is known"
        # Hot copies do not wait for it.
        await archive(world, log_id, [4])
        world.retention.want_round()
        await world.run_rounds()
        assert await state(world, log_id) == (14, 1, 5)
        if not unrecorded:
            world.moved.is_away = False
            await world.run_rounds()
            assert await state(world, log_id) == (14, 5, 5)

    run(act)


def test_a_node_that_was_put_back_is_read_before_any_record() -> None:
    async def act(world: World) -> None:
        log_id = await make_moved(world, {"age": "2h", "truncated": "1h"}, unrecorded=(2,))
        world.now_ms = 2 * HOUR_MS
        await world.run_rounds()
        assert (await state(world, log_id))[:2] == (0, 1)
        segment = make_segment([(0, "abc")], 2, log_id=int(log_id), epoch=2)
        segment = replace(segment, start_seq_num=5, completed_unix_ms=0)
        path = PATHS.segment(LogId(int(log_id)), Epoch(2))
        await world.store.create(path, encode_segment(segment))
        await world.run_rounds()
        assert (await state(world, log_id))[:2] == (14, 1)

    run(act)


# --- Truncations ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("to", "seq_num"), [("seq:5", 5), ("lsn:e3n0", 8), ("dlsn:e2n0s0", 5), ("tail-6", 8)]
)
def test_a_truncation_to_what_has_moved(to: str, seq_num: int) -> None:
    async def act(world: World) -> None:
        log_id = await make_moved(world, {"age": None})
        world.moved.is_away = True
        refused = await world.refused("truncate", log_id=log_id, to=to)
        assert refused.code == "metadata_unavailable"
        assert (await world.log(log_id)).trim_seq_num == 0
        world.moved.is_away = False
        answer = await world.ask("truncate", log_id=log_id, to=to)
        assert answer["head"]["seq_num"] == seq_num and world.moved.read_count
        assert (await state(world, log_id))[:2] == (seq_num, 1)

    run(act)


def test_a_truncation_to_what_is_hot_reads_none_of_what_has_moved() -> None:
    async def act(world: World) -> None:
        log_id = await make_moved(world, {"age": None})
        await world.add_segments(log_id, 3)
        world.moved.is_away = True
        for to, seq_num in (("seq:12", 12), ("lsn:e5n0", 14), ("tail", 17)):
            answer = await world.ask("truncate", log_id=log_id, to=to)
            assert answer["head"]["seq_num"] == seq_num
        assert world.moved.read_count == 0

    run(act)


# --- Audits ---------------------------------------------------------------------------------------


def play(act: Callable[[RepairWorld], Awaitable[None]]) -> None:
    async def scenario() -> None:
        async with repair_world.repair_world("abcde") as world:
            await act(world)

    asyncio.run(scenario())


async def add_moved(world: RepairWorld) -> LogNode:
    """Three segments of which the first two have moved; the metadata log lies on b, c and d."""
    segments = [make_segment([(0, "abc")], 9, epoch=epoch, proved=True) for epoch in (1, 2)]
    segments = [segment.with_cold_copy(COPY, "c") for segment in segments]
    log = await world.add(*segments, make_segment([(0, "cde")], 9, epoch=3, proved=True))
    found = await world.setup.get(PATHS.log(log.log_id))
    assert found is not None
    log = released(log, 2)
    data = encode_log(log)
    await world.setup.set(PATHS.log(log.log_id), data, version=found.version)
    moved = MovedSegments(world.setup, PATHS, log.log_id)
    await moved.move(2, ensemble=tuple(world.bookies[name].member for name in "bcd"))
    for name in "bcd":
        world.bookies[name].hold(ledger_of(METADATA_LOG, Epoch(1)), [EntryId(0)])
    for bookie in world.bookies.values():
        for segment in segments:
            bookie.entries.pop(segment.ledger_id, None)
    return log


def test_what_has_moved_is_asked_of_nobody_and_names_nobody() -> None:
    async def act(world: RepairWorld) -> None:
        log = await add_moved(world)
        seat = await world.seat(grace_s=1_000)
        await wait_for(lambda: seat.auditor.last_whole is not None)
        last = seat.auditor.last_whole
        assert last is not None and not last.unread_count and not seat.auditor.backlog.tasks
        assert (last.log_count, last.segment_count) == (2, 2)
        assert last.named == {**dict.fromkeys("be", 1), **dict.fromkeys("cd", 2)}
        assert list(live_epochs(log)) == [3]
        removal = await seat.operations.judge_disruption("a", "remove")
        assert [reason["code"] for reason in removal["reasons"]] == ["not_drained"]

    play(act)


def test_a_metadata_log_is_repaired_as_any_other() -> None:
    async def act(world: RepairWorld) -> None:
        await add_moved(world)
        await world.lose("b")
        await world.seat()
        await wait_for(lambda: is_repaired(world))
        segment = await world.segment(METADATA_LOG)
        assert "b" not in {member.bookie for member in segment.members} and not world.rolls
        world.assert_right(segment)

    async def is_repaired(world: RepairWorld) -> bool:
        return (await world.ensembles(METADATA_LOG)) != ["bcd"]

    play(act)


def test_nothing_is_concluded_of_bookies_while_a_metadata_log_cannot_be_read() -> None:
    async def act(world: RepairWorld) -> None:
        await add_moved(world)
        await world.remove(PATHS.segment(METADATA_LOG, Epoch(1)))
        link = MetadataLink(world.setup, PATHS, SequencerId("s0"), "http://s0")
        readings = Readings(link, grace_us=0)
        assert await walk(readings) == (2, ["segment 1 of log 2147483653 is not there"])
        await world.remove(PATHS.segments(METADATA_LOG))
        await world.remove(PATHS.log(METADATA_LOG))
        told = "log 2147483653, the metadata log of log 5, is not there"
        assert await walk(readings) == (1, [told])

    play(act)


async def walk(readings: Readings) -> tuple[int, list[str]]:
    """How many logs were visited, and what could not be read."""
    visited: list[LogNode] = []
    unread: list[str] = []

    async def visit(audit: LogAudit) -> None:
        visited.append(audit.log)
        async for _ in audit.segments:
            pass

    is_whole = await readings.walk(visit, unread.append, frozenset())
    assert is_whole == (not unread)
    return len(visited), unread
