"""The tail of a log that commits by control entries: right, and found without waiting for a LAC.

Source: docs/protocol/write.md "Acknowledgement", docs/protocol/read-answers.md.
"""

from __future__ import annotations

from dataclasses import replace

from duramen.config import parse_log_config
from duramen.ids import EntryId
from duramen.wire.entry import CONTROL, encode_entry
from tests.component.readproxy_world import World, check, run


async def append_control(world: World, lac: int | None = None) -> None:
    """The writer's entry without records, which carries the LAC of what is before it."""
    assert world.segment is not None
    ledger_id, entry_id = world.segment.ledger_id, world.entry_count
    body = encode_entry(
        ledger_id=ledger_id, entry_id=EntryId(entry_id), before=world.totals, batches=(),
        record_count=0, after=world.totals, flags=CONTROL,
    )  # fmt: skip
    for member in world.segment.members:
        await world.bookies[member.bookie].change(
            ledger_id, entry_id - 1 if lac is None else lac, (entry_id, body)
        )
    world.entry_count += 1


def poll_count(world: World) -> int:
    return sum(read.wait_ms > 0 for b in world.bookies.values() for read in b.reads)


def test_a_control_entry_shows_the_tail_and_is_never_delivered() -> None:
    async def scenario(world: World) -> None:
        world.log = replace(world.log, config=parse_log_config({"commit": "control"}))
        await world.open_segment()
        await world.append(2, is_confirmed=False)
        await append_control(world)
        answer = await world.read()
        check(world, answer, 0, 2)
        assert answer["tail"]["seq_num"] == 2
        assert (await world.read("?from=tail-1"))["records"][0]["seq_num"] == 1
        assert poll_count(world) == 0, "nothing is waited for: no record lies above the LAC"
        await world.append(3, is_confirmed=False)
        assert "tail" not in await world.read("?from=seq:2"), "nobody knows yet where the log ends"
        assert poll_count(world) > 0, "a record may be: the writer is given a moment"
        await append_control(world)
        await append_control(world)
        await world.close_segment()
        check(world, await world.read(), 0, 5)
        check(world, await world.read("?from=seq:2"), 2, 5)
        await world.open_segment()
        await world.append(1)
        check(world, await world.read("?from=seq:4"), 4, 6)

    run(scenario)


def test_a_snapshot_in_parts_hides_no_tail() -> None:
    """Its entries are sent at once, so none of them carries a LAC above what was acknowledged."""

    async def scenario(world: World) -> None:
        world.log = replace(world.log, config=parse_log_config({"commit": "control"}))
        await world.open_segment()
        await world.append(2)
        for _ in range(3):
            await append_control(world, lac=0)
        answer = await world.read()
        check(world, answer, 0, 2)
        assert answer["tail"]["seq_num"] == 2 and poll_count(world) == 0

    run(scenario)
