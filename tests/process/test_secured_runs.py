"""One folder of `duramen run`, with identities and without: what may follow what.

Source: docs/protocol/metadata-access.md "A local cluster", docs/protocol/turning-on.md "On a
laptop".
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import httpx
import pytest

from duramen.cli.main import main
from duramen.cluster.layout import pick_free_port
from duramen.runtime.embedded_zookeeper import MAIN_CLASS, EmbeddedZooKeeper
from duramen.runtime.stores.access import open_rights
from duramen.runtime.stores.zookeeper_store import ZooKeeperStore
from tests.process.cluster import (
    LocalCluster,
    create_log,
    run,
    running_cluster,
    running_plain_cluster,
)
from tests.process.history import read_log
from tests.process.times import HANG_S
from tests.unit.identities import DOMAIN

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]


_KILLED_RUN: Final = """
import os, signal, sys
from duramen.cli import main
from duramen.cluster import local_identities, supervisor
begin_authority, write_state = local_identities.begin_authority, supervisor.write_state
def begin_and_die(*arguments):
    begin_authority(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)
def write_or_die(folder, state):
    if any(member.pid is not None for member in state.members):
        os.kill(os.getpid(), signal.SIGKILL)
    write_state(folder, state)
if sys.argv[1] == "authority":
    local_identities.begin_authority = begin_and_die
else:
    supervisor.write_state = write_or_die
sys.exit(main.main(sys.argv[2:]))
"""
"""A run that is killed when its CA is there and nothing else, or before it writes the first pid."""


async def _append(cluster: LocalCluster, body: str) -> None:
    client = cluster.open_client("write_url")
    await client.post_json("/v1/namespaces/default/logs/log/records", {"records": [{"body": body}]})
    await client.close()


async def _append_as_nobody(cluster: LocalCluster, body: str) -> None:
    """As a page or a script that has no token."""
    url = f"{cluster.state()['write_url']}/v1/namespaces/default/logs/log/records"
    async with httpx.AsyncClient(verify=False) as client:
        answer = await client.post(url, json={"records": [{"body": body}]})
    assert answer.status_code == 200, answer.text


def _list_findings(folder: Path, capsys: pytest.CaptureFixture[str]) -> set[tuple[str, str, str]]:
    """What the report has of public ports; how processes find one another is told by times."""
    capsys.readouterr()
    main(["security", "report", "--data", str(folder), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert {node["security"] for node in told["nodes"]} == {"migrate"} and not told["silent"]
    rows = [row for node in told["nodes"] for row in node["rows"]]
    return {
        (row["port"], row["verb"], row["why"]) for row in rows if row["port"] in ("public", "admin")
    }


def _check_rights(folder: Path) -> None:
    operator = str(folder / "identities" / "operator")
    assert main(["access", "check", operator, "--data", str(folder)]) == 0


async def _check_open(cluster: LocalCluster) -> None:
    """Who has no identity comes to ZooKeeper by the port of before, and may do all there."""
    address = cluster.process("zookeeper-0")["data_url"].removeprefix("tcp://")
    store = ZooKeeperStore(address)
    await store.start()
    for path in ("/", "/duramen/local", "/duramen/local/logs", "/duramen/local/access-tokens"):
        found = await store.get_rights(path)
        assert found is not None and set(found) == set(open_rights(path)), path
    await store.close()


def _read_whole(cluster: LocalCluster) -> list[str]:
    return [body.decode() for body in run(read_log(cluster.open_client("read_url"), "log"))]


def _kill_a_start(folder: Path, *flags: str) -> None:
    """The run is killed when its ZooKeeper serves: before its nodes are opened, or meanwhile."""
    command = [sys.executable, "-m", "duramen.cli.main", "run", "--json", "--data", str(folder)]
    with subprocess.Popen(
        [*command, "--base-port", "0", *flags], stdout=subprocess.PIPE, text=True
    ) as begun:
        assert begun.stdout is not None
        events = map(json.loads, begun.stdout)
        next(one for one in events if (one["event"], one.get("id")) == ("ready", "zookeeper-0"))
        begun.kill()


@pytest.mark.night
@pytest.mark.timeout(HANG_S * 8)
def test_a_cluster_turns_security_on_and_off_and_keeps_its_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "c"
    with running_plain_cluster(folder) as plain:
        run(create_log(plain, "log", {}))
        run(_append(plain, "before"))
        assert plain.read_headers() == {} and not (folder / "curl.conf").exists()
    appended = ["before"]
    tokens: list[str] = []
    with running_cluster(folder, "--security", "migrate") as turning:
        tokens.append(turning.read_headers()["authorization"])
        assert not _list_findings(folder, capsys), "what the folder has is known, whoever asks"
        run(_append(turning, "known"))
        run(_append_as_nobody(turning, "unknown"))
        appended += ["known", "unknown"]
        assert _read_whole(turning) == appended
        assert _list_findings(folder, capsys) == {("public", "append", "unauthenticated")}
    with running_cluster(folder, "--security", "on") as secured:
        tokens.append(secured.read_headers()["authorization"])
        run(_append(secured, "after"))
        appended.append("after")
        assert _read_whole(secured) == appended
        _check_rights(folder)
    _kill_a_start(folder, "--security", "migrate")
    # Nobody says so: it is what was asked for last.
    with running_cluster(folder) as turning:
        assert turning.state()["security"] == "migrate"
        tokens.append(turning.read_headers()["authorization"])
        run(_append_as_nobody(turning, "once more"))
        appended.append("once more")
        assert _read_whole(turning) == appended
        run(_check_open(turning))
    assert len(set(tokens)) == 1, "the node of a token is there when the next run looks"
    secret = tokens[0].partition(" ")[2]
    with running_cluster(folder, "--security", "none") as opened:
        assert opened.state()["security"] == "none"
        assert opened.find_operator() is None and opened.read_headers() == {}
        assert not (folder / "curl.conf").exists()
        run(_append(opened, "open"))
        appended.append("open")
        # The command line goes by what the folder has, so that has to fit.
        assert main(["segments", "default/log", "--data", str(folder)]) == 0
    with running_cluster(folder, "--security", "on") as secured:
        assert secret not in secured.read_headers()["authorization"]
        run(_append(secured, "shut again"))
        assert _read_whole(secured) == [*appended, "shut again"]
        _check_rights(folder)


def _kill_early(when: str, folder: Path) -> None:
    command = [sys.executable, "-c", _KILLED_RUN, when, "run", "--json", "--data", str(folder)]
    ended = subprocess.run(
        [*command, "--base-port", "0", "--security", "on"],
        stdout=subprocess.DEVNULL, timeout=HANG_S, check=False,
    )  # fmt: skip
    assert ended.returncode == -signal.SIGKILL


@pytest.mark.night
@pytest.mark.timeout(HANG_S * 6)
def test_a_start_that_is_killed_early_is_followed_by_none_and_by_on(tmp_path: Path) -> None:
    """Regression: the cluster of `none` was not that of the CA, and `on` refused the folder."""
    folder = tmp_path / "c"
    _kill_early("authority", folder)
    assert (folder / "ca").exists() and not (folder / "identities").exists()
    with running_plain_cluster(folder) as plain:
        run(create_log(plain, "log", {}))
        run(_append(plain, "first"))
    _kill_early("pid", folder)
    with running_plain_cluster(folder) as plain:
        run(_append(plain, "second"))
        here = str(folder / "zookeeper-0")
        (server,) = [one for one in _list_servers() if str((one / "cwd").readlink()) == here]
        assert int(server.name) == plain.process("zookeeper-0")["pid"], "no second one"
    with running_cluster(folder, "--security", "on") as secured:
        assert _read_whole(secured) == ["first", "second"]
        _check_rights(folder)


def _list_servers() -> list[Path]:
    """Each ZooKeeper of this user, as /proc has it."""
    found = []
    for one in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if MAIN_CLASS.encode() in (one / "cmdline").read_bytes() and (one / "cwd").readlink():
                found.append(one)
    return found


@pytest.mark.timeout(HANG_S * 3)
def test_a_zookeeper_of_ones_own_is_founded_and_has_to_speak_tls(tmp_path: Path) -> None:
    folder, identity = tmp_path / "c", str(tmp_path / "zookeeper")
    authority = str(folder / "ca")
    assert main(["ca", "init", authority, "--uuid", DOMAIN]) == 0
    called = ["--called", "127.0.0.1"]
    assert main(["ca", "issue", authority, "zookeeper", "z", "--out", identity, *called]) == 0
    for is_secured in (True, False):
        server = EmbeddedZooKeeper(
            tmp_path / f"zookeeper-{is_secured}", pick_free_port(), log_file=tmp_path / "z.log",
            identity_dir=Path(identity) if is_secured else None,
        )  # fmt: skip
        run(server.start())
        flags = ("--security", "on", "--zookeeper", server.address)
        try:
            if is_secured:
                with running_cluster(folder, *flags) as secured:
                    run(create_log(secured, "log", {}))
                    run(_append(secured, "body"))
                continue
            command = [sys.executable, "-m", "duramen.cli.main", "run", "--data", str(folder)]
            ended = subprocess.run(
                [*command, *flags], capture_output=True, text=True, timeout=HANG_S, check=False
            )
            assert ended.returncode == 1
            assert f"ZooKeeper at {server.address} speaks plain text" in ended.stderr
        finally:
            run(server.stop())
