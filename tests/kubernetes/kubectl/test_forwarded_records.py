"""`kubectl duramen append` and `read` on a real local cluster, beside a kubectl that forwards.

What it forwards to is the proxy's own port: the commands and what becomes of their port are under
test, the way through Kubernetes is the kubelet tier's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from kubectl_duramen.access import Kubectl
from kubectl_duramen.forward import Forward
from tests.kubernetes.kubectl import things
from tests.kubernetes.kubectl.fake_kubectl import plant
from tests.process.cluster import LocalCluster, running_plain_cluster
from tests.process.times import HANG_S
from tests.waiting import comes_true

pytestmark = pytest.mark.process

CLUSTERS = "/apis/duramen.io/v1alpha1/namespaces/shop/logclusters"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One that asks nobody who calls: the plugin has no token to show."""
    with running_plain_cluster(tmp_path_factory.mktemp("plain") / "c") as running:
        yield running


def run(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "kubectl_duramen.main", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, check=False, timeout=60)


def test_lines_go_in_and_come_back(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = b"".join(b"line %d\n" % number for number in range(1000))
    state = cluster.state()
    answers = {CLUSTERS: {"items": [things.cluster()]}}
    for name, url in (("write", state["write_url"]), ("read", state["read_url"])):
        folder = tmp_path / name
        folder.mkdir()
        plant(folder, monkeypatch, answers=answers, forward=urlsplit(url).port)
        if name == "write":
            done = run("append", "default/lines", "-", "--create", stdin=lines)
            assert done.returncode == 0, done.stderr
            assert run("append", "default/none", stdin=b"x").returncode == 1
            continue
        done = run("read", "default/lines")
        assert (done.returncode, done.stdout) == (0, lines), done.stderr
        assert run("read", "default/lines", "--count", "2").stdout == b"line 0\nline 1\n"
        calls = (folder / "calls").read_text()
        assert "service/main-readproxy :7401" in calls


def test_a_forward_that_ends_is_begun_again_on_its_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = plant(tmp_path, monkeypatch, forward=7)
    forward = Forward(Kubectl(namespace="shop"), "main-readproxy", 7401)
    forward.open()
    try:
        assert forward.url == "http://127.0.0.1:7"
        first = forward.pid
        os.kill(first, signal.SIGKILL)

        import asyncio

        assert asyncio.run(comes_true(lambda: calls.read_text().count("port-forward") == 2, HANG_S))
        assert "service/main-readproxy 7:7401" in calls.read_text()
        assert asyncio.run(comes_true(lambda: forward.pid != first, HANG_S))
    finally:
        forward.close()
    with pytest.raises(ProcessLookupError):
        os.kill(forward.pid, 0)
