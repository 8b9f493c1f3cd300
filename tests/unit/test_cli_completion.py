"""What the completion scripts are and what they ask back for, against a server that plays a proxy.

Bash itself is asked in tests/process/test_command_line.py; here are the faults, which must never
reach the line that somebody is typing.
"""

from __future__ import annotations

import http.server
import threading
from pathlib import Path

import pytest

from duramen.cli.main import main
from duramen.cli.shell import completion
from duramen.errors import DuramenError
from tests.unit.fake_proxy import FakeProxy, admin

__all__ = ["admin"]


def complete(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """The candidates that `__complete` gives for the last word."""
    assert main(["__complete", *words]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    _, begin, rows = captured.out.partition("\x1fbegin\n")
    assert begin
    return [row.partition("\t")[0] for row in rows.splitlines()]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_names_the_commands(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(word in script for word in ("hand-over", "reconfigure", "linger", "__complete"))
    assert main(["completion", "csh"]) == 2


def test_names_are_asked_of_the_cluster(
    admin: FakeProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    namespaces = [{"namespace": name} for name in ("shop", "shed")]
    admin.answers["/v1/namespaces?prefix=sh&limit=200"] = {"namespaces": namespaces}
    for name in ("shop", "shed"):
        for prefix in ("", "or"):
            path = f"/v1/namespaces/{name}/logs?prefix={prefix}&limit=200"
            admin.answers[path] = {"logs": [{"namespace": name, "name": "orders"}]}
    assert complete(capsys, "read", "--url", admin.url, "sh") == ["shop/orders", "shed/orders"]
    assert complete(capsys, "log", "roll", "--url", admin.url, "shop/or") == ["shop/orders"]
    assert complete(capsys, "log", "list", "--url", admin.url, "sh") == ["shop", "shed"]
    admin.answers["/v1/cluster/bookies"] = {"bookies": [{"id": "b-1"}, {"id": "c-1"}]}
    assert complete(capsys, "drain", "b") == ["b-1"]
    assert complete(capsys, "repair", "status", "") == []


def test_no_fault_of_the_cluster_is_shown(
    admin: FakeProxy, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    admin.answers["/v1/namespaces?prefix=&limit=200"] = DuramenError("metadata_unavailable", "x")
    assert complete(capsys, "read", "--url", admin.url, "") == []
    assert complete(capsys, "read", "--url", "http://127.0.0.1:9", "") == []
    assert complete(capsys, "read", "--url", "nonsense", "") == []
    assert complete(capsys, "read", "--data", str(tmp_path), "") == []


def test_a_cluster_that_says_nothing_is_not_waited_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "ANSWER_S", 0.05)
    done = threading.Event()
    outlasted: list[str] = []

    class Silent(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not done.wait(10):
                outlasted.append(self.path)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Silent) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_address[1]}"
            assert complete(capsys, "read", "--url", url, "") == [] == outlasted
        finally:
            done.set()
            server.shutdown()
            thread.join()
