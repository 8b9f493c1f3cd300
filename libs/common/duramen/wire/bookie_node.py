"""A bookie's own node, `bookies/<id>`: identity, location, weight and duty.

The bookie makes it and follows it; the auditor changes the duty by compare-and-set, whoever
administers the cluster the location and the weight. Unknown fields travel through every rewrite.
A node without a duty is that of a serving bookie, so older nodes are read as they were meant.

Called by the bookie's service and by repair. Source: 08-interfaces "ZooKeeper", docs/protocol/
metadata.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from duramen.core.duty import Duty
from duramen.ids import Incarnation
from duramen.wire.metadata_json import MetadataJsonError, read_node, spell_node

_INCARNATION: Final = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class BookieNode:
    """Who a bookie is, where it stands, and what it takes on."""

    incarnation: Incarnation
    region: str = ""
    rack: str = ""
    weight: float = 1.0
    duty: Duty = Duty.SERVING
    extra: Mapping[str, Any] = field(default_factory=dict)


def spell_bookie(node: BookieNode) -> bytes:
    """Spell `bookies/<id>`; the duty of a serving bookie is not written."""
    fields: dict[str, Any] = {
        "incarnation": node.incarnation,
        "region": node.region,
        "rack": node.rack,
        "weight": node.weight,
    }
    if node.duty is not Duty.SERVING:
        fields["duty"] = node.duty.value
    return spell_node(fields, node.extra)


def read_bookie(data: bytes) -> BookieNode:
    """Read `bookies/<id>`.

    Raises:
        MetadataJsonError: the node is not a bookie's, or names a duty that is not known here.
    """
    document = read_node(data)
    take = document.pop
    try:
        node = BookieNode(
            incarnation=_incarnation(take("incarnation")),
            region=_text(document.pop("region", "")),
            rack=_text(document.pop("rack", "")),
            weight=_weight(document.pop("weight", 1.0)),
            duty=Duty(document.pop("duty", Duty.SERVING.value)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise MetadataJsonError(f"the node is no bookie's: {error!r}") from error
    return BookieNode(node.incarnation, node.region, node.rack, node.weight, node.duty, document)


def _incarnation(value: object) -> Incarnation:
    if not isinstance(value, str) or not _INCARNATION.fullmatch(value):
        raise ValueError(f"{value!r} is no incarnation")
    return Incarnation(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _weight(value: object) -> float:
    """A finite number ≥ 0; `bool` is an int to Python, and no number to anybody else."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise ValueError(f"{value!r} is no number")
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{value!r} is no weight: it is a number ≥ 0")
    return float(value)
