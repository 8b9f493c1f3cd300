"""The auditor at work on a store in memory and fake bookies: what it repairs, and what it must not.

Cut-off auditors are in `test_auditor_cut`, drains and questions in `test_auditor_operations`.
Source: docs/protocol/repair.md, R3, R9, R21.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from duramen.core.segment import Totals
from duramen.ids import EntryId, lsn_of
from duramen.runtime.stores.metadata_store import Set
from duramen.wire.metadata_json import encode_log, encode_node, encode_segment, read_segment
from tests.component.repair_world import PATHS, RepairWorld, renew, repair_world
from tests.unit.repair_world import make_segment, member, members
from tests.waiting import wait_for

Act = Callable[[RepairWorld], Awaitable[None]]


def run(act: Act, names: str = "abcd") -> None:
    async def play() -> None:
        async with repair_world(names) as world:
            await act(world)

    asyncio.run(play())


# --- Repairs -----------------------------------------------------------------------------------


def test_copies_of_a_lost_bookie_are_made_elsewhere_and_swapped_in() -> None:
    async def act(world: RepairWorld) -> None:
        segments = (
            make_segment([(0, "abc"), (5, "bcd")], 9, proved=True),
            make_segment([(0, "abc")], 20, epoch=2, proved=True),
        )
        await world.add(*segments)
        for bookie in world.bookies.values():
            bookie.rows_per_call = 4  # so that calls have to go on where the last one ended
        await world.lose("a")
        seat = await world.seat()
        await world.wait_ensembles("dbc", "bcd")
        for epoch in (1, 2):
            segment = await world.segment(epoch=epoch)
            assert all(fragment.is_proved for fragment in segment.fragments)
            world.assert_right(segment)
        assert world.rolls == []
        await wait_for(lambda: not seat.auditor.backlog.tasks)
        shown = await seat.operations.show()
        assert shown["estimate_s"] == 0 and shown["statistics"]["commits"]["swaps"] == 2

    run(act)


def test_striped_copies_hold_what_their_place_is_to_hold_and_no_more() -> None:
    async def act(world: RepairWorld) -> None:
        segment = make_segment([(0, "abcd")], 30, quorum=(2, 2), proved=True)
        await world.add(segment, replication={"ensemble_size": 4, "write_quorum": 2})
        await world.lose("b")
        await world.seat()
        await world.wait_ensembles("aecd")
        world.assert_right(await world.segment())
        held = world.bookies["e"].entries[segment.ledger_id]
        assert set(held) == {e for e in range(31) if e % 4 in (0, 1)}

    run(act, "abcde")


def test_a_replaced_disk_is_repaired_at_once_without_a_grace() -> None:
    async def act(world: RepairWorld) -> None:
        await world.add(make_segment([(0, "abc")], 9, proved=True))
        renew(world.bookies["a"], 2)
        await world.remove(PATHS.bookie("a"))
        await world.remove(f"{PATHS.available}/a")
        await world.register(world.bookies["a"])
        await world.seat(grace_s=1_000)
        await wait_for(lambda: is_named_nowhere(world, 1))
        world.assert_right(await world.segment())

    async def is_named_nowhere(world: RepairWorld, life: int) -> bool:
        segment = await world.segment()
        return member("a", life) not in segment.last_fragment.ensemble

    run(act)


def test_unproved_fragments_are_compared_filled_and_proved() -> None:
    async def act(world: RepairWorld) -> None:
        segment = make_segment([(0, "abc"), (5, "abd")])
        await world.add(segment)
        for name, entry in (("a", 1), ("b", 3)):
            del world.bookies[name].entries[segment.ledger_id][EntryId(entry)]
        await world.seat()

        async def is_proved() -> bool:
            return (await world.segment()).fragments[0].is_proved

        await wait_for(is_proved)
        now = await world.segment()
        world.assert_right(now)
        assert not now.last_fragment.is_proved and world.rolls == []

    run(act)


def test_nothing_is_proved_while_a_member_does_not_answer() -> None:
    async def act(world: RepairWorld) -> None:
        await world.add(make_segment([(0, "abc")], 9))
        world.bookies["c"].is_silent = True
        seat = await world.seat()
        await wait_for(lambda: seat.auditor.backlog.statistics()["failed"] >= 1)
        assert not (await world.segment()).last_fragment.is_proved
        (task,) = seat.auditor.backlog.tasks.values()
        assert not task.holders, "a comparison keeps no copy where it is"
        world.bookies["c"].is_silent = False
        await wait_for(lambda: not seat.auditor.backlog.tasks)
        assert (await world.segment()).last_fragment.is_proved

    run(act)


def test_owed_copies_are_fetched_by_their_own_bookie_and_the_note_goes() -> None:
    async def act(world: RepairWorld) -> None:
        segment = make_segment([(0, "abc"), (5, "abc")], 9, proved=True)
        await world.add(segment)
        path = await world.owe(segment, "b", 3, 7)
        await world.seat()
        await wait_for(lambda: _is_gone(world, path))
        world.assert_right(await world.segment())
        assert await world.ensembles() == ["abc", "abc"]

    run(act)


def test_what_a_doubtful_bookie_lost_without_knowing_it_is_found_and_compared_once() -> None:
    async def act(world: RepairWorld) -> None:
        segment = make_segment([(0, "abc"), (5, "bcd")], 9, proved=True)
        await world.add(segment)
        await world.publish("a", doubtful=True)
        del world.bookies["a"].entries[segment.ledger_id][EntryId(3)]
        seat = await world.seat()
        await wait_for(lambda: seat.auditor.backlog.statistics()["done"] == 1)
        world.assert_right(await world.segment())
        inventories = seat.auditor.copier.statistics()["inventories"]
        await seat.wait_rounds(2)
        assert seat.auditor.copier.statistics()["inventories"] == inventories
        assert seat.auditor.statistics()["doubts"]["fragments"] == 1
        assert (await seat.operations.show())["last_round"]["fragments_in_doubt"] == 0

        await world.publish("a", doubtful=False)
        await seat.wait_rounds()
        await world.publish("a", doubtful=True)
        del world.bookies["a"].entries[segment.ledger_id][EntryId(4)]
        seat.auditor.want_round()
        await wait_for(lambda: seat.auditor.backlog.statistics()["done"] == 2)
        world.assert_right(await world.segment())

    run(act)


def test_damaged_copies_are_mended_in_place_and_the_report_goes() -> None:
    async def act(world: RepairWorld) -> None:
        segment = make_segment([(0, "abc"), (5, "abd")], 9, proved=True)
        await world.add(segment)
        path = await world.report(segment, "a", 2, 8)
        seat = await world.seat(interval_s=0.001)
        await wait_for(lambda: _is_gone(world, path))
        assert world.bookies["a"].unknown == set()
        world.assert_right(await world.segment())
        await wait_for(lambda: not seat.auditor.backlog.tasks)

    run(act)


def test_a_misplaced_fragment_is_moved_until_the_rule_holds() -> None:
    async def act(world: RepairWorld) -> None:
        for name, rack in zip("abcd", ("1", "1", "2", "3"), strict=True):
            world.bookies[name].rack = rack
            await world.remove(PATHS.bookie(name))
            await world.remove(f"{PATHS.available}/{name}")
            await world.register(world.bookies[name])
        await world.add(make_segment([(0, "abc")], 9, proved=True))
        seat = await world.seat()

        async def is_placed() -> bool:
            return set((await world.ensembles())[0]) in ({"a", "c", "d"}, {"b", "c", "d"})

        await wait_for(is_placed)
        await seat.wait_rounds()
        assert seat.auditor.last is not None and seat.auditor.last.violation_count == 0

    run(act)


# --- What must not be done ---------------------------------------------------------------------


def test_an_empty_listing_loses_nobody_and_removes_nothing() -> None:
    async def act(world: RepairWorld) -> None:
        segment = make_segment([(0, "abc")], 9, proved=True)
        await world.add(segment)
        path = await world.owe(segment, "b", 3, 3)
        seat = await world.seat()
        await seat.wait_rounds()
        for name in "abcd":
            await world.remove(f"{PATHS.available}/{name}")
        await seat.wait_rounds(5)
        assert await world.ensembles() == ["abc"]
        assert world.bookies["d"].pull_count == 0 and not seat.auditor.backlog.list_unrepairable()
        for name in "abcd":
            await world.remove(PATHS.bookie(name))
        await seat.wait_rounds(5)
        assert await world.ensembles() == ["abc"]
        assert world.bookies["d"].pull_count == 0
        # What the first round had mended may be gone; nothing else may.
        if await world.setup.get(path) is None:
            world.assert_right(await world.segment())

    run(act)


def test_logs_are_found_by_their_numbers_whatever_a_listing_says() -> None:
    async def act(world: RepairWorld) -> None:
        await world.add(make_segment([(0, "abc")], 9, proved=True))
        seat = await world.seat()
        listed = seat.store.children

        async def children(path: str, watch: Any = None) -> tuple[str, ...] | None:
            return () if path.startswith(PATHS.logs) else await listed(path, watch)

        seat.store.children = children  # type: ignore[method-assign]
        await seat.wait_rounds()
        assert seat.auditor.last is not None
        assert (seat.auditor.last.log_count, seat.auditor.last.segment_count) == (1, 1)

    run(act)


def test_r21_the_last_fragment_of_an_open_segment_is_its_owners_who_is_asked_to_roll() -> None:
    async def act(world: RepairWorld) -> None:
        await world.add(make_segment([(0, "abc"), (5, "abd")], proved=True))
        await world.lose("a")
        await world.seat()
        await wait_for(lambda: bool(world.rolls))

        async def is_swapped() -> bool:
            return "a" not in (await world.ensembles())[0]

        await wait_for(is_swapped)
        assert (await world.ensembles())[1] == "abd"

    run(act, "abcde")


def test_a_copy_that_was_not_verified_is_never_named() -> None:
    async def act(world: RepairWorld) -> None:
        await world.add(make_segment([(0, "abc")], 9, proved=True))
        world.bookies["d"].forgets = True
        await world.lose("a")
        seat = await world.seat()
        await wait_for(lambda: seat.auditor.backlog.statistics()["failed"] >= 1)
        assert world.bookies["d"].pull_count > 0 and await world.ensembles() == ["abc"]

    run(act)


def test_every_swap_is_written_after_its_copy_was_complete() -> None:
    async def act(world: RepairWorld) -> None:
        segments = [make_segment([(0, "abc"), (5, "bca")], 9, epoch=e, proved=True)
                    for e in (1, 2, 3)]  # fmt: skip
        await world.add(*segments)
        await world.lose("a")
        judged = []

        def judge(ops: Any) -> None:
            for op in ops:
                if isinstance(op, Set) and "/segments/" in op.path:
                    judged.append(op.path)
                    world.assert_right(read_segment(op.data), gone="a")

        await world.seat(before_write=judge)
        # More where two swaps of a segment met: one of them is written again.
        await wait_for(lambda: len(judged) >= 6)

    run(act)


def test_what_nobody_has_is_said_once_and_tried_again_when_somebody_comes_back() -> None:
    async def act(world: RepairWorld) -> None:
        segment = make_segment([(0, "abc")], 9, proved=True)
        await world.add(segment)
        for name in "bc":
            del world.bookies[name].entries[segment.ledger_id][EntryId(4)]
        await world.lose("a")
        seat = await world.seat()
        backlog = seat.auditor.backlog
        await wait_for(lambda: bool(backlog.list_unrepairable()) or _failed(seat) > 0)
        await seat.wait_rounds(3)
        assert await world.ensembles() == ["abc"]
        world.bookies["a"].is_silent = False
        await world.publish("a")
        seat.auditor.want_round()
        await wait_for(lambda: not backlog.tasks)
        assert await world.ensembles() == ["abc"]

    def _failed(seat: Any) -> int:
        return int(seat.auditor.backlog.statistics()["failed"])

    run(act)


def test_disks_that_are_gone_for_ever_leave_an_unrepairable_range_with_its_entries() -> None:
    async def act(world: RepairWorld) -> None:
        segment = make_segment([(0, "abc")], 9, proved=True)
        await world.add(segment)
        for name in "bc":
            del world.bookies[name].entries[segment.ledger_id][EntryId(4)]
        lost = world.bookies["a"].member
        node = {"bookie": "a", "region": "r", "rack": "k-a", "replaced_by": "x", "nonce": "n"}
        await world.setup.create(PATHS.lost(lost.incarnation), encode_node(node), make_parents=True)
        seat = await world.seat()
        backlog = seat.auditor.backlog
        await wait_for(lambda: bool(backlog.list_unrepairable()))
        pulls = world.bookies["d"].pull_count
        await seat.wait_rounds(4)
        (shown,) = (await seat.operations.show())["unrepairable"]
        assert shown["ranges"] == [{"bookie": "d", "first": 4, "last": 4, "why": "absent"}]
        assert backlog.statistics()["unrepairable_reported"] == 1
        assert world.bookies["d"].pull_count == pulls and await world.ensembles() == ["abc"]

    run(act)


def test_what_was_truncated_given_up_or_purged_is_left_alone() -> None:
    async def act(world: RepairWorld) -> None:
        segments = [make_segment([(0, "abc")], 9, epoch=e, proved=True) for e in (1, 2)]
        log = await world.add(*segments)
        trimmed = replace(log, trim_lsn=lsn_of(segments[1].epoch, EntryId(0)), trim_seq_num=10)
        found = await world.setup.get(PATHS.log(log.log_id))
        assert found is not None
        await world.setup.set(PATHS.log(log.log_id), encode_log(trimmed), version=found.version)
        path = await world.owe(segments[0], "b", 1, 2)
        await world.lose("a")
        await world.seat()
        await wait_for(lambda: _is_gone(world, path))

        async def is_swapped() -> bool:
            return await world.ensembles(epoch=2) == ["dbc"]

        await wait_for(is_swapped)
        assert await world.ensembles(epoch=1) == ["abc"]

    run(act)


# --- Races -------------------------------------------------------------------------------------


def test_the_owners_ensemble_change_and_a_swap_are_both_kept() -> None:
    async def act(world: RepairWorld) -> None:
        segment = make_segment([(0, "abc"), (5, "bcd")], proved=True)
        await world.add(segment)
        await world.lose("a")
        changes: list[asyncio.Task[None]] = []

        def on_call(kind: str) -> None:
            if kind == "pull" and not changes:
                changes.append(asyncio.create_task(change()))

        async def change() -> None:
            now = await world.segment()
            await world.change(now.with_ensemble(EntryId(8), members("bce"), Totals(8, 800), "o"))

        for name in "de":
            world.bookies[name].on_call = on_call
        await world.seat()

        async def is_both() -> bool:
            found = await world.ensembles()
            return found[0] != "abc" and found[1:] == ["bcd", "bce"]

        await wait_for(is_both)
        world.assert_right(await world.segment())

    run(act, "abcde")


def test_a_conflict_at_the_very_write_is_read_again_and_decided_anew() -> None:
    async def act(world: RepairWorld) -> None:
        await world.add(make_segment([(0, "abc"), (5, "bcd")], proved=True))
        await world.lose("a")
        seat = await world.seat()
        raced: list[int] = []

        def race(ops: Any) -> None:
            is_swap = any(isinstance(op, Set) and "/segments/" in op.path for op in ops)
            if is_swap and not raced:
                raced.append(1)
                (op,) = ops
                stored = world.tree.get(op.path)
                assert stored is not None
                now = read_segment(stored.data)
                changed = now.with_ensemble(EntryId(8), members("bce"), Totals(8, 800), "o")
                data = encode_segment(changed)
                world.tree.apply(world.setup.session_id, [Set(op.path, data, stored.version)])

        seat.store.before_write = race

        async def is_both() -> bool:
            found = await world.ensembles()
            return found[0] != "abc" and found[1:] == ["bcd", "bce"]

        await wait_for(is_both)
        assert seat.auditor.commits.statistics()["conflicts"] == 1

    run(act, "abcde")


# --- Leadership --------------------------------------------------------------------------------


def test_one_is_the_auditor_and_another_follows_when_its_session_ends() -> None:
    async def act(world: RepairWorld) -> None:
        await world.add(make_segment([(0, "abc")], 9, proved=True))
        first, second = await world.seat("s0"), await world.seat("s1")
        await wait_for(lambda: first.election.is_held)
        await wait_for(lambda: second.election.holder.get("sequencer") == "s0")
        assert not second.auditor.is_leader
        world.tree.expire(first.store.session_id)
        await wait_for(lambda: second.auditor.is_leader or first.auditor.is_leader)
        await world.lose("a")
        for seat in (first, second):
            seat.auditor.want_round()
        await world.wait_ensembles("dbc")
        assert not (first.auditor.is_leader and second.auditor.is_leader)

    run(act)


def test_who_is_cut_off_stops_at_once_and_goes_on_when_the_connection_is_back() -> None:
    async def act(world: RepairWorld) -> None:
        await world.add(make_segment([(0, "abc")], 9, proved=True))
        seat = await world.seat()
        await wait_for(lambda: seat.auditor.statistics()["rounds"] > 0)
        seat.store.disconnect()
        await wait_for(lambda: not seat.auditor.is_leader)
        assert not seat.election.is_held
        await world.lose("a")
        seat.store.reconnect()
        await world.wait_ensembles("dbc")
        assert seat.auditor.statistics()["terms"] == 2

    run(act)


async def _is_gone(world: RepairWorld, path: str) -> bool:
    return await world.setup.get(path) is None
