"""What a plan says of an object: its conditions, its status as a whole, and events of what changed.

A condition keeps the time of its last change of `status`, so that saying it again changes nothing:
where the status would read as it does, there is no step. Nothing is remembered but in the object.

Called by the parts of the plan. Source: Kubernetes' API conventions, "typical status properties".
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from duramen_operator.names import FIELD_MANAGER
from duramen_operator.plan.observed import Json, KubeObject
from duramen_operator.plan.steps import Event, Status
from duramen_operator.resources.conditions import NEVER

Truth = Literal["True", "False", "Unknown"]
FIGURES_EVERY = timedelta(seconds=15)
"""Figures that move by themselves are written so often at most: each writing wakes the worker."""

_MESSAGE_CHARACTERS = 1024
"""Of an event's note; conditions may say 32 times as much, and nobody reads it."""


@dataclass(frozen=True, slots=True)
class Said:
    """One condition, without its history."""

    type: str
    status: Truth
    reason: str
    message: str
    is_event: bool = False
    """Whether people are told by an event too, when the reason is a new one."""


def report(
    item: KubeObject,
    said: Iterable[Said],
    figures: Json,
    now: datetime,
    moving: Iterable[str] = (),
) -> Iterator[Status | Event]:
    """The steps that make an object's status read so: none where it does already.

    Args:
        figures: the status' other fields; those that it has and that are not named go.
        moving: those of them that alone are a reason only every FIGURES_EVERY.
    """
    conditions = tuple(said)
    for one in conditions:
        old = find_condition(item, one.type)
        if one.is_event and (old is None or old.get("reason") != one.reason):
            yield Event(
                item.ref, item.uid, one.reason, one.message[:_MESSAGE_CHARACTERS],
                find_told(item), now, is_warning=one.status != "True",
            )  # fmt: skip
    status = {
        **figures,
        "observedGeneration": item.generation,
        "conditions": [_encode(item, one, now) for one in conditions],
    }
    if status == item.status:
        return
    calm = {name: item.status[name] for name in moving if name in item.status}
    written = max(_list_writes(item), default=now - FIGURES_EVERY)
    if {**status, **calm} == item.status and now < written + FIGURES_EVERY:
        return
    yield Status(item.ref, item.uid, status)


def find_condition(item: KubeObject, condition_type: str) -> Json | None:
    """The condition of a type as the object has it."""
    for condition in item.status.get("conditions") or ():
        if condition.get("type") == condition_type:
            found: Json = condition
            return found
    return None


def replace_condition(item: KubeObject, said: Said, now: datetime) -> Json:
    """The status of an object with one condition said anew, and all else as it stands there."""
    conditions = item.status.get("conditions") or ()
    others = [one for one in conditions if one.get("type") != said.type]
    place = next(
        (i for i, one in enumerate(conditions) if one.get("type") == said.type), len(others)
    )
    others.insert(place, _encode(item, said, now))
    return {**item.status, "conditions": others}


def find_told(item: KubeObject) -> datetime:
    """When the object was last told something: the time of events of what it is told next.

    It moves with the status alone. So an event whose status was not written is the same event in
    the next pass, and one that comes again later is another one.
    """
    conditions = item.status.get("conditions") or ()
    texts = [str(one["lastTransitionTime"]) for one in conditions if "lastTransitionTime" in one]
    texts.append(str(item.metadata.get("creationTimestamp") or NEVER))
    return max([*map(datetime.fromisoformat, texts), *_list_writes(item)])


def is_true(item: KubeObject, condition_type: str) -> bool:
    """Whether the object says so itself."""
    condition = find_condition(item, condition_type)
    return condition is not None and condition.get("status") == "True"


def format_time(moment: datetime) -> str:
    """RFC 3339 in UTC with whole seconds, as metav1.Time."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _list_writes(item: KubeObject) -> list[datetime]:
    """When the operator last wrote the status, as the API server noted; empty if it did not."""
    return [
        datetime.fromisoformat(str(entry["time"]))
        for entry in item.metadata.get("managedFields") or ()
        if entry.get("manager") == FIELD_MANAGER
        and entry.get("subresource") == "status"
        and "time" in entry
    ]


def _encode(item: KubeObject, said: Said, now: datetime) -> dict[str, Any]:
    old = find_condition(item, said.type)
    is_kept = old is not None and old.get("status") == said.status
    since = str(old.get("lastTransitionTime")) if old is not None and is_kept else format_time(now)
    return {
        "type": said.type,
        "status": said.status,
        "reason": said.reason,
        "message": said.message,
        "observedGeneration": item.generation,
        "lastTransitionTime": since,
    }
