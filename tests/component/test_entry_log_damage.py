"""Damage in the entry log: what is not intact is never served, and never looks like an absence.

A flipped bit, a bad sector or a missing piece anywhere costs at most the entries that it stands in,
and they are a fault. An index is made anew from its data file alone, byte for byte.
"""

import errno
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duramen.ids import EntryId, Incarnation
from duramen.wire.disk.entry_log_format import ROWS_PER_BLOCK
from duramen.wire.disk.journal_format import BLOCK_BYTES
from duramen_bookie.entry_log.data_file import index_path
from duramen_bookie.entry_log.entry_log import EntryLog, ReadFault
from duramen_bookie.entry_log.entry_log_file import IndexPart, RecordPart
from duramen_bookie.entry_log.index_file import IndexDamaged
from tests.component.entry_log_world import (
    LEDGER,
    MIB,
    OTHER,
    World,
    check,
    make_world,
    read_bytes,
    record,
)
from tests.crash.disk import Disk


def small_world() -> tuple[World, Disk]:
    """Two ledgers, few enough to try every bit."""
    world, disk = make_world()
    world.write(1, [record(LEDGER, number) for number in range(4)] + [record(OTHER, 7, 5)])
    return world, disk


def test_no_flipped_bit_of_a_data_file_is_served() -> None:
    world, disk = small_world()
    path = world.path(1)
    [file] = world.entry_log.list_files()
    rows = file.index.list_rows(0, file.row_count)
    bodies = {
        bit: (row.ledger_id, row.entry_id)
        for row in rows
        for bit in range(row.offset * 8, (row.offset + row.length_bytes) * 8)
    }
    end_mark = disk.size_bytes(path) - BLOCK_BYTES
    records = range(BLOCK_BYTES * 8, rows[-1].next_offset * 8, 3)
    for bit in [*range(0, records.start, 401), *records, *range(end_mark * 8, end_mark * 8 + 640)]:
        disk.flip_bit(path, bit)
        lost = bodies.get(bit)
        expected = [number for number in range(4) if lost != (LEDGER, number)]
        numbers, fault = world.read(LEDGER, 0, 4)
        assert numbers == [number for number in expected if number == expected.index(number)]
        assert fault is (None if len(expected) == 4 else ReadFault.UNREADABLE)
        for number in range(len(numbers) + 1, 4):
            assert world.read(LEDGER, number, 1) == ([number], None)
        assert (world.read(OTHER, 7, 1)[1] is None) == (lost != (OTHER, 7))
        disk.flip_bit(path, bit)


def test_every_flipped_bit_of_a_record_is_seen_by_the_scrub() -> None:
    world, disk = small_world()
    [file] = world.entry_log.list_files()
    [index_part, part] = list(file.scrub_units())
    assert isinstance(index_part, IndexPart) and isinstance(part, RecordPart)
    assert part.verify() == [] and index_part.verify() == ()
    path = world.path(1)
    rows = file.index.list_rows(0, file.row_count)
    for row in rows:
        for bit in range((row.offset - 80) * 8, (row.offset + row.length_bytes) * 8, 3):
            disk.flip_bit(path, bit)
            assert part.verify() == [(row.ledger_id, row.entry_id)]
            disk.flip_bit(path, bit)
    assert not file.is_index_damaged


def test_the_parts_of_a_scrub_are_small_and_leave_nothing_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("duramen_bookie.entry_log.entry_log_file.PART_BYTES", 5000)
    world, disk = make_world()
    world.write(1, [record(LEDGER, number, 20 + number * 37 % 900) for number in range(300)])
    [file] = world.entry_log.list_files()
    [_, *parts] = file.scrub_units()
    assert len(parts) >= 30 and sum(part.size_bytes for part in parts) <= file.ref.data_bytes
    rows = file.index.list_rows(0, file.row_count)
    wanted = [rows[number] for number in (0, 17, 126, 127, 128, 254, 299)]
    for row in wanted:
        disk.flip_bit(world.path(1), (row.offset + 9) * 8)
    found = [key for part in parts for key in part.verify()]
    assert found == [(row.ledger_id, row.entry_id) for row in wanted]


def test_a_flipped_bit_of_an_index_is_a_fault_until_it_is_made_anew() -> None:
    world, disk = small_world()
    path = index_path(world.path(1))
    before = read_bytes(disk, path)
    size = len(before)
    bits = {
        *range(0, size * 8, 67),
        *range(512),
        *range(BLOCK_BYTES * 8, BLOCK_BYTES * 8 + 1280),
    }
    bits |= {*range(2 * BLOCK_BYTES * 8, 2 * BLOCK_BYTES * 8 + 512)}
    for bit in sorted(bits):
        disk.flip_bit(path, bit)
        entry_log = world.make_entry_log()
        # The header and the directory are read when it is opened, the only block of rows later.
        if bit // 8 // BLOCK_BYTES != 1:
            with pytest.raises(IndexDamaged):
                entry_log.open_file(world.refs[1])
        else:
            file = entry_log.open_file(world.refs[1])
            entry_log.add(file)
            for ledger, first, count in ((LEDGER, 0, 4), (OTHER, 7, 1)):
                found = entry_log.read(ledger, EntryId(first), count, MIB)
                assert check(ledger, found) == [] and found.fault is ReadFault.INDEX
                assert entry_log.identity_of(ledger, EntryId(first)) is None
            assert file.is_index_damaged
            entry_log.close()
        [index_part, _] = world.entry_log.list_files()[0].scrub_units()
        index_part.verify()
        assert world.entry_log.list_files()[0].is_index_damaged
        assert world.rebuild(1) == [] and read_bytes(disk, path) == before
        assert world.read(LEDGER, 0, 4) == ([0, 1, 2, 3], None)
    world.entry_log.close()
    assert disk.open_count == 0


def test_a_bad_sector_costs_what_stands_in_it() -> None:
    world, disk = make_world()
    world.write(1, [record(LEDGER, number, 300) for number in range(40)])
    rows = world.entry_log.list_files()[0].index.list_rows(0, 40)
    disk.spoil(world.path(1), rows[10].offset + 100, rows[10].offset + 200)
    assert world.read(LEDGER, 0, 40) == (list(range(10)), ReadFault.UNREADABLE)
    assert world.read(LEDGER, 11, 29) == (list(range(11, 40)), None)
    [_, part] = world.entry_log.list_files()[0].scrub_units()
    assert part.verify() == [(LEDGER, 10)]


def test_a_bad_sector_under_an_index_is_no_crash_and_costs_one_block() -> None:
    world, disk = make_world()
    world.write(1, [record(LEDGER, number) for number in range(4 * ROWS_PER_BLOCK)])
    world.reopen()
    path = index_path(world.path(1))
    disk.spoil(path, 2 * BLOCK_BYTES + 5, 2 * BLOCK_BYTES + 6)
    first_bad, last_bad = ROWS_PER_BLOCK, 2 * ROWS_PER_BLOCK - 1
    assert world.read(LEDGER, 0, 300) == (list(range(first_bad)), ReadFault.INDEX)
    assert world.read(LEDGER, first_bad, 1) == ([], ReadFault.INDEX)
    assert world.read(LEDGER, last_bad, 1) == ([], ReadFault.INDEX)
    assert world.read(LEDGER, last_bad + 1, 100)[1] is None
    assert world.entry_log.statistics()["damaged_indexes"] == [1]
    disk.inode(path).unreadable.clear()
    assert world.rebuild(1) == []
    assert world.read(LEDGER, 0, 300) == (list(range(300)), None)
    assert world.entry_log.statistics()["damaged_indexes"] == []


def test_another_file_answers_for_a_damaged_index() -> None:
    world, disk = make_world()
    world.write(1, [record(LEDGER, number) for number in range(5)])
    world.write(2, [record(LEDGER, number) for number in range(2, 4)])
    world.reopen()
    disk.spoil(index_path(world.path(2)), BLOCK_BYTES, BLOCK_BYTES + 1)
    assert world.read(LEDGER, 0, 5) == ([0, 1, 2, 3, 4], None)
    assert world.read(LEDGER, 5, 1) == ([], ReadFault.INDEX)


@pytest.mark.parametrize("missing_bytes", [1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES])
def test_what_is_cut_off_is_a_fault(missing_bytes: int) -> None:
    world, disk = make_world()
    world.write(1, [record(LEDGER, number, 1000) for number in range(10)])
    size = disk.size_bytes(world.path(1)) - missing_bytes
    kept = [
        row
        for row in world.entry_log.list_files()[0].index.list_rows(0, 10)
        if row[3] + 1064 <= size
    ]
    expected = list(range(len(kept))), None if len(kept) == 10 else ReadFault.UNREADABLE
    world.entry_log.close()
    cut_off(disk, index_path(world.path(1)), missing_bytes)
    with pytest.raises(IndexDamaged):
        world.make_entry_log().open_file(world.refs[1])
    world.reopen()
    assert world.read(LEDGER, 0, 10) == (list(range(10)), None)
    cut_off(disk, world.path(1), missing_bytes)
    assert world.read(LEDGER, 0, 10) == expected
    # Zeros behind the end mark are nothing that could be missed.
    damages = world.rebuild(1)
    assert bool(damages) == (missing_bytes >= BLOCK_BYTES)
    assert all(damage.end <= size for damage in damages)
    assert world.read(LEDGER, 0, 10) == expected


def cut_off(disk: Disk, path: str, missing_bytes: int) -> None:
    file = disk.open(path)
    file.truncate(file.size_bytes() - missing_bytes)
    file.close()


def test_an_index_that_is_not_the_named_one_is_damage() -> None:
    world, _ = make_world()
    world.write(1, [record(LEDGER, 0)])
    entry_log = world.make_entry_log()
    for wrong in (
        world.refs[1]._replace(index_crc=1),
        world.refs[1]._replace(data_bytes=1),
    ):
        with pytest.raises(IndexDamaged, match="another one"):
            entry_log.open_file(wrong)
    other_life = EntryLog(world.fs, world.directories, Incarnation("00" * 16), lambda _: True)
    with pytest.raises(IndexDamaged, match="header"):
        other_life.open_file(world.refs[1])
    with pytest.raises(FileNotFoundError):
        entry_log.open_file(world.refs[1]._replace(file_id=2))
    world.fs.remove(index_path(world.path(1)))
    with pytest.raises(IndexDamaged, match="missing"):
        entry_log.open_file(world.refs[1])
    world.entry_log.close()


# --- Without an index -----------------------------------------------------------------------------


@settings(max_examples=25)
@given(st.sets(st.tuples(st.integers(1, 5), st.integers(0, 300)), max_size=400), st.randoms())
def test_an_index_is_made_anew_byte_for_byte(
    wanted: set[tuple[int, int]], rng: random.Random
) -> None:
    world, disk = make_world()
    world.write(1, [record(*key, rng.randrange(20, 200)) for key in sorted(wanted)])
    path = index_path(world.path(1))
    before, ref = read_bytes(disk, path), world.refs[1]
    assert world.rebuild(1) == [] and world.refs[1] == ref
    assert read_bytes(disk, path) == before
    assert disk.list_files() == [world.path(1), path]


def test_scanning_goes_on_behind_damage() -> None:
    world, disk = make_world()
    world.write(1, [record(LEDGER, number, 300) for number in range(40)])
    rows = world.entry_log.list_files()[0].index.list_rows(0, 40)
    path = world.path(1)
    disk.flip_bit(path, rows[3].offset * 8 + 700)  # a body: it is known whose
    disk.flip_bit(path, (rows[7].offset - 10) * 8)  # a header: the place alone
    disk.spoil(path, rows[20].offset, rows[20].offset + 1)  # a block with several entries
    damages = world.rebuild(1)
    assert [damage.header is None for damage in damages[:2]] == [False, True]
    assert damages[0].header is not None and damages[0].header.entry_id == 3
    assert (damages[1].start, damages[1].end) == (rows[7].offset - 80, rows[8].offset - 80)
    assert any(damage.start <= rows[20].offset < damage.end for damage in damages)
    kept = {row.entry_id for row in world.entry_log.list_files()[0].index.list_rows(0, 40 - 12)}
    for number in range(40):
        expected = ([number], None) if number in kept else ([], ReadFault.UNREADABLE)
        if number in kept or number in {3, 7, 20}:
            assert world.read(LEDGER, number, 1) == expected
    assert not kept & {3, 7, 20} and {0, 1, 2, 4, 5, 6, 8} <= kept


def test_padding_that_rots_loses_nothing() -> None:
    world, disk = make_world()
    world.write(1, [record(LEDGER, number, 31) for number in range(3)])
    rows = world.entry_log.list_files()[0].index.list_rows(0, 3)
    before = read_bytes(disk, index_path(world.path(1)))
    for offset in (
        200,
        rows[0].offset + rows[0].length_bytes,
        rows[2].next_offset,
        disk.size_bytes(world.path(1)) - 1,
    ):
        disk.flip_bit(world.path(1), offset * 8 + 1)
    assert world.rebuild(1) == [] and read_bytes(disk, index_path(world.path(1))) == before
    assert world.read(LEDGER, 0, 3) == ([0, 1, 2], None)


def test_a_missing_end_is_damage_of_no_entry() -> None:
    world, disk = make_world()
    world.write(1, [record(LEDGER, number) for number in range(3)])
    disk.flip_bit(world.path(1), (disk.size_bytes(world.path(1)) - BLOCK_BYTES) * 8)
    [damage] = world.rebuild(1)
    assert damage.end == disk.size_bytes(world.path(1)) and damage.header is None
    assert world.read(LEDGER, 0, 3) == ([0, 1, 2], None)


def test_a_rebuild_that_fails_leaves_the_old_index() -> None:
    for name in ("create", "pwritev", "fsync", "rename"):
        world, disk = make_world()
        world.write(1, [record(LEDGER, number) for number in range(3)])
        before = disk.open_count
        disk.fail_at(name, 1, errno.ENOSPC)
        with pytest.raises(OSError, match="injected"):
            world.entry_log.rebuild_index(world.refs[1])
        disk.hook = None
        assert disk.open_count == before
        world.reopen()
        assert world.read(LEDGER, 0, 3) == ([0, 1, 2], None)
        world.entry_log.remove_leftovers(world.refs.values())
        assert disk.list_files() == [world.path(1), index_path(world.path(1))]
