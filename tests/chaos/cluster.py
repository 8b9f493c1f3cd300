"""The cluster of a chaos run: `duramen run`'s supervisor in this process, wires in between.

Every service is told to advertise the forwarder in front of it (`links`) and to find ZooKeeper
behind another one. A process that dies is started again by the supervisor, after the time for which
the nemesis wants it down. All processes are tethered to this one: they end when it does.

Called by `run` and `nemesis`. Source: 06-testing "Real processes".
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx

from duramen.cluster.layout import HOST, ClusterSize, Plan, pick_free_port
from duramen.cluster.process import prepare_command
from duramen.cluster.supervisor import ClusterEvent, ClusterOptions, Supervisor
from tests.chaos import tether
from tests.chaos.history import read_clock_ns
from tests.chaos.links import Links
from tests.chaos.waiting import wait_until

SIZE: Final = ClusterSize(bookies=5, sequencers=2, write_proxies=2, read_proxies=2)
SESSION_S: Final = 4.0
JOURNAL_FILE_SIZE: Final = "4MiB"
"""Small: the disk of a long run is bounded, and settling and recycling happen all the time."""

READY_TIMEOUT_S: Final = 120.0
"""Twelve processes start at once: on a machine that has other work, that takes its time."""

_ZOOKEEPER: Final = "zookeeper-0"
_LINKED: Final = ("zookeeper", "bookie", "sequencer")
_ASK_TIMEOUT_S: Final = 2.0
_HELD_S_MAX: Final = 120.0


class ChaosCluster:
    """Processes, wires, signals."""

    def __init__(
        self, folder: Path, on_event: Callable[[str], None], *, size: ClusterSize = SIZE
    ) -> None:
        options = ClusterOptions(
            folder=folder, size=size, base_port=0, ready_timeout_s=READY_TIMEOUT_S
        )
        self._supervisor = Supervisor(options, self._on_event, self._make_command)
        self._on_text = on_event
        self._lock = threading.Lock()
        self._plans: dict[str, Plan] = {}
        self._ports: dict[str, int] = {}
        self._held: dict[str, threading.Event] = {}
        self._is_stopping = threading.Event()
        self._exited_ns: dict[str, int] = {}
        self.links = Links(self.pids)
        self.http = httpx.AsyncClient(timeout=_ASK_TIMEOUT_S)

    # --- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start everything; `stop` is due whatever happens."""
        await self._supervisor.start()

    async def stop(self) -> None:
        """Continue what is paused, let everything go, end it; no process is left."""
        self._is_stopping.set()
        for node_id in list(self._held):
            self.release(node_id)
        for node_id in self.pids().values():
            self.send(node_id, signal.SIGCONT)
        await self._supervisor.stop()
        await self.links.stop()
        await self.http.aclose()

    async def wait_ready(self, timeout_s: float) -> list[str]:
        """Until every process is ready; the ids of those that are not."""
        await wait_until(lambda: not self._late(), timeout_s)
        return self._late()

    def _late(self) -> list[str]:
        statistics = self._supervisor.statistics()
        return [node_id for node_id, node in statistics.items() if not node["is_ready"]]

    # --- what there is ---------------------------------------------------------------------------

    def ids(self, role: str) -> list[str]:
        """The processes of a role."""
        return [m.node_id for m in self._supervisor.state.members if m.role == role]

    def url(self, node_id: str, kind: str = "data_url") -> str:
        """Where a process really listens, without a forwarder."""
        plan = self._plans[node_id]
        return plan.data_url if kind == "data_url" else str(plan.admin_url)

    def pid(self, node_id: str) -> int | None:
        """None while it does not run."""
        return next(m.pid for m in self._supervisor.state.members if m.node_id == node_id)

    def pids(self) -> dict[int, str]:
        """What runs now."""
        return {m.pid: m.node_id for m in self._supervisor.state.members if m.pid is not None}

    def exited_ns(self, node_id: str) -> int:
        """When a process last ended; 0 if it never did."""
        return self._exited_ns.get(node_id, 0)

    async def ask(self, node_id: str, path: str) -> Any:
        """An answer of its administration port; None if there is none in time."""
        try:
            answer = await self.http.get(self.url(node_id, "admin_url") + path)
            return answer.json() if answer.status_code == 200 else None
        except (httpx.HTTPError, ValueError):
            return None

    # --- signals ---------------------------------------------------------------------------------

    def kill(self, node_id: str) -> bool:
        """SIGKILL; it stays down until `release`. False if it did not run."""
        self._held.setdefault(node_id, threading.Event())
        is_sent = self.send(node_id, signal.SIGKILL)
        self.links.close(node_id)
        return is_sent

    def release(self, node_id: str) -> None:
        """Let the supervisor start it again."""
        held = self._held.pop(node_id, None)
        if held is not None:
            held.set()

    def send(self, node_id: str, number: signal.Signals) -> bool:
        """Signal one process of this cluster; False if it does not run."""
        pid = self.pid(node_id)
        if pid is None:
            return False
        os.kill(pid, number)
        return True

    def is_stopped(self, node_id: str) -> bool:
        """Whether the kernel says that the process is paused."""
        try:
            stat = Path(f"/proc/{self.pid(node_id)}/stat").read_text(encoding="utf-8")
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] == "T"

    # --- the supervisor's side -------------------------------------------------------------------

    def _make_command(self, plan: Plan, zookeeper: str) -> list[str]:
        """Called in a thread; waits while the nemesis holds the process down."""
        with self._lock:
            self._plans[plan.node_id] = plan
            for node_id in (plan.node_id, _ZOOKEEPER):
                self._ports.setdefault(node_id, pick_free_port())
        held = self._held.get(plan.node_id)
        if held is not None and not self._is_stopping.is_set():
            held.wait(_HELD_S_MAX)
        command = prepare_command(plan, f"{HOST}:{self._ports[_ZOOKEEPER]}")
        if plan.role != "zookeeper":
            command += ["--session-timeout-s", str(SESSION_S)]
        if plan.role in ("bookie", "sequencer"):
            command += ["--advertise", f"{HOST}:{self._ports[plan.node_id]}"]
        if plan.role == "bookie":
            command += ["--journal-file-size", JOURNAL_FILE_SIZE]
        return [sys.executable, "-IS", tether.__file__, str(os.getpid()), *command]

    def _on_event(self, event: ClusterEvent) -> None:
        node_id = event.node_id
        if event.kind in ("exited", "fault"):
            self._on_text(f"{node_id}: {event.kind} {event.detail or event.status}")
        if node_id is None:
            return
        plan = self._plans.get(node_id)
        if event.kind == "exited":
            self._exited_ns[node_id] = read_clock_ns()
            self.links.close(node_id)
        elif event.kind == "started" and plan is not None and plan.role in _LINKED:
            self.links.open_when_served(node_id, self._ports[node_id], plan.ports.data)
