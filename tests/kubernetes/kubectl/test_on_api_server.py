"""The commands beside a real API server: its own errors, its own objects, its own rights.

No pod runs on this tier: what needs one is told as not known. The objects are the custom resources
of the models' own definitions, so a field that does not exist would be refused here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from duramen_operator.resources.definitions import define_all
from tests.kubernetes.cluster.handle import ClusterHandle
from tests.kubernetes.kubectl import things
from tests.kubernetes.resources.texts import read_texts

DEFINED_S = "--timeout=120s"
RULES: list[dict[str, Any]] = [
    {"apiGroups": ["duramen.io"], "resources": ["*"], "verbs": ["list"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
]


@pytest.fixture(scope="module")
def shop(api_server: ClusterHandle) -> Iterator[str]:
    """A namespace with a cluster in it."""
    definitions = list(define_all(read_texts()).values())
    api_server.apply(*definitions)
    names = [f"crd/{one['metadata']['name']}" for one in definitions]
    api_server.kubectl("wait", "--for=condition=Established", DEFINED_S, *names)
    with api_server.namespace() as namespace:
        spec = {"security": "none", "acceptAnybody": True, "image": "localhost/duramen:test"}
        made = [
            _custom("LogCluster", "main", spec),
            _custom("BookieSet", "main", {"clusterName": "main", "replicas": 3}),
            _custom("Log", "paid", {"clusterName": "main", "namespace": "orders"}),
            _custom("Log", "other", {"clusterName": "another", "namespace": "orders"}),
            _pod("main-a-0"),
        ]
        api_server.apply(*made, namespace=namespace)
        refused = things.condition("Ready", "False", "Refused", "no rack for a third copy")
        _set_status(api_server, namespace, "log/paid", {"conditions": [refused]})
        yield namespace


def run(
    api: ClusterHandle, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kubectl_duramen.main", *arguments]
    where = {**api.environment, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    return subprocess.run(
        command, env=where, capture_output=True, text=True, check=False, timeout=60
    )


def test_the_state_is_that_of_the_objects(api_server: ClusterHandle, shop: str) -> None:
    done = run(api_server, "status", "-n", shop, "--json")
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    assert {c["type"] for c in told["conditions"]} >= {"Ready", "Available", "Secure"}
    assert not told["ready"] and told["services"]["zookeeper"]["wanted"] == 3
    assert [row["bookie"] for row in told["bookies"]] == ["main-a-0"]
    assert told["logs"]["objects"] == 1
    (sick,) = told["logs"]["unhealthy"]
    assert sick["log"] == "orders/paid"
    assert "Ready False (Refused): no rack for a third copy" in sick["why"]
    assert set(told["unknown"]) == {"owners", "registered", "repair"}
    text = run(api_server, "status", "-n", shop).stdout
    assert "NOT KNOWN" in text and "!! no operator serves" in text and "zone eu-a" in text


def test_a_report_of_real_objects_has_no_secret(
    api_server: ClusterHandle, shop: str, tmp_path: Path
) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "store"},
              "stringData": {"password": "planted-in-a-secret"}}  # fmt: skip
    api_server.apply(secret, namespace=shop)
    path = tmp_path / "report.tar.gz"
    done = run(api_server, "report", "-n", shop, "-o", str(path), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["file"] == str(path)
    with tarfile.open(path) as tar:
        files = {
            member.name.partition("/")[2]: found.read().decode()
            for member in tar.getmembers()
            if (found := tar.extractfile(member)) is not None
        }
    everything = "\n".join(files.values())
    assert "planted" not in everything and "managedFields" not in everything
    assert "objects/pods/main-a-0.json" in files and "objects/logs/paid.json" in files


def test_no_cluster_and_no_service_are_told(api_server: ClusterHandle, shop: str) -> None:
    with api_server.namespace() as empty:
        done = run(api_server, "status", "-n", empty)
        assert done.returncode == 1 and f"no LogCluster in namespace {empty}" in done.stderr
    done = run(api_server, "append", "orders/paid", "-n", shop)
    assert done.returncode == 1 and "no service main-writeproxy" in done.stderr, done.stderr
    assert "LogCluster main is not ready" in done.stderr


def test_who_may_not_look_is_told_which_right_is_missing(
    api_server: ClusterHandle, shop: str
) -> None:
    as_user = api_server.folder / "as-user"
    config = json.loads(api_server.kubeconfig.read_text())
    config["users"][0]["user"]["as"] = "somebody"
    as_user.write_text(json.dumps(config))
    done = run(api_server, "status", "-n", shop, "--kubeconfig", str(as_user))
    assert done.returncode == 1 and 'cannot list resource "logclusters"' in done.stderr
    assert "docs/kubernetes/kubectl.md" in done.stderr
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": {"name": "looks"}, "rules": RULES}  # fmt: skip
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": "looks"}, "subjects": [{"kind": "User", "name": "somebody"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "looks"},
    }  # fmt: skip
    api_server.apply(role, binding, namespace=shop)
    api_server.wait_right("somebody", shop, "list", "logclusters.duramen.io")
    done = run(api_server, "status", "-n", shop, "--kubeconfig", str(as_user))
    assert "NOT READY" in done.stdout and "services/proxy" in done.stdout
    done = run(api_server, "append", "orders/paid", "-n", shop, "--kubeconfig", str(as_user))
    assert done.returncode == 1 and 'cannot get resource "services"' in done.stderr


def test_a_wrong_token_and_no_server_are_told(api_server: ClusterHandle, shop: str) -> None:
    config = json.loads(api_server.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": "wrong"}
    wrong = api_server.folder / "wrong-token"
    wrong.write_text(json.dumps(config))
    done = run(api_server, "status", "-n", shop, KUBECONFIG=str(wrong))
    assert done.returncode == 1 and "next: log in anew" in done.stderr, done.stderr
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    wrong.write_text(json.dumps(config))
    done = run(api_server, "status", "-n", shop, KUBECONFIG=str(wrong))
    assert done.returncode == 1 and "next: see that the API server runs" in done.stderr
    done = run(api_server, "status", KUBECONFIG="/nowhere/at/all")
    assert done.returncode == 1 and "next: name one with --kubeconfig" in done.stderr, done.stderr


def _custom(kind: str, name: str, spec: things.Json) -> things.Json:
    return {
        "apiVersion": things.API_VERSION,
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    }


def _pod(name: str) -> things.Json:
    found = things.pod(name, "bookie", zone="eu-a")
    del found["status"], found["metadata"]["namespace"]
    return found


def _set_status(api: ClusterHandle, namespace: str, what: str, status: things.Json) -> None:
    patch = json.dumps({"status": status})
    flags = ("--subresource=status", "--type=merge", f"--patch={patch}")
    api.kubectl("patch", what, "--namespace", namespace, *flags)
