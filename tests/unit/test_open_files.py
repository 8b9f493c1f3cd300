"""What a process has open is told although it closes files while one looks.

Source: tests/process/open_files.py.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.process.open_files import iterate_open


def test_a_descriptor_that_is_closed_meanwhile_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / name for name in ("first", "second", "third")]
    files = [path.open("w") for path in paths]
    gone = files[1].fileno()
    read = os.readlink

    def close_and_read(link: Path) -> str:
        if not files[1].closed and link.name == str(gone):
            files[1].close()
        return read(link)

    monkeypatch.setattr(os, "readlink", close_and_read)
    found = set(iterate_open(os.getpid()))
    assert {str(paths[0]), str(paths[2])} <= found and str(paths[1]) not in found
    files[0].close()
    files[2].close()


def test_a_process_that_is_gone_is_told() -> None:
    with pytest.raises(FileNotFoundError):
        list(iterate_open(1 << 30))
