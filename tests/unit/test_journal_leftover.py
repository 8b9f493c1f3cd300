"""A journal file whose creation a crash cut off must not stand in the way of the next one.

Found by the simulator (a bookie that was poisoned at its first commit after every start): the file
before had been stopped cleanly, so that it was continued, and the next file's number was taken.

Source: docs/protocol/journal.md "Files" and "Failure".
"""

from __future__ import annotations

from duramen.ids import EntryId, Incarnation, LedgerId
from duramen.wire.disk.journal_format import BLOCK_BYTES, JournalRecord, RecordKind
from duramen_bookie.journal.findings import ReplayedRecord
from duramen_bookie.journal.replay import open_journal
from duramen_bookie.journal.writer import JournalWriter
from tests.component.memory_disk import MemoryDisk

INCARNATION = Incarnation("00" * 15 + "07")


def start(disk: MemoryDisk, seen: list[ReplayedRecord]) -> JournalWriter:
    writer, _ = open_journal(
        "d", disk, INCARNATION, seen.append, now_unix_us=lambda: 0, file_bytes=4 * BLOCK_BYTES
    )
    return writer


def commit(writer: JournalWriter, entry: int) -> None:
    writer.commit([JournalRecord(RecordKind.LAC, LedgerId(1 << 32 | 1), EntryId(entry))])


def test_a_file_that_was_only_begun_is_passed_over_after_a_clean_stop() -> None:
    disk = MemoryDisk()
    writer = start(disk, [])
    count = 0
    while writer.room_bytes >= 200:
        commit(writer, count)
        count += 1
    writer.write_end()
    disk.open("d/000002.dj", is_new=True)  # the process died before it wrote the header

    writer = start(disk, [])
    assert writer.file_id == 1
    for _ in range(30):
        commit(writer, count)
        count += 1
    assert writer.file_id == 3

    seen: list[ReplayedRecord] = []
    start(disk.copy(), seen)
    assert [item.header.entry_id for item in seen] == list(range(count))
