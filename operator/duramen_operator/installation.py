"""What the chart's hooks do at the API server: apply its first cluster, and take it back.

Helm looks up the kind of all that it installs before it installs the definitions of these kinds,
so custom resources cannot be templates of the same chart. They stand in a ConfigMap instead, and a
job after each install and upgrade applies it (`apply`); a job before an uninstall deletes what
stands there (`remove`), the namespace before the cluster, in bounded time. An uninstall means to
stop bookies and to leave their volumes, so it says of each object that its copies are left. Plain
HTTP with the pod's token: four calls need no client library. Not here: letting go of finalizers
(`duramen-operator release`).

Called by charts/duramen/templates/hooks.yaml, and by tests from outside the cluster.
"""

from __future__ import annotations

import json
import ssl
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import cyclopts
import httpx
import yaml

from duramen_operator.names import ABANDON_ANNOTATION

FIELD_MANAGER: Final = "duramen-chart"
_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_PLURALS: Final = {
    "LogCluster": "logclusters",
    "BookieSet": "bookiesets",
    "LogNamespace": "lognamespaces",
}
_HOLDERS: Final = frozenset({"LogCluster", "BookieSet"})
"""Kinds that are not deleted while they hold copies."""

_RELEASE_LABEL: Final = "app.kubernetes.io/instance"
_APPLY_S: Final = 120.0
"""A definition is served a few seconds after it was made; an API server restarts in a minute."""
_GONE_S: Final = 60.0
"""How long the operator may take to delete a namespace; afterwards `release` lets go of it."""
_PAUSE_S: Final = 1.0

app = cyclopts.App(name="installation", help="Applies and removes the chart's first cluster.")


class InstallationError(Exception):
    """The API server refused, or did not answer in time."""


class Found(NamedTuple):
    """What is there of a resource."""

    uid: str | None
    """None: nothing is."""
    is_foreign: bool
    """Whether it carries the label of another release, or of none."""


class Installation:
    """The chart's resources in one namespace.

    Args:
        client: knows the server, its certificate and the token.
        pause: waits a moment before the next try.
    """

    def __init__(
        self,
        client: httpx.Client,
        namespace: str,
        *,
        now_s: Callable[[], float] = time.monotonic,
        pause: Callable[[], None] = lambda: time.sleep(_PAUSE_S),
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._now_s = now_s
        self._pause = pause

    def apply(self, resources: Sequence[dict[str, Any]]) -> None:
        """Make the resources be as they are here; fields that they do not name stay as they are.

        None of them is written where one is there and not of this release: an uninstall would
        delete what a person made.

        Raises:
            InstallationError: refused, or not accepted within 120 s. Safe to repeat.
        """
        deadline_s = self._now_s() + _APPLY_S
        foreign = [one for one in resources if self._find(one, deadline_s).is_foreign]
        if foreign:
            raise InstallationError(self._explain(foreign))
        for one in resources:
            self._apply_one(one, deadline_s)
            print(f"applied {_describe(one)}", flush=True)

    def remove(self, resources: Sequence[dict[str, Any]]) -> None:
        """Delete the resources, the last one first; one that is not gone in 60 s is left alone.

        Copies of entries are left where they lie. What carries the label of another release, or
        of none, stays.

        Raises:
            InstallationError: refused. Safe to repeat.
        """
        for one in reversed(resources):
            deadline_s = self._now_s() + _GONE_S
            if self._remove_one(one, deadline_s):
                self._wait_gone(one, deadline_s)
                print(f"removed {_describe(one)}", flush=True)

    def remove_pod(self, name: str) -> None:
        """Delete a pod that helm made and leaves: that of `helm test`.

        Raises:
            InstallationError: refused. Safe to repeat.
        """
        path = f"/api/v1/namespaces/{self._namespace}/pods/{name}"
        answer = self._try(partial(self._client.delete, path), self._now_s() + _GONE_S)
        if answer.status_code != 404:
            _check(answer, {"kind": "Pod", "metadata": {"name": name}})

    def _find(self, one: dict[str, Any], deadline_s: float) -> Found:
        found = self._try(partial(self._client.get, self._path(one)), deadline_s)
        if found.status_code == 404:  # or its definition is not served yet
            return Found(uid=None, is_foreign=False)
        _check(found, one)
        metadata = found.json()["metadata"]
        is_foreign = _read_release(metadata) != _read_release(one["metadata"])
        return Found(metadata["uid"], is_foreign)

    def _explain(self, foreign: Sequence[dict[str, Any]]) -> str:
        """Why nothing is applied, and the ways out; the command is a line of its own."""
        names = " ".join(f"{one['kind'].lower()}/{one['metadata']['name']}" for one in foreign)
        label = f"{_RELEASE_LABEL}={_read_release(foreign[0]['metadata'])}"
        return (
            f"{', '.join(map(_describe, foreign))}: there already, and without the label {label}. "
            "None of the chart's first cluster was applied.\n"
            "To hand that over to the release, with whose values it is changed and with which it "
            "is uninstalled, and then helm upgrade again:\n"
            f"  kubectl -n {self._namespace} label --overwrite {names} {label}\n"
            "To keep it to yourself: another cluster.name or logNamespace.name, or "
            "cluster.create=false, and helm upgrade again"
        )

    def _apply_one(self, one: dict[str, Any], deadline_s: float) -> None:
        while True:
            found = self._find(one, deadline_s)
            if found.is_foreign:
                raise InstallationError(self._explain([one]))
            # Where there is another one by now, the server refuses the change.
            uid = {} if found.uid is None else {"uid": found.uid}
            body = yaml.safe_dump({**one, "metadata": {**one["metadata"], **uid}})
            answer = self._try(partial(self._patch, one, body), deadline_s)
            # 404: the definition is there, and not served yet.
            if answer.status_code != 404 or self._now_s() > deadline_s:
                _check(answer, one)
                return
            self._pause()

    def _patch(self, one: dict[str, Any], body: str) -> httpx.Response:
        return self._client.patch(
            self._path(one),
            content=body,
            params={"fieldManager": FIELD_MANAGER, "force": "true"},
            headers={"Content-Type": "application/apply-patch+yaml"},
        )

    def _remove_one(self, one: dict[str, Any], deadline_s: float) -> bool:
        """Delete the very object that is there now, if it is this release's; gives whether one is
        on its way."""
        found = self._try(partial(self._client.get, self._path(one)), deadline_s)
        if found.status_code == 404:
            return False
        _check(found, one)
        metadata = found.json()["metadata"]
        if _read_release(metadata) != _read_release(one["metadata"]):
            print(f"{_describe(one)} is not of this release, and stays", flush=True)
            return False
        uid = metadata["uid"]
        if one["kind"] in _HOLDERS:
            self._leave_copies(one, uid, deadline_s)
        answer = self._try(
            lambda: self._client.request(
                "DELETE", self._path(one), json={"preconditions": {"uid": uid}}
            ),
            deadline_s,
        )
        if answer.status_code == 404:
            return False
        _check(answer, one)
        return True

    def _leave_copies(self, one: dict[str, Any], uid: str, deadline_s: float) -> None:
        """Say of this very object that it may go with copies on its volumes."""
        # Where there is another one by now, the server refuses the change.
        metadata = {"uid": uid, "annotations": {ABANDON_ANNOTATION: uid}}
        answer = self._try(
            lambda: self._client.patch(
                self._path(one),
                content=json.dumps({"metadata": metadata}),
                headers={"Content-Type": "application/merge-patch+json"},
            ),
            deadline_s,
        )
        if answer.status_code != 404:
            _check(answer, one)

    def _wait_gone(self, one: dict[str, Any], deadline_s: float) -> None:
        while self._now_s() < deadline_s:
            answer = self._try(lambda: self._client.get(self._path(one)), deadline_s)
            if answer.status_code == 404:
                return
            self._pause()
        print(f"{_describe(one)} is still there: its finalizer is taken off next", flush=True)

    def _try(self, call: Callable[[], httpx.Response], deadline_s: float) -> httpx.Response:
        """The first answer that is not about the server's own troubles."""
        while True:
            try:
                answer = call()
                if answer.status_code != 429 and answer.status_code < 500:
                    return answer
                fault = f"HTTP {answer.status_code}: {answer.text[:300]}"
            except httpx.TransportError as error:
                fault = str(error) or type(error).__name__
            if self._now_s() > deadline_s:
                raise InstallationError(f"the API server does not answer: {fault}")
            self._pause()

    def _path(self, one: dict[str, Any]) -> str:
        plural = _PLURALS[one["kind"]]
        name = one["metadata"]["name"]
        return f"/apis/{one['apiVersion']}/namespaces/{self._namespace}/{plural}/{name}"


def _check(answer: httpx.Response, one: dict[str, Any]) -> None:
    if answer.is_success:
        return
    try:
        detail = str(answer.json()["message"])
    except (ValueError, KeyError, TypeError):
        detail = answer.text[:300]
    raise InstallationError(f"{_describe(one)}: {detail}")


def _read_release(metadata: dict[str, Any]) -> str | None:
    """The release that an object is of, as the chart labels it."""
    said: str | None = (metadata.get("labels") or {}).get(_RELEASE_LABEL)
    return said


def _describe(one: dict[str, Any]) -> str:
    return f"{one['kind']} {one['metadata']['name']}"


def read_resources(file: Path) -> list[dict[str, Any]]:
    """The documents of a file, empty ones left out."""
    return [one for one in yaml.safe_load_all(file.read_text()) if one]


def _open(server: str | None, token_file: Path, authority_file: Path) -> httpx.Client:
    url = server or "https://kubernetes.default.svc"
    return httpx.Client(
        base_url=url,
        headers={"Authorization": f"Bearer {token_file.read_text().strip()}"},
        verify=ssl.create_default_context(cafile=str(authority_file)),
        timeout=10,
        trust_env=False,
    )


@app.command
def apply(
    *,
    namespace: str,
    file: Path,
    server: str | None = None,
    token_file: Path = _ACCOUNT / "token",
    authority_file: Path = _ACCOUNT / "ca.crt",
) -> None:
    """Apply the resources of a file.

    Args:
        namespace: where they belong.
        file: YAML documents.
        server: URL of the API server; the pod's own if left out.
        token_file: who asks.
        authority_file: whose certificate the server shows.
    """
    with _open(server, token_file, authority_file) as client:
        Installation(client, namespace).apply(read_resources(file))


@app.command
def remove(
    *,
    namespace: str,
    file: Path,
    pod: str | None = None,
    server: str | None = None,
    token_file: Path = _ACCOUNT / "token",
    authority_file: Path = _ACCOUNT / "ca.crt",
) -> None:
    """Delete the resources of a file, the last one first.

    Args:
        namespace: where they are.
        file: YAML documents.
        pod: a pod that goes too, if it is there.
        server: URL of the API server; the pod's own if left out.
        token_file: who asks.
        authority_file: whose certificate the server shows.
    """
    with _open(server, token_file, authority_file) as client:
        installation = Installation(client, namespace)
        installation.remove(read_resources(file))
        if pod is not None:
            installation.remove_pod(pod)


def main() -> None:
    """Entry point of `python -m duramen_operator.installation`."""
    try:
        app()
    except InstallationError as error:
        sys.exit(f"duramen: {error}")


if __name__ == "__main__":
    main()
