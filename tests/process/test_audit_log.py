"""The audit log of a real cluster: who truncated what, from either proxy, through a restart.

Source: docs/protocol/audit.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from duramen.cli.main import main
from tests.process.cluster import LocalCluster, create_log, run, running_cluster
from tests.process.times import HANG_S
from tests.waiting import WITHIN_S, wait_in_thread

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]

RECORDS = "/v1/namespaces/default/logs/log/records"
TRUNCATE = "/v1/namespaces/default/logs/log:truncate"


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

            def list_truncations() -> list[dict[str, Any]]:
                lines = run_audit(capsys, "show", *given).splitlines()
                assert "hidden-body" not in "".join(lines)
                told = [json.loads(line) for line in lines]
                return [one for one in told if one.get("verb") == "truncate"]

            def are_told(wanted: int = 2 * run_count) -> bool:
                return len(list_truncations()) == wanted

            # Each proxy tells of each.
            wait_in_thread(are_told, WITHIN_S, "the truncation in the audit log")
            found = json.loads(run_audit(capsys, "verify", *given))
            assert (found["flaws"], found["lost"], len(found["heads"])) == (0, 0, 2 * run_count)
            chains = list_truncations()
    ids = {one["request"] for one in chains}
    assert len(ids) == 2, "both proxies tell the id of the one answer"
    assert {one["outcome"] for one in chains} == {"ok"}
    assert {one["target"] for one in chains} == {"default/log"}
