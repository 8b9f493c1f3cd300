"""A `duramen run` with identities: its token is made once, and command line, SDK and curl find it.

Source: docs/protocol/credentials.md "How clients show it".
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from duramen.cli.main import main
from duramen.client import Client
from duramen.runtime.credentials.access_tokens.token_text import take_token_apart
from tests.process.cluster import LocalCluster
from tests.process.times import HANG_S
from tests.waiting import wait_in_thread

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]


def read_token(folder: Path) -> str:
    return take_token_apart((folder / "token").read_text().strip()).text


def command(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "duramen.cli.main", *words, "--data", str(folder)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_token_of_a_run_is_found_by_whoever_runs_it(
    shared_cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shared_cluster.folder
    (tmp_path / ".duramen").symlink_to(folder)
    assert "default" in command(folder, "namespace", "list")
    assert "bookie-0" in command(folder, "bookies", "--json")
    assert f"curl -K {folder}/curl.conf" in command(folder, "context", "env")
    assert read_token(folder) in (folder / "curl.conf").read_text()
    url = shared_cluster.state()["write_url"]

    async def ask() -> list[str]:
        async with Client(url) as client:
            shown = client._session.write._credential.token
            assert shown is not None and await shown.read() == read_token(folder)
            return [namespace.name async for namespace in client.namespaces()]

    monkeypatch.chdir(tmp_path)
    assert "default" in asyncio.run(ask())


def test_an_archive_job_reads_bookies_that_ask_who_calls(
    shared_cluster: LocalCluster, tmp_path: Path
) -> None:
    folder = shared_cluster.folder
    command(folder, "log", "create", "default/notes", "--config", '{"tiering": {"policy": "copy"}}')
    lines = tmp_path / "lines"
    lines.write_text("".join(f"{number}\n" for number in range(100)))
    command(folder, "append", "default/notes", str(lines))
    command(folder, "log", "roll", "default/notes")
    wait_in_thread(
        lambda: "CLOSED" in command(folder, "segments", "default/notes"), HANG_S, "a closed segment"
    )
    archive = str(tmp_path / "archive")
    issue = ["ca", "issue", str(folder / "ca"), "archive", "nightly", "--out", archive]
    assert main(issue) == 0
    run = ("archive", "default/notes", "--runner", "threads", "--identity", archive)
    done = json.loads(run_job(folder, *run))
    assert done["segments"]["archived"] == 1, done
    verify = ("verify", "default/notes", "--runner", "threads")
    assert "whole" in run_job(folder, *verify, is_json=False)


def run_job(folder: Path, *words: str, is_json: bool = True) -> str:
    """Without an identity of its own it goes by the local cluster's."""
    line = [sys.executable, "-m", "duramen_spark.main", *words, "--data", str(folder)]
    done = subprocess.run(
        [*line, "--json"] if is_json else line, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
