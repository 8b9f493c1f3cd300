"""The test clusters themselves: what the other tests of this folder rely on.

One test a promise of the fixtures: objects are checked by the real API server, pods get scheduled
over the zones and pretend to run, claims are bound, pods that are not restricted are refused.
"""

from __future__ import annotations

import json
from typing import Any

from tests.kubernetes.cluster.handle import ClusterHandle
from tests.process.times import HANG_S
from tests.waiting import wait_in_thread

ZONES = {f"r{region}-k{zone}" for region in range(3) for zone in range(3)}


def test_the_api_server_checks_what_it_stores(api_server: ClusterHandle) -> None:
    with api_server.namespace() as name:
        wrong = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "A_b"}}
        flags = ("--server-side", "--namespace", name, "--filename=-")
        refused = api_server.kubectl("apply", *flags, stdin=json.dumps(wrong), check=False)
        assert refused.returncode != 0
        assert "metadata.name" in refused.stderr


def test_a_pod_that_is_not_restricted_is_refused(api_server: ClusterHandle) -> None:
    with api_server.namespace(**{"pod-security.kubernetes.io__enforce": "restricted"}) as name:
        pod: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "root"},
            "spec": {"containers": [{"name": "a", "image": "localhost/none:test"}]},
        }
        flags = ("--namespace", name, "--filename=-")
        refused = api_server.kubectl("create", *flags, stdin=json.dumps(pod), check=False)
        assert refused.returncode != 0
        assert 'violates PodSecurity "restricted' in refused.stderr


def test_pods_with_claims_spread_over_the_zones(kwok_cluster: ClusterHandle) -> None:
    labels = {"app": "spread"}
    constraint = {
        "maxSkew": 1,
        "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": labels},
    }
    claim = {
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    mount = {"name": "data", "mountPath": "/data"}
    container = {"name": "a", "image": "localhost/none:test", "volumeMounts": [mount]}
    manifest = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "spread"},
        "spec": {
            "serviceName": "spread",
            "replicas": 9,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels},
            "volumeClaimTemplates": [claim],
            "template": {
                "metadata": {"labels": labels},
                "spec": {"topologySpreadConstraints": [constraint], "containers": [container]},
            },
        },
    }
    with kwok_cluster.namespace() as name:
        kwok_cluster.apply(manifest, namespace=name)

        def is_running() -> bool:
            found = kwok_cluster.get("statefulset", "spread", "-n", name)
            return bool(found["status"].get("readyReplicas") == 9)

        wait_in_thread(is_running, HANG_S, "nine pods that pretend to run")
        pods = kwok_cluster.get("pods", "-n", name)["items"]
        assert {pod["spec"]["nodeName"] for pod in pods} == ZONES
        claims = kwok_cluster.get("persistentvolumeclaims", "-n", name)["items"]
        assert {claim["status"]["phase"] for claim in claims} == {"Bound"}


def test_helm_installs_a_chart_from_a_folder(kwok_cluster: ClusterHandle) -> None:
    chart = kwok_cluster.folder / "chart"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text("{apiVersion: v2, name: small, version: 0.1.0}\n")
    (chart / "templates" / "map.yaml").write_text(
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: small}, data: {a: b}}\n"
    )
    with kwok_cluster.namespace() as name:
        kwok_cluster.helm("install", "small", chart, "--namespace", name, "--wait")
        assert kwok_cluster.get("configmap", "small", "-n", name)["data"] == {"a": "b"}
        kwok_cluster.helm("uninstall", "small", "--namespace", name, "--wait")
        left = kwok_cluster.get("configmaps", "-n", name)["items"]
        assert [item["metadata"]["name"] for item in left] == ["kube-root-ca.crt"]
