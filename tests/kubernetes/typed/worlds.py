"""An API server, fake or real, in which an account has rights of a test's choice.

Both give a kubeconfig, by which the operator's own `Kube` logs in: what the typed calls carry is
what it found.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from duramen_operator.kube import Kube
from duramen_operator.names import GROUP
from duramen_operator.rights import RIGHTS
from duramen_operator.typed.client import TypedClient
from tests.kubernetes.cluster.accounts import NAME, Rules, make_account, write_token_config
from tests.kubernetes.cluster.handle import ClusterHandle
from tests.kubernetes.typed.fake_api import FakeApi, running_api
from tests.process.times import HANG_S

EVENTS: Rules = [{"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create"]}]


class World(Protocol):
    """One namespace of an API server, and the account of a test."""

    namespace: str
    kubeconfig: Path

    def find_event(self, name: str) -> dict[str, Any] | None:
        """An event as it is stored."""
        ...

    def write_token(self, token: str) -> None:
        """The kubeconfig holds this token."""
        ...


OpenWorld = Callable[[Rules], AbstractContextManager[World]]
"""Opens a world whose account has these rights."""


class FakeWorld:
    """A fake API server."""

    namespace = "here"

    def __init__(self, api: FakeApi, folder: Path) -> None:
        self.api = api
        self.kubeconfig = folder / "kubeconfig"
        self.write_token(api.token)

    def find_event(self, name: str) -> dict[str, Any] | None:
        return self.api.events.get(name)

    def write_token(self, token: str) -> None:
        write_token_config(self.kubeconfig, self.api.url, token, None)


class RealWorld:
    """A namespace of a real API server."""

    def __init__(self, cluster: ClusterHandle, namespace: str, kubeconfig: Path) -> None:
        self._cluster = cluster
        self.namespace = namespace
        self.kubeconfig = kubeconfig

    def find_event(self, name: str) -> dict[str, Any] | None:
        found = self._cluster.list("events.events.k8s.io", self.namespace)
        return next((one for one in found if one["metadata"]["name"] == name), None)

    def write_token(self, token: str) -> None:
        url, certificate = self._cluster.url, self._cluster.certificate
        write_token_config(self.kubeconfig, url, token, certificate)


@contextmanager
def fake_world(rules: Rules, folder: Path) -> Iterator[FakeWorld]:
    """A fake API server whose account has these rights."""
    with running_api(rules) as api:
        yield FakeWorld(api, folder)


@contextmanager
def real_world(cluster: ClusterHandle, rules: Rules, folder: Path) -> Iterator[RealWorld]:
    """A namespace of its own whose account has these rights."""
    with cluster.namespace() as namespace:
        kubeconfig = make_account(cluster, namespace, rules, folder)
        # kubectl, which is asked here, knows no kind of ours without its definition.
        known = (r for r in rules if GROUP not in r["apiGroups"] and "resourceNames" not in r)
        first = next(known)
        group, resource = first["apiGroups"][0], first["resources"][0]
        kind = f"{resource}.{group}" if group else resource
        account = f"system:serviceaccount:{namespace}:{NAME}"
        cluster.wait_right(account, namespace, first["verbs"][0], kind)
        yield RealWorld(cluster, namespace, kubeconfig)


def list_rules() -> Rules:
    """Everything that the operator needs, as rules of a Role."""
    return [
        {"apiGroups": [r.group], "resources": list(r.resources), "verbs": list(r.verbs)}
        for r in RIGHTS
    ]


@asynccontextmanager
async def connected(
    world: World, timeout_s: float = HANG_S
) -> AsyncIterator[tuple[TypedClient, Kube]]:
    """The operator's typed client, and the login that it stands on."""
    kube = await Kube.connect(world.namespace, str(world.kubeconfig))
    client = TypedClient(kube, timeout_s=timeout_s)
    try:
        yield client, kube
    finally:
        await client.close()
