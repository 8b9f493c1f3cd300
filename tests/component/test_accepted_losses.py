"""Accepting that an incarnation is gone for ever: who may, and what the auditor does then (R15).

On a store in memory and fake bookies, as `test_auditor`.
Source: R15, docs/protocol/repair.md "Asking".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from duramen.core.cold_copy import ColdCopy
from duramen.errors import DuramenError
from duramen.ids import EntryId, Epoch, lsn_of
from duramen.wire.metadata_json import read_node
from tests.component.repair_world import PATHS, RepairWorld, repair_world
from tests.unit.repair_world import make_segment, member
from tests.waiting import wait_for

Act = Callable[[RepairWorld], Awaitable[None]]


def run(act: Act, names: str = "abcde") -> None:
    async def play() -> None:
        async with repair_world(names) as world:
            await act(world)

    asyncio.run(play())


def word(name: str) -> dict[str, str]:
    """The confirmation: the incarnation, named."""
    return {"incarnation": member(name).incarnation}


def test_entries_that_only_the_gone_had_are_recorded_and_the_others_copied_anew() -> None:
    async def act(world: RepairWorld) -> None:
        segment = make_segment([(0, "abc")], 9, proved=True)
        await world.add(segment)
        for entry in (3, 4, 9):
            del world.bookies["c"].entries[segment.ledger_id][EntryId(entry)]
        await world.lose("a")
        await world.lose("b")
        seat = await world.seat()
        await wait_for(lambda: seat.auditor.backlog.statistics()["failed"] >= 1)
        await seat.operations.accept_loss("a", word("a"))
        answer = await seat.operations.accept_loss("a", word("a"))
        assert (answer["bookie"], answer["incarnation"]) == member("a")
        await seat.wait_rounds(2)
        assert not (await world.segment()).lost, "b may still have them"
        await seat.operations.accept_loss("b", word("b"))

        async def is_mended() -> bool:
            now = await world.segment()
            return {m.bookie for m in now.last_fragment.ensemble} == set("cde")

        await wait_for(is_mended)
        now = await world.segment()
        assert now.lost == ((3, 4), (9, 9))
        for name in "cde":
            held = world.bookies[name].entries[segment.ledger_id]
            assert set(held) == {0, 1, 2, 5, 6, 7, 8}

    run(act)


def test_what_the_archive_has_is_not_lost_unless_a_takeover_reads_it() -> None:
    async def act(world: RepairWorld) -> None:
        copy = ColdCopy("0a" * 16, "1b" * 32, size_bytes=100, verified_unix_ms=5)
        ends = [make_segment([(0, "abc")], 9, epoch=epoch, proved=True) for epoch in (1, 2)]
        segments = [segment.with_cold_copy(copy, "cold") for segment in ends]
        await world.add(*segments, snapshot_lsn=lsn_of(Epoch(2), EntryId(0)))
        for segment in segments:
            del world.bookies["c"].entries[segment.ledger_id][EntryId(3)]
        await world.lose("a")
        await world.lose("b")
        seat = await world.seat()
        await wait_for(lambda: seat.auditor.backlog.statistics()["failed"] >= 1)
        for name in "ab":
            await seat.operations.accept_loss(name, word(name))

        async def is_recorded() -> bool:
            return (await world.segment(epoch=2)).lost == ((3, 3),)

        await wait_for(is_recorded)
        await wait_for(lambda: bool(seat.auditor.backlog.list_unrepairable()))
        (task,) = seat.auditor.backlog.list_unrepairable()
        assert task.finding.key.ledger_id == segments[0].ledger_id
        assert not (await world.segment()).lost, "readers are served from the cold store"

    run(act)


def test_what_a_living_bookie_cannot_vouch_for_is_not_lost() -> None:
    async def act(world: RepairWorld) -> None:
        segment = make_segment([(0, "abc")], 9, proved=True)
        await world.add(segment)
        for name in "bc":
            del world.bookies[name].entries[segment.ledger_id][EntryId(3)]
        world.bookies["c"].unknown |= {(segment.ledger_id, EntryId(3))}
        await world.lose("a")
        seat = await world.seat()
        await seat.wait_rounds(1)
        await seat.operations.accept_loss("a", word("a"))
        await wait_for(lambda: bool(seat.auditor.backlog.list_unrepairable()))
        now = await world.segment()
        assert not now.lost and member("a") in now.last_fragment.ensemble

    run(act)


def test_an_accepted_incarnation_is_noted_and_its_node_goes() -> None:
    async def act(world: RepairWorld) -> None:
        await world.add(make_segment([(0, "abc")], 9, proved=True))
        await world.lose("a")
        seat = await world.seat()
        await seat.wait_rounds(1)
        await seat.operations.accept_loss("a", word("a"))
        noted = await world.setup.get(PATHS.lost(member("a").incarnation))
        assert noted is not None
        fields = read_node(noted.data)
        assert (fields["bookie"], fields["region"], fields["rack"]) == ("a", "r", "k-a")
        assert fields["accepted_unix_ms"] > 0
        assert await world.setup.get(PATHS.bookie("a")) is None, "its disks cannot come back"
        await wait_for(lambda: is_replaced(world))

    async def is_replaced(world: RepairWorld) -> bool:
        return member("a") not in (await world.segment()).last_fragment.ensemble

    run(act)


@pytest.mark.parametrize(
    ("bookie", "incarnation", "grace_s"),
    [("b", member("b").incarnation, 0), ("a", member("a").incarnation, 1_000),
     ("a", member("a", 7).incarnation, 0), ("z", member("z").incarnation, 0), ("a", "", 0)],
    ids=["it is there", "away for less than the grace", "no life of it", "no bookie", "unnamed"],
)  # fmt: skip
def test_nobody_is_given_up_who_is_not_lost_and_named(
    bookie: str, incarnation: str, grace_s: float
) -> None:
    async def act(world: RepairWorld) -> None:
        await world.add(make_segment([(0, "abc")], 9, proved=True))
        await world.lose("a")
        seat = await world.seat(grace_s=grace_s)
        await seat.wait_rounds(1)
        with pytest.raises(DuramenError) as caught:
            await seat.operations.accept_loss(bookie, {"incarnation": incarnation})
        assert (caught.value.code, caught.value.field) == ("invalid_argument", "incarnation")
        assert not await world.setup.children(PATHS.repair_lost)
        assert await world.setup.get(PATHS.bookie("a")) is not None

    run(act)
