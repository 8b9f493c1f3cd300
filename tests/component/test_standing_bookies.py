"""An auditor says how every bookie stands: what is owed, who is behind, and that it grants nothing.

Source: docs/kubernetes/evictions.md 1 and 2.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from duramen.core.segment import Segment
from tests.component.repair_world import PATHS, RepairWorld, Seat, repair_world
from tests.unit.repair_world import make_segment, member
from tests.waiting import wait_for

Act = Callable[[RepairWorld, Seat], Awaitable[None]]
CLOSED = make_segment([(0, "abc")], 9, proved=True)


def run(act: Act, *segments: Segment, names: str = "abcd") -> None:
    async def play() -> None:
        async with repair_world(names) as world:
            await world.add(*(segments or [CLOSED]))
            seat = await world.seat("s0", grace_s=1_000)
            await wait_for(lambda: seat.auditor.last_whole is not None)
            await act(world, seat)

    asyncio.run(play())


async def stand(seat: Seat) -> dict[str, tuple[bool, list[str], int]]:
    """Name → (there, codes, lacks)."""
    answer = await seat.operations.by_name["standing"]({})
    assert answer["read_unix_ms"] and answer["metadata_age_ms"] >= 0
    return {row["bookie"]: _shorten(row) for row in answer["bookies"]}


def _shorten(row: dict[str, Any]) -> tuple[bool, list[str], int]:
    assert all(reason["detail"] for reason in row["reasons"]), "each says why"
    return row["there"], [reason["code"] for reason in row["reasons"]], row["lacks_count"]


WELL: tuple[bool, list[str], int] = (True, [], 0)


def test_where_nothing_is_owed_each_may_be_stopped_and_is_caught_up() -> None:
    async def act(world: RepairWorld, seat: Seat) -> None:
        assert await stand(seat) == dict.fromkeys("abcd", WELL)

    run(act)


def test_who_is_owed_is_not_caught_up_and_the_others_are_needed() -> None:
    async def act(world: RepairWorld, seat: Seat) -> None:
        world.bookies["c"].is_silent = True  # nothing is mended meanwhile
        await world.owe(CLOSED, "c", 2, 5)
        rows = await stand(seat)
        assert rows["c"] == (True, [], 1)
        assert rows["a"] == rows["b"] == (True, ["too_few_copies"], 0)
        assert rows["d"] == WELL

    run(act)


def test_what_an_owner_keeps_in_memory_counts() -> None:
    opened = make_segment([(0, "abc")])

    async def act(world: RepairWorld, seat: Seat) -> None:
        told = world.sequencers.behind["s1"]
        told[str(opened.ledger_id)] = []
        assert await stand(seat) == dict.fromkeys("abcd", WELL)
        told[str(opened.ledger_id)] = [[*member("b")]]
        rows = await stand(seat)
        assert rows["b"][2] == 1 and not rows["b"][1], "it may go, and is not caught up"
        assert rows["a"][1] == ["not_coverable", "too_few_copies"]
        told.clear()
        rows = await stand(seat)
        assert {name: (row[1], row[2]) for name, row in rows.items()} == {
            **dict.fromkeys("abc", (["orphan"], 1)), "d": ([], 0),
        }, "nobody speaks for it"  # fmt: skip
        world.sequencers.recovering = ["d"]
        assert (await stand(seat))["d"] == (True, ["in_recovery"], 0)

    run(act, opened)


def test_who_is_away_is_told_and_the_others_are_needed() -> None:
    async def act(world: RepairWorld, seat: Seat) -> None:
        await world.lose("a")
        rows = await stand(seat)
        assert rows["a"][0] is False
        assert rows["b"][1] == ["placement", "too_few_copies"]
        assert rows["d"][1] == ["placement"], "a new segment needs three of them"

    run(act)


def test_a_grant_is_no_reason_and_none_is_given() -> None:
    """Who holds one waits for his bookie to be caught up."""

    async def act(world: RepairWorld, seat: Seat) -> None:
        question = {
            "token": secrets.token_hex(16), "target": "bookie/a", "kind": "restart", "holder": "op",
        }  # fmt: skip
        assert (await seat.operations.take_disruption(question))["grant"] is not None
        assert await stand(seat) == dict.fromkeys("abcd", WELL)
        (grant,) = (await seat.operations.list_disruptions())["grants"]
        assert grant["token"] == question["token"]

    run(act)


def test_what_cannot_be_read_is_nobodys_good_word() -> None:
    async def act(world: RepairWorld, seat: Seat) -> None:
        await world.remove(PATHS.segment(CLOSED.log_id, CLOSED.epoch))
        for row in (await stand(seat)).values():
            assert row[1] == ["unread"] and row[2]

    run(act)
