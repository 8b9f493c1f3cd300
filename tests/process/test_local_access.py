"""A `duramen run` with identities: its token is made once, and command line, SDK and curl find it.

Source: docs/protocol/credentials.md "How clients show it".
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from duramen.client import Client
from duramen.runtime.credentials.access_tokens.token_text import take_token_apart
from tests.process.cluster import LocalCluster, running_cluster

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


def test_the_token_of_a_run_is_found_and_used_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ".duramen"
    with running_cluster(folder, "--security", "on") as cluster:
        first = read_token(folder)
        check_clients(cluster, folder, tmp_path, monkeypatch)
    with running_cluster(folder, "--security", "on"):
        assert read_token(folder) == first, "its node is there"
        assert first in (folder / "curl.conf").read_text()
    with running_cluster(tmp_path / "plain"):
        assert not (tmp_path / "plain/token").exists()
        assert not (tmp_path / "plain/curl.conf").exists()


def check_clients(
    cluster: LocalCluster, folder: Path, below: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "default" in command(folder, "namespace", "list")
    assert "bookie-0" in command(folder, "bookies", "--json")
    assert f"curl -K {folder}/curl.conf" in command(folder, "context", "env")
    url = cluster.state()["write_url"]

    async def ask() -> list[str]:
        async with Client(url) as client:
            shown = client._session.write._credential.token
            assert shown is not None and await shown.read() == read_token(folder)
            return [namespace.name async for namespace in client.namespaces()]

    with monkeypatch.context() as patch:
        patch.chdir(below)
        assert asyncio.run(ask()) == ["default"]
