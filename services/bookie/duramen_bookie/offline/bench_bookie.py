"""`duramen bench bookie`: a bookie over HTTP/2 against the same transport without storage.

Both servers run at once (`bench_servers`) and get the same prepared frames in turn, from a client
in this process; then the bare loop writes as many bytes in as many syncs as the bookie did. Reads
fetch in order what was added, against reading the bookie's files with the same chunk size, first
from the disk and then from the page cache. Every answer is checked, outside the measured time.

Not here: the machine's limits (`bench_machine`), flags and output (`bench`). Called by `bench`.
Source: docs/benchmarks.md "A bookie alone".
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import uvloop

from duramen.cluster.layout import HOST, pick_free_port
from duramen.core.segment import Totals
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, EntryId, Epoch, Incarnation, LedgerId, LogId, ledger_of
from duramen.limits import JOURNAL_FILE_BYTES
from duramen.runtime.http_client import PeerClient, PeerError, UnreachableError
from duramen.units import KIB, MIB, SECOND
from duramen.wire.bookie_calls import (
    Add,
    ReadRange,
    ServiceClass,
    pack_adds,
    pack_reads,
    parse_read_answers,
    parse_statuses,
)
from duramen.wire.entry import HEADER_BYTES, encode_entry
from duramen_bookie.offline.bench_machine import (
    CHUNK_BYTES,
    BareLoop,
    BenchError,
    Figure,
    FigureTarget,
    at_least,
    drop_cache,
    measure_read_s,
    summarize,
)

ROUND_COUNT: Final = 5
_ROUND_BYTES_MAX: Final = 128 * MIB
"""Frames that are prepared at a time."""

_CATCH_UP_BYTES_MAX: Final = 128 * MIB
_READS_IN_FLIGHT: Final = 2
"""One on its way while the next is being made, as a reader does that follows a ledger."""

_START_S: Final = 30.0
_STOP_S: Final = 15.0
_SETTLE_S: Final = 120.0
_POLL_S: Final = 0.02
_CALL_US: Final = 30 * SECOND
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


@dataclasses.dataclass(frozen=True, slots=True)
class BookieBenchOptions:
    """What to measure: `seconds` of adding in all."""

    seconds: float


class AddWorkload(NamedTuple):
    """Adds of one shape, each to a ledger of its own."""

    name: str
    ledger_id: LedgerId
    entries_per_frame: int
    entry_bytes: int
    in_flight: int
    targets: dict[str, FigureTarget]


class Posted(NamedTuple):
    """What came of a series of posts; `latencies_s` and `answers` in the order of the answers."""

    seconds: float
    cpu_s: float
    latencies_s: list[float]
    answers: list[bytes]


class Adds(NamedTuple):
    """One round of a workload: the same frames on both servers, and what the bookie wrote, bare."""

    entry_count: int
    body_bytes: int
    transport: Posted
    bookie: Posted
    sync_count: int
    bare_s: float


_LOG: Final = LogId(1)
# A frame of 256 KiB is one entry with its frame's head and row (64 bytes) around it.
_LARGE: Final = AddWorkload(
    "frames_256k", ledger_of(_LOG, Epoch(1)), 1, 256 * KIB - 64, 32,
    {"ratio_to_transport": at_least(0.6)},
)  # fmt: skip
WORKLOADS: Final = (
    _LARGE,
    AddWorkload(
        "adds_1k_frames_of_16", ledger_of(_LOG, Epoch(2)), 16, 1 * KIB, 64,
        {"entries_per_s": at_least(40_000), "entries_per_sync": at_least(16)},
    ),
    AddWorkload("adds_1k_64_entries", ledger_of(_LOG, Epoch(3)), 16, 1 * KIB, 4, {}),
    AddWorkload("adds_1k_lone", ledger_of(_LOG, Epoch(4)), 1, 1 * KIB, 64, {}),
)  # fmt: skip


def measure_bookie(folder: Path, options: BookieBenchOptions) -> tuple[float, list[Figure]]:
    """Measure in `folder`; what is made there stays.

    Returns:
        Ratio of the bookie to the bare loop with frames of 256 KiB, and every figure.

    Raises:
        BenchError: a server did not come up, or an answer was not what it had to be.
        OSError: the disk failed.
    """
    figures = uvloop.run(_measure(folder, options))
    ratio = next(figure.value for figure in figures if figure.name == "ratio_to_bare_loop")
    return ratio, figures


async def _measure(folder: Path, options: BookieBenchOptions) -> list[Figure]:
    client = PeerClient()
    bare = BareLoop(folder / "bare", JOURNAL_FILE_BYTES)
    slice_s = options.seconds / (len(WORKLOADS) * ROUND_COUNT)
    figures: list[Figure] = []
    try:
        async with (
            _serving("transport", folder, client) as transport,
            _serving("bookie", folder, client) as bookie,
        ):
            bench = _Bench(client, transport, bookie, bare, await bookie.read_incarnation())
            for workload in WORKLOADS:
                figures += await bench.measure_adds(workload, slice_s)
            await bookie.settle()
            figures += await bench.measure_catch_up("settled", _LARGE, "*.de")
    except (PeerError, httpx.HTTPError) as error:
        raise BenchError(f"a server failed: {error}") from error
    finally:
        bare.close()
        await client.close()
    return figures


# --- Rounds --------------------------------------------------------------------------------------


class _Bench:
    """The sides, and how far each ledger is written."""

    def __init__(
        self,
        client: PeerClient,
        transport: _Server,
        bookie: _Server,
        bare: BareLoop,
        incarnation: Incarnation,
    ) -> None:
        self._client = client
        self._transport = transport
        self._bookie = bookie
        self._bare = bare
        self._incarnation = incarnation
        self._entry_counts: dict[LedgerId, int] = {}

    async def measure_adds(self, workload: AddWorkload, slice_s: float) -> list[Figure]:
        """Rounds of about `slice_s` with the bookie; the other sides take what they take."""
        # The first one warms everything up and tells how many frames fit a round.
        frame_count = 2 * workload.in_flight
        trial = await self._add(workload, frame_count, is_bookie_first=True)
        frame_bytes = trial.body_bytes / frame_count
        wanted = math.ceil(slice_s / trial.bookie.seconds * frame_count)
        most = max(1, int(_ROUND_BYTES_MAX / frame_bytes))
        rounds = [
            await self._add(workload, min(wanted, most), is_bookie_first=number % 2 == 0)
            for number in range(ROUND_COUNT)
        ]
        return list(_summarize_adds(workload, rounds))

    async def _add(self, workload: AddWorkload, frame_count: int, *, is_bookie_first: bool) -> Adds:
        frames = self._make_frames(workload, frame_count)
        in_flight = workload.in_flight
        if is_bookie_first:
            added = await self._add_to_bookie(frames, in_flight)
            transport = await self._post(self._transport, "/b/add", frames, in_flight)
        else:
            transport = await self._post(self._transport, "/b/add", frames, in_flight)
            added = await self._add_to_bookie(frames, in_flight)
        bookie, sync_count, written_bytes = added
        for answer in bookie.answers:
            statuses = parse_statuses(answer)
            if statuses != [BookieStatus.OK] * workload.entries_per_frame:
                raise BenchError(f"{workload.name}: the bookie answered {statuses}")
        entry_count = frame_count * workload.entries_per_frame
        body_bytes = entry_count * workload.entry_bytes
        bare_s = self._write_bare(written_bytes, sync_count)
        return Adds(entry_count, body_bytes, transport, bookie, sync_count, bare_s)

    async def _add_to_bookie(
        self, frames: Sequence[bytes], in_flight: int
    ) -> tuple[Posted, int, int]:
        """Also gives how many syncs the bookie made and how many bytes it wrote."""
        before = await self._bookie.read_journal()
        posted = await self._post(self._bookie, "/b/add", frames, in_flight)
        after = await self._bookie.read_journal()
        sync_count = after["commit_count"] - before["commit_count"]
        return posted, sync_count, after["written_bytes"] - before["written_bytes"]

    def _make_frames(self, workload: AddWorkload, frame_count: int) -> list[bytes]:
        first = self._entry_counts.get(workload.ledger_id, 0)
        step = workload.entries_per_frame
        last = first + frame_count * step
        self._entry_counts[workload.ledger_id] = last
        batch = os.urandom(workload.entry_bytes - HEADER_BYTES)
        return [
            pack_adds(
                self._incarnation,
                [_make_add(workload.ledger_id, n, batch) for n in range(at, at + step)],
            )
            for at in range(first, last, step)
        ]

    def _write_bare(self, size_bytes: int, sync_count: int) -> float:
        """Seconds for as many bytes in as many syncs."""
        commit = _split(os.urandom(CHUNK_BYTES), size_bytes // sync_count)
        began_s = time.perf_counter()
        for _ in range(sync_count):
            self._bare.commit(commit)
        return time.perf_counter() - began_s

    async def measure_catch_up(self, name: str, workload: AddWorkload, files: str) -> list[Figure]:
        """Read a ledger from its beginning, against reading the files that hold it.

        Args:
            name: of these files, for people.
            workload: whose ledger; it was added already.
            files: pattern of the files' names; read in order they hold the ledger first.
        """
        entries_per_read = CHUNK_BYTES // workload.entry_bytes
        entry_count = min(
            self._entry_counts[workload.ledger_id], _CATCH_UP_BYTES_MAX // workload.entry_bytes
        )
        requests = [
            pack_reads(
                self._incarnation,
                [
                    ReadRange(
                        workload.ledger_id, EntryId(first),
                        EntryId(min(first + entries_per_read, entry_count) - 1),
                        CHUNK_BYTES, service=ServiceClass.CATCH_UP_READ,
                    )
                ],
            )
            for first in range(0, entry_count, entries_per_read)
        ]  # fmt: skip
        paths = self._bookie.list_files(files)
        size_bytes = entry_count * workload.entry_bytes
        figures: list[Figure] = []
        for is_cold in (True, False):
            bookie, file, transport = [], [], []
            for _ in range(ROUND_COUNT):
                file.append(size_bytes / 1e6 / measure_read_s(paths, size_bytes, is_cold=is_cold))
                if is_cold:
                    drop_cache(paths)
                read = await self._post(self._bookie, "/b/read", requests, _READS_IN_FLIGHT)
                _check_reads(read.answers, size_bytes)
                bookie.append(size_bytes / 1e6 / read.seconds)
                idle = await self._post(self._transport, "/b/read", requests, _READS_IN_FLIGHT)
                transport.append(size_bytes / 1e6 / idle.seconds)
            figures += _summarize_reads(
                f"catch_up_{name}_{'cold' if is_cold else 'warm'}", bookie, file, transport
            )
        return figures

    async def _post(
        self, server: _Server, path: str, bodies: Sequence[bytes], in_flight: int
    ) -> Posted:
        """Post all, so many at a time."""
        left = iter(bodies)
        latencies_s: list[float] = []
        answers: list[bytes] = []

        async def work() -> None:
            for body in left:
                began_s = time.perf_counter()
                answers.append(await self._client.call(server.url + path, body, _CALL_US))
                latencies_s.append(time.perf_counter() - began_s)

        cpu_s = server.read_cpu_s()
        began_s = time.perf_counter()
        await asyncio.gather(*[work() for _ in range(in_flight)])
        seconds = time.perf_counter() - began_s
        return Posted(seconds, server.read_cpu_s() - cpu_s, latencies_s, answers)


def _make_add(ledger_id: LedgerId, number: int, batch: bytes) -> Add:
    entry = encode_entry(
        ledger_id=ledger_id,
        entry_id=EntryId(number),
        before=Totals(number, number * len(batch)),
        batches=[batch],
        record_count=1,
        after=Totals(number + 1, (number + 1) * len(batch)),
    )
    return Add(ledger_id, EntryId(number), NOTHING, entry)


def _split(chunk: bytes, size_bytes: int) -> list[bytes]:
    whole_count, rest_bytes = divmod(size_bytes, len(chunk))
    return [chunk] * whole_count + [chunk[:rest_bytes]]


def _check_reads(answers: Sequence[bytes], size_bytes: int) -> None:
    found_bytes = 0
    for answer in answers:
        for part in parse_read_answers(answer):
            if part.status is not BookieStatus.OK:
                raise BenchError(f"a read was answered {part.status}")
            found_bytes += sum(len(entry) for _, entry in part.entries)
    if found_bytes != size_bytes:
        raise BenchError(f"reads gave {found_bytes} bytes of {size_bytes}")


# --- Figures -------------------------------------------------------------------------------------


def _summarize_adds(workload: AddWorkload, rounds: Sequence[Adds]) -> Iterator[Figure]:
    samples: dict[str, tuple[str, Callable[[Adds], float]]] = {
        "ratio_to_transport": ("", lambda r: r.transport.seconds / r.bookie.seconds),
        "ratio_to_bare_loop": ("", lambda r: r.bare_s / r.bookie.seconds),
        # Both at once can be no faster than the slower of the two.
        "ratio_to_slower_of_both": (
            "",
            lambda r: max(r.transport.seconds, r.bare_s) / r.bookie.seconds,
        ),
        "entries_per_s": ("/s", lambda r: r.entry_count / r.bookie.seconds),
        "transport_entries_per_s": ("/s", lambda r: r.entry_count / r.transport.seconds),
        "mb_per_s": ("MB/s", lambda r: r.body_bytes / 1e6 / r.bookie.seconds),
        "transport_mb_per_s": ("MB/s", lambda r: r.body_bytes / 1e6 / r.transport.seconds),
        "bare_mb_per_s": ("MB/s", lambda r: r.body_bytes / 1e6 / r.bare_s),
        "entries_per_sync": ("", lambda r: r.entry_count / r.sync_count),
        "bytes_per_sync": ("bytes", lambda r: r.body_bytes / r.sync_count),
        "frame_p50_ms": ("ms", lambda r: statistics.median(r.bookie.latencies_s) * 1e3),
    }
    for name, (unit, find) in samples.items():
        values = [find(made) for made in rounds]
        yield summarize(workload.name, name, values, unit, workload.targets.get(name))
    # A round is short against a tick of the CPU's clock: these are of all rounds together.
    entry_count = sum(made.entry_count for made in rounds)
    body_gb = sum(made.body_bytes for made in rounds) / 1e9
    bookie_cpu_s = sum(made.bookie.cpu_s for made in rounds)
    transport_cpu_s = sum(made.transport.cpu_s for made in rounds)
    yield Figure(workload.name, "bookie_cpu_s_per_gb", bookie_cpu_s / body_gb, "s/GB")
    yield Figure(workload.name, "transport_cpu_s_per_gb", transport_cpu_s / body_gb, "s/GB")
    yield Figure(workload.name, "bookie_cpu_us_per_entry", bookie_cpu_s / entry_count * 1e6, "us")


def _summarize_reads(
    workload: str, bookie: Sequence[float], file: Sequence[float], transport: Sequence[float]
) -> list[Figure]:
    to_file = [ours / base for ours, base in zip(bookie, file, strict=True)]
    to_transport = [ours / base for ours, base in zip(bookie, transport, strict=True)]
    target = at_least(0.7) if workload.endswith("_cold") else None
    return [
        summarize(workload, "ratio_to_reading_the_file", to_file, "", target),
        summarize(workload, "ratio_to_transport", to_transport, ""),
        summarize(workload, "mb_per_s", bookie, "MB/s"),
        summarize(workload, "file_mb_per_s", file, "MB/s"),
        summarize(workload, "transport_mb_per_s", transport, "MB/s"),
    ]


# --- Servers -------------------------------------------------------------------------------------


class _Server:
    """A server process and what it tells about itself."""

    def __init__(self, url: str, admin_url: str, data_dir: Path, pid: int) -> None:
        self.url = url
        self._admin_url = admin_url
        self._data_dir = data_dir
        self._pid = pid

    async def read_incarnation(self) -> Incarnation:
        """The bookie's."""
        return Incarnation((await self._get("/v1/state"))["incarnation"])

    async def read_journal(self) -> dict[str, Any]:
        """What the bookie's journal has done so far."""
        return await self._get("/v1/journal")

    async def settle(self) -> None:
        """Have everything settled that the bookie's journal holds."""
        async with httpx.AsyncClient() as client:
            answer = await client.post(self._admin_url + "/v1/upkeep/settling")
            answer.raise_for_status()
        async with asyncio.timeout(_SETTLE_S):
            while await self._count_hot():  # noqa: ASYNC110 - another process brings it about
                await asyncio.sleep(_POLL_S)

    async def _count_hot(self) -> int:
        return int((await self._get("/v1/statistics"))["storage"]["index"]["entries"])

    def read_cpu_s(self) -> float:
        """CPU that the process has used; counted in ticks."""
        stat = Path(f"/proc/{self._pid}/stat").read_text(encoding="utf-8")
        # The name, in parentheses, may hold anything; the fields behind it begin with the third.
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / _TICKS_PER_S

    def list_files(self, pattern: str) -> list[Path]:
        """Files of the server's folder, in the order in which they were begun."""
        return sorted(self._data_dir.rglob(pattern))

    async def _get(self, path: str) -> dict[str, Any]:
        async with httpx.AsyncClient() as client:
            answer = await client.get(self._admin_url + path)
            document: dict[str, Any] = answer.raise_for_status().json()
            return document


@asynccontextmanager
async def _serving(kind: str, folder: Path, client: PeerClient) -> AsyncIterator[_Server]:
    """A server of `bench_servers`, up to its clean end."""
    data_port, admin_port = pick_free_port(), pick_free_port()
    url, data_dir, log = f"http://{HOST}:{data_port}", folder / kind, folder / f"{kind}.log"
    command = [
        sys.executable, "-m", "duramen_bookie.offline.bench_servers", kind,
        "--data-port", str(data_port), "--admin-port", str(admin_port),
        "--data-dir", str(data_dir), "--answer-bytes", str(CHUNK_BYTES),
    ]  # fmt: skip
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=subprocess.PIPE, stdout=output, stderr=output
        )
    assert process.stdin is not None
    try:
        await _wait_serving(url, process, client, log)
        yield _Server(url, f"http://{HOST}:{admin_port}", data_dir, process.pid)
    finally:
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), _STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()


async def _wait_serving(
    url: str, process: asyncio.subprocess.Process, client: PeerClient, log: Path
) -> None:
    deadline_s = time.monotonic() + _START_S
    while True:
        try:
            await client.call(f"{url}/b/add", b"", SECOND)
            return
        except UnreachableError:
            if process.returncode is not None or time.monotonic() > deadline_s:
                text = log.read_text(encoding="utf-8", errors="replace")
                raise BenchError(f"a server did not come up: {text[-2000:]}") from None
            await asyncio.sleep(_POLL_S)
        except PeerError:
            return  # it answered, and of course refused an empty body
