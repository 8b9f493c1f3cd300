"""Tells of a plan's event in the API server's events: what `kubectl describe` shows.

An event's name is made of what it tells: told twice, the second time is a conflict and no second
event. Called by `apply.executor`.
"""

from __future__ import annotations

import hashlib

from kubernetes.aio.client import (
    ApiClient,
    EventsV1Api,
    EventsV1Event,
    V1ObjectMeta,
    V1ObjectReference,
)

from duramen_operator.names import FIELD_MANAGER
from duramen_operator.plan.steps import Event
from duramen_operator.typed.client import TypedClient, format_micro_time

_NOTE_CHARACTERS = 1024


async def report_event(client: TypedClient, step: Event, namespace: str) -> None:
    """Make the event.

    Raises:
        Refused: the API server said no; 409: it has been told already.
        Unreachable: whether it was told is open.
    """
    event = make_event(step, namespace)

    async def create(api: ApiClient) -> EventsV1Event:
        return await EventsV1Api(api).create_namespaced_event(
            namespace, event, field_manager=FIELD_MANAGER
        )

    await client.call(create)


def make_event(step: Event, namespace: str) -> EventsV1Event:
    """The event as the API server takes it."""
    identity = "\n".join((step.uid, step.reason, step.message, format_micro_time(step.since)))
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    about = step.about
    return EventsV1Event(
        api_version="events.k8s.io/v1",
        kind="Event",
        metadata=V1ObjectMeta(name=f"{about.name[:200]}.{digest}", namespace=namespace),
        event_time=step.at,
        reporting_controller=f"duramen.io/{FIELD_MANAGER}",
        reporting_instance=FIELD_MANAGER,
        action="Reconcile",
        reason=step.reason,
        note=step.message[:_NOTE_CHARACTERS],
        type="Warning" if step.is_warning else "Normal",
        regarding=V1ObjectReference(
            api_version=about.api_version,
            kind=about.kind,
            name=about.name,
            namespace=namespace,
            uid=step.uid,
        ),
    )
