"""What a real API server accepts and refuses of changes to objects that are there.

Each case is made first, and then changed. Tier api.
"""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from tests.kubernetes.resources.objects import GONE, Api, make, merge, told

NORTH = [{"region": "north", "zone": "a"}, {"region": "north", "zone": "b"}]
COLD = {"coldStore": {"url": "s3://cold/a"}}
OUTSIDE = {"zookeeper": {"external": {"servers": "zk:2181"}}}

Spec = dict[str, Any]
ACCEPTED: list[tuple[str, Spec, Spec]] = [
    ("LogCluster", {}, {"image": "x/duramen:2", "sequencers": {"replicas": 4}}),
    ("LogCluster", {}, COLD),
    ("LogCluster", COLD, {"coldStore": {"secretName": "new-keys"}}),
    ("LogCluster", {"domains": NORTH[:1]}, {"domains": NORTH}),
    ("LogCluster", OUTSIDE, {"zookeeper": {"external": {"servers": "zk:2181,zk-1:2181"}}}),
    ("LogCluster", {}, {"defaults": {"log": {"retention": {"age": "none"}}}}),
    ("BookieSet", {}, {"replicas": 5, "weight": 2.5}),
    ("BookieSet", {}, {"resources": {"requests": {"cpu": "1"}}, "claims": "Delete"}),
    ("Bookie", {}, {"decommission": True}),
    ("LogNamespace", {"name": "shop"}, {"auto_create": True, "defaults": {"commit": "control"}}),
    ("Log", {}, {"replication": {"ensemble_size": 4}, "retention": {"age": "30d"}}),
    ("Log", {"retention": {"age": "30d"}}, {"retention": GONE}),
    ("Log", {"truncation": "seq:5"}, {"truncation": "seq:9", "sealed": True}),
    ("ArchivePolicy", {}, {"suspend": True, "schedule": "0 3 * * *"}),
]

REFUSED: list[tuple[str, Spec, Spec, str]] = [
    ("LogCluster", COLD, {"coldStore": {"url": "s3://b"}}, "coldStore.url stays once it is set"),
    ("LogCluster", COLD, {"coldStore": GONE}, "coldStore.url stays once it is set: what was"),
    ("LogCluster", {"domains": NORTH}, {"domains": NORTH[1:]}, "a domain cannot be taken away yet"),
    ("LogCluster", {"domains": NORTH}, {"domains": GONE}, "a domain cannot be taken away yet"),
    ("LogCluster", {}, OUTSIDE, "external can neither be added nor taken away: the metadata"),
    ("LogCluster", OUTSIDE, {"zookeeper": {"external": GONE}}, "external can neither be added nor"),
    (
        "LogCluster",
        OUTSIDE,
        {"zookeeper": {"external": {"cluster": "other"}}},
        "cluster cannot be changed: an empty cluster would be found under the new name",
    ),
    ("LogCluster", {}, {"zookeeper": {"members": 5}}, "members cannot be changed yet: an ensemble"),
    (
        "LogCluster",
        {},
        {"zookeeper": {"storage": {"size": "9Gi"}}},
        "storage cannot be changed: a StatefulSet keeps its claims as they are",
    ),
    ("BookieSet", {}, {"clusterName": "other"}, "clusterName cannot be changed: its bookies hold"),
    ("BookieSet", {}, {"journal": {"size": "30Gi"}}, "journal cannot be changed: a StatefulSet"),
    (
        "BookieSet",
        {},
        {"ledgers": {"storageClassName": "fast"}},
        "ledgers cannot be changed: a StatefulSet",
    ),
    ("Bookie", {}, {"clusterName": "other"}, "clusterName cannot be changed: the operator made"),
    ("Bookie", {}, {"bookieSet": "other"}, "bookieSet cannot be changed: the operator made this"),
    ("LogNamespace", {}, {"clusterName": "x"}, "clusterName cannot be changed: what it names"),
    ("LogNamespace", {}, {"name": "other"}, "spec.name cannot be changed: the namespace would be"),
    ("LogNamespace", {"name": "a"}, {"name": GONE}, "spec.name cannot be changed: the namespace"),
    ("Log", {}, {"clusterName": "x"}, "clusterName cannot be changed: what it names"),
    ("Log", {}, {"namespace": "other"}, "namespace cannot be changed: the log would be another"),
    ("Log", {"name": "a"}, {"name": "b"}, "spec.name cannot be changed: the log would be another"),
    (
        "Log",
        {"retention": {"age": "1d", "bytes": "1GiB"}},
        {"retention": {"bytes": None}},
        'bytes: write "none" to lift the limit, or put it back',
    ),
    ("Log", {"sealed": True}, {"sealed": False}, "sealed cannot be taken back: readers were told"),
    ("ArchivePolicy", {}, {"clusterName": "x"}, "clusterName cannot be changed: what it names"),
]


def make_one(api: Api, kind: str, spec: Spec) -> dict[str, Any]:
    answer = api.create(make(kind, spec, f"c-{secrets.token_hex(4)}"), is_dry=False)
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def name_case(case: tuple[Any, ...]) -> str:
    return f"{case[0]}-{case[2]}"[:70]


@pytest.mark.parametrize(("kind", "old", "change"), ACCEPTED, ids=map(name_case, ACCEPTED))
def test_a_change_is_accepted(api: Api, kind: str, old: Spec, change: Spec) -> None:
    document = make_one(api, kind, old)
    answer = api.replace({**document, "spec": merge(document["spec"], change)})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(("kind", "old", "change", "message"), REFUSED, ids=map(name_case, REFUSED))
def test_a_change_is_refused(api: Api, kind: str, old: Spec, change: Spec, message: str) -> None:
    document = make_one(api, kind, old)
    said = told(api.replace({**document, "spec": merge(document["spec"], change)}))
    assert message in said


def test_spelling_out_a_name_that_was_taken_for_granted_changes_nothing(api: Api) -> None:
    document = make_one(api, "LogNamespace", {})
    spec = {**document["spec"], "name": document["metadata"]["name"]}
    assert api.replace({**document, "spec": spec}).status_code == 200
