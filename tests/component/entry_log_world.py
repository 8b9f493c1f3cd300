"""An entry log on a disk, with what a checkpoint would know of its files, for the tests of the
entry log.

Entries tell in their bytes which they are, so that whatever is read is compared. `make_world` has a
simulated disk that can damage and lose; the real one is used through the same `World`.
"""

import random
from collections.abc import Iterable, Sequence

from duramen.core.segment import Totals
from duramen.ids import EntryId, Incarnation, LedgerId
from duramen.wire.disk.checkpoint_format import EntryLogFileRef
from duramen.wire.disk.journal_format import JournalRecord, RecordKind
from duramen.wire.entry import encode_entry
from duramen_bookie.entry_log.data_file import DataDamage
from duramen_bookie.entry_log.entry_log import EntryLog, EntryLogRead, ReadFault, ref_of
from duramen_bookie.entry_log.index_file import IndexDamaged
from duramen_bookie.file_system import FileSystem
from tests.crash.disk import Disk

INCARNATION = Incarnation("0123456789abcdef0123456789abcdef")
LEDGER = LedgerId(7 << 32 | 3)
OTHER = LedgerId(9 << 32 | 1)
MIB = 1 << 20


def entry(ledger_id: int, entry_id: int, size_bytes: int = 30) -> bytes:
    """An entry whose body tells which it is."""
    body = f"{ledger_id:x}:{entry_id}:".encode().ljust(size_bytes, b"x")
    return encode_entry(
        ledger_id=LedgerId(ledger_id), entry_id=EntryId(entry_id), before=Totals(0, 0),
        batches=[body], record_count=1, after=Totals(1, len(body)),
    )  # fmt: skip


def record(ledger_id: int, entry_id: int, size_bytes: int = 30) -> JournalRecord:
    """An add of that entry, with something in every field."""
    return JournalRecord(
        RecordKind.ADD, LedgerId(ledger_id), EntryId(entry_id), EntryId(entry_id - 1),
        entry(ledger_id, entry_id, size_bytes), entry_id % 4, entry_id % 7, entry_id % 5 == 0,
    )  # fmt: skip


class World:
    """An entry log on a disk, with the references of its files as a checkpoint would have them."""

    def __init__(self, fs: FileSystem, directories: Sequence[str]) -> None:
        self.fs = fs
        self.directories = directories
        self.refs: dict[int, EntryLogFileRef] = {}
        self.dead: set[int] = set()
        self.entry_log = self.make_entry_log()

    def make_entry_log(self) -> EntryLog:
        return EntryLog(
            self.fs, self.directories, INCARNATION, lambda ledger: ledger not in self.dead
        )

    def write(self, file_id: int, records: Iterable[JournalRecord], directory: int = 0) -> None:
        """Write a file and put it in force."""
        writer = self.entry_log.create(file_id, directory)
        for item in records:
            writer.put(item)
        finished = writer.finish()
        self.refs[file_id] = ref_of(finished, directory)
        self.entry_log.add(self.entry_log.open_file(self.refs[file_id]))

    def path(self, file_id: int) -> str:
        ref = self.refs[file_id]
        return self.entry_log.path_of(file_id, ref.directory_index)

    def reopen(self) -> None:
        """As after a restart; a damaged index is made anew, as the bookie does."""
        self.entry_log.close()
        self.entry_log = self.make_entry_log()
        for file_id, ref in self.refs.items():
            try:
                file = self.entry_log.open_file(ref)
            except IndexDamaged:
                self.rebuild(file_id)
            else:
                self.entry_log.add(file)

    def rebuild(self, file_id: int) -> list[DataDamage]:
        """Make an index anew and put it in force."""
        rebuilt = self.entry_log.rebuild_index(self.refs[file_id])
        self.refs[file_id] = ref_of(rebuilt.finished, self.refs[file_id].directory_index)
        self.entry_log.add(self.entry_log.open_file(self.refs[file_id]))
        return rebuilt.damages

    def read(
        self, ledger_id: LedgerId, first: int, count: int, bytes_max: int = MIB
    ) -> tuple[list[int], ReadFault | None]:
        """Numbers of the entries that a read gave, after a look at their bytes."""
        found = self.entry_log.read(ledger_id, EntryId(first), count, bytes_max)
        return check(ledger_id, found), found.fault


def check(ledger_id: LedgerId, found: EntryLogRead) -> list[int]:
    for entry_id, body in found.entries:
        assert bytes(body) == entry(ledger_id, entry_id, len(body) - 64)
    return [entry_id for entry_id, _ in found.entries]


def read_bytes(fs: FileSystem, path: str) -> bytes:
    file = fs.open(path)
    try:
        return file.pread(file.size_bytes(), 0)
    finally:
        file.close()


def make_world(directory_count: int = 1) -> tuple[World, Disk]:
    """A world on a simulated disk."""
    disk = Disk(random.Random(5))
    directories = [f"/s{number}" for number in range(directory_count)]
    for directory in directories:
        disk.make_directory(directory)
    return World(disk, directories), disk
