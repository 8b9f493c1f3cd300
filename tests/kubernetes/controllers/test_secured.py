"""A LogCluster with `security: on` in tier kwok: what the API server takes, founds and gives back.

Keys are mounted nowhere here, since pods only pretend to run: real nodes show that. What is shown
is that restricted pods of this kind are admitted, that a cluster at rest is left alone, and that
bookies which are StatefulSets by themselves come back with their disks, and become neither more nor
fewer by a silence.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kubernetes.cluster.handle import ClusterHandle
from tests.kubernetes.controllers.grounds import (
    MADE,
    ZONES,
    Ground,
    ground,
)
from tests.kubernetes.controllers.operators import SETTLE_S, wait_for_objects

pytestmark = pytest.mark.long

SECURED: dict[str, Any] = {"security": "on", "acceptAnybody": False, "domains": ZONES}
BOOKIES = ["main-r0-r0-k0-0", "main-r1-r1-k1-0", "main-r2-r2-k2-0"]


@pytest.fixture(scope="module")
def secured(kwok_cluster: ClusterHandle) -> Iterator[Ground]:
    """A secured cluster with three bookies; the tests stand in the order of its life."""
    # Nobody can be asked here, and a set of which some bookies are made does not grow in a silence:
    # an operator that died between two of them would leave it so.
    spared = {f"/{kind}/{name}" for kind in ("statefulsets", "bookies") for name in BOOKIES}
    with ground(kwok_cluster, spared=spared) as made:
        made.install(**SECURED)
        spared.clear()
        yield made


def list_bookie_sets(here: Ground) -> list[str]:
    found = here.list("statefulset")
    return sorted(
        one["metadata"]["name"] for one in found if "bookie-set" in str(one["metadata"]["labels"])
    )


def see_pass(here: Ground, name: str) -> None:
    """Wait for a pass of the operator. Nobody has filled its Secret, so it calls no cluster, not
    even the twin, which speaks no TLS: what it says of a new object tells that it has looked."""
    here.apply("LogNamespace", name, {"clusterName": "main"})
    here.wait("LogNamespace", name, "Unknown/ClusterUnreachable")
    assert "there is no Secret main-operator" in here.message("LogNamespace", name, "Ready")
    assert here.twin.call_count == 0


def test_it_is_founded_and_the_key_of_the_operator_goes(secured: Ground) -> None:
    secured.wait("LogCluster", "main", "True/SecurityOn", "Secure")
    wait_for_objects(lambda: secured.list("job") == [], SETTLE_S, "the job to go")
    maps = secured.cluster.list("configmaps", secured.namespace, "duramen.io/cluster=main")
    assert {one["metadata"]["name"] for one in maps} == {"main-foundation", "main-founded"}
    assert secured.list("deployment") == []
    assert list_bookie_sets(secured) == BOOKIES
    assert {pod["metadata"]["name"] for pod in secured.pods()} == {f"{n}-0" for n in BOOKIES}


def test_at_rest_it_is_left_alone(secured: Ground) -> None:
    def read_versions() -> dict[str, str]:
        metadata = [one["metadata"] for one in secured.list(f"{MADE},logclusters,bookiesets")]
        return {one["uid"]: one["resourceVersion"] for one in metadata}

    def is_at_rest() -> bool:
        versions = read_versions()
        for number in itertools.islice(numbers, 3):
            see_pass(secured, f"look-{number}")
        return read_versions() == versions

    numbers = itertools.count()

    wait_for_objects(is_at_rest, SETTLE_S, "three passes without a change")


def test_a_bookie_comes_back_with_its_disk(secured: Ground) -> None:
    claims = secured.uids("persistentvolumeclaims")
    old = secured.uids("statefulset")[f"StatefulSet/{BOOKIES[1]}"]
    assert secured.cluster.delete("statefulset", BOOKIES[1], secured.namespace)
    wait_for_objects(
        lambda: secured.uids("statefulset").get(f"StatefulSet/{BOOKIES[1]}", old) != old,
        SETTLE_S,
        "the StatefulSet to be made again",
    )
    secured.wait("LogCluster", "main", "True/AsWanted")
    assert secured.uids("persistentvolumeclaims") == claims


def test_it_neither_grows_nor_shrinks_while_the_cluster_is_silent(secured: Ground) -> None:
    """Nobody can be asked which numbers were used, nor whether a copy lies on a bookie."""
    before = secured.uids("pods")
    run = secured.cluster.kubectl
    run("-n", secured.namespace, "scale", "bks/main", "--replicas=5")
    secured.wait("BookieSet", "main", "True/ClusterUnreachable", "Progressing")
    assert "replicas says 5 and 3 are there" in secured.message("BookieSet", "main", "Progressing")
    run("-n", secured.namespace, "scale", "bks/main", "--replicas=2")
    secured.wait("BookieSet", "main", "False/Blocked", "Progressing")
    assert list_bookie_sets(secured) == BOOKIES
    assert secured.uids("pods") == before
    run("-n", secured.namespace, "scale", "bks/main", "--replicas=3")
    secured.wait("BookieSet", "main", "False/Settled", "Progressing")


def test_one_word_does_not_take_its_protection_away(secured: Ground) -> None:
    before = secured.uids("pods")
    secured.apply(
        "LogCluster",
        "main",
        {"security": "none", "acceptAnybody": True, "domains": ZONES, "gossip": False},
    )
    secured.wait("LogCluster", "main", "False/NotYetSupported", "Progressing")
    assert "security stays on" in secured.message("LogCluster", "main", "Progressing")
    arguments = {
        token
        for one in secured.list("statefulset")
        for token in one["spec"]["template"]["spec"]["containers"][0]["args"]
    }
    assert not {"--accept-anybody", "--no-gossip", "none"} & arguments
    secured.apply("LogCluster", "main", SECURED)
    secured.wait("LogCluster", "main", "True/AsWanted")
    assert secured.uids("pods") == before
