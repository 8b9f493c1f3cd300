"""The operator with the rights that the chart gives it, and none besides: a cluster still comes up.

It runs under a service account of its own namespace that is bound to the chart's Role. Whatever it,
or kopf beneath it, asked for beyond that would be refused here as on anybody's cluster.
"""

from __future__ import annotations

from pathlib import Path

from tests.kubernetes.chart.rendering import of_kind, render
from tests.kubernetes.cluster.accounts import NAME, Rules, make_account
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


def read_rules() -> Rules:
    """What the chart's Role of the operator grants."""
    roles = of_kind(render(), "Role")
    (rules,) = (one["rules"] for one in roles if one["metadata"]["name"].endswith(NAME))
    return list(rules)


def test_the_charts_role_is_enough(kwok_cluster: ClusterHandle, tmp_path: Path) -> None:
    install_definitions(kwok_cluster)
    with kwok_cluster.namespace() as namespace, running_twin() as twin:
        kubeconfig = make_account(kwok_cluster, namespace, read_rules(), tmp_path)
        account = f"system:serviceaccount:{namespace}:{NAME}"
        kwok_cluster.wait_right(account, namespace, "list", "logclusters.duramen.io")
        for verb, kind in (("list", "nodes"), ("get", "secrets"), ("list", "namespaces")):
            assert not kwok_cluster.may(account, namespace, verb, kind)
        operator = OperatorProcess(kubeconfig, namespace, twin.url)
        with running_operator(operator):
            here = Objects(kwok_cluster, namespace)
            wanted = {"autoscaling": {"minReplicas": 1, "maxReplicas": 3}}
            some = {"resources": {"requests": {"cpu": "100m"}}}
            spec = {"security": "none", "acceptAnybody": True, "readProxies": {**wanted, **some}}
            here.apply("LogCluster", "main", spec)
            here.apply("BookieSet", "main", {"clusterName": "main"})
            here.apply("LogNamespace", "shop", {"clusterName": "main", "deletionPolicy": "Delete"})
            here.wait("LogCluster", "main", "True/AsWanted")
            here.wait("LogNamespace", "shop", "True/AsWanted")
            # Deleting, finalizers and events need rights of their own.
            here.apply("LogCluster", "main", {"security": "none", "acceptAnybody": True})
            wait_for_objects(lambda: here.list("hpa") == [], SETTLE_S, "the autoscaler to go")
            here.delete("LogNamespace", "shop")
            here.wait_gone("LogNamespace", "shop")
            here.wait_event("main", "AsWanted")
        assert "Forbidden" not in operator.say()
        assert "forbidden" not in operator.say()
        assert "the operator may not" not in operator.say()


def test_an_operator_says_what_it_may_not_do(kwok_cluster: ClusterHandle, tmp_path: Path) -> None:
    install_definitions(kwok_cluster)
    rules = [rule for rule in read_rules() if rule["apiGroups"] != ["policy"]]
    with kwok_cluster.namespace() as namespace, running_twin() as twin:
        kubeconfig = make_account(kwok_cluster, namespace, rules, tmp_path)
        account = f"system:serviceaccount:{namespace}:{NAME}"
        kwok_cluster.wait_right(account, namespace, "list", "logclusters.duramen.io")
        operator = OperatorProcess(kubeconfig, namespace, twin.url)
        with running_operator(operator):
            sentence = (
                f"the operator may not, in namespace {namespace}: get, list, watch, create, patch, "
                "delete poddisruptionbudgets.policy (drains of nodes wait)."
            )
            wait_for_objects(lambda: sentence in operator.say(), SETTLE_S, "the sentence")
