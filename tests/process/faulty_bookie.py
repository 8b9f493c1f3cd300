"""A bookie that is slow or full when it is told to be, and else as every other one.

Run as a script in place of `duramen_bookie.main`, with the same arguments. A file beside its data
directory says which: `slow` makes every answer of the data port come 300 ms late, `full` makes all
its disks 99 % full, so that it refuses entries and LACs and registers as read-only. No root, no
relay and no second file system is needed. It imports nothing of the tests, which need not be on the
path of a script. `faulty` makes the command line, `set_fault` the file.
Used by `flexible_figures` and its test.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest import mock

from duramen_bookie.file_system import DiskUsage, PosixFileSystem
from duramen_bookie.handlers import DataPlane
from duramen_bookie.main import main

SLOW, FULL = "slow", "full"
LATE_S = 0.3
_FREE_PARTS = 100

_handle = DataPlane.handle
_usage = PosixFileSystem.usage


def faulty(command: list[str]) -> list[str]:
    """The same bookie, with faults at hand."""
    module = command.index("-m")
    assert command[module + 1] == "duramen_bookie.main", command
    return [*command[:module], str(Path(__file__)), *command[module + 2 :]]


def set_fault(data_dir: str, fault: str | None) -> None:
    """What the bookie with this data directory has from now on; None: nothing."""
    for one in (SLOW, FULL):
        path = _path_of(data_dir, one)
        path.touch() if one == fault else path.unlink(missing_ok=True)


def _path_of(data_dir: str, fault: str) -> Path:
    return Path(f"{data_dir}.{fault}")


def _make_handle(slow: Path) -> Callable[..., Awaitable[object]]:
    async def handle(plane: DataPlane, *call: Any) -> object:
        answer = await _handle(plane, *call)
        if slow.exists():
            late = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_later(LATE_S, late.set_result, None)
            await late
        return answer

    return handle


def _make_usage(full: Path) -> Callable[..., DiskUsage]:
    def usage(files: PosixFileSystem, directory: str) -> DiskUsage:
        found = _usage(files, directory)
        if full.exists():
            return DiskUsage(found.total_bytes, found.total_bytes // _FREE_PARTS)
        return found

    return usage


if __name__ == "__main__":
    data = sys.argv[sys.argv.index("--data-dir") + 1]
    with (
        mock.patch.object(DataPlane, "handle", _make_handle(_path_of(data, SLOW))),
        mock.patch.object(PosixFileSystem, "usage", _make_usage(_path_of(data, FULL))),
    ):
        sys.exit(main())
