"""Manifests, and whether the world is already as they say: what keeps a plan empty when all is
well.

Each manifest carries the digest of what it says. An object needs no step where that digest is on it
and every field of the manifest still reads so: the first notices what we changed, the second what
others did. Called by every part that makes objects. Pure.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from duramen_operator.names import MANIFEST_ANNOTATION
from duramen_operator.plan.observed import Json, KubeObject, Observed
from duramen_operator.plan.steps import Apply

FieldPath = tuple[str, ...]
"""Where a field stands: names, and places in lists as `[name]` or `[index]`."""

_DIGEST_LENGTH = 16
_FACTORS = {
    "": Decimal(1), "m": Decimal("0.001"),
    "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12),
    "P": Decimal(10**15), "E": Decimal(10**18),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40),
    "Pi": Decimal(2**50), "Ei": Decimal(2**60),
}  # fmt: skip
# What the API server gives is asked first for what it is: a look at an abstract class costs as much
# as the rest of a comparison, and a pass asks millions of times.
_SCALARS = (str, int, float, type(None))
_MAPPINGS = (dict, Mapping)
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?")


def make_manifest(
    kind: tuple[str, str],
    name: str,
    labels: Mapping[str, str],
    owner: KubeObject,
    annotations: Mapping[str, str] | None = None,
    **sections: Any,
) -> Json:
    """A manifest with labels, its one owner, and no empty fields.

    Args:
        kind: apiVersion and kind.
        annotations: beside the digest.
        sections: what stands beside the metadata, as `spec` or `data`.
    """
    metadata = {"name": name, "labels": dict(labels), "ownerReferences": [refer_to(owner)]}
    if annotations:
        metadata["annotations"] = dict(annotations)
    plain = {"apiVersion": kind[0], "kind": kind[1], "metadata": metadata, **prune(sections)}
    return _with_digest(plain)


def refer_to(owner: KubeObject) -> Json:
    """An owner reference: the object goes when its owner has gone.

    Without blockOwnerDeletion, which would need a right on the owner's finalizers.
    """
    ref = owner.ref
    named = {"apiVersion": ref.api_version, "kind": ref.kind, "name": ref.name, "uid": owner.uid}
    return {**named, "controller": True}


def _with_digest(manifest: Json) -> Json:
    """The manifest with the digest of what it says."""
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]
    own = {**manifest["metadata"].get("annotations", {}), MANIFEST_ANNOTATION: digest}
    metadata = {**manifest["metadata"], "annotations": own}
    return {**manifest, "metadata": metadata}


def plan_apply(
    observed: Observed, manifest: Json, *, silent: Json | None = None
) -> Iterator[Apply]:
    """The step that makes an object so; none where it is so, is leaving, or is somebody else's.

    Args:
        silent: the manifest as it is compared, where a field of it must never be a reason for a
            step (the number of replicas while an autoscaler decides it).
    """
    found = observed.find(manifest["kind"], manifest["metadata"]["name"])
    if found is None:
        yield Apply(manifest)
    elif (
        not found.is_leaving
        and not is_foreign(found, manifest)
        and not covers(found.body, silent or manifest)
    ):
        yield Apply(manifest, found.uid)


def is_foreign(found: KubeObject, manifest: Json) -> bool:
    """Whether an object of that name belongs to another owner: a namesake, or one that is gone."""
    owners = {owner["uid"] for owner in manifest["metadata"].get("ownerReferences", ())}
    return not owners & set(found.owner_uids)


def covers(live: Any, wanted: Any) -> bool:
    """Whether everything wanted is there; what the API server filled in does not matter."""
    return next(find_differences(live, wanted), None) is None


def find_differences(live: Any, wanted: Any, path: FieldPath = ()) -> Iterator[FieldPath]:
    """The fields of what is wanted that are not there, or read otherwise.

    Lists of named things are compared by name, other lists item by item; amounts by their value,
    since the API server writes "1" where we wrote "1000m".
    """
    if live == wanted:
        return
    if isinstance(wanted, _SCALARS):
        if not _is_same_amount(live, wanted):
            yield path
    elif isinstance(wanted, _MAPPINGS):
        there = live if isinstance(live, _MAPPINGS) else {}
        for key, value in wanted.items():
            if key in there:
                yield from find_differences(there[key], value, (*path, key))
            else:
                yield (*path, key)
        if there is not live and not wanted:
            yield path
    else:
        yield from _compare_lists(live, wanted, path)


def prune(value: Any) -> Any:
    """Without fields that are None or empty: the API server drops them, and they would look
    missing.

    An empty `emptyDir: {}` means something and stays.
    """
    if isinstance(value, _SCALARS):
        return value
    if not isinstance(value, _MAPPINGS):
        return [prune(item) for item in value]
    pruned = {key: item if key == "emptyDir" else prune(item) for key, item in value.items()}
    return {k: item for k, item in pruned.items() if item not in (None, {}, []) or k == "emptyDir"}


def _compare_lists(live: Any, wanted: Sequence[Any], path: FieldPath) -> Iterator[FieldPath]:
    if not isinstance(live, Sequence) or isinstance(live, str):
        yield path
    elif wanted and all(isinstance(item, _MAPPINGS) and "name" in item for item in wanted):
        by_name = {item.get("name"): item for item in live if isinstance(item, _MAPPINGS)}
        for item in wanted:
            below = (*path, f"[{item['name']}]")
            if item["name"] in by_name:
                yield from find_differences(by_name[item["name"]], item, below)
            else:
                yield below
    elif len(live) != len(wanted):
        yield path
    else:
        for index, (one, two) in enumerate(zip(live, wanted, strict=True)):
            yield from find_differences(one, two, (*path, f"[{index}]"))


def _is_same_amount(live: Any, wanted: Any) -> bool:
    one, two = _read_amount(live), _read_amount(wanted)
    return one is not None and one == two


def _read_amount(value: Any) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    found = _QUANTITY.fullmatch(str(value))
    return None if found is None else Decimal(found[1]) * _FACTORS[found[2] or ""]
