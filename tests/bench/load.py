"""Load on a URL: many small POSTs, closed loop (N in flight) or open loop (at a rate).

A process of its own (`python -m tests.bench.load SPEC`, the specification as JSON), so that what it
costs is not counted for anybody else; prints one JSON object. Latencies are kept one by one. In
open loop they count from the intended time of sending: a server that stalls is charged for every
request that had to wait meanwhile. Nothing is sent again; any answer but 200 counts as failed.

Called by `workloads` through `run_load`; `post_at_once` also by tests/component/test_counts.py.
Source: docs/benchmarks.md.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Final

import uvloop
from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import PyreqwestError

from duramen.wire.read_answers import MEDIA_TYPE
from duramen.wire.record_batch import encode_batch
from tests.bench.cluster import BenchError
from tests.pauses import observe_for

_ROOT: Final = Path(__file__).parents[2]
_RECORD: Final = "application/octet-stream"
_TIMEOUT: Final = timedelta(seconds=15)
_START_S: Final = 30.0
"""On top of the measured time: interpreter, connections, a first append to each log."""

OPEN_COUNT_MAX: Final = 2_000
"""Open loop: a server so far behind that this much is in flight has failed the workload."""


@dataclasses.dataclass(frozen=True, slots=True)
class LoadSpec:
    """What to send; `rate_per_s` None is closed loop with `in_flight` requests at any time."""

    urls: list[str]
    seconds: float
    in_flight: int = 64
    rate_per_s: float | None = None
    body_bytes: int = 1024
    batch_records: int | None = None
    """So many records of `body_bytes` a request, as one batch; None is one record as it is."""
    count_min: int = 0
    """Closed loop: it goes on after `seconds` until so many were answered, `_START_S` at most."""


@dataclasses.dataclass(frozen=True, slots=True)
class LoadResult:
    """What came of it: `seconds` from the first request to the last answer."""

    seconds: float
    latencies_s: list[float]
    failed: dict[str, int]
    cpu_s: float

    @property
    def rate_per_s(self) -> float:
        """Requests answered with success per second."""
        return len(self.latencies_s) / self.seconds


def run_load(spec: LoadSpec, *, may_fail: bool = False) -> LoadResult:
    """Run the load in a process of its own.

    Args:
        may_fail: answers but 200 are counted, and do not make it void.

    Raises:
        BenchError: it did not end well, or an answer was not 200.
    """
    command = [sys.executable, "-m", "tests.bench.load", json.dumps(dataclasses.asdict(spec))]
    limit_s = spec.seconds + _START_S * (2 if spec.count_min else 1)
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    # A file takes any amount at once: what is measured never waits for whoever reads it.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            ran = subprocess.run(
                command, stdout=output, stderr=errors, timeout=limit_s, check=False,
                env=os.environ | {"PYTHONPATH": path},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise BenchError(f"the load did not end within {limit_s:.0f} s") from None
        output.seek(0)
        errors.seek(0)
        answer, complaint = output.read(), errors.read().decode(errors="replace")
    try:
        result = LoadResult(**json.loads(answer))
    except ValueError:
        raise BenchError(f"the load ended with {ran.returncode}: {complaint[-2000:]}") from None
    if (result.failed and not may_fail) or not result.latencies_s:
        raise BenchError(f"{len(result.latencies_s)} requests answered, failed: {result.failed}")
    return result


async def post_at_once(url: str, body: bytes, count: int) -> None:
    """`count` requests at the same time; returns when each was answered.

    Raises:
        BenchError: an answer was not 200.
    """
    client = _connect()
    try:
        posts = (_post(client, url, body, _RECORD) for _ in range(count))
        statuses = await asyncio.gather(*posts)
    finally:
        await client.close()
    if set(statuses) != {"200"}:
        raise BenchError(f"answers: {Counter(statuses)}")


class _Run:
    """One load under way."""

    def __init__(self, spec: LoadSpec, client: Client) -> None:
        self._spec = spec
        self._client = client
        self._body = os.urandom(spec.body_bytes // 2).hex().encode()
        self._media = _RECORD
        if spec.batch_records is not None:
            self._body = encode_batch([self._body] * spec.batch_records, 1)
            self._media = MEDIA_TYPE
        self._urls = itertools.cycle(spec.urls)
        self._latencies_s: list[float] = []
        self._failed: Counter[str] = Counter()

    async def run(self) -> LoadResult:
        for url in self._spec.urls:
            # The first append to a log makes a sequencer take it over: that is not measured.
            if (status := await _post(self._client, url, self._body, self._media)) != "200":
                raise BenchError(f"{url}: {status}")
        began_s = time.perf_counter()
        before = resource.getrusage(resource.RUSAGE_SELF)
        if self._spec.rate_per_s is None:
            workers = [self._work(began_s) for _ in range(self._spec.in_flight)]
            await asyncio.gather(*workers)
        else:
            await self._keep_rate(self._spec.rate_per_s)
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        seconds = time.perf_counter() - began_s
        return LoadResult(seconds, self._latencies_s, dict(self._failed), cpu_s)

    async def _work(self, began_s: float) -> None:
        ends_s = began_s + self._spec.seconds
        while (now_s := time.perf_counter()) < ends_s or (
            len(self._latencies_s) < self._spec.count_min and now_s < ends_s + _START_S
        ):
            await self._send(now_s)

    async def _keep_rate(self, rate_per_s: float) -> None:
        """Requests go out when they are due, whatever became of earlier ones.

        A thread keeps the time: the event loop's own timers know whole milliseconds only.
        """
        count = int(rate_per_s * self._spec.seconds)
        loop = asyncio.get_running_loop()
        tasks: set[asyncio.Task[None]] = set()
        done = asyncio.Event()

        def start(due_s: float) -> None:
            if len(tasks) >= OPEN_COUNT_MAX:
                self._failed["not sent: too many in flight"] += 1
                return
            task = loop.create_task(self._send(due_s))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        def pace() -> None:
            began_s = time.perf_counter()
            for index in range(count):
                due_s = began_s + index / rate_per_s
                while (left_s := due_s - time.perf_counter()) > 0:
                    observe_for(left_s, what="until the next append is due")
                loop.call_soon_threadsafe(start, due_s)
            loop.call_soon_threadsafe(done.set)

        threading.Thread(target=pace, daemon=True).start()
        await done.wait()
        await asyncio.gather(*tasks)

    async def _send(self, due_s: float) -> None:
        status = await _post(self._client, next(self._urls), self._body, self._media)
        if status == "200":
            self._latencies_s.append(time.perf_counter() - due_s)
        else:
            self._failed[status] += 1


def _connect() -> Client:
    # One connection with many streams, as an SDK would have it.
    return ClientBuilder().http2_prior_knowledge().no_proxy().timeout(_TIMEOUT).build()


async def _post(client: Client, url: str, body: bytes, media: str) -> str:
    """The status, or the name of the error."""
    request = client.post(url).header("content-type", media)
    try:
        response = await request.body_bytes(body).build().send()
        await response.bytes()
    except PyreqwestError as error:
        return type(error).__name__
    return str(response.status)


async def _main(spec: LoadSpec) -> LoadResult:
    client = _connect()
    try:
        return await _Run(spec, client).run()
    finally:
        await client.close()


if __name__ == "__main__":
    outcome = uvloop.run(_main(LoadSpec(**json.loads(sys.argv[1]))))
    sys.stdout.write(json.dumps(dataclasses.asdict(outcome)))
