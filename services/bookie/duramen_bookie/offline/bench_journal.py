"""`duramen bench journal`: the journal against a bare pwritev + fdatasync loop, replay, memory.

Three sides write the same bytes in turn, in as many syncs: the bare loop, the `JournalWriter`
alone, and the `Journal` with its thread, queue and event loop, where so many producers wait for one
record each. Files have the product's own size, and all sides write into blocks that were written
before: the journal's are recycled, and what that costs beside the commits is in its figures.

Not here: replay and memory themselves (`bench_replay`), the machine's limits (`bench_machine`),
flags and output (`bench`). Called by `bench`. Source: docs/benchmarks.md "A bookie alone".
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from duramen.ids import EntryId
from duramen.limits import JOURNAL_FILE_BYTES
from duramen.units import KIB
from duramen.wire.disk.journal_format import (
    BLOCK_BYTES,
    JournalRecord,
    Location,
    RecordKind,
    encode_commit,
    record_bytes,
)
from duramen_bookie.journal.group_commit import Journal
from duramen_bookie.journal.writer import JournalPoisoned, JournalWriter
from duramen_bookie.offline.bench_machine import (
    BareLoop,
    BenchError,
    Figure,
    at_least,
    summarize,
)
from duramen_bookie.offline.bench_replay import (
    COMMIT_BYTES,
    LEDGER,
    measure_memory,
    measure_replay,
    open_writer,
)

ROUND_COUNT: Final = 5
_QUIET_S: Final = 1.0
_POLL_S: Final = 0.01
_SMALL_PART: Final = 32
"""The journal of small entries is that many times smaller: its cost is per entry."""


@dataclasses.dataclass(frozen=True, slots=True)
class JournalBenchOptions:
    """What to measure: `seconds` of writing in all, a journal of `replay_bytes` to read."""

    seconds: float
    replay_bytes: int
    file_bytes: int = JOURNAL_FILE_BYTES


class JournalWorkload(NamedTuple):
    """So many producers, each with one record of that size in flight: together a commit."""

    name: str
    body_bytes: int
    producer_count: int
    target: float | None = None


WORKLOADS: Final = (
    JournalWorkload("64k_x16", 64 * KIB, 16, target=0.8),
    JournalWorkload("1k_x64", 1 * KIB, 64),
    # What a lone add pays for the way to the journal's thread and back.
    JournalWorkload("4k_x1", 4 * KIB, 1),
)


@dataclasses.dataclass(slots=True)
class Load:
    """A workload under way; the journal takes what waits, and the others must do the same."""

    workload: JournalWorkload
    record: JournalRecord
    records_per_commit: int


class Slice(NamedTuple):
    """What one side did in its turn; bytes are those of the bodies."""

    seconds: float
    cpu_s: float
    record_count: int
    sync_count: int
    body_bytes: int

    @property
    def mb_per_s(self) -> float:
        """Rate."""
        return self.body_bytes / 1e6 / self.seconds


class BenchWriter(Protocol):
    """One of those that write in turn."""

    name: str

    async def write(self, load: Load, seconds: float) -> Slice:
        """Commit records for so long, once at least."""

    async def close(self) -> None:
        """Give files back."""


def measure_journal(folder: Path, options: JournalBenchOptions) -> tuple[float, list[Figure]]:
    """Measure in `folder`; what is made there stays.

    Returns:
        Ratio of the journal to the bare loop with the largest commits, and every figure.

    Raises:
        BenchError: the journal failed.
        OSError: the disk did.
    """
    figures = asyncio.run(_measure_writing(folder, options))
    ratio = next(figure.value for figure in figures if figure.name == "ratio_to_bare_loop")
    for name, entry_bytes, part in (("replay_64k", 64 * KIB, 1), ("replay_1k", KIB, _SMALL_PART)):
        size_bytes = options.replay_bytes // part
        figures += measure_replay(folder / name, entry_bytes, size_bytes, options.file_bytes)
    figures += measure_memory()
    return ratio, figures


# --- Writing -------------------------------------------------------------------------------------


async def _measure_writing(folder: Path, options: JournalBenchOptions) -> list[Figure]:
    sides: list[BenchWriter] = [
        _JournalSide(folder / "journal", options.file_bytes),
        _WriterSide(folder / "writer", options.file_bytes),
        _BareSide(folder / "bare", options.file_bytes),
    ]
    slice_s = options.seconds / (len(WORKLOADS) * ROUND_COUNT * len(sides))
    figures: list[Figure] = []
    try:
        for workload in WORKLOADS:
            body = os.urandom(workload.body_bytes)
            record = JournalRecord(RecordKind.ADD, LEDGER, EntryId(0), body=body)
            load = Load(workload, record, workload.producer_count)
            turns: dict[str, list[Slice]] = {side.name: [] for side in sides}
            for number in range(ROUND_COUNT):
                # The journal leads: how many records a commit of it holds is known then.
                for side in sides if number % 2 else [sides[0], *sides[:0:-1]]:
                    turns[side.name].append(await side.write(load, slice_s))
            figures += _summarize_writing(workload, turns)
    finally:
        for side in sides:
            await side.close()
    return figures


def _summarize_writing(
    workload: JournalWorkload, turns: dict[str, list[Slice]]
) -> Iterator[Figure]:
    bare, journal = turns["bare"], turns["journal"]
    target = None if workload.target is None else at_least(workload.target)

    def compare(name: str) -> list[float]:
        pairs = zip(turns[name], bare, strict=True)
        return [side.mb_per_s / base.mb_per_s for side, base in pairs]

    yield summarize(workload.name, "ratio_to_bare_loop", compare("journal"), "", target)
    yield summarize(workload.name, "writer_ratio_to_bare_loop", compare("writer"), "")
    for name, side in turns.items():
        rates = [turn.mb_per_s for turn in side]
        yield summarize(workload.name, f"{name}_mb_per_s", rates, "MB/s")
    for name, side in turns.items():
        cpu = [turn.cpu_s / turn.body_bytes * 1e9 for turn in side]
        yield summarize(workload.name, f"{name}_cpu_s_per_gb", cpu, "s/GB")
    sync_us = [turn.seconds / turn.sync_count * 1e6 for turn in bare]
    yield summarize(workload.name, "bare_commit_us", sync_us, "us")
    commit_us = [turn.seconds / turn.sync_count * 1e6 for turn in journal]
    yield summarize(workload.name, "journal_commit_us", commit_us, "us")
    sync_count = sum(turn.sync_count for turn in journal)
    yield Figure(workload.name, "journal_syncs", sync_count, "")
    record_count = sum(turn.record_count for turn in journal)
    yield Figure(workload.name, "journal_records_per_sync", record_count / sync_count, "")
    body_bytes = sum(turn.body_bytes for turn in journal)
    yield Figure(workload.name, "journal_bytes", body_bytes, "bytes")


class _Watch:
    """Clock and CPU clock of one turn."""

    def __init__(self, seconds: float) -> None:
        self._cpu_s = time.process_time()
        self._began_s = time.perf_counter()
        self._end_s = self._began_s + seconds

    def is_over(self) -> bool:
        return time.perf_counter() >= self._end_s

    def stop(self, load: Load, record_count: int, sync_count: int) -> Slice:
        body_bytes = record_count * load.workload.body_bytes
        took_s = time.perf_counter() - self._began_s
        cpu_s = time.process_time() - self._cpu_s
        return Slice(took_s, cpu_s, record_count, sync_count, body_bytes)


def _repeat(load: Load, seconds: float, commit: Callable[[], object]) -> Slice:
    watch = _Watch(seconds)
    commit_count = 0
    while commit_count == 0 or not watch.is_over():
        commit()
        commit_count += 1
    return watch.stop(load, commit_count * load.records_per_commit, commit_count)


class _BareSide:
    """The same bytes, and nothing done to them: encoded once."""

    name = "bare"

    def __init__(self, path: Path, file_bytes: int) -> None:
        self._loop = BareLoop(path, file_bytes)
        self._loop.write_lap()

    async def write(self, load: Load, seconds: float) -> Slice:
        records = [load.record] * load.records_per_commit
        encoded = encode_commit(
            records, file_id=1, offset=BLOCK_BYTES, commit=1, previous_crc=0, seed=0
        )
        return _repeat(load, seconds, lambda: self._loop.commit(encoded.buffers))

    async def close(self) -> None:
        self._loop.close()


class _WriterSide:
    """The writer, called where one stands."""

    name = "writer"

    def __init__(self, folder: Path, file_bytes: int) -> None:
        self._writer = _open_worn_writer(folder, file_bytes)

    async def write(self, load: Load, seconds: float) -> Slice:
        records = [load.record] * load.records_per_commit
        turn = _repeat(load, seconds, lambda: self._writer.commit(records))
        # What the journal has done on its second thread; here it is not to be counted.
        self._writer.recycle(self._writer.sealed_file_ids)
        self._writer.prepare_next()
        return turn

    async def close(self) -> None:
        self._writer.close()


class _JournalSide:
    """The whole journal: queue, thread, completions on the event loop."""

    name = "journal"

    def __init__(self, folder: Path, file_bytes: int) -> None:
        # A mark is for a journal that nobody writes to; here that is when it is another's turn.
        self._journal = Journal(
            _open_worn_writer(folder, file_bytes),
            on_poisoned=self._on_poisoned,
            idle_before_mark_s=threading.TIMEOUT_MAX,
        )
        self._is_started = False
        self._file_id = 0
        self._recycling_count = 0

    async def write(self, load: Load, seconds: float) -> Slice:
        if not self._is_started:
            self._journal.start()
            self._is_started = True
        commits_before = self._journal.statistics().commit_count
        watch = _Watch(seconds)
        self._done = asyncio.get_running_loop().create_future()
        waiting_count = record_count = 0
        records = [load.record]

        def send() -> None:
            nonlocal waiting_count
            if not self._journal.append_nowait(records, on_done):
                raise BenchError("the journal refused a record")
            waiting_count += 1

        def on_done(locations: list[Location]) -> None:
            nonlocal waiting_count, record_count
            waiting_count -= 1
            record_count += 1
            if self._done.done():
                return  # given up, and the journal is being closed
            if locations[0].file_id != self._file_id:
                self._file_id = locations[0].file_id
                self._recycle()
            if not watch.is_over():
                send()
            elif waiting_count == 0:
                self._done.set_result(None)

        for _ in range(load.workload.producer_count):
            send()
        await self._done
        commit_count = self._journal.statistics().commit_count - commits_before
        load.records_per_commit = max(1, round(record_count / commit_count))
        turn = watch.stop(load, record_count, commit_count)
        await self._wait_quiet()
        return turn

    def _recycle(self) -> None:
        """Give up what is sealed, as settling does once the entry log has it."""
        self._recycling_count += 1
        self._journal.recycle(self._journal.sealed_file_ids(), self._on_recycled)

    def _on_recycled(self) -> None:
        self._recycling_count -= 1

    async def _wait_quiet(self) -> None:
        """Until the second thread has made the next file: the others' turns are not disturbed."""
        deadline_s = time.monotonic() + _QUIET_S
        while time.monotonic() < deadline_s:
            journal = self._journal.statistics()
            if not self._recycling_count and (journal.is_next_ready or not journal.spare_count):
                return
            await asyncio.sleep(_POLL_S)

    async def close(self) -> None:
        if self._is_started:
            await self._journal.close()

    def _on_poisoned(self, error: JournalPoisoned) -> None:
        if not self._done.done():
            self._done.set_exception(BenchError(f"the journal failed: {error}"))


def _open_worn_writer(folder: Path, file_bytes: int) -> JournalWriter:
    """A writer as it is after hours of work: it stands in a recycled file, every block written."""
    writer, _ = open_writer(folder, file_bytes)
    body = os.urandom(min(COMMIT_BYTES, file_bytes // 4))
    records = [JournalRecord(RecordKind.ADD, LEDGER, EntryId(0), body=body)]
    for _ in range(2):
        while writer.room_bytes >= record_bytes(len(body)):
            writer.commit(records)
        writer.roll()
        writer.recycle(writer.sealed_file_ids)
    assert writer.supply.recycled_count == 1, "the second file was made of the first one"
    writer.prepare_next()
    return writer
