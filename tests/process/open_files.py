"""What a process has open, as /proc tells: a process opens and closes files while one looks.

Used by `bookie_files` and `disk_faults`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def iterate_open(pid: int) -> Iterator[str]:
    """Where each descriptor leads; one that is closed just now leads nowhere.

    Raises:
        OSError: there is no such process, or it is not ours to look at.
    """
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            yield os.readlink(link)
        except FileNotFoundError:
            continue
