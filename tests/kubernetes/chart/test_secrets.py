"""The Secrets that the operator fills outlive whatever helm does to the release that made them.

Helm compares what it applied before, what it would apply now, and what is there. It never names
`data`, so it has nothing to take back. Nobody believes that without having seen it: an upgrade that
emptied `CLUSTER-ca` would end a cluster. What does empty it, and the way back, are in the docs.
"""

from __future__ import annotations

import json

import yaml

from tests.kubernetes.chart.rendering import CHART, OPEN, RELEASE, ROOT
from tests.kubernetes.cluster.handle import ClusterHandle

_NAMES = "main-ca", "main-bookies"
_HELD = {name: {"ca.key": "a2V5"} for name in _NAMES}


def test_helm_leaves_what_is_in_the_secrets(api_server: ClusterHandle) -> None:
    with api_server.namespace() as namespace:
        _install(api_server, namespace, ["main"])
        _fill(api_server, namespace)
        _install(api_server, namespace, ["main", "other"])
        assert _read(api_server, namespace) == _HELD
        api_server.helm("rollback", RELEASE, "1", "--namespace", namespace, "--no-hooks")
        assert _read(api_server, namespace) == _HELD
        _install(api_server, namespace, [])
        assert _read(api_server, namespace) == _HELD
        _install(api_server, namespace, ["main"])
        assert _read(api_server, namespace) == _HELD
        api_server.helm("uninstall", RELEASE, "--namespace", namespace, "--no-hooks")
        assert _read(api_server, namespace) == _HELD
        _install(api_server, namespace, ["main"])
        assert _read(api_server, namespace) == _HELD
        api_server.helm("uninstall", RELEASE, "--namespace", namespace, "--no-hooks")


def test_a_copy_of_the_ca_brings_back_what_force_took(api_server: ClusterHandle) -> None:
    """Both lines as the page has them, but for the name."""
    page = (ROOT / "docs" / "kubernetes" / "chart.md").read_text()
    assert "get secret NAME-ca --output jsonpath='{.data}' >" in page
    assert "patch secret NAME-ca --type merge --patch" in page
    with api_server.namespace() as namespace:
        _install(api_server, namespace, ["main"])
        _fill(api_server, namespace)
        where = ("secret", "main-ca", "--namespace", namespace)
        copied = api_server.kubectl("get", *where, "--output", "jsonpath={.data}").stdout
        _install(api_server, namespace, ["main"], "--force")
        assert _read(api_server, namespace) == {name: {} for name in _NAMES}
        patch = f'{{"data": {copied}}}'
        api_server.kubectl("patch", *where, "--type", "merge", "--patch", patch)
        assert _read(api_server, namespace)["main-ca"] == _HELD["main-ca"]
        api_server.helm("uninstall", RELEASE, "--namespace", namespace, "--no-hooks")


def _fill(api: ClusterHandle, namespace: str) -> None:
    for name in _NAMES:
        patch = json.dumps({"data": _HELD[name]})
        where = ("--namespace", namespace, "--type", "merge", "--patch", patch)
        api.kubectl("patch", "secret", name, *where)


def _install(api: ClusterHandle, namespace: str, clusters: list[str], *flags: str) -> None:
    values = {**OPEN, "tls": {"clusters": clusters}}
    api.helm(
        "upgrade", "--install", RELEASE, CHART, "--namespace", namespace, "--no-hooks",
        *(flags or ("--take-ownership",)), "--values", "-", stdin=yaml.safe_dump(values),
    )  # fmt: skip


def _read(api: ClusterHandle, namespace: str) -> dict[str, dict[str, str]]:
    found = api.list("secrets", namespace)
    named = {one["metadata"]["name"]: one.get("data", {}) for one in found}
    return {name: named[name] for name in _NAMES}
