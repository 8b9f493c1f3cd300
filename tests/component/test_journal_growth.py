"""Journal files that begin small and grow with use: lengths, restarts, recycling, power cuts.

A file that was filled is followed by one of twice its length, up to the usual one, which alone is
recycled; whatever is filled, sealed early, killed or cut off, nothing is lost or left over.
Source: docs/protocol/journal.md "Files".
"""

from __future__ import annotations

import contextlib
import itertools
import random

import pytest

from duramen_bookie.journal.writer import JournalPoisoned
from tests.component.journal_world import FILE_BYTES, Cutter, Opened, add
from tests.component.memory_disk import MemoryDisk, PowerCut

FIRST = 32 << 10
USUAL = 256 << 10


def open_growing(disk: MemoryDisk, covered_file_id: int = 0) -> Opened:
    return Opened(disk, covered_file_id, USUAL, FIRST)


def sizes_of(disk: MemoryDisk) -> list[int]:
    """Lengths of the journal's files in the order of their ids."""
    return [len(file.data) for path, file in sorted(disk.files.items()) if path.endswith(".dj")]


def fill_file(opened: Opened, numbers: itertools.count[int], *, prepares: bool) -> None:
    """Commits until another file is the active one."""
    file_id = opened.writer.file_id
    while opened.writer.file_id == file_id:
        opened.writer.commit([add(next(numbers), 3_000)])
        if prepares and opened.writer.wants_next:
            opened.writer.prepare_next()


@pytest.mark.parametrize("prepares", [False, True])
def test_a_filled_file_is_followed_by_one_of_twice_its_length(prepares: bool) -> None:
    disk, numbers = MemoryDisk(), itertools.count()
    opened = open_growing(disk)
    assert sizes_of(disk) == [FIRST]
    for _ in range(5):
        fill_file(opened, numbers, prepares=prepares)
    used = [FIRST, 2 * FIRST, 4 * FIRST, USUAL, USUAL, USUAL]
    assert sizes_of(disk) == used
    count = next(numbers)
    again = open_growing(disk)
    assert again.numbers == set(range(count)) and not again.result.damages


def test_a_file_that_is_sealed_early_is_followed_by_one_of_its_length() -> None:
    disk = MemoryDisk()
    opened = open_growing(disk)
    for number in range(5):
        opened.writer.commit([add(number)])
        opened.writer.roll()
    assert sizes_of(disk) == [FIRST] * 6


def test_growth_outlives_restarts_and_restarts_are_no_growth() -> None:
    disk, numbers = MemoryDisk(), itertools.count()
    opened = open_growing(disk)
    fill_file(opened, numbers, prepares=False)
    assert sizes_of(disk) == [FIRST, 2 * FIRST]
    for is_clean in (True, False, False, True, False):
        if is_clean:
            opened.writer.write_end()
        opened = open_growing(disk)
        opened.writer.commit([add(next(numbers))])
    assert set(sizes_of(disk)[1:]) == {2 * FIRST}
    fill_file(opened, numbers, prepares=True)
    assert sizes_of(disk)[-1] == 4 * FIRST
    covered = opened.writer.roll()
    assert sizes_of(disk)[-1] == 4 * FIRST
    opened.writer.recycle(opened.writer.sealed_file_ids)
    assert sizes_of(disk) == [4 * FIRST], "short files are no spares"
    again = open_growing(disk, covered)
    again.check_no_leak()
    assert set(sizes_of(disk)) == {4 * FIRST}


def test_files_of_the_usual_length_are_recycled() -> None:
    disk, numbers = MemoryDisk(), itertools.count()
    opened = open_growing(disk)
    for _ in range(8):
        fill_file(opened, numbers, prepares=True)
        opened.writer.recycle(opened.writer.sealed_file_ids)
        opened.check_no_leak()
    assert opened.writer.supply.recycled_count > 2
    assert set(sizes_of(disk)) == {USUAL}


def test_a_commit_that_needs_more_gets_it() -> None:
    disk = MemoryDisk()
    opened = open_growing(disk)
    opened.writer.commit([add(0, 80_000)])
    opened.writer.commit([add(1, 300_000)])
    assert sizes_of(disk)[0] == FIRST and sizes_of(disk)[1] > 80_000
    assert sizes_of(disk)[2] > 300_000
    assert open_growing(disk).numbers == {0, 1}


def test_the_usual_length_may_change_between_starts() -> None:
    """Down, up, with and without growth: files are as long as they say, and none is left over."""
    disk, numbers, rng = MemoryDisk(), itertools.count(), random.Random(7)
    covered, acked = 0, set[int]()
    for _ in range(60):
        usual = rng.choice((FILE_BYTES, USUAL))
        first = rng.choice((None, FIRST, FILE_BYTES))
        opened = Opened(disk, covered, usual, first)
        assert acked <= opened.numbers and not opened.result.damages
        opened.check_no_leak()
        for _ in range(rng.randrange(1, 12)):
            number = next(numbers)
            location = opened.writer.commit([add(number, rng.randrange(10, 6_000))])[0]
            assert opened.writer.read(location).startswith(b"%d:" % number)
            acked.add(number)
            if rng.random() < 0.3:
                opened.writer.prepare_next()
            if rng.random() < 0.1:
                covered = max(covered, opened.writer.roll())
                acked.clear()
                opened.writer.recycle(opened.writer.sealed_file_ids)
        if rng.random() < 0.5:
            opened.writer.write_end()


def test_no_file_begins_above_the_usual_length() -> None:
    disk = MemoryDisk()
    Opened(disk, 0, FILE_BYTES, 4 * FILE_BYTES)
    assert sizes_of(disk) == [FILE_BYTES]


@pytest.mark.parametrize("cut", range(1, 90))
def test_no_power_cut_on_the_way_up_loses_anything(cut: int) -> None:
    disk, numbers, acked = MemoryDisk(Cutter(cut)), itertools.count(), set[int]()
    covered = 0
    with contextlib.suppress(PowerCut, JournalPoisoned):
        opened = open_growing(disk)
        while True:
            number = next(numbers)
            opened.writer.commit([add(number, 6_000)])
            acked.add(number)
            opened.writer.prepare_next()
            if number == 6:
                covered = opened.writer.roll()
                acked.clear()
                opened.writer.recycle(opened.writer.sealed_file_ids)
    rng = random.Random(cut)
    for _ in range(4):
        left = disk.survive(lambda: rng.random() < 0.5)
        left.hook = None
        for _ in range(2):
            opened = open_growing(left, covered)
            assert acked <= opened.numbers and not opened.result.damages
            opened.check_no_leak()
