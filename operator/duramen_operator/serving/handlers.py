"""Watches by kopf, whose handlers do one thing: wake the worker of the cluster that it is about.

No kopf finalizers, no annotations, no state: only `on.event`, which needs none. Kinds that are not
ours are watched by the label `managed-by`. Called by `running.py`.
"""

import asyncio
from typing import Any

import kopf

from duramen_operator.kinds import KINDS, Kind
from duramen_operator.kube import Kube
from duramen_operator.names import MANAGED_BY, MANAGED_BY_LABEL
from duramen_operator.observe.listing import name_cluster
from duramen_operator.serving.watches import Watches
from duramen_operator.serving.worker import Workers

UNWATCHED = frozenset({"ConfigMap", "Service", "HorizontalPodAutoscaler", "PodDisruptionBudget"})
"""Nothing happens to them by themselves: if people change them, the next pass sets them right."""
WATCHED = tuple(kind for kind in KINDS if kind.name not in UNWATCHED)
_CONNECT_S = 10.0
_RETRY_AFTER_S = (1, 1, 2, 3, *(5 for _ in range(20)))
"""Kopf's own pauses grow to 21 s: a watch would stay away for so long after the API server is back,
and after 54 s in all it gives up."""


def make_registry(kube: Kube, workers: Workers, watches: Watches) -> kopf.OperatorRegistry:
    """Handlers for every kind that can wake a worker."""
    registry = kopf.OperatorRegistry()
    for kind in WATCHED:
        _add_handler(registry, kind, workers, watches)

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        found = await kube.renew_login()
        return kopf.ConnectionInfo(
            server=found.server,
            ca_path=found.authority_file,
            certificate_path=found.certificate_file,
            private_key_path=found.key_file,
            token=found.token,
            default_namespace=kube.namespace,
        )

    return registry


def make_settings() -> kopf.OperatorSettings:
    """Kopf without what needs rights beyond the namespace, and without its own events."""
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.watching.connect_timeout = _CONNECT_S
    settings.networking.error_backoffs = _RETRY_AFTER_S
    return settings


async def watch(
    registry: kopf.OperatorRegistry, namespace: str, stop: asyncio.Event, ready: asyncio.Event
) -> None:
    """Watch until told to stop."""
    await kopf.operator(
        registry=registry,
        settings=make_settings(),
        standalone=True,
        namespaces=[namespace],
        stop_flag=stop,
        ready_flag=ready,
    )


def _add_handler(
    registry: kopf.OperatorRegistry, kind: Kind, workers: Workers, watches: Watches
) -> None:
    labels = None if kind.is_ours else {MANAGED_BY_LABEL: MANAGED_BY}

    async def on_event(event: Any, **_: Any) -> None:
        item = event["object"]
        watches.on_event(kind.name, item, is_deleted=event.get("type") == "DELETED")
        metadata = item["metadata"]
        cause = (str(metadata.get("uid")), str(metadata.get("resourceVersion")))
        workers.wake(name_cluster({**item, "kind": kind.name}), cause)

    kopf.on.event(
        group=kind.group,
        version=kind.version,
        plural=kind.plural,
        labels=labels,
        registry=registry,
        id=f"wake-{kind.plural}",
    )(on_event)
