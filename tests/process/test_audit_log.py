"""The audit log of a real cluster, through a restart.

Who truncated what, from either proxy, and who asked a bookie or a sequencer for what.

Source: docs/protocol/audit.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from duramen.cli.main import main
from duramen.cluster.local_identities import LocalIdentities
from tests.process.cluster import LocalCluster, create_log, run, running_cluster
from tests.process.times import HANG_S
from tests.waiting import WITHIN_S, wait_in_thread

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]

RECORDS = "/v1/namespaces/default/logs/log/records"
TRUNCATE = "/v1/namespaces/default/logs/log:truncate"
NODES = {
    *("bookie/bookie-0", "bookie/bookie-1", "bookie/bookie-2"),
    *("sequencer/sequencer-0", "writeproxy/writeproxy-0", "readproxy/readproxy-0"),
}


def run_audit(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    """What it prints; nothing while there is no audit log yet."""
    capsys.readouterr()
    code, told = main(["audit", *command]), capsys.readouterr()
    assert code == 0 or "not_found" in told.err, told.err
    return told.out


async def change(cluster: LocalCluster) -> None:
    """Append by the write proxy, truncate by the read proxy, which sends it on."""
    client = cluster.open_client("write_url")
    await client.post_json(RECORDS, {"records": [{"body": "hidden-body"}]})
    await client.close()
    client = cluster.open_client("read_url")
    await client.post_json(TRUNCATE, {"to": "tail"})
    await client.close()


def operate(cluster: LocalCluster) -> None:
    """Ask a bookie and a sequencer for something, as an operator, and as nobody."""
    known, nobody = cluster.trust_admin_ports(), LocalIdentities(cluster.folder)
    for node, path, body in (
        ("bookie-0", "/v1/read-only", {"is_on": False}),
        ("sequencer-0", "/v1/cluster/regions", {"closed": []}),
    ):
        url = cluster.process(node)["admin_url"]
        assert httpx.put(f"{url}{path}", json=body, verify=known, trust_env=False).is_success
        stranger = httpx.Client(verify=nobody.make_probe_context(), trust_env=False)
        assert stranger.put(f"{url}{path}", json=body).status_code == 401


@pytest.mark.timeout(HANG_S * 3)
def test_changes_at_either_proxy_stand_in_the_log_of_two_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "c"
    given = ["--data", str(folder), "--json"]
    chains: list[dict[str, Any]] = []
    for run_count in (1, 2):
        with running_cluster(folder, "--security", "on") as cluster:
            run(create_log(cluster, "log", {}))
            run(change(cluster))
            operate(cluster)

            def list_told() -> list[dict[str, Any]]:
                lines = run_audit(capsys, "show", *given).splitlines()
                assert "hidden-body" not in "".join(lines)
                return [json.loads(line) for line in lines]

            def list_truncations() -> list[dict[str, Any]]:
                return [one for one in list_told() if one.get("verb") == "truncate"]

            def list_operated() -> list[tuple[str, str | None, str]]:
                calls = [one for one in list_told() if one.get("verb") == "operate"]
                return [(one["chain"].split("/")[1], one["who"], one["outcome"]) for one in calls]

            def are_told(wanted: int = 2 * run_count) -> bool:
                return len(list_truncations()) == wanted

            # Each proxy tells of each.
            wait_in_thread(are_told, WITHIN_S, "the truncation in the audit log")

            def are_operated(wanted: int = 4 * run_count) -> bool:
                return len(list_operated()) == wanted

            wait_in_thread(are_operated, WITHIN_S, "what was operated")

            def are_chains_there(wanted: int = len(NODES) * run_count) -> bool:
                heads = json.loads(run_audit(capsys, "verify", *given))["heads"]
                return len({head["chain"] for head in heads}) == wanted

            # A node that nobody asked for anything tells of its start alone, and a bookie's start
            # comes to the log whenever its next try finds a write proxy: in this run or the next.
            wait_in_thread(are_chains_there, WITHIN_S, "a chain of each node of each run")
            found = json.loads(run_audit(capsys, "verify", *given))
            assert (found["flaws"], found["lost"]) == (0, 0)
            assert {head["chain"].rpartition("/")[0] for head in found["heads"]} == NODES
            assert set(list_operated()) == {
                (node, *told)
                for node in ("bookie-0", "sequencer-0")
                for told in (("service:operator/test", "ok"), (None, "refused"))
            }
            chains = list_truncations()
    ids = {one["request"] for one in chains}
    assert len(ids) == 2, "both proxies tell the id of the one answer"
    assert {one["outcome"] for one in chains} == {"ok"}
    assert {one["target"] for one in chains} == {"default/log"}
