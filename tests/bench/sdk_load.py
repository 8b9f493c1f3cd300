"""Load of the SDK on a url: what one Python process can append, and what that costs it.

A process of its own (`python -m tests.bench.sdk_load SPEC`): what it costs is not counted for
anybody else; prints one JSON object. With `--stub` it starts a server that only answers in another
process and runs every mode against that: what the client alone can do. Everything is acknowledged
before the clock stops. Called by `workloads`; by hand for profiles.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import resource
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import orjson
import uvloop

from duramen.client import Client
from duramen.client.sdk.log import Log
from duramen.runtime.http_server import PublicServer
from tests.bench.report import find_ms

_LOG_COUNT: Final = 100
_BULK_COUNT: Final = 20_000
_SINGLES_IN_FLIGHT: Final = 64


@dataclasses.dataclass(frozen=True, slots=True)
class SdkSpec:
    """What to append, and for how long."""

    url: str
    namespace: str
    mode: str
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class SdkResult:
    """What came of it; `cpu_s` is the client's, in user and system mode."""

    mode: str
    seconds: float
    record_count: int
    size_bytes: int
    cpu_s: float
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    sent_again: int = 0

    @property
    def mb_per_s(self) -> float:
        """Bodies acknowledged per second."""
        return self.size_bytes / self.seconds / 1e6

    @property
    def records_per_s(self) -> float:
        """Records acknowledged per second."""
        return self.record_count / self.seconds

    @property
    def cpu_us_per_record(self) -> float:
        """CPU time of the client."""
        return self.cpu_s / self.record_count * 1e6


def run_sdk_load(spec: SdkSpec) -> SdkResult:
    """Run one mode in a process of its own."""
    command = [sys.executable, "-m", "tests.bench.sdk_load", json.dumps(dataclasses.asdict(spec))]
    ran = subprocess.run(
        command, stdout=subprocess.PIPE, timeout=spec.seconds + 60, check=True, text=True
    )
    return SdkResult(**json.loads(ran.stdout))


async def produce(log: Log, seconds: float) -> tuple[int, int, dict[str, Any]]:
    """1 KiB records, one `send` each."""
    body = bytes(1024)
    done = 0
    end = time.perf_counter() + seconds
    async with log.producer() as producer:
        while time.perf_counter() < end:
            for _ in range(100):
                _ = await producer.send(body)
            done += 100
        await producer.flush()
        statistics = producer.statistics()
    return done, done * len(body), {"sent_again": statistics["sent_again"]}


async def produce_bulk(log: Log, seconds: float) -> tuple[int, int, dict[str, Any]]:
    """100-byte records, thousands a call."""
    bodies = [b"%0100d" % number for number in range(_BULK_COUNT)]
    done = 0
    end = time.perf_counter() + seconds
    async with log.producer() as producer:
        while time.perf_counter() < end:
            _ = await producer.append_many(bodies)
            done += len(bodies)
        await producer.flush()
        statistics = producer.statistics()
    return done, done * 100, {"sent_again": statistics["sent_again"]}


async def append_lone(log: Log, seconds: float) -> tuple[int, int, dict[str, Any]]:
    """1 KiB records, one append in flight."""
    body = bytes(1024)
    latencies_s = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        began_s = time.perf_counter()
        await log.append(body)
        latencies_s.append(time.perf_counter() - began_s)
    found = {f"p{percent}_ms": find_ms(latencies_s, percent) for percent in (50, 99)}
    return len(latencies_s), len(latencies_s) * len(body), found


async def append_singles(log: Log, seconds: float) -> tuple[int, int, dict[str, Any]]:
    """1 KiB records, 64 appends in flight."""
    body = bytes(1024)
    latencies_s: list[float] = []
    end = time.perf_counter() + seconds

    async def work() -> None:
        while (began_s := time.perf_counter()) < end:
            await log.append(body)
            latencies_s.append(time.perf_counter() - began_s)

    await asyncio.gather(*(work() for _ in range(_SINGLES_IN_FLIGHT)))
    found = {f"p{percent}_ms": find_ms(latencies_s, percent) for percent in (50, 99)}
    return len(latencies_s), len(latencies_s) * len(body), found


SDK_MODES: Final[dict[str, Callable[[Log, float], Awaitable[tuple[int, int, dict[str, Any]]]]]] = {
    "producer": produce,
    "bulk": produce_bulk,
    "lone": append_lone,
    "singles": append_singles,
    "logs": produce,
}


async def run_mode(spec: SdkSpec) -> SdkResult:
    """Run one mode and measure it."""
    log_count = _LOG_COUNT if spec.mode == "logs" else 1
    async with Client(spec.url) as client:
        logs = [client[spec.namespace][f"sdk-{spec.mode}-{i}"] for i in range(log_count)]
        await asyncio.gather(*(log.ensure() for log in logs))
        await asyncio.gather(*(log.append(b"first") for log in logs))
        began, cpu = time.perf_counter(), _read_cpu_s()
        found = await asyncio.gather(*(SDK_MODES[spec.mode](log, spec.seconds) for log in logs))
        seconds, cpu = time.perf_counter() - began, _read_cpu_s() - cpu
    return SdkResult(
        spec.mode,
        seconds,
        sum(done for done, _, _ in found),
        sum(size for _, size, _ in found),
        cpu,
        **found[0][2],
    )


def _read_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


# --- a server that only answers ------------------------------------------------------------------


class Stub:
    """Acknowledges every append at once, and stores nothing."""

    def __init__(self) -> None:
        self._tails: dict[str, int] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        head, has_more = b"", True
        while has_more:
            message = await receive()
            head = head or message.get("body", b"")[:16]
            has_more = message.get("more_body", False)
        answer: dict[str, Any] = {"config": {}}
        if scope["method"] == "POST":
            path = scope["path"]
            start = self._tails.get(path, 0)
            end = self._tails[path] = start + int.from_bytes(head[12:16], "little")
            answer = {"start": {"seq_num": start, "dlsn": "e1n0s0"}, "end": {"seq_num": end}}
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": orjson.dumps(answer)})


async def serve_stub() -> None:
    """Serve until standard input ends; says the port on standard output."""
    server = PublicServer("127.0.0.1", 0, Stub())
    await server.start()
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    await server.stop()


def run_against_stub(seconds: float, modes: list[str]) -> list[SdkResult]:
    """Every mode against a server that only answers."""
    command = [sys.executable, "-m", "tests.bench.sdk_load", "--serve"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as stub:
        assert stub.stdin is not None
        assert stub.stdout is not None
        url = f"http://127.0.0.1:{int(stub.stdout.readline())}"
        found = [run_sdk_load(SdkSpec(url, "stub", mode, seconds)) for mode in modes]
        stub.stdin.close()
    return found


def format_result(result: SdkResult) -> str:
    """One line for a person."""
    return (
        f"{result.mode:9} {result.mb_per_s:7.1f} MB/s {result.records_per_s:10,.0f} records/s "
        f"{result.cpu_us_per_record:7.2f} us CPU a record  p50 {result.p50_ms:.2f} ms  "
        f"sent again {result.sent_again}\n"
    )


def main() -> None:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.sdk_load")
    parser.add_argument("spec", nargs="?", help="an SdkSpec as JSON")
    parser.add_argument("--serve", action="store_true", help="be the server that only answers")
    parser.add_argument("--stub", action="store_true", help="every mode against such a server")
    parser.add_argument("--url", help="every mode against the proxies there")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--modes", nargs="*", default=list(SDK_MODES))
    options = parser.parse_args()
    if options.serve:
        uvloop.run(serve_stub())
    elif options.spec is not None:
        result = uvloop.run(run_mode(SdkSpec(**json.loads(options.spec))))
        sys.stdout.write(json.dumps(dataclasses.asdict(result)))
    elif options.stub:
        for result in run_against_stub(options.seconds, options.modes):
            sys.stdout.write(format_result(result))
    else:
        for mode in options.modes:
            spec = SdkSpec(options.url, "default", mode, options.seconds)
            sys.stdout.write(format_result(run_sdk_load(spec)))


if __name__ == "__main__":
    main()
