"""An archive run as the operator's CronJob of a secured cluster says it, by spark-submit.

Command and arguments are the manifest's, and the folder is one as a kubelet lays it out; places are
those of this machine. That a pod gets the folder is shown in tests/kubernetes.
Broken by hand: a flag that the job does not know, a bookie's identity.
Source: docs/kubernetes/security.md "Archive runs".
"""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import duramen_spark.main
from duramen.cli.main import main
from duramen.runtime.identity.authority import open_authority
from duramen.runtime.identity.folder import write_folder
from duramen.runtime.identity.generations import KEY_FILE
from duramen.runtime.identity.names import make_identity
from duramen_operator.plan.archive.manifests import LAST_WORDS, PROGRAM
from duramen_operator.plan.archive.plan import plan_archive
from duramen_operator.plan.cluster.secured.keys import IDENTITY_DIR
from duramen_operator.plan.steps import Apply
from tests.kubernetes.plan.archive_world import FOUNDED, HOURLY, STORE, secured
from tests.kubernetes.plan.worlds import NOW, steps_of
from tests.process.cluster import LocalCluster
from tests.process.times import HANG_S
from tests.waiting import wait_in_thread

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]

POLICY = {**HOURLY, "selector": {"namespace": "default", "logs": "cronned"}}


def read_container() -> dict[str, Any]:
    """The container of the CronJob's pod."""
    steps = steps_of(plan_archive(secured(POLICY, FOUNDED), NOW), Apply)
    (cron,) = (step.manifest for step in steps if step.about.kind == "CronJob")
    (container,) = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    return dict(container)


def issue(cluster: LocalCluster, folder: Path) -> None:
    """The identity that the operator issues for archive runs."""
    with open_authority(cluster.folder / "ca", dt.datetime.now(dt.UTC)) as authority:
        identity = make_identity(authority.domain, "archive", "archive")
        write_folder(folder, authority.issue(identity, dt.datetime.now(dt.UTC)))


def close_segment(cluster: LocalCluster, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A closed segment of a log that is to be archived."""
    log, where = "default/cronned", ("--data", str(cluster.folder))
    lines = folder / "lines"
    lines.write_text("".join(f"{number}\n" for number in range(100)))
    config = '{"tiering": {"policy": "copy"}}'
    assert main(["log", "create", log, "--config", config, *where]) == 0
    assert main(["append", log, str(lines), *where]) == 0
    assert main(["log", "roll", log, *where]) == 0

    def is_closed() -> bool:
        capfd.readouterr()
        assert main(["segments", log, *where]) == 0
        return "CLOSED" in capfd.readouterr().out

    wait_in_thread(is_closed, HANG_S, "a closed segment")


def test_a_run_of_the_manifest_archives_from_bookies_that_ask_who_calls(
    shared_cluster: LocalCluster,
    tmp_path: Path,
    spark_env: dict[str, str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    close_segment(shared_cluster, tmp_path, capfd)
    cold, keys, words = tmp_path / "cold", tmp_path / "keys", tmp_path / "words"
    cold.mkdir()
    issue(shared_cluster, keys)
    state, container = shared_cluster.state(), read_container()
    (command,), told = container["command"], container["args"]
    places = {
        PROGRAM: str(duramen_spark.main.__file__),
        told[told.index("--zookeeper") + 1]: state["zookeeper"],
        told[told.index("--cluster") + 1]: state["cluster"],
        STORE["coldStore"]["url"]: cold.as_uri(),
        LAST_WORDS: str(words),
        IDENTITY_DIR: str(keys),
    }
    assert set(places) <= set(told)
    environment = {
        name: value
        for name, value in {**os.environ, **spark_env}.items()
        if name not in ("SPARK_LOCAL_IP", "PYSPARK_SUBMIT_ARGS")
    }
    done = subprocess.run(
        [Path(sys.executable).with_name(command), *(places.get(one, one) for one in told)],
        env=environment, capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(words.read_text())
    assert (report["segments"], report["records"]) == ({"archived": 1}, 100)
    assert list(cold.glob("v1/*/*/*/manifest.json"))
    key = (keys / KEY_FILE).read_text().splitlines()[1]
    assert key not in done.stdout + done.stderr + words.read_text()
