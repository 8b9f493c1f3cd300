"""Replay of STORE records: what a damaged envelope costs where it is durable, and at the end.

Source: docs/protocol/envelopes.md "On disk", docs/protocol/journal.md "Start", V7.
"""

from __future__ import annotations

import pytest

from duramen.wire.disk.journal_format import (
    BLOCK_BYTES,
    JournalFormatError,
    JournalRecord,
    RecordKind,
)
from duramen_bookie.journal.findings import DamageKind, ReplayedRecord, ReplayResult
from duramen_bookie.journal.replay import open_journal, replay
from duramen_bookie.journal.writer import JournalWriter
from tests.component.memory_disk import MemoryDisk
from tests.unit.stores import INCARNATION, PLAIN, STICKY, content, store, with_version

FILE_BYTES = 32 << 10
A, B = content(STICKY), content(PLAIN)


class Life:
    """One start on a disk."""

    def __init__(self, disk: MemoryDisk) -> None:
        self.delivered: list[ReplayedRecord] = []
        self.writer: JournalWriter
        self.result: ReplayResult
        self.writer, self.result = open_journal(
            "j", disk, INCARNATION, self.delivered.append, now_unix_us=lambda: 0,
            file_bytes=FILE_BYTES,
        )  # fmt: skip

    def contents(self) -> dict[int, bytes]:
        return {int(item.header.entry_id): item.content for item in self.delivered}


def locate(disk: MemoryDisk, part: bytes) -> tuple[str, int]:
    """The first file that holds these bytes, and where."""
    for path in sorted(disk.files):
        at = bytes(disk.files[path].data).find(part)
        if at >= 0:
            return path, at
    raise AssertionError("they are nowhere")


def flip_at(disk: MemoryDisk, path: str, at: int) -> None:
    file = disk.files[path]
    file.spoil(at, bytes([file.data[at] ^ 1]))


def flip(disk: MemoryDisk, part: bytes, offset: int = 0) -> None:
    path, at = locate(disk, part)
    flip_at(disk, path, at + offset)


def write(disk: MemoryDisk, *commits: list[JournalRecord], is_clean: bool = True) -> None:
    life = Life(disk)
    for records in commits:
        life.writer.commit(records)
    if is_clean:
        life.writer.write_end()
    life.writer.close()


def test_stores_are_replayed_with_their_contents() -> None:
    disk = MemoryDisk()
    write(disk, [store(0), store(1, PLAIN), store(2, None)], [store(3)])
    life = Life(disk)
    assert life.contents() == {0: A, 1: B, 2: b"", 3: A} and not life.result.damages
    for item in life.delivered:
        record = store(int(item.header.entry_id))
        assert life.writer.read(item.location) == record.body, "of the entry alone"
        assert item.body == record.body[:64]


def test_a_store_in_the_last_commit_is_copied_whole() -> None:
    disk = MemoryDisk()
    write(disk, [store(0)], [store(1), store(2, PLAIN)], is_clean=False)
    for _ in range(3):
        life = Life(disk)
        assert life.contents() == {0: A, 1: A, 2: B} and not life.result.damages
        life.writer.close()


@pytest.mark.parametrize("where", ["envelope", "record's checksum"])
def test_damage_beside_an_entry_that_is_proved_durable_costs_no_entry(where: str) -> None:
    disk = MemoryDisk()
    records = [store(0), store(1), store(2)]
    write(disk, records[:2], records[2:])
    if where == "envelope":
        flip(disk, records[1].envelope, 3)
    else:
        flip(disk, records[1].body, -1)
    life = Life(disk)
    lost = b"" if where == "envelope" else A
    assert life.contents() == {0: A, 1: lost, 2: A}
    [damage] = life.result.damages
    assert damage.kind is DamageKind.ENVELOPE and damage.header is not None
    assert damage.header.entry_id == 1


def test_damage_in_the_entry_is_that_of_an_add_and_its_lac_counts() -> None:
    disk = MemoryDisk()
    records = [store(0), store(5, lac=4), store(6)]
    write(disk, records)
    flip(disk, records[1].body, 70)
    life = Life(disk)
    assert life.contents() == {0: A, 6: A}
    [damage] = life.result.damages
    assert damage.kind is DamageKind.RECORD and damage.header is not None
    assert (damage.header.entry_id, damage.header.lac) == (5, 4)


def test_a_torn_envelope_in_a_commit_that_is_not_proved_is_torn() -> None:
    disk = MemoryDisk()
    records = [store(0), store(1), store(2)]
    write(disk, records[:1], records[1:], is_clean=False)
    flip(disk, records[2].envelope, 2)
    for _ in range(3):
        life = Life(disk)
        assert life.contents() == {0: A, 1: A}, "nobody was told that the other is there"
        assert not life.result.damages
        life.writer.close()


def test_a_store_whose_envelope_never_was_one_is_an_entry_all_the_same() -> None:
    """A fault in writing envelopes, which the record's checksum covers: also in the last commit."""
    disk = MemoryDisk()
    wrong = store(1)._replace(envelope=b"no envelope of this or any other entry")
    write(disk, [store(0)], [wrong], is_clean=False)
    for _ in range(3):
        life = Life(disk)
        assert life.contents() == {0: A, 1: b""} and not life.result.damages
        life.writer.close()


def test_an_intact_envelope_of_another_version_refuses_the_start() -> None:
    disk = MemoryDisk()
    write(disk, [store(0), with_version(store(1), 2)])
    before = {path: bytes(file.data) for path, file in disk.files.items()}
    with pytest.raises(JournalFormatError, match="version 2"):
        Life(disk)
    assert {path: bytes(file.data) for path, file in disk.files.items()} == before


def test_each_flipped_byte_of_a_durable_store_costs_no_other_entry() -> None:
    records = [store(0), store(1), store(2)]
    disk = MemoryDisk()
    write(disk, records)
    path, at = locate(disk, records[1].body)
    start, end = at - 80, at + len(records[1].body) + len(records[1].envelope)
    kinds = set()
    for offset in range(start, end):
        flip_at(disk, path, offset)
        delivered: list[ReplayedRecord] = []
        result = replay("j", disk, INCARNATION, delivered.append)
        found = {int(item.header.entry_id): item.content for item in delivered}
        is_entry = at <= offset < at + len(records[1].body)
        is_header = offset < at - 4
        assert found.pop(0) == found.pop(2) == A
        assert (1 in found) is not (is_entry or is_header), offset
        [damage] = result.damages
        kinds.add(damage.kind)
        expected = DamageKind.RANGE if is_header else DamageKind.ENVELOPE
        assert damage.kind is (DamageKind.RECORD if is_entry else expected), offset
        for file in result.files.values():
            file.close()
        flip_at(disk, path, offset)
    assert len(kinds) == 3 and end - start < BLOCK_BYTES


def test_replay_reads_each_kind_of_record_with_an_entry_alike() -> None:
    disk = MemoryDisk()
    write(disk, [store(number, STICKY if number % 2 else None) for number in range(200)])
    life = Life(disk)
    kinds = [item.header.kind for item in life.delivered]
    assert kinds == [RecordKind.ADD, RecordKind.STORE] * 100
