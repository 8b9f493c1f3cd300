"""The ends of journal files and of the disk: what is kept back, given up, synced again, missed.

Real files. Crashes at every write are in `tests/crash`; group commit is in `test_journal`.
"""

from pathlib import Path
from typing import Any

import pytest

from duramen.ids import EntryId, Incarnation, LedgerId
from duramen.units import KIB
from duramen.wire.disk.journal_format import BLOCK_BYTES, JournalRecord, RecordKind
from duramen_bookie.file_system import DiskUsage, PosixFileSystem
from duramen_bookie.journal.findings import DamageKind
from duramen_bookie.journal.names import file_name, list_journal
from duramen_bookie.journal.recycling import FileSupply, NoSpaceError
from duramen_bookie.journal.replay import open_journal
from duramen_bookie.journal.writer import JournalWriter

INCARNATION = Incarnation("a" * 32)
FILE_BYTES = 64 * KIB
RECORD = JournalRecord(RecordKind.ADD, LedgerId(9 << 32 | 1), EntryId(0), body=b"x" * 100)


class FullDisk(PosixFileSystem):
    """A disk with so much room."""

    def __init__(self, free_bytes: int) -> None:
        self._free_bytes = free_bytes

    def usage(self, _: str) -> DiskUsage:
        return DiskUsage(1 << 30, self._free_bytes)


def make_supply(folder: Path, fs: PosixFileSystem) -> FileSupply:
    listing = list_journal(fs, str(folder))
    return FileSupply(fs, str(folder), INCARNATION, listing, file_bytes=FILE_BYTES, id_min=1)


def start(folder: Path) -> tuple[JournalWriter, Any]:
    return open_journal(
        str(folder), PosixFileSystem(), INCARNATION, lambda _: None,
        now_unix_us=lambda: 1, file_bytes=FILE_BYTES,
    )  # fmt: skip


def test_the_next_file_leaves_room_for_entry_log_and_checkpoint(tmp_path: Path) -> None:
    least = FILE_BYTES + FILE_BYTES // 16
    with pytest.raises(NoSpaceError):
        make_supply(tmp_path, FullDisk(least - 1)).prepare()
    supply = make_supply(tmp_path, FullDisk(least))
    supply.prepare()
    assert supply.next is not None
    supply.close()


def test_two_spares_are_kept_and_the_others_given_back(tmp_path: Path) -> None:
    for file_id in (1, 2, 3):
        (tmp_path / file_name(file_id)).write_bytes(bytes(FILE_BYTES))
    supply = make_supply(tmp_path, PosixFileSystem())
    supply.recycle([1, 2, 3])
    assert supply.spare_count == 2
    assert len(list(tmp_path.iterdir())) == 2


def test_a_mark_leaves_the_last_block_to_the_end(tmp_path: Path) -> None:
    writer, _ = start(tmp_path)
    writer.offset = FILE_BYTES - BLOCK_BYTES
    assert not writer.write_mark()
    writer.offset = FILE_BYTES - 2 * BLOCK_BYTES
    assert writer.write_mark()
    writer.close()


def test_what_replay_saw_of_an_unclean_stop_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, _ = start(tmp_path)
    writer.commit([RECORD])
    writer.close()
    synced: list[int] = []
    sync_again = JournalWriter.sync_again

    def note(writer: JournalWriter, file_id: int) -> None:
        synced.append(file_id)
        sync_again(writer, file_id)

    monkeypatch.setattr(JournalWriter, "sync_again", note)
    writer, result = start(tmp_path)
    assert not result.is_clean and synced == [1]
    writer.close()


def test_an_oldest_file_that_is_gone_is_missed(tmp_path: Path) -> None:
    writer, _ = start(tmp_path)
    for _ in range(2):
        writer.commit([RECORD])
        writer.roll()
    writer.write_end()
    writer.close()
    (tmp_path / file_name(1)).unlink()
    writer, result = start(tmp_path)
    assert [(damage.kind, damage.file_id) for damage in result.damages] == [(DamageKind.FILE, 1)]
    writer.close()


def test_an_end_with_something_behind_it_is_not_clean(tmp_path: Path) -> None:
    writer, _ = start(tmp_path)
    writer.commit([RECORD])
    writer.write_end()
    end = writer.offset
    writer.close()
    with (tmp_path / file_name(1)).open("r+b") as file:
        file.seek(end + BLOCK_BYTES)
        file.write(b"something")
    writer, result = start(tmp_path)
    assert not result.is_clean
    writer.close()
