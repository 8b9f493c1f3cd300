"""The node `repair/disruptions`: all grants of disruption that were not ended.

A row of a later version may have other targets, kinds and members: it is a grant all the same, it
hinders others, and a rewrite keeps what is not known of it. A node of another form is refused as a
whole, and nothing is granted beside it.

Called by the auditor's `granting`. Source: docs/protocol/disruption.md, docs/protocol/metadata.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from duramen.core.repair.disruption_grants import DisruptionGrant, DisruptionToken
from duramen.wire.nodes.fields import (
    MetadataJsonError,
    check_text,
    check_whole,
    encode_node,
    read_node,
    take_field,
)

_ROWS = "grants"


@dataclass(frozen=True, slots=True)
class DisruptionsNode:
    """The node.

    `row_extras`: of each grant, by its token, what is not known here.
    """

    grants: tuple[DisruptionGrant, ...] = ()
    row_extras: Mapping[DisruptionToken, Mapping[str, Any]] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)


def encode_disruptions(node: DisruptionsNode) -> bytes:
    """Encode the node, its grants in the order in which they were given."""
    rows = [
        {**node.row_extras.get(grant.token, {}), **_encode_grant(grant)} for grant in node.grants
    ]
    return encode_node({_ROWS: rows}, node.extra)


def read_disruptions(data: bytes) -> DisruptionsNode:
    """Read the node.

    Raises:
        MetadataJsonError: it has another form, a newer schema, or one token twice.
    """
    document = read_node(data)
    rows = document.pop(_ROWS, None)
    if not isinstance(rows, list):
        raise MetadataJsonError("the node has no list of grants")
    extras: dict[DisruptionToken, Mapping[str, Any]] = {}
    grants = []
    for number, row in enumerate(rows):
        try:
            grant, extra = _read_grant(row)
        except (KeyError, TypeError, ValueError) as error:
            raise MetadataJsonError(f"grant {number}: {error!r}") from error
        if grant.token in extras:
            raise MetadataJsonError(f"grant {number}: the token {grant.token} is there twice")
        grants.append(grant)
        extras[grant.token] = extra
    return DisruptionsNode(tuple(grants), extras, document)


def _encode_grant(grant: DisruptionGrant) -> dict[str, Any]:
    return {
        "token": grant.token,
        "target": grant.target,
        "kind": grant.kind,
        "holder": grant.holder,
        "life_ms": grant.life_ms,
        "renewals": grant.renewals,
        "granted_unix_ms": grant.granted_unix_ms,
        "accepts": list(grant.accepts),
    }


def _read_grant(row: Any) -> tuple[DisruptionGrant, dict[str, Any]]:
    if not isinstance(row, dict):
        raise TypeError("no object")
    rest = dict(row)
    accepts = rest.pop("accepts", [])
    if not isinstance(accepts, list):
        raise TypeError("accepts: no list")
    grant = DisruptionGrant(
        DisruptionToken(take_field(rest, "token", check_text)),
        take_field(rest, "target", check_text),
        take_field(rest, "kind", check_text),
        take_field(rest, "holder", check_text),
        take_field(rest, "life_ms", check_whole),
        take_field(rest, "renewals", check_whole),
        take_field(rest, "granted_unix_ms", check_whole),
        tuple(map(check_text, accepts)),
    )
    return grant, rest
