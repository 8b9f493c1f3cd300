"""Counts what a process asks of its disks, whatever revision of the product it runs.

Python imports a module of this name by itself when it starts and finds it on PYTHONPATH. Where
DURAMEN_BENCH_COUNTS names a folder, `os.fsync`, `os.fdatasync`, `os.pwrite` and `os.pwritev` are
counted from then on, in a file there that is named by the process id and outlives the process. The
product's own counters would tell what it meant to do; a sync that nobody meant is not among them.

Not for imports: `workloads` reads the file. Layout: two little-endian integers of 8 bytes, the
number of syncs and the bytes written.
"""

import mmap
import os
import struct
import threading
from collections.abc import Callable
from typing import Any


def install(folder: str) -> None:
    """Put a counter in front of each call."""
    descriptor = os.open(os.path.join(folder, str(os.getpid())), os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(descriptor, 16)
    area = mmap.mmap(descriptor, 16)
    lock = threading.Lock()

    def count(call: Callable[..., Any], at: int) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            result = call(*arguments, **named)
            with lock:
                (so_far,) = struct.unpack_from("<q", area, at)
                struct.pack_into("<q", area, at, so_far + (1 if at == 0 else result))
            return result

        return counted

    for name in ("fsync", "fdatasync"):
        setattr(os, name, count(getattr(os, name), 0))
    for name in ("pwrite", "pwritev"):
        setattr(os, name, count(getattr(os, name), 8))


if os.environ.get("DURAMEN_BENCH_COUNTS"):
    install(os.environ["DURAMEN_BENCH_COUNTS"])
