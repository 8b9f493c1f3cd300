"""What the machine itself can do, measured in the same run: every figure is to be read against it.

The disk by the calls that the bookie's journal makes (append, fdatasync), alone and three at once;
loopback by an HTTP/2 round trip between the libraries that the services use. Files lie in the
folder of the run, so that it is the same disk. As `python -m tests.bench.machine WHAT …` it is one
writer, or the server that answers the round trips.

Called by `workloads` and `compare.kept`. Source: docs/benchmarks.md.
"""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import uvloop

from duramen.runtime.http_server import Answer, DataServer
from tests.bench.cluster import BenchError
from tests.bench.load import LoadResult, LoadSpec, run_load

_BLOCK_BYTES: Final = 4096
_PIECE_BYTES: Final = 64 << 10
_PIECE_COUNT: Final = 16
_TIMEOUT_S: Final = 30.0
_ECHO_COUNT_MIN: Final = 200


class CpuWatch:
    """How much of the machine's CPU others take while a run goes on; begins when it is made.

    What belongs to the run is what this process and its children have used, once they have ended.
    """

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._busy_s = _read_busy_s()
        self._own_s = _read_own_s()

    def find_foreign_ratio(self) -> float:
        """Share of all cores' time; to be asked when every child has ended."""
        cores = os.cpu_count() or 1
        return self.find_foreign_s() / (cores * (time.monotonic() - self._began_s))

    def find_foreign_s(self, *, of_running_s: float = 0.0) -> float:
        """CPU seconds; `of_running_s` is what children that still run have used meanwhile."""
        own_s = _read_own_s() - self._own_s + of_running_s
        # Ticks are rounded: a quiet machine can come out a little below nothing.
        return max(0.0, _read_busy_s() - self._busy_s - own_s)


def _read_busy_s() -> float:
    """Seconds that all cores together were busy, or taken away by the host (steal)."""
    line, _, _ = Path("/proc/stat").read_text(encoding="utf-8").partition("\n")
    user, nice, system, _idle, _iowait, irq, softirq, steal, *_ = map(int, line.split()[1:])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _read_own_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def describe_machine(folder: Path) -> dict[str, Any]:
    """Size and software, by which figures of two runs can be told apart."""
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": memory_bytes,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "file_system": find_file_system(folder),
    }


def find_file_system(folder: Path) -> str:
    """Type of the file system that a folder is on, such as ext4."""
    best, kind = "", "unknown"
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, mount, found, *_ = line.split()
        is_above = folder.is_relative_to(mount)
        if is_above and len(mount) >= len(best):
            best, kind = mount, found
    return kind


def measure_syncs(folder: Path, *, count: int, is_prepared: bool = False) -> list[float]:
    """Seconds of each of `count` appends of 4 KiB with fdatasync.

    Args:
        is_prepared: into a file that already has its length and its blocks, written once, so that
            nothing but data has to reach the disk.
    """
    path = folder / "syncs"
    block = os.urandom(_BLOCK_BYTES)
    seconds = []
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        if is_prepared:
            os.pwrite(fd, bytes(count * _BLOCK_BYTES), 0)
            os.fsync(fd)
        for index in range(count):
            began_s = time.perf_counter()
            os.pwrite(fd, block, index * _BLOCK_BYTES)
            os.fdatasync(fd)
            seconds.append(time.perf_counter() - began_s)
    finally:
        os.close(fd)
        path.unlink()
    return seconds


def measure_writers(folder: Path, *, count: int, seconds: float) -> float:
    """MB/s of `count` processes together, each with a file: 16 × 64 KiB, then fdatasync."""
    command = [sys.executable, "-m", "tests.bench.machine", "write"]
    writers = [
        subprocess.Popen(
            [*command, str(folder / f"writer-{index}"), str(seconds)], stdout=subprocess.PIPE
        )
        for index in range(count)
    ]
    total = 0.0
    try:
        for writer in writers:
            output, _ = writer.communicate(timeout=seconds + _TIMEOUT_S)
            if writer.returncode:
                raise BenchError(f"a writer ended with {writer.returncode}")
            total += float(output)
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    return total


def measure_round_trips(*, seconds: float) -> LoadResult:
    """1 KiB up and down over HTTP/2 on loopback, one in flight: pyreqwest → granian (RSGI)."""
    with _serve_elsewhere() as (_, url):
        return run_load(LoadSpec([url], seconds, in_flight=1))


class EchoCpu:
    """What such round trips cost the server's side; it is started and warm when this is made."""

    def __init__(self, pid: int, url: str) -> None:
        self._pid = pid
        self._url = url
        self._load(0, in_flight=1)

    def measure(self, *, seconds: float, in_flight: int) -> float:
        """Seconds of CPU of the server for one of them."""
        before_s = _read_cpu_s(self._pid)
        count = self._load(seconds, in_flight=in_flight)
        return (_read_cpu_s(self._pid) - before_s) / count

    def _load(self, seconds: float, *, in_flight: int) -> int:
        spec = LoadSpec([self._url], seconds, in_flight=in_flight, count_min=_ECHO_COUNT_MIN)
        # One opens the connection, before any time is taken.
        return len(run_load(spec).latencies_s) + 1


@contextmanager
def serve_echo_cpu() -> Iterator[EchoCpu]:
    """For as long as it is open, an idle process more."""
    with _serve_elsewhere() as (pid, url):
        yield EchoCpu(pid, url)


@contextmanager
def _serve_elsewhere() -> Iterator[tuple[int, str]]:
    """A process that answers with what it gets: its id and URL."""
    command = [sys.executable, "-m", "tests.bench.machine", "echo"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        try:
            yield server.pid, f"http://127.0.0.1:{int(server.stdout.readline())}/echo"
        finally:
            server.terminate()


def _read_cpu_s(pid: int) -> float:
    """CPU of a process so far: its clock (clock_getcpuclockid(3)) counts nanoseconds, not ticks."""
    return time.clock_gettime(~pid << 3 | 2)


def _write(path: Path, seconds: float) -> None:
    pieces = [os.urandom(_PIECE_BYTES)] * _PIECE_COUNT
    size = 0
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    began_s = time.perf_counter()
    try:
        while time.perf_counter() < began_s + seconds:
            # One file's worth, then from its start again: a fast disk must not be filled.
            at = size % (256 << 20)
            size += os.pwritev(fd, pieces, at)
            os.fdatasync(fd)
        sys.stdout.write(str(size / 1e6 / (time.perf_counter() - began_s)))
    finally:
        os.close(fd)
        path.unlink()


async def _serve_echo() -> None:
    async def answer(_path: str, body: bytes, _caller: object) -> Answer:
        return 200, "application/octet-stream", body

    server = DataServer("127.0.0.1", 0, answer)
    await server.start()
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    await stopping.wait()
    await server.stop()


if __name__ == "__main__":
    if sys.argv[1] == "write":
        _write(Path(sys.argv[2]), float(sys.argv[3]))
    else:
        uvloop.run(_serve_echo())
