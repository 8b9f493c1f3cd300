"""What a real API server accepts and refuses of changes to objects that are there.

Each case is made first, and then changed. Tier api.
"""

from __future__ import annotations

import copy
import secrets
import subprocess
from typing import Any

import pytest

from duramen_operator.resources.definitions import define_all
from tests.kubernetes.cluster.handle import ClusterHandle
from tests.kubernetes.resources.changes import COLD, NORTH, OUTSIDE, REFUSED, Spec
from tests.kubernetes.resources.objects import GONE, Api, make, merge, told
from tests.kubernetes.resources.texts import read_texts
from tests.process.times import HANG_S
from tests.waiting import wait_in_thread

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


def test_what_is_older_than_a_rule_can_still_be_told_of(resource_server: ClusterHandle) -> None:
    """The operator writes the status of a LogCluster that was made before `acceptAnybody`."""
    definition = copy.deepcopy(define_all(read_texts())["LogCluster"])
    group = definition["spec"]["group"] = "older.duramen.test"
    names = definition["spec"]["names"]
    definition["metadata"]["name"] = f"{names['plural']}.{group}"
    del names["shortNames"], names["categories"]
    (version,) = definition["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    rules = spec.pop("x-kubernetes-validations")
    older = copy.deepcopy(definition)
    spec["x-kubernetes-validations"] = rules
    server, kind = resource_server, definition["metadata"]["name"]
    with server.namespace() as namespace:
        server.apply(older)
        server.kubectl("wait", "--for=condition=Established", "--timeout=60s", f"crd/{kind}")
        old = make("LogCluster", {"acceptAnybody": GONE})
        old["apiVersion"] = f"{group}/{version['name']}"
        server.apply(old, namespace=namespace)
        server.apply(definition)

        def say(*more: str) -> subprocess.CompletedProcess[str]:
            where = (f"--namespace={namespace}", f"{kind}/demo", "--type=merge")
            return server.kubectl("patch", *where, *more, check=False)

        def is_refused() -> bool:
            return "acceptAnybody: true" in say('--patch={"spec":{"gossip":false}}').stderr

        wait_in_thread(is_refused, HANG_S, "the rule to count")
        told_of = say("--subresource=status", '--patch={"status":{"phase":"Running"}}')
        assert told_of.returncode == 0, told_of.stderr
        server.kubectl("delete", f"crd/{kind}")
