"""Damage marks that a bookie tells: real HTTP/2, real files, metadata in memory.

Source: R26, docs/protocol/repair.md "Damage marks", docs/protocol/wire.md "POST /b/inventory".
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from duramen.client.bookie_client import BookieClient
from duramen.core.status import BookieStatus
from duramen.ids import BookieId, EntryId, Incarnation, Member
from duramen.runtime.stores.memory_store import MemoryTree
from duramen.wire import repair_calls
from duramen.wire.frame import parse_frame
from duramen.wire.repair_calls import Inventory, InventoryAnswer, Source, mark_question
from duramen_bookie.repair import calls
from tests.component.bookie_world import LEDGER, Bookie, add, damage, run, running, span
from tests.waiting import wait_for

OK, UNKNOWN = BookieStatus.OK, BookieStatus.UNKNOWN


class Asker:
    """Asks one bookie."""

    def __init__(self, bookie: Bookie, client: BookieClient) -> None:
        self._client = client
        self._bookie = bookie

    async def ask(self, inventory: Inventory, life: Incarnation | None = None) -> InventoryAnswer:
        member = Member(BookieId("b1"), life or self._bookie.incarnation)
        where = Source(member, self._bookie.service.data_url)
        return await self._client.take_inventory(where, inventory)

    async def mark(self) -> int:
        answer = await self.ask(mark_question(LEDGER))
        assert (answer.status, answer.entries, answer.next) == (OK, (), None)
        assert answer.mark is not None
        return answer.mark

    async def take(self, first: int = 0, last: int = 90) -> InventoryAnswer:
        return await self.ask(Inventory(LEDGER, EntryId(first), EntryId(last), is_marked=True))


@asynccontextmanager
async def asking(
    folder: Path, tree: MemoryTree | None = None
) -> AsyncIterator[tuple[Bookie, Asker]]:
    async with running(folder, tree) as bookie:
        client = BookieClient()
        try:
            yield bookie, Asker(bookie, client)
        finally:
            await client.close()


async def settle(bookie: Bookie) -> None:
    bookie.service.running_upkeep().hurry("settling")
    core = bookie.service.running_core()
    await wait_for(lambda: not core.hot_entries(LEDGER))


@pytest.mark.parametrize(("is_settled", "pattern"), [(False, "*.dj"), (True, "*.de")])
def test_an_answer_that_meets_damage_has_the_mark_of_before(
    tmp_path: Path, is_settled: bool, pattern: str
) -> None:
    async def scenario() -> None:
        async with asking(tmp_path) as (bookie, asker):
            await bookie.add(*[add(n) for n in range(5)])
            if is_settled:
                await settle(bookie)
            before = await asker.mark()
            damage(tmp_path, 2, pattern=pattern)
            assert await asker.mark() == before, "nobody has read it yet"
            answer = await asker.take()
            assert answer.unknown == ((2, 2),) and answer.mark == before
            assert await asker.mark() == before + 1
            assert (await asker.take()).mark == before + 1, "it is lost once"

    run(scenario)


def test_damage_that_a_reader_meets_makes_another_mark(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asking(tmp_path) as (bookie, asker):
            await bookie.add(*[add(n) for n in range(5)])
            await settle(bookie)
            before = await asker.mark()
            damage(tmp_path, 2, pattern="*.de")
            assert (await bookie.read(span(2)))[0].status is UNKNOWN
            assert await asker.mark() == before + 1

    run(scenario)


def test_each_start_makes_another_mark(tmp_path: Path) -> None:
    async def scenario() -> None:
        tree = MemoryTree()
        marks = []
        for _ in range(2):
            async with asking(tmp_path, tree) as (bookie, asker):
                await bookie.add(add(0))
                marks.append(await asker.mark())
        assert marks[0] >> 32 != marks[1] >> 32, "of 2³² it drew the same"

    run(scenario)


def test_another_incarnation_tells_no_mark(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asking(tmp_path) as (_, asker):
            answer = await asker.ask(mark_question(LEDGER), Incarnation("e" * 32))
            assert (answer.status, answer.mark) == (BookieStatus.WRONG_INCARNATION, None)

    run(scenario)


def test_a_mark_is_told_at_once_beside_any_inventories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "INVENTORY_COUNT_MAX", 0)

    async def scenario() -> None:
        async with asking(tmp_path) as (bookie, asker):
            await bookie.add(add(0))
            assert await asker.mark() & 0xFFFF_FFFF == 0

    run(scenario)


def test_who_asks_no_mark_gets_an_answer_of_version_1(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asking(tmp_path) as (bookie, asker):
            await bookie.add(add(0))
            assert (await asker.ask(Inventory(LEDGER, EntryId(0), EntryId(9)))).mark is None

    run(scenario)


def test_a_bookie_of_version_1_says_that_it_was_asked_for_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parse_old(data: bytes) -> tuple[Incarnation, Inventory]:
        frame = parse_frame(data, b"DIVQ", repair_calls._INVENTORY)
        return frame.incarnation, Inventory(*frame.rows[0])

    monkeypatch.setattr(calls, "parse_inventory", parse_old)

    async def scenario() -> None:
        async with asking(tmp_path) as (bookie, asker):
            await bookie.add(add(0))
            assert (await asker.ask(mark_question(LEDGER))).status is BookieStatus.INVALID
            assert (await asker.take()).status is BookieStatus.INVALID
            assert (await asker.ask(Inventory(LEDGER, EntryId(0), EntryId(9)))).status is OK

    run(scenario)
