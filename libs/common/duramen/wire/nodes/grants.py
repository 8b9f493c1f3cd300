"""The node `grants`: all grants of a cluster, each with who gave it and when.

The node is refused as a whole where its form is wrong. A row whose form is right and whose words
this version does not know gives nothing, and a rewrite keeps it: what is not known of it might have
made the grant narrower.

Called by `runtime.rights`. Source: docs/protocol/rights.md "The node `grants`".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from duramen.core.rights.changes import order_of
from duramen.core.rights.grants import GivenGrant, parse_grant, parse_principal
from duramen.errors import DuramenError
from duramen.wire.nodes.fields import (
    MetadataJsonError,
    check_text,
    check_whole,
    encode_node,
    read_node,
)

GRANTS_BYTES_MAX: Final = 1_000_000
"""Of the node: below what ZooKeeper takes in one request, with room for its path."""

_TEXTS: Final = ("who", "role", "scope", "by")
_MEMBERS: Final = frozenset((*_TEXTS, "given_unix_ms"))


@dataclass(frozen=True, slots=True)
class GrantsNode:
    """The node. `not_understood` are rows of a later version, or of a careless hand."""

    grants: tuple[GivenGrant, ...] = ()
    nonce: str = ""
    not_understood: tuple[Mapping[str, Any], ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


def encode_grants(node: GrantsNode) -> bytes:
    """Encode the node; what was not understood stands behind all grants."""
    rows = [_encode_row(given) for given in sorted(node.grants, key=order_of)]
    return encode_node({"grants": [*rows, *node.not_understood], "nonce": node.nonce}, node.extra)


def _encode_row(given: GivenGrant) -> dict[str, Any]:
    scope, who, role = given.grant
    return {
        "who": str(who),
        "role": role.value,
        "scope": str(scope),
        "by": str(given.by),
        "given_unix_ms": given.given_unix_ms,
    }


def read_grants(data: bytes) -> GrantsNode:
    """Read the node.

    Raises:
        MetadataJsonError: it has another form, a newer schema, or one grant twice.
    """
    document = read_node(data)
    try:
        rows, nonce = document.pop("grants"), check_text(document.pop("nonce"))
        if not isinstance(rows, list):
            raise TypeError("grants: no list")
    except (KeyError, TypeError, ValueError) as error:
        raise MetadataJsonError(f"the node has no grants: {error!r}") from error
    grants: dict[tuple[str, ...], GivenGrant] = {}
    strange = []
    for number, row in enumerate(rows):
        try:
            texts = _check_form(row)
        except (KeyError, TypeError, ValueError) as error:
            raise MetadataJsonError(f"grant {number}: {error!r}") from error
        given = _read_row(row)
        if given is None:
            strange.append(row)
        elif texts in grants:
            raise MetadataJsonError(f"grant {number}: {given.grant} is there twice")
        else:
            grants[texts] = given
    return GrantsNode(tuple(sorted(grants.values(), key=order_of)), nonce, tuple(strange), document)


def _check_form(row: Any) -> tuple[str, ...]:
    """Who, role and scope of a row that has all members, each of its type."""
    if not isinstance(row, dict):
        raise TypeError("no object")
    check_whole(row["given_unix_ms"])
    return tuple(check_text(row[name]) for name in _TEXTS)[:3]


def _read_row(row: dict[str, Any]) -> GivenGrant | None:
    if not row.keys() <= _MEMBERS:
        return None
    try:
        grant = parse_grant(row["who"], row["role"], row["scope"])
        return GivenGrant(grant, parse_principal(row["by"]), row["given_unix_ms"])
    except DuramenError:
        return None
