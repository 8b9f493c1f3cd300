"""Claims of StatefulSets: what they ask for, what there is already, and that the two cannot differ.

A StatefulSet keeps its claim templates for ever, and the API server refuses a manifest in which
they read otherwise, whatever else it is about. So what exists is sent as it exists, and a wish for
something else is told as refused. Called by `zookeeper`, `bookies` and `bookie_status`. Pure.
Source: docs/kubernetes/one-hand.md 23.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from duramen_operator.plan.manifests import covers
from duramen_operator.plan.observed import Json, KubeObject, Observed
from duramen_operator.resources.part import StorageSpec

_FIELD: Final = "volumeClaimTemplates"
_FILLED_IN: Final = ("apiVersion", "kind", "status")
"""What the API server adds to a template by itself, whatever is sent."""


def make_claim(name: str, storage: StorageSpec, labels: Mapping[str, str]) -> Json:
    """A claim template that is made anew."""
    return {
        "metadata": {"name": name, "labels": dict(labels)},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": storage.storage_class_name,
            "resources": {"requests": {"storage": storage.size}},
        },
    }


def keep_claims(manifest: Json, found: KubeObject | None) -> Json:
    """The manifest of a StatefulSet, with the claim templates that it has where there is one.

    The digest stays that of templates made anew: what the API server fills into them is no change.
    """
    if found is None:
        return manifest
    templates = [_keep(template) for template in found.spec.get(_FIELD) or ()]
    return {**manifest, "spec": {**manifest["spec"], _FIELD: templates}}


def describe_change(
    found: KubeObject, name: str, wanted: StorageSpec, field: str, *, or_else: str = ""
) -> Iterator[str]:
    """A sentence where the spec asks for other claims than there are; `or_else`: what else than to
    take that back there is to be done."""
    there = _find_spec(found, name)
    if there is None:
        return
    size = there["resources"]["requests"]["storage"]
    if not covers(size, wanted.size):
        yield (
            f"{field}.size stays {size}, but the spec asks for {wanted.size}: volumes are not "
            f"resized yet, so set it back{or_else}"
        )
    own_class, wanted_class = there.get("storageClassName"), wanted.storage_class_name
    if wanted_class is not None and wanted_class != own_class:
        yield (
            f"{field}.storageClassName stays {own_class or 'as it is'}, but the spec asks for "
            f"{wanted_class}: set it back{or_else}"
        )


def are_owned(observed: Observed, workload: KubeObject, pods: Iterable[str]) -> bool:
    """Whether the claims of these pods belong to their StatefulSet, and so may go with it.

    Its controller makes it their owner some time after the policy was applied. Where it is deleted
    before that, the claims stay.
    """
    templates = [template["metadata"]["name"] for template in workload.spec.get(_FIELD) or ()]
    names = (f"{template}-{pod}" for template in templates for pod in pods)
    found = (observed.find("PersistentVolumeClaim", name) for name in names)
    return all(claim is None or workload.uid in claim.owner_uids for claim in found)


def _keep(template: Json) -> Json:
    kept = {key: value for key, value in template.items() if key not in _FILLED_IN}
    metadata = {k: v for k, v in template["metadata"].items() if k != "creationTimestamp"}
    return {**kept, "metadata": metadata}


def _find_spec(found: KubeObject, name: str) -> Json | None:
    """What a StatefulSet's claims of that name ask for."""
    templates = found.spec.get(_FIELD) or ()
    return next((one["spec"] for one in templates if one["metadata"]["name"] == name), None)
