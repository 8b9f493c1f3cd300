"""Changes of resources that the API server refuses, each with the words by which it does.

Used by `test_changes` and `test_acceptance`. Source: docs/kubernetes/resources.md.
"""

from __future__ import annotations

from typing import Any

from tests.kubernetes.resources.objects import GONE

NORTH = [{"region": "north", "zone": "a"}, {"region": "north", "zone": "b"}]
COLD = {"coldStore": {"url": "s3://cold/a"}}
OUTSIDE = {"zookeeper": {"external": {"servers": "zk:2181"}}}
Spec = dict[str, Any]
REFUSED: list[tuple[str, Spec, Spec, str]] = [
    ("LogCluster", COLD, {"coldStore": {"url": "s3://b"}}, "coldStore.url stays once it is set"),
    ("LogCluster", COLD, {"coldStore": GONE}, "coldStore.url stays once it is set: what was"),
    ("LogCluster", {"domains": NORTH}, {"domains": NORTH[1:]}, "a domain cannot be taken away yet"),
    ("LogCluster", {"domains": NORTH}, {"domains": GONE}, "a domain cannot be taken away yet"),
    (
        "LogCluster",
        {"security": "on", "acceptAnybody": GONE},
        {"tls": {"issuer": "operator"}},
        "tls.issuer cannot be changed yet",
    ),
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
    ("LogGrant", {}, {"clusterName": "x"}, "a grant cannot be changed: make a new object, and"),
    ("LogGrant", {}, {"role": "owner"}, "a grant cannot be changed: make a new object, and delete"),
    ("LogGrant", {}, {"subject": {"user": "corp/bob"}}, "a grant cannot be changed: make a new"),
    ("LogGrant", {}, {"scope": "shop/a*"}, "a grant cannot be changed: make a new object, and"),
    ("ArchivePolicy", {}, {"clusterName": "x"}, "clusterName cannot be changed: what it names"),
]
