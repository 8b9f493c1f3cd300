"""What a folder holds, made durable: a name that was made, renamed or removed in it.

A synced file whose folder was not synced may be gone after a loss of power.

Called by whoever writes files that others rely on: cold stores, cookies, `cluster.json`,
identities, tokens, contexts. The bookie's journal and ledgers have a file system of their own, for
their faults.
"""

from __future__ import annotations

import os
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Let the names in a folder outlive a loss of power.

    Raises:
        OSError: it is no folder, or cannot be synced.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_private(path: Path, content: bytes) -> None:
    """Put a file for its owner alone (mode 0600) in the place of another one; durable then.

    Raises:
        OSError: it cannot be written; the former one still counts.
    """
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_folder(path.parent)
