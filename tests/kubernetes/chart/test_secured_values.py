"""A chart's cluster with identities: what its LogCluster says, who may read which Secret, how
metrics and `helm test` reach its ports.

Names are compared with those that the operator makes, also where they had to be cut.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from duramen_operator.names import (
    BOOKIE,
    READ_PROXY,
    SECURITY_LABEL,
    SEQUENCER,
    WRITE_PROXY,
    name_component,
)
from duramen_operator.plan.cluster.nodes import (
    OPERATOR_IDENTITY,
    list_hosts,
    name_pod_service,
    name_secret,
)
from duramen_operator.plan.cluster.secured.ca_bundle import name_bundle
from duramen_operator.resources import LogCluster
from duramen_operator.resources.reading import parse_as
from tests.kubernetes.chart.rendering import NAMESPACE, defaults, of_kind, render, try_values

ON: dict[str, Any] = {
    "security": "on",
    "acceptAnybody": False,
    "monitoring": {"monitors": "always"},
}
ASKED: dict[str, Any] = {
    "issuer": "certManager",
    "issuerRef": {"name": "ca"},
    "trustConfigMap": "main-trust",
}
NAMES = ("main", "a" * 40)


def secured(name: str = "main", **values: Any) -> list[dict[str, Any]]:
    cluster = {"name": name, **values.pop("cluster", {})}
    return render({**ON, "cluster": cluster, **values})


def test_the_cluster_is_secured_and_says_who_issues() -> None:
    for issuer in ("operator", "secret"):
        audited = {"audit": {"require": True}, "issuersConfigMap": "who"}
        (cluster, *_) = defaults(secured(cluster=audited, tls={"issuer": issuer}))
        spec = parse_as(LogCluster, cluster).spec
        assert (spec.security, spec.accept_anybody) == ("on", False)
        assert spec.tls.issuer == issuer
        assert spec.audit.require
        assert spec.issuers is not None and spec.issuers.name == "who"
        (plain, *_) = defaults(secured())
        assert not parse_as(LogCluster, plain).spec.audit.require


def test_a_cluster_of_cert_managers_names_its_issuer_and_its_trust() -> None:
    objects = secured(tls=ASKED)
    assert of_kind(objects, "Secret") == [], "cert-manager makes them"
    (cluster, *_) = defaults(objects)
    tls = parse_as(LogCluster, cluster).spec.tls
    assert tls.issuer_ref is not None and tls.trust is not None
    told = (tls.issuer, tls.issuer_ref.name, tls.issuer_ref.kind, tls.trust.name)
    assert told == ("certManager", "ca", "Issuer", "main-trust")
    monitors = of_kind(objects, "PodMonitor")
    (own,) = (one for one in monitors if one["metadata"]["name"].endswith("-secured"))
    (endpoint,) = own["spec"]["podMetricsEndpoints"]
    trusted = {"configMap": {"name": "main-trust", "key": "ca.crt"}}
    assert endpoint["tlsConfig"]["ca"] == trusted


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({**ON, "acceptAnybody": True}, "take acceptAnybody away"),
        ({"cluster": {"audit": {"require": True}}}, "nobody is known: take cluster.audit.require"),
        ({"cluster": {"issuersConfigMap": "who"}}, "or set security=on"),
        ({**ON, "tls": {"issuer": "certManager"}}, "needs tls.issuerRef.name, the issuer that si"),
        ({**ON, "tls": {**ASKED, "trustConfigMap": ""}}, "and tls.trustConfigMap, a ConfigMap"),
    ],
)
def test_what_contradicts_itself_is_refused(values: dict[str, Any], words: str) -> None:
    done = try_values(values)
    assert done.returncode != 0
    assert words in done.stderr


@pytest.mark.parametrize("security", [{}, ON])
def test_values_of_a_release_of_before_are_enough(security: dict[str, Any]) -> None:
    """`helm upgrade --reuse-values` knows none of the values that came since."""
    cluster = {"name": "main"}
    kept = {"audit": None, "issuersConfigMap": None}
    new = {"tls": None, "hooks": {"testTokenSecretName": None}}
    values = {"monitoring": {"monitors": "always"}, **security}
    before = render({**values, **new, "cluster": {**cluster, **kept}})
    assert before == render({**values, "cluster": cluster})


@pytest.mark.parametrize("name", NAMES)
def test_the_operator_reads_its_own_identity_where_somebody_else_fills_it(name: str) -> None:
    objects = secured(name, tls={"issuer": "secret"})
    assert of_kind(objects, "Secret") == [], "who fills them makes them"
    rules = [
        rule
        for role in of_kind(objects, "Role")
        for rule in role["rules"]
        if "secrets" in rule["resources"]
    ]
    (rule,) = rules
    assert rule["resourceNames"] == [name_secret(name, OPERATOR_IDENTITY)]
    assert rule["verbs"] == ["get"]


@pytest.mark.parametrize("name", NAMES)
def test_metrics_are_asked_by_tls_of_each_pod_by_its_own_name(name: str) -> None:
    monitors = of_kind(secured(name), "PodMonitor")
    plain, own = sorted(monitors, key=lambda one: len(str(one["metadata"]["name"])))
    others = {"key": SECURITY_LABEL, "operator": "NotIn", "values": ["on"]}
    assert others in plain["spec"]["selector"]["matchExpressions"]
    assert own["spec"]["selector"]["matchLabels"][SECURITY_LABEL] == "on"
    (endpoint,) = own["spec"]["podMetricsEndpoints"]
    assert (endpoint["scheme"], endpoint["path"]) == ("https", "/metrics")
    secret = name_secret(name, "monitor")
    assert endpoint["tlsConfig"] == {
        "ca": {"secret": {"name": secret, "key": "ca.crt"}},
        "cert": {"secret": {"name": secret, "key": "tls.crt"}},
        "keySecret": {"name": secret, "key": "tls.key"},
    }
    for role in (BOOKIE, SEQUENCER, WRITE_PROXY, READ_PROXY):
        found = relabel(endpoint["relabelings"], name, role, "pod-7", "10.1.2.3:7102")
        host, _, port = found["__address__"].partition(":")
        assert host in list_hosts("pod-7", name_pod_service(name, role), NAMESPACE)
        assert port == "7102"
        assert found["instance"] == "10.1.2.3:7102"
        assert (found["duramen_cluster"], found["component"]) == (name, role)


def test_a_cluster_without_identities_has_no_monitor_that_shows_one() -> None:
    (plain,) = of_kind(render({"monitoring": {"monitors": "always"}}), "PodMonitor")
    assert "tlsConfig" not in plain["spec"]["podMetricsEndpoints"][0]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("token", ["", "of-the-test"])
def test_helm_test_trusts_the_bundle_and_shows_a_token_only_where_there_is_one(
    name: str, token: str
) -> None:
    (pod,) = of_kind(secured(name, hooks={"testTokenSecretName": token}), "Pod")
    (container,) = pod["spec"]["containers"]
    told = {one["name"]: one["value"] for one in container["env"]}
    assert told["WRITE_URL"] == f"https://{name_component(name, WRITE_PROXY)}:7301"
    mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    volumes = {one["name"]: one for one in pod["spec"]["volumes"]}
    trusted = volumes[mounts[told["DURAMEN_CA"].removesuffix("/ca.crt")]]
    assert trusted["configMap"]["name"] == name_bundle(name)
    assert ("DURAMEN_TOKEN_FILE" in told) is bool(token)
    if token:
        shown = volumes[mounts[told["DURAMEN_TOKEN_FILE"].removesuffix("/token")]]
        assert shown["secret"]["secretName"] == token


def relabel(
    rules: list[dict[str, Any]], cluster: str, role: str, pod: str, address: str
) -> dict[str, str]:
    """The labels of a target as Prometheus makes them: `replace`, its default, and nothing else."""
    labels = {
        "__address__": address,
        "__meta_kubernetes_pod_name": pod,
        "__meta_kubernetes_pod_label_app_kubernetes_io_instance": cluster,
        "__meta_kubernetes_pod_label_app_kubernetes_io_component": role,
    }
    for rule in rules:
        assert rule.get("action", "replace") == "replace"
        text = ";".join(labels.get(name, "") for name in rule.get("sourceLabels", ()))
        found = re.fullmatch(rule.get("regex", "(.*)"), text)
        if found is not None:
            made = re.sub(r"\$(\d)", r"\\g<\1>", rule.get("replacement", "$1"))
            labels[rule["targetLabel"]] = found.expand(made)
    return labels
