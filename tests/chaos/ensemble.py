"""The ZooKeeper servers of a run: one that stands alone, or an ensemble that loses members.

Each has its data folder, its log and its ports for good, and is started again whenever it ended,
as soon as `may_start` lets it. Ready is a member that serves clients: one without a quorum is not.
Members reach one another directly, clients through the forwarders of `links`.

Called by `cluster`. Source: docs/testing.md "Chaos".
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from duramen.cluster.layout import HOST, pick_free_port
from duramen.cluster.process import read_tail
from duramen.cluster.supervisor import ClusterError
from duramen.runtime.embedded_zookeeper import (
    EnsembleMember,
    find_jars,
    find_java,
    is_serving,
    server_command,
    write_configuration,
)
from tests.chaos import tether
from tests.chaos.keys import ClusterKeys
from tests.chaos.waiting import wait_at_most
from tests.waiting import comes_true

STOP_S: Final = 10.0
_RESTART_PAUSE_S: Final = 0.2


@dataclass(slots=True)
class _Server:
    node_id: str
    folder: Path
    log_file: Path
    port: int
    process: asyncio.subprocess.Process | None = None
    is_ready: bool = False

    @property
    def pid(self) -> int | None:
        process = self.process
        return process.pid if process is not None and process.returncode is None else None


class Ensemble:
    """All ZooKeeper servers of a run.

    Args:
        may_start: waits as long as a server is to stay down.
        on_started, on_exited: called with the id; the server listens later.
    """

    def __init__(
        self,
        folder: Path,
        ids: list[str],
        *,
        may_start: Callable[[str], Awaitable[None]],
        on_started: Callable[[str], None],
        on_exited: Callable[[str], None],
    ) -> None:
        self._may_start = may_start
        self._on_started = on_started
        self._on_exited = on_exited
        self._is_stopping = False
        self._keys: ClusterKeys | None = None
        self._keepers: list[asyncio.Task[None]] = []
        self._command: list[str] = []
        self._servers: dict[str, _Server] = {}
        for node_id in ids:
            log_file = folder / "logs" / f"{node_id}.log"
            self._servers[node_id] = _Server(node_id, folder / node_id, log_file, pick_free_port())
        members = [
            EnsembleMember(number, pick_free_port(), pick_free_port())
            for number, _ in enumerate(ids, 1)
        ]
        self._members = members if len(ids) > 1 else []

    @property
    def address(self) -> str:
        """Where the servers really listen, without forwarders."""
        return ",".join(f"{HOST}:{server.port}" for server in self._servers.values())

    @property
    def places(self) -> dict[str, tuple[int, Path]]:
        """Port and folder of each."""
        return {server.node_id: (server.port, server.folder) for server in self._servers.values()}

    def port(self, node_id: str) -> int:
        """Where one really listens."""
        return self._servers[node_id].port

    def pids(self) -> dict[int, str]:
        """What runs now."""
        return {s.pid: s.node_id for s in self._servers.values() if s.pid is not None}

    def late(self) -> list[str]:
        """Those that do not serve."""
        return [server.node_id for server in self._servers.values() if not server.is_ready]

    async def start(self, timeout_s: float, keys: ClusterKeys | None = None) -> None:
        """Start all; returns when each serves. `stop` is due whatever happens.

        Args:
            keys: each has an identity of these, and lets nobody in who has none.

        Raises:
            ClusterError: not in time.
            EmbeddedServerError: Java or its jars are missing.
        """
        self._keys = keys
        self._command = await asyncio.to_thread(lambda: server_command(find_java(), find_jars()))
        for server_id, server in enumerate(self._servers.values(), 1):
            write_configuration(
                server.folder, server.port, members=self._members, server_id=server_id,
                identity_dir=None if keys is None else keys.folder_of(server.node_id),
            )  # fmt: skip
            server.log_file.parent.mkdir(parents=True, exist_ok=True)
            self._keepers.append(asyncio.create_task(self._keep(server)))
        if not await comes_true(lambda: not self.late(), timeout_s):
            log = read_tail(self._servers[self.late()[0]].log_file)
            raise ClusterError(f"not serving within {timeout_s:g} s: {self.late()}. {log}")

    async def stop(self) -> None:
        """End all, paused ones too; no process is left."""
        self._is_stopping = True
        for server in self._servers.values():
            _send(server, signal.SIGTERM)
            _send(server, signal.SIGCONT)
        if self._keepers:
            _, late = await asyncio.wait(self._keepers, timeout=STOP_S)
            for server in self._servers.values():
                _send(server, signal.SIGKILL)
            for task in late:
                task.cancel()
            await asyncio.gather(*self._keepers, return_exceptions=True)

    async def _keep(self, server: _Server) -> None:
        while True:
            await self._may_start(server.node_id)
            if self._is_stopping:
                return
            await self._live(server)
            await wait_at_most(_RESTART_PAUSE_S)

    async def _live(self, server: _Server) -> None:
        """One life of a server."""
        with server.log_file.open("ab") as log:
            server.process = await asyncio.create_subprocess_exec(
                sys.executable, "-IS", tether.__file__, str(os.getpid()), *self._command,
                cwd=server.folder, stdin=asyncio.subprocess.DEVNULL, stdout=log,
                stderr=asyncio.subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self._on_started(server.node_id)
        probe = asyncio.create_task(self._probe(server))
        try:
            await server.process.wait()
        finally:
            _send(server, signal.SIGKILL)
            probe.cancel()
            server.is_ready = False
            self._on_exited(server.node_id)

    async def _probe(self, server: _Server) -> None:
        while True:
            # Made each time: the server's own certificate is turned, too.
            keys = self._keys
            context = None if keys is None else keys.make_server_context(server.node_id)
            server.is_ready = await is_serving(server.port, context)
            await wait_at_most(0.2 if not server.is_ready else 1.0)


def _send(server: _Server, number: signal.Signals) -> None:
    if server.pid is not None:
        with suppress(ProcessLookupError):
            os.kill(server.pid, number)
