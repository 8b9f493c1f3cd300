"""Values: what helm's linter says, what is refused and with which words, what they change.

Each bad value is refused before anything is rendered, by a message that names the value and says
what it may be. A key that nobody knows is refused too: it would be a misspelt one.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from duramen_operator.names import ARCHIVE, name_component
from duramen_operator.resources.part import HOST_PATTERN
from tests.kubernetes.chart.rendering import (
    CHART,
    EVERYTHING,
    RELEASE,
    defaults,
    helm,
    of_kind,
    render,
    try_values,
)

BAD: list[tuple[str, Any, str]] = [
    ("security", "tls", r"/security': value must be one of 'on', 'none'"),
    ("security", True, r"/security': value must be one of 'on', 'none'"),
    ("cluster.audit", {"requires": True}, r"/cluster/audit'"),
    ("cluster.issuersConfigMap", "Who?", r"/cluster/issuersConfigMap'.*does not match"),
    ("hooks.testTokenSecretName", "My token", r"testTokenSecretName'.*does not match"),
    ("acceptAnybody", "yes", r"/acceptAnybody'.*got string, want boolean"),
    ("image.pullPolicy", "Sometimes", r"/image/pullPolicy'.*'Always', 'IfNotPresent', 'Never'"),
    ("image.repository", "", r"/image/repository'.*minLength"),
    ("image.repository", "host/duramen:latest", r"/image/repository'.*does not match"),
    ("image.tag", "a b", r"/image/tag'.*does not match"),
    ("image.digest", "sha256:123", r"/image/digest'.*does not match"),
    ("image.name", "x", r"/image'.*additional properties 'name' not allowed"),
    ("bookie", {"replicas": 3}, r"additional properties 'bookie' not allowed"),
    ("crds.install", "yes please", r"/crds/install'.*got string, want boolean"),
    ("operator.replicas", -1, r"/operator/replicas'.*minimum"),
    ("operator.verbose", "very", r"/operator/verbose'.*got string, want boolean"),
    ("operator.replicas", 2, r"/operator/replicas'.*maximum"),
    ("operator.resources.limits.memory", "lots", r"limits/memory'.*does not match"),
    ("cluster.name", "Main", r"/cluster/name'.*does not match"),
    ("cluster.domains", [{"region": "eu"}], r"/cluster/domains/0'.*missing property 'zone'"),
    ("cluster.placement", "loose", r"/cluster/placement'.*'strict', 'preferred'"),
    ("cluster.gossip", "off", r"/cluster/gossip'.*got string, want boolean"),
    ("cluster.metadataLogs", 1, r"/cluster/metadataLogs'.*got number, want boolean"),
    ("cluster.publicNames", ["https://a.test"], r"/cluster/publicNames/0'.*does not match"),
    ("cluster.publicNames", ["10.1.2.3"], r"/cluster/publicNames/0'.*does not match"),
    ("cluster.publicNames", "a.test", r"/cluster/publicNames'.*got string, want array"),
    ("cluster.zookeeper.members", 2, r"/cluster/zookeeper/members'.*one of 1, 3, 5"),
    ("cluster.zookeeper.externalServers", "zk", r"externalServers'.*does not match"),
    ("cluster.sequencers.replicas", 0, r"/cluster/sequencers/replicas'.*minimum"),
    ("cluster.writeProxies.autoscaling", {"maxReplicas": 0}, r"/cluster/writeProxies/autoscaling'"),
    ("cluster.coldStore.url", "ftp://x/y", r"/cluster/coldStore/url'.*does not match"),
    ("cluster.archive.runner", "Airflow", r"/cluster/archive/runner'.*'CronJob'"),
    ("bookies.replicas", "three", r"/bookies/replicas'.*got string, want integer"),
    ("bookies.journal.size", "20GB", r"/bookies/journal/size'.*does not match"),
    ("bookies.claims", "Keep", r"/bookies/claims'.*'Retain', 'Delete'"),
    ("logNamespace.name", "Shop!", r"/logNamespace/name'.*does not match"),
    ("logNamespace.deletionPolicy", "Drop", r"/logNamespace/deletionPolicy'.*'Retain', 'Delete'"),
    ("networkPolicies.apiServer.ports", [70000], r"apiServer/ports/0'.*maximum"),
    ("networkPolicies.apiServer.cidr", "everywhere", r"apiServer/cidr'.*does not match"),
    ("networkPolicies.clients", [{}], r"/networkPolicies/clients/0'.*minProperties"),
    ("monitoring.rules", True, r"/monitoring/rules'.*'auto', 'always', 'never'"),
    ("monitoring.scrapeInterval", "30", r"/monitoring/scrapeInterval'.*does not match"),
    ("hooks.timeoutSeconds", 1, r"/hooks/timeoutSeconds'.*minimum"),
]


@pytest.mark.parametrize(("path", "value", "message"), BAD, ids=[f"{p}={v}" for p, v, _ in BAD])
def test_a_bad_value_is_refused_by_name(path: str, value: Any, message: str) -> None:
    done = try_values(_nest(path, value))
    assert done.returncode != 0
    assert re.search(message, done.stderr), done.stderr


def test_that_anybody_is_let_in_has_to_be_said() -> None:
    done = try_values({"acceptAnybody": False})
    assert done.returncode != 0
    assert "if that is meant, set acceptAnybody=true" in done.stderr
    assert try_values({"acceptAnybody": False, "cluster": {"create": False}}).returncode == 0
    cluster = defaults(render())[0]["spec"]
    assert (cluster["security"], cluster["acceptAnybody"]) == ("none", True)


def test_a_cluster_has_identities_unless_it_is_told_otherwise() -> None:
    done = helm("template", RELEASE, CHART)
    assert done.returncode == 0, done.stderr
    cluster = defaults(list(yaml.safe_load_all(done.stdout)))[0]["spec"]
    assert (cluster["security"], cluster["acceptAnybody"]) == ("on", False)
    assert cluster["tls"] == {"issuer": "operator"}


def test_every_value_has_a_rule_and_every_rule_a_value() -> None:
    import json

    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(schema["properties"]) - {"global"} == set(values)
    for name, rule in schema["properties"].items():
        if rule.get("properties"):
            assert set(rule["properties"]) == set(values[name]), name


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_the_linter_has_nothing_to_say(values: dict[str, Any]) -> None:
    done = helm("lint", "--strict", CHART, "--values", "-", stdin=yaml.safe_dump(values))
    assert done.returncode == 0, done.stdout + done.stderr
    faults = [line for line in done.stdout.splitlines() if line.startswith(("[WARN", "[ERR"))]
    assert faults == []


def test_the_cluster_is_called_like_the_release_unless_values_say_otherwise() -> None:
    names = {(one["kind"], one["metadata"]["name"]) for one in defaults(render())}
    assert names == {
        ("LogCluster", RELEASE),
        ("BookieSet", RELEASE),
        ("LogNamespace", "default"),
    }
    renamed = defaults(render({"cluster": {"name": "main"}, "logNamespace": {"create": False}}))
    assert [one["metadata"]["name"] for one in renamed] == ["main", "main"]
    assert renamed[1]["spec"]["clusterName"] == "main"


def test_hosts_of_an_ingress_go_to_the_cluster() -> None:
    names = ["logs.example.org", "logs.test"]
    assert defaults(render({"cluster": {"publicNames": names}}))[0]["spec"]["publicNames"] == names
    assert "publicNames" not in defaults(render())[0]["spec"]


def test_the_chart_and_the_cluster_have_one_rule_for_hosts() -> None:
    import json

    schema = json.loads((CHART / "values.schema.json").read_text())
    rule = schema["properties"]["cluster"]["properties"]["publicNames"]["items"]
    assert rule["pattern"] == HOST_PATTERN


def test_without_a_cluster_there_is_an_operator_alone() -> None:
    objects = render({"cluster": {"create": False}})
    assert defaults(objects) == []
    assert [one["metadata"]["name"] for one in of_kind(objects, "Deployment")]
    assert of_kind(objects, "Pod") == []


def test_the_image_goes_to_every_pod_and_resource() -> None:
    digest = "sha256:" + "0" * 64
    objects = render({"image": {"repository": "reg.test/d", "tag": "1.2", "digest": digest}})
    (deployment,) = of_kind(objects, "Deployment")
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == f"reg.test/d@{digest}"
    cluster = defaults(objects)[0]["spec"]
    assert cluster["image"] == f"reg.test/d@{digest}"
    assert cluster["zookeeper"]["image"] == "reg.test/d-zookeeper:1.2"
    assert cluster["archive"]["image"] == "reg.test/d-spark:1.2"


def test_runs_with_executors_get_an_account_that_may_start_them() -> None:
    def accounts(runner: str) -> set[str]:
        objects = render({"cluster": {"name": "main", "archive": {"runner": runner}}})
        return {one["metadata"]["name"] for one in of_kind(objects, "ServiceAccount")}

    extra = accounts("SparkOnKubernetes") - accounts("CronJob")
    assert extra == {name_component("main", ARCHIVE)}
    assert accounts("ScheduledSparkApplication") == accounts("SparkOnKubernetes")


def test_definitions_stay_when_the_release_goes_unless_told_otherwise() -> None:
    for one in of_kind(render(), "CustomResourceDefinition"):
        assert one["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    for one in of_kind(render({"crds": {"keep": False}}), "CustomResourceDefinition"):
        assert "annotations" not in one["metadata"]
    assert of_kind(render({"crds": {"install": False}}), "CustomResourceDefinition") == []


def _nest(path: str, value: Any) -> dict[str, Any]:
    for part in reversed(path.split(".")):
        value = {part: value}
    nested: dict[str, Any] = value
    return nested
