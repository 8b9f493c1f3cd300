"""What `duramen apply` has to do: a plan from what is wanted and what is there. Pure.

A field that a document does not name is left as it is, and gets its default in something new: a
file that says nothing of `retention` must not shorten it. Two spellings of one value ("60m", "1h")
are the same. Namespaces come before logs, each kind in the order of the files.

Called by `declare.apply`. Source: docs/cli.md "apply".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from duramen.cli.declare.documents import DocumentsError, Wanted, check_config
from duramen.config_changes import merge_log_config

Action = Literal["create", "change", "same"]


class Change(NamedTuple):
    """One field and what becomes of it."""

    field: str
    old: Any
    new: Any


class Present(NamedTuple):
    """What is there: the whole configuration, and its version where it has one."""

    config: Mapping[str, Any]
    version: int | None = None


class ApplyStep(NamedTuple):
    """One thing to do, or to leave."""

    wanted: Wanted
    action: Action
    changes: tuple[Change, ...]
    version: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The object of `duramen apply --json`."""
        return {
            "kind": self.wanted.kind,
            "name": self.wanted.name,
            "action": self.action,
            "changes": [change._asdict() for change in self.changes],
        }

    def patch(self) -> dict[str, Any]:
        """The fields that change, nested as the configuration is."""
        patch: dict[str, Any] = {}
        for change in self.changes:
            *parents, name = change.field.split(".")
            below = patch
            for parent in parents:
                below = below.setdefault(parent, {})
            below[name] = change.new
        return patch


def make_plan(wanted: list[Wanted], present: Mapping[tuple[str, str], Present]) -> list[ApplyStep]:
    """The steps, in the order in which they are to be taken.

    Args:
        present: (kind, name) → what is there; what is missing in it is to be created.

    Raises:
        DocumentsError: every document that cannot become true, before anything is done.
    """
    faults: list[str] = []
    steps = []
    namespaces = {one.name for one in wanted if one.kind == "Namespace"}
    namespaces |= {name for kind, name in present if kind == "Namespace"}
    for one in sorted(wanted, key=lambda one: one.kind != "Namespace"):
        if one.namespace not in namespaces:
            faults.append(
                f"{one.where}: {one}: there is no namespace {one.namespace}: declare it as well"
            )
        try:
            steps.append(_plan_one(one, present.get((one.kind, one.name))))
        except DocumentsError as error:
            faults += error.faults
    if faults:
        raise DocumentsError(faults)
    return steps


def _plan_one(wanted: Wanted, present: Present | None) -> ApplyStep:
    if present is None:
        config = check_config(wanted, wanted.config)
        named = dict(_list_fields(config, wanted.config))
        return ApplyStep(
            wanted, "create", tuple(Change(field, None, named[field]) for field in named)
        )
    whole = check_config(wanted, merge_log_config(present.config, wanted.config))
    old = dict(_list_fields(present.config, present.config))
    changes = tuple(
        Change(field, old.get(field), new)
        for field, new in _list_fields(whole, wanted.config)
        if old.get(field) != new
    )
    return ApplyStep(wanted, "change" if changes else "same", changes, present.version)


def _list_fields(
    config: Mapping[str, Any], named: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """Field path → value in `config`, of what `named` names."""
    for name, value in named.items():
        found = config.get(name)
        if isinstance(value, Mapping) and isinstance(found, Mapping):
            yield from _list_fields(found, value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", found


def format_value(value: Any) -> str:
    """A value as a person writes it."""
    return {None: "none", True: "true", False: "false"}.get(value, str(value))
