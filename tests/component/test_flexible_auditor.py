"""The auditor beside a flexible segment: rows that go, rows that come, and what stops it.

What one attempt decides is tested on its core (`tests/unit/test_flexible_repair.py`). Source: R26,
docs/protocol/repair.md "Repair of a flexible segment".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

import pytest

from duramen.core.duty import Duty
from duramen.core.flexible.nodeset import ServingBookie
from duramen.core.flexible.property import ReplicationProperty
from duramen.core.flexible.repair.evidence import DamageMark, Evidence
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.segment_base import Totals
from duramen.ids import BookieId, EntryId, Epoch, LogId, lsn_of
from duramen.runtime.sequencer.log_driver import now_us
from duramen.units import SECOND
from duramen.wire.metadata_json import encode_log
from duramen_sequencer.repair.flexible.changes import SegmentChanges
from tests.component.repair_world import PATHS, RepairWorld, identity_of, repair_world
from tests.unit.repair_world import member
from tests.waiting import wait_for

Act = Callable[[RepairWorld], Awaitable[None]]

COPIES: Final = {"a": "013467", "b": "0245", "c": "12356", "d": "7"}
"""Each entry at two bookies; each bookie is a rack."""


def run(act: Act, names: str = "abcde") -> None:
    async def play() -> None:
        async with repair_world(names) as world:
            await act(world)

    asyncio.run(play())


def serving(name: str) -> ServingBookie:
    return ServingBookie(BookieId(name), "r", f"k-{name}", member(name).incarnation)


def opened(names: str = "abcd") -> FlexibleSegment:
    return FlexibleSegment.opened(
        LogId(5), Epoch(1), ReplicationProperty(2, 2), [serving(name) for name in names],
        ack_mode="ordered", placement="strict", created_unix_ms=1, nonce="o",
    )  # fmt: skip


def closed(names: str = "abcd", last: int = 7) -> FlexibleSegment:
    return opened(names).closed_by_owner(
        last_entry=EntryId(last), totals=Totals(8, 800), start_seq_num=0, completed_unix_ms=2,
        nonce="c",
    )  # fmt: skip


async def wait_rows(world: RepairWorld, names: str) -> FlexibleSegment:
    async def hold() -> bool:
        segment = await world.flexible()
        return "".join(sorted(row.node.bookie for row in segment.nodes)) == names

    await wait_for(hold)
    return await world.flexible()


def assert_held(world: RepairWorld, segment: FlexibleSegment, first: int = 0) -> None:
    """RP holds for each entry, at bookies that are in the map."""
    for entry in range(first, (segment.last_entry or 0) + 1):
        identity = identity_of(segment.ledger_id, EntryId(entry))
        holders = [
            row.node
            for row in segment.nodes
            if world.bookies[row.node.bookie].member == row.member
            and world.bookies[row.node.bookie]
            .entries.get(segment.ledger_id, {})
            .get(EntryId(entry))
            == identity
        ]
        assert segment.replication.is_satisfied_by(holders), (entry, holders)


def test_a_lost_bookie_is_taken_out_when_the_others_hold_everything() -> None:
    async def act(world: RepairWorld) -> None:
        await world.add_flexible(closed(), COPIES)
        for bookie in world.bookies.values():
            bookie.rows_per_call = 3  # so that calls have to go on where the last one ended
        await world.lose("a")
        seat = await world.seat()
        segment = await wait_rows(world, "bcd")
        assert_held(world, segment)
        assert segment.nodeset_version == 1 and segment.is_proved
        assert not world.bookies["e"].entries, "the map was enough"
        maps = [one for bookie in world.bookies.values() for one in bookie.node_maps]
        assert maps and all(one is not None and one.numbers == (0, 1, 2, 3) for one in maps)
        await wait_for(lambda: not seat.auditor.backlog.tasks)

    run(act)


def test_a_bookie_is_added_where_the_map_is_not_enough() -> None:
    async def act(world: RepairWorld) -> None:
        await world.add_flexible(closed("ab"), {"a": "01234567", "b": "01234567"})
        await world.lose("a")
        seat = await world.seat()
        await wait_for(lambda: seat.auditor.commits.statistics().get("removals") == 1)
        segment = await world.flexible()
        assert len(segment.nodes) == 2 and segment.next_number == 3
        assert_held(world, segment)

    run(act)


def test_who_keeps_no_envelopes_is_not_added() -> None:
    async def act(world: RepairWorld) -> None:
        await world.add_flexible(closed("ab"), {"a": "01234567", "b": "01234567"})
        for name in "cde":
            await world.publish(name, formats={})
        await world.lose("a")
        seat = await world.seat()
        await wait_for(lambda: bool(seat.auditor.backlog.list_unrepairable()))
        assert "no bookie can take the copies" in seat.auditor.backlog.list_unrepairable()[0].reason
        assert len((await world.flexible()).nodes) == 2

    run(act)


def test_without_marks_nobody_is_taken_out_and_nothing_copied() -> None:
    async def act(world: RepairWorld) -> None:
        await world.add_flexible(closed(), COPIES)
        world.bookies["c"].mark = None
        await world.lose("a")
        seat = await world.seat()
        await seat.wait_rounds(2)
        await wait_for(lambda: seat.auditor.backlog.statistics()["failed"] > 0)
        (task,) = seat.auditor.backlog.tasks.values()
        assert task.reason == "c knows no damage marks: its version is too old"
        assert len((await world.flexible()).nodes) == 4
        assert all(bookie.pull_count == 0 for bookie in world.bookies.values())
        world.bookies["c"].mark = DamageMark(5)
        assert_held(world, await wait_rows(world, "bcd"))

    run(act)


def test_damage_that_shows_in_the_middle_voids_the_attempt() -> None:
    async def act(world: RepairWorld) -> None:
        segment = closed()
        await world.add_flexible(segment, COPIES)
        await world.lose("a")
        hit = world.bookies["b"]
        calls: list[str] = []

        def on_call(kind: str) -> None:
            calls.append(kind)
            if kind == "mark" and calls.count("mark") == 2:
                hit.unknown.add((segment.ledger_id, EntryId(5)))
                hit.mark = DamageMark((hit.mark or 0) + 1)

        hit.on_call = on_call
        await world.seat()
        assert_held(world, await wait_rows(world, "bcd"))
        assert calls.count("mark") == 4 and not hit.unknown, "a second attempt mended it"

    run(act)


def test_a_drained_bookie_is_named_nowhere_any_more() -> None:
    async def act(world: RepairWorld) -> None:
        await world.add_flexible(closed(), COPIES)
        seat = await world.seat()
        await seat.wait_rounds()
        assert (await seat.operations.judge_disruption("a", "restart"))["allowed"]
        denied = await seat.operations.judge_disruption("a", "remove")
        assert {reason["code"] for reason in denied["reasons"]} == {"named", "not_drained"}
        await seat.operations.drain("a")
        for duty in (Duty.DRAINING, Duty.LEAVING, Duty.DRAINED):

            async def has_it(wanted: Duty = duty) -> bool:
                return (await world.node("a")).duty is wanted

            await wait_for(has_it)
            if duty is not Duty.DRAINING:
                assert len((await world.flexible()).nodes) == 3, "no row names it any more"
            await world.publish("a")
            seat.auditor.want_round()
        assert_held(world, await wait_rows(world, "bcd"))
        assert (await seat.operations.judge_disruption("a", "remove"))["allowed"]

    run(act)


def test_reports_of_damage_are_settled_when_everything_is_held() -> None:
    async def act(world: RepairWorld) -> None:
        segment = closed()
        await world.add_flexible(segment, COPIES)
        path = await world.report(segment, "b", 4)
        world.bookies["b"].entries[segment.ledger_id].pop(EntryId(4))
        await world.seat()

        async def is_settled() -> bool:
            return await world.setup.get(path) is None

        await wait_for(is_settled)
        assert_held(world, await world.flexible())
        assert EntryId(4) in world.bookies["b"].entries[segment.ledger_id], "it was mended first"

    run(act)


def test_what_is_truncated_is_neither_copied_nor_in_the_way() -> None:
    async def act(world: RepairWorld) -> None:
        log = await world.add_flexible(closed(), {"b": "4567", "c": "4567"})
        await _write(world, replace(log, trim_lsn=lsn_of(Epoch(1), EntryId(4))))
        await world.lose("a")
        await world.seat()
        assert_held(world, await wait_rows(world, "bcd"), first=4)

    run(act)


def test_a_rebalance_moves_a_row_to_who_has_nothing() -> None:
    async def act(world: RepairWorld) -> None:
        for log_id in (4, 5):
            await world.add_flexible(replace(closed(), log_id=LogId(log_id)), COPIES)
        seat = await world.seat()
        await seat.wait_rounds()
        plan = await seat.operations.start_rebalance({"dry_run": True})
        assert [(move["from"], move["to"]) for move in plan["moves"]] == [("a", "e")]
        await seat.operations.start_rebalance({"tolerance": 0.1})
        await wait_for(lambda: seat.auditor.commits.statistics().get("removals") == 1)
        segments = [await world.flexible(log_id) for log_id in (4, 5)]
        names = ["".join(row.node.bookie for row in segment.nodes) for segment in segments]
        assert sorted(names) == ["abcd", "bcde"]
        for segment in segments:
            assert_held(world, segment)

    run(act)


def test_what_only_accepted_losses_had_is_recorded_with_its_records() -> None:
    async def act(world: RepairWorld) -> None:
        await world.add_flexible(closed(), {**COPIES, "a": "013467", "c": "126", "b": "0245"})
        for name in "ac":
            await world.lose(name)
        seat = await world.seat()
        for name in "ac":
            await seat.wait_rounds()
            incarnation = world.bookies[name].member.incarnation
            await seat.operations.accept_loss(name, {"incarnation": incarnation})
        segment = await wait_rows(world, "bd")
        assert segment.lost == ((1, 1), (3, 3), (6, 6)) and segment.missing_record_count == 3
        for entry in (0, 2, 4, 5, 7):
            assert EntryId(entry) in world.bookies["b"].entries[segment.ledger_id]
            assert EntryId(entry) in world.bookies["d"].entries[segment.ledger_id]

    run(act)


def test_a_bookie_in_no_row_that_kept_a_copy_is_found_before_a_loss() -> None:
    async def act(world: RepairWorld) -> None:
        await world.add_flexible(closed("abcd"), {"b": "0245", "d": "7", "e": "136"})
        for name in "ac":
            await world.lose(name)
        seat = await world.seat()
        for name in "ac":
            await seat.wait_rounds()
            incarnation = world.bookies[name].member.incarnation
            await seat.operations.accept_loss(name, {"incarnation": incarnation})
        segment = await wait_rows(world, "bde")
        assert segment.lost == () and segment.missing_record_count == 0
        assert_held(world, segment)

    run(act)


def test_an_owner_is_asked_to_roll_and_its_open_segment_left_alone() -> None:
    async def act(world: RepairWorld) -> None:
        await world.add_flexible(opened(), COPIES)
        await world.lose("a")
        await world.seat()
        await wait_for(lambda: bool(world.rolls))
        assert len((await world.flexible()).nodes) == 4
        assert all(bookie.pull_count == 0 for bookie in world.bookies.values())

    run(act)


@pytest.mark.parametrize(
    ("age_us", "is_same_session", "is_out", "is_stale"),
    [
        (0, True, True, False),
        (3 * SECOND, True, False, True),
        (0, False, False, False),
    ],
    ids=["fresh", "old marks", "another session"],
)
def test_a_change_is_sent_with_fresh_marks_in_its_session_alone(
    age_us: int, *, is_same_session: bool, is_out: bool, is_stale: bool
) -> None:
    async def act(world: RepairWorld) -> None:
        await world.add_flexible(closed(), COPIES)
        seat = await world.seat(interval_s=3_600)
        auditor = seat.auditor
        session = 1
        changes = SegmentChanges(
            auditor.readings, auditor.commits, LogId(5), Epoch(1), lambda: session
        )
        session = 1 if is_same_session else 2
        segment = await world.flexible()
        places = {row.number: row.node.place for row in segment.nodes[1:3]}
        whole = ((EntryId(0), EntryId(7)),)
        evidence = Evidence(0, segment.replication, places, whole, now_us() - age_us)
        row = segment.nodes[0]
        result = await changes.take_out(evidence, row)
        assert result.is_stale is is_stale
        assert (result.evidence is None) is not is_same_session
        assert ((await world.flexible()).find_row(row.number) is None) is is_out

    run(act)


async def _write(world: RepairWorld, log: Any) -> None:
    found = await world.setup.get(PATHS.log(log.log_id))
    assert found is not None
    await world.setup.set(PATHS.log(log.log_id), encode_log(log), version=found.version)
