"""A cluster of processes that are started one by one, each with the security of the step it is in.

Its ZooKeeper has a plain port, a TLS port, or both, by the lines that the page gives a person.

Used by `test_turning` and `test_mixed_versions`. Source: docs/protocol/turning-on.md "The order".
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final, Literal

import httpx

from duramen.cli.main import main
from duramen.cluster.layout import pick_free_port
from duramen.runtime.embedded_zookeeper import (
    find_jars,
    find_java,
    server_command,
    write_configuration,
)
from duramen.runtime.identity.zookeeper_files import make_client_context
from tests.process.times import HANG_S
from tests.waiting import wait_in_thread

Security = Literal["none", "migrate", "on"]
Ports = Literal["plain", "both", "tls"]

NAME: Final = "turning"
NODES: Final = {
    "bookie-0": "bookie", "bookie-1": "bookie", "bookie-2": "bookie",
    "sequencer-0": "sequencer", "sequencer-1": "sequencer",
    "writeproxy-0": "writeproxy", "readproxy-0": "readproxy",
}  # fmt: skip
MORE: Final = "readproxy-1"
"""It is never let start."""
ROLES: Final = {**NODES, MORE: "readproxy"}
_STRICT: Final = "enforce.auth.enabled=true\nenforce.auth.schemes=x509\n"
_NOTHING: Final[Mapping[str, str]] = {}
_KINDS: Final = ("data", "admin", "tls-data", "tls-admin", "stream")


class TurningCluster:
    """The processes, their folders and ports."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.ports = {node: {kind: pick_free_port() for kind in _KINDS} for node in ROLES}
        self._zookeeper_ports = {"plain": pick_free_port(), "tls": pick_free_port()}
        self.security: dict[str, Security] = {}
        folder.mkdir()

    def identity(self, name: str) -> Path:
        return self._folder / "identities" / name

    def zookeeper(self, kind: Literal["plain", "tls"]) -> str:
        return f"127.0.0.1:{self._zookeeper_ports[kind]}"

    @property
    def ca(self) -> Path:
        return self.identity("op") / "ca.crt"

    def issue_all(self) -> None:
        """A CA for the cluster that is there, and an identity to each process."""
        authority = str(self._folder / "ca")
        where = ["--zookeeper", self.zookeeper("plain"), "--cluster", NAME]
        assert main(["ca", "init", authority, *where]) == 0
        called = ["--called", "127.0.0.1"]
        for name, role in {**ROLES, "zookeeper-0": "zookeeper", "op": "operator"}.items():
            out = ["--out", str(self.identity(name)), *(called if role != "operator" else [])]
            assert main(["ca", "issue", authority, role, name, *out]) == 0

    def turn_zookeeper(self, ports: Ports) -> None:
        """Start it with these ports, in place of the one that runs."""
        self._end("zookeeper-0")
        data = self._folder / "zookeeper"
        plain, tls = self._zookeeper_ports["plain"], self._zookeeper_ports["tls"]
        if ports == "plain":
            write_configuration(data, plain)
        else:
            write_configuration(data, tls, identity_dir=self.identity("zookeeper-0"))
        if ports == "both":
            file = data / "zoo.cfg"
            text = file.read_text()
            assert _STRICT in text
            lines = f"clientPortAddress=127.0.0.1\nclientPort={plain}\n"
            file.write_text(text.replace(_STRICT, lines))
        self._spawn("zookeeper-0", server_command(find_java(), find_jars()), data)

    def command(self, node: str, security: Security) -> list[str]:
        role, ports = ROLES[node], self.ports[node]
        command = [sys.executable, "-m", f"duramen_{role}.main", "--cluster", NAME]
        command += ["--id", node, "--security", security]
        # A proxy whose clients move from port to port keeps that with TLS.
        has_public = role == "writeproxy" and security != "none"
        data = ports["tls-data"] if has_public and security == "on" else ports["data"]
        command += ["--data-port", str(data), "--admin-port", str(ports["admin"])]
        command += ["--zookeeper", self.zookeeper("plain" if security == "none" else "tls")]
        if security != "none":
            command += ["--tls-dir", str(self.identity(node))]
        if has_public:
            command += ["--public-tls-dir", str(self.identity(node))]
        if security == "migrate":
            command += ["--tls-admin-port", str(ports["tls-admin"])]
            if role != "readproxy":
                command += ["--tls-data-port", str(ports["tls-data"])]
        if role == "bookie":
            command += ["--data-dir", str(self._folder / node), "--rack", node]
        if role in ("bookie", "sequencer") and self.knows_streams(security):
            command += ["--stream-port", str(ports["stream"])]
        return command

    def knows_streams(self, _security: Security) -> bool:
        """Whether a process of this step is of a version that has streams."""
        return True

    def environment(self, _security: Security) -> dict[str, str]:
        """What a process of this step has beside what a test has itself."""
        return {}

    def turn(self, node: str, security: Security) -> None:
        """Start a process with this security, in place of the one that runs."""
        self._end(node)
        environment = self.environment(security)
        self._spawn(node, self.command(node, security), self._folder, environment)
        self.security[node] = security
        wait_in_thread(partial(self._is_ready, node), HANG_S, f"{node} to be ready")

    def turn_all(self, security: Security) -> None:
        for node in NODES:
            self.turn(node, security)

    def refuse(self, security: Security) -> str:
        """What a read proxy more says, which is not let start."""
        command = [*self.command(MORE, security), "--session-timeout-s", "1"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
        assert ended.returncode == 1, ended.stderr
        return ended.stderr.splitlines()[-1]

    def stop(self) -> None:
        for node in [*reversed(NODES), "zookeeper-0"]:
            self._end(node)

    def _is_ready(self, node: str) -> bool:
        assert self._processes[node].poll() is None, self._read_end(node)
        is_tls = self.security[node] == "on"
        url = f"{'https' if is_tls else 'http'}://127.0.0.1:{self.ports[node]['admin']}/readyz"
        try:
            trusted = make_client_context(self.ca.read_text()) if is_tls else False
            return httpx.get(url, timeout=5, verify=trusted).status_code == 200
        except httpx.HTTPError:
            return False

    def _spawn(
        self, node: str, command: list[str], folder: Path, more: Mapping[str, str] = _NOTHING
    ) -> None:
        with (self._folder / f"{node}.log").open("ab") as log:
            self._processes[node] = subprocess.Popen(
                command, cwd=folder, stdout=log, stderr=log, start_new_session=True,
                env=os.environ | more,
            )  # fmt: skip

    def _end(self, node: str) -> None:
        process = self._processes.pop(node, None)
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(HANG_S)
        finally:
            process.kill()

    def _read_end(self, node: str) -> str:
        return (self._folder / f"{node}.log").read_text()[-2000:]
