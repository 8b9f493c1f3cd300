"""A local cluster of real processes for benchmarks and counts, started with `duramen run --json`.

Bounded and always stopped: leaving the `with` block ends every process, whatever happened inside.
Gives what an outside observer can know: URLs and pids from cluster.json, CPU and memory from /proc,
counters from the admin ports, and the events that the command prints. Blocking, for plain scripts.

Not here: load (`load`), what the figures mean (`workloads`). Called by `python -m tests.bench` and
by tests/component/test_counts.py. Source: docs/protocol/admin.md "cluster.json",
docs/benchmarks.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, NamedTuple

from tests.pauses import is_readable

NAMESPACE: Final = "default"
ASKS_NOBODY: Final = ("--security", "none")
"""How clusters are measured: with what is asked of callers every figure would be another one."""

_READY_TIMEOUT_S: Final = 150.0
_STOP_TIMEOUT_S: Final = 25.0
_CALL_TIMEOUT_S: Final = 5.0
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
# Requests to loopback never go through a proxy of the environment.
_OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class BenchError(Exception):
    """A measurement cannot be made or is void; the text says why."""


class CpuReading(NamedTuple):
    """CPU seconds since its start of each process: (role, pid) → seconds."""

    seconds: dict[tuple[str, int], float]

    def since(self, earlier: CpuReading) -> dict[str, float]:
        """CPU seconds by role between two readings.

        Raises:
            BenchError: a process ended or was started in between.
        """
        if self.seconds.keys() != earlier.seconds.keys():
            raise BenchError("a process was started again while it was measured")
        used: Counter[str] = Counter()
        for key, after_s in self.seconds.items():
            used[key[0]] += after_s - earlier.seconds[key]  # type: ignore[assignment]
        return dict(used)


class LocalCluster:
    """Three bookies, a sequencer, both proxies and ZooKeeper, from `__enter__` to `__exit__`.

    Args:
        folder: for data and logs; on the disk that is to be measured. Kept: the caller's to remove.
        environment: of its processes, besides that of this one.
        flags: of `duramen run`.
    """

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        flags: Sequence[str] = ASKS_NOBODY,
    ) -> None:
        self.folder = folder.absolute()
        self._flags = flags
        self._environment = os.environ | (environment or {})
        self._child: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._buffer = b""

    def __enter__(self) -> LocalCluster:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._errors = (self.folder / "run.log").open("wb")
        command = [sys.executable, "-m", "duramen.cli.main", "run", "--json", "--base-port", "0"]
        self._child = subprocess.Popen(
            [*command, "--data", str(self.folder), *self._flags],
            stdout=subprocess.PIPE, stderr=self._errors, env=self._environment,
        )  # fmt: skip
        try:
            self._wait_event(_READY_TIMEOUT_S, event="cluster_ready")
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    # --- Processes -------------------------------------------------------------------------------

    def document(self) -> dict[str, Any]:
        """cluster.json as it is now."""
        found: dict[str, Any] = json.loads((self.folder / "cluster.json").read_bytes())
        return found

    def members(self, role: str | None = None) -> list[dict[str, Any]]:
        """The processes that run, of one role or all of them."""
        found = self.document()["processes"]
        return [m for m in found if m["pid"] is not None and role in (None, m["role"])]

    def restart(self, role: str) -> None:
        """End the one process of a role and wait until another has taken its place."""
        (member,) = self.members(role)
        os.kill(member["pid"], signal.SIGTERM)
        self._wait_event(_READY_TIMEOUT_S, event="exited", id=member["id"])
        self._wait_event(_READY_TIMEOUT_S, event="ready", id=member["id"])

    def read_cpu(self) -> CpuReading:
        """CPU that each process has used so far, user and system."""
        seconds = {}
        for member in self.members():
            stat = Path(f"/proc/{member['pid']}/stat").read_text(encoding="utf-8")
            # Behind the name, which may hold anything: fields 14 and 15 of proc(5).
            fields = stat.rpartition(")")[2].split()
            ticks = int(fields[11]) + int(fields[12])
            seconds[member["role"], member["pid"]] = ticks / _TICKS_PER_S
        return CpuReading(seconds)

    def read_peak_memory(self) -> dict[str, int]:
        """The most bytes that each process has held in memory (VmHWM), by its id."""
        peaks = {}
        for member in self.members():
            status = Path(f"/proc/{member['pid']}/status").read_text(encoding="utf-8")
            (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
            peaks[member["id"]] = int(line.split()[1]) * 1024
        return peaks

    # --- Calls -----------------------------------------------------------------------------------

    def statistics(self, role: str) -> dict[str, dict[str, Any]]:
        """`/v1/statistics` of each process of a role, by its id."""
        return {
            m["id"]: json.loads(call("GET", m["admin_url"] + "/v1/statistics"))
            for m in self.members(role)
        }

    def metrics(self, role: str) -> dict[str, dict[str, float]]:
        """`/metrics` of each process of a role, by its id: sample with its labels → value."""
        return {
            m["id"]: parse_metrics(call("GET", m["admin_url"] + "/metrics").decode())
            for m in self.members(role)
        }

    def make_log(self, log: str) -> str:
        """Ensure a log with default configuration; gives the URL of its records."""
        url = f"{self.document()['write_url']}/v1/namespaces/{NAMESPACE}/logs/{log}"
        call("PUT", url, b"{}")
        return f"{url}/records"

    # --- The command -----------------------------------------------------------------------------

    def _wait_event(self, timeout_s: float, **fields: str) -> dict[str, Any]:
        """The next event with these fields; those before it are left behind."""
        assert self._child is not None and self._child.stdout is not None
        deadline = time.monotonic() + timeout_s
        while True:
            line, found, rest = self._buffer.partition(b"\n")
            if found:
                self._buffer = rest
                event: dict[str, Any] = json.loads(line)
                if all(event.get(name) == value for name, value in fields.items()):
                    return event
                continue
            left_s = deadline - time.monotonic()
            ready = left_s > 0 and is_readable(self._child.stdout.fileno(), left_s)
            piece = os.read(self._child.stdout.fileno(), 1 << 16) if ready else b""
            if not piece:
                log = (self.folder / "run.log").read_text(encoding="utf-8", errors="replace")
                raise BenchError(f"the cluster did not come to {fields}: {log[-2000:].strip()}")
            self._buffer += piece

    def _stop(self) -> None:
        """End everything: in order, then by a second signal, then by force."""
        child, errors = self._child, self._errors
        assert child is not None and child.stdout is not None and errors is not None
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
            child.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                # What it still has to say must not fill the pipe.
                child.communicate(timeout=_STOP_TIMEOUT_S)
                break
        if child.returncode == -signal.SIGKILL:
            # Its children would stay behind.
            for member in self.members():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(member["pid"], signal.SIGKILL)
        child.stdout.close()
        errors.close()


def parse_metrics(text: str) -> dict[str, float]:
    """The samples of Prometheus' text form, by name with labels as they are spelt."""
    samples = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            samples[name] = float(value)
    return samples


def call(method: str, url: str, body: bytes | None = None) -> bytes:
    """The body of an answer; whatever is not a success raises."""
    headers = {"content-type": "application/json"} if body is not None else {}
    request = urllib.request.Request(url, body, headers, method=method)
    with _OPENER.open(request, timeout=_CALL_TIMEOUT_S) as response:
        answer: bytes = response.read()
    return answer
