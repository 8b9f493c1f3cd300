"""`duramen apply`, `sql`, `top`, `tail` and completion on a real cluster, as a user types them.

Each step uses what the one before it left. What the commands do with odd answers is tested against
fakes (tests/unit/test_cli_…); here it is shown that the answers of the real thing are those.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from duramen.cli.main import main
from tests.process.cluster import running_plain_cluster
from tests.process.times import HANG_S
from tests.waiting import wait_in_thread

pytestmark = pytest.mark.process

WANTED = """
kind: Namespace
name: shop
---
kind: Log
name: shop/orders
config:
  retention: {age: AGE}
  roll: {interval: 120m}
---
kind: Log
name: shop/audit
"""

Ask = Callable[..., Any]


def begin_authority(folder: Path, ask: Callable[..., str]) -> None:
    """A CA for a cluster that runs has its uuid from ZooKeeper."""
    answer = json.loads(ask("ca", "init", str(folder / "ca"), "--json"))
    assert main(["ca", "list", str(folder / "ca"), "--json"]) == 0
    assert len(answer["domain"]) == 32
    ask("ca", "init", str(folder / "other"), "--cluster", "nobodys", code=2)


def test_what_a_user_types(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running_plain_cluster(tmp_path / "data", "--bookies", "4") as cluster:

        def ask(*arguments: str, code: int = 0) -> str:
            assert main([*arguments, "--data", str(cluster.folder)]) == code
            return capsys.readouterr().out

        def ask_rows(statement: str) -> list[dict[str, Any]]:
            return [json.loads(line) for line in ask("sql", statement, "--json").splitlines()]

        begin_authority(tmp_path, ask)
        apply_files(tmp_path, ask)
        lines = tmp_path / "lines"
        lines.write_text("".join(f"{number}\n" for number in range(1_000)))
        ask("append", "shop/orders", str(lines))
        assert ask("tail", "shop/orders", "-n", "2") == "998\n999\n"
        assert ask("log", "roll", "shop/orders").endswith("e1 is being closed\n")
        wait_in_thread(
            lambda: "CLOSED" in ask("segments", "shop/orders"), HANG_S, "the segment to be closed"
        )
        repair = ["repair", "status", "--data", str(cluster.folder)]
        wait_in_thread(lambda: main(repair) == 0, HANG_S, "an auditor")
        capsys.readouterr()
        ask_in_sql(ask_rows)

        def show_moment() -> dict[str, Any]:
            capsys.readouterr()
            main(["top", "--once", "--json", "--data", str(cluster.folder)])
            moment: dict[str, Any] = json.loads(capsys.readouterr().out)
            return moment

        def is_known() -> bool:
            """Who does not answer within seconds is not waited for, and named."""
            found = show_moment()
            syncs_ms = [row["sync_ms"] for row in found["bookies"]]
            return not found["unknown"] and None not in syncs_ms

        wait_in_thread(is_known, HANG_S, "an answer of everybody")
        moment = show_moment()
        assert moment["logs_owned"] == 1
        assert [row["sequencer"] for row in moment["sequencers"]] == ["sequencer-0"]
        assert len(moment["bookies"]) == 4
        assert all(row["queue_bytes"] == 0 for row in moment["bookies"])
        assert "repair: 0 fragments to do" in ask("top", "--once")
        complete_in_bash(tmp_path, cluster.folder)


def apply_files(folder: Path, ask: Ask) -> None:
    file = folder / "shop.yaml"
    file.write_text(WANTED.replace("AGE", "7d"))
    plan = ask("apply", "-f", str(file), "--dry-run")
    assert plan.count("create ") == 3
    assert ask("namespace", "list").split() == ["default"]
    assert ask("apply", "-f", str(file)) == plan
    assert json.loads(ask("log", "show", "shop/orders"))["config"]["retention"]["age"] == "7d"
    assert ask("apply", "-f", str(file)).count("same ") == 3
    ask("log", "reconfigure", "shop/orders", "--config", '{"window": {"entries": 500}}')
    file.write_text(WANTED.replace("AGE", "null"))
    assert "change  Log shop/orders\n          retention.age: 7d → none" in ask(
        "apply", "-f", str(file)
    )
    config = json.loads(ask("log", "show", "shop/orders"))["config"]
    assert config["retention"]["age"] is None and config["window"]["entries"] == 500
    file.write_text(WANTED.replace("AGE", "soon"))
    ask("apply", "-f", str(file), code=2)


def ask_in_sql(ask_rows: Callable[[str], list[dict[str, Any]]]) -> None:
    assert ask_rows("select log from logs order by log") == [
        {"log": "shop/audit"}, {"log": "shop/orders"},
    ]  # fmt: skip
    (closed,) = ask_rows("select * from segments where state = 'CLOSED'")
    assert (closed["log"], closed["epoch"], closed["records"]) == ("shop/orders", 1, 1_000)
    members = ask_rows(
        "select bookie, free_bytes > 0 as has_room, takes_new_data from fragments "
        "join bookies using (bookie) join segments using (log, epoch) "
        "where segments.state = 'CLOSED'"
    )
    assert members and len(members) % 3 == 0, "three to a fragment, which one late bookie ends"
    assert all(row["has_room"] == row["takes_new_data"] == 1 for row in members)
    idle = "select log from logs left join owners using (log) where sequencer is null"
    assert ask_rows(idle) == [{"log": "shop/audit"}]
    assert ask_rows("select count(*) as n from repairs") == [{"n": 0}]


def complete_in_bash(folder: Path, data: Path) -> None:
    """Bash itself loads the script and is asked for completions."""
    program = folder / "duramen"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m duramen.cli.main "$@"\n')
    program.chmod(0o755)
    questions = {
        "log rec": "reconfigure",
        f"read --data {data} shop/o": "shop/orders",
        f"log delete --data {data} ": "shop/audit shop/orders",
        f"log list --data {data} sh": "shop",
        "tail shop/orders --format ": "body line json",
        f"drain --data {data} bookie-3": "bookie-3",
        "append shop/orders --lin": "--linger",
        f"read --data {folder} ": "",  # no cluster: nothing, and no word about it
    }
    script = ["source <(duramen completion bash)"]
    for line in questions:
        words = " ".join(f"'{word}'" for word in f"duramen {line}".split(" "))
        script += [
            f"COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMPREPLY=()",
            '_duramen; echo "${COMPREPLY[*]}"',
        ]
    places = os.pathsep.join(os.path.abspath(place) for place in sys.path if place)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    found: list[str] = []

    def is_completed() -> bool:
        """A cluster that does not answer within a second is not waited for."""
        done = subprocess.run(
            ["bash", "-c", "\n".join(script)],
            env={**os.environ, "PATH": path, "PYTHONPATH": places}, capture_output=True, text=True,
            timeout=120, check=True,
        )  # fmt: skip
        assert done.stderr == ""
        found[:] = done.stdout.split("\n")[:-1]
        return found == list(questions.values())

    wait_in_thread(is_completed, HANG_S, f"{questions} to be completed")
