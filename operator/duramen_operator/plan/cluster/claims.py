"""Claims of StatefulSets: what they ask for, what there is already, and that the two cannot differ.

A StatefulSet keeps its claim templates for ever, so what exists counts, and a wish for something
else is told as refused. Called by `zookeeper` and `bookies`. Pure.
"""

from collections.abc import Iterator, Mapping

from duramen_operator.plan.manifests import covers
from duramen_operator.plan.observed import Json, KubeObject
from duramen_operator.resources.part import StorageSpec


def make_claim(name: str, storage: StorageSpec, labels: Mapping[str, str]) -> Json:
    """A claim template."""
    return {
        "metadata": {"name": name, "labels": dict(labels)},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": storage.storage_class_name,
            "resources": {"requests": {"storage": storage.size}},
        },
    }


def read_storage(found: KubeObject | None, name: str) -> StorageSpec | None:
    """What a StatefulSet's claims of that name ask for; None where there is none yet."""
    if found is None:
        return None
    for claim in found.spec.get("volumeClaimTemplates") or ():
        if claim["metadata"]["name"] == name:
            spec = claim["spec"]
            size = str(spec["resources"]["requests"]["storage"])
            return StorageSpec(size=size, storage_class_name=spec.get("storageClassName"))
    return None


def describe_change(found: KubeObject, name: str, wanted: StorageSpec, field: str) -> Iterator[str]:
    """A sentence where the spec asks for other claims than there are."""
    there = read_storage(found, name)
    if there is None:
        return
    if not covers(there.size, wanted.size):
        yield f"{field}.size stays {there.size}: volumes are not grown yet; wanted is {wanted.size}"
    wanted_class = wanted.storage_class_name
    if wanted_class is not None and wanted_class != there.storage_class_name:
        yield f"{field}.storageClassName stays {there.storage_class_name}, not {wanted_class}"
