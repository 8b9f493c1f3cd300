"""The record of a cluster's CAs: a ConfigMap with their key identifiers, the one that issues first.

It says that there was a CA, where the Secret that held it says nothing any more. It is no secret,
and whoever may write it can only make the operator stop issuing.

Called by `driver`. Pure. Source: docs/kubernetes/security.md "Who issues".
"""

from __future__ import annotations

from typing import Final

from duramen.runtime.identity.names import IdentityError
from duramen_operator.names import AUTHORITY, make_labels, name_component
from duramen_operator.plan.manifests import is_foreign, make_manifest
from duramen_operator.plan.observed import Json, KubeObject

_FIELD: Final = "authorities"


def make_record(cluster: KubeObject, authorities: tuple[str, ...]) -> Json:
    """The ConfigMap that names these CAs."""
    name, labels = name_component(cluster.name, AUTHORITY), make_labels(cluster.name, AUTHORITY)
    data = {_FIELD: " ".join(authorities)}
    return make_manifest(("v1", "ConfigMap"), name, labels, cluster, data=data)


def read_record(cluster: KubeObject, found: Json | None) -> tuple[str, ...]:
    """The CAs that it names; none where there is none.

    Raises:
        IdentityError: an object of that name is somebody else's.
    """
    if found is None:
        return ()
    seen = KubeObject(found)
    if is_foreign(seen, make_record(cluster, ())):
        raise IdentityError(
            f"the ConfigMap {seen.name} belongs to somebody else, and would be the record of this "
            "cluster's CAs: delete it, or rename the cluster"
        )
    return tuple(str((found.get("data") or {}).get(_FIELD, "")).split())
