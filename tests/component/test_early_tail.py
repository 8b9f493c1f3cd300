"""The tail of a log whose new owner took appends before it had recovered what the old one left.

They lie in a segment behind one that is not closed yet, and have no sequence number: nobody may
call the end of that one the tail. Source: docs/protocol/reading.md "The tail",
docs/protocol/ownership.md.
"""

from __future__ import annotations

import pytest

from duramen.core.status import BookieStatus
from duramen.ids import EntryId
from duramen.wire.metadata_json import encode_segment
from tests.component.readproxy_world import LOG, PATHS, A, B, C, D, World, check, run


async def leave_to_recovery(world: World, *, is_bounded: bool = True) -> None:
    """The open segment is in recovery, and the next one begins behind it."""
    assert world.segment is not None
    left = world.segment.marked("m")
    if is_bounded:
        left = left.bounded(EntryId(world.entry_count - 1), "b")
    await world.put(PATHS.segment(LOG, left.epoch), encode_segment(left))
    await world.open_segment()


@pytest.mark.parametrize("is_read_before", [False, True])
def test_what_lies_in_front_of_early_appends_is_no_tail(is_read_before: bool) -> None:
    async def scenario(world: World) -> None:
        await world.open_segment()
        await world.append(1, 2)
        if is_read_before:
            await world.read()
        await leave_to_recovery(world)
        answer = await world.read()
        check(world, answer, 0, 3)
        assert answer["tail"]["seq_num"] == 3, "nothing lies behind it yet"
        assert (await world.get("/tail")).json()["tail"]["seq_num"] == 3
        await world.append(1)
        refused = await world.get("/tail")
        assert refused.status_code == 503, refused.text
        assert refused.json()["code"] == "data_unavailable"
        answer = await world.read()
        assert len(answer["records"]) == 3 and "tail" not in answer

    run(scenario)


def test_early_appends_at_a_member_that_was_replaced_since_are_no_less_there() -> None:
    """Two bookies stored the entry: one was replaced, and the other does not answer."""

    async def scenario(world: World) -> None:
        await world.open_segment((A, B, C))
        await world.append(3)
        await leave_to_recovery(world)
        await world.append(1)
        assert world.segment is not None
        del world.bookies[A.bookie].entries[world.segment.ledger_id, EntryId(0)]
        await world.change_ensemble((A, B, D))
        world.bookies[B.bookie].status = BookieStatus.OVERLOADED
        refused = await world.get("/tail")
        assert refused.status_code == 503, refused.text
        assert refused.json()["code"] == "data_unavailable"

    run(scenario)


def test_a_segment_without_a_bound_has_nothing_behind_it() -> None:
    """A takeover that waits for recovery opens the next one and sends it nothing."""

    async def scenario(world: World) -> None:
        await world.open_segment()
        await world.append(3)
        await leave_to_recovery(world, is_bounded=False)
        assert (await world.get("/tail")).json()["tail"]["seq_num"] == 3

    run(scenario)
