"""Replay speed and memory of a bookie's hot part, for `duramen bench journal`.

Replays the journal of an unclean stop into the core and the index, from the disk and then
from the page cache; each time until a writer is ready that could go on. Memory is what core and
index keep, as Python's allocator counts it.

Not here: writing (`bench_journal`, which calls this). Source: docs/benchmarks.md "A bookie alone".
"""

from __future__ import annotations

import os
import time
import tracemalloc
from pathlib import Path
from typing import Final

from duramen.core.bookie import BookieCore
from duramen.core.segment import Totals
from duramen.ids import NOTHING, EntryId, Epoch, Incarnation, LogId, ledger_of
from duramen.units import KIB, MIB
from duramen.wire.disk.journal_format import JournalRecord, Location, RecordKind, align
from duramen.wire.entry import HEADER_BYTES, encode_entry, read_entry_info
from duramen_bookie.file_system import PosixFileSystem
from duramen_bookie.index import EntryIndex
from duramen_bookie.journal.findings import OnRecord, ReplayedRecord, ReplayResult
from duramen_bookie.journal.replay import open_journal
from duramen_bookie.journal.writer import JournalWriter
from duramen_bookie.offline.bench_machine import (
    BenchError,
    Figure,
    at_least,
    at_most,
    drop_cache,
    measure_read_s,
    summarize,
)

LEDGER: Final = ledger_of(LogId(1), Epoch(1))
COMMIT_BYTES: Final = 8 * MIB
"""Of commits that only fill files."""

_INCARNATION: Final = Incarnation("be" * 16)
_COMMIT_RECORD_COUNT: Final = 256
"""As many small adds as a busy bookie has in one commit; a start copies the last one."""

_ROUND_COUNT: Final = 3
_HOT_ENTRY_COUNT: Final = 100_000
_HOT_LEDGER_COUNT: Final = 20
_IDLE_LEDGER_COUNT: Final = 20_000


def open_writer(
    folder: Path, file_bytes: int, on_record: OnRecord = lambda _: None
) -> tuple[JournalWriter, ReplayResult]:
    """Open a journal of the bench, made if it is not there."""
    return open_journal(
        str(folder),
        PosixFileSystem(),
        _INCARNATION,
        on_record,
        now_unix_us=lambda: time.time_ns() // 1_000,
        file_bytes=file_bytes,
    )


def measure_replay(
    folder: Path, entry_bytes: int, size_bytes: int, file_bytes: int
) -> list[Figure]:
    """Write a journal that nobody closes, and read it: from the disk, then from the page cache.

    Raises:
        BenchError: not everything was found.
        OSError: the disk failed.
    """
    # A file that is mostly empty would be measured for its zeros.
    file_bytes = min(file_bytes, align(2 * size_bytes, MIB))
    writer, _ = open_writer(folder, file_bytes)
    entry_count = max(1, size_bytes // entry_bytes)
    body = _make_entry(entry_bytes)
    per_commit = min(COMMIT_BYTES // entry_bytes, _COMMIT_RECORD_COUNT)
    for first in range(0, entry_count, per_commit):
        numbers = range(first, min(first + per_commit, entry_count))
        writer.commit(
            [JournalRecord(RecordKind.ADD, LEDGER, EntryId(n), body=body) for n in numbers]
        )
    writer.close()
    name, size_mb = folder.name, writer.written_bytes / 1e6
    paths = sorted(folder.glob("*.dj"))
    read, cold, warm, cpu = [], [], [], []
    for _ in range(_ROUND_COUNT):
        read.append(size_mb / measure_read_s(paths, writer.written_bytes, is_cold=True))
        drop_cache(paths)
        cold.append(size_mb / _replay(folder, entry_count, file_bytes))
        cpu_s = time.process_time()
        warm.append(size_mb / _replay(folder, entry_count, file_bytes))
        cpu.append(time.process_time() - cpu_s)
    ratios = [replayed / base for replayed, base in zip(cold, read, strict=True)]
    return [
        summarize(name, "replay_mb_per_s", warm, "MB/s", at_least(500)),
        summarize(name, "replay_cold_mb_per_s", cold, "MB/s"),
        summarize(name, "replay_cold_ratio_to_reading", ratios, ""),
        summarize(name, "replay_cpu_s_per_gb", [cpu_s / size_mb * 1e3 for cpu_s in cpu], "s/GB"),
        summarize(name, "replay_cpu_us_per_entry", [s / entry_count * 1e6 for s in cpu], "us"),
        Figure(name, "entries", entry_count, ""),
        Figure(name, "bytes", writer.written_bytes, "bytes"),
    ]


def _replay(folder: Path, entry_count: int, file_bytes: int) -> float:
    """Seconds from the first file's header to a writer that is ready."""
    core, index = BookieCore(_INCARNATION), EntryIndex()
    journal = set(folder.iterdir())

    def on_record(item: ReplayedRecord) -> None:
        header = item.header
        if header.kind is RecordKind.ADD:
            crc = read_entry_info(item.body).crc
            core.on_recovered_add(
                header.ledger_id, header.entry_id, header.lac, crc, is_recovery=header.is_recovery
            )
            index.put(header.ledger_id, header.entry_id, item.location)

    began_s = time.perf_counter()
    writer, result = open_writer(folder, file_bytes, on_record)
    took_s = time.perf_counter() - began_s
    writer.close()
    for path in set(folder.iterdir()) - journal:
        path.unlink()  # what this start has added would be one file more for the next one
    if result.damages or core.statistics()["entries"] != entry_count:
        raise BenchError(f"replay found {core!r} and {result.damages} of {entry_count} entries")
    return took_s


def _make_entry(size_bytes: int) -> bytes:
    """An entry of that size; replay looks at its header only, so that one serves for all."""
    batch = os.urandom(size_bytes - HEADER_BYTES)
    return encode_entry(
        ledger_id=LEDGER,
        entry_id=EntryId(0),
        before=Totals(),
        batches=[batch],
        record_count=1,
        after=Totals(1, len(batch)),
    )


def measure_memory() -> list[Figure]:
    """What core and index keep, as Python's allocator counts it."""
    hot_bytes = _measure_entries(_HOT_LEDGER_COUNT, _HOT_ENTRY_COUNT // _HOT_LEDGER_COUNT)
    idle_bytes = _measure_entries(_IDLE_LEDGER_COUNT, 1)
    return [
        Figure("memory", "bytes_per_hot_entry", hot_bytes / _HOT_ENTRY_COUNT, "bytes", None,
               at_most(32)),
        Figure("memory", "bytes_per_ledger_of_one_entry", idle_bytes / _IDLE_LEDGER_COUNT, "bytes",
               None, at_most(2048)),
    ]  # fmt: skip


def _measure_entries(ledger_count: int, entry_count: int) -> int:
    tracemalloc.start()
    try:
        before_bytes, _ = tracemalloc.get_traced_memory()
        core, index = BookieCore(_INCARNATION), EntryIndex()
        for entry_id in map(EntryId, range(entry_count)):
            for log in range(1, ledger_count + 1):
                ledger_id = ledger_of(LogId(log), Epoch(1))
                core.on_recovered_add(ledger_id, entry_id, NOTHING, 1 << 31, is_recovery=False)
                index.put(ledger_id, entry_id, Location(1, entry_id * KIB, KIB))
        after_bytes, _ = tracemalloc.get_traced_memory()
        assert core.statistics()["entries"] == index.statistics()["entries"]
        return after_bytes - before_bytes
    finally:
        tracemalloc.stop()
