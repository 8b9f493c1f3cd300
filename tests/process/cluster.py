"""A local cluster for one test: `duramen run` as a child, its processes killed and revived by id.

Everything is found through `cluster.json`, as checks from outside do. Only processes of this
cluster are ever signalled, by pid. `stop` asserts that nothing stays behind.

Used by the tests of this folder. Source: docs/testing.md "Real processes and disks",
docs/protocol/admin.md "cluster.json".
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import os
import queue
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import httpx

from duramen.client.credentials.local_cluster import (
    OPERATOR_FOLDER,
    TOKEN_FILE,
    find_local_credential,
)
from duramen.client.rest_client import RestClient
from duramen.cluster.local_identities import LocalIdentities
from duramen.runtime.identity.authority import open_authority
from duramen.runtime.identity.names import make_identity
from duramen.runtime.identity.zookeeper_files import load_identity
from tests.process.answers import repeat_safely
from tests.process.times import HANG_S
from tests.waiting import wait_in_thread

T = TypeVar("T")


class LocalCluster:
    """One `duramen run` and what it started."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder = folder
        self._flags = flags
        self._commands: dict[str, list[str]] = {}
        self._revived: list[subprocess.Popen[bytes]] = []
        self._revived_as: dict[str, int] = {}
        self._operators: dict[str, ssl.SSLContext] = {}
        self._run: subprocess.Popen[str] | None = None
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()

    def start(self) -> None:
        """Start and wait until every process is ready."""
        command = [sys.executable, "-m", "duramen.cli.main", "run", "--json"]
        command += ["--data", str(self.folder), "--base-port", "0", *self._flags]
        self._run = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self._run.stdout is not None
        threading.Thread(target=self._collect, args=(self._run.stdout,), daemon=True).start()
        self.wait_event("cluster_ready")

    def open_client(self, kind: Literal["write_url", "read_url"]) -> RestClient:
        """A client of a public port, which shows what the cluster's folder has for it."""
        return RestClient(self.state()[kind], credential=find_local_credential(self.folder))

    def read_headers(self) -> dict[str, str]:
        """What public ports are shown by calls that a test spells by hand; nothing, where the
        cluster asks nobody.
        """
        file = self.folder / TOKEN_FILE
        if not file.exists():
            return {}
        return {"authorization": f"Bearer {file.read_text(encoding='ascii').strip()}"}

    def wait_event(self, kind: str, timeout_s: float = HANG_S) -> dict[str, Any]:
        """The next event of a kind."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                event = self._events.get(timeout=max(deadline - time.monotonic(), 0.001))
            except queue.Empty:
                raise AssertionError(f"no {kind} in {timeout_s} s") from None
            if event["event"] == kind:
                return event
            assert event["event"] != "end", f"duramen run ended while {kind} was awaited"

    def state(self) -> dict[str, Any]:
        """`cluster.json` as it is now."""
        state: dict[str, Any] = json.loads((self.folder / "cluster.json").read_text())
        return state

    @property
    def supervisor_pid(self) -> int:
        """Of `duramen run` itself."""
        assert self._run is not None
        return self._run.pid

    def list_pids(self) -> list[int]:
        """The processes that run, as far as the cluster came to write them down."""
        if not (self.folder / "cluster.json").exists():
            return []
        return [p["pid"] for p in self.state()["processes"] if p["pid"] is not None]

    def process(self, node_id: str) -> dict[str, Any]:
        """The entry of one process."""
        found: dict[str, Any] = next(p for p in self.state()["processes"] if p["id"] == node_id)
        return found

    def trust_admin_ports(self, name: str = "test") -> ssl.SSLContext | bool:
        """TLS by which a test asks admin ports, as an operator of this name.

        Where the services have no identities, there is none: False spares httpx the reading of all
        CAs of the world, 30 ms of a processor for each call.
        """
        if not (self.folder / "ca").exists():
            return False
        if name not in self._operators:
            now = dt.datetime.now(dt.UTC)
            context = LocalIdentities(self.folder).make_probe_context()
            with open_authority(self.folder / "ca", now) as authority:
                identity = make_identity(authority.domain, "operator", name)
                load_identity(context, authority.issue(identity, now))
            self._operators[name] = context
        return self._operators[name]

    def find_operator(self) -> Path | None:
        """The identity of whoever runs the cluster; None: it asks for none."""
        folder = self.folder / OPERATOR_FOLDER
        return folder if folder.exists() else None

    def forget_operators(self) -> None:
        """The CA has changed: whoever asks admin ports next gets another certificate."""
        self._operators.clear()

    def ids(self, role: str) -> list[str]:
        """Ids of the processes of a role."""
        return [p["id"] for p in self.state()["processes"] if p["role"] == role]

    def pid(self, node_id: str) -> int:
        """Of one process, also where it was started again by `revive`."""
        pid = self._revived_as.get(node_id) or self.process(node_id)["pid"]
        assert isinstance(pid, int), f"{node_id} is not running"
        return pid

    def send(self, node_id: str, number: signal.Signals) -> int:
        """Signal one process; returns its pid. Its command line is kept for `revive`."""
        pid = self.pid(node_id)
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
        self._commands[node_id] = [part.decode() for part in raw.split(b"\0") if part]
        os.kill(pid, number)
        return pid

    def kill(self, node_id: str) -> None:
        """SIGKILL one process and wait until it is gone."""
        pid = self.send(node_id, signal.SIGKILL)
        wait_in_thread(lambda: not _is_alive(pid), HANG_S, f"{node_id} to die")

    def revive(self, node_id: str, wrap: Callable[[list[str]], list[str]] | None = None) -> None:
        """Start a killed process again as it was started (for clusters with --no-restart).

        Args:
            wrap: makes another command line of it.
        """
        command = self._commands[node_id]
        log = (self.folder / "logs" / f"{node_id}.revived.log").open("ab")
        revived = subprocess.Popen(
            wrap(command) if wrap else command, stdout=log, stderr=log, start_new_session=True
        )
        self._revived.append(revived)
        self._revived_as[node_id] = revived.pid

    def start_anew(
        self, *node_ids: str, wrap: Callable[[list[str]], list[str]] | None = None
    ) -> None:
        """Kill processes, start them again, and wait until all serve; `wrap` as of `revive`."""
        for node_id in node_ids:
            self.kill(node_id)
        for node_id in node_ids:
            self.revive(node_id, wrap)
        self.wait_ready(*node_ids)

    def wait_ready(self, *node_ids: str) -> None:
        """Until processes that were started again serve."""
        for node_id in node_ids:
            wait_in_thread(partial(self._is_ready, node_id), HANG_S, f"{node_id} to be ready")

    def kill_everything(self) -> None:
        """SIGKILL the supervisor and all its processes, at once."""
        assert self._run is not None
        pids = self.list_pids()
        for pid in (self._run.pid, *pids):
            os.kill(pid, signal.SIGKILL)
        self._run.wait(10)
        wait_in_thread(lambda: not any(map(_is_alive, pids)), HANG_S, "every process to die")

    def stop(self) -> None:
        """Ctrl-C; asserts that it ends in time with 0 and leaves no process."""
        assert self._run is not None
        pids = self.list_pids()
        for revived in self._revived:
            revived.terminate()
        self._run.send_signal(signal.SIGINT)
        try:
            status = self._run.wait(HANG_S)
        finally:
            self.end_by_force(pids)
        assert status == 0
        assert not any(map(_is_alive, pids)), "a process was left behind"

    def end_by_force(self, pids: list[int]) -> None:
        """End what a failed test left."""
        assert self._run is not None
        for revived in self._revived:
            try:
                revived.wait(15)
            except subprocess.TimeoutExpired:
                revived.kill()
                revived.wait(5)
        if self._run.poll() is None:
            # It alone knows of a process that it is starting right now.
            self._run.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self._run.wait(15)
        if self._run.poll() is None:
            for pid in (self._run.pid, *filter(_is_alive, pids)):
                os.kill(pid, signal.SIGKILL)
            self._run.wait(10)

    def _is_ready(self, node_id: str) -> bool:
        try:
            url = self.process(node_id)["admin_url"]
            trusted = self.trust_admin_ports()
            return httpx.get(f"{url}/readyz", timeout=5, verify=trusted).status_code == 200
        except httpx.HTTPError:
            return False

    def _collect(self, lines: Iterator[str]) -> None:
        for line in lines:
            self._events.put(json.loads(line))
        self._events.put({"event": "end"})


@contextmanager
def running_cluster(folder: Path, *flags: str) -> Iterator[LocalCluster]:
    """A started cluster that is stopped, and found to be gone, at the end."""
    cluster = LocalCluster(folder, *flags)
    try:
        cluster.start()
        yield cluster
    except BaseException:
        cluster.end_by_force(cluster.list_pids())
        raise
    cluster.stop()


def running_plain_cluster(folder: Path, *flags: str) -> AbstractContextManager[LocalCluster]:
    """A cluster that asks nobody who calls: for tests that call its ports by hand, and for what
    does not depend on who calls."""
    return running_cluster(folder, "--security", "none", *flags)


async def create_log(cluster: LocalCluster, name: str, config: dict[str, Any]) -> str:
    """Create `default/name`; returns its log id. What may be repeated is, as every client does."""
    client = cluster.open_client("write_url")

    async def create() -> str:
        await client.ensure_log("default", name, config)
        return str((await client.show_log("default", name))["log_id"])

    try:
        return await repeat_safely(create)
    finally:
        await client.close()


def run(work: Coroutine[Any, Any, T], timeout_s: float = 250) -> T:
    """Run a coroutine with a bound."""
    return asyncio.run(asyncio.wait_for(work, timeout_s))


def _is_alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
