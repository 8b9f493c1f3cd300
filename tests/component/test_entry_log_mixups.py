"""Shelf files whose parts are each intact and do not belong together: an index of another writing.

Every block and record here verifies by itself. What is wrong is which entry a row names, where it
says that the entry lies, or that a block came from an older index of the same file.
"""

from typing import Any

import pytest

from duramen.ids import EntryId
from duramen.wire.disk.entry_log_format import IndexRow
from duramen.wire.disk.journal_format import BLOCK_BYTES, record_bytes
from duramen_bookie.entry_log.entry_log import ref_of
from duramen_bookie.entry_log.index_file import IndexDamaged, IndexFile, IndexWriter
from tests.component.entry_log_world import INCARNATION, LEDGER, MIB, make_world, record
from tests.crash.disk import Disk


def write_index(disk: Disk, path: str, rows: list[IndexRow]) -> IndexFile:
    writer = IndexWriter(disk, path, 1, INCARNATION)
    for row in rows:
        writer.add(row)
    writer.finish(MIB)
    writer.close()
    return IndexFile.open(disk, path, INCARNATION)


def make_row(entry_id: int, offset: int, crc: int = 7) -> IndexRow:
    return IndexRow(LEDGER, EntryId(entry_id), 100, offset, crc)


def test_a_record_is_given_only_for_the_row_that_names_it() -> None:
    world, _ = make_world()
    world.write(1, [record(LEDGER, 0), record(LEDGER, 1)])
    file = world.entry_log.open_file(world.refs[1])
    row, following = file.index.list_rows(0, 2)
    assert file.data.read_records([row, following]) == [record(LEDGER, 0), record(LEDGER, 1)]
    assert file.data.read_records([row._replace(entry_id=following.entry_id)]) == [None]
    assert file.data.read_records([row._replace(crc=row.crc ^ 1)]) == [None]


def test_a_record_that_stands_there_twice_is_indexed_once() -> None:
    world, _ = make_world()
    writer = world.entry_log.create(1, 0)
    index: Any = writer._index
    index.add = lambda *_row: None  # it would refuse that
    for item in (record(LEDGER, 0), record(LEDGER, 1), record(LEDGER, 1)):
        writer.put(item)
    world.refs[1] = ref_of(writer.finish(), 0)
    assert len(world.rebuild(1)) == 1
    assert world.read(LEDGER, 0, 9)[0] == [0, 1]


def test_rows_that_do_not_lie_side_by_side_are_no_run() -> None:
    _, disk = make_world()
    step = record_bytes(100)
    together = write_index(disk, "/s0/000001.idx", [make_row(0, 8192), make_row(1, 8192 + step)])
    apart = write_index(disk, "/s0/000002.idx", [make_row(0, 8192), make_row(1, 9000 + step)])
    assert len(together.run(LEDGER, EntryId(0), 2, MIB)) == 2
    assert len(apart.run(LEDGER, EntryId(0), 2, MIB)) == 1


def test_an_index_of_two_writings_is_damaged_though_its_blocks_are_not() -> None:
    _, disk = make_world()
    ours = write_index(disk, "/s0/000001.idx", [make_row(0, 8192, crc=1)])
    ours.verify()
    write_index(disk, "/s0/000002.idx", [make_row(0, 8192, crc=2)]).close()
    other = disk.open("/s0/000002.idx")
    file = disk.open("/s0/000001.idx")
    file.pwritev([other.pread(BLOCK_BYTES, BLOCK_BYTES)], BLOCK_BYTES)
    with pytest.raises(IndexDamaged, match="not of one index"):
        ours.verify()
