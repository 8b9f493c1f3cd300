"""The chart's Role of the operator and the operator's own list of what it needs are one.

The list has the reasons; a right that stands in only one of the two is a fault. The hooks' Role has
what their two programs call. Nothing has a wildcard, reads secrets or reaches beyond its namespace.
"""

from __future__ import annotations

from typing import Any

from duramen_operator.rights import RIGHTS
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


def test_the_operators_role_is_what_the_operator_lists() -> None:
    listed = {
        (right.group, resource, verb)
        for right in RIGHTS
        for resource in right.resources
        for verb in right.verbs
    }
    granted = _spread(_roles()["demo-duramen-operator"])
    assert granted - listed == set(), "granted, and nobody says what for"
    assert listed - granted == set(), "needed, and not granted"


def test_no_role_has_wildcards_or_secrets_or_reaches_out() -> None:
    for rules in _roles().values():
        for group, resource, verb in _spread(rules):
            assert "*" not in group + resource + verb
            assert resource not in {"secrets", "nodes", "namespaces", "customresourcedefinitions"}
            assert group != "rbac.authorization.k8s.io"
    kinds = {one["kind"] for one in render(EVERYTHING)}
    assert not kinds & {"ClusterRole", "ClusterRoleBinding"}
