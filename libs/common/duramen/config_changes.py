"""What a log's configuration becomes when some of its fields are changed or laid over others.

A field that a change does not name stays. But `replication` has another form in a striped log than
in a flexible one, and a few fields belong to flexible logs alone. So a change of `copysets` leaves
behind what belongs to the form of before, and the rest takes its defaults. What belongs to both
forms stays.

Not here: whether the outcome is a configuration (`config`). Called by the sequencer, by
`cli.declare` and by the operator. Source: docs/protocol/flexible.md "Configuration".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from duramen.config import FlexibleReplication, Replication

_STRIPED: Final = frozenset(Replication.model_fields)
_FLEXIBLE: Final = frozenset(FlexibleReplication.model_fields)
_FOREIGN: Final[Mapping[str, frozenset[str]]] = {
    "striped": _FLEXIBLE - _STRIPED,
    "flexible": _STRIPED - _FLEXIBLE,
}
"""Fields of `replication` that a log with such copysets does not have."""


def merge_fields(stored: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """The stored fields with those that `change` names replaced; null is a value."""
    merged = dict(stored)
    for name, value in change.items():
        below = merged.get(name)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            merged[name] = merge_fields(below, value)
        else:
            merged[name] = value
    return merged


def merge_log_config(stored: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """As `merge_fields`; a change of `copysets` replaces `replication` as a whole."""
    copysets = change.get("copysets", stored.get("copysets"))
    return merge_fields(keep_form(stored, copysets), change)


def keep_form(config: Mapping[str, Any], copysets: object) -> dict[str, Any]:
    """The configuration without what belongs to logs of the other form alone.

    Args:
        copysets: of the log; what is none of the known values leaves all as it is.
    """
    kept = dict(config)
    foreign = _FOREIGN.get(copysets, frozenset()) if isinstance(copysets, str) else frozenset()
    replication = kept.get("replication")
    if isinstance(replication, Mapping) and not foreign.isdisjoint(replication):
        both = _STRIPED & _FLEXIBLE
        kept["replication"] = {n: value for n, value in replication.items() if n in both}
    if copysets == "striped":
        kept.pop("nodeset", None)
        kept.pop("sticky", None)
        if isinstance(kept.get("window"), Mapping):
            kept["window"] = {n: value for n, value in kept["window"].items() if n != "stall"}
    return kept
