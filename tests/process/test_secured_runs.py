"""One folder of `duramen run`, with identities and without: what may follow what.

Source: docs/protocol/metadata-access.md "A local cluster".
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from duramen.cli.main import main
from duramen.cluster.layout import pick_free_port
from duramen.runtime.embedded_zookeeper import EmbeddedZooKeeper
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


async def _append(cluster: LocalCluster, body: str) -> None:
    client = cluster.open_client("write_url")
    await client.post_json("/v1/namespaces/default/logs/log/records", {"records": [{"body": body}]})
    await client.close()


@pytest.mark.timeout(HANG_S * 3)
def test_a_cluster_gets_identities_and_keeps_its_records(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    with running_plain_cluster(folder) as plain:
        run(create_log(plain, "log", {}))
        run(_append(plain, "before"))
        assert plain.read_headers() == {} and not (folder / "curl.conf").exists()
    bodies: list[bytes] = []
    tokens: list[str] = []
    # The second time nobody says so: the folder is what it was.
    for body, flags in (("after", ("--security", "on")), ("once more", ())):
        with running_cluster(folder, *flags) as secured:
            assert secured.state()["security"] == "on"
            tokens.append(secured.read_headers()["authorization"])
            assert tokens[-1] in (folder / "curl.conf").read_text()
            run(_append(secured, body))
            bodies = run(read_log(secured.open_client("read_url"), "log"))
            operator = str(folder / "identities" / "operator")
            assert main(["access", "check", operator, "--data", str(folder)]) == 0
    assert [body.decode() for body in bodies] == ["before", "after", "once more"]
    assert tokens[0] == tokens[1], "the node of a token is there when the next run looks"
    command = [sys.executable, "-m", "duramen.cli.main", "run", "--data", str(folder)]
    command += ["--security", "none"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert ended.returncode == 1
    assert "are for those who have an identity, as it ran with --security on" in ended.stderr


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
