"""A cluster's objects listed, applied and deleted by requests of ours, under kubectl's names.

A start of kubectl costs ten times what the request does, and tests apply objects by the hundred or
look again and again. What kubectl itself does, or says, is asked of kubectl. Made and called by
`handle`.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx

from tests.waiting import wait_in_thread

_SERVED_S: Final = 10.0
"""A definition's names are told a moment after it is established."""

_MANAGER: Final = "kubectl"
"""Owns the fields that are applied: kubectl goes on with what was applied here, and the reverse."""

_DISCOVERY: Final = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_REQUEST_S: Final = 30.0
_TEXT_MAX: Final = 4_000


class _Kind(NamedTuple):
    """A kind as it is served."""

    path: str
    api_version: str
    kind: str
    plural: str
    is_namespaced: bool

    def folder(self, namespace: str) -> str:
        """The path of all objects of it, in a namespace if it has one."""
        place = f"/namespaces/{namespace}" if self.is_namespaced else ""
        return f"{self.path}{place}/{self.plural}"


_Name = str | tuple[str, str]
"""One of kubectl's names, or an API version and a kind."""


def open_http(url: str, token: str, certificate: Path) -> httpx.Client:
    """Requests to an API server as the holder of a token."""
    return httpx.Client(
        base_url=url,
        headers={"Authorization": f"Bearer {token}"},
        verify=ssl.create_default_context(cafile=str(certificate)),
        timeout=_REQUEST_S,
        trust_env=False,
    )


class ApiServer:
    """The API server as the holder of a token sees it; may be called by several threads."""

    def __init__(self, url: str, token: str, certificate: Path) -> None:
        self._http = open_http(url, token, certificate)
        self._kinds: dict[_Name, _Kind] = {}

    def list(self, kinds: str, namespace: str, selector: str = "") -> list[dict[str, Any]]:
        """The objects of these kinds, in the order of the kinds, as `kubectl get` prints them.

        Args:
            kinds: names with commas between them: plural, singular, short, or plural.group.
            namespace: of those kinds that have one.
            selector: of labels.
        """
        return [item for name in kinds.split(",") for item in self._list(name, namespace, selector)]

    def wait_known(self, name: str) -> None:
        """Until one of kubectl's names of a kind is told to whoever asks."""
        self._find(name)

    def apply(self, manifest: Mapping[str, Any], namespace: str | None) -> None:
        """Server-side apply of one manifest, where nothing is unknown to its schema.

        Args:
            namespace: where it goes if it is of a kind that has one and names none.

        Raises:
            AssertionError: refused; says what the API server said.
        """
        kind = self._find((manifest["apiVersion"], manifest["kind"]))
        metadata = manifest["metadata"]
        named = metadata.get("namespace") or namespace or "default"
        answer = self._http.patch(
            f"{kind.folder(named)}/{metadata['name']}",
            params={"fieldManager": _MANAGER, "fieldValidation": "Strict"},
            headers={"Content-Type": "application/apply-patch+yaml"},
            content=json.dumps(manifest),
        )
        what = f"{manifest['kind']} {metadata['name']}"
        assert answer.is_success, f"{what}: {answer.status_code} {answer.text[:_TEXT_MAX]}"

    def delete(self, kind: str, name: str, namespace: str) -> bool:
        """Ask for a deletion, and do not wait; whether it was there.

        Raises:
            AssertionError: refused; says what the API server said.
        """
        answer = self._http.delete(
            f"{self._find(kind.lower()).folder(namespace)}/{name}",
            params={"propagationPolicy": "Background"},
        )
        is_there = answer.status_code != httpx.codes.NOT_FOUND
        what = f"{kind} {name}: {answer.status_code} {answer.text[:_TEXT_MAX]}"
        assert answer.is_success or not is_there, what
        return is_there

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _list(self, name: str, namespace: str, selector: str) -> Iterator[dict[str, Any]]:
        kind = self._find(name.lower())
        params = {"labelSelector": selector} if selector else {}
        answers: list[httpx.Response] = []

        def is_served() -> bool:
            """The storage of a new kind begins a moment after its name is told."""
            answers[:] = [self._http.get(kind.folder(namespace), params=params)]
            return answers[0].status_code != httpx.codes.TOO_MANY_REQUESTS

        wait_in_thread(is_served, _SERVED_S, f"{name} to be served")
        (answer,) = answers
        assert answer.status_code == 200, f"{name}: {answer.status_code} {answer.text[:_TEXT_MAX]}"
        for item in answer.json()["items"]:
            # Items of a list do not repeat what they are; kubectl says it.
            yield {"apiVersion": kind.api_version, "kind": kind.kind, **item}

    def _find(self, name: _Name) -> _Kind:
        """What a name means; asked anew where it is unknown, for definitions come meanwhile."""

        def is_known() -> bool:
            if name not in self._kinds:
                self._kinds = dict(self._discover())
            return name in self._kinds

        wait_in_thread(is_known, _SERVED_S, f"the API server to know {name}")
        return self._kinds[name]

    def _discover(self) -> Iterator[tuple[_Name, _Kind]]:
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
                yield (api_version, kind.kind), kind

    def _ask(self, path: str) -> dict[str, Any]:
        answer = self._http.get(path, headers={"Accept": _DISCOVERY})
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text[:_TEXT_MAX]}"
        found: dict[str, Any] = answer.json()
        return found
