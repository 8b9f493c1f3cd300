"""What the embedded core library reads, and what is in the log: positions, tail, what is gone.

The bookies and nodes of `readproxy_world`; the parts that read are the read proxy's own, without
HTTP between. What bookies may do to a reader is in the read proxy's tests.
Source: docs/protocol/reading.md, docs/sdk.md.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from duramen.client import DuramenError, Moved, ReadBatch
from duramen.client.core.read_log import ReadLog
from duramen.core.log_node import Ending
from tests.component.core_reading import open_log, read
from tests.component.losses import lose
from tests.component.readproxy_world import World, run
from tests.component.truncations import finish, give_up_below_e3n1s1, lose_segment, wait_stuck
from tests.waiting import wait_for


@pytest.mark.parametrize(
    ("from_", "options", "expected"),
    [
        ("head", {}, range(31)),
        (0, {"count": 5}, range(5)),
        (7, {"until": 20}, range(7, 20)),
        (7, {"until": 20, "count": 3}, range(7, 10)),
        (7, {"until": 9, "count": 3}, range(7, 9)),
        ("tail-4", {}, range(27, 31)),
        ("dlsn:e2n2s1", {"count": 9}, range(17, 26)),
        ("lsn:e3n0", {}, range(22, 31)),
        ("time:1029", {}, range(26, 31)),
        (31, {}, ()),
        (30, {"count": 0}, ()),
    ],
)
def test_records_are_read_from_a_position_to_a_bound(
    from_: str | int, options: dict[str, int], expected: range
) -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        log = open_log(world)
        assert await read(log, from_, **options) == list(expected)
        assert (await log.tail()).seq_num == 31
        with pytest.raises(DuramenError, match="beyond_tail"):
            await read(log, 32)

    run(scenario)


def test_a_follower_gets_what_comes_until_the_log_ends() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        batches: list[ReadBatch] = []
        follower = asyncio.create_task(
            collect(open_log(world), batches, from_="seq:20", follow=True)
        )
        await wait_for(lambda: world.proxy.fetcher.statistics()["long_polls"] > 0)
        assert batches[-1].end == 31
        await world.append(5)
        await wait_for(lambda: batches[-1].end == 36)
        await world.close_segment()
        await world.open_segment()
        await world.append(1, 1)
        await finish(world, Ending.END)
        await follower
        numbers = [record.seq_num for batch in batches for record in batch]
        assert numbers == list(range(20, 38))

    run(scenario)


def test_a_reader_below_which_the_log_is_truncated_goes_on_at_what_is_left() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        lose_segment(world, 2)
        batches: list[ReadBatch] = []
        reading = asyncio.create_task(collect(open_log(world), batches, count=15))
        await wait_stuck(world, 2)
        await give_up_below_e3n1s1(world)
        await reading
        numbers = [record.seq_num for batch in batches for record in batch]
        assert numbers == [*range(13), 27, 28], "the count is of records"
        assert [b.moved_to for b in batches if b.moved_to is not None] == [Moved("seq:13", 27)]

    run(scenario)


async def collect(log: ReadLog, batches: list[ReadBatch], **options: Any) -> None:
    async for batch in log.read(**options):
        batches.append(batch)


def test_what_is_lost_is_an_error_and_not_a_gap() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        await lose(world, 1, 2)
        batches: list[ReadBatch] = []
        with pytest.raises(DuramenError, match="data_lost"):
            await collect(open_log(world), batches)
        assert [record.seq_num for batch in batches for record in batch] == list(range(3))

    run(scenario)


def test_a_tail_that_may_be_too_low_is_shown_to_nobody() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        await world.append(2, is_confirmed=False)
        log, batches = open_log(world), list[ReadBatch]()
        with pytest.raises(DuramenError, match="data_unavailable"):
            await log.tail()
        with pytest.raises(DuramenError, match="data_unavailable"):
            await collect(log, batches)
        assert [record.seq_num for batch in batches for record in batch] == list(range(31))

    run(scenario)
