"""The faults of disks do what they say: a cut loses what was not synced and nothing else, a small
volume fills up, system calls fail or wait in any thread.

Nothing stays mounted, attached or running, also when a test fails in between.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.disk_faults import (
    Volume,
    count_injected,
    find_users,
    injecting,
    reason_to_skip_injecting,
)
from tests.requirements import Need, leave_out_if

pytestmark = pytest.mark.process

SYNC = """
import os, sys, threading, time
def work():
    descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
    for _ in range(3):
        began = time.monotonic()
        try:
            os.fdatasync(descriptor)
            print("ok", time.monotonic() - began >= 0.05)
        except OSError as error:
            print(error.errno)
thread = threading.Thread(target=work)
thread.start()
thread.join()
sys.exit(7)
"""


def write(path: Path, data: bytes, *, is_synced: bool) -> None:
    with path.open("ab") as file:
        file.write(data)
        file.flush()
        if is_synced:
            os.fsync(file.fileno())


def loop_devices(folder: Path) -> str:
    done = subprocess.run(["losetup", "--all"], capture_output=True, text=True, check=True)
    return "".join(line for line in done.stdout.splitlines() if str(folder) in line)


def test_power_comes_back_though_a_container_has_the_mount_of_before(tmp_path: Path) -> None:
    """Whatever begins a namespace of mounts keeps each file system that there is."""
    leave_out_if(Need.LOOP_DEVICES, Volume.reason_to_skip())
    hold = ["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo held; read x"]
    with Volume(tmp_path / "volume", 16 << 20) as volume:
        write(volume.path / "synced", b"there", is_synced=True)
        sync_folder(volume.path)
        with subprocess.Popen(hold, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
            assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
            volume.cut_power()
            volume.unmount()
            volume.mount()
            found = (volume.path / "synced").read_bytes()
            holder.communicate(b"\n", timeout=20)
        assert found == b"there"
    assert not loop_devices(tmp_path)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def test_a_power_cut_keeps_what_was_synced_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leave_out_if(Need.LOOP_DEVICES, Volume.reason_to_skip())
    with Volume(tmp_path, 64 << 20) as volume:
        write(volume.path / "a", b"synced", is_synced=True)
        write(volume.path / "a", b" and not", is_synced=False)
        write(volume.path / "b", b"not", is_synced=False)
        volume.cut_power()
        with pytest.raises(OSError, match="Input/output") as caught:
            write(volume.path / "a", b"later", is_synced=True)
        assert caught.value.errno == errno.EIO
        volume.unmount()
        volume.mount()
        assert (volume.path / "a").read_bytes() == b"synced"
        assert not (volume.path / "b").exists()
    assert not loop_devices(tmp_path) and not os.path.ismount(volume.path)


def test_a_volume_in_use_is_removed_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leave_out_if(Need.LOOP_DEVICES, Volume.reason_to_skip())
    with Volume(tmp_path, 64 << 20) as volume:
        user = subprocess.Popen(["sleep", "100"], cwd=volume.path)
        assert find_users(volume.path) == [user.pid]
    assert user.wait(10) == -signal.SIGKILL
    assert not loop_devices(tmp_path) and not os.path.ismount(volume.path)


def test_a_small_volume_fills_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leave_out_if(Need.LOOP_DEVICES, Volume.reason_to_skip())
    with Volume(tmp_path, 64 << 20) as volume:
        filler = volume.fill(leave_bytes=1 << 20)
        with pytest.raises(OSError, match="No space") as caught:
            write(volume.path / "a", bytes(4 << 20), is_synced=True)
        assert caught.value.errno == errno.ENOSPC
        filler.unlink()
        write(volume.path / "b", bytes(4 << 20), is_synced=True)


@pytest.mark.parametrize(
    ("what", "expected", "count"),
    [
        ("error=EIO:when=2", ["ok", str(errno.EIO), "ok"], 1),
        ("delay_exit=60000", ["ok True"] * 3, 3),
    ],
)
def test_system_calls_of_any_thread_fail_or_wait(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str, expected: list[str], count: int
) -> None:
    leave_out_if(Need.STRACE, reason_to_skip_injecting())
    log = tmp_path / "strace.log"
    command = [sys.executable, "-c", SYNC, str(tmp_path / "file")]
    process = subprocess.Popen(
        injecting(command, "fdatasync", what, log), stdout=subprocess.PIPE, text=True
    )
    output, _ = process.communicate(timeout=60)
    lines = output.splitlines()
    if what.startswith("error"):  # how long a sync takes that nobody delays is the disk's affair
        lines = [line.partition(" ")[0] for line in lines]
    assert process.returncode == 7 and lines == expected
    assert count_injected(log) == count
