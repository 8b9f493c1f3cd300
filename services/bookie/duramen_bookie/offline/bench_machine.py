"""What the machine itself can do, and how measured figures are kept: the ground of both benches.

A figure is the median of several rounds, with its quartiles. What a round compares it measures one
right after the other, in changing order, so that a disk or a neighbour that is slow now is slow for
both; only ratios of one run mean anything. `BareLoop` is what a journal is held against: pwritev
and fdatasync of the same bytes into a preallocated file, and nothing else.

Called by `bench_journal` and `bench_bookie`; `bench` shows the figures. Source: docs/benchmarks.md
"A bookie alone".
"""

from __future__ import annotations

import dataclasses
import os
import platform
import resource
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from duramen.units import MIB
from duramen_bookie.file_system import PosixFileSystem

BLOCK_BYTES: Final = 4096
CHUNK_BYTES: Final = 1 * MIB
"""What sequential reads and writes ask for at once, the bench's own and the reader's alike."""

_SYNC_COUNT: Final = 100
_MEMORY_FILE_SYSTEMS: Final = frozenset({"tmpfs", "ramfs"})


class BenchError(Exception):
    """The measurement is void; the text says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class FigureTarget:
    """What a figure should be: at least `bound`, or at most."""

    bound: float
    is_floor: bool

    def is_reached_by(self, value: float) -> bool:
        """Whether a value is good enough."""
        return value >= self.bound if self.is_floor else value <= self.bound


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """A measured value; `quartiles` of the rounds that it is the median of."""

    workload: str
    name: str
    value: float
    unit: str
    quartiles: tuple[float, float] | None = None
    target: FigureTarget | None = None

    def to_json(self) -> dict[str, Any]:
        """The figure and what its target says."""
        document: dict[str, Any] = {"value": self.value, "unit": self.unit}
        if self.quartiles is not None:
            document["quartiles"] = list(self.quartiles)
        if self.target is not None:
            document["target"] = {
                "bound": self.target.bound,
                "kind": "at_least" if self.target.is_floor else "at_most",
                "is_reached": self.target.is_reached_by(self.value),
            }
        return document


def summarize(
    workload: str,
    name: str,
    samples: Sequence[float],
    unit: str,
    target: FigureTarget | None = None,
) -> Figure:
    """The figure of one sample a round (one at least)."""
    if len(samples) == 1:
        return Figure(workload, name, samples[0], unit, target=target)
    low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Figure(workload, name, median, unit, (low, high), target)


def at_least(bound: float) -> FigureTarget:
    """More is better."""
    return FigureTarget(bound, is_floor=True)


def at_most(bound: float) -> FigureTarget:
    """Less is better."""
    return FigureTarget(bound, is_floor=False)


# --- The machine ---------------------------------------------------------------------------------


class CpuWatch:
    """How much of the machine's CPU others take while a run goes on; begins when it is made.

    What belongs to the run is what this process and its ended children have used.
    """

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._busy_s = _read_busy_s()
        self._own_s = _read_own_s()

    def find_foreign_ratio(self) -> float:
        """Share of all cores' time; to be asked when every child has ended."""
        foreign_s = (_read_busy_s() - self._busy_s) - (_read_own_s() - self._own_s)
        cores = os.cpu_count() or 1
        # Ticks are rounded: a quiet machine can come out a little below nothing.
        return max(0.0, foreign_s / (cores * (time.monotonic() - self._began_s)))


def describe_machine(folder: Path) -> dict[str, Any]:
    """Size and software, by which figures of two runs can be told apart."""
    file_system = _find_file_system(folder)
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "file_system": file_system,
        "is_disk": file_system not in _MEMORY_FILE_SYSTEMS,
    }


def measure_limits(folder: Path, *, file_bytes: int) -> list[Figure]:
    """What the disk under `folder` does, measured on a file of `file_bytes` (a MiB at least)."""
    path = folder / "limits"
    file = BareLoop(path, file_bytes)
    try:
        # The first lap takes the blocks into use: from then on nothing but data is written.
        file.write_lap()
        write_s = file.write_lap()
        seconds = []
        block = [os.urandom(BLOCK_BYTES)]
        for _ in range(min(_SYNC_COUNT, file_bytes // BLOCK_BYTES)):
            began_s = time.perf_counter()
            file.commit(block)
            seconds.append(time.perf_counter() - began_s)
    finally:
        file.close()
    read_s = [measure_read_s([path], file_bytes, is_cold=True) for _ in range(3)]
    path.unlink()
    return [
        summarize("machine", "fdatasync_4k_us", [value * 1e6 for value in seconds], "us"),
        Figure("machine", "sequential_write_mb_per_s", file_bytes / 1e6 / write_s, "MB/s"),
        summarize(
            "machine",
            "sequential_read_mb_per_s",
            [file_bytes / 1e6 / value for value in read_s],
            "MB/s",
        ),
    ]


class BareLoop:
    """pwritev + fdatasync through a preallocated file, from its beginning again at its end.

    Commits lie as the journal's do: each right behind the one before, zeros to the block's end.
    """

    def __init__(self, path: Path, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._offset = 0
        self._file = PosixFileSystem().open(str(path), is_new=True)
        self._file.preallocate(size_bytes)
        self._file.fsync()

    def commit(self, buffers: Sequence[bytes]) -> None:
        """Write the buffers (together no more than the file) side by side and sync."""
        size = sum(map(len, buffers))
        if self._offset + size > self._size_bytes:
            self._offset = 0
        padding = bytes(-(self._offset + size) % BLOCK_BYTES)
        self._file.pwritev([*buffers, padding], self._offset)
        self._file.fdatasync()
        self._offset += size

    def write_lap(self) -> float:
        """Write the whole file in chunks, with one sync at the end; gives the seconds it took."""
        chunk = [os.urandom(CHUNK_BYTES)]
        began_s = time.perf_counter()
        for offset in range(0, self._size_bytes - CHUNK_BYTES + 1, CHUNK_BYTES):
            self._file.pwritev(chunk, offset)
        self._file.fdatasync()
        return time.perf_counter() - began_s

    def close(self) -> None:
        """Give the file back; it stays."""
        self._file.close()


def measure_read_s(paths: Sequence[Path], size_bytes: int, *, is_cold: bool) -> float:
    """Seconds for the first `size_bytes` of some files, in chunks; `is_cold`: past the cache."""
    if is_cold:
        drop_cache(paths)
    buffer = [bytearray(CHUNK_BYTES)]
    left = size_bytes
    began_s = time.perf_counter()
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            offset = 0
            while left > 0 and (size := os.preadv(descriptor, buffer, offset)):
                offset += size
                left -= size
        finally:
            os.close(descriptor)
    return time.perf_counter() - began_s


def drop_cache(paths: Sequence[Path]) -> None:
    """Take files out of the page cache, as far as they are on the disk already."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def format_number(value: float) -> str:
    """Three significant digits, without a power of ten."""
    for bound, digits in ((100, 0), (10, 1), (1, 2)):
        if abs(value) >= bound:
            return f"{value:,.{digits}f}"
    return f"{value:.3g}"


def _find_file_system(folder: Path) -> str:
    """Type of the file system that a folder is on, such as ext4."""
    best, kind = "", "unknown"
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, mount, found, *_ = line.split()
        if folder.is_relative_to(mount) and len(mount) >= len(best):
            best, kind = mount, found
    return kind


def _read_busy_s() -> float:
    """Seconds that all cores together were busy, or taken away by the host (steal)."""
    line, _, _ = Path("/proc/stat").read_text(encoding="utf-8").partition("\n")
    user, nice, system, _idle, _iowait, irq, softirq, steal, *_ = map(int, line.split()[1:])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _read_own_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)
