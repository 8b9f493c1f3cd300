"""Histories on disk: one JSON line per completed operation, one file per log, one for the faults.

The lines are those of docs/testing.md "Histories", times from CLOCK_MONOTONIC. A body is named by
64 bits of its BLAKE2; the bodies of a run name themselves, so no two of them are equal. Lines may
come in any order: the judge sorts by their times. Operations, beside the fields that all have:

    append    producer, seq (the writer's count), n, hash (of each body), start, end, dlsn if ok
    read      from (a sequence number asked for, or null), start, end, batches [dlsn, seq, hashes],
              tail (whether the answer says that this is the end), gaps [first, end] if any
    tail      end; acknowledged (the end of what is, and may not be shown yet) if asked for
    truncate  end (records below it may go)
    segments  segments [epoch, state, start_seq_num, records, last_entry, holes], of the end
    waits, told, broken  of a reader who waits: that it does; status and code; how it broke
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final

import orjson

from duramen.client.records import Records

FINAL: Final = "final"
"""Readers whose name begins with this read the whole log after the last fault."""

Line = dict[str, Any]


def read_clock_ns() -> int:
    """The clock of all lines of a run, one for all processes of the machine."""
    return time.monotonic_ns()


def hash_body(body: bytes) -> int:
    """What stands for a body in a history."""
    return int.from_bytes(hashlib.blake2b(body, digest_size=8).digest(), "big")


def encode_batches(records: Sequence[Records]) -> list[list[Any]]:
    """What a read returned, cut to what was asked for."""
    return [
        [str(part.dlsn_of(part.skip)), part.first, [hash_body(body) for body in part.bodies]]
        for part in records
    ]


def find_gaps(start: int, batches: Sequence[Sequence[Any]], end: int) -> list[tuple[int, int]]:
    """Numbers of an answer that are no record's: holes, where a log may have any."""
    gaps = []
    position = start
    for _, seq_num, hashes in batches:
        if seq_num > position:
            gaps.append((position, seq_num))
        position = seq_num + len(hashes)
    return [*gaps, (position, end)] if end > position else gaps


class HistoryFile:
    """Lines of one log, or the faults; flushed by `flush` and `close`."""

    def __init__(self, path: Path) -> None:
        self._file: IO[bytes] = path.open("ab")

    def write(self, line: Line) -> None:
        """Add a line."""
        self._file.write(orjson.dumps(line) + b"\n")

    def flush(self) -> None:
        """Show what was written to other processes."""
        self._file.flush()

    def close(self) -> None:
        """Flush and close; safe to call twice."""
        self._file.close()


def history_path(folder: Path, log: str, writer: str) -> Path:
    """The file in which one process keeps what happened to one log."""
    return folder / f"history-{log}-{writer}.jsonl"


def read_history(folder: Path, log: str) -> Iterator[Line]:
    """Every line about one log, file after file."""
    for path in sorted(folder.glob(f"history-{log}-*.jsonl")):
        yield from read_lines(path)


def read_lines(path: Path) -> Iterator[Line]:
    """The lines of one file, streamed."""
    with path.open("rb") as file:
        for line in file:
            yield orjson.loads(line)
