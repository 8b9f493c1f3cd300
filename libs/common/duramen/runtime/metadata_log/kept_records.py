"""What a process keeps of metadata logs that it has read, bounded by bytes.

One run of records a log: those from one LSN to another, in the order in which they lie, and by
epoch, so that a search for one epoch does not pass over ten thousand. What was used longest ago
goes first.

Called by `records`. Source: docs/protocol/metadata-logs.md "Reading".
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from duramen.core.metadata_log.listing import PlacedRecord
from duramen.ids import Epoch, LogId, Lsn

_RECORD_BYTES: Final = 3_000
"""What a record takes in memory, about."""


@dataclass(frozen=True, slots=True)
class KeptRun:
    """Everything that a metadata log holds from `first` to `last`."""

    first: Lsn | None
    """None: from the beginning."""

    last: Lsn
    records: tuple[PlacedRecord, ...]
    by_epoch: Mapping[Epoch, Sequence[PlacedRecord]]
    """The same, each epoch's in order."""

    @property
    def size_bytes(self) -> int:
        """In memory, about."""
        return _RECORD_BYTES * len(self.records)


def make_run(first: Lsn | None, last: Lsn, records: Sequence[PlacedRecord]) -> KeptRun:
    """A run of records that were read."""
    by_epoch: dict[Epoch, list[PlacedRecord]] = {}
    for placed in records:
        by_epoch.setdefault(placed.record.epoch, []).append(placed)
    return KeptRun(first, last, tuple(records), by_epoch)


class KeptRecords:
    """The runs of a process.

    Args:
        bytes_max: of all of them; one of any size is kept.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._runs: OrderedDict[LogId, KeptRun] = OrderedDict()
        self._bytes = 0

    def find(self, log_id: LogId) -> KeptRun | None:
        """What was read of a log last."""
        run = self._runs.get(log_id)
        if run is not None:
            self._runs.move_to_end(log_id)
        return run

    def put(self, log_id: LogId, run: KeptRun) -> None:
        """Keep it in place of what was read before."""
        before = self._runs.pop(log_id, None)
        self._bytes -= 0 if before is None else before.size_bytes
        self._runs[log_id] = run
        self._bytes += run.size_bytes
        while self._bytes > self._bytes_max and len(self._runs) > 1:
            _, oldest = self._runs.popitem(last=False)
            self._bytes -= oldest.size_bytes

    def statistics(self) -> dict[str, int]:
        """Logs, and about how much memory."""
        return {"logs": len(self._runs), "bytes": self._bytes}
