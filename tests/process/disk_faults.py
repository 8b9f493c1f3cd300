"""Faults of real disks for process tests: a power cut, a full disk, a failing or slow sync.

`Volume` is an ext4 file system in a file, on a loop device: its power is cut by the shutdown ioctl
without a flush of the log, so that after `mount` only what was synced is there; a small one runs
full. `injecting` runs a command under strace, which makes its system calls fail or take long. Each
has a `reason_to_skip`, tried once on this machine: no root, no loop devices, no tool.

Nothing stays mounted or attached: whoever has a `Volume` uses it as a context manager, which also
ends every process that still uses it. Used by the bookie's process tests. Source: docs/testing.md
"Real processes and disks".
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.pauses import look_again
from tests.process.open_files import iterate_open

EXT4_IOC_SHUTDOWN: Final = 0x8004587D
"""_IOR('X', 125, __u32); also XFS's and f2fs's."""

_GOING_NO_LOG_FLUSH: Final = struct.pack("I", 2)
"""EXT4_GOING_FLAGS_NOLOGFLUSH: neither data nor log is written any more."""

_TOOLS: Final = ("losetup", "mkfs.ext4", "mount", "umount")
_UNMOUNT_TRIES_MAX: Final = 100
_PROBE_BYTES: Final = 16 << 20


class Volume:
    """An ext4 file system of its own, mounted at `path` within the context.

    Args:
        folder: empty; gets the image and the mount point.
        size_bytes: of the file system; the image is sparse, so a large one costs nothing.
    """

    def __init__(self, folder: Path, size_bytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "mounted"
        self._image = folder / "image"
        self._size_bytes = size_bytes
        self._device: str | None = None
        self._is_mounted = False
        self._is_cut = False

    @staticmethod
    def reason_to_skip() -> str | None:
        """Why there is none on this machine; None if there is."""
        return _try_volume()

    def __enter__(self) -> Self:
        try:
            self._image.touch()
            os.truncate(self._image, self._size_bytes)
            # Few inodes, so that a large image is made in no time; no reserve for root.
            _run("mkfs.ext4", "-q", "-F", "-i", "1048576", "-m", "0", str(self._image))
            self._attach()
            self.path.mkdir()
            self.mount()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()

    def mount(self) -> None:
        """Mount, after `unmount`; ext4 replays its log."""
        assert not self._is_mounted
        if self._is_cut:
            # A container that began meanwhile has the mount in a namespace of its own, and keeps
            # the file system as it was: without power. Another device is another file system.
            self._detach()
            self._attach()
            self._is_cut = False
        assert self._device is not None
        _run("mount", "-t", "ext4", "-o", "noatime", self._device, str(self.path))
        self._is_mounted = True

    def cut_power(self) -> None:
        """Nothing that was not synced reaches the device any more, and every call gets EIO."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, EXT4_IOC_SHUTDOWN, _GOING_NO_LOG_FLUSH)
        finally:
            os.close(descriptor)
        self._is_cut = True

    def unmount(self) -> None:
        """Unmount; nobody uses it any more.

        Raises:
            CalledProcessError: somebody does.
        """
        _run("umount", str(self.path))
        self._is_mounted = False

    def fill(self, leave_bytes: int) -> Path:
        """Take all space but about so much, perhaps once more; the file to remove afterwards."""
        filler = self.path / "filler"
        free_bytes = shutil.disk_usage(self.path).free
        with filler.open("ab") as file:
            if free_bytes > leave_bytes:
                os.posix_fallocate(file.fileno(), file.tell(), free_bytes - leave_bytes)
        return filler

    def remove(self) -> None:
        """Unmount, detach, delete; whatever was under way. Safe to call twice."""
        if self._is_mounted:
            self._unmount_by_force()
        self._detach()
        self._image.unlink(missing_ok=True)

    def _attach(self) -> None:
        self._device = _run("losetup", "--find", "--show", str(self._image)).strip()

    def _detach(self) -> None:
        if self._device is not None:
            _run("losetup", "-d", self._device, is_checked=False)
            self._device = None

    def _unmount_by_force(self) -> None:
        for _ in range(_UNMOUNT_TRIES_MAX):
            try:
                self.unmount()
                return
            except subprocess.CalledProcessError:
                # By pid, and only who has something of this file system open.
                for pid in find_users(self.path):
                    os.kill(pid, signal.SIGKILL)
                look_again()
        _run("umount", "--lazy", str(self.path))
        self._is_mounted = False


def find_users(path: Path) -> list[int]:
    """Processes that have a file open below a path, or stand there."""
    prefix = f"{path}/"
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal() or int(process.name) == os.getpid():
            continue
        try:
            targets = [os.readlink(process / "cwd"), *iterate_open(int(process.name))]
        except OSError:
            continue
        if any(f"{target}/".startswith(prefix) for target in targets):
            found.append(int(process.name))
    return found


# --- strace ---------------------------------------------------------------------------------------


def injecting(command: Sequence[str], calls: str, what: str, log: Path) -> list[str]:
    """A command line whose system calls fail or take long.

    The process is the command itself (strace is its grandchild), so that its pid, signals and exit
    status are the command's own.

    Args:
        calls: names, as "fdatasync" or "fdatasync,fsync".
        what: as "error=EIO:when=7" or "delay_exit=100000" (µs). Each thread counts for itself.
        log: gets the calls and what was done to them; see `count_injected`.
    """
    strace = ["strace", "-D", "-f", "-qqq", "--seccomp-bpf", "-o", str(log)]
    return [*strace, "-e", f"trace={calls}", "-e", f"inject={calls}:{what}", *command]


def count_injected(log: Path) -> int:
    """How many calls were made to fail or to wait."""
    lines = log.read_text().splitlines() if log.exists() else []
    return sum(line.endswith(("(INJECTED)", "(DELAYED)")) for line in lines)


@cache
def reason_to_skip_injecting() -> str | None:
    """Why strace cannot inject on this machine; None if it can."""
    if shutil.which("strace") is None:
        return "strace is not installed (apt-get install strace)"
    probe = "import os\ntry: os.fdatasync(0)\nexcept OSError as e: raise SystemExit(e.errno)"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-S", "-c", probe]
        command = injecting(command, "fdatasync", "error=EIO", Path(folder) / "log")
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
    if done.returncode != 5:
        return f"strace cannot inject here: {done.stderr.strip() or done.returncode}"
    return None


@cache
def _try_volume() -> str | None:
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if os.geteuid() != 0:
        return "a file system on a loop device needs root"
    if missing:
        return f"not installed: {', '.join(missing)}"
    with tempfile.TemporaryDirectory() as folder:
        try:
            with Volume(Path(folder), _PROBE_BYTES) as volume:
                (volume.path / "probe").touch()
                volume.cut_power()
        except (OSError, subprocess.CalledProcessError) as error:
            detail = getattr(error, "stderr", None) or error
            return f"no ext4 on a loop device that can be shut down: {detail}"
    return None


def _run(*command: str, is_checked: bool = True) -> str:
    done = subprocess.run(command, check=is_checked, capture_output=True, text=True, timeout=60)
    return done.stdout
