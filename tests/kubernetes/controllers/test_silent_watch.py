"""A watch whose connection stays open and tells nothing: the operator finds out and says so.

Its workers go on by their own clock meanwhile. kopf gives a silent watch up after 70 s and begins
another one; here that is silent, too, which only a new process can be hoped to help against.
"""

from __future__ import annotations

import time
from typing import Final

import httpx
import pytest

from duramen.cluster.layout import pick_free_port
from duramen_operator.serving.watches import GRACE_S
from tests.kubernetes.cluster.handle import ClusterHandle
from tests.kubernetes.controllers.admin_twin import running_twin
from tests.kubernetes.controllers.deadly_proxy import running_proxy
from tests.kubernetes.controllers.operators import (
    SETTLE_S,
    Objects,
    OperatorProcess,
    install_definitions,
    running_operator,
    wait_for_objects,
    write_kubeconfig,
)
from tests.process.times import HANG_S

pytestmark = [pytest.mark.timeout(400), pytest.mark.long]

NOTICED_S: Final = GRACE_S + HANG_S


def ask_health(port: int) -> tuple[int, str]:
    try:
        answer = httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=5, trust_env=False)
    except httpx.TransportError:
        return 0, ""
    return answer.status_code, answer.text


def test_an_operator_whose_watch_is_silent_calls_itself_dead(kwok_cluster: ClusterHandle) -> None:
    install_definitions(kwok_cluster)
    with (
        running_twin() as twin,
        running_proxy(kwok_cluster.url, kwok_cluster.certificate) as proxy,
        kwok_cluster.namespace() as namespace,
    ):
        config = write_kubeconfig(kwok_cluster, namespace, proxy.url)
        port = pick_free_port()
        operator = OperatorProcess(config, namespace, twin.url, health_port=port)
        objects = Objects(kwok_cluster, namespace)
        with running_operator(operator):
            objects.apply("LogCluster", "main", {"security": "none", "acceptAnybody": True})
            objects.apply("LogNamespace", "shop", {"clusterName": "main"})
            objects.wait("LogNamespace", "shop", "True/AsWanted")
            wait_for_objects(lambda: ask_health(port) == (200, "ok\n"), SETTLE_S, "health")

            proxy.silent_plurals = frozenset({"lognamespaces"})
            began_at = time.monotonic()
            objects.apply("LogNamespace", "shop", {"clusterName": "main", "auto_create": True})
            wait_for_objects(
                lambda: twin.state.namespaces["shop"].to_json()["auto_create"],
                SETTLE_S,
                "the change to be seen without a watch",
            )
            wait_for_objects(
                lambda: ask_health(port)[0] == 503, NOTICED_S, "the silence to be noticed"
            )
            assert time.monotonic() - began_at >= GRACE_S, "a slow watch is no dead one"
            assert "LogNamespace" in ask_health(port)[1]

            proxy.silent_plurals = frozenset()
            objects.apply("LogNamespace", "shop", {"clusterName": "main", "auto_create": False})
            wait_for_objects(
                lambda: ask_health(port)[0] == 200, NOTICED_S, "the watch to be heard again"
            )
