"""Namespaces and logs in tier kwok: a real API server, the operator as a process, a twin behind it.

One operator serves all tests of the module, each with names of its own. What the cluster was asked
is looked at in the twin, which keeps the contract of the real one (test_twin_contract).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.kubernetes.cluster.handle import ClusterHandle
from tests.kubernetes.controllers.admin_twin import AdminTwin, running_twin
from tests.kubernetes.controllers.mortals import DEATHS, operated
from tests.kubernetes.controllers.operators import (
    SETTLE_S,
    Objects,
    install_definitions,
    wait_for_objects,
)

URL = "/v1/namespaces/{}/logs/{}"


class World(NamedTuple):
    """What a test works with."""

    objects: Objects
    twin: AdminTwin

    def make_log(self, name: str, **spec: object) -> str:
        """A Log that is ready; gives the log's id."""
        named = {"clusterName": "main", "namespace": "shop", **spec}
        self.objects.apply("Log", name, named)
        self.objects.wait("Log", name, "True/AsWanted")
        found = self.objects.find("Log", name)
        assert found is not None
        return str(found["status"]["logId"])


@pytest.fixture(scope="module")
def world(kwok_cluster: ClusterHandle) -> Iterator[World]:
    install_definitions(kwok_cluster)
    with (
        kwok_cluster.namespace() as namespace,
        running_twin() as twin,
        operated(kwok_cluster, namespace, twin.url),
    ):
        objects = Objects(kwok_cluster, namespace)
        objects.apply("LogCluster", "main", {"security": "none", "acceptAnybody": True})
        objects.apply("LogNamespace", "shop", {"clusterName": "main"})
        objects.wait("LogNamespace", "shop", "True/AsWanted")
        yield World(objects, twin)


def test_a_log_is_made_changed_and_kept(world: World) -> None:
    log_id = world.make_log("kept", retention={"age": "90m"})
    log = world.twin.state.logs[int(log_id)]
    assert log.config.to_json()["retention"]["age"] == "1h30m"
    named = {"clusterName": "main", "namespace": "shop"}
    world.objects.apply("Log", "kept", {**named, "retention": {"age": "2h"}})
    wait_for_objects(
        lambda: log.config.to_json()["retention"]["age"] == "2h", SETTLE_S, "the change"
    )
    world.objects.wait("Log", "kept", "True/AsWanted")
    assert len(world.twin.asked("PUT", URL.format("shop", "kept"))) == 1
    world.objects.delete("Log", "kept")
    world.objects.wait_gone("Log", "kept")
    assert log.deleted_ms is None
    assert not world.twin.asked("DELETE", URL.format("shop", "kept"))


def test_a_log_goes_with_its_object(world: World) -> None:
    log_id = world.make_log("goes", deletionPolicy="Delete")
    world.objects.delete("Log", "goes")
    world.objects.wait_gone("Log", "goes")
    assert world.twin.state.logs[int(log_id)].deleted_ms is not None
    assert len(world.twin.asked("DELETE", URL.format("shop", "goes"))) == 1
    world.objects.wait_event("goes", "Deleted")


def test_what_is_changed_outside_is_set_again(world: World) -> None:
    log_id = world.make_log("drifts", retention={"age": "1h"})
    with world.twin.lock:
        world.twin.state.change_log("shop", "drifts", {"retention": {"age": None}}, None)
    log = world.twin.state.logs[int(log_id)]
    wait_for_objects(
        lambda: log.config.to_json()["retention"]["age"] == "1h", SETTLE_S, "the correction"
    )
    world.objects.wait("Log", "drifts", "True/AsWanted")
    if DEATHS not in os.environ:  # it is told afterwards, and not by who died in between
        world.objects.wait_event("drifts", "ConfigCorrected")


def test_a_refused_configuration_is_told(world: World) -> None:
    wide = {"ensemble_size": 5, "write_quorum": 5, "ack_quorum": 5, "min_racks": 5}
    named = {"clusterName": "main", "namespace": "shop", "replication": wide}
    world.objects.apply("Log", "wide", named)
    world.objects.wait("Log", "wide", "False/ConfigurationRefused")
    found = world.objects.find("Log", "wide")
    assert found is not None
    ready = next(one for one in found["status"]["conditions"] if one["type"] == "Ready")
    assert ready["message"].startswith("placement_impossible: min_racks 5: the cluster has 3")
    world.objects.apply("Log", "wide", {"clusterName": "main", "namespace": "shop"})
    world.objects.wait("Log", "wide", "True/AsWanted")


def test_a_log_that_was_deleted_outside_is_told(world: World) -> None:
    world.make_log("lost")
    with world.twin.lock:
        world.twin.state.delete_log("shop", "lost")
    world.objects.wait("Log", "lost", "False/DeletedOutside")
    with world.twin.lock:
        world.twin.state.undelete_log("shop", "lost")
    world.objects.wait("Log", "lost", "True/AsWanted")
    assert len(world.twin.asked("PUT", URL.format("shop", "lost"))) == 1


def test_sealing_and_truncating(world: World) -> None:
    log_id = world.make_log("ends")
    log = world.twin.state.logs[int(log_id)]
    with world.twin.lock:
        log.append(10, 1000)
    spec = {"clusterName": "main", "namespace": "shop", "truncation": "seq:4", "sealed": True}
    world.objects.apply("Log", "ends", spec)
    wait_for_objects(lambda: log.is_ended and log.head == 4, SETTLE_S, "the end and the truncation")
    world.objects.wait("Log", "ends", "True/AsWanted")
    wait_for_objects(
        lambda: (world.objects.find("Log", "ends") or {})["status"].get("tail") == 10, SETTLE_S,
        "the tail",
    )  # fmt: skip
    assert len(world.twin.asked("POST", URL.format("shop", "ends") + ":end")) == 1
    assert len(world.twin.asked("POST", URL.format("shop", "ends") + ":truncate")) == 1


def test_a_namespace_goes_once_it_is_empty(world: World) -> None:
    spec = {"clusterName": "main", "deletionPolicy": "Delete"}
    world.objects.apply("LogNamespace", "fair", spec)
    world.objects.wait("LogNamespace", "fair", "True/AsWanted")
    world.make_log("stand", namespace="fair", deletionPolicy="Delete")
    world.objects.delete("LogNamespace", "fair")
    wait_for_objects(
        lambda: bool(world.twin.asked("DELETE", "/v1/namespaces/fair")), SETTLE_S, "a refusal"
    )
    world.objects.delete("Log", "stand")
    world.objects.wait_gone("Log", "stand")
    # The name of the deleted log keeps the namespace, and nobody waits for that.
    world.objects.wait_gone("LogNamespace", "fair")
    world.objects.wait_event("fair", "Retained")
    assert "fair" in world.twin.state.namespaces


def test_a_silent_cluster_delays_and_an_uninstall_goes_on(world: World) -> None:
    world.make_log("held", deletionPolicy="Delete")
    world.twin.is_down = True
    try:
        world.objects.delete("Log", "held")
        world.objects.wait("LogNamespace", "shop", "Unknown/ClusterUnreachable")
        assert world.objects.find("Log", "held") is not None
    finally:
        world.twin.is_down = False
    world.objects.wait_gone("Log", "held")
    assert len(world.twin.asked("DELETE", URL.format("shop", "held"))) >= 1


def test_nothing_waits_for_a_cluster_that_is_gone(world: World) -> None:
    world.objects.apply("LogCluster", "brief", {"security": "none", "acceptAnybody": True})
    named = {"clusterName": "brief", "namespace": "shop", "deletionPolicy": "Delete"}
    world.objects.apply("Log", "orphan", named)
    world.objects.wait("Log", "orphan", "True/AsWanted")
    world.objects.delete("LogCluster", "brief")
    world.objects.wait_gone("LogCluster", "brief")
    # Kinds are listed side by side: a pass may see a log that goes with a cluster that just went.
    world.objects.wait("Log", "orphan", "False/ClusterMissing")
    world.objects.delete("Log", "orphan")
    world.objects.wait_gone("Log", "orphan")
    world.objects.wait_event("orphan", "ClusterGone")
    assert not world.twin.asked("DELETE", URL.format("shop", "orphan"))
