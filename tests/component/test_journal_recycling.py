"""Recycled journal files: what stood in them before, power cuts, the checkpoint, rolling.

What a recycled file held before must never be taken for its records, nor for a sign that something
was written behind its last commit; no end of a process or of its power may lose anything or leak a
file.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from duramen.ids import Incarnation
from duramen.wire.disk.journal_format import (
    BLOCK_BYTES,
    FileHeader,
    encode_file_header,
    encode_generation,
    parse_generation,
)
from duramen_bookie.journal.findings import DamageKind
from duramen_bookie.journal.names import list_journal
from duramen_bookie.journal.writer import JournalPoisoned
from tests.component.journal_world import (
    FILE_BYTES,
    Cutter,
    Opened,
    add,
    fill,
    live_until,
    recycled,
)
from tests.component.memory_disk import SECTOR_BYTES, MemoryDisk, MemoryFile, PowerCut
from tests.tiers import sized

# --- What stood there before ----------------------------------------------------------------------


def test_a_retired_file_is_used_again_with_a_new_name() -> None:
    disk = MemoryDisk()
    opened, covered, _ = recycled(disk)
    assert opened.writer.file_id == 3 and covered == 2
    assert sorted(disk.files) == ["j/000003.dj", "j/000003.gen", "j/spare-000002.dj"]
    fill(opened)
    again = Opened(disk, covered)
    assert again.numbers == set(range(8)) and not again.result.damages


def test_old_blocks_behind_the_tail_count_as_untouched() -> None:
    disk = MemoryDisk()
    opened, covered, _ = recycled(disk)
    fill(opened)
    unclean = Opened(disk.copy(), covered)
    assert [item.header.entry_id for item in unclean.result.tail] == [6, 7]
    assert unclean.result.torn_bytes == 0 and not unclean.result.damages
    opened.writer.write_end()
    clean = Opened(disk, covered)
    assert clean.result.is_clean and clean.result.resume is not None
    assert clean.numbers == set(range(8))


def test_old_records_are_never_delivered_nor_old_commit_numbers_used_again() -> None:
    disk = MemoryDisk()
    covered, numbers = 0, itertools.count()
    commits: list[int] = []
    file_ids: list[int] = []
    rng = random.Random(3)
    opened = Opened(disk)
    for _ in range(40):
        opened = Opened(disk, covered)
        assert not opened.result.damages
        opened.check_no_leak()
        assert all(item.header.file_id > covered for item in opened.delivered)
        assert opened.writer.next_commit > max(commits, default=0)
        file_ids.append(opened.writer.file_id)
        for _ in range(rng.randrange(1, 5)):
            commits.append(opened.writer.next_commit)
            opened.writer.commit([add(next(numbers), rng.randrange(10, 6000))])
            if rng.random() < 0.5:
                opened.writer.prepare_next()
            if rng.random() < 0.4:
                covered = max(covered, opened.writer.roll())
                file_ids.append(opened.writer.file_id)
                opened.writer.recycle(opened.writer.sealed_file_ids)
        if rng.random() < 0.5:
            opened.writer.write_end()
    assert commits == sorted(set(commits)) and file_ids == sorted(file_ids)
    assert opened.writer.supply.spare_count > 0 and max(file_ids) > 20


def lose_sectors(
    before: MemoryFile, after: MemoryFile, start: int, end: int, lost: Callable[[int], bool]
) -> bytes:
    """The bytes of `after`, but for the sectors of the range that never reached the disk."""
    data = bytearray(after.data)
    for sector in range(start // SECTOR_BYTES, -(-end // SECTOR_BYTES)):
        if lost(sector):
            at = slice(sector * SECTOR_BYTES, (sector + 1) * SECTOR_BYTES)
            data[at] = before.data[at]
    return bytes(data)


def list_tears(sectors: range) -> Iterator[Callable[[int], bool]]:
    """Each sector alone lost or kept, every beginning, and two hundred random subsets."""
    for one in sectors:
        yield one.__eq__
        yield one.__ne__
        yield one.__le__
    rng = random.Random(5)
    for _ in range(200):
        lost = {sector for sector in sectors if rng.random() < 0.5}
        yield lost.__contains__


@pytest.mark.parametrize("size_bytes", [20, 700, 2500, 5000])
@pytest.mark.parametrize("first_bytes", [20, 3900])
def test_a_torn_commit_in_a_recycled_file_is_torn(size_bytes: int, first_bytes: int) -> None:
    disk = MemoryDisk()
    opened, covered, file = recycled(disk, old_bytes=3300)
    fill(opened, 1, first_bytes)
    start, before = opened.writer.offset, disk.copy().last
    opened.writer.commit([add(2, size_bytes), add(3, size_bytes)])
    end = -(-opened.writer.offset // BLOCK_BYTES) * BLOCK_BYTES
    sectors = range(start // SECTOR_BYTES, end // SECTOR_BYTES)
    for lost in list_tears(sectors):
        torn = disk.copy()
        torn.last.spoil(0, lose_sectors(before, file, start, end, lost))
        first = Opened(torn, covered)
        assert not first.result.damages, (first.result, [*map(lost, sectors)])
        assert {0, 1} <= first.numbers <= set(range(4))
        first.writer.commit([add(4)])
        second = Opened(torn.survive(lambda: False), covered)
        assert second.numbers == first.numbers | {4} and not second.result.damages
        second.check_no_leak()


@pytest.mark.parametrize("behind", ["commit", "mark", "end", "roll"])
def test_damage_below_what_is_durable_is_corruption_in_a_recycled_file(behind: str) -> None:
    whole = MemoryDisk()
    opened, covered, _ = recycled(whole)
    fill(opened)
    start, end = BLOCK_BYTES, opened.writer.offset
    match behind:
        case "commit":
            opened.writer.commit([add(8), add(9)])
        case "mark":
            opened.writer.write_mark()
        case "end":
            opened.writer.write_end()
        case "roll":
            opened.writer.roll()
    everything = set(range(10 if behind == "commit" else 8))
    for at in range(start, end, 3):
        disk = whole.copy()
        file = disk.files["j/000003.dj"]
        file.spoil(at, bytes([file.data[at] ^ 0x10]))
        first = Opened(disk, covered)
        lost = everything - first.numbers
        assert len(lost) <= 1 and bool(lost) == bool(first.result.damages)
        again = Opened(disk.survive(lambda: False), covered)
        assert again.numbers == first.numbers
        assert set(again.result.damages) == set(first.result.damages)


def test_a_write_behind_proves_the_commit_before_it_also_in_a_recycled_file() -> None:
    disk = MemoryDisk()
    opened, covered, file = recycled(disk)
    fill(opened, 4, 1000)
    last = opened.writer.offset - 500
    end = -(-opened.writer.offset // BLOCK_BYTES) * BLOCK_BYTES
    file.spoil(last, b"?")
    torn = Opened(disk.copy(), covered)
    assert not torn.result.damages and torn.numbers == set(range(7))
    file.spoil(end + 2 * SECTOR_BYTES, b"not what stood there before")
    corrupt = Opened(disk, covered)
    assert [(d.kind, d.file_id) for d in corrupt.result.damages] == [(DamageKind.RECORD, 3)]


@pytest.mark.parametrize("spoil", ["missing", "short", "flipped", "of another file", "unreadable"])
def test_without_its_sidecar_a_recycled_file_errs_to_the_safe_side(spoil: str) -> None:
    disk = MemoryDisk()
    opened, covered, _ = recycled(disk)
    fill(opened)
    path = "j/000003.gen"
    match spoil:
        case "missing":
            del disk.files[path]
        case "short":
            disk.files[path] = MemoryFile(disk, bytes(disk.files[path].data[:-4]))
        case "flipped":
            disk.files[path].spoil(60, bytes([disk.files[path].data[60] ^ 1]))
        case "of another file":
            generation = parse_generation(bytes(disk.files[path].data))
            assert generation is not None
            disk.files[path] = MemoryFile(disk, encode_generation(generation._replace(file_id=9)))
        case "unreadable":
            disk.files[path].bad_blocks = {0}
    intact = Opened(disk.copy() if spoil != "unreadable" else disk, covered)
    assert intact.numbers == set(range(8)) and not intact.result.damages
    assert not intact.result.is_clean and intact.result.torn_bytes > 0


def test_without_its_sidecar_a_torn_commit_counts_as_damaged() -> None:
    disk = MemoryDisk()
    opened, covered, file = recycled(disk)
    fill(opened)
    file.spoil(opened.writer.offset - 20, b"?")
    assert not Opened(disk.copy(), covered).result.damages
    del disk.files["j/000003.gen"]
    again = Opened(disk, covered)
    assert again.numbers == set(range(7)) and len(again.result.damages) == 1


@pytest.mark.parametrize("seed", range(sized(fast=10, gate=30, night=600)))
def test_one_damaged_range_in_recycled_files_is_never_silent(seed: int) -> None:
    rng = random.Random(seed)
    disk = MemoryDisk()
    opened, covered, _ = recycled(disk)
    numbers = itertools.count()
    last: set[int] = set()
    for _ in range(rng.randrange(3, 14)):
        pair = [add(next(numbers), rng.randrange(10, 4000)) for _ in range(2)]
        opened.writer.commit(pair)
        last = {int(record.entry_id) for record in pair}
        if rng.random() < 0.2:
            opened.writer.write_mark()
    everything = set(range(next(numbers)))
    file = disk.files[rng.choice([path for path in sorted(disk.files) if "/0" in path])]
    start = rng.randrange(len(file.data))
    end = min(len(file.data), start + rng.choice([1, 8, 512, 4096, 9000]))
    file.spoil(start, rng.choice([bytes(end - start), rng.randbytes(end - start)]))
    first = Opened(disk, covered)
    lost = everything - first.numbers
    assert first.numbers <= everything
    assert lost <= last or last <= lost or first.result.damages
    again = Opened(disk, covered)
    assert again.numbers == first.numbers
    assert set(again.result.damages) >= set(first.result.damages)


# --- Power cuts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", ["all", "none", "some", "names", "content"])
@pytest.mark.parametrize("first_is", ["power cut", "kill"])
def test_no_end_of_a_life_loses_or_leaks_anything(layer: str, first_is: str) -> None:
    rng = random.Random(11)

    def survive(disk: MemoryDisk) -> MemoryDisk:
        # Names are asked for before content: each layer can be lost on its own.
        name_count = itertools.count(len(disk.unsynced_names), -1)

        def keep() -> bool:
            if layer in ("names", "content"):
                return (next(name_count) > 0) is (layer == "names")
            return layer == "all" or (layer == "some" and rng.random() < 0.5)

        return disk.survive(keep)

    for first_cut in range(500):
        is_over = False
        for second_cut in range(first_cut % 5, 40, 5):
            life, disk, is_over = live_until(first_cut)
            if first_is == "power cut":
                disk = survive(disk)
            disk.hook = Cutter(second_cut)
            with contextlib.suppress(PowerCut, JournalPoisoned):
                life.run(disk)
            disk = survive(disk)
            life.check(Opened(disk, life.covered))
            life.check(Opened(survive(disk), life.covered))
        if is_over:
            break
    else:
        raise AssertionError("the history has no end")
    assert first_cut > 50


def test_a_sidecar_goes_only_when_its_file_cannot_come_back() -> None:
    def kill_in_recycling() -> MemoryDisk:
        disk = MemoryDisk()
        opened, covered, _ = recycled(disk)
        opened.writer.commit([add(0)])
        assert opened.writer.prepare_next()
        opened.writer.write_end()
        disk.hook = Cutter(1)
        with pytest.raises(JournalPoisoned):
            Opened(disk, covered)
        assert [change.new for change in disk.unsynced_names] == ["j/spare-000004.dj"]
        disk.hook = None
        again = Opened(disk, covered)
        assert not again.result.damages and not disk.exists("j/000004.gen")
        return disk

    for kept in itertools.product([False, True], repeat=len(kill_in_recycling().unsynced_names)):
        disk = kill_in_recycling()
        last = Opened(disk.survive(partial(next, iter(kept))), 2)
        assert last.numbers == {0} and not last.result.damages
        last.check_no_leak()


def test_files_made_ahead_do_not_pile_up_over_restarts() -> None:
    disk = MemoryDisk()
    for number in range(12):
        opened = Opened(disk, file_bytes=1 << 20)
        assert opened.numbers == set(range(number))
        opened.writer.prepare_next()
        opened.writer.commit([add(number)])
        opened.writer.write_end()
        opened.check_no_leak()
    listing = list_journal(disk, "j")
    assert listing.file_ids[0] == 1 and len(listing.file_ids) == 2 and not listing.spare_ids


# --- The checkpoint -------------------------------------------------------------------------------


def test_covered_files_are_not_read_and_may_be_missing() -> None:
    disk = MemoryDisk()
    opened = Opened(disk)
    for number in range(12):
        opened.writer.commit([add(number, 9000)])
    file_ids = opened.writer.sealed_file_ids
    assert len(file_ids) >= 4
    covered = file_ids[2]
    foreign = FileHeader(1, Incarnation("f" * 32), 0, 1, 0, 0, FILE_BYTES, False)
    disk.files["j/000001.dj"].spoil(0, encode_file_header(foreign))
    del disk.files["j/000002.dj"]
    again = Opened(disk, covered)
    assert not again.result.damages
    assert min(item.header.file_id for item in again.delivered) == covered + 1
    assert max(again.numbers) == 11
    again.check_no_leak()
    # Of the two that were there, one serves as this start's own file.
    assert again.writer.supply.spare_count == 1 and again.writer.supply.recycled_count == 1


def test_the_first_file_behind_the_checkpoint_must_be_there() -> None:
    disk = MemoryDisk()
    opened = Opened(disk)
    for number in range(12):
        opened.writer.commit([add(number, 9000)])
    covered = opened.writer.sealed_file_ids[1]
    del disk.files[f"j/{covered + 1:06d}.dj"]
    for _ in range(2):
        again = Opened(disk, covered)
        assert [(d.kind, d.file_id) for d in again.result.damages] == [
            (DamageKind.FILE, covered + 1)
        ]


def test_a_journal_that_is_gone_behind_a_checkpoint_is_damage() -> None:
    disk = MemoryDisk()
    for _ in range(3):
        again = Opened(disk, 7)
        assert [(d.kind, d.file_id) for d in again.result.damages] == [(DamageKind.FILE, 8)]
        assert again.writer.file_id > 8
        again.writer.commit([add(1)])


# --- Rolling --------------------------------------------------------------------------------------


def test_a_roll_seals_what_is_written_and_nothing_else() -> None:
    disk = MemoryDisk()
    opened = Opened(disk)
    assert opened.writer.roll() == 0 and opened.writer.file_id == 1
    opened.writer.commit([add(0)])
    assert opened.writer.roll() == 1 and opened.writer.sealed_file_ids == [1]
    assert opened.writer.roll() == 1 and opened.writer.file_id == 2
    opened.writer.commit([add(1)])
    opened.writer.write_end()
    again = Opened(disk)
    assert again.numbers == {0, 1} and again.writer.sealed_file_ids == [1]
    assert again.writer.roll() == 2


def test_going_on_in_a_file_made_ahead_is_one_write_and_one_sync() -> None:
    disk = MemoryDisk()
    opened, _, _ = recycled(disk)
    opened.writer.commit([add(0)])
    assert opened.writer.prepare_next()
    disk.counts.clear()
    opened.writer.roll()
    assert disk.counts == {"pwritev": 1, "fsync": 1}
    opened.writer.commit([add(1)])
    assert disk.counts == {"pwritev": 2, "fsync": 1, "fdatasync": 1}


def test_a_read_of_a_recycled_file_fails() -> None:
    opened = Opened(MemoryDisk())
    (location,) = opened.writer.commit([add(0)])
    opened.writer.roll()
    opened.writer.recycle([1])
    with pytest.raises(OSError, match="not there"):
        opened.writer.read(location)
