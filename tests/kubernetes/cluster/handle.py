"""What a test gets of a running cluster: its address, kubectl, helm and namespaces of its own.

A handle starts and stops nothing. `kubectl` and `helm` are those that were built with the cluster,
with its kubeconfig and without anything of the user's own. Made by the fixtures of
tests/kubernetes/conftest.py.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.kubernetes.cluster import binaries
from tests.kubernetes.cluster.api_server import ApiServer
from tests.process.times import HANG_S
from tests.waiting import wait_in_thread

COMMAND_S = 120.0


@dataclass(frozen=True)
class ClusterHandle:
    """A running cluster. `token` and `certificate` are what `kubeconfig` holds."""

    kubeconfig: Path
    url: str
    token: str
    certificate: Path
    folder: Path
    """Logs of the components, and a place for helm's own files."""

    @property
    def environment(self) -> dict[str, str]:
        """For children: PATH begins with the cluster's programs, KUBECONFIG is set."""
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        path = f"{binaries.folder()}{os.pathsep}{os.environ['PATH']}"
        return {
            **os.environ,
            "HOME": str(home),
            "HELM_CACHE_HOME": str(home / "helm"),
            "KUBECONFIG": str(self.kubeconfig),
            "PATH": path,
        }

    def kubectl(
        self,
        *arguments: str | Path,
        stdin: str | None = None,
        check: bool = True,
        timeout_s: float = COMMAND_S,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl; a failure is an AssertionError with what it said, unless `check` is off."""
        return self._run("kubectl", *arguments, stdin=stdin, check=check, timeout_s=timeout_s)

    def helm(
        self,
        *arguments: str | Path,
        stdin: str | None = None,
        check: bool = True,
        timeout_s: float = COMMAND_S,
    ) -> subprocess.CompletedProcess[str]:
        """Run helm, as `kubectl` does."""
        return self._run("helm", *arguments, stdin=stdin, check=check, timeout_s=timeout_s)

    def get(self, *arguments: str | Path) -> Any:
        """What `kubectl get … -o json` prints, parsed."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json").stdout)

    def list(self, kinds: str, namespace: str, selector: str = "") -> list[dict[str, Any]]:
        """The objects of some kinds, as `kubectl get` prints them."""
        return self._api_server.list(kinds, namespace, selector)

    def wait_known(self, name: str) -> None:
        """Until one of kubectl's names of a kind is told to whoever asks."""
        self._api_server.wait_known(name)

    def apply(self, *manifests: Any, namespace: str | None = None) -> None:
        """Server-side apply of manifests as dictionaries, with validation."""
        for manifest in manifests:
            self._api_server.apply(manifest, namespace)

    def delete(self, kind: str, name: str, namespace: str = "") -> bool:
        """Ask for the deletion of an object, and do not wait; whether it was there."""
        return self._api_server.delete(kind, name, namespace)

    def close(self) -> None:
        """Close its connections."""
        self._api_server.close()

    def may(self, account: str, namespace: str, verb: str, kind: str) -> bool:
        """Whether the API server would let an account do that to objects of a kind there."""
        flags = ("--as", account, "--namespace", namespace)
        said = self.kubectl("auth", "can-i", verb, kind, *flags, check=False)
        return said.stdout.strip() == "yes"

    def wait_right(self, account: str, namespace: str, verb: str, kind: str) -> None:
        """Until the API server has heard of a right that it stored a moment ago."""
        what = f"{account}'s right to {verb} {kind}"
        wait_in_thread(lambda: self.may(account, namespace, verb, kind), HANG_S, what)

    @contextmanager
    def namespace(self, **labels: str) -> Iterator[str]:
        """A fresh namespace; its deletion is asked for at the end and not awaited."""
        name = f"t-{secrets.token_hex(4)}"
        metadata = {"name": name, "labels": {k.replace("__", "/"): v for k, v in labels.items()}}
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        try:
            yield name
        finally:
            with contextlib.suppress(AssertionError, httpx.HTTPError):
                self.delete("namespace", name)

    @functools.cached_property
    def _api_server(self) -> ApiServer:
        return ApiServer(self.url, self.token, self.certificate)

    def _run(
        self,
        program: str,
        *arguments: str | Path,
        stdin: str | None,
        check: bool,
        timeout_s: float,
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(binaries.folder() / program), *map(str, arguments)],
            check=False,
            input="" if stdin is None else stdin,
            env=self.environment,
            cwd=binaries.HERE.parents[2],
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        if check:
            said = f"{done.stderr}{done.stdout}"[-4000:]
            assert done.returncode == 0, f"{program} {' '.join(map(str, arguments))}: {said}"
        return done
