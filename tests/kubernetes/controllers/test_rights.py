"""The operator with the rights that the chart gives it, and none besides: a cluster still comes up.

It runs under a service account of its own namespace that is bound to the chart's Role. Whatever it,
or kopf beneath it, asked for beyond that would be refused here as on anybody's cluster.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.kubernetes.chart.rendering import of_kind, render
from tests.kubernetes.cluster.handle import ClusterHandle
from tests.kubernetes.controllers.admin_twin import running_twin
from tests.kubernetes.controllers.operators import (
    SETTLE_S,
    Objects,
    OperatorProcess,
    install_definitions,
    running_operator,
    wait_for_objects,
)

NAME = "operator"
RBAC = "rbac.authorization.k8s.io"


def make_account(cluster: ClusterHandle, namespace: str, folder: Path) -> Path:
    """A service account with the chart's Role; gives a kubeconfig that is it."""
    named = {"name": NAME, "namespace": namespace}
    (rules,) = (
        one["rules"] for one in of_kind(render(), "Role") if one["metadata"]["name"].endswith(NAME)
    )
    subject = {"kind": "ServiceAccount", **named}
    cluster.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": named},
        {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": named, "rules": rules},
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": named,
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": NAME},
            "subjects": [subject],
        },
        namespace=namespace,
    )
    token = cluster.kubectl("-n", namespace, "create", "token", NAME).stdout.strip()
    where = {"server": cluster.url, "certificate-authority": str(cluster.certificate)}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": where}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def test_the_charts_role_is_enough(kwok_cluster: ClusterHandle, tmp_path: Path) -> None:
    install_definitions(kwok_cluster)
    with kwok_cluster.namespace() as namespace, running_twin() as twin:
        kubeconfig = make_account(kwok_cluster, namespace, tmp_path)
        account = f"system:serviceaccount:{namespace}:{NAME}"
        kwok_cluster.wait_right(account, namespace, "list", "logclusters.duramen.io")
        for verb, kind in (("list", "nodes"), ("get", "secrets"), ("list", "namespaces")):
            assert not kwok_cluster.may(account, namespace, verb, kind)
        operator = OperatorProcess(kubeconfig, namespace, twin.url)
        with running_operator(operator):
            here = Objects(kwok_cluster, namespace)
            wanted = {"autoscaling": {"minReplicas": 1, "maxReplicas": 3}}
            some = {"resources": {"requests": {"cpu": "100m"}}}
            spec = {"security": "none", "readProxies": {**wanted, **some}}
            here.apply("LogCluster", "main", spec)
            here.apply("BookieSet", "main", {"clusterName": "main"})
            here.apply("LogNamespace", "shop", {"clusterName": "main", "deletionPolicy": "Delete"})
            here.wait("LogCluster", "main", "True/AsWanted")
            here.wait("LogNamespace", "shop", "True/AsWanted")
            # Deleting, finalizers and events need rights of their own.
            here.apply("LogCluster", "main", {"security": "none"})
            wait_for_objects(lambda: here.list("hpa") == [], SETTLE_S, "the autoscaler to go")
            here.delete("LogNamespace", "shop")
            here.wait_gone("LogNamespace", "shop")
            here.wait_event("main", "AsWanted")
        assert "Forbidden" not in operator.say()
        assert "forbidden" not in operator.say()
