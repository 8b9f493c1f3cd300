"""Edits by hand: what others changed of an object that the operator made goes back, and is told.

Others changed it where it carries the digest of what is to be applied and does not read so: what
the operator itself changes has another digest. One event for each edit goes to whoever owns the
object: what is told follows from the object alone, so it is the same until the object is set back.

Called by `plan.plan`. Pure. Source: docs/kubernetes/one-hand.md 14; docs/kubernetes/operations.md
"What a cluster is".
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Final, NamedTuple

from duramen_operator.names import FIELD_MANAGER, MANIFEST_ANNOTATION
from duramen_operator.plan.manifests import FieldPath, find_differences
from duramen_operator.plan.observed import KubeObject, Observed, Ref
from duramen_operator.plan.steps import Apply, Event, Step

EDITED_BY_HAND: Final = "EditedByHand"
FIELDS_SHOWN_MAX: Final = 5
_FIELD_CHARACTERS_MAX: Final = 120


class _Edit(NamedTuple):
    """Who changed an object, for people, and when."""

    by: str
    at: datetime


def add_edits(observed: Observed, steps: Iterable[Step], now: datetime) -> Iterator[Step]:
    """The steps, and an event behind each that takes an edit back."""
    for step in steps:
        yield step
        if isinstance(step, Apply):
            yield from _report_edit(observed, step, now)


def _report_edit(observed: Observed, step: Apply, now: datetime) -> Iterator[Event]:
    found = observed.objects.get(step.about)
    metadata = step.manifest["metadata"]
    digest = metadata["annotations"][MANIFEST_ANNOTATION]
    if found is None or found.annotations.get(MANIFEST_ANNOTATION) != digest:
        return
    fields = list(islice(find_differences(found.body, step.manifest), FIELDS_SHOWN_MAX + 1))
    if not fields:
        return
    edit = _find_edit(found, fields)
    shown = ", ".join(map(_spell, fields[:FIELDS_SHOWN_MAX]))
    more = " and more" if len(fields) > FIELDS_SHOWN_MAX else ""
    message = f"{found.ref.kind} {found.name}: {edit.by} changed {shown}{more}: it is set back"
    owner = metadata["ownerReferences"][0]
    about = Ref(owner["apiVersion"], owner["kind"], owner["name"])
    yield Event(about, owner["uid"], EDITED_BY_HAND, message, edit.at, now, is_warning=True)


def _find_edit(found: KubeObject, fields: Sequence[FieldPath]) -> _Edit:
    """The newest change by others of one of these fields, as the API server noted it.

    Whoever only takes something away has no field, so nothing is noted of that; and of `kubectl
    scale` it is not noted when it was. Then the generation tells one edit from the next.
    """
    made = datetime.fromisoformat(str(found.metadata["creationTimestamp"]))
    number = f"(generation {found.generation})"
    edits = [_Edit(f"somebody {number}", made)]
    for entry in found.metadata.get("managedFields") or ():
        is_ours = entry.get("manager") == FIELD_MANAGER or entry.get("subresource") == "status"
        if is_ours or not any(_has_field(entry.get("fieldsV1"), field) for field in fields):
            continue
        by, time = str(entry.get("manager")), entry.get("time")
        if time is None:
            # It stands there until it is taken back, so it is part of what is taken back now.
            return _Edit(f"{by} {number}", made)
        edits.append(_Edit(by, datetime.fromisoformat(str(time))))
    return max(edits, key=lambda edit: edit.at)


def _has_field(noted: object, field: FieldPath) -> bool:
    """Whether somebody's fields have the beginning of a path: beyond it lists have keys of their
    own."""
    for name in field[:2]:
        if not isinstance(noted, dict) or f"f:{name}" not in noted:
            return False
        noted = noted[f"f:{name}"]
    return True


def _spell(field: FieldPath) -> str:
    """A path as people write it."""
    text = "".join(part if part.startswith("[") else f".{part}" for part in field)
    return text.removeprefix(".")[:_FIELD_CHARACTERS_MAX]
