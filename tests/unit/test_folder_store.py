"""What a folder as a cold store has on the disk when it says that a file is there.

Syncs and links are noted as they are made, by inode; what readers see is in
`tests/contract/test_cold_store`. Source: duramen.runtime.cold.folder.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from duramen.runtime.cold.folder import FolderStore

PATH = "v1/log/e1/part-00000.parquet"


def test_a_file_gets_its_name_when_the_disk_has_it_and_is_there_when_the_disk_has_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut it is whole or not there: hot copies are released for it."""
    steps: list[tuple[str, int]] = []
    fsync, link = os.fsync, os.link

    def note_sync(handle: int) -> None:
        fsync(handle)
        steps.append(("sync", os.fstat(handle).st_ino))

    def note_link(source: Path, target: Path) -> None:
        assert source.stat().st_size == 3, "what is synced later is not on the disk yet"
        link(source, target)
        steps.append(("link", target.stat().st_ino))

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "link", note_link)
    FolderStore(tmp_path).put_new(PATH, b"abc")
    target = tmp_path / PATH
    named = steps.index(("link", target.stat().st_ino))
    assert ("sync", target.stat().st_ino) in steps[:named]
    assert ("sync", target.parent.stat().st_ino) in steps[named:]
    for folder in list(target.relative_to(tmp_path).parents)[:-1]:
        above = (tmp_path / folder).parent.stat().st_ino
        assert ("sync", above) in steps, f"the name of {folder}"
