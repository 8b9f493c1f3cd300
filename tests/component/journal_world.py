"""A journal in memory behind a checkpoint, for the tests of its files' lives.

`Opened` is one start, with what replay delivered; `recycled` a journal that goes on in a file full
of old records; `Life` what a bookie does with its journal, and what it has promised, over power
cuts. Used by test_journal_recycling and test_journal_space.
"""

from __future__ import annotations

import contextlib
import itertools

from duramen.ids import EntryId, Incarnation, LedgerId
from duramen.wire.disk.journal_format import (
    BLOCK_BYTES,
    JournalRecord,
    RecordKind,
)
from duramen_bookie.journal.findings import (
    ReplayedRecord,
    ReplayResult,
)
from duramen_bookie.journal.names import list_journal
from duramen_bookie.journal.replay import open_journal
from duramen_bookie.journal.writer import JournalPoisoned, JournalWriter
from tests.component.memory_disk import MemoryDisk, MemoryFile, PowerCut

INCARNATION = Incarnation("0123456789abcdef0123456789abcdef")
LEDGER = LedgerId(7 << 32 | 3)
FILE_BYTES = 32 << 10


class Opened:
    """A journal that was opened behind a checkpoint, and the numbers that replay delivered."""

    def __init__(
        self,
        disk: MemoryDisk,
        covered_file_id: int = 0,
        file_bytes: int = FILE_BYTES,
        first_file_bytes: int | None = None,
    ) -> None:
        self.delivered: list[ReplayedRecord] = []
        self.disk = disk
        self.writer: JournalWriter
        self.result: ReplayResult
        self.writer, self.result = open_journal(
            "j", disk, INCARNATION, self.delivered.append, now_unix_us=lambda: 0,
            file_bytes=file_bytes, first_file_bytes=first_file_bytes,
            covered_file_id=covered_file_id,
        )  # fmt: skip
        for item in self.delivered:
            assert self.writer.read(item.location).startswith(b"%d:" % item.header.entry_id)

    @property
    def numbers(self) -> set[int]:
        return {int(item.header.entry_id) for item in self.delivered}

    def check_no_leak(self) -> None:
        """Every file is one that the journal uses or may use."""
        ready = self.writer.supply.next
        used = set(self.writer.files) | ({ready.file_id} if ready else set())
        assert used.isdisjoint(self.result.void_file_ids)
        listing = list_journal(self.disk, "j")
        assert set(listing.file_ids) == used
        assert set(listing.generation_ids) <= used
        assert len(listing.spare_ids) == self.writer.supply.spare_count <= 2
        assert len(self.disk.files) == sum(map(len, listing))


def recycled(
    disk: MemoryDisk, old_commits: int = 6, old_bytes: int = 3000
) -> tuple[Opened, int, MemoryFile]:
    """A journal that goes on in a recycled file, full of old records; what is covered."""
    opened = Opened(disk)
    for number in range(old_commits):
        opened.writer.commit([add(900 + number, old_bytes)])
    covered = opened.writer.roll()
    opened.writer.recycle(opened.writer.sealed_file_ids)
    assert opened.writer.supply.spare_count == 1 and opened.writer.wants_next
    assert opened.writer.prepare_next() and opened.writer.supply.spare_count == 0
    opened.writer.commit([add(899)])
    covered = opened.writer.roll()
    opened.writer.recycle(opened.writer.sealed_file_ids)
    opened.check_no_leak()
    file = disk.files[f"j/{opened.writer.file_id:06d}.dj"]
    assert any(file.data[2 * BLOCK_BYTES :])
    return opened, covered, file


def fill(opened: Opened, commits: int = 4, size_bytes: int = 20) -> None:
    """Commits of two entries each, from 0 on."""
    for commit in range(commits):
        opened.writer.commit([add(2 * commit, size_bytes), add(2 * commit + 1, size_bytes)])


class Life:
    """What a bookie does with its journal, over power cuts, and what it has promised."""

    def __init__(self) -> None:
        self.acked: set[int] = set()
        self.settled: set[int] = set()
        self.covered = 0
        self.numbers = itertools.count()

    def run(self, disk: MemoryDisk) -> None:
        """Open, fill, roll, settle, recycle, prepare, three times; then stop."""
        opened = Opened(disk, self.covered)
        self.check(opened)
        in_files = {int(i.header.entry_id): i.location.file_id for i in opened.delivered}
        for _ in range(3):
            for size_bytes in (100, 5000):
                pair = [add(next(self.numbers), size_bytes), add(next(self.numbers), 50)]
                locations = opened.writer.commit(pair)
                for record, location in zip(pair, locations, strict=True):
                    self.acked.add(int(record.entry_id))
                    in_files[int(record.entry_id)] = location.file_id
            sealed = opened.writer.roll()
            # The checkpoint is durable before anything is given up.
            self.settled |= {number for number, id_ in in_files.items() if id_ <= sealed}
            self.covered = sealed
            opened.writer.recycle(opened.writer.sealed_file_ids)
            opened.writer.prepare_next()
            opened.check_no_leak()
        opened.writer.commit([add(next(self.numbers), 100)])
        opened.writer.write_end()

    def check(self, opened: Opened) -> None:
        """Nothing is lost, nothing looks damaged, nothing is left over."""
        assert not opened.result.damages, opened.result
        assert self.acked - self.settled <= opened.numbers
        assert all(item.location.file_id > self.covered for item in opened.delivered)
        self.acked |= opened.numbers
        opened.check_no_leak()


def live_until(cut: int) -> tuple[Life, MemoryDisk, bool]:
    """A life that ends at an operation, its disk as the machine sees it, whether it was over."""
    life, disk = Life(), MemoryDisk(Cutter(cut))
    with contextlib.suppress(PowerCut, JournalPoisoned):
        life.run(disk)
        return life, disk, True
    return life, disk, False


def add(number: int, size_bytes: int = 20) -> JournalRecord:
    """An add whose body tells its number."""
    body = (b"%d:" % number).ljust(size_bytes, b"x")
    return JournalRecord(RecordKind.ADD, LEDGER, EntryId(number), EntryId(number - 1), body)


class Cutter:
    """Cuts the power at the n-th operation."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, operation: str) -> None:
        self.left -= 1
        if self.left < 0:
            raise PowerCut(operation)


def refuse_poison(error: JournalPoisoned) -> None:
    raise AssertionError(error)
