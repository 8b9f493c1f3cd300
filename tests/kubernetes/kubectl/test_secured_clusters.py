"""The plugin and a cluster that asks who calls: what it trusts, what it shows, what it skips.

A real TLS port asks for the token; a kubectl that answers from a file forwards to it. Its
certificate names `localhost`, as that of a public port does.
Source: docs/kubernetes/kubectl.md "Append and read".
"""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from duramen.cli.command import ExitCode
from duramen.runtime.identity.authority import open_authority
from duramen.runtime.identity.certificates import Places
from duramen.runtime.identity.folder import write_folder
from duramen.runtime.identity.names import make_identity
from tests.component.asking_proxy import AskingProxy, asking_proxy
from tests.component.issuing_world import IssuingWorld
from tests.kubernetes.kubectl import things
from tests.kubernetes.kubectl.fake_kubectl import plant
from tests.unit.identities import DOMAIN

LEASE: Final = "/apis/coordination.k8s.io/v1/namespaces/shop/leases/duramen-operator"
CLUSTERS: Final = "/apis/duramen.io/v1alpha1/namespaces/shop/logclusters"
BUNDLE: Final = "/api/v1/namespaces/shop/configmaps/main-ca-bundle"
PLANTED: Final = "head.planted.token"


def secured(*conditions: Any) -> dict[str, Any]:
    cluster = things.cluster(*conditions)
    cluster["spec"] |= {"security": "on", "acceptAnybody": False}
    return cluster


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kubectl_duramen.main", *arguments]
    return subprocess.run(
        command, input="a line\n", capture_output=True, text=True, check=False, timeout=60,
        env=os.environ | environment,
    )  # fmt: skip


class ForwardedPort:
    """A proxy with TLS, and what Kubernetes says of its cluster."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.issued = IssuingWorld(folder)
        self.files = folder / "public"
        self._folder = folder
        self._monkeypatch = monkeypatch
        now = dt.datetime.now(dt.UTC)
        identity = make_identity(DOMAIN, "writeproxy", "main-writeproxy-0")
        with open_authority(self.issued.ca, now) as authority:
            places = Places(("localhost",), ())
            write_folder(self.files, authority.issue(identity, now, places=places))

    def plant(self, proxy: AskingProxy, **world: Any) -> Path:
        """The kubectl that forwards to it."""
        trusted = (self.files / "ca.crt").read_text()
        answers = {CLUSTERS: {"items": [secured()]}, BUNDLE: {"data": {"ca.crt": trusted}}}
        given = {"answers": answers, "forward": urlsplit(proxy.url).port, "token": PLANTED}
        return plant(self._folder, self._monkeypatch, **given | world)


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ForwardedPort:
    return ForwardedPort(tmp_path, monkeypatch)


def test_a_service_accounts_token_and_the_bundle_open_the_forwarded_port(
    port: ForwardedPort,
) -> None:
    async def scenario() -> None:
        async with asking_proxy(port.files) as proxy:
            proxy.believed = {PLANTED}
            calls = port.plant(proxy)
            done = await asyncio.to_thread(run, "read", "default/x", "--account", "till")
            assert (done.returncode, done.stdout) == (0, ""), done.stderr
            assert {shown for _, shown in proxy.asked} == {f"Bearer {PLANTED}"}
            done = await asyncio.to_thread(run, "append", "default/x", "--account", "eu/till")
            assert done.returncode == 0, done.stderr
            said = calls.read_text()
            assert "create token till --namespace=shop --audience=duramen/shop/main" in said
            assert "create token till --namespace=eu --audience=duramen/shop/main" in said
            assert PLANTED not in said + done.stderr

    asyncio.run(scenario())


def test_a_token_of_a_file_or_of_the_environment_is_shown_and_a_stranger_is_not_believed(
    port: ForwardedPort, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with asking_proxy(port.files) as proxy:
            proxy.believed = {"of-a-file"}
            port.plant(proxy)
            file = tmp_path / "token"
            file.write_text("of-a-file\n")
            for words, more in (
                (["--token-file", str(file)], {}),
                ([], {"DURAMEN_TOKEN_FILE": str(file)}),
            ):
                done = await asyncio.to_thread(run, "read", "default/x", *words, **more)
                assert done.returncode == 0, done.stderr
            # Somebody else has the port: nothing is shown to who is not of the bundle.
            other = ForwardedPort(tmp_path / "other", pytest.MonkeyPatch())
            proxy.asked.clear()
            more = {"DURAMEN_CA": str(other.files / "ca.crt")}
            done = await asyncio.to_thread(
                run, "read", "default/x", "--token-file", str(file), "--timeout", "0", **more
            )
            assert done.returncode == 1
            assert proxy.asked == []

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("words", "is_secured", "told"),
    [
        ((), True, (ExitCode.USAGE, "give --account NAME")),
        (("--account", "a", "--token-file", "b"), True, (ExitCode.USAGE, "give one of")),
        (("--account", "a"), False, (ExitCode.USAGE, "asks for no token")),
        (("--account", "A!"), True, (ExitCode.USAGE, "write NAME or NAMESPACE/NAME")),
        (("--account", "a"), True, (ExitCode.FAILED, "there is no ConfigMap main-ca-bundle")),
    ],
)
def test_what_does_not_fit_the_cluster_is_told_before_anything_is_forwarded(
    words: tuple[str, ...],
    is_secured: bool,
    told: tuple[ExitCode, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code, said = told
    cluster = secured() if is_secured else things.cluster()
    answers: dict[str, Any] = {CLUSTERS: {"items": [cluster]}}
    if code is ExitCode.USAGE:
        answers[BUNDLE] = {"data": {"ca.crt": "nothing"}}
    calls = plant(tmp_path, monkeypatch, answers=answers, forward=1, token="x")
    monkeypatch.delenv("DURAMEN_TOKEN_FILE", raising=False)
    done = run("read", "default/x", *words)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "port-forward" not in calls.read_text()


def test_status_and_report_ask_no_administration_that_wants_a_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = plant(
        tmp_path, monkeypatch, answers={CLUSTERS: {"items": [secured()]}, LEASE: things.lease()}
    )
    done = run("status")
    assert done.returncode == 0, done.stderr
    assert "administration: it asks who calls" in done.stdout
    done = run("report", "--output", str(tmp_path / "out.tar.gz"))
    assert done.returncode == 0, done.stderr
    assert "/proxy" not in calls.read_text()
