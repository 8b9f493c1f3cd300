"""Service accounts with rights of a test's choice, and kubeconfigs that are them.

Whatever an operator asks for beyond those rights is refused, as on anybody's cluster. Used by tests
of the operator's rights and of its typed calls.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

from tests.kubernetes.cluster.handle import ClusterHandle

NAME: Final = "operator"
_GROUP: Final = "rbac.authorization.k8s.io"

Rules = list[dict[str, Any]]


def make_account(cluster: ClusterHandle, namespace: str, rules: Rules, folder: Path) -> Path:
    """A service account with a Role of these rules; gives a kubeconfig that is it."""
    named = {"name": NAME, "namespace": namespace}
    subject = {"kind": "ServiceAccount", **named}
    cluster.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": named},
        {"apiVersion": f"{_GROUP}/v1", "kind": "Role", "metadata": named, "rules": rules},
        {
            "apiVersion": f"{_GROUP}/v1",
            "kind": "RoleBinding",
            "metadata": named,
            "roleRef": {"apiGroup": _GROUP, "kind": "Role", "name": NAME},
            "subjects": [subject],
        },
        namespace=namespace,
    )
    token = cluster.kubectl("-n", namespace, "create", "token", NAME).stdout.strip()
    path = folder / "kubeconfig"
    write_token_config(path, cluster.url, token, cluster.certificate)
    return path


def write_token_config(path: Path, url: str, token: str, certificate: Path | None) -> None:
    """A kubeconfig of one context: a server, in clear text without a certificate, and a token."""
    where = {"server": url}
    if certificate is not None:
        where["certificate-authority"] = str(certificate)
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": where}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    }
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
