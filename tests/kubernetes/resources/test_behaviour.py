"""How objects look and act for whoever has kubectl: explanations, columns, scale, status, null.

Tier api: nobody acts on the objects, so what is seen is what the API server does by itself.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from duramen.config import LogConfig
from duramen_operator.resources import GROUP, KINDS, LogNamespace, parse, parse_as
from duramen_operator.resources.conditions import CONDITIONS
from duramen_operator.resources.definitions import CATEGORY, NAMES
from tests.kubernetes.cluster.handle import ClusterHandle
from tests.kubernetes.resources.objects import Api, make


def create(api: Api, kind: str, name: str, spec: dict[str, Any] | None = None) -> dict[str, Any]:
    answer = api.create(make(kind, spec, name), is_dry=False)
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


# --- What kubectl knows ---------------------------------------------------------------------------


def explain(cluster: ClusterHandle, path: str) -> str:
    """What `kubectl explain` says, on one line."""
    return re.sub(r"\s+", " ", cluster.kubectl("explain", path).stdout)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("logcluster", "A Duramen cluster: replicated logs for whoever reaches its proxies."),
        ("dc.spec.security", "no TLS and no tokens, whoever reaches the ports may do everything"),
        ("dc.spec.zookeeper.members", "ENUM: 1 3 5 "),
        ("dc.spec.writeProxies.autoscaling.targetCPUPercent", "in percent of the requested CPU"),
        ("bks.spec.claims", "Retain: they stay, with the data."),
        ("bookie.spec.decommission", "Move its data elsewhere, then let it go."),
        ("lns.spec.defaults.replication", "Named, it is named as a whole"),
        ("lg.spec.replication.ack_quorum", "Qa: copies on disk before an acknowledgement"),
        ("lg.spec.retention.age", 'a new log gets the namespace\'s default, else "3d".'),
        ("lg.spec.truncation", "It only moves forward."),
        ("lg.status.conditions.reason", "Why, in one word for programs"),
        ("lgr.spec.subject.token", "never with its secret"),
        ("ap.spec.schedule", 'When it runs, as cron in UTC, such as "15 * * * *".'),
    ],
)
def test_explanations_read_well(resource_server: ClusterHandle, path: str, words: str) -> None:
    assert words in explain(resource_server, path)


@pytest.mark.parametrize("kind", KINDS)
def test_explaining_a_whole_kind_leaves_no_field_bare(
    resource_server: ClusterHandle, kind: str
) -> None:
    """`--recursive` lists every field; explaining the top ones shows a sentence for each."""
    names = NAMES[kind]
    said = resource_server.kubectl("explain", f"{names.plural}.spec").stdout
    fields = said.partition("FIELDS:\n")[2]
    assert "<no description>" not in fields
    assert "<no description>" not in resource_server.kubectl("explain", names.short).stdout


def test_short_names_and_the_category_are_served(
    resource_server: ClusterHandle, api: Api, namespace: str
) -> None:
    served = resource_server.kubectl("api-resources", f"--api-group={GROUP}", "--no-headers").stdout
    rows = {line.split()[-1]: line.split() for line in served.splitlines()}
    assert {kind: row[:2] for kind, row in rows.items()} == {
        kind: [names.plural, names.short] for kind, names in NAMES.items()
    }
    for kind in KINDS:
        create(api, kind, "together")
    found = resource_server.kubectl("get", CATEGORY, "-n", namespace, "-o", "name").stdout
    wanted = {f"{kind.lower()}.{GROUP}/together" for kind in KINDS}
    assert wanted <= set(found.split())


@pytest.mark.parametrize("kind", KINDS)
def test_columns_are_shown(
    resource_server: ClusterHandle, api: Api, namespace: str, kind: str
) -> None:
    create(api, kind, "shown")
    names = NAMES[kind]

    def head(*flags: str) -> list[str]:
        shown = resource_server.kubectl("get", names.short, "shown", "-n", namespace, *flags).stdout
        return re.split(r"\s{2,}", shown.splitlines()[0].strip())

    narrow = [c.name.upper() for c in names.columns if not c.priority]
    assert head() == ["NAME", *narrow]
    wide = [column.name.upper() for column in names.columns]
    assert head("-o", "wide") == ["NAME", *wide]


# --- Status ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_conditions_are_unknown_from_the_first_moment(api: Api, kind: str) -> None:
    create(api, kind, "first")
    found = parse(api.read(kind, "first"))
    assert [c.type for c in found.status.conditions] == list(CONDITIONS[kind])
    for condition in found.status.conditions:
        assert (condition.status, condition.reason) == ("Unknown", "NotYetObserved")
        assert "not looked at this object yet" in condition.message


def test_a_status_is_written_apart_from_the_spec(
    resource_server: ClusterHandle, api: Api, namespace: str
) -> None:
    create(api, "LogNamespace", "apart")
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "AsWanted",
        "message": "It exists as the spec says.",
        "observedGeneration": 1,
        "lastTransitionTime": "2026-01-31T12:00:00Z",
    }
    patch = {
        "apiVersion": "duramen.io/v1alpha1",
        "kind": "LogNamespace",
        "metadata": {"name": "apart", "namespace": namespace},
        "status": {"observedGeneration": 1, "conditions": [ready], "logs": 3},
    }
    flags = ("--server-side", "--field-manager=duramen-operator", "--filename=-")
    resource_server.kubectl("apply", "--subresource=status", *flags, stdin=json.dumps(patch))
    found = parse_as(LogNamespace, api.read("LogNamespace", "apart"))
    condition = found.status.find("Ready")
    assert condition is not None
    assert condition.to_json() == ready
    assert found.metadata.generation == 1, "a status is no change of what is wanted"
    awaited = ("wait", "lns/apart", "-n", namespace, "--for=condition=Ready", "--timeout=10s")
    assert "condition met" in resource_server.kubectl(*awaited).stdout
    row = resource_server.kubectl("get", "lns", "apart", "-n", namespace, "--no-headers").stdout
    assert row.split()[:5] == ["apart", "demo", "True", "AsWanted", "3"]
    # And a spec's writer cannot touch it.
    document = api.read("LogNamespace", "apart") | {"status": {"logs": 99}}
    assert api.replace(document, is_dry=False).status_code == 200
    assert api.read("LogNamespace", "apart")["status"]["logs"] == 3


# --- Scale ----------------------------------------------------------------------------------------


def test_a_set_of_bookies_is_scaled(
    resource_server: ClusterHandle, api: Api, namespace: str
) -> None:
    create(api, "BookieSet", "scaled")
    where = ("-n", namespace)
    resource_server.kubectl("scale", "bks/scaled", "--replicas=6", "--current-replicas=3", *where)
    found = api.read("BookieSet", "scaled")
    assert found["spec"]["replicas"] == 6
    assert found["metadata"]["generation"] == 2
    status = {"replicas": 5, "readyReplicas": 4, "selector": "duramen.io/bookie-set=scaled"}
    body = json.dumps({"status": status})
    flags = ("--subresource=status", "--type=merge", "--patch", body)
    resource_server.kubectl("patch", "bks", "scaled", *flags, *where)
    scale = resource_server.get("bks", "scaled", "--subresource=scale", *where)
    assert scale["status"] == {"replicas": 5, "selector": "duramen.io/bookie-set=scaled"}


def test_a_scale_below_zero_is_refused(
    resource_server: ClusterHandle, api: Api, namespace: str
) -> None:
    create(api, "BookieSet", "floor")
    done = resource_server.kubectl(
        "scale", "bks/floor", "--replicas=1001", "-n", namespace, check=False
    )
    assert done.returncode != 0
    assert "should be less than or equal to 1000" in done.stderr


# --- What is not known, and what is null ----------------------------------------------------------


def test_unknown_fields_are_refused_by_kubectl_and_pruned_from_others(
    resource_server: ClusterHandle, api: Api, namespace: str
) -> None:
    document = make("Log", {"retention": {"age": "1d", "agee": 1}, "replicas": 3}, "unknown")
    done = resource_server.kubectl(
        "apply", "-n", namespace, "-f", "-", stdin=json.dumps(document), check=False
    )
    assert done.returncode != 0
    assert 'unknown field "spec.replicas"' in done.stderr
    assert 'unknown field "spec.retention.agee"' in done.stderr
    resource_server.kubectl(
        "create", "--validate=ignore", "-n", namespace, "-f", "-", stdin=json.dumps(document)
    )
    spec = api.read("Log", "unknown")["spec"]
    assert "replicas" not in spec
    assert spec["retention"] == {"age": "1d"}


@pytest.mark.parametrize("flags", [(), ("--server-side",)], ids=["client", "server"])
def test_no_limit_survives_kubectl_apply(
    resource_server: ClusterHandle, api: Api, namespace: str, flags: tuple[str, ...]
) -> None:
    name = f"ever-{len(flags)}"

    def apply(retention: dict[str, Any]) -> dict[str, Any]:
        document = json.dumps(make("Log", {"retention": retention}, name))
        resource_server.kubectl("apply", *flags, "-n", namespace, "-f", "-", stdin=document)
        found: dict[str, Any] = api.read("Log", name)["spec"]["retention"]
        return found

    assert apply({"age": "1d", "bytes": "1GiB"}) == {"age": "1d", "bytes": "1GiB"}
    assert apply({"age": "none", "bytes": "none"}) == {"age": "none", "bytes": "none"}


def test_null_is_never_taken_for_a_default(resource_server: ClusterHandle, namespace: str) -> None:
    """`kubectl apply` drops `age: null`; a new log would lose its records after 72 hours."""
    document = json.dumps(make("Log", {"retention": {"age": None}}, "never"))
    for flags in ((), ("--server-side",)):
        done = resource_server.kubectl(
            "apply", *flags, "-n", namespace, "-f", "-", stdin=document, check=False
        )
        assert done.returncode != 0
        assert 'write how long records are kept, such as "72h", or "none" for ever' in done.stderr


def test_nothing_is_filled_in_of_a_configuration(api: Api) -> None:
    """What is filled in of one form of `replication` would be refused with the other one."""
    spec = {"replication": {"ensemble_size": 5}, "retention": {"age": "1d"}}
    found = create(api, "Log", "filled", spec)["spec"]
    assert found["replication"] == {"ensemble_size": 5}
    assert found["retention"] == {"age": "1d"}
    assert "tiering" not in found


@pytest.mark.parametrize("value", ["on", "off", True, False])
def test_a_switch_is_a_text_or_what_yaml_makes_of_it(api: Api, value: str | bool) -> None:
    name = f"sticky-{value}".lower()
    assert create(api, "Log", name, {"sticky": value})["spec"]["sticky"] == value


def test_a_configuration_is_shown_as_it_is(
    resource_server: ClusterHandle, api: Api, namespace: str
) -> None:
    """A status that came back otherwise than it was written would be written for ever."""
    create(api, "Log", "whole")
    config = LogConfig().to_json()
    assert config["retention"]["bytes"] is None
    status = {"config": config, "segments": {"open": 1, "closed": 0}, "conditions": []}
    patch = {
        "apiVersion": "duramen.io/v1alpha1",
        "kind": "Log",
        "metadata": {"name": "whole", "namespace": namespace},
        "status": status,
    }
    flags = ("--server-side", "--field-manager=duramen-operator", "--filename=-")
    for _ in range(2):
        resource_server.kubectl("apply", "--subresource=status", *flags, stdin=json.dumps(patch))
        found = api.read("Log", "whole")["status"]
        assert found["config"] == config
        assert found["segments"] == status["segments"]
