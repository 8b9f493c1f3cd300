"""Readers at the tail of a log as a process of their own: how much they get, and how soon.

`python -m tests.bench.tailing SPEC`: opens streams of server-sent events over plain sockets, so
that the readers cost little, tells when all are open, and appends. With `rate_per_s` single records
go out when they are due, each with the time in its body: an append takes until its answer, a
delivery until the first reader has the record, both from the due time. Without it batches follow
one another as fast as they are taken.

Called by `read_workloads` through `run_tailing`. Source: docs/benchmarks.md.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import resource
import subprocess
import sys
import time
from datetime import timedelta
from typing import Final
from urllib.parse import urlsplit

import uvloop
from pyreqwest.client import Client, ClientBuilder

from tests.bench.cluster import BenchError
from tests.pauses import let_pass

_TIMEOUT: Final = timedelta(seconds=30)
_START_S: Final = 60.0
_STAMP: Final = re.compile(rb'"body":"(\d{19})')
_LAST: Final = b'"body":"last"'
_READ_BYTES: Final = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class TailingSpec:
    """Who reads what; `batch_bytes` of records of 1 KiB an append, or single ones at a rate."""

    write_url: str
    read_url: str
    readers: int
    seconds: float
    rate_per_s: float | None = None
    batch_bytes: int = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class TailingResult:
    """`appended_bytes` of bodies, of which every reader got all; `seconds` until it had."""

    appended_bytes: int
    seconds: float
    append_s: list[float]
    delivery_s: list[float]
    cpu_s: float


def run_tailing(spec: TailingSpec) -> TailingResult:
    """Run it in a process of its own.

    Raises:
        BenchError: it did not end well.
    """
    command = [sys.executable, "-m", "tests.bench.tailing", json.dumps(dataclasses.asdict(spec))]
    try:
        ran = subprocess.run(
            command, capture_output=True, timeout=4 * spec.seconds + _START_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise BenchError("the readers did not come to the end") from None
    try:
        return TailingResult(**json.loads(ran.stdout))
    except ValueError:
        raise BenchError(f"the readers failed: {ran.stderr.decode()[-2000:]}") from None


class _Tailing:
    """One run."""

    def __init__(self, spec: TailingSpec, client: Client) -> None:
        self._spec = spec
        self._client = client
        self._append_s: list[float] = []
        self._delivery_s: list[float] = []
        self._appended_bytes = 0

    async def run(self) -> TailingResult:
        await self._post(b"first")
        opened = [asyncio.Event() for _ in range(self._spec.readers)]
        readers = [asyncio.create_task(self._read(i, event)) for i, event in enumerate(opened)]
        for event in opened:
            await event.wait()
        before = resource.getrusage(resource.RUSAGE_SELF)
        began_s = time.perf_counter()
        await (self._append_batches() if self._spec.rate_per_s is None else self._keep_rate())
        await self._post(b"last")
        await asyncio.gather(*readers)
        seconds = time.perf_counter() - began_s
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return TailingResult(self._appended_bytes, seconds, self._append_s, self._delivery_s, cpu_s)

    async def _read(self, index: int, opened: asyncio.Event) -> None:
        """One stream to its last record; the first one looks at times."""
        url = urlsplit(self._spec.read_url)
        reader, writer = await asyncio.open_connection(url.hostname, url.port, limit=_READ_BYTES)
        writer.write(
            f"GET {url.path}?from=tail HTTP/1.1\r\nHost: {url.hostname}\r\n"
            "Accept: text/event-stream\r\n\r\n".encode()
        )
        is_timed = index == 0 and self._spec.rate_per_s is not None
        held = await reader.readuntil(b"event: tail")
        opened.set()
        while _LAST not in held:
            data = await reader.read(_READ_BYTES)
            assert data, "a stream ended early"
            held = held[-len(_LAST) :] + data
            if is_timed:
                now_ns = time.monotonic_ns()
                self._delivery_s += [(now_ns - int(at)) / 1e9 for at in _STAMP.findall(data)]
        writer.close()

    async def _append_batches(self) -> None:
        """One after the other: readers are what is measured, and share the machine with them."""
        record = json.dumps({"body": "x" * 1024}).encode()
        count = self._spec.batch_bytes // 1024
        body = b"\n".join([record] * count)
        ends_s = time.perf_counter() + self._spec.seconds
        while time.perf_counter() < ends_s:
            await self._post(body, "application/x-ndjson")
            self._appended_bytes += count * 1024

    async def _keep_rate(self) -> None:
        assert self._spec.rate_per_s is not None
        began_ns = time.monotonic_ns()
        tasks = []
        for index in range(int(self._spec.rate_per_s * self._spec.seconds)):
            due_ns = began_ns + int(index * 1e9 / self._spec.rate_per_s)
            await let_pass((due_ns - time.monotonic_ns()) / 1e9, what="the pace of the load")
            tasks.append(asyncio.create_task(self._append_due(due_ns)))
        await asyncio.gather(*tasks)

    async def _append_due(self, due_ns: int) -> None:
        await self._post(str(due_ns).zfill(19).encode().ljust(1024, b"x"))
        self._append_s.append((time.monotonic_ns() - due_ns) / 1e9)
        self._appended_bytes += 1024

    async def _post(self, body: bytes, media: str = "text/plain") -> None:
        request = self._client.post(self._spec.write_url).header("content-type", media)
        response = await request.body_bytes(body).build().send()
        if response.status != 200:
            raise BenchError(await response.text())


async def _main(spec: TailingSpec) -> TailingResult:
    client = ClientBuilder().http2_prior_knowledge().no_proxy().timeout(_TIMEOUT).build()
    try:
        return await _Tailing(spec, client).run()
    finally:
        await client.close()


if __name__ == "__main__":
    result = uvloop.run(_main(TailingSpec(**json.loads(sys.argv[1]))))
    print(json.dumps(dataclasses.asdict(result)))
