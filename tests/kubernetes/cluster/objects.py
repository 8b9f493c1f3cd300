"""The objects that a test cluster has before anybody installs anything: nodes, a class, volumes.

Pure builders of manifests; no calls. Regions are r0 to r2, zones r0-k0 to r2-k2, for fake nodes
and real ones alike. Called by `control_plane` and `real_nodes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

FAKE_NODE = "kwok.x-k8s.io/node=fake"
STORAGE_CLASS = "local"
SHARED_CLASS = "shared"
_NODE_SIZE = {"cpu": "8", "memory": "16Gi", "pods": "110"}


def domain_labels(region: int, zone: int) -> dict[str, str]:
    """The labels that say where a node stands."""
    return {
        "topology.kubernetes.io/region": f"r{region}",
        "topology.kubernetes.io/zone": f"r{region}-k{zone}",
    }


def fake_node(region: int, zone: int) -> dict[str, Any]:
    """A node that KWOK pretends to run, one in each zone."""
    name = f"r{region}-k{zone}"
    key, _, value = FAKE_NODE.partition("=")
    labels = {"kubernetes.io/hostname": name, **domain_labels(region, zone)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "annotations": {key: value}, "labels": labels},
        "status": {"allocatable": _NODE_SIZE, "capacity": _NODE_SIZE},
    }


def storage_class(*, is_provisioned: bool) -> dict[str, Any]:
    """The default class; a volume is chosen, or made, where its first pod is scheduled."""
    kind = "host-path" if is_provisioned else "no-provisioner"
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {
            "name": STORAGE_CLASS,
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "provisioner": f"kubernetes.io/{kind}",
        "volumeBindingMode": "WaitForFirstConsumer",
        "reclaimPolicy": "Delete" if is_provisioned else "Retain",
    }


def local_volume(name: str, node: str, path: Path, size: str) -> dict[str, Any]:
    """A folder of one node as a volume."""
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": size},
            "local": {"path": str(path)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": STORAGE_CLASS,
        },
    }


def shared_volume(name: str, path: Path, size: str) -> dict[str, Any]:
    """A folder that every node sees, as a volume for many pods at once."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "capacity": {"storage": size},
            "hostPath": {"path": str(path)},
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": SHARED_CLASS,
        },
    }


def kubeconfig(url: str, token: str, certificate: Path) -> dict[str, Any]:
    """How kubectl, helm and the components reach the API server."""
    cluster = {"server": url, "certificate-authority": str(certificate)}
    context = {"cluster": "test", "user": "admin", "namespace": "default"}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": context}],
    }


def collection_path(manifest: Mapping[str, Any]) -> str:
    """Where an object of these kinds, none of which is in a namespace, is created."""
    group, _, version = manifest["apiVersion"].rpartition("/")
    prefix = f"/apis/{group}/{version}" if group else f"/api/{version}"
    plural = {
        "Namespace": "namespaces",
        "Node": "nodes",
        "PersistentVolume": "persistentvolumes",
        "StorageClass": "storageclasses",
    }[manifest["kind"]]
    return f"{prefix}/{plural}"
