"""Services and ZooKeeper as pods start them: names not there yet, advertised hosts, probes.

A whole cluster is created at once, so ZooKeeper comes up after those who need it, and its name in
DNS with it; what a service registers must be reachable from other pods, which know it by another
host than the one it listens on; and a member of ZooKeeper is only its flags and its volume.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from duramen.cluster import health, zookeeper_node
from duramen.cluster.layout import pick_free_port
from duramen.runtime.stores.zookeeper_store import ZooKeeperStore
from duramen.wire.metadata_json import Paths, read_node
from tests.process.times import HANG_S
from tests.requirements import Need, leave_out
from tests.waiting import wait_in_thread
from tests.zookeeper_fixture import run, running_zookeeper

pytestmark = pytest.mark.process

CLUSTER = "pods"
POD_HOST = "pod-0.headless.duramen.svc"
ROLES = ("bookie", "sequencer", "writeproxy", "readproxy")


@contextmanager
def started(*command: str) -> Iterator[subprocess.Popen[str]]:
    """A child with its output in a pipe, ended by force if the block did not end it."""
    child = subprocess.Popen(
        [sys.executable, "-m", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield child
    finally:
        if child.poll() is None:
            child.kill()
        child.communicate()


def service_command(role: str, folder: Path, zookeeper: str, admin_port: int) -> list[str]:
    command = [f"duramen_{role}.main", "--cluster", CLUSTER, "--id", f"{role}-0"]
    command += ["--data-port", str(pick_free_port()), "--admin-port", str(admin_port)]
    command += ["--zookeeper", zookeeper, "--security", "none", "--advertise", f"{POD_HOST}:7101"]
    return command + (["--data-dir", str(folder / role)] if role == "bookie" else [])


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with ExitStack() as stack:
        zookeeper = stack.enter_context(running_zookeeper(tmp_path))
        other = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        taken = str(other.getsockname()[1])
        for role in ROLES:
            has_streams = role in ("bookie", "sequencer")
            for option in ("--data-port", "--admin-port", "--stream-port")[: 2 + has_streams]:
                command = service_command(role, tmp_path, zookeeper.address, pick_free_port())
                if has_streams:
                    command += ["--stream-port", "0"]
                command[command.index(option) + 1] = taken
                with started(*command) as child:
                    told = child.communicate(timeout=HANG_S)[0].splitlines()[-1]
                assert child.returncode == 1
                refusal = f"{role}-0 cannot start: Address already in use: 127.0.0.1, port "
                assert told.startswith(refusal) and taken in told and option in told, told


def test_services_wait_for_the_name_of_zookeeper(tmp_path: Path) -> None:
    ports = {role: pick_free_port() for role in ROLES}
    with ExitStack() as stack:
        children = [
            stack.enter_context(
                started(*service_command(role, tmp_path, "zookeeper.invalid:2181", port))
            )
            for role, port in ports.items()
        ]
        for child in children:
            assert child.stdout is not None
            # Twice: it is seen to try again.
            waiting = (line for line in child.stdout if "waiting for ZooKeeper" in line)
            assert next(waiting)
            assert next(waiting)
        for role, port in ports.items():
            wait_in_thread(alive(port), HANG_S, f"the {role} to say that it is alive")
            assert health.main([str(port)]) == 1
        for child in children:
            child.terminate()
            assert child.wait(HANG_S) == 0


def test_others_are_told_the_advertised_host(tmp_path: Path) -> None:
    ports = {role: pick_free_port() for role in ROLES}
    paths = Paths(CLUSTER)
    places = {
        "bookie": paths.available,
        "sequencer": paths.sequencers,
        "writeproxy": paths.write_proxies,
        "readproxy": paths.read_proxies,
    }
    with running_zookeeper(tmp_path) as zookeeper:
        for role, port in ports.items():
            with started(*service_command(role, tmp_path, zookeeper.address, port)) as child:
                wait_in_thread(ready(port), HANG_S, f"the {role}")
                found = run(read_fields(zookeeper.address, f"{places[role]}/{role}-0"))
                assert found["admin_url"] == f"http://{POD_HOST}:{port}"
                assert found["data_url"] == f"http://{POD_HOST}:7101"
                child.terminate()
                assert child.wait(HANG_S) == 0


async def read_fields(zookeeper: str, path: str) -> dict[str, Any]:
    store = ZooKeeperStore(zookeeper)
    await store.start()
    try:
        found = await store.get(path)
        assert found is not None
        return read_node(found.data)
    finally:
        await store.close()


def alive(port: int) -> Callable[[], bool]:
    return lambda: health.main([str(port), "--alive"]) == 0


def ready(port: int) -> Callable[[], bool]:
    def ask() -> bool:
        try:
            answer = httpx.get(f"http://127.0.0.1:{port}/readyz", trust_env=False)
        except httpx.TransportError:
            return False
        return answer.status_code == 200

    return ask


def member_command(folder: Path, index: int, hosts: list[str], ports: list[int]) -> list[str]:
    command = ["duramen.cluster.zookeeper_node", "--data-dir", str(folder / f"zookeeper-{index}")]
    command += ["--name", f"zookeeper-{index}", "--members", ",".join(hosts)]
    command += ["--host", hosts[index], "--client-port", str(ports[0]), "--found"]
    return [*command, "--quorum-port", str(ports[1]), "--election-port", str(ports[2])]


def serving(host: str, port: int) -> Callable[[], bool]:
    arguments = ["health", "--host", host, "--client-port", str(port)]
    return lambda: zookeeper_node.main(arguments) == 0


def test_one_member_stands_alone_and_ends_on_a_signal(tmp_path: Path) -> None:
    ports = [pick_free_port() for _ in range(3)]
    assert not serving("127.0.0.1", ports[0])()
    with started(*member_command(tmp_path, 0, ["127.0.0.1"], ports)) as child:
        wait_in_thread(serving("127.0.0.1", ports[0]), HANG_S, "the server")
        child.terminate()
        assert child.wait(HANG_S) == 143  # Java's way to say that it obeyed


def test_three_members_elect_a_leader(tmp_path: Path) -> None:
    hosts = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    ports = [pick_free_port() for _ in range(3)]
    with started(*member_command(tmp_path, 2, hosts, ports)) as alone:
        alive = ["health", "--alive", "--host", hosts[2], "--client-port", str(ports[0])]
        wait_in_thread(lambda: zookeeper_node.main(alive) == 0, HANG_S, "a member")
        assert not serving(hosts[2], ports[0])(), "one of three is no quorum"
        with (
            started(*member_command(tmp_path, 0, hosts, ports)),
            started(*member_command(tmp_path, 1, hosts, ports)),
        ):
            for host in hosts:
                wait_in_thread(serving(host, ports[0]), HANG_S, f"the member on {host}")
        assert alone.poll() is None


@pytest.mark.parametrize(
    ("flags", "advice"),
    [
        (["--name", "zookeeper-3", "--members", "a,b,c"], "from 0 to 2"),
        (["--name", "zookeeper", "--members", "a,b,c"], "from 0 to 2"),
        (["--name", "zookeeper-0", "--members", "a,b"], "1, 3 or 5"),
        (["--name", "zookeeper-0", "--members", "a,b,a"], "1, 3 or 5"),
    ],
)
def test_flags_that_make_no_member_are_refused(
    flags: list[str], advice: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--host", "127.0.0.1", "--data-dir", str(tmp_path)]
    assert zookeeper_node.main([*flags, *where]) == 1
    assert advice in capsys.readouterr().err


def test_the_data_of_another_member_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "myid").write_text("2\n")
    flags = ["--name", "zookeeper-0", "--members", "a,b,c", "--data-dir", str(tmp_path)]
    assert zookeeper_node.main([*flags, "--host", "127.0.0.1"]) == 1
    assert "give it its own volume" in capsys.readouterr().err


def test_a_member_without_an_identity_listens_to_this_machine_unless_it_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--name", "zookeeper", "--data-dir", str(tmp_path / "data")]
    assert zookeeper_node.main(flags) == 1
    said = capsys.readouterr().err
    assert "whoever reaches --host 0.0.0.0" in said and "--accept-anybody" in said
    assert not (tmp_path / "data").exists()
    assert zookeeper_node.main([*flags, "--accept-anybody"]) == 1
    assert "holds no database" in capsys.readouterr().err, "it went on to its data"


def test_the_first_process_of_a_container_can_be_ended_while_it_loads() -> None:
    if os.geteuid() != 0:
        leave_out(Need.ROOT, "it makes a namespace of processes")
    code = (
        "import os, signal, sys\n"
        "assert os.getpid() == 1\n"
        "from duramen.cluster import first_process\n"
        "os.kill(1, signal.SIGTERM)\n"
        "sys.exit('it was not ended')\n"
    )
    wrapped = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", code]
    assert subprocess.run(wrapped, check=False).returncode == 143


def test_modules_are_loaded_with_few_looks_for_cycles() -> None:
    """Python's own threshold is 700 objects, and the modules of a service are half a million."""
    code = "import gc; from duramen.cluster import first_process; print(gc.get_threshold()[0])"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(found.stdout) >= 20_000


@pytest.mark.parametrize("role", ROLES)
def test_a_service_can_be_ended_before_it_loads_anything_large(role: str) -> None:
    module = importlib.util.find_spec(f"duramen_{role}.main")
    assert module is not None
    assert module.origin is not None
    tree = ast.parse(Path(module.origin).read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    ours = [node for node in imports if (node.module or "").startswith("duramen")]
    assert [name.name for name in ours[0].names] == ["first_process"]
