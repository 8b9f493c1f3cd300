"""`duramen log epochs` against a server that plays a read proxy.

Source: docs/cli.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from duramen.cli.main import main
from tests.unit.fake_proxy import FakeProxy, running_proxy

PATH = "/v1/namespaces/shop/logs/b/epochs"
SEGMENT = {"state": "CLOSED", "start_seq_num": 0, "records": 10, "bytes": 100}
ANSWER: dict[str, Any] = {
    "epochs": [
        {"epoch": 1, "metadata": "history", "config_version": 1, "segment": SEGMENT},
        {"epoch": 2, "metadata": "metadata_log", "config_version": None, "segment": None},
        {"epoch": 3, "metadata": "zookeeper", "config_version": 2, "segment": SEGMENT},
    ],
    "configs": {"1": {"roll": 1, "sticky": True}, "2": {"roll": 2, "sticky": True}},
}


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeProxy]:
    with running_proxy() as server:
        monkeypatch.setenv("DURAMEN_URL", server.url)
        server.answers[PATH] = ANSWER
        yield server


def test_epochs_are_told_with_what_was_changed(
    proxy: FakeProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["log", "epochs", "shop/b"]) == 0
    heads, *rows = capsys.readouterr().out.splitlines()
    assert [row.split()[:3] for row in rows] == [
        ["1", "CLOSED", "history"], ["2", "unreadable", "metadata_log"],
        ["3", "CLOSED", "zookeeper"],
    ]  # fmt: skip
    changed = heads.index("changed")
    assert [row[changed:].strip() for row in rows] == ["", "", "roll"]


def test_json_is_what_the_server_says(proxy: FakeProxy, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "epochs", "shop/b", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == ANSWER
