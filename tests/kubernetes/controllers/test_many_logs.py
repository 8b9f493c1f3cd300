"""Thousands of Logs and one policy for all of them, on a real API server: what rest costs.

Passes are timed by the operator's own histogram, requests are counted by a proxy and by the twin.
Then some logs answer nothing, as when bookies are cut off, and what does not need them still moves.
At night 2,000 Logs. Source: docs/kubernetes/one-hand.md "What a look costs" (16).
"""

from __future__ import annotations

import socket
import sys
import time
from typing import Any, Final

import httpx
import pytest

from duramen_operator.observe.request_budget import LEAST_COUNT
from tests.kubernetes.cluster.handle import ClusterHandle
from tests.kubernetes.controllers.admin_twin import running_twin
from tests.kubernetes.controllers.deadly_proxy import running_proxy
from tests.kubernetes.controllers.operators import (
    Objects,
    OperatorProcess,
    install_definitions,
    running_operator,
    wait_for_objects,
    write_kubeconfig,
)
from tests.pauses import observe_for
from tests.tiers import sized
from tests.waiting import wait_in_thread

pytestmark = [pytest.mark.night, pytest.mark.timeout(3_000)]

LOGS: Final = sized(fast=40, gate=200, night=2_000)
SILENT: Final = LOGS // 10
PASS_S: Final = 10.0
REST_S: Final = 60.0
LEARN_S: Final = 60.0 + LOGS * 0.5
"""Each Log is made, told and read anew by and by; a hang bound."""
LOOK_S: Final = 5.0
PER_LOG_AND_MINUTE: Final = 2
MOST_A_MINUTE: Final = max(PER_LOG_AND_MINUTE * LOGS, 2 * LEAST_COUNT)
"""A look every half minute may ask a few hundred things however few Logs there are."""

ENOUGH: Final = 1.25
"""A minute's share may begin a little before it."""


def test_at_rest_many_logs_cost_no_writes_and_a_silent_part_of_them_stops_nobody(
    kwok_cluster: ClusterHandle,
) -> None:
    install_definitions(kwok_cluster)
    with (
        running_twin() as twin,
        running_proxy(kwok_cluster.url, kwok_cluster.certificate) as proxy,
        kwok_cluster.namespace() as namespace,
    ):
        objects = Objects(kwok_cluster, namespace)
        writes: list[str] = []
        proxy.on_write = lambda method, path: writes.append(f"{method} {path}")
        metrics = find_port()
        operator = OperatorProcess(
            write_kubeconfig(kwok_cluster, namespace, proxy.url), namespace, twin.url,
            metrics_port=metrics, resync_s=30.0,
        )  # fmt: skip
        make_objects(objects)
        with running_operator(operator):
            began_s = time.monotonic()
            # A look costs the API server as much as one of the operator's.
            wait_in_thread(
                lambda: count_ready(objects) == LOGS, LEARN_S, "every Log to be made", rest_s=LOOK_S
            )
            learnt_s = time.monotonic() - began_s

            def rest() -> list[str]:
                """The writes of a minute but for the Lease."""
                before = len(writes)
                observe_for(REST_S, what="nothing changes")
                return [one for one in writes[before:] if "/leases" not in one]

            wait_for_objects(lambda: not rest(), LEARN_S, "the writes to end")
            calls, requests, passes = twin.call_count, proxy.request_count, read_passes(metrics)
            assert not rest()
            asked, sent = twin.call_count - calls, proxy.request_count - requests
            done = read_passes(metrics)
            count, total_s = done["count"] - passes["count"], done["sum"] - passes["sum"]
            sys.stderr.write(
                f"{LOGS} Logs made in {learnt_s:.0f} s; at rest in {REST_S:.0f} s: {count:.0f} "
                f"passes of {total_s / max(count, 1):.2f} s, {asked} calls, {sent} requests\n"
            )
            assert count >= 1 and done["slow"] == passes["slow"]
            assert asked <= MOST_A_MINUTE * REST_S / 60 * ENOUGH
            quiet = tuple(f"/logs/log-{index:04}" for index in range(SILENT))
            twin.is_silent = lambda path: any(name in path for name in quiet)
            last = f"log-{LOGS - 1:04}"
            objects.apply("Log", last, make_spec(retention={"age": "2h"}))

            def is_changed() -> bool:
                log = twin.state.find_log("shop", last)
                return bool(log.config.to_json()["retention"]["age"] == "2h")

            wait_for_objects(is_changed, 3 * PASS_S, "what is not silent to move")
            objects.wait("Log", last, "True/AsWanted")
            assert objects.condition("LogCluster", "main").startswith("True/")


def make_spec(**spec: Any) -> dict[str, Any]:
    return {"clusterName": "main", "namespace": "shop", **spec}


def make_objects(objects: Objects) -> None:
    objects.apply("LogCluster", "main", {
        "security": "none", "acceptAnybody": True, "coldStore": {"url": "s3://b/a"},
    })  # fmt: skip
    sizes = {"journal": {"size": "1Gi"}, "ledgers": {"size": "1Gi"}}
    objects.apply("BookieSet", "main", {"clusterName": "main", "replicas": 3, **sizes})
    objects.apply("LogNamespace", "shop", {"clusterName": "main"})
    objects.apply("ArchivePolicy", "all", {"clusterName": "main", "schedule": "0 0 1 1 *"})
    for index in range(LOGS):
        objects.apply("Log", f"log-{index:04}", make_spec())


def count_ready(objects: Objects) -> int:
    return sum(
        any(one["type"] == "Ready" and one["status"] == "True"
            for one in item.get("status", {}).get("conditions", ()))
        for item in objects.list("logs")
    )  # fmt: skip


def read_passes(port: int) -> dict[str, float]:
    """How many passes there were, how long they took, and how many of them too long."""
    lines = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=30).text.splitlines()
    name = "duramen_operator_pass_seconds"
    found = dict(line.rsplit(" ", 1) for line in lines if line.startswith(name))
    label = '{cluster="main"}'
    fast = float(found[f'{name}_bucket{{cluster="main",le="{PASS_S}"}}'])
    count = float(found[f"{name}_count{label}"])
    return {"count": count, "sum": float(found[f"{name}_sum{label}"]), "slow": count - fast}


def find_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
