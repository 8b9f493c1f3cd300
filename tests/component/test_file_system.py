"""The port to the disk on the real one: what its methods promise, and recycling on top of it.

The fakes are held to the same by the tests that run on them. Source: docs/protocol/journal.md
"Files" and "Failure".
"""

from __future__ import annotations

import itertools
import os
import random
from pathlib import Path

import pytest

from duramen.wire.disk.journal_format import BLOCK_BYTES
from duramen_bookie.file_system import DiskUsage, PosixFileSystem
from duramen_bookie.journal.findings import ReplayedRecord
from duramen_bookie.journal.replay import open_journal
from tests.component.journal_world import INCARNATION, add


def test_direct_reads_give_what_plain_ones_give(tmp_path: Path) -> None:
    fs = PosixFileSystem()
    path = str(tmp_path / "x")
    file = fs.open(path, is_new=True)
    content = random.Random(1).randbytes(5 * BLOCK_BYTES + 777)
    file.pwritev([content], 0)
    for start, length in itertools.product(
        [0, 1, 511, 4095, 4096, 20_000, 21_257, 90_000], [0, 7, 4096, 30_000]
    ):
        assert file.pread_direct(length, start) == content[start : start + length]
        assert file.pread(length, start) == content[start : start + length]
    file.prefetch(100, 0)
    file.close()


def test_direct_reads_fall_back_where_there_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_open, real_preadv = os.open, os.preadv

    def refuse_direct(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "no direct reads here")
        return real_open(path, flags, mode)

    def refuse_preadv(*args: object) -> int:
        raise OSError(22, "not aligned as this disk wants it")

    fs = PosixFileSystem()
    file = fs.open(str(tmp_path / "x"), is_new=True)
    file.pwritev([b"0123456789"], 0)
    monkeypatch.setattr(os, "open", refuse_direct)
    assert file.pread_direct(4, 3) == b"3456"
    monkeypatch.setattr(os, "open", real_open)
    monkeypatch.setattr(os, "preadv", refuse_preadv)
    assert file.pread_direct(4, 3) == b"3456"
    monkeypatch.setattr(os, "preadv", real_preadv)
    file.close()


def test_the_real_file_system_keeps_the_ports_promises(tmp_path: Path) -> None:
    fs = PosixFileSystem()
    directory = str(tmp_path)
    path, other = f"{directory}/a", f"{directory}/b"
    assert not fs.exists(path)
    file = fs.open(path, is_new=True)
    assert bytes(fs.map(path)) == b""
    file.truncate(10)
    file.pwritev([b"abc"], 2)
    file.preallocate(6)
    assert fs.size_bytes(path) == file.size_bytes() == 10
    view = fs.map(path)
    assert bytes(view) == b"\0\0abc\0\0\0\0\0" and view.readonly
    fs.rename(path, other)
    fs.fsync_directory(directory)
    assert fs.list_names(directory) == ["b"] and fs.exists(other)
    fs.remove(other)
    assert bytes(view[2:5]) == b"abc" and not fs.exists(other)
    file.close()
    with pytest.raises(FileNotFoundError):
        fs.size_bytes(other)
    usage = fs.usage(directory)
    assert isinstance(usage, DiskUsage) and 0 < usage.free_bytes < usage.total_bytes


def test_files_are_recycled_on_the_real_disk(tmp_path: Path) -> None:
    fs = PosixFileSystem()
    covered, numbers = 0, itertools.count()
    for round_ in range(6):
        found: list[ReplayedRecord] = []
        writer, result = open_journal(
            str(tmp_path), fs, INCARNATION, found.append, now_unix_us=lambda: 0,
            file_bytes=1 << 20, covered_file_id=covered,
        )  # fmt: skip
        assert not result.damages and not result.torn_bytes
        assert len(found) == (0 if round_ == 0 else 1)
        for _ in range(40):
            writer.commit([add(next(numbers), 20_000)])
        covered = writer.roll()
        writer.recycle(writer.sealed_file_ids)
        assert writer.prepare_next() and writer.supply.recycled_count > 0
        writer.roll()
        locations = writer.commit([add(next(numbers))])
        covered = writer.roll() if round_ % 2 else covered
        if round_ % 2:
            writer.recycle(writer.sealed_file_ids)
            locations = writer.commit([add(next(numbers))])
        else:
            writer.write_end()
        assert writer.read(locations[0]).startswith(b"%d:" % (next(numbers) - 1))
        writer.close()
    names = sorted(os.listdir(tmp_path))
    assert len([name for name in names if name.startswith("spare-")]) <= 2 and len(names) <= 6
