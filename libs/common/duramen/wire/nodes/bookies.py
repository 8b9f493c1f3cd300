"""The node of a bookie: who it is, where it stands, what it takes on, and what it has dropped.

The bookie writes it, and keeps what a person or the auditor wrote there.

Called by the drivers of sequencer and bookie. Source: docs/protocol/metadata.md "Nodes".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from duramen.core.duty import Duty
from duramen.ids import Incarnation
from duramen.wire.nodes.fields import (
    MetadataJsonError,
    check_incarnation,
    check_text,
    check_weight,
    encode_node,
    read_node,
    read_whole,
)

_CONFIRMED: Final = "confirmed_tombstone"

PLACED_BY: Final = "placed_by"
BY_ADMIN: Final = "admin"
"""In `bookies/<id>`: a person has said where the bookie is, so its flags do not change that."""


@dataclass(frozen=True, slots=True)
class BookieNode:
    """Who a bookie is, where it stands, and what it takes on."""

    incarnation: Incarnation
    region: str = ""
    rack: str = ""
    weight: float = 1.0
    duty: Duty = Duty.SERVING
    extra: Mapping[str, Any] = field(default_factory=dict)


def encode_bookie(node: BookieNode) -> bytes:
    """Encode `bookies/<id>`; the duty of a serving bookie is not written."""
    fields: dict[str, Any] = {
        "incarnation": node.incarnation,
        "region": node.region,
        "rack": node.rack,
        "weight": node.weight,
    }
    if node.duty is not Duty.SERVING:
        fields["duty"] = node.duty.value
    return encode_node(fields, node.extra)


def read_bookie(data: bytes) -> BookieNode:
    """Read `bookies/<id>`.

    Raises:
        MetadataJsonError: the node is not a bookie's, or names a duty that is not known here.
    """
    document = read_node(data)
    take = document.pop
    try:
        node = BookieNode(
            incarnation=check_incarnation(take("incarnation")),
            region=check_text(document.pop("region", "")),
            rack=check_text(document.pop("rack", "")),
            weight=check_weight(document.pop("weight", 1.0)),
            duty=Duty(document.pop("duty", Duty.SERVING.value)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise MetadataJsonError(f"the node is no bookie's: {error!r}") from error
    return BookieNode(node.incarnation, node.region, node.rack, node.weight, node.duty, document)


def encode_confirmed(fields: Mapping[str, Any], sequence: int) -> bytes:
    """Encode `bookies/<id>` with the tombstone up to which the bookie confirms."""
    return encode_node({**fields, _CONFIRMED: sequence})


def read_confirmed(fields: Mapping[str, Any]) -> int:
    """Up to which tombstone a bookie confirms that it holds nothing of their logs; 0: none.

    Raises:
        MetadataJsonError: the field is there and is no number.
    """
    return read_whole(fields.get(_CONFIRMED, 0))
