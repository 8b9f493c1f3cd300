"""A bookie that settles, compacts and drops while it serves: real files, real threads, real HTTP/2.

Upkeep is asked for through the admin routes, as an operator would; each test waits for what it is
to bring about. Here is how the parts work together in a running service; every crash in between is
in `tests/crash`. Source: docs/bookie.md "Upkeep".
"""

from __future__ import annotations

import asyncio
import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient
from prometheus_client import generate_latest

from duramen.core.segment import Totals
from duramen.core.status import BookieStatus
from duramen.ids import EntryId, Epoch, LedgerId, ledger_of
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.units import MIB
from duramen.wire.bookie_calls import Add, ReadRange, Seal
from duramen.wire.entry import encode_entry
from duramen.wire.metadata_json import encode_log
from duramen_bookie.upkeep import rounds
from duramen_bookie.upkeep.deletion import Deletion
from tests.component.bookie_world import LOG, OK, PATHS, Bookie, run, running
from tests.unit.nodes import make_log
from tests.waiting import wait_for

FIRST, SECOND = ledger_of(LOG, Epoch(1)), ledger_of(LOG, Epoch(2))
SIZE_BYTES = 3_000


def make_add(ledger_id: LedgerId, number: int) -> Add:
    before = Totals(number, number * SIZE_BYTES)
    entry = encode_entry(
        ledger_id=ledger_id,
        entry_id=EntryId(number),
        before=before,
        batches=[bytes([number % 251]) * SIZE_BYTES],
        record_count=1,
        after=before.plus(Totals(1, SIZE_BYTES)),
    )
    return Add(ledger_id, EntryId(number), EntryId(number - 1), entry)


async def fill(bookie: Bookie, ledger_id: LedgerId, first: int, last: int) -> None:
    adds = [make_add(ledger_id, number) for number in range(first, last + 1)]
    assert await bookie.add(*adds) == [OK] * len(adds)


async def read_all(bookie: Bookie, ledger_id: LedgerId, last: int) -> list[bytes]:
    """Every entry from 0 on, asked for again where an answer ends."""
    found: list[bytes] = []
    while len(found) <= last:
        wanted = ReadRange(ledger_id, EntryId(len(found)), EntryId(last), 1 * MIB)
        (answer,) = await bookie.read(wanted)
        assert answer.status is OK and answer.entries, answer
        found += [bytes(body) for _, body in answer.entries]
    return found


def expected(ledger_id: LedgerId, last: int) -> list[bytes]:
    return [bytes(make_add(ledger_id, number).entry) for number in range(last + 1)]


class Operator:
    """Asks the admin routes."""

    def __init__(self, bookie: Bookie) -> None:
        app = FastAPI()
        bookie.service.add_admin_routes(app)
        self.bookie = bookie
        self._client = AsyncClient(transport=ASGITransport(app), base_url="http://bookie")

    async def get(self, path: str) -> dict[str, Any]:
        answer: dict[str, Any] = (await self._client.get(path)).raise_for_status().json()
        return answer

    async def put(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = (await self._client.put(path, json=body)).raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    async def settle(self) -> None:
        """Settle everything that is there now, and wait until the journal has its files back."""
        before = self._carrier()["recycle_count"]
        (await self._client.post("/v1/upkeep/settling")).raise_for_status()
        await wait_for(lambda: self._carrier()["recycle_count"] > before)

    def _carrier(self) -> dict[str, Any]:
        upkeep: dict[str, Any] = self.bookie.service.statistics()["upkeep"]["carrier"]
        return upkeep

    def storage(self) -> dict[str, Any]:
        storage: dict[str, Any] = self.bookie.service.statistics()["storage"]
        return storage


def test_settled_entries_are_served_and_survive_restarts(tmp_path: Path) -> None:
    async def scenario() -> None:
        tree = MemoryTree()
        async with running(tmp_path, tree) as bookie:
            operator = Operator(bookie)
            await fill(bookie, FIRST, 0, 39)
            await operator.settle()
            await fill(bookie, FIRST, 40, 59)
            await fill(bookie, SECOND, 0, 9)
            assert operator.storage()["index"]["entries"] == 30
            assert operator.storage()["shelf"]["entries"] == 40
            assert await read_all(bookie, FIRST, 59) == expected(FIRST, 59)
            assert await bookie.add(make_add(FIRST, 3)) == [OK]  # a resend of what is settled
            assert await bookie.add(make_add(FIRST, 3)._replace(entry=b"x" * 90)) != [OK]
            await operator.settle()
            assert operator.storage()["index"]["entries"] == 0
        async with running(tmp_path, tree) as bookie:
            assert await read_all(bookie, FIRST, 59) == expected(FIRST, 59)
            assert await read_all(bookie, SECOND, 9) == expected(SECOND, 9)

    run(scenario)


def test_a_seal_that_only_a_checkpoint_holds_is_kept(tmp_path: Path) -> None:
    async def scenario() -> None:
        tree = MemoryTree()
        async with running(tmp_path, tree) as bookie:
            operator = Operator(bookie)
            await fill(bookie, FIRST, 0, 1)
            await operator.settle()
            await bookie.seal(Seal(LOG, Epoch(1), FIRST))
            await operator.settle()
        async with running(tmp_path, tree) as bookie:
            assert await bookie.add(make_add(FIRST, 2)) == [BookieStatus.SEALED]

    run(scenario)


def test_an_entry_is_shown_to_people_wherever_it_lies(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            operator = Operator(bookie)
            await fill(bookie, FIRST, 0, 0)
            await operator.settle()
            await fill(bookie, FIRST, 1, 1)
            for number in (0, 1):
                path = f"/v1/ledgers/{FIRST}/entries/{number}"
                told = await operator.get(path)
                assert (told["status"], "entry" in told) == ("OK", False), "no body unasked"
                shown = await operator.get(f"{path}?bodies=true")
                assert len(base64.b64decode(shown["entry"])) == told["bytes"] > 0
            missing = await operator.get(f"/v1/ledgers/{FIRST}/entries/2?bodies=true")
            assert (missing["status"], missing["entry"]) == ("NO_ENTRY", None)
            (ledger,) = (await operator.get("/v1/ledgers"))["ledgers"]
            assert (ledger["hot"], ledger["settled"]) == (1, 1)

    run(scenario)


def test_read_only_refuses_new_entries_and_nothing_else(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            operator = Operator(bookie)
            await fill(bookie, FIRST, 0, 1)
            await operator.put("/v1/read-only", {"is_on": True})
            assert await bookie.add(make_add(FIRST, 2)) == [BookieStatus.READ_ONLY]
            assert await bookie.add(make_add(FIRST, 1)) == [OK]
            assert await bookie.add(make_add(FIRST, 2)._replace(is_recovery=True)) == [OK]
            assert await read_all(bookie, FIRST, 2) == expected(FIRST, 2)
            (mark,) = await bookie.seal(Seal(LOG, Epoch(1), FIRST))
            assert mark.status is OK
            await operator.put("/v1/read-only", {"is_on": False})
            await fill(bookie, SECOND, 0, 0)

    run(scenario)


def test_truncated_ledgers_are_dropped_and_their_space_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_hasty(*args: Any, **options: Any) -> Deletion:
        return Deletion(*args, **options, interval_us=20_000, delay_us=0)

    async def scenario() -> None:
        monkeypatch.setattr(rounds, "Deletion", make_hasty)
        async with running(tmp_path) as bookie:
            operator = Operator(bookie)
            await fill(bookie, FIRST, 0, 19)
            await fill(bookie, SECOND, 0, 1)
            await operator.settle()
            log = replace(
                make_log(), log_id=LOG, next_epoch=Epoch(3), last_clean_epoch=1,
                first_live_epoch=Epoch(2),
            )  # fmt: skip
            store = MemoryStore(bookie.tree)
            await store.start()
            await store.create(PATHS.log(LOG), encode_log(log), make_parents=True)
            await wait_for(lambda: len(bookie.service.running_core().list_ledgers()) == 1)
            (answer,) = await bookie.read(ReadRange(FIRST, EntryId(0), EntryId(5), 1 * MIB))
            assert answer.status is BookieStatus.GONE
            before = operator.storage()["shelf"]["data_bytes"]
            compaction = bookie.service.running_upkeep().compaction
            assert await compaction.compact(0.9) == 1
            assert operator.storage()["shelf"]["data_bytes"] < before // 4
            assert await read_all(bookie, SECOND, 1) == expected(SECOND, 1)

    run(scenario)


def test_upkeep_shows_in_the_metrics(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            await fill(bookie, FIRST, 0, 9)
            await Operator(bookie).settle()
            shown = generate_latest().decode()
        assert "duramen_bookie_settled_entries 10.0" in shown
        for name in ("shelf_live_bytes", "repair_queue_ledgers", "disk_used_ratio"):
            assert f"\nduramen_bookie_{name} " in shown, name

    run(scenario)


def test_damage_in_the_entry_log_is_unknown_and_waits_for_repair(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            operator = Operator(bookie)
            await fill(bookie, FIRST, 0, 9)
            await operator.settle()
            (path,) = (tmp_path / "ledgers").glob("*.de")
            with path.open("r+b") as file:
                file.seek(4096 + 80 + 500)
                file.write(b"rotten")
            damaged, sound = await bookie.read(span(0), span(1))
            assert (damaged.status, sound.status) == (BookieStatus.UNKNOWN, OK)
            queue = PATHS.queued(FIRST)
            store = MemoryStore(bookie.tree)
            await store.start()
            async with asyncio.timeout(20):
                while await store.get(queue) is None:  # noqa: ASYNC110
                    await asyncio.sleep(0)
            assert await bookie.add(make_add(FIRST, 0)) == [OK]  # a write-back heals it
            assert await read_all(bookie, FIRST, 9) == expected(FIRST, 9)

    run(scenario)


def test_a_damaged_index_is_made_anew_while_the_bookie_runs(tmp_path: Path) -> None:
    async def scenario() -> None:
        tree = MemoryTree()
        async with running(tmp_path, tree) as bookie:
            await fill(bookie, FIRST, 0, 9)
            await Operator(bookie).settle()
        (path,) = (tmp_path / "ledgers").glob("*.idx")
        with path.open("r+b") as file:
            file.seek(4096 + 40)
            file.write(b"rotten")
        async with running(tmp_path, tree) as bookie:
            (answer,) = await bookie.read(span(0))
            assert answer.status in (OK, BookieStatus.UNKNOWN)
            await bookie.service.running_upkeep().compaction.rebuild_indexes()
            assert await read_all(bookie, FIRST, 9) == expected(FIRST, 9)

    run(scenario)


def test_a_file_is_compacted_as_it_is_when_its_turn_comes(tmp_path: Path) -> None:
    """Its index is made anew while another file is compacted, and somebody still reads the old one:
    what the new one has is no newer copy of it."""

    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            operator = Operator(bookie)
            for ledger_id in (FIRST, SECOND):
                await fill(bookie, ledger_id, 0, 9)
                await operator.settle()
            storage = bookie.service._storage
            assert storage is not None
            _, file = storage.entry_log.list_files()
            assert file.pin()
            file.is_index_damaged = True  # in a block of a ledger that is not alive any more
            compaction = bookie.service.running_upkeep().compaction
            await asyncio.gather(compaction.compact(1.0), compaction.rebuild_indexes())
            file.unpin()
            assert compaction.statistics()["rebuilt_index_count"] == 1
            for ledger_id in (FIRST, SECOND):
                assert await read_all(bookie, ledger_id, 9) == expected(ledger_id, 9)

    run(scenario)


def test_suspended_settling_settles_nothing_until_it_is_resumed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            operator = Operator(bookie)
            await fill(bookie, FIRST, 0, 9)
            await operator.put("/v1/upkeep/settling/suspended", {"is_on": True})
            settling = bookie.service.running_upkeep().settling
            assert not await settling.settle_all()
            assert operator.storage()["shelf"]["entries"] == 0
            await operator.put("/v1/upkeep/settling/suspended", {"is_on": False})
            assert await settling.settle_all()
            assert await read_all(bookie, FIRST, 9) == expected(FIRST, 9)

    run(scenario)


def span(number: int) -> ReadRange:
    return ReadRange(FIRST, EntryId(number), EntryId(number), 1 * MIB)
