"""What there is in a namespace in the end, so that two namespaces with one history compare.

Everything of an object counts: its status and who owns it too. Only what no two namespaces can have
alike is put into other words, each for the reason that stands beside it; what stays of it (that an
owner is there and is the right one, that a status is of the present generation) is compared.

Pure. Used by `test_restarts`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

Item = dict[str, Any]
Outcome = dict[str, Any]
"""What there is in the end, by `Kind/name`."""

DROPPED: Final[Mapping[str, str]] = {
    "resourceVersion": "counts all writes of the API server",
    "managedFields": "who wrote which field when, of each life of the operator",
    "currentRevision": "names a hash of the pod's template, which holds the namespace",
    "updateRevision": "as currentRevision",
    "currentReplicas": "counts pods of the first revision under OnDelete: of the past",
    "deployment.kubernetes.io/revision": "counts the templates that were ever applied",
}
"""Fields that say nothing of what there is, each with the reason."""

WORDS: Final[Mapping[str, str]] = {
    "duramen.io/manifest": "a hash",  # of what was applied, with namespace and owner's uid
    "given": "a time",  # of a grant, with its milliseconds
    "node": "a node",  # the scheduler's choice among nine
}
"""Fields whose value is another one in each world, and what is compared where they are set."""

_TIME: Final = re.compile(r"(Time|Timestamp)$")
_ALLOCATED: Final = ("clusterIP", "clusterIPs")
_NO_ADDRESS: Final = ("None", ["None"], "")
_SET_OF_PODS: Final = re.compile(r'(ReplicaSet "[a-z-]+)-[0-9a-z]+"')


def describe_objects(
    items: Sequence[Item], namespace: str, log_ids: Mapping[str, str]
) -> dict[str, Any]:
    """All objects of a namespace, in words that mean the same in another one.

    Args:
        log_ids: id → name of each log that the cluster has. Ids come in the order of creation,
            which deaths of the operator change.
    """
    words = _Words({item["metadata"]["uid"]: _name(item) for item in items}, log_ids)
    found = {_name(item): words.encode_item(item) for item in items}
    replaced: dict[str, Any] = json.loads(json.dumps(found).replace(namespace, "NAMESPACE"))
    return replaced


def compare(found: Any, expected: Any, path: str = "") -> Iterator[str]:
    """Where two outcomes differ."""
    if isinstance(found, dict) and isinstance(expected, dict):
        for name in sorted(found.keys() | expected.keys()):
            yield from compare(found.get(name), expected.get(name), f"{path}/{name}")
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        for index, (one, other) in enumerate(zip(found, expected, strict=True)):
            yield from compare(one, other, f"{path}/{index}")
    elif found != expected:
        yield f"{path}: {found} and not {expected}"


class _Words:
    """Of one world: its objects by uid, its logs by id."""

    def __init__(self, names: Mapping[str, str], log_ids: Mapping[str, str]) -> None:
        self._names = names
        self._log_ids = log_ids

    def encode_item(self, item: Item) -> Any:
        metadata = dict(item["metadata"])
        generation = metadata.get("generation")
        del metadata["uid"]
        owners = metadata.pop("ownerReferences", None)
        if owners is not None:
            # How often the operator wrote its own objects depends on how often it died.
            metadata.pop("generation", None)
            metadata["ownerReferences"] = sorted(map(self._encode_owner, owners), key=str)
        status = item.get("status")
        if item["kind"] == "Log" and status:
            status = self._encode_log(item["metadata"]["name"], status)
        return self._format({**item, "metadata": metadata, "status": status}, generation)

    def _encode_owner(self, owner: Item) -> Item:
        """With a name for the uid: that of the object of this world that has it, if any has."""
        return {**owner, "uid": self._names.get(owner["uid"], "of nobody")}

    def _encode_log(self, name: str, status: Item) -> Item:
        """The id is that of the log with this name; messages tell it too."""
        own = status.get("logId")
        if not own:
            return status
        text = json.dumps({**status, "logId": f"of {self._log_ids.get(own, 'no log')}"})
        spelled: Item = json.loads(re.sub(rf"\blog {own}\b", "log ID", text))
        return spelled

    def _format(self, value: Any, generation: Any) -> Any:
        if isinstance(value, list):
            spelled = [self._format(one, generation) for one in value]
            # Conditions come in the order in which they were first told.
            is_conditions = value and all(isinstance(v, dict) and "type" in v for v in value)
            return sorted(spelled, key=lambda one: str(one["type"])) if is_conditions else spelled
        if isinstance(value, dict):
            return {
                name: self._encode_field(name, below, generation)
                for name, below in value.items()
                if name not in DROPPED
            }
        return _SET_OF_PODS.sub(r'\1-HASH"', value) if isinstance(value, str) else value

    def _encode_field(self, name: str, value: Any, generation: Any) -> Any:
        if name == "observedGeneration":
            return "the present one" if value == generation else f"{value} of {generation}"
        if value and name in WORDS:
            return WORDS[name]
        if isinstance(value, str) and value and _TIME.search(name):
            return "a time"
        if name in _ALLOCATED and value not in _NO_ADDRESS:
            return "an address"
        return self._format(value, generation)


def _name(item: Item) -> str:
    return f"{item['kind']}/{item['metadata']['name']}"
