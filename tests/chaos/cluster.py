"""The cluster of a chaos run: `duramen run`'s supervisor in this process, wires in between.

Every service is told where it lies (`layout`), to advertise the forwarder in front of it (`links`)
and to find each ZooKeeper server behind another one. A process that dies is started again, by the
supervisor or (ZooKeeper) by the `ensemble`, after the time for which the nemesis wants it down. All
processes are tethered to this one: they end when it does.

Called by `run`, `nemesis` and `disks`. Source: docs/testing.md "Chaos".
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import httpx

from duramen.cluster.layout import HOST, ProcessPlan, pick_free_port
from duramen.cluster.process import prepare_command
from duramen.cluster.supervisor import ClusterError, ClusterEvent, ClusterOptions, Supervisor
from tests.chaos import tether
from tests.chaos.ensemble import Ensemble
from tests.chaos.history import read_clock_ns
from tests.chaos.issuer import RunIssuer
from tests.chaos.keys import ClusterKeys
from tests.chaos.layout import Layout
from tests.chaos.links import Links
from tests.waiting import comes_true

READY_TIMEOUT_S: Final = 120.0
"""Up to twenty processes start at once: where there is other work too, that takes its time."""

_LINKED: Final = ("zookeeper", "bookie", "sequencer")
_STREAMING: Final = ("bookie", "sequencer")
_ASK_TIMEOUT_S: Final = 2.0
_AUDIT_INTERVAL_S: Final = 3
"""Far below the default: what no event has started is found within the time of a run."""

_LINKED_S: Final = 60.0
_HELD_S_MAX: Final = 120.0
_THREADS: Final = 64


class ChaosCluster:
    """Processes, wires, signals.

    Args:
        is_secure: everybody has an identity and is asked for it.

    Attributes:
        keys: those of a run with security; None: nobody is asked who calls.
        issuer: of web tokens, in a run with security.
    """

    def __init__(
        self,
        folder: Path,
        layout: Layout,
        on_event: Callable[[str], None],
        *,
        is_secure: bool = False,
    ) -> None:
        self._layout = layout
        self._folder = folder
        self._on_text = on_event
        self._plans: dict[str, ProcessPlan] = {}
        # A forwarder listens only while its process lives: this process picks no port twice.
        self._ports = {
            node_id: pick_free_port() for role in _LINKED for node_id in layout.ids(role)
        }
        self._stream_ports = {
            node_id: pick_free_port() for role in _STREAMING for node_id in layout.ids(role)
        }
        self._held: dict[str, threading.Event] = {}
        self._accepting: set[str] = set()
        self._is_stopping = threading.Event()
        self._exited_ns: dict[str, int] = {}
        self.links = Links(self.pids)
        self._ensemble = Ensemble(
            folder, layout.ids("zookeeper"), may_start=self._wait_released,
            on_started=self._on_zookeeper_started, on_exited=self._on_exited,
        )  # fmt: skip
        self.keys = ClusterKeys(folder, self._ensemble.places) if is_secure else None
        self.issuer = RunIssuer(folder)
        self._http: httpx.AsyncClient | None = None
        options = ClusterOptions(
            folder=folder, size=layout.size, base_port=0, ready_timeout_s=READY_TIMEOUT_S,
            zookeeper=",".join(f"{HOST}:{self._ports[n]}" for n in layout.ids("zookeeper")),
            security="on" if is_secure else "none",
        )  # fmt: skip
        self._supervisor = Supervisor(options, self._on_event, self._make_command)

    # --- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start everything; `stop` is due whatever happens."""
        # Each process that is held down keeps a thread waiting.
        threads = ThreadPoolExecutor(_THREADS)
        asyncio.get_running_loop().set_default_executor(threads)
        if self.keys is not None:
            self.issuer.begin()
            await asyncio.to_thread(self.keys.begin)
        await self._ensemble.start(READY_TIMEOUT_S, self.keys)
        await self._supervisor.start()
        if not await comes_true(self._is_linked, _LINKED_S):
            raise ClusterError("a forwarder cannot listen: its port was taken meanwhile")

    def _is_linked(self) -> bool:
        return self.links.is_open(self._ports) and self.links.is_open(self._stream_ports)

    async def stop(self) -> None:
        """Continue what is paused, let everything go, end it; no process is left."""
        self._is_stopping.set()
        for node_id in list(self._held):
            self.release(node_id)
        for node_id in self.pids().values():
            self.send(node_id, signal.SIGCONT)
        await self._supervisor.stop()
        await self._ensemble.stop()
        await self.links.stop()
        if self._http is not None:
            await self._http.aclose()

    async def wait_ready(self, timeout_s: float) -> list[str]:
        """Until every process is ready; the ids of those that are not."""
        await comes_true(lambda: not self.late(), timeout_s)
        return self.late()

    def late(self) -> list[str]:
        """Processes that are not ready now."""
        statistics = self._supervisor.statistics()
        services = [node_id for node_id, node in statistics.items() if not node["is_ready"]]
        return [*self._ensemble.late(), *services]

    # --- what there is ---------------------------------------------------------------------------

    @property
    def http(self) -> httpx.AsyncClient:
        """Asks admin ports; as an operator, where that is asked."""
        if self._http is None:
            # A connection keeps the certificate that it was made with: none is kept.
            limits = httpx.Limits(max_keepalive_connections=None if self.keys is None else 0)
            self._http = httpx.AsyncClient(
                timeout=_ASK_TIMEOUT_S, follow_redirects=True, limits=limits,
                verify=True if self.keys is None else self.keys.make_context(),
            )  # fmt: skip
        return self._http

    @property
    def zookeeper(self) -> str:
        """The servers' own addresses, without forwarders."""
        return self._ensemble.address

    def ids(self, role: str) -> list[str]:
        """The processes of a role."""
        return self._layout.ids(role)

    def url(self, node_id: str, kind: str = "data_url") -> str:
        """Where a process really listens, without a forwarder."""
        plan = self._plans[node_id]
        return plan.data_url if kind == "data_url" else str(plan.admin_url)

    def data_dir(self, node_id: str) -> Path:
        """Where a bookie keeps everything."""
        data_dir = self._plans[node_id].data_dir
        assert data_dir is not None, node_id
        return data_dir

    def pid(self, node_id: str) -> int | None:
        """None while it does not run."""
        return next((pid for pid, name in self.pids().items() if name == node_id), None)

    def pids(self) -> dict[int, str]:
        """What runs now."""
        members = self._supervisor.state.members
        services = {m.pid: m.node_id for m in members if m.pid is not None}
        return self._ensemble.pids() | services

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
        return self._end(node_id, signal.SIGKILL)

    def end_cleanly(self, node_id: str) -> bool:
        """SIGTERM; it stays down until `release`. False if it did not run."""
        return self._end(node_id, signal.SIGTERM)

    def release(self, node_id: str, *, accepts_new_incarnation: bool = False) -> None:
        """Let it be started again.

        Args:
            accepts_new_incarnation: from now on a person's word stands that its disks are gone.
        """
        (self._accepting.add if accepts_new_incarnation else self._accepting.discard)(node_id)
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

    def _end(self, node_id: str, number: signal.Signals) -> bool:
        self._held.setdefault(node_id, threading.Event())
        is_sent = self.send(node_id, number)
        self.links.close(node_id)
        return is_sent

    # --- the keepers' side -----------------------------------------------------------------------

    def _make_command(self, plan: ProcessPlan, zookeeper: str, tls_dir: Path | None) -> list[str]:
        """Called in a thread; waits while the nemesis holds the process down."""
        self._plans[plan.node_id] = plan
        self._wait_held(plan.node_id)
        command = prepare_command(plan, zookeeper, tls_dir)
        region, rack = self._layout.place(plan.node_id)
        # What is said last counts.
        command += ["--region", region, "--rack", rack]
        command += ["--session-timeout-s", str(self._layout.session_s)]
        if plan.role in _LINKED:
            command += ["--advertise", f"{HOST}:{self._ports[plan.node_id]}"]
        if plan.role in _STREAMING:
            command += ["--advertise-stream-port", str(self._stream_ports[plan.node_id])]
        if plan.role == "bookie":
            command += ["--journal-file-size", self._layout.journal_file_size]
        if plan.role == "sequencer":
            command += ["--audit-interval", f"{_AUDIT_INTERVAL_S}s"]
            command += ["--lost-bookie-grace", f"{self._layout.lost_bookie_grace_s}s"]
        if plan.role in ("writeproxy", "readproxy") and self.keys is not None:
            command += ["--issuers", str(self.issuer.file)]
        if plan.node_id in self._accepting:
            command += ["--accept-new-incarnation"]
        return [sys.executable, "-IS", tether.__file__, str(os.getpid()), *command]

    def _wait_held(self, node_id: str) -> None:
        held = self._held.get(node_id)
        if held is not None and not self._is_stopping.is_set():
            held.wait(_HELD_S_MAX)

    async def _wait_released(self, node_id: str) -> None:
        await asyncio.to_thread(self._wait_held, node_id)

    def _on_event(self, event: ClusterEvent) -> None:
        node_id = event.node_id
        if event.kind in ("exited", "fault"):
            self._on_text(f"{node_id}: {event.kind} {event.detail or event.status}")
        if node_id is None:
            return
        plan = self._plans.get(node_id)
        if event.kind == "exited":
            self._on_exited(node_id)
        elif event.kind == "started" and plan is not None and plan.role in _LINKED:
            self.links.open_when_served(node_id, self._ports[node_id], plan.ports.data)
            if plan.ports.stream is not None:
                port = self._stream_ports[node_id]
                self.links.open_when_served(node_id, port, plan.ports.stream)

    def _on_zookeeper_started(self, node_id: str) -> None:
        self.links.open_when_served(node_id, self._ports[node_id], self._ensemble.port(node_id))

    def _on_exited(self, node_id: str) -> None:
        self._exited_ns[node_id] = read_clock_ns()
        self.links.close(node_id)
