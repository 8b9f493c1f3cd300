"""Objects to begin with, and a client that says what the API server answered to them.

Straight over HTTP, because a hundred starts of kubectl take longer than a hundred requests;
`fieldValidation=Strict` is what kubectl and helm ask for as well.

Called by the tests beside this module.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import httpx

from duramen_operator.resources import API_VERSION, GROUP, VERSION
from duramen_operator.resources.definitions import NAMES

Object = dict[str, Any]

SPECS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "LogCluster": {"security": "none", "acceptAnybody": True},
        "BookieSet": {"clusterName": "demo"},
        "Bookie": {"clusterName": "demo", "bookieSet": "main"},
        "LogNamespace": {"clusterName": "demo"},
        "Log": {"clusterName": "demo", "namespace": "shop"},
        "LogGrant": {
            "clusterName": "demo",
            "subject": {"user": "corp/ann"},
            "role": "reader",
            "scope": "shop",
        },
        "ArchivePolicy": {"clusterName": "demo", "onClosedSegments": True},
    }
)
"""The least that each kind takes."""


class _Gone:
    """Has a name of its own, so that names of tests are the same in every process."""

    def __repr__(self) -> str:
        return "GONE"


GONE = _Gone()
"""In a patch: the field is not there."""


def make(kind: str, spec: Mapping[str, Any] | None = None, name: str = "demo") -> Object:
    """The least object of a kind, with fields of its spec replaced, deep inside."""
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {"name": name},
        "spec": merge(SPECS[kind], spec or {}),
    }


def merge(old: Mapping[str, Any], patch: Mapping[str, Any]) -> Object:
    """`old` with what the patch names."""
    merged = copy.deepcopy(dict(old))
    for name, value in patch.items():
        before = merged.get(name)
        if value is GONE:
            merged.pop(name, None)
        elif isinstance(value, Mapping) and isinstance(before, Mapping):
            merged[name] = merge(before, value)
        else:
            merged[name] = copy.deepcopy(value)
    return merged


@dataclass(frozen=True)
class Api:
    """The custom resources of one namespace of a real API server."""

    http: httpx.Client
    namespace: str

    def create(self, document: Object, *, is_dry: bool = True) -> httpx.Response:
        """Ask for an object; by default it is checked and filled in, and not kept."""
        asked = {"fieldValidation": "Strict"} | ({"dryRun": "All"} if is_dry else {})
        return self.http.post(self._path(document["kind"]), json=document, params=asked)

    def replace(self, document: Object, *, is_dry: bool = True) -> httpx.Response:
        """Ask for a change of an object, as it was read and changed."""
        asked = {"fieldValidation": "Strict"} | ({"dryRun": "All"} if is_dry else {})
        path = f"{self._path(document['kind'])}/{document['metadata']['name']}"
        return self.http.put(path, json=document, params=asked)

    def read(self, kind: str, name: str) -> Object:
        """An object as it is there."""
        answer = self.http.get(f"{self._path(kind)}/{name}")
        assert answer.status_code == 200, answer.text
        found: Object = answer.json()
        return found

    def _path(self, kind: str) -> str:
        return f"/apis/{GROUP}/{VERSION}/namespaces/{self.namespace}/{NAMES[kind].plural}"


def told(answer: httpx.Response) -> str:
    """What the API server said of a refusal."""
    assert answer.status_code in {400, 422}, f"{answer.status_code}: {answer.text[:2000]}"
    message: str = answer.json()["message"]
    return message
