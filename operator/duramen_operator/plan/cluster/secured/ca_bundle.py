"""The ConfigMap with the certificates that clients of a secured cluster trust.

Certificates are no secret, and whoever calls a public port needs them: people by `kubectl duramen`,
pods by mounting it. So nobody has to be given the right to read a Secret for that. The operator
writes what it trusts itself, and takes back what others write there.

Called by `plan`. Pure. Source: docs/kubernetes/security.md "What clients trust".
"""

from __future__ import annotations

from typing import Final

from duramen_operator.names import make_labels, name_component
from duramen_operator.plan.manifests import make_manifest
from duramen_operator.plan.observed import Json, KubeObject

CA_BUNDLE: Final = "ca-bundle"
"""What the ConfigMap is called behind the cluster's name, and its component."""
BUNDLE_KEY: Final = "ca.crt"


def name_bundle(cluster: str) -> str:
    """The name of a cluster's ConfigMap."""
    return name_component(cluster, CA_BUNDLE)


def make_bundle(owner: KubeObject, trusted: str) -> Json:
    """The ConfigMap of a LogCluster.

    Args:
        trusted: certificates as PEM.
    """
    labels = make_labels(owner.name, CA_BUNDLE)
    data = {BUNDLE_KEY: trusted}
    return make_manifest(("v1", "ConfigMap"), name_bundle(owner.name), labels, owner, data=data)
