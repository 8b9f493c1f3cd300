"""The file in which audit records wait until the log has them, and the last one that was there.

Every record comes here before it goes to the log, so one that the log did not take in time is here
as well when the process was killed. Blocking; the trail calls it from a thread, one call at a time.

Called by `trail`. Source: docs/protocol/audit.md "Where records wait".
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from duramen.core.audit.chain import ChainHead
from duramen.runtime.folders import sync_folder, write_private
from duramen.runtime.role import StartRefusedError
from duramen.units import MIB
from duramen.wire.edge.audit_records import (
    COUNTS_BYTES_MAX,
    AuditRecordError,
    read_head,
    read_record,
)

WAITING_BYTES_MAX: Final = 16 * MIB
"""Records that the log has not taken. The file has twice that at most, records that it has taken
among them."""

_FILE_BYTES_MAX: Final = 2 * WAITING_BYTES_MAX
_FOLDER: Final = "audit"
_PENDING: Final = "pending"
_HEAD: Final = "head"


class FoundRecords(NamedTuple):
    """What lay in the folder: records that the log may lack, and the last one that was made."""

    lines: list[bytes]
    head: ChainHead | None


class AuditSpool:
    """The folder `audit` of a node's data.

    Args:
        data_dir: of this node alone.
    """

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir / _FOLDER
        self._lock: int | None = None
        self._file_bytes = 0

    def open(self) -> FoundRecords:
        """Hold the folder, and give what lies in it.

        Raises:
            StartRefusedError: another process holds it, or it cannot be used.
        """
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._hold()
            found = self._read()
            # A line that was cut short must not run into the next one.
            self.rewrite(found.lines)
        except OSError as error:
            raise StartRefusedError(f"{self._folder} cannot keep audit records: {error}") from error
        return found

    def add(self, lines: Sequence[bytes]) -> None:
        """Keep more records, durably.

        Raises:
            OSError: they are not kept, or in part: `rewrite` all that wait.
        """
        with (self._folder / _PENDING).open("ab") as file:
            file.write(_join(lines))
            file.flush()
            os.fsync(file.fileno())
            self._file_bytes = file.tell()

    def rewrite(self, lines: Sequence[bytes]) -> None:
        """Have these records in the file and no others.

        Raises:
            OSError: the file is as it was.
        """
        content = _join(lines)
        write_private(self._folder / _PENDING, content)
        self._file_bytes = len(content)

    def empty(self, head: ChainHead) -> None:
        """The log has all records; the last one that was made is this.

        Raises:
            OSError: they may be there still.
        """
        write_private(self._folder / _HEAD, json.dumps(head).encode())
        with (self._folder / _PENDING).open("wb"):
            self._file_bytes = 0

    def has_room(self, more_bytes: int) -> bool:
        """Whether the file stays within its bound with so much more; else `rewrite` it."""
        return self._file_bytes + more_bytes <= _FILE_BYTES_MAX

    def close(self) -> None:
        """Let go of the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _hold(self) -> None:
        # The folder itself is locked: that leaves no file behind.
        self._lock = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            raise StartRefusedError(
                f"{self._folder} is held by another process: stop that one, or give this one its "
                "own --data-dir"
            ) from error
        sync_folder(self._folder.parent)

    def _read(self) -> FoundRecords:
        head = _read_kept_head(self._folder / _HEAD)
        try:
            content = (self._folder / _PENDING).read_bytes()
        except FileNotFoundError:
            return FoundRecords([], head)
        # What stands behind the last line feed was cut short.
        whole = content.split(b"\n")[:-1]
        # What is longer is no record, and the log might refuse it for ever.
        lines = [line for line in whole if 0 < len(line) <= COUNTS_BYTES_MAX]
        for line in lines:
            try:
                checked = read_record(line).checked
            except AuditRecordError:
                continue  # the check tells of it: it goes on as it is
            head = ChainHead(checked.link.chain, checked.link.n, checked.digest)
        return FoundRecords(lines, head)


def _read_kept_head(path: Path) -> ChainHead | None:
    """The head that was kept; None: none, or none that can be read."""
    try:
        return read_head(json.loads(path.read_bytes()))
    except (FileNotFoundError, ValueError):
        return None


def _join(lines: Sequence[bytes]) -> bytes:
    return b"".join(b"%b\n" % line for line in lines)
