"""One process of the cluster: its command line, its start, its end, its pauses between starts.

The process leads a session of its own, so that a terminal's Ctrl-C reaches the supervisor alone;
its output is appended to a log file. Nothing here decides whether it is started again.

Called by the supervisor. The services' flags are those of `runtime.service`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from duramen.backoff import Backoff
from duramen.cluster.layout import CLUSTER_NAME, HOST, ProcessPlan
from duramen.runtime.embedded_zookeeper import (
    find_jars,
    find_java,
    server_command,
    write_configuration,
)
from duramen.units import MIB, MS, SECOND

LOG_FILE_BYTES_MAX: Final = 16 * MIB
"""A log file larger than this is set aside, one generation, when its process starts."""


_BACKOFF: Final = Backoff(200 * MS, 5 * SECOND)
_LONG_LIFE_S: Final = 30.0
"""Who lived so long starts again as if for the first time."""


class RestartPauses:
    """The pauses before restarts of one process."""

    def __init__(self) -> None:
        self._last_us = 0

    def pause_after(self, alive_s: float) -> float:
        """Seconds to wait before the next start of a process that lived this long."""
        self._last_us = _BACKOFF.next_us(0 if alive_s >= _LONG_LIFE_S else self._last_us)
        return self._last_us / SECOND


def service_command(plan: ProcessPlan, zookeeper: str, tls_dir: Path | None = None) -> list[str]:
    """The command line of a service; pure.

    Args:
        tls_dir: the folder of its identity; None: it has none.
    """
    command = [sys.executable, "-m", f"duramen_{plan.role}.main"]
    command += ["--cluster", CLUSTER_NAME, "--id", plan.node_id, "--host", HOST]
    command += ["--data-port", str(plan.ports.data), "--admin-port", str(plan.ports.admin)]
    command += ["--zookeeper", zookeeper, "--region", plan.region, "--rack", plan.rack]
    if tls_dir is None:
        command += ["--security", "none"]
    else:
        security = "migrate" if plan.is_turning else "on"
        command += ["--security", security, "--tls-dir", str(tls_dir)]
    for flag, port in (
        ("--tls-data-port", plan.ports.tls_data), ("--tls-admin-port", plan.ports.tls_admin),
        ("--stream-port", plan.ports.stream),
    ):  # fmt: skip
        if port is not None:
            command += [flag, str(port)]
    if plan.data_dir is not None:
        command += ["--data-dir", str(plan.data_dir)]
    return command


def prepare_command(plan: ProcessPlan, zookeeper: str, tls_dir: Path | None = None) -> list[str]:
    """The command line of any process; makes its folder and writes ZooKeeper's configuration.

    Args:
        tls_dir: as of `service_command`, for ZooKeeper too.

    Raises:
        IdentityError: ZooKeeper is to be run, and its folder holds no identity.
        EmbeddedServerError: ZooKeeper is to be run and Java or its jars are missing.
    """
    if plan.data_dir is not None:
        plan.data_dir.mkdir(parents=True, exist_ok=True)
    if plan.role != "zookeeper":
        return service_command(plan, zookeeper, tls_dir)
    assert plan.data_dir is not None
    command = server_command(find_java(), find_jars())
    if plan.ports.tls_data is None:
        write_configuration(plan.data_dir, plan.ports.data, identity_dir=tls_dir)
    else:
        write_configuration(
            plan.data_dir, plan.ports.tls_data, identity_dir=tls_dir, plain_port=plan.ports.data
        )
    return command


class Child:
    """A process that can be started again after it ended."""

    def __init__(self, plan: ProcessPlan) -> None:
        self.plan = plan
        self.is_ready = False
        self.start_count = 0
        self._process: asyncio.subprocess.Process | None = None
        self._started_s = 0.0

    @property
    def pid(self) -> int | None:
        """None while it does not run."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    @property
    def alive_s(self) -> float:
        """Seconds since the last start."""
        return time.monotonic() - self._started_s

    async def start(self, command: list[str]) -> None:
        """Start it; returns once the program runs, long before it serves.

        Raises:
            OSError: the program cannot be started or the log cannot be written.
        """
        assert self.pid is None, self.plan.node_id
        log_file = self.plan.log_file
        log_file.parent.mkdir(parents=True, exist_ok=True)
        if log_file.exists() and log_file.stat().st_size > LOG_FILE_BYTES_MAX:
            log_file.replace(log_file.with_suffix(".log.1"))
        with log_file.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                cwd=self.plan.data_dir if self.plan.role == "zookeeper" else None,
                env=os.environ | {"PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        self._started_s = time.monotonic()
        self.start_count += 1

    async def wait(self) -> int:
        """Wait until it ends; its exit status, or minus the signal that ended it."""
        assert self._process is not None
        status = await self._process.wait()
        self.is_ready = False
        return status

    def ask_to_stop(self) -> None:
        """SIGTERM, also to a process that is paused."""
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL to it and to whatever it started."""
        self._signal(signal.SIGKILL)

    def log_tail(self) -> str:
        """The last lines that it wrote."""
        return read_tail(self.plan.log_file)

    def _signal(self, number: signal.Signals) -> None:
        pid = self.pid
        if pid is None:
            return
        with suppress(ProcessLookupError):
            if number is signal.SIGKILL:
                os.killpg(pid, number)
            else:
                os.kill(pid, number)


def read_tail(path: Path, *, line_count: int = 15, most_bytes: int = 8192) -> str:
    """The last lines of a text file; a sentence if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - most_bytes))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError as error:
        return f"(no log: {error})"
    return "\n".join(lines[-line_count:])
