"""Envelopes in a bookie that runs: settled, compacted, restarted, damaged and stored again.

Source: docs/protocol/envelopes.md "Store: POST /b/add, version 2" and "On disk", V1, V2, V7.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from duramen.core.status import BookieStatus
from duramen.ids import EntryId
from duramen.runtime.stores.memory_store import MemoryTree
from duramen.wire.bookie_calls import Add
from duramen.wire.repair_calls import Inventory
from duramen_bookie.journal.findings import DamageKind
from duramen_bookie.offline.commands import run_command
from duramen_bookie.repair.inventory import InventoryTaker
from duramen_bookie.storage import Storage
from duramen_bookie.upkeep.pacing import Pace
from tests.component.bookie_world import (
    LEDGER,
    OK,
    READ_LAC,
    SEAL,
    Bookie,
    add,
    bodies,
    damage,
    entry,
    expected,
    run,
    running,
    span,
    store,
)
from tests.waiting import wait_for

FIRST, LAST = EntryId(0), EntryId(99)


async def put(bookie: Bookie, *stores: Add) -> None:
    """As an owner: OVERLOADED is asked again."""

    async def ask() -> bool:
        statuses = await bookie.add(*stores)
        assert set(statuses) <= {OK, BookieStatus.OVERLOADED}, statuses
        return statuses == [OK] * len(stores)

    await wait_for(ask)


def storage_of(bookie: Bookie) -> Storage:
    storage = bookie.service._storage
    assert storage is not None
    return storage


def members(bookie: Bookie) -> dict[int, list[int]]:
    """Entry → who its envelope names, of all that have one; a hot one counts."""
    storage = storage_of(bookie)
    runs = storage.settled_contents(LEDGER, FIRST, LAST) + storage.hot_contents(LEDGER, FIRST, LAST)
    found = {}
    for first, last, content in runs:
        for entry_id in range(first, last + 1):
            found[entry_id] = [int.from_bytes(content[at : at + 2], "little") for at in (6, 8)]
    hot = storage.core.hot_entries(LEDGER)
    bare = [e for e in hot if storage.envelope_content(LEDGER, e) is None]
    return {entry_id: named for entry_id, named in found.items() if entry_id not in bare}


async def rested(bookie: Bookie) -> None:
    """Until the round of compaction that comes with a start is over."""
    upkeep = bookie.service.running_upkeep()
    await wait_for(lambda: upkeep.statistics()["compaction"]["rounds"]["round_count"] > 0)


async def compact(bookie: Bookie) -> int:
    await rested(bookie)
    return await bookie.service.running_upkeep().compaction.compact(1.0)


async def settle(bookie: Bookie) -> None:
    await rested(bookie)
    assert await bookie.service.running_upkeep().settling.settle_all()


async def read(bookie: Bookie, *numbers: int) -> list[BookieStatus]:
    answers = await bookie.read(*[span(number) for number in numbers])
    for number, answer in zip(numbers, answers, strict=True):
        assert answer.status is not OK or bodies(answer) == expected([number])
    return [answer.status for answer in answers]


def versions(folder: Path, pattern: str) -> list[int]:
    return [path.read_bytes()[4] for path in sorted(folder.rglob(pattern))]


def flip_envelope(folder: Path, number: int, pattern: str) -> None:
    """Change a byte of the envelope that stands behind an entry."""
    hits = 0
    for path in sorted(folder.rglob(pattern)):
        data = path.read_bytes()
        body = entry(number)
        at = data.find(body)
        while at >= 0:
            with path.open("r+b") as file:
                file.seek(at + len(body) + 7)
                file.write(bytes([data[at + len(body) + 7] ^ 1]))
            hits += 1
            at = data.find(body, at + 1)
    assert hits, f"entry {number} is nowhere in {folder}"


def test_envelopes_go_with_their_entries_wherever_those_go(tmp_path: Path) -> None:
    async def scenario() -> None:
        tree = MemoryTree()
        named = {2: [4, 0], 3: [4, 0], 5: [7, 1]}
        async with running(tmp_path, tree) as bookie:
            assert await bookie.add(add(0), add(1)) == [OK, OK]
            alive = [add(number, size=1000) for number in range(20, 60)]  # too much to compact
            assert await bookie.add(*alive) == [OK] * 40
            await settle(bookie)
            assert versions(tmp_path, "*.de") == versions(tmp_path, "*.idx") == [1]
            assert versions(tmp_path, "checkpoint-?") == [1, 1]
            await put(bookie, store(2, 4, 0, block=2), store(3, 4, 0, block=2), store(5, 7, 1))
            assert await bookie.add(add(4)) == [OK]
            assert members(bookie) == named
        async with running(tmp_path, tree) as bookie:
            assert members(bookie) == named, "replayed"
            await settle(bookie)
            assert members(bookie) == named, "settled"
            assert storage_of(bookie).index.statistics()["entries"] == 0
            assert versions(tmp_path, "*.de") == versions(tmp_path, "*.idx") == [1, 2]
            assert versions(tmp_path, "checkpoint-?") == [2, 2]
            assert await read(bookie, *range(6)) == [OK] * 6
        async with running(tmp_path, tree) as bookie:
            assert members(bookie) == named, "restarted"
            assert await compact(bookie) == 2
            assert members(bookie) == named, "compacted"
            assert set(versions(tmp_path, "*.de") + versions(tmp_path, "*.idx")) == {2}
            assert await read(bookie, *range(6)) == [OK] * 6
        async with running(tmp_path, tree) as bookie:
            assert members(bookie) == named

    run(scenario)


@pytest.mark.parametrize("is_settled", [False, True])
def test_a_store_of_what_is_here_changes_nothing_but_the_lac(
    tmp_path: Path, is_settled: bool
) -> None:
    async def scenario() -> None:
        tree = MemoryTree()
        async with running(tmp_path, tree) as bookie:
            await put(bookie, store(5, 4, 0, lac=1))
            assert await bookie.add(add(6, lac=1)) == [OK]
            if is_settled:
                await settle(bookie)
            assert await bookie.add(store(5, 7, 1, lac=3), store(6, 7, 1)) == [OK, OK]
            assert members(bookie) == {5: [4, 0]}
            [marks] = await bookie.lac(READ_LAC)
            assert marks.lac == 3
            changed = entry(5, 101)
            different = store(5, 7, 1)._replace(entry=changed)
            assert await bookie.add(different) == [BookieStatus.INVALID], "its envelope is no more"
            assert await bookie.add(add(5, size=101)) == [BookieStatus.DIFFERENT]
            await bookie.seal(SEAL)
            assert await bookie.add(store(5, 4, 0, lac=4)) == [BookieStatus.SEALED]
            assert await bookie.add(store(5, 4, 0, lac=4, recovery=True)) == [OK]
        async with running(tmp_path, tree) as bookie:
            [marks] = await bookie.lac(READ_LAC)
            assert marks.lac == 3 and members(bookie) == {5: [4, 0]}

    run(scenario)


@pytest.mark.parametrize("was_settled", [False, True])
@pytest.mark.parametrize("order", [((4, 0), (7, 1)), ((7, 1), (4, 0)), ((4, 0), ()), ((), (7, 1))])
def test_of_two_stores_the_one_whose_body_is_served_has_the_envelope(
    tmp_path: Path, order: tuple[tuple[int, ...], ...], was_settled: bool
) -> None:
    """V1: with damage between the two, restarts, settling, and the damaged record still there."""

    def record(named: tuple[int, ...]) -> Add:
        return store(5, *named) if named else add(5, recovery=False)

    async def scenario() -> None:
        tree = MemoryTree()
        first, second = order
        wanted = {5: list(second)} if second else {}
        async with running(tmp_path, tree) as bookie:
            await put(bookie, store(1, 9, 8))  # others of the files
            await put(bookie, record(first))
            if was_settled:
                await settle(bookie)
            damage(tmp_path, 5, pattern="*.de" if was_settled else "*.dj")
            assert await read(bookie, 5) == [BookieStatus.UNKNOWN]
            await put(bookie, record(second))
            assert await read(bookie, 5) == [OK]
            rest = {1: [9, 8]}
            assert members(bookie) == rest | wanted
        async with running(tmp_path, tree) as bookie:
            assert members(bookie) == rest | wanted and await read(bookie, 5) == [OK]
            await settle(bookie)
            assert members(bookie) == rest | wanted and await read(bookie, 5) == [OK]
        async with running(tmp_path, tree) as bookie:
            assert members(bookie) == rest | wanted and await read(bookie, 5) == [OK]

    run(scenario)


def test_a_damaged_envelope_is_no_damage_to_whoever_meets_it(tmp_path: Path) -> None:
    """V7: replay, scrub, inventory, reads, settling; the next copy is one without an envelope."""

    async def scenario() -> None:
        tree = MemoryTree()
        async with running(tmp_path, tree) as bookie:
            await put(bookie, store(2, 4, 0), store(3, 4, 0), store(5, 7, 1, lac=4))
        flip_envelope(tmp_path, 3, "*.dj")
        async with running(tmp_path, tree) as bookie:
            kinds = [one.kind for one in storage_of(bookie).replayed.damages]
            assert kinds == [DamageKind.ENVELOPE]
            assert not storage_of(bookie).core.is_doubtful
            await look_everywhere(bookie)
            assert members(bookie) == {2: [4, 0], 5: [7, 1]}
            await settle(bookie)
            assert members(bookie) == {2: [4, 0], 5: [7, 1]}
        flip_envelope(tmp_path, 5, "*.de")
        async with running(tmp_path, tree) as bookie:
            await rested(bookie)
            assert storage_of(bookie).replayed.damages == []
            await look_everywhere(bookie)
            assert members(bookie) == {2: [4, 0]}
            assert await compact(bookie) == 1
            await look_everywhere(bookie)
            assert members(bookie) == {2: [4, 0]}

    async def look_everywhere(bookie: Bookie) -> None:
        """Read, scrub and take stock of all that is here."""
        assert await read(bookie, 2, 3, 5) == [OK] * 3
        storage = storage_of(bookie)
        for unit in storage.scrub_units():
            assert list(unit.verify()) == []
        told: list[Any] = []
        taker = InventoryTaker(storage, Pace(1 << 40), on_damage=told.append)
        answer = await taker.take(Inventory(LEDGER, FIRST, LAST))
        assert [entry_id for entry_id, _ in answer.entries] == [2, 3, 5]
        assert answer.unknown == [] and told == []

    run(scenario)


def test_memory_still_knows_what_the_disk_has_lost_until_it_is_settled(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            await put(bookie, store(2, 4, 0))
            flip_envelope(tmp_path, 2, "*.dj")
            assert members(bookie) == {2: [4, 0]} and await read(bookie, 2) == [OK]
            await settle(bookie)
            assert members(bookie) == {} and await read(bookie, 2) == [OK]

    run(scenario)


def test_tools_for_a_stopped_bookie_know_envelopes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            await put(bookie, store(2, 4, 0, block=2), store(3, 4, 0, block=2), store(5, 7, 1))
            await settle(bookie)
            await put(bookie, store(6, 9, 8))

    def tool(*arguments: str) -> tuple[int, list[dict[str, Any]]]:
        capsys.readouterr()
        status = run_command([*arguments, "--json"])
        return status, [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    run(scenario)
    data = str(tmp_path)
    status, [*_, report] = tool("fsck", data)
    assert (status, report["damages"]) == (0, [])
    assert not any("envelopes" in note for note in report["notes"])
    _, rows = tool("inspect", "journal", data)
    [stored] = [row for row in rows if row.get("record") == "STORE"]
    assert stored["envelope"] == {"copyset": [9, 8], "block": None} and stored["is_intact"]
    for entry_id, copyset, block in (("3", [4, 0], 2), ("6", [9, 8], None)):
        _, copies = tool("inspect", "entry", data, str(LEDGER), entry_id)
        named = [row["envelope"] for row in copies if row["kind"] == "copy"]
        assert named == [{"copyset": copyset, "block": block}]
    [index] = tmp_path.rglob("*.idx")
    before = index.read_bytes()
    index.unlink()
    assert tool("fsck", data, "--rebuild-index")[0] == 0 and index.read_bytes() == before
    for pattern, number in (("*.de", 3), ("*.dj", 6)):
        flip_envelope(tmp_path, number, pattern)
    status, [*_, report] = tool("fsck", data)
    assert status == 0 and report["damages"] == []
    assert sum("envelopes are damaged" in note for note in report["notes"]) == 2
    _, copies = tool("inspect", "entry", data, str(LEDGER), "3")
    assert [row["is_intact"] for row in copies] == [True]
    assert all("envelope" not in row for row in copies)


def test_rows_that_name_another_envelope_are_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An index of other data of the same shape: every row is right but for the envelopes."""

    async def fill(folder: Path, named: tuple[int, ...], tree: MemoryTree) -> None:
        async with running(folder, tree) as bookie:
            await put(bookie, store(2, 4, 0), store(3, *named))
            await settle(bookie)

    async def scenario() -> None:
        tree = MemoryTree()
        async with running(tmp_path / "a", tree):
            pass
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        await fill(tmp_path / "a", (4, 0), tree)
        await fill(tmp_path / "b", (7, 1), tree)

    run(scenario)
    for name in ("ledgers/000001.idx", "checkpoint-a", "checkpoint-b"):
        shutil.copy(tmp_path / "a" / name, tmp_path / "b" / name)
    capsys.readouterr()
    status = run_command(["fsck", str(tmp_path / "b"), "--json"])
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert status != 0 and "name other envelopes" in str(report["damages"])
