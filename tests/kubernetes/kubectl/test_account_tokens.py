"""`kubectl duramen token`: what Kubernetes is asked for, and that Duramen believes what it gives.

The last tests ask a real API server, and judge its token by its own keys with the code of public
ports. Source: docs/kubernetes/kubectl.md "Token".
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from duramen.cli.command import ExitCode
from duramen.client.credentials.tokens import TokenCommand
from duramen.runtime.credentials.issuers import read_issuers
from duramen.runtime.credentials.principals import Bearer, CredentialRefusedError
from duramen.runtime.credentials.web_bearers import WebBearers
from kubectl_duramen.main import main
from tests.kubernetes.cluster.handle import ClusterHandle
from tests.kubernetes.kubectl import things
from tests.kubernetes.kubectl.fake_kubectl import plant
from tests.process.times import HANG_S
from tests.waiting import wait_in_thread

ONLY = {"/apis/duramen.io/v1alpha1/namespaces/shop/logclusters": {"items": [things.cluster()]}}


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["till"], "create token till --namespace=shop --audience=duramen/shop/main"),
        (["eu/till"], "create token till --namespace=eu --audience=duramen/shop/main"),
        (
            ["till", "-n", "logs", "--cluster", "demo"],
            "create token till --namespace=logs --audience=duramen/logs/demo",
        ),
    ],
)
def test_it_is_asked_for_one_cluster(
    words: list[str], asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    calls = plant(tmp_path, monkeypatch, answers=ONLY, token="a.b.c")
    assert main(["token", *words]) == ExitCode.OK
    assert capsys.readouterr().out == "a.b.c\n"
    assert f"{asked} --duration=600s" in calls.read_text()
    assert ("logclusters" in calls.read_text()) == ("demo" not in words)


def test_its_life_is_asked_for_and_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = plant(tmp_path, monkeypatch, answers=ONLY, token="a.b.c")
    assert main(["token", "till", "--expires", "24h"]) == ExitCode.OK
    assert "--duration=86400s" in calls.read_text()
    for life in ("9m59s", "24h1s", "soon"):
        assert main(["token", "till", "--expires", life]) == ExitCode.USAGE
        assert "--expires" in capsys.readouterr().err
    for account in ("", "a/b/c", "Till", "/till", "till/", "--all"):
        assert main(["token", account]) == ExitCode.USAGE, account


def test_what_kubernetes_refuses_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = 'error: failed to create token: serviceaccounts "till" is forbidden: User "x"'
    plant(tmp_path, monkeypatch, error=said)
    assert main(["token", "till", "-n", "logs", "--cluster", "demo"]) == ExitCode.FAILED
    told = capsys.readouterr().err
    assert said in told and "can-i" in told


def issuers_of(api: ClusterHandle, folder: Path, audience: str) -> Path:
    """An issuers file with the API server's own keys."""
    discovery = json.loads(api.kubectl("get", "--raw", "/.well-known/openid-configuration").stdout)
    keys = folder / "keys.jwks"
    keys.write_text(api.kubectl("get", "--raw", "/openid/v1/jwks").stdout)
    row: dict[str, Any] = {
        "name": "k8s", "kind": "kubernetes", "issuer": discovery["issuer"], "audience": audience,
        "keys": {"file": str(keys)},
    }  # fmt: skip
    file = folder / "issuers.json"
    file.write_text(json.dumps({"v": 1, "issuers": [row]}))
    return file


async def judge(token: str, issuers: Path) -> Bearer:
    """Whom a public port with this issuers file would see."""
    bearers = WebBearers(read_issuers(issuers))
    await bearers.start()
    try:
        return await bearers.judge(token, time.time())
    finally:
        await bearers.stop()


def ask_for_token(api: ClusterHandle, namespace: str, cluster: str) -> str:
    """What the command prints beside the real kubectl."""
    command = [sys.executable, "-m", "kubectl_duramen.main", "token", "till"]
    where = {**api.environment, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [*command, "-n", namespace, "--cluster", cluster],
        env=where, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return done.stdout.strip()


def is_refused(token: str, issuers: Path) -> bool:
    """Whether a public port with this issuers file would believe nobody."""
    try:
        asyncio.run(judge(token, issuers))
    except CredentialRefusedError:
        return True
    return False


def test_a_real_api_servers_token_is_believed_by_its_cluster_alone(
    api_server: ClusterHandle, tmp_path: Path
) -> None:
    with api_server.namespace() as namespace:
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "till"}}
        api_server.apply(account, namespace=namespace)
        token = ask_for_token(api_server, namespace, "demo")
        own = issuers_of(api_server, tmp_path, f"duramen/{namespace}/demo")
        bearer = asyncio.run(judge(token, own))
        assert str(bearer.principal) == f"serviceaccount:k8s/{namespace}/till"
        assert bearer.groups == ()
        assert 500 < bearer.until_s - time.time() <= 640
        login = api_server.kubectl("-n", namespace, "create", "token", "till").stdout.strip()
        assert is_refused(login, own)
        other = issuers_of(api_server, tmp_path, f"duramen/{namespace}/other")
        assert is_refused(token, other)


def test_a_real_api_server_is_asked_for_keys_and_whether_the_account_is_there(
    api_server: ClusterHandle, tmp_path: Path
) -> None:
    bearer_file = tmp_path / "bearer"
    bearer_file.write_text(api_server.token)
    shown = {"ca_file": str(api_server.certificate), "bearer_file": str(bearer_file)}
    with api_server.namespace() as namespace:
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "till"}}
        api_server.apply(account, namespace=namespace)
        token = ask_for_token(api_server, namespace, "demo")
        issuers = issuers_of(api_server, tmp_path, f"duramen/{namespace}/demo")
        document = json.loads(issuers.read_text())
        document["issuers"][0] |= {
            "keys": {"url": f"{api_server.url}/openid/v1/jwks", **shown},
            "review": {
                "url": f"{api_server.url}/apis/authentication.k8s.io/v1/tokenreviews", **shown
            },
        }  # fmt: skip
        asking = tmp_path / "asking.json"
        asking.write_text(json.dumps(document))
        name = f"serviceaccount:k8s/{namespace}/till"
        assert str(asyncio.run(judge(token, asking)).principal) == name
        assert api_server.delete("serviceaccount", "till", namespace)
        # The API server remembers for ten seconds whom it has believed.
        wait_in_thread(lambda: is_refused(token, asking), HANG_S, "the review to refuse")
        assert str(asyncio.run(judge(token, issuers)).principal) == name, "its keys alone say so"


def test_it_is_a_token_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, monkeypatch, token="a.b.c")
    program = [sys.executable, "-m", "kubectl_duramen.main", "token", "till"]
    command = shlex.join([*program, "-n", "logs", "--cluster", "demo"])
    assert asyncio.run(TokenCommand(command).read()) == "a.b.c"
