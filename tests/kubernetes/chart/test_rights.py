"""The chart's Role of the operator and the operator's own list of what it needs are one.

The list has the reasons; a right that stands in only one of the two is a fault. The hooks' Role has
what their two programs call. Nothing has a wildcard, reads secrets that are not named, or reaches
beyond its namespace.
"""

from __future__ import annotations

from typing import Any

from duramen_operator.plan.cluster.nodes import SECRETS, name_secret
from duramen_operator.rights import CERT_MANAGER_RIGHTS, NAMED_RIGHTS, RIGHTS, Right
from tests.kubernetes.chart.rendering import EVERYTHING, of_kind, render

Rule = tuple[str, str, str]


def _spread(rules: list[dict[str, Any]]) -> set[Rule]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def _roles() -> dict[str, list[dict[str, Any]]]:
    return {one["metadata"]["name"]: one["rules"] for one in of_kind(render(EVERYTHING), "Role")}


def _list(rights: tuple[Right, ...]) -> set[Rule]:
    return {
        (right.group, resource, verb)
        for right in rights
        for resource in right.resources
        for verb in right.verbs
    }


def _roles_with(values: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    found = of_kind(render({**EVERYTHING, **values}), "Role")
    return {one["metadata"]["name"]: one["rules"] for one in found}


def _pick(rules: list[dict[str, Any]], *, is_named: bool) -> list[dict[str, Any]]:
    return [rule for rule in rules if ("resourceNames" in rule) is is_named]


def test_the_operators_role_is_what_the_operator_lists() -> None:
    listed = _list(RIGHTS)
    granted = _spread(_roles()["demo-duramen-operator"])
    assert granted - listed == set(), "granted, and nobody says what for"
    assert listed - granted == set(), "needed, and not granted"


def test_secrets_are_there_and_may_be_changed_by_name_for_clusters_that_values_name() -> None:
    names = ["main", "a" * 40]
    values = {"tls": {"clusters": names}}
    wanted = {name_secret(cluster, which) for cluster in names for which in SECRETS}
    secrets = of_kind(render(values), "Secret")
    assert {one["metadata"]["name"] for one in secrets} == wanted
    for one in secrets:
        assert "data" not in one, "an upgrade would empty it"
        assert "stringData" not in one
        assert one["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    rules = _roles_with(values)["demo-duramen-operator"]
    (named,) = _pick(rules, is_named=True)
    assert _spread([named]) == _list(NAMED_RIGHTS)
    assert set(named["resourceNames"]) == wanted
    assert _spread(_pick(rules, is_named=False)) == _list(RIGHTS)


def test_certificates_may_be_made_where_the_cluster_says_cert_manager_and_nowhere_else() -> None:
    tls = {"issuer": "certManager", "issuerRef": {"name": "ca"}, "trustConfigMap": "trust"}
    values = {"security": "on", "acceptAnybody": False, "tls": tls}
    rules = _pick(_roles_with(values)["demo-duramen-operator"], is_named=False)
    assert _spread(rules) - _list(RIGHTS) == _list(CERT_MANAGER_RIGHTS)


def test_no_role_has_wildcards_or_secrets_or_reaches_out() -> None:
    roles = _roles_with({"tls": {"clusters": ["main"]}})
    for rules in roles.values():
        named = _pick(rules, is_named=True)
        assert {rule for rule in _spread(named) if rule[1] == "secrets"} <= _list(NAMED_RIGHTS)
        for group, resource, verb in _spread(_pick(rules, is_named=False)):
            assert "*" not in group + resource + verb
            assert resource not in {"secrets", "nodes", "namespaces", "customresourcedefinitions"}
            assert group != "rbac.authorization.k8s.io"
    kinds = {one["kind"] for one in render(EVERYTHING)}
    assert not kinds & {"ClusterRole", "ClusterRoleBinding"}
