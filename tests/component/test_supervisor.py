"""The supervisor with real processes that only pretend to be services: start, death, stop, again.

A fake service serves `/readyz` and writes a cookie as a bookie does; its command line ends with
that of the real one, so that leftovers are recognised. No ZooKeeper: one is said to be there.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from duramen.cluster import supervisor
from duramen.cluster.layout import ClusterSize, ProcessPlan
from duramen.cluster.process import service_command
from duramen.cluster.supervisor import (
    ClusterError,
    ClusterEvent,
    ClusterOptions,
    Supervisor,
)
from duramen.runtime.embedded_zookeeper import MAIN_CLASS
from tests.pauses import stay

pytestmark = pytest.mark.process

TIMEOUT_S = 50.0
FAKE = """
import http.server, json, os, pathlib, signal, sys, threading
flags = dict(zip(sys.argv[3::2], sys.argv[4::2]))  # what follows -m duramen_x.main
mode = os.environ.get("FAKE_" + flags["--id"].replace("-", "_"))
if mode == "dies":
    sys.exit("this one always dies")
if mode == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "--data-dir" in flags:
    cookie = pathlib.Path(flags["--data-dir"], "cookie.json")
    cookie.write_text(json.dumps({"incarnation": flags["--id"].encode().hex()}))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_PUT(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.do_GET()
    def do_GET(self):
        body = b"{}"
        self.send_response(503 if mode == "unready" else 200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args):
        pass
class Server(http.server.ThreadingHTTPServer):
    def server_bind(self):  # without the look-up of the host's name
        http.server.socketserver.TCPServer.server_bind(self)
Server.server_name = "fake"
data = Server(("127.0.0.1", int(flags["--data-port"])), Handler)
threading.Thread(target=data.serve_forever, daemon=True).start()
Server(("127.0.0.1", int(flags["--admin-port"])), Handler).serve_forever()
"""


COMMAND = """
import functools, sys
from duramen.cli import main
from duramen.cli.programs import run
from duramen.cluster.supervisor import Supervisor
from tests.component.test_supervisor import fake_command
make_command = functools.partial(fake_command, sys.argv[1])
run.Supervisor = functools.partial(Supervisor, make_command=make_command)
sys.exit(main.main(sys.argv[2:]))
"""

KILLED_COMMAND = (
    """
import os, signal
from duramen.cluster import supervisor
write_state = supervisor.write_state
def write_or_die(folder, state):
    if any(member.pid is not None for member in state.members):
        os.kill(os.getpid(), signal.SIGKILL)
    write_state(folder, state)
supervisor.write_state = write_or_die
"""
    + COMMAND
)
"""Killed between a process that has begun and the line about it."""


def fake_command(script: str, plan: ProcessPlan, zookeeper: str, tls_dir: Path | None) -> list[str]:
    """The real command line with another program in front."""
    if plan.data_dir is not None:
        plan.data_dir.mkdir(parents=True, exist_ok=True)
    return [sys.executable, "-S", script, *service_command(plan, zookeeper, tls_dir)[1:]]


def write_fake(folder: Path) -> str:
    path = folder / "fake_service.py"
    path.write_text(FAKE)
    return str(path)


class Cluster:
    """A supervisor over fake services, with what it said."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.folder = folder
        self.events: list[ClusterEvent] = []
        self._heard = asyncio.Event()
        make_command = functools.partial(fake_command, write_fake(folder.parent))
        options = ClusterOptions(
            folder=folder,
            size=ClusterSize(bookies=2),
            base_port=0,
            zookeeper="127.0.0.1:2181",
            ready_timeout_s=30.0,
        )
        self.supervisor = Supervisor(
            dataclasses.replace(options, **changes), self._on_event, make_command
        )

    def document(self) -> dict[str, Any]:
        """cluster.json, as anybody reads it."""
        found: dict[str, Any] = json.loads((self.folder / "cluster.json").read_bytes())
        return found

    def entry(self, node_id: str) -> dict[str, Any]:
        return next(e for e in self.document()["processes"] if e["id"] == node_id)

    def pids(self) -> list[int]:
        return [e["pid"] for e in self.document()["processes"] if e["pid"] is not None]

    async def wait_event(self, is_it: Callable[[ClusterEvent], bool]) -> ClusterEvent:
        while not (found := [event for event in self.events if is_it(event)]):
            self._heard.clear()
            await self._heard.wait()
        return found[0]

    def _on_event(self, event: ClusterEvent) -> None:
        self.events.append(event)
        self._heard.set()


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await coroutine

    asyncio.run(bounded())


def is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def start_process(*arguments: str, cwd: Path | None = None) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, *arguments], stdin=subprocess.PIPE, cwd=cwd)


def test_start_shows_everything_and_stop_leaves_nothing(tmp_path: Path) -> None:
    async def check() -> None:
        cluster = Cluster(tmp_path / "data")
        await cluster.supervisor.start()
        pids = cluster.pids()
        assert len(pids) == 5
        assert all(is_running(pid) for pid in pids)
        assert cluster.entry("bookie-1")["incarnation"] == b"bookie-1".hex()
        assert cluster.entry("bookie-1")["rack"] == "r2"
        write = cluster.entry("writeproxy-0")
        assert cluster.document()["write_url"] == write["data_url"]
        assert cluster.document()["admin_url"] == write["admin_url"]
        assert all(os.getsid(pid) == pid for pid in pids)  # Ctrl-C reaches the supervisor alone
        await cluster.supervisor.stop()
        assert not any(is_running(pid) for pid in pids)
        assert cluster.pids() == []
        exits = [e.node_id or "" for e in cluster.events if e.kind == "exited"]
        assert {e.split("-")[0] for e in exits[:2]} == {"writeproxy", "readproxy"}
        assert exits[2] == "sequencer-0"

    run(check())


def test_a_killed_process_is_started_again(tmp_path: Path) -> None:
    async def check() -> None:
        cluster = Cluster(tmp_path / "data")
        await cluster.supervisor.start()
        before = cluster.entry("bookie-0")
        cluster.events.clear()
        os.kill(before["pid"], signal.SIGKILL)
        died = await cluster.wait_event(lambda e: e.kind == "exited")
        assert (died.node_id, died.pid, died.status) == ("bookie-0", before["pid"], -9)
        assert cluster.entry("bookie-0")["pid"] is None
        again = await cluster.wait_event(lambda e: e.kind == "ready")
        after = cluster.entry("bookie-0")
        assert again.node_id == "bookie-0"
        assert is_running(after["pid"])
        assert after | {"pid": 0} == before | {"pid": 0}  # same ports, folder, incarnation
        assert cluster.supervisor.statistics()["bookie-0"] == {"starts": 2, "is_ready": True}
        await cluster.supervisor.stop()
        assert not is_running(after["pid"])

    run(check())


def test_a_probe_that_loses_its_cancellation_does_not_hold_up_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a process that died unready was not started again, and `stop` never ended."""

    async def lose_cancellation(plan: ProcessPlan, client: object) -> bool:
        with contextlib.suppress(asyncio.CancelledError):
            await stay()
        return False

    async def check() -> None:
        cluster = Cluster(tmp_path / "data")
        await cluster.supervisor.start()
        monkeypatch.setattr(supervisor, "_is_ready", lose_cancellation)
        for _ in range(2):
            cluster.events.clear()
            os.kill(cluster.entry("bookie-0")["pid"], signal.SIGKILL)
            await cluster.wait_event(lambda e: e.kind == "exited")
            await cluster.wait_event(lambda e: e.kind == "started")
        assert cluster.supervisor.statistics()["bookie-0"] == {"starts": 3, "is_ready": False}
        await cluster.supervisor.stop()
        assert cluster.pids() == []

    run(check())


def test_without_restarts_the_dead_stay_dead(tmp_path: Path) -> None:
    async def check() -> None:
        cluster = Cluster(tmp_path / "data", is_restarting=False)
        await cluster.supervisor.start()
        os.kill(cluster.entry("bookie-0")["pid"], signal.SIGKILL)
        told = await cluster.wait_event(lambda e: e.kind == "fault")
        assert "bookie-0" in (told.detail or "")
        assert cluster.entry("bookie-0")["pid"] is None
        assert len(cluster.pids()) == 4
        await cluster.supervisor.stop()
        assert cluster.supervisor.statistics()["bookie-0"]["starts"] == 1

    run(check())


def test_the_next_run_has_the_same_ports(tmp_path: Path) -> None:
    async def check() -> None:
        urls = []
        for _ in range(2):
            cluster = Cluster(tmp_path / "data")
            await cluster.supervisor.start()
            urls.append([(e["data_url"], e["admin_url"]) for e in cluster.document()["processes"]])
            await cluster.supervisor.stop()
        assert urls[0] == urls[1]

    run(check())


def test_a_folder_has_one_supervisor(tmp_path: Path) -> None:
    async def check() -> None:
        first = Cluster(tmp_path / "data")
        await first.supervisor.start()
        pids = first.pids()
        second = Cluster(tmp_path / "data")
        with pytest.raises(ClusterError, match="another duramen run"):
            await second.supervisor.start()
        await second.supervisor.stop()
        assert first.pids() == pids
        assert all(is_running(pid) for pid in pids)
        await first.supervisor.stop()

    run(check())


def test_what_does_not_get_ready_is_named_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> None:
        cluster = Cluster(tmp_path / "data")
        monkeypatch.setenv("FAKE_bookie_1", "dies")
        with pytest.raises(ClusterError, match=r"(?s)bookie-1 ended 5 times.*always dies"):
            await cluster.supervisor.start()
        await cluster.supervisor.stop()
        monkeypatch.delenv("FAKE_bookie_1")
        monkeypatch.setenv("FAKE_sequencer_0", "unready")
        cluster = Cluster(tmp_path / "data", ready_timeout_s=2.0)
        with pytest.raises(ClusterError, match=r"not ready within 2 s: .*sequencer-0"):
            await cluster.supervisor.start()
        pids = cluster.pids()
        await cluster.supervisor.stop()
        assert not any(is_running(pid) for pid in pids)

    run(check())


def test_deaf_and_paused_processes_are_ended_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> None:
        monkeypatch.setenv("FAKE_bookie_0", "deaf")
        cluster = Cluster(tmp_path / "data", stop_timeout_s=3.0)
        await cluster.supervisor.start()
        pids = cluster.pids()
        os.kill(cluster.entry("readproxy-0")["pid"], signal.SIGSTOP)
        await cluster.supervisor.stop()
        assert not any(is_running(pid) for pid in pids)
        ends = {e.node_id: e.status for e in cluster.events if e.kind == "exited"}
        assert (ends["bookie-0"], ends["readproxy-0"]) == (-9, -15)

    run(check())


def test_a_start_that_was_killed_before_it_wrote_a_pid_leaves_nobody(tmp_path: Path) -> None:
    """Regression: two servers ran on one folder. No cluster.json says a word of this one."""
    folder = tmp_path / "data"
    command = start_command(tmp_path, "--security", "none", program=KILLED_COMMAND)
    assert command.wait(TIMEOUT_S) == -signal.SIGKILL
    command.communicate()
    planned = json.loads((folder / "cluster.json").read_bytes())["processes"]
    assert [one["pid"] for one in planned] == [None] * 6
    (folder / "zookeeper-0").mkdir()
    server = start_process("-c", "input()", MAIN_CLASS, cwd=folder / "zookeeper-0")
    strangers = [start_process("-c", "input()"), start_process("-c", "input()", MAIN_CLASS)]
    link = tmp_path / "link"
    link.symlink_to(folder)

    async def check() -> None:
        after = Cluster(link)
        await after.supervisor.start()
        found = {e.node_id: e.pid or 0 for e in after.events if e.kind == "leftover"}
        assert found.pop("zookeeper-0") == server.pid
        assert found and all(pid and not is_running(pid) for pid in found.values())
        assert server.wait(10) == -signal.SIGTERM
        assert [one.poll() for one in strangers] == [None, None]
        former = {one["id"]: one["data_url"] for one in planned}
        for one in after.document()["processes"]:
            assert one["data_url"] == former[one["id"]], "ports are kept"
        await after.supervisor.stop()

    try:
        run(check())
    finally:
        for one in (server, *strangers):
            one.kill()
            one.communicate()


def test_a_folder_that_others_can_read_is_closed_to_them(tmp_path: Path) -> None:
    async def check() -> None:
        folder = tmp_path / "data"
        folder.mkdir(mode=0o755)
        cluster = Cluster(folder)
        await cluster.supervisor.start()
        assert folder.stat().st_mode & 0o777 == 0o700
        await cluster.supervisor.stop()

    run(check())


def start_command(folder: Path, *flags: str, program: str = COMMAND) -> subprocess.Popen[bytes]:
    """`duramen run` of fake programs, with its data in `folder`/data."""
    arguments = ["run", "--json", "--data", "data", "--base-port", "0", "--zookeeper", "none:1"]
    root = Path(__file__).resolve().parents[2]
    return subprocess.Popen(
        [sys.executable, "-c", program, write_fake(folder), *arguments, *flags],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(root), *filter(None, sys.path)])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def test_a_folder_that_ran_without_identities_does_so_again_and_says_so(tmp_path: Path) -> None:
    for flags, is_told in ((("--security", "none"), False), ((), True)):
        command = start_command(tmp_path, *flags)
        try:
            assert command.stdout is not None
            events = map(json.loads, command.stdout)
            ready = next(event for event in events if event["event"] == "cluster_ready")
            assert ready["security"] == "none"
            os.killpg(command.pid, signal.SIGINT)
            _, said = command.communicate(timeout=TIMEOUT_S)
            assert (b"data ran with --security none, and does so again" in said) is is_told
        finally:
            command.kill()
            command.communicate()


def test_anothers_zookeeper_is_not_turned(tmp_path: Path) -> None:
    """Its nodes would stay anybody's: nothing is started, and nothing made."""
    command = start_command(tmp_path, "--security", "migrate")
    _, said = command.communicate(timeout=TIMEOUT_S)
    assert command.returncode == 2
    told = " ".join(said.decode().split())
    assert "--security migrate is for a ZooKeeper that duramen run starts itself" in told
    assert "with --zookeeper say --security on or none" in told
    assert not (tmp_path / "data").exists()


def test_a_new_folder_asks_who_calls(tmp_path: Path) -> None:
    """With a ZooKeeper of somebody's own there has to be a CA that it trusts."""
    command = start_command(tmp_path)
    _, said = command.communicate(timeout=TIMEOUT_S)
    assert command.returncode == 1
    assert b"holds no CA" in said and b"or say --security none" in said


def test_ctrl_c_on_duramen_run_leaves_nothing(tmp_path: Path) -> None:
    command = start_command(tmp_path, "--security", "none")
    try:
        assert command.stdout is not None
        events = map(json.loads, command.stdout)
        ready = next(event for event in events if event["event"] == "cluster_ready")
        pids = [entry["pid"] for entry in ready["processes"]]
        assert len(pids) == 6
        assert all(is_running(pid) for pid in pids)
        folder = tmp_path / "data"
        files = [folder, *folder.rglob("*")]
        open_to_others = [path for path in files if path.stat().st_mode & 0o077]
        assert len(files) > 10 and not open_to_others, "records are nobody's but the owner's"
        os.killpg(command.pid, signal.SIGINT)  # as a terminal does
        assert [event["event"] for event in events][-1] == "stopped"
        assert command.wait(TIMEOUT_S) == 0
        assert not any(is_running(pid) for pid in pids)
    finally:
        command.kill()
        command.communicate()
