"""The wheel where nothing else is installed: with `run` it shows the demo, without it says so.

The checkout is on no path here, so a module or a file that the wheel lacks is missed, as is a
package that the code needs and no extra brings.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from tests.distribution.environments import Environment
from tests.distribution.lock import ROOT, read_project

# The packages of `run` are fetched and PySpark is built where they are not kept yet: some minutes.
pytestmark = [pytest.mark.process, pytest.mark.timeout(1800)]

EXTRA_OF = {
    "duramen-bookie": "bookie",
    "duramen-sequencer": "sequencer",
    "duramen-writeproxy": "writeproxy",
    "duramen-readproxy": "readproxy",
    "duramen-spark": "spark",
    "duramen-operator": "operator",
}
RECORDS_MIN = 300_000
DEMO_S = 900.0
"""A hang bound: alone on two cores the demo takes some twenty seconds."""
WHERE = "import json, sys, duramen; print(json.dumps([duramen.__file__, *sys.path]))"


def assert_away_from_the_checkout(environment: Environment) -> None:
    found = json.loads(environment.run("python", "-P", "-c", WHERE).stdout)
    assert not [path for path in found if Path(path).resolve().is_relative_to(ROOT)]
    assert Path(found[0]).is_relative_to(environment.folder)


def test_the_demo_runs_where_only_the_extra_is_installed(local_cluster: Environment) -> None:
    assert_away_from_the_checkout(local_cluster)
    ended = local_cluster.run("duramen", "run", "--demo", "--once", limit_s=DEMO_S)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    source = (local_cluster.home / ".duramen" / "demo" / "stdlib.txt").read_bytes()
    counts = re.search(r"records +([0-9,]+) in, ([0-9,]+) out", ended.stdout)
    assert counts is not None, ended.stdout
    assert counts[1] == counts[2]
    assert int(counts[1].replace(",", "")) >= RECORDS_MIN
    # The table is as wide as a terminal that is none, so the hash may go on in the next line.
    shown = re.sub(r"\s", "", ended.stdout)
    assert f"SHA-256equal,{hashlib.sha256(source).hexdigest()}" in shown
    assert "withoutagap" in shown
    said = ended.stderr
    assert "reading it back" in said
    assert said.splitlines()[-1] == "stopped"
    state = json.loads((local_cluster.home / ".duramen" / "cluster.json").read_text())
    assert [process["pid"] for process in state["processes"]] == [None] * 7
    assert sorted(path.name for path in local_cluster.home.iterdir()) == [".duramen"]


def test_the_programs_of_the_extra_start(local_cluster: Environment) -> None:
    for program in read_project()["project"]["scripts"]:
        ended = local_cluster.run(program, "--help")
        # Whoever has `run` has what the jobs need too; the operator's packages come by its extra.
        if program == "duramen-operator":
            assert ended.returncode == 2
        else:
            assert (ended.returncode, ended.stderr) == (0, ""), program
            assert program.split("-")[0] in ended.stdout.lower()


def test_a_program_without_its_extra_says_which(library: Environment) -> None:
    assert_away_from_the_checkout(library)
    scripts = read_project()["project"]["scripts"]
    assert set(EXTRA_OF) < set(scripts)
    for program in scripts:
        ended = library.run(program, "--help")
        if program in EXTRA_OF:
            extra = EXTRA_OF[program]
            sentence = f"{program} needs the extra '{extra}': pip install 'duramen[{extra}]'\n"
            assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", sentence)
        else:
            assert (ended.returncode, ended.stderr) == (0, ""), program


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (["duramen", "run", "--demo", "--once"], 2, "duramen: run needs the extra 'run'"),
        (["duramen", "bench", "journal"], 2, "duramen-bookie needs the extra 'bookie'"),
        (["duramen", "archive", "run"], 2, "duramen-spark needs the extra 'spark'"),
        (
            ["duramen-zookeeper", "--data-dir", "data", "--host", "127.0.0.1"],
            1,
            "pip install 'duramen[run]'",
        ),
    ],
)
def test_a_command_without_its_extra_says_which(
    library: Environment, arguments: list[str], status: int, sentence: str
) -> None:
    ended = library.run(*arguments)
    assert ended.returncode == status, ended.stderr
    [line] = ended.stderr.splitlines()
    assert sentence in line
    assert ended.stdout == ""


def test_kubectl_plugin_needs_no_extra(library: Environment) -> None:
    """It gets as far as looking for kubectl, which is not on this PATH."""
    ended = library.run("kubectl-duramen", "status")
    assert ended.returncode == 1
    assert "kubectl" in ended.stderr
    assert "Traceback" not in ended.stderr
