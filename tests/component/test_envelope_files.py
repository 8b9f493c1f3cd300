"""Data files and indexes of version 2: envelopes beside settled entries, and what damage costs.

Source: docs/protocol/envelopes.md "On disk", V1, V7, V11.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from duramen.ids import EntryId, LedgerId
from duramen.wire.disk.entry_log_format import NO_ENVELOPE
from duramen.wire.disk.journal_format import BLOCK_BYTES, JournalRecord, RecordKind
from duramen.wire.flexible.envelope import Envelope
from duramen_bookie.entry_log.contents import ContentRows, ContentRun
from duramen_bookie.entry_log.data_file import DataDamage, index_path, scan
from duramen_bookie.file_system import PosixFileSystem
from tests.component.entry_log_world import (
    INCARNATION,
    LEDGER,
    OTHER,
    World,
    make_world,
    read_bytes,
    record,
)
from tests.golden import read_golden
from tests.unit.stores import PLAIN, STICKY, content, envelope_of, spell

A, B = content(STICKY), content(PLAIN)


def store(
    entry_id: int, envelope: Envelope | None = STICKY, ledger_id: LedgerId = LEDGER
) -> JournalRecord:
    """The record of an entry with an envelope, something in every field."""
    plain = record(ledger_id, entry_id)
    if envelope is None:
        return plain
    return plain._replace(kind=RecordKind.STORE, envelope=spell(envelope, plain.body))


def world_of(*records: JournalRecord) -> World:
    """A world with one file of version 2 on a simulated disk."""
    world, _ = make_world()
    world.entry_log.keeps_envelopes = True
    world.write(5, records)
    return world


def runs(world: World, ledger_id: LedgerId = LEDGER, last: int = 99) -> list[ContentRun]:
    return world.entry_log.list_contents(ledger_id, EntryId(0), EntryId(last))


def rows(world: World) -> list[int]:
    """Of each row of file 5 the row beside which its content stands."""
    [file] = world.entry_log.list_files()
    return [row.content_row for row in file.index.list_rows(0, file.row_count)]


MIXED = [
    store(0),
    store(1),
    store(2, None),
    store(3),
    store(4, PLAIN),
    store(5, PLAIN),
    store(9, PLAIN),
    store(1, PLAIN, OTHER),
    store(2, PLAIN, OTHER),
]


def test_golden_files_with_envelopes(tmp_path: Path) -> None:
    world = World(PosixFileSystem(), [str(tmp_path)])
    world.entry_log.keeps_envelopes = True
    world.write(5, MIXED)
    path = Path(world.path(5))
    world.entry_log.close()
    data = read_golden("shelf-data-v2.bin", path.read_bytes())
    index = read_golden("shelf-index-v2.bin", Path(index_path(str(path))).read_bytes())
    path.write_bytes(data)
    Path(index_path(str(path))).write_bytes(index)
    world.reopen()
    file = world.fs.open(str(path))
    items = [item for item in scan(file, 5, INCARNATION) if not isinstance(item, DataDamage)]
    file.close()
    assert [item.header.record(item.body + item.envelope) for item in items] == MIXED
    assert runs(world) == [(0, 1, A), (3, 3, A), (4, 5, B), (9, 9, B)]
    assert runs(world, OTHER) == [(1, 2, B)]
    assert world.rebuild(5) == []
    assert Path(index_path(str(path))).read_bytes() == index, "it follows from the data alone"
    world.entry_log.close()


def test_a_row_names_the_row_beside_whose_entry_its_content_stands() -> None:
    world = world_of(*MIXED)
    assert rows(world) == [0, 0, NO_ENVELOPE, 3, 4, 4, 4, 7, 7]
    [file] = world.entry_log.list_files()
    assert [row.length_bytes for row in file.index.list_rows(0, 9)] == [
        len(item.body) for item in MIXED
    ], "of the entry alone"


def test_numbers_of_rows_begin_anew_behind_a_gap_a_ledger_and_another_content() -> None:
    made = ContentRows()
    contents = [(1, A), (1, A), (1, b""), (1, A), (2, A), (2, B), (2, A)]
    assert [made.place(LedgerId(ledger), text) for ledger, text in contents] == [
        0, 0, NO_ENVELOPE, 3, 4, 5, 6,
    ]  # fmt: skip


def test_entries_with_envelopes_are_read_and_copied_as_they_are() -> None:
    world = world_of(*MIXED)
    assert world.read(LEDGER, 0, 6) == ([0, 1, 2, 3, 4, 5], None)
    for _ in range(2):
        [file] = world.entry_log.list_files()
        found = [item for _, item in file.list_records(0, file.row_count)]
        assert found == MIXED
        [past_cache] = [list(file.list_records(8, 9, is_direct=True))]
        assert past_cache[0][1] == MIXED[-1], "the last envelope of a file is read, too"
        world.reopen()
        world.entry_log.keeps_envelopes = True


def test_one_envelope_is_read_for_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of(*[store(number) for number in range(300)], store(300, PLAIN))
    [file] = world.entry_log.list_files()
    count = 0
    read_content = file.data.read_content

    def counting(row: object) -> bytes | None:
        nonlocal count
        count += 1
        return read_content(row)  # type: ignore[arg-type]

    monkeypatch.setattr(file.data, "read_content", counting)
    assert runs(world, last=1000) == [(0, 299, A), (300, 300, B)] and count == 2
    assert world.entry_log.list_contents(LEDGER, EntryId(200), EntryId(250)) == [(200, 250, A)]


def test_a_newer_files_copy_has_its_own_envelope() -> None:
    world = world_of(*[store(number) for number in range(6)])
    world.write(6, [store(2, PLAIN), store(3, None)])
    assert runs(world) == [(0, 1, A), (2, 2, B), (4, 5, A)]


def test_files_of_both_versions_are_read_side_by_side() -> None:
    world, _ = make_world()
    world.write(1, [record(LEDGER, number) for number in range(4)])
    old = read_bytes(world.fs, world.path(1)), read_bytes(world.fs, index_path(world.path(1)))
    world.entry_log.keeps_envelopes = True
    world.write(2, [store(4), store(5)])
    assert world.read(LEDGER, 0, 6) == ([0, 1, 2, 3, 4, 5], None)
    assert runs(world) == [(4, 5, A)]
    world.rebuild(1)
    world.rebuild(2)
    assert old == (
        read_bytes(world.fs, world.path(1)),
        read_bytes(world.fs, index_path(world.path(1))),
    ), "a file of version 1 gets an index of version 1"
    assert [data[4] for data in old] == [1, 1]
    assert read_bytes(world.fs, world.path(2))[4] == 2
    assert read_bytes(world.fs, index_path(world.path(2)))[4] == 2


def test_without_envelopes_the_files_are_of_version_1() -> None:
    world, _ = make_world()
    with pytest.raises(AssertionError, match="version 1 has none"):
        world.write(1, [store(0)])


# --- Damage ---------------------------------------------------------------------------------------


def flip(world: World, at: int, bit: int = 0) -> None:
    file = world.fs.open(world.path(5))
    [byte] = file.pread(1, at)
    file.pwritev([bytes([byte ^ 1 << bit])], at)
    file.close()


def test_each_flipped_byte_of_a_file_costs_what_the_page_says() -> None:
    """V7: no entry is lost but by damage in itself, or to scrub and compaction in its header."""
    records = [store(0), store(1), store(2), store(3, None)]
    world = world_of(*records)
    [file] = world.entry_log.list_files()
    found = file.index.list_rows(0, 4)
    size = len(read_bytes(world.fs, world.path(5)))
    entry_damage = envelope_damage = 0
    for at in range(size):
        flip(world, at)
        kept = [found_record for _, found_record in file.list_records(0, 4)]
        for row, was, now in zip(found, records, kept, strict=True):
            start = row.offset
            end = start + row.length_bytes
            envelope_end = end + len(was.envelope)
            is_read = world.read(LEDGER, row.entry_id, 1) == ([row.entry_id], None)
            assert is_read is not (start <= at < end), (at, row)
            if start - 80 <= at < start - 4:
                assert now is None, (at, row)
            elif start <= at < end or (start - 4 <= at < start and not was.envelope):
                assert now is None, (at, row)
                entry_damage += 1
            elif end <= at < envelope_end:
                assert now == was._replace(kind=RecordKind.ADD, envelope=b""), (at, row)
                envelope_damage += 1
            else:
                assert now == was, (at, row)
        first = found[0].offset + found[0].length_bytes
        is_first_damaged = first <= at < first + len(records[0].envelope)
        own = [row.offset + row.length_bytes for row in found[1:3]]
        assert runs(world) == [(0, 2, A)] or is_first_damaged, at
        if is_first_damaged:
            assert runs(world) == [(1, 2, A)], "their own are read"
            assert not any(start <= at < start + 16 for start in own)
        flip(world, at)
    assert entry_damage > 300 and envelope_damage == 3 * 16


def test_where_two_envelopes_are_damaged_the_third_is_read() -> None:
    world = world_of(store(0), store(1), store(2))
    [file] = world.entry_log.list_files()
    for row in file.index.list_rows(0, 2):
        flip(world, row.offset + row.length_bytes + 3)
    assert runs(world) == [(2, 2, A)]
    assert world.read(LEDGER, 0, 3) == ([0, 1, 2], None)


def test_an_envelope_that_stands_behind_another_entry_is_none() -> None:
    """V11: a fault that swaps payloads gives no neighbour another's copyset."""
    first, second = store(0), store(1, PLAIN)
    swapped = [
        first._replace(envelope=second.envelope),
        second._replace(envelope=first.envelope),
    ]
    world = world_of(*swapped)
    assert runs(world) == [] and world.read(LEDGER, 0, 2) == ([0, 1], None)
    [file] = world.entry_log.list_files()
    kinds = [item.kind for _, item in file.list_records(0, 2) if item is not None]
    assert kinds == [RecordKind.ADD] * 2


def test_an_index_made_anew_of_damaged_envelopes_still_finds_each_own() -> None:
    world = world_of(store(0), store(1), store(2), store(3))
    [file] = world.entry_log.list_files()
    for number in (0, 2):
        row = file.index.list_rows(number, number + 1)[0]
        flip(world, row.offset + row.length_bytes)
    assert world.rebuild(5) == [], "nothing of the data is damaged but envelopes"
    assert rows(world) == [NO_ENVELOPE, 1, NO_ENVELOPE, 3]
    assert runs(world) == [(1, 1, A), (3, 3, A)]
    assert world.read(LEDGER, 0, 4) == ([0, 1, 2, 3], None)


def test_a_damaged_header_does_not_make_an_index_of_the_other_version() -> None:
    world = world_of(*MIXED)
    index = read_bytes(world.fs, index_path(world.path(5)))
    flip(world, 4)
    world.rebuild(5)
    assert read_bytes(world.fs, index_path(world.path(5))) == index
    plain, _ = make_world()
    plain.write(5, [record(LEDGER, 0), record(LEDGER, 1)])
    before = read_bytes(plain.fs, index_path(plain.path(5)))
    flip(plain, 4, bit=1)
    plain.rebuild(5)
    assert read_bytes(plain.fs, index_path(plain.path(5))) == before


def test_a_bad_sector_behind_the_last_entry_costs_its_envelope_alone() -> None:
    world, disk = make_world()
    world.entry_log.keeps_envelopes = True
    world.write(5, [store(0)])
    [file] = world.entry_log.list_files()
    [row] = file.index.list_rows(0, 1)
    end = row.offset + row.length_bytes
    disk.spoil(world.path(5), end + 1, BLOCK_BYTES * 3)
    [(_, kept)] = file.list_records(0, 1)
    assert kept is not None and kept.body == store(0).body and not kept.envelope
    assert runs(world) == [] and world.read(LEDGER, 0, 1) == ([0], None)


def test_a_damaged_block_of_rows_hides_no_other_ledgers_envelopes() -> None:
    world = world_of(*[store(number) for number in range(200)], store(1, PLAIN, OTHER))
    path = index_path(world.path(5))
    file = world.fs.open(path)
    [byte] = file.pread(1, BLOCK_BYTES + 40)
    file.pwritev([bytes([byte ^ 1])], BLOCK_BYTES + 40)
    file.close()
    world.entry_log.close()
    world.entry_log = world.make_entry_log()
    world.entry_log.add(world.entry_log.open_file(world.refs[5]))
    assert runs(world, OTHER) == [(1, 1, B)]
    assert all(run.content == A for run in runs(world, last=300)), "or none of them"
    [found] = world.entry_log.list_files()
    assert found.is_index_damaged


def test_copysets_of_any_length_lie_side_by_side() -> None:
    sizes = (1, 2, 3, 4, 7, 100, 254, 255)
    records = [store(n, envelope_of(*range(size))) for n, size in enumerate(sizes)]
    world = world_of(*records)
    assert world.read(LEDGER, 0, len(sizes)) == (list(range(len(sizes))), None)
    [file] = world.entry_log.list_files()
    assert len(file.index.run(LEDGER, EntryId(0), 99, 1 << 30)) == len(sizes), "one run"
    assert [item for _, item in file.list_records(0, len(sizes))] == records
    assert [run.content for run in runs(world)] == [
        content(envelope_of(*range(size))) for size in sizes
    ]
