"""The models as operator and plugin read them: names, defaults, faults, merged configurations.

No Kubernetes is needed. What a real API server says of the same is beside this module.
"""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from duramen.config import LogConfig, parse_log_config
from duramen.config_changes import merge_log_config
from duramen_operator.plan.seen_logs import find_changes
from duramen_operator.resources import (
    BookieSet,
    Condition,
    LogCluster,
    LogGrantSpec,
    LogNamespace,
    LogResource,
    ResourceError,
    merge_config,
    parse,
    parse_as,
)
from duramen_operator.resources.clusters import PAUSED_ANNOTATION
from tests.kubernetes.resources.objects import make


def read_faults(document: dict[str, Any]) -> str:
    with pytest.raises(ResourceError) as raised:
        parse(document)
    return str(raised.value)


def test_all_faults_are_told_at_once_with_the_names_of_the_object() -> None:
    document = make("LogCluster", {"imagePullPolicy": "Ever", "zokeeper": {}, "security": "tls"})
    document["metadata"]["namespace"] = "shop"
    told = read_faults(document)
    assert told.startswith("LogCluster shop/demo: spec.zokeeper: not a known field; ")
    assert "spec.imagePullPolicy: Input should be 'Always'" in told
    assert "spec.security: Input should be 'on' or 'none'" in told


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({}, "duramen.io/v1alpha1 (no name): kind: 'None' is none of LogCluster, BookieSet"),
        ({"kind": "Logg", "metadata": {"name": "a"}}, "Logg a: kind: 'Logg' is none of"),
        ({"kind": "Log", "metadata": "a"}, "metadata: "),
        ({"kind": "Log", "metadata": {"name": "a"}}, "Log a: spec: Field required"),
        (
            {**make("Log"), "apiVersion": "duramen.io/v2"},
            "apiVersion: Input should be 'duramen.io/v1alpha1'",
        ),
        (make("LogNamespace", name="a.b"), "namespace 'a.b': use 1 to 63 of a-z, 0-9 and '-'"),
        (make("Log", {"roll": {"interval": "1 hour"}}), "roll.interval: '1 hour' is no duration"),
        (make("BookieSet", {"replicas": True}), "spec.replicas: Input should be a valid integer"),
    ],
)
def test_what_is_no_object_of_ours_is_refused(document: dict[str, Any], words: str) -> None:
    assert words in read_faults(document)


def test_items_of_a_list_have_no_kind_and_are_read() -> None:
    item = make("BookieSet", {"journal": {"storageClassName": "fast"}, "journalFileSize": "1MiB"})
    del item["kind"], item["apiVersion"]
    spec = parse_as(BookieSet, item).spec
    assert (spec.replicas, spec.journal.size, spec.journal.storage_class_name) == (
        3,
        "20Gi",
        "fast",
    )
    assert spec.journal_file_size == 1 << 20
    with pytest.raises(ResourceError):
        parse_as(LogCluster, make("BookieSet"))


def test_statuses_of_newer_operators_are_read() -> None:
    document = make("Log") | {"status": {"logId": "7", "mood": "good", "conditions": [
        {"type": "Ready", "status": "True", "reason": "AsWanted", "colour": "green"},
    ]}}  # fmt: skip
    log = parse_as(LogResource, document)
    assert log.status.log_id == "7"
    assert log.status.find("Ready") == Condition(type="Ready", status="True", reason="AsWanted")
    assert log.status.find("Archived") is None


def test_names_are_taken_from_the_object_where_the_spec_says_none() -> None:
    assert parse_as(LogResource, make("Log", name="orders")).path == "shop/orders"
    assert (
        parse_as(LogResource, make("Log", {"name": "Orders.EU"}, "orders")).path == "shop/Orders.EU"
    )
    assert parse_as(LogNamespace, make("LogNamespace", name="shop")).namespace_name == "shop"


def test_pause_and_deletion_are_read() -> None:
    document = make("LogCluster")
    assert not parse_as(LogCluster, document).is_paused
    document["metadata"]["annotations"] = {PAUSED_ANNOTATION: "true"}
    document["metadata"]["deletionTimestamp"] = "2026-01-31T00:00:00Z"
    cluster = parse_as(LogCluster, document)
    assert cluster.is_paused and cluster.is_going


def test_a_log_names_only_what_it_names() -> None:
    assert parse_as(LogResource, make("Log")).spec.config() == {}
    spec = {"retention": {"age": "none"}, "commit": "control", "window": {}}
    assert parse_as(LogResource, make("Log", spec)).spec.config() == {
        "retention": {"age": None},
        "commit": "control",
        "window": {},
    }


def test_replication_is_always_whole() -> None:
    spec = {"replication": {"ensemble_size": 5, "placement": "prefer"}}
    assert parse_as(LogResource, make("Log", spec)).spec.config()["replication"] == {
        "ensemble_size": 5,
        "write_quorum": 3,
        "ack_quorum": 2,
        "min_racks": 2,
        "min_regions": 1,
        "regions_that_must_suffice": None,
        "placement": "prefer",
    }


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        (
            {"replication": {"node": 2}},
            {
                "node": 2, "rack": 2, "region": 1, "extras": 0, "regions_that_must_suffice": None,
                "placement": "strict",
            },
        ),
        (
            {"replication": {"placement": "prefer"}, "copysets": "flexible"},
            {
                "node": 3, "rack": 2, "region": 1, "extras": 0, "regions_that_must_suffice": None,
                "placement": "prefer",
            },
        ),
        # Which form it has is known where all defaults are.
        ({"replication": {"placement": "prefer", "node": None}}, {"placement": "prefer"}),
    ],
)  # fmt: skip
def test_replication_has_the_form_of_its_fields_or_of_copysets(
    spec: dict[str, Any], found: dict[str, Any]
) -> None:
    assert parse_as(LogResource, make("Log", spec)).spec.config()["replication"] == found


def test_replication_of_both_forms_is_no_object_of_ours() -> None:
    told = read_faults(make("Log", {"replication": {"node": 2, "ack_quorum": 2}}))
    assert "ack_quorum are of striped logs and node of flexible ones" in told


def test_a_mismatch_with_copysets_is_no_fault_of_the_object() -> None:
    spec = {"replication": {"node": 2}, "copysets": "striped"}
    assert parse_as(LogResource, make("Log", spec)).spec.config()["copysets"] == "striped"


def test_defaults_of_one_form_are_dropped_for_a_log_of_the_other() -> None:
    flexible = {
        "copysets": "flexible", "replication": {"node": 4, "placement": "prefer"},
        "nodeset": {"size": 9}, "sticky": "off", "window": {"stall": "2s", "entries": 9},
    }  # fmt: skip
    assert merge_config(flexible, {"copysets": "striped"}) == {
        "copysets": "striped", "replication": {"placement": "prefer"}, "window": {"entries": 9},
    }  # fmt: skip
    striped = {"replication": {"ensemble_size": 5}, "roll": {"size": "1MiB"}}
    assert merge_config(striped, flexible) == {**striped, **flexible}
    assert merge_config(striped, {"copysets": "flexible"}) == {
        "replication": {}, "roll": {"size": "1MiB"}, "copysets": "flexible",
    }  # fmt: skip
    assert merge_config(flexible, {"sticky": "on"}) == {**flexible, "sticky": "on"}


@pytest.mark.parametrize(
    "spec",
    [
        {"copysets": "flexible", "replication": {"node": 4}, "sticky": False},
        {"copysets": "flexible"},
        {"copysets": "flexible", "replication": {"placement": "prefer"}, "nodeset": {"size": 9}},
    ],
)
def test_a_change_of_copysets_is_one_patch_and_there_is_no_second_one(
    spec: dict[str, Any],
) -> None:
    wanted = parse_as(LogResource, make("Log", spec)).spec.config()
    stored = LogConfig()
    for step in (wanted, {"copysets": "striped"}, wanted):
        patch = find_changes(stored.to_json(), step)
        assert patch["copysets"] == step["copysets"]
        stored = parse_log_config(merge_log_config(stored.to_json(), patch))
        assert find_changes(stored.to_json(), step) == {}


@pytest.mark.parametrize(("value", "stored"), [(True, "on"), ("on", "on"), (False, "off")])
def test_a_switch_is_what_yaml_makes_of_it(value: object, stored: str) -> None:
    assert parse_as(LogResource, make("Log", {"sticky": value})).spec.config() == {"sticky": stored}


def test_nearer_defaults_win_field_by_field_and_replication_as_a_whole() -> None:
    cluster = {"retention": {"age": "1d", "bytes": "1GiB"}, "replication": {"min_regions": 2}}
    space = {"retention": {"age": None}, "replication": {"ensemble_size": 5}}
    log = {"retention": {"truncated": "2h"}, "commit": "control"}
    assert merge_config(cluster, space, log) == {
        "retention": {"age": None, "bytes": "1GiB", "truncated": "2h"},
        "replication": {"ensemble_size": 5},
        "commit": "control",
    }
    assert merge_config() == {}


def test_what_was_written_is_written_again() -> None:
    spec = {"retention": {"age": "30d"}, "deletionPolicy": "Delete", "ack_mode": "ordered"}
    document = make("Log", spec)
    assert parse_as(LogResource, document).spec.to_json() == document["spec"]


@pytest.mark.parametrize(
    ("subject", "who"),
    [
        ({"user": "corp/ann"}, "user:corp/ann"),
        ({"group": "corp/dev ops"}, "group:corp/dev ops"),
        ({"token": "a2" * 8}, "token:" + "a2" * 8),
        ({"service": "client/till"}, "service:client/till"),
        ({"serviceAccount": {"namespace": "a", "name": "b"}}, "serviceaccount:k8s/a/b"),
        (
            {"serviceAccount": {"issuer": "eu", "namespace": "a", "name": "b.c"}},
            "serviceaccount:eu/a/b.c",
        ),
    ],
)
def test_a_subject_is_the_principal_of_that_name(subject: dict[str, Any], who: str) -> None:
    spec = {"clusterName": "demo", "subject": subject, "role": "reader", "scope": "shop/a*"}
    grant = LogGrantSpec.model_validate(spec).grant
    assert (str(grant.who), str(grant.scope)) == (who, "shop/a*")


@pytest.mark.parametrize("subject", [{}, {"user": "corp/ann", "group": "corp/dev"}])
def test_a_grant_has_one_subject(subject: dict[str, Any]) -> None:
    spec = {"clusterName": "demo", "subject": subject, "role": "reader", "scope": "shop"}
    with pytest.raises(ValidationError, match="name exactly one of user, group, token"):
        LogGrantSpec.model_validate(spec)
