"""Lists of a cluster's objects straight from its API server, by the names that kubectl takes.

A test that waits looks again and again, and a start of kubectl costs ten times what the request
does: five tests that waited at once kept a processor busy. What kubectl itself does, or says, is
asked of kubectl. Made and called by `handle`.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx

_DISCOVERY: Final = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_REQUEST_S: Final = 30.0


class _Kind(NamedTuple):
    """A kind as it is served."""

    path: str
    api_version: str
    kind: str
    plural: str
    is_namespaced: bool


class Lists:
    """Lists as the holder of a token sees them; may be called by several threads."""

    def __init__(self, url: str, token: str, certificate: Path) -> None:
        self._http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"},
            verify=ssl.create_default_context(cafile=str(certificate)),
            timeout=_REQUEST_S,
            trust_env=False,
        )
        self._kinds: dict[str, _Kind] = {}

    def list(self, kinds: str, namespace: str, selector: str = "") -> list[dict[str, Any]]:
        """The objects of these kinds, in the order of the kinds, as `kubectl get` prints them.

        Args:
            kinds: names with commas between them: plural, singular, short, or plural.group.
            namespace: of those kinds that have one.
            selector: of labels.
        """
        return [item for name in kinds.split(",") for item in self._list(name, namespace, selector)]

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _list(self, name: str, namespace: str, selector: str) -> Iterator[dict[str, Any]]:
        kind = self._find(name.lower())
        place = f"/namespaces/{namespace}" if kind.is_namespaced else ""
        answer = self._http.get(
            f"{kind.path}{place}/{kind.plural}",
            params={"labelSelector": selector} if selector else {},
        )
        assert answer.status_code == 200, f"{name}: {answer.status_code} {answer.text[:500]}"
        for item in answer.json()["items"]:
            # Items of a list do not repeat what they are; kubectl says it.
            yield {"apiVersion": kind.api_version, "kind": kind.kind, **item}

    def _find(self, name: str) -> _Kind:
        """What a name means; asked anew where it is unknown, for definitions come meanwhile."""
        if name not in self._kinds:
            self._kinds = dict(self._discover())
        assert name in self._kinds, f"the API server knows no {name}"
        return self._kinds[name]

    def _discover(self) -> Iterator[tuple[str, _Kind]]:
        """Every name with its meaning; of two meanings the last one given counts: the core's."""
        answers = [self._ask(path) for path in ("/apis", "/api")]
        groups = [group for answer in answers for group in reversed(answer["items"])]
        for group in groups:
            group_name = group["metadata"].get("name", "")
            version = group["versions"][0]  # the preferred one
            api_version = f"{group_name}/{version['version']}".removeprefix("/")
            path = f"/apis/{api_version}" if group_name else f"/api/{api_version}"
            for one in version["resources"]:
                names = (one["resource"], one["singularResource"], *one.get("shortNames", ()))
                kind = _Kind(
                    path, api_version, one["responseKind"]["kind"], one["resource"],
                    is_namespaced=one["scope"] == "Namespaced",
                )  # fmt: skip
                for name in (*names, f"{one['resource']}.{group_name}"):
                    yield name, kind

    def _ask(self, path: str) -> dict[str, Any]:
        answer = self._http.get(path, headers={"Accept": _DISCOVERY})
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text[:500]}"
        found: dict[str, Any] = answer.json()
        return found
