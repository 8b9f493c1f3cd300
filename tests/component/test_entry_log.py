"""The entry log on a simulated disk and on the real one: what is put is read, in runs, from any
file.

An index is found by bisection as a dictionary would find it. Damage is in
`test_entry_log_damage.py`, the bytes of single blocks in `unit/test_entry_log_format.py`, the
checkpoint in `test_checkpoint.py`.
"""

import errno
import random
import sys
import threading
from collections import deque
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duramen.ids import EntryId, LedgerId
from duramen.wire.disk.entry_log_format import ROWS_PER_BLOCK, IndexRow
from duramen.wire.disk.journal_format import BLOCK_BYTES
from duramen.wire.entry import EntryError
from duramen_bookie.entry_log.data_file import DataDamage, index_path, scan
from duramen_bookie.entry_log.entry_log import EntryLogRead, ReadFault, ref_of
from duramen_bookie.entry_log.index_file import IndexDamaged, IndexFile, IndexWriter
from duramen_bookie.file_system import PosixFileSystem
from tests.component.entry_log_world import (
    INCARNATION,
    LEDGER,
    MIB,
    OTHER,
    World,
    check,
    entry,
    make_world,
    record,
)
from tests.crash.disk import Disk, Operation
from tests.golden import read_golden


@pytest.fixture(params=["simulated", "real"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    if request.param == "simulated":
        return make_world()[0]
    return World(PosixFileSystem(), [str(tmp_path)])


# --- Reading --------------------------------------------------------------------------------------


def test_what_is_put_is_read(world: World) -> None:
    world.write(1, [record(ledger, number) for ledger in (LEDGER, OTHER) for number in range(300)])
    for _ in range(2):
        for ledger in (LEDGER, OTHER):
            assert world.read(ledger, 0, 300) == (list(range(300)), None)
            assert world.read(ledger, 117, 20) == (list(range(117, 137)), None)
            assert world.read(ledger, 299, 1) == ([299], None)
        world.reopen()
    world.entry_log.close()


def test_a_read_is_bounded_in_bytes_but_gives_one_entry(world: World) -> None:
    world.write(1, [record(LEDGER, number, 1000) for number in range(10)])
    assert world.read(LEDGER, 2, 8, 3 * 1064) == ([2, 3, 4], None)
    assert world.read(LEDGER, 2, 8, 3 * 1064 - 1) == ([2, 3], None)
    assert world.read(LEDGER, 2, 8, 1) == ([2], None)
    assert world.read(LEDGER, 8, 2, 0) == ([8], None)
    world.entry_log.close()


def test_what_is_not_there_is_a_fault_and_no_absence(world: World) -> None:
    world.write(1, [record(LEDGER, number) for number in (3, 4, 6)])
    assert world.read(LEDGER, 3, 10) == ([3, 4], ReadFault.UNREADABLE)
    for first in (0, 2, 5, 7, 1 << 31):
        assert world.read(LEDGER, first, 1) == ([], ReadFault.UNREADABLE)
    assert world.read(OTHER, 3, 1) == ([], ReadFault.UNREADABLE)
    assert world.entry_log.identity_of(LEDGER, EntryId(5)) is None
    assert world.entry_log.identity_of(OTHER, EntryId(3)) is None
    world.entry_log.close()


def test_a_run_goes_on_from_file_to_file(world: World) -> None:
    world.write(1, [record(LEDGER, number) for number in (0, 1, 2, 6, 7)])
    world.write(2, [record(LEDGER, number) for number in (3, 4, 5, 8)])
    assert world.read(LEDGER, 0, 9) == (list(range(9)), None)
    assert world.read(LEDGER, 2, 3) == ([2, 3, 4], None)
    assert world.read(LEDGER, 1, 8, 4 * 94) == ([1, 2, 3, 4], None)
    world.entry_log.close()


def test_the_newest_file_that_has_an_entry_is_asked() -> None:
    world, disk = make_world()
    world.write(1, [record(LEDGER, number) for number in range(10)])
    world.write(2, [record(LEDGER, number) for number in (2, 5, 6)])
    disk.spoil(world.path(1), 0, 1 << 30)
    assert world.read(LEDGER, 2, 1) == ([2], None)
    assert world.read(LEDGER, 5, 5) == ([5, 6], ReadFault.UNREADABLE)
    disk.inode(world.path(1)).unreadable.clear()
    disk.spoil(world.path(2), 0, 1 << 30)
    assert world.read(LEDGER, 0, 10) == ([0, 1], ReadFault.UNREADABLE)
    assert world.read(LEDGER, 3, 7) == ([3, 4], ReadFault.UNREADABLE)
    assert world.read(LEDGER, 7, 3) == ([7, 8, 9], None)


def test_one_read_of_the_disk_serves_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    world, disk = make_world()
    world.write(1, [record(LEDGER, number) for number in range(1000)])
    assert world.read(LEDGER, 0, 1000)[1] is None
    [file] = world.entry_log.list_files()
    reads: list[tuple[int, int]] = []
    data = file.data._file
    pread = data.pread

    def note(length_bytes: int, offset: int) -> bytes:
        reads.append((length_bytes, offset))
        return pread(length_bytes, offset)

    monkeypatch.setattr(data, "pread", note)
    rows = file.index.run(LEDGER, EntryId(100), 500, MIB)
    assert world.read(LEDGER, 100, 500) == (list(range(100, 600)), None)
    assert reads == [(rows[-1].offset + rows[-1].length_bytes - rows[0].offset, rows[0].offset)]
    assert disk.open_count == 2


def test_identities_are_those_of_the_entries(world: World) -> None:
    world.write(1, [record(LEDGER, number) for number in range(200)])
    for number in (0, 126, 127, 199):
        body = entry(LEDGER, number)
        assert world.entry_log.identity_of(LEDGER, EntryId(number)) == int.from_bytes(
            body[4:8], "little"
        )
    world.entry_log.close()


def test_files_lie_in_several_directories() -> None:
    world, disk = make_world(3)
    for number in range(3):
        world.write(number + 1, [record(LEDGER, number)], directory=number)
    assert disk.list_files() == [
        f"/s{number}/00000{number + 1}.{suffix}" for number in range(3) for suffix in ("de", "idx")
    ]
    assert world.read(LEDGER, 0, 3) == ([0, 1, 2], None)
    assert world.entry_log.remove_leftovers(world.refs.values()) == []


def test_records_come_back_whole(world: World) -> None:
    written = [record(ledger, number) for ledger in (LEDGER, OTHER) for number in range(700)]
    world.write(1, written)
    [file] = world.entry_log.list_files()
    [first, second] = file.index.ledgers()
    assert (first.ledger_id, second.ledger_id) == (LEDGER, OTHER)
    assert (second.first_row, second.row_count) == (700, 700)
    for is_direct in (False, True):
        found = list(file.list_records(0, file.row_count, is_direct=is_direct))
        assert [item for _, item in found] == written
    found = list(file.list_records(second.first_row + 5, second.first_row + 10))
    assert [item for _, item in found] == written[705:710]
    world.entry_log.close()


# --- Bisection ------------------------------------------------------------------------------------


class Found(NamedTuple):
    """What an index says of an entry."""

    row: IndexRow | None
    following: int | None


keys = st.sets(st.tuples(st.integers(1, 4), st.integers(0, 400)), max_size=500)
ranges = st.sets(
    st.tuples(st.integers(1, 30), st.integers(0, 40), st.integers(1, 60)), max_size=12
).map(lambda runs: {(a, b) for a, first, count in runs for b in range(first, first + count)})


@settings(max_examples=60)
@given(keys | ranges)
def test_an_index_finds_what_a_dictionary_finds(wanted: set[tuple[int, int]]) -> None:
    disk = Disk(random.Random(1))
    writer = IndexWriter(disk, "/x", 5, INCARNATION)
    table: dict[tuple[int, int], IndexRow] = {}
    offset = BLOCK_BYTES
    for key in sorted(wanted):
        row = IndexRow(LedgerId(key[0]), EntryId(key[1]), 10 + key[1] % 3, offset, key[1])
        table[key] = row
        offset = row.next_offset
        writer.add(row)
    writer.finish(offset)
    index = IndexFile.open(disk, "/x", INCARNATION)
    assert index.header.row_count == len(table)
    for ledger in index.ledgers():
        mine = [row for row in table.values() if row.ledger_id == ledger.ledger_id]
        assert index.list_rows(ledger.first_row, ledger.first_row + ledger.row_count) == mine
        assert ledger.record_bytes == sum(row.next_offset - row.offset for row in mine)
        assert index.find_ledger(ledger.ledger_id) == ledger
    assert [ledger.ledger_id for ledger in index.ledgers()] == sorted({a for a, _ in wanted})
    for ledger_id in {0, 5, 31, *(a for a, _ in wanted)}:
        mine_ids = [number for a, number in wanted if a == ledger_id]
        for number in range(0, 402, 7):
            found = Found(
                index.find(LedgerId(ledger_id), EntryId(number)),
                index.next_entry(LedgerId(ledger_id), EntryId(number)),
            )
            following = min((b for b in mine_ids if b >= number), default=None)
            assert found == (table.get((ledger_id, number)), following)
            run = index.run(LedgerId(ledger_id), EntryId(number), 50, 200)
            expected: list[IndexRow] = []
            while (at := (ledger_id, number + len(expected))) in table and len(expected) < 50:
                if expected and sum(row[2] for row in expected) + table[at][2] > 200:
                    break
                expected.append(table[at])
            assert run == expected


def test_opening_reads_the_directory_and_no_row() -> None:
    world, disk = make_world()
    world.write(1, [record(LEDGER, number) for number in range(5 * ROWS_PER_BLOCK)])
    world.entry_log.close()
    disk.spoil(index_path(world.path(1)), BLOCK_BYTES, 6 * BLOCK_BYTES)
    file = world.make_entry_log().open_file(world.refs[1])
    [ledger] = file.index.ledgers()
    assert ledger.row_count == 5 * ROWS_PER_BLOCK
    with pytest.raises(IndexDamaged, match="bad sector"):
        file.index.find(LEDGER, EntryId(0))
    file.retire()


# --- Writing --------------------------------------------------------------------------------------


def test_data_then_index_then_directory_are_synced() -> None:
    world, disk = make_world()
    seen: list[Operation] = []
    disk.hook = seen.append
    world.write(1, [record(LEDGER, number, 3000) for number in range(1000)])
    syncs = [(op.name, op.path) for op in seen if "sync" in op.name]
    assert syncs == [
        ("fsync", "/s0/000001.de"),
        ("fsync", "/s0/000001.idx"),
        ("fsync_directory", "/s0"),
    ]
    last_write = max(i for i, op in enumerate(seen) if op == ("pwritev", "/s0/000001.de"))
    assert last_write < seen.index(Operation("fsync", "/s0/000001.de"))


def test_a_large_file_is_synced_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duramen_bookie.entry_log.appending._SYNC_BYTES", 2 * MIB)
    world, disk = make_world()
    unsynced: list[int] = []
    disk.hook = lambda _: unsynced.append(
        sum(len(disk.inode(path).sectors) * 512 for path in disk.list_files())
    )
    world.write(1, [record(LEDGER, number, 100_000) for number in range(100)])
    assert disk.counts["fdatasync"] >= 4 and max(unsynced) <= 4 * MIB


def test_nothing_but_the_whole_entry_is_put(world: World) -> None:
    writer = world.entry_log.create(1, 0)
    writer.put(record(LEDGER, 0))
    good = record(LEDGER, 1)
    for wrong in (
        good._replace(body=good.body[:-1]),
        good._replace(body=good.body[:-1] + b"?"),
        good._replace(entry_id=EntryId(2)),
        good._replace(ledger_id=OTHER),
        good._replace(body=b"no entry"),
    ):
        with pytest.raises(EntryError):
            writer.put(wrong)
    writer.put(good)
    world.refs[1] = ref_of(writer.finish(), 0)
    world.reopen()
    assert world.read(LEDGER, 0, 2) == ([0, 1], None)
    world.entry_log.close()


@pytest.mark.parametrize("name", ["create", "preallocate", "pwritev", "fsync", "fsync_directory"])
def test_a_writer_that_fails_can_be_abandoned(name: str) -> None:
    for nth in (1, 2):
        world, disk = make_world()
        disk.fail_at(name, nth, errno.ENOSPC)
        writer = None
        try:
            writer = world.entry_log.create(1, 0)
            for number in range(3000):
                writer.put(record(LEDGER, number, 1000))
            writer.finish()
        except OSError:
            disk.hook = None
            if writer is not None:
                writer.abandon()
            assert disk.list_files() == [] and disk.open_count == 0
        else:
            assert name == "fsync_directory" and nth == 2
        disk.hook = None


def test_a_full_disk_is_met_before_anything_is_half_written() -> None:
    disk = Disk(random.Random(1), capacity_bytes=3 * MIB)
    disk.make_directory("/s0")
    world = World(disk, ["/s0"])
    writer = world.entry_log.create(1, 0)
    records = [record(LEDGER, number, 1000) for number in range(4000)]
    with pytest.raises(OSError, match="full") as caught:
        deque(map(writer.put, records), maxlen=0)
    assert caught.value.errno == errno.ENOSPC
    writer.abandon()
    assert disk.list_files() == [] and disk.open_count == 0


def test_an_empty_file_is_a_file(world: World) -> None:
    world.write(1, [])
    world.reopen()
    [file] = world.entry_log.list_files()
    assert file.row_count == 0 and list(file.index.ledgers()) == []
    assert [part.verify() for part in file.scrub_units()] == [()]
    assert world.rebuild(1) == []
    world.entry_log.close()


# --- The set of files -----------------------------------------------------------------------------


def test_a_dropped_ledger_is_not_alive_any_more(world: World) -> None:
    world.write(1, [record(ledger, number) for ledger in (LEDGER, OTHER) for number in range(9)])
    [file] = world.entry_log.list_files()
    assert file.live_bytes == file.ref.data_bytes - 2 * BLOCK_BYTES - -file.live_bytes % BLOCK_BYTES
    before = file.live_bytes
    world.dead.add(LEDGER)
    for _ in range(2):
        world.entry_log.drop(LEDGER)
        assert file.live_bytes == before // 2
        assert world.read(LEDGER, 0, 1) == ([], ReadFault.UNREADABLE)
        assert world.read(OTHER, 0, 9) == (list(range(9)), None)
    # What is added later, or again, knows of it.
    assert world.rebuild(1) == []
    world.write(2, [record(ledger, number) for ledger in (LEDGER, OTHER) for number in (20, 21)])
    assert [item.live_bytes for item in world.entry_log.list_files()] == [before // 2, before // 9]
    assert world.read(LEDGER, 20, 1) == ([], ReadFault.UNREADABLE)
    statistics = world.entry_log.statistics()
    assert statistics["ledgers"] == 1 and statistics["entries"] == 22
    world.entry_log.close()


def test_a_compacted_file_takes_the_place_of_others() -> None:
    world, disk = make_world()
    world.write(1, [record(LEDGER, number) for number in range(10)])
    world.write(2, [record(LEDGER, number) for number in range(10, 20)])
    world.write(3, [record(LEDGER, number) for number in range(20)])
    world.entry_log.retire([1, 2])
    assert disk.list_files() == ["/s0/000003.de", "/s0/000003.idx"]
    assert world.read(LEDGER, 0, 20) == (list(range(20)), None)
    assert disk.open_count == 2
    world.entry_log.close()
    assert disk.open_count == 0


def test_a_retired_file_closes_when_its_last_read_ends() -> None:
    world, disk = make_world()
    world.write(1, [record(LEDGER, number) for number in range(3)])
    [file] = world.entry_log.list_files()
    [_, part] = file.scrub_units()
    assert file.pin()
    world.entry_log.retire([1])
    assert disk.open_count == 2 and disk.list_files() == []
    assert check(LEDGER, EntryLogRead(file.data.read_entries(file.index.list_rows(0, 3)))) == [
        0,
        1,
        2,
    ]
    assert not file.pin() and part.verify() == []
    file.unpin()
    assert disk.open_count == 0
    assert world.read(LEDGER, 0, 1) == ([], ReadFault.UNREADABLE)


def test_leftovers_go_and_nothing_else() -> None:
    world, disk = make_world(2)
    world.write(1, [record(LEDGER, 0)])
    world.write(2, [record(LEDGER, 1)], directory=1)
    kept = disk.list_files()
    strangers = ["/s0/000002.de", "/s1/000003.de", "/s1/000003.idx", "/s0/000001.idx.new"]
    others = ["/s0/cookie.json", "/s1/000004.de.bak"]
    for path in [*strangers, *others]:
        disk.open(path, is_new=True).close()
    assert sorted(world.entry_log.remove_leftovers(world.refs.values())) == sorted(strangers)
    assert disk.list_files() == sorted([*kept, *others])
    assert world.read(LEDGER, 0, 2) == ([0, 1], None)


def test_reads_go_on_while_files_come_and_go(world: World) -> None:
    world.write(1, [record(LEDGER, number) for number in range(200)])
    stop = threading.Event()
    seen: set[str] = set()

    def read_on() -> None:
        while not stop.is_set():
            seen.add(repr(world.read(LEDGER, 3, 190)))

    threads = [threading.Thread(target=read_on) for _ in range(2)]
    switched_after_s = sys.getswitchinterval()
    # With the usual 5 ms each small call of the writer waits for a reader: minutes in all.
    sys.setswitchinterval(50e-6)
    try:
        for thread in threads:
            thread.start()
        for file_id in range(2, 12):
            world.write(file_id, [record(LEDGER, number) for number in range(200)])
            world.entry_log.retire([file_id - 1])
            world.rebuild(file_id)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(switched_after_s)
    assert seen == {repr((list(range(3, 193)), None))}
    world.entry_log.close()


# --- Golden files ---------------------------------------------------------------------------------


def test_the_golden_files_are_written_and_read_as_ever(tmp_path: Path) -> None:
    world = World(PosixFileSystem(), [str(tmp_path)])
    written = [record(LEDGER, number) for number in (0, 1, 2, 5)] + [record(OTHER, 3, 7)]
    world.write(5, written)
    path = Path(world.path(5))
    world.entry_log.close()
    data = read_golden("shelf-data-v1.bin", path.read_bytes())
    index = read_golden("shelf-index-v1.bin", Path(index_path(str(path))).read_bytes())
    path.write_bytes(data)
    Path(index_path(str(path))).write_bytes(index)
    world.reopen()
    assert world.read(LEDGER, 0, 3) == ([0, 1, 2], None)
    assert world.read(OTHER, 3, 1) == ([3], None)
    file = world.fs.open(str(path))
    items = list(scan(file, 5, INCARNATION))
    file.close()
    assert all(not isinstance(item, DataDamage) for item in items)
    assert [
        item.header.record(item.body) for item in items if not isinstance(item, DataDamage)
    ] == (written)
    assert world.rebuild(5) == []
    assert Path(index_path(str(path))).read_bytes() == index
    world.entry_log.close()
