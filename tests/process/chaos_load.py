"""The load of the chaos runs beside a cluster of these tests: writers, readers and histories.

It runs as a process of its own, tethered to the test; `judge_logs` reads every log whole and gives
what the chaos judge finds. A violation that the load sees fails whatever waits for the load, at
once. Used by `test_frozen_owner` and the tests on Kubernetes. Source: `tests.chaos.load`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson

from duramen.client.rest_client import RestClient
from tests.chaos import tether
from tests.chaos.history import FINAL, HistoryFile, history_path, read_history
from tests.chaos.judge import Verdict, judge
from tests.chaos.load import LoadOptions, format_options, read_once
from tests.chaos.load_process import ROOT
from tests.process.times import HANG_S
from tests.waiting import comes_true

NAMESPACE = "default"
_READ_BYTES = 1 << 20


class ChaosLoad:
    """A load that runs; see `running_load`."""

    def __init__(self, options: LoadOptions, process: asyncio.subprocess.Process) -> None:
        self._logs = options.logs
        self._process = process
        self._told: dict[str, Any] = {}
        self._has_followed = asyncio.Event()

    @property
    def acked_ns(self) -> dict[str, int]:
        """When each log last acknowledged; 0: never."""
        found: dict[str, int] = self._told.get("acked_ns", dict.fromkeys(self._logs, 0))
        return found

    @property
    def append_count(self) -> int:
        """Acknowledged by now."""
        return sum(self._told.get("appends", {}).values())

    @property
    def codes(self) -> dict[str, int]:
        """Why appends were not acknowledged."""
        found: dict[str, int] = self._told.get("codes", {})
        return found

    @property
    def violations(self) -> list[list[str]]:
        """What the load itself saw: code, log, evidence."""
        found: list[list[str]] = self._told.get("violations", [])
        return found

    async def wait_acked_since(self, since_ns: int, timeout_s: float) -> None:
        """Until every log has acknowledged after a moment."""
        is_acked = await self._wait(
            lambda: all(ns > since_ns for ns in self.acked_ns.values()), timeout_s
        )
        assert is_acked, (since_ns, self.acked_ns, self.codes)

    async def wait_worked(self, *, appends: int, reads: int, timeout_s: float) -> None:
        """Until every log has so many more acknowledged appends and so many more reads."""
        wanted = {"appends": appends, "reads": reads}
        before = self._told

        def has_worked() -> bool:
            return all(
                self._told[kind][log] - before[kind][log] >= count
                for kind, count in wanted.items()
                for log in self._logs
            )

        assert await self._wait(has_worked, timeout_s), (before, self._told)

    async def finish(self) -> None:
        """Let it settle what is open and say its last words, through every proxy."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"finish\n")
        await self._process.stdin.drain()
        async with asyncio.timeout(HANG_S):
            status = await self._process.wait()
        # What it told last has come when its output has ended.
        await self._has_followed.wait()
        assert not self.violations, self.violations
        assert status == 0, "not every log took the last words"

    async def follow(self) -> None:
        """Take in what it tells, until it ends."""
        assert self._process.stdout is not None
        try:
            async for line in self._process.stdout:
                self._told = orjson.loads(line)
        finally:
            self._has_followed.set()

    async def _wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Whether it comes true in time; fails as soon as a violation is seen."""
        is_true = await comes_true(lambda: bool(self.violations) or condition(), timeout_s)
        assert not self.violations, self.violations
        return is_true


@asynccontextmanager
async def running_load(
    options: LoadOptions, *, prefix: Sequence[str] = ()
) -> AsyncIterator[ChaosLoad]:
    """A load that has begun with every log; nothing of it stays.

    Args:
        prefix: a command that runs another one in its own place, such as in other namespaces.
    """
    command = [*prefix, sys.executable, "-m", "tests.chaos.load", format_options(options)]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-IS", tether.__file__, str(os.getpid()), *command,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": path}, start_new_session=True,
    )  # fmt: skip
    load = ChaosLoad(options, process)
    follower = asyncio.create_task(load.follow())
    try:
        await load.wait_acked_since(0, HANG_S)
        yield load
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await follower


async def judge_logs(
    read_url: str, folder: Path, logs: Iterable[str], *, must_be_definite: bool
) -> list[Verdict]:
    """Read logs whole through a fresh client and judge what their histories say."""
    client = RestClient(read_url)
    verdicts = []
    try:
        for log in logs:
            file = HistoryFile(history_path(folder, log, FINAL))
            await _read_whole(client, log, file)
            names = ("epoch", "state", "start_seq_num", "records", "last_entry")
            rows = (await client.list_segments(NAMESPACE, log))["segments"]
            segments = [{name: row[name] for name in names} for row in rows]
            file.write({"op": "segments", "log": log, "segments": segments})
            file.close()
            # Whoever forwards for a cluster in this loop must not stand still for it.
            judged = await asyncio.to_thread(
                judge, log, read_history(folder, log), must_be_definite=must_be_definite
            )
            verdicts.append(judged.verdict())
    finally:
        await client.close()
    return verdicts


def require_good(verdicts: Iterable[Verdict], *, appends: int, reads: int) -> Counter[str]:
    """Nothing is violated in any log, and then: each saw more than so much; what all saw."""
    verdicts = list(verdicts)
    violations = [violation for verdict in verdicts for violation in verdict.violations]
    assert not violations, violations
    counts: Counter[str] = Counter()
    for verdict in verdicts:
        assert verdict.counts["ok"] > appends, (verdict.log, verdict.counts)
        assert verdict.counts["read"] > reads, (verdict.log, verdict.counts)
        counts.update(verdict.counts)
    return counts


async def _read_whole(client: RestClient, log: str, file: HistoryFile) -> None:
    position = "head"
    tail = await client.find_tail(NAMESPACE, log)
    async with asyncio.timeout(HANG_S):
        while True:
            line, position = await read_once(
                client, log, position, FINAL, most_bytes=_READ_BYTES, wait_ms=0
            )
            if line is not None:
                file.write(line)
                if line["tail"] and line["end"] >= tail:
                    return
