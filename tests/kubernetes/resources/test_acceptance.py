"""What a real API server accepts and refuses of new objects, and in which words.

Each case is the least object of its kind with a few fields changed. The last test sees that every
rule and every hint of `duramen_operator.resources.rules` has a case that meets it, here or in
changes.py. Tier api.
"""

from __future__ import annotations

from typing import Any

import pytest

from duramen.config import LogConfig
from duramen_operator.resources import ResourceError, parse
from duramen_operator.resources.rules import HINTS, RULES
from tests.kubernetes.resources import changes
from tests.kubernetes.resources.objects import GONE, SPECS, Api, make, told

TWO_ZONES = [{"region": "north", "zone": "a"}, {"region": "north", "zone": "b"}]
BUCKET = {"coldStore": {"url": "s3://cold/duramen", "secretName": "keys"}}
CPU = {"requests": {"cpu": 1}}


def replicated(**fields: Any) -> dict[str, Any]:
    return {"replication": fields}


FLEXIBLE = LogConfig.model_validate(
    {"copysets": "flexible", "nodeset": {"size": 9}, "replication": {"region": 2}}
)


ASKED = {"issuer": "certManager", "issuerRef": {"name": "ca"}, "trust": {"name": "trust"}}
TILL = {"namespace": "shop", "name": "till.v2"}


def hint(word: str) -> str:
    """The hint that has these words."""
    (found,) = {text for text in HINTS.values() if word in text}
    return found


ACCEPTED: list[tuple[str, dict[str, Any]]] = [
    *((kind, {}) for kind in SPECS),
    ("LogCluster", {"security": GONE, "acceptAnybody": GONE}),
    ("LogCluster", {"security": "on", "acceptAnybody": False, "tls": {"issuer": "secret"}}),
    ("LogCluster", {"security": "on", "acceptAnybody": False, "tls": ASKED}),
    ("LogCluster", {"tls": {**ASKED, "issuerRef": {"name": "ca", "kind": "ClusterIssuer"}}}),
    ("LogCluster", {"domains": TWO_ZONES, "placement": "preferred"}),
    ("LogCluster", {"zookeeper": {"members": 1, "storage": {"size": "1Gi"}}}),
    ("LogCluster", {"zookeeper": {"members": 5, "storage": {"storageClassName": "fast"}}}),
    ("LogCluster", {"zookeeper": {"external": {"servers": "zk-0.zk:2181,[fd00::1]:2181"}}}),
    ("LogCluster", {"zookeeper": {"external": {"servers": "zk:2181", "cluster": "old"}}}),
    ("LogCluster", {"writeProxies": {"autoscaling": {"maxReplicas": 9}, "resources": CPU}}),
    ("LogCluster", {"readProxies": {"replicas": 5, "resources": {"limits": {"memory": "2Gi"}}}}),
    ("LogCluster", {"sequencers": {"resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}}),
    ("LogCluster", {"publicNames": ["logs.example.org", "logs", "x1.a-b.c"]}),
    ("LogCluster", BUCKET),
    ("LogCluster", {"coldStore": {"url": "webhdfs://duramen@name-node:9870/cold"}}),
    ("LogCluster", {"coldStore": {"url": "file:///cold", "claimName": "cold"}}),
    ("LogCluster", {"imagePullSecrets": [{"name": "a"}, {"name": "b"}], "image": "x/duramen:1"}),
    ("LogCluster", {"defaults": {"auto_create": True, "log": {"retention": {"age": "1d"}}}}),
    ("LogCluster", {"archive": {"runner": "SparkOnKubernetes"}, "lostBookieGrace": "1d"}),
    ("BookieSet", {"replicas": 0}),
    ("BookieSet", {"replicas": 9, "weight": 0.5, "journalFileSize": "64MiB", "claims": "Delete"}),
    ("BookieSet", {"journal": {"size": "1Gi", "storageClassName": "fast"}}),
    ("BookieSet", {"weight": 0, "resources": {"requests": {"cpu": 2}, "limits": {"cpu": "2"}}}),
    ("Bookie", {"decommission": True, "repairAction": "ReplaceDisk"}),
    ("LogNamespace", {"name": "shop", "auto_create": False, "deletionPolicy": "Delete"}),
    ("LogNamespace", {"defaults": {"tiering": {"policy": "copy"}, "roll": {"size": "1GiB"}}}),
    ("Log", LogConfig().to_json()),
    ("Log", FLEXIBLE.to_json()),
    ("Log", {"copysets": "flexible", **replicated(node=4, rack=3, region=2, extras=2)}),
    ("Log", {"nodeset": {"size": "none", "tolerate": 0}, "sticky": True}),
    ("Log", {"nodeset": {"size": 6, "tolerate": 2}, **replicated(node=3, extras=1)}),
    ("Log", {"nodeset": {"size": "none", "tolerate": 2}, **replicated(node=3)}),
    ("Log", {"window": {"stall": "60s"}, "sticky": "off"}),
    ("Log", {"window": {"stall": "500ms500ms"}, **replicated(region=1, rack=1)}),
    ("LogNamespace", {"defaults": {"copysets": "flexible", "nodeset": {"size": 20}}}),
    ("LogCluster", {"defaults": {"log": {"copysets": "flexible", **replicated(node=2)}}}),
    ("Log", {"name": "Orders_2026.q1", "deletionPolicy": "Delete"}),
    ("Log", {"retention": {"age": "30d", "bytes": None, "require_cold_copy": True}}),
    ("Log", {"retention": {"age": "none", "bytes": "none"}}),
    ("Log", replicated(ensemble_size=5, write_quorum=4, ack_quorum=3, min_racks=3)),
    ("Log", replicated(ensemble_size=6, write_quorum=3, ack_quorum=3, min_regions=2)),
    ("Log", replicated(min_regions=2, regions_that_must_suffice=3)),
    ("Log", replicated(ensemble_size=1, write_quorum=1, ack_quorum=1, min_racks=1)),
    ("Log", replicated(placement="prefer", regions_that_must_suffice=None)),
    ("Log", {"roll": {"interval": "100ms", "idle_close": "1s"}, "commit": "control"}),
    ("Log", {"roll": {"interval": "1d12h"}, "flush": {"policy": "periodic", "interval": "1s"}}),
    ("Log", {"sealed": True, "truncation": "dlsn:e3n17s0"}),
    ("Log", {"truncation": "lsn:e3n17"}),
    ("LogGrant", {"subject": {"user": "corp/" + "~" * 255}, "role": "owner", "scope": "shop/ord*"}),
    ("LogGrant", {"subject": {"user": GONE, "group": "corp/Développeurs du soir"}}),
    ("LogGrant", {"subject": {"user": GONE, "token": "a2" * 8}, "scope": "shop/a.b"}),
    ("LogGrant", {"subject": {"user": GONE, "service": "client/till-1"}, "role": "producer"}),
    ("LogGrant", {"subject": {"user": GONE, "serviceAccount": TILL}, "role": "archiver"}),
    (
        "LogGrant",
        {"subject": {"user": GONE, "serviceAccount": {**TILL, "issuer": "eu-1"}}, "role": "writer"},
    ),
    ("ArchivePolicy", {"schedule": "15 */2 * * MON-FRI", "onClosedSegments": False}),
    ("ArchivePolicy", {"schedule": "@hourly", "keepHot": "1h30m", "runner": "CronJob"}),
    ("ArchivePolicy", {"selector": {"namespace": "prod-*", "logs": "orders-[ab]?"}}),
    ("ArchivePolicy", {"onClosedSegments": False, "suspend": True}),
    ("ArchivePolicy", {"destination": {"url": "s3://other"}, "resources": CPU}),
]

POSITION = hint("position that stands still")
DURATION = hint('"250ms", "1h30m"')
SIZE = hint('"64MiB" or "10GiB"')
OBJECT = hint("name of an object")
ONE_SUBJECT = "write exactly one of user, group, token, serviceAccount, service"
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("LogCluster", {"security": GONE}, "with security: on nobody is let in without"),
    ("LogCluster", {"security": "on"}, "Take acceptAnybody away"),
    ("LogCluster", {"security": True}, "spec.security: Invalid value"),
    (
        "LogCluster",
        {"tls": {"issuer": "me"}},
        'supported values: "operator", "certManager", "secret"',
    ),
    ("LogCluster", {"tls": {"issuer": "certManager"}}, "certManager needs an issuerRef, and a tru"),
    (
        "LogCluster",
        {"tls": {"issuer": "certManager", "issuerRef": {"name": "ca"}}},
        "certManager needs an issuerRef, and a trust",
    ),
    ("LogCluster", {"tls": {**ASKED, "issuer": "secret"}}, "for issuer: certManager alone: take"),
    (
        "LogCluster",
        {"tls": {**ASKED, "issuerRef": {"name": "ca", "kind": "Vault"}}},
        'supported values: "Issuer", "ClusterIssuer"',
    ),
    ("LogCluster", {"acceptAnybody": GONE}, "whoever reaches a port may do everything"),
    ("LogCluster", {"security": "tls"}, 'supported values: "on", "none"'),
    ("LogCluster", {"audit": {"require": True}}, "audit.require: with security: none"),
    ("LogCluster", {"issuers": {"name": "who"}}, "issuers: with security: none"),
    ("LogCluster", {"zookeeper": {"members": 2}}, 'supported values: "1", "3", "5"'),
    ("LogCluster", {"zookeeper": {"external": {"servers": "zk"}}}, hint("zk-0.zk:2181")),
    ("LogCluster", {"zookeeper": {"external": {}}}, "spec.zookeeper.external.servers: Required"),
    ("LogCluster", {"zookeeper": {"storage": {"size": "5 GB"}}}, 'such as "20Gi"'),
    ("LogCluster", {"zokeeper": {}}, 'unknown field "spec.zokeeper"'),
    ("LogCluster", {"domains": [*TWO_ZONES, TWO_ZONES[0]]}, "Duplicate value"),
    ("LogCluster", {"domains": [{"region": "north"}]}, "spec.domains[0].zone: Required value"),
    ("LogCluster", {"domains": [{"region": "North", "zone": "a"}]}, "write 1 to 63 of a-z, 0-9"),
    ("LogCluster", {"placement": "loose"}, 'supported values: "strict", "preferred"'),
    ("LogCluster", {"publicNames": ["https://logs.example.org"]}, hint("name of a host")),
    ("LogCluster", {"publicNames": ["logs.example.org:443"]}, hint("name of a host")),
    ("LogCluster", {"publicNames": ["10.1.2.3"]}, hint("name of a host")),
    ("LogCluster", {"publicNames": ["*.example.org"]}, hint("name of a host")),
    ("LogCluster", {"publicNames": ["a..b"]}, hint("name of a host")),
    ("LogCluster", {"sequencers": {"replicas": 0}}, "should be greater than or equal to 1"),
    ("LogCluster", {"sequencers": {"replicas": "two"}}, "must be of type integer"),
    (
        "LogCluster",
        {"writeProxies": {"autoscaling": {"minReplicas": 4, "maxReplicas": 3}, "resources": CPU}},
        "maxReplicas is less than minReplicas: raise maxReplicas or lower minReplicas",
    ),
    (
        "LogCluster",
        {"readProxies": {"autoscaling": {"maxReplicas": 3}}},
        "autoscaling by CPU is a share of what is requested: set resources.requests.cpu",
    ),
    (
        "LogCluster",
        {"sequencers": {"resources": {"requests": {"memory": "2Gi"}, "limits": {"memory": "1G"}}}},
        "requests.memory is more than limits.memory: raise the limit or lower the request",
    ),
    (
        "BookieSet",
        {"resources": {"requests": {"cpu": 2}, "limits": {"cpu": "1500m"}}},
        "requests.cpu is more than limits.cpu: raise the limit or lower the request",
    ),
    ("BookieSet", {"resources": {"requests": {"cpu": "lots"}}}, "requests.cpu"),
    ("LogCluster", {"coldStore": {"url": "gs://cold"}}, "url: write s3://bucket/prefix"),
    ("LogCluster", {"coldStore": {"url": "file:///cold"}}, "claimName: a file: URL needs a"),
    (
        "LogCluster",
        {"coldStore": {"url": "s3://cold", "claimName": "cold"}},
        "claimName is for file: URLs alone: take it away, or write file:///folder",
    ),
    ("LogCluster", {"lostBookieGrace": "5 minutes"}, DURATION),
    ("LogCluster", {"lostBookieGrace": "9s"}, 'lostBookieGrace: write "10s" or more'),
    ("LogCluster", {"imagePullSecrets": [{"name": "A"}]}, OBJECT),
    ("LogCluster", {"archive": {"runner": "Cron"}}, '"CronJob", "SparkOnKubernetes"'),
    ("LogCluster", {"defaults": {"log": replicated(write_quorum=4)}}, "raise ensemble_size or"),
    ("BookieSet", {"clusterName": GONE}, "spec.clusterName: Required value"),
    ("BookieSet", {"clusterName": "De_mo"}, OBJECT),
    ("BookieSet", {"replicas": -1}, "should be greater than or equal to 0"),
    ("BookieSet", {"journal": {"size": "0"}}, "greater than 0"),
    ("BookieSet", {"ledgers": {"size": "-5Gi"}}, "greater than 0"),
    ("BookieSet", {"weight": -1}, "should be greater than or equal to 0"),
    ("BookieSet", {"journalFileSize": "64Mi"}, SIZE),
    ("BookieSet", {"claims": "Keep"}, 'supported values: "Retain", "Delete"'),
    ("Bookie", {"repairAction": "Reformat"}, '"None", "ReplaceDisk", "AcceptLoss"'),
    ("Bookie", {"decommission": "yes"}, "must be of type boolean"),
    ("LogNamespace", {"name": "Shop"}, "beginning and ending with a letter or digit"),
    ("LogNamespace", {"deletionPolicy": "Keep"}, 'supported values: "Retain", "Delete"'),
    ("LogNamespace", {"autoCreate": True}, 'unknown field "spec.autoCreate"'),
    ("LogNamespace", {"defaults": {"roll": {"size": "big"}}}, SIZE),
    ("Log", {"namespace": GONE}, "spec.namespace: Required value"),
    ("Log", {"namespace": "-shop"}, "beginning and ending with a letter or digit"),
    ("Log", {"name": "_orders"}, hint("write 1 to 255")),
    ("Log", {"ackMode": "ordered"}, 'unknown field "spec.ackMode"'),
    ("Log", {"ack_mode": "late"}, 'supported values: "ordered", "out_of_order"'),
    ("Log", replicated(ensembleSize=3), 'unknown field "spec.replication.ensembleSize"'),
    ("Log", replicated(ensemble_size=65), "should be less than or equal to 64"),
    (
        "Log",
        replicated(ensemble_size=2),
        "ensemble_size is less than write_quorum: raise ensemble_size or lower write_quorum",
    ),
    (
        "Log",
        replicated(ack_quorum=4, ensemble_size=4),
        "write_quorum is less than ack_quorum: raise write_quorum or lower ack_quorum",
    ),
    (
        "Log",
        replicated(min_racks=3),
        "ack_quorum copies cannot lie in min_racks racks: raise ack_quorum or lower min_racks",
    ),
    (
        "Log",
        replicated(min_regions=3, regions_that_must_suffice=5),
        "ack_quorum copies cannot lie in min_regions regions: raise ack_quorum or lower "
        "min_regions",
    ),
    (
        "Log",
        replicated(ack_quorum=3, min_regions=2, regions_that_must_suffice=1),
        "fewer regions than min_regions never suffice: raise regions_that_must_suffice to "
        "min_regions, or lower min_regions",
    ),
    ("Log", replicated(min_regions=2), "with regions_that_must_suffice regions left (by default"),
    ("Log", replicated(placement="loose"), 'supported values: "strict", "prefer"'),
    ("Log", replicated(node=3, ack_quorum=2), "are of striped logs, node, rack, region, extras of"),
    ("Log", replicated(node=2, rack=3), "node copies cannot lie in rack racks: raise node or"),
    ("Log", replicated(rack=1, region=2), "rack racks cannot lie in region regions: raise rack or"),
    (
        "Log",
        replicated(region=2, regions_that_must_suffice=1),
        "fewer regions than region never suffice: raise regions_that_must_suffice to region",
    ),
    ("Log", replicated(extras=3), "should be less than or equal to 2"),
    (
        "Log",
        {"nodeset": {"tolerate": 2}, **replicated(node=2)},
        "nodeset.tolerate must be less than replication.node, or all copies of an entry may be",
    ),
    (
        "LogNamespace",
        {"defaults": {"nodeset": {"size": 5, "tolerate": 1}, **replicated(node=4, extras=1)}},
        "nodeset.size is less than replication.node, extras and nodeset.tolerate together: raise",
    ),
    ("Log", {"nodeset": {"size": 65}}, "should be less than or equal to 64"),
    ("Log", {"nodeset": {"size": "all"}}, "should match '^none$'"),
    ("Log", {"sticky": "yes"}, 'supported values: "on", "off"'),
    ("Log", {"copysets": "sticky"}, 'supported values: "striped", "flexible"'),
    ("Log", {"window": {"stall": "999ms"}}, 'stall: write "1s" to "60s"'),
    ("Log", {"window": {"stall": "1d"}}, 'stall: write "1s" to "60s"'),
    ("Log", {"roll": {"interval": "99ms"}}, 'interval: write "100ms" or more, or a segment could'),
    ("Log", {"roll": {"idle_close": "500ms"}}, 'idle_close: write "1s" or more, or a segment'),
    ("Log", {"roll": {"interval": 7200}}, "must be of type string"),
    ("Log", {"flush": {"interval": "2s"}}, 'interval: write "1s" or less: an append has ten'),
    ("Log", {"flush": {"wait_max": "1d"}}, 'wait_max: write "1s" or less: an append has ten'),
    ("Log", {"flush": {"policy": "never"}}, '"immediate", "periodic", "size"'),
    ("Log", {"retention": {"age": "3 days"}}, hint('"30d", or "none" for ever')),
    ("Log", {"retention": {"bytes": "1GiB"}}, "age: write how long records are kept, such as"),
    ("Log", {"retention": {"age": None}}, "age: write how long records are kept, such as"),
    ("Log", {"retention": {"age": "1d", "bytes": "1G"}}, hint('or "none" for no limit')),
    ("Log", {"commit_delay": "soon"}, DURATION),
    ("Log", {"window": {"entries": 0}}, "should be greater than or equal to 1"),
    ("Log", {"tiering": {"policy": "cold"}}, 'supported values: "none", "copy", "move"'),
    ("Log", {"truncation": "tail"}, POSITION),
    ("Log", {"truncation": "ago:1h"}, POSITION),
    ("Log", {"truncation": "time:2026-01-31T00:00:00Z"}, POSITION),
    ("Log", {"truncation": 17}, "must be of type string"),
    ("LogGrant", {"subject": GONE}, "spec.subject: Required value"),
    ("LogGrant", {"subject": {"user": GONE}}, ONE_SUBJECT),
    ("LogGrant", {"subject": {"group": "corp/dev"}}, ONE_SUBJECT),
    ("LogGrant", {"subject": {"user": "ann"}}, hint("ISSUER/SUBJECT")),
    ("LogGrant", {"subject": {"user": "Corp/ann"}}, hint("ISSUER/SUBJECT")),
    ("LogGrant", {"subject": {"user": "corp/an n"}}, hint("ISSUER/SUBJECT")),
    ("LogGrant", {"subject": {"user": "corp/ann\n"}}, hint("ISSUER/SUBJECT")),
    ("LogGrant", {"subject": {"user": GONE, "group": "corp/dev "}}, hint("ISSUER/GROUP")),
    ("LogGrant", {"subject": {"user": GONE, "token": "dur1_" + "a" * 11}}, hint("behind dur1_")),
    ("LogGrant", {"subject": {"user": GONE, "service": "till"}}, hint("such as client/till")),
    (
        "LogGrant",
        {"subject": {"user": GONE, "serviceAccount": {**TILL, "issuer": "K8s"}}},
        hint("short name of an issuer: 1"),
    ),
    (
        "LogGrant",
        {"subject": {"user": GONE, "serviceAccount": {"namespace": "a.b", "name": "x"}}},
        hint("write 1 to 63 of a-z, 0-9 and '-', beginning and ending with a letter or digit"),
    ),
    ("LogGrant", {"role": "operator"}, 'supported values: "reader", "producer", "writer", "owner"'),
    ("LogGrant", {"scope": "*"}, hint("set a namespace")),
    ("LogGrant", {"scope": "shop/*"}, hint("set a namespace")),
    ("LogGrant", {"scope": "shop/"}, hint("set a namespace")),
    ("LogGrant", {"scope": "sho*"}, hint("set a namespace")),
    ("LogGrant", {"scope": "shop/a/b"}, hint("set a namespace")),
    ("ArchivePolicy", {"schedule": "every hour"}, hint("five fields as cron does")),
    ("ArchivePolicy", {"schedule": "* * * * * *"}, hint("five fields as cron does")),
    (
        "ArchivePolicy",
        {"onClosedSegments": GONE},
        "nothing says when to run: set schedule, onClosedSegments: true, or both",
    ),
    ("ArchivePolicy", {"format": "orc"}, 'supported values: "parquet"'),
    ("ArchivePolicy", {"selector": {"namespace": "Prod*"}}, hint("name of a namespace, or a")),
    ("ArchivePolicy", {"selector": {"logs": "shop/orders"}}, hint("name of a log, or a glob")),
    ("ArchivePolicy", {"destination": {"url": "file:///cold"}}, "claimName: a file: URL needs a"),
    ("ArchivePolicy", {"keepHot": "-1h"}, DURATION),
]

BAD_NAMES: list[tuple[str, str, str]] = [
    ("LogCluster", "demo.eu", "metadata.name: use at most 40 of a-z, 0-9 and '-', beginning with"),
    ("LogCluster", "7demo", "metadata.name: use at most 40 of a-z, 0-9 and '-', beginning with"),
    ("LogCluster", "d" * 41, "services and pods are named after it"),
    ("BookieSet", "big.disks", "metadata.name: use at most 40 of a-z, 0-9 and '-', beginning"),
    ("BookieSet", "b" * 41, "pods and claims are named after it"),
    ("LogNamespace", "shop.eu", "metadata.name is no name of a namespace"),
    ("LogNamespace", "s" * 64, "set spec.name"),
]


def name_case(case: tuple[Any, ...]) -> str:
    return f"{case[0]}-{case[1]}"[:70]


@pytest.mark.parametrize(("kind", "spec"), ACCEPTED, ids=map(name_case, ACCEPTED))
def test_it_is_accepted_and_read(api: Api, kind: str, spec: dict[str, Any]) -> None:
    answer = api.create(make(kind, spec))
    assert answer.status_code == 201, answer.text
    found = parse(answer.json())
    # What the server filled in and what the model takes for granted are the same.
    assert found.spec == parse(make(kind, spec)).spec


@pytest.mark.parametrize(("kind", "spec", "message"), REFUSED, ids=map(name_case, REFUSED))
def test_it_is_refused(api: Api, kind: str, spec: dict[str, Any], message: str) -> None:
    said = told(api.create(make(kind, spec)))
    assert message in said


@pytest.mark.parametrize(("kind", "name", "message"), BAD_NAMES, ids=map(name_case, BAD_NAMES))
def test_a_name_is_refused(api: Api, kind: str, name: str, message: str) -> None:
    assert message in told(api.create(make(kind, name=name)))


def test_a_namespace_of_another_name_may_have_any_object_name(api: Api) -> None:
    assert api.create(make("LogNamespace", {"name": "shop"}, "shop.eu")).status_code == 201


READ_AS_WELL: list[tuple[str, dict[str, Any]]] = [
    # Regions are judged by the server, a retention without age is whole for whoever keeps the rest;
    # the rest the models refuse as well.
    (kind, spec)
    for kind, spec, message in REFUSED
    if kind in {"Log", "LogGrant"} and "region" not in message and "how long" not in message
]


@pytest.mark.parametrize(("kind", "spec"), READ_AS_WELL, ids=map(name_case, READ_AS_WELL))
def test_what_is_refused_of_logs_and_grants_the_model_refuses(
    kind: str, spec: dict[str, Any]
) -> None:
    """An object from before a rule was there must not get further than its reading."""
    with pytest.raises(ResourceError, match=rf"^{kind} demo: spec"):
        parse(make(kind, spec))


def test_every_rule_and_hint_has_a_case() -> None:
    cases: list[tuple[Any, ...]] = [*REFUSED, *BAD_NAMES, *changes.REFUSED]
    seen: list[str] = [case[-1] for case in cases]
    messages = {rule.message for rules in RULES.values() for rule in rules}
    hints = set(HINTS.values())
    silent = [m for m in messages | hints if not any(case in m for case in seen)]
    assert silent == []
