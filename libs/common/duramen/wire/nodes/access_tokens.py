"""The node of an API token: the hash of its text, what it may do, for whom, and until when.

Written once and never changed: who revokes a token removes its node. So a reader that has read a
name need not read it again. Principals and scopes have the forms that they have in grants.

Called by the table of tokens and by whoever issues one.
Source: docs/protocol/metadata.md "Nodes", docs/protocol/credentials.md "API tokens".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from duramen.core.rights.grants import Principal, is_token_id, parse_principal
from duramen.core.rights.token_scopes import SCOPE_COUNT_MAX, TokenScope, parse_token_scope
from duramen.errors import DuramenError
from duramen.wire.nodes.fields import (
    MetadataJsonError,
    check_text,
    check_whole,
    encode_node,
    read_node,
    take_field,
)

NOTE_LENGTH_MAX: Final = 400
"""Characters of a note."""

HASH_BYTES: Final = 32

_HASH: Final = re.compile(f"[0-9a-f]{{{2 * HASH_BYTES}}}")


@dataclass(frozen=True, slots=True)
class AccessToken:
    """An API token as it is kept: its secret is not in it.

    `parent_id` is the token that it was made with, if it was. Times are in seconds since 1970.
    """

    token_id: str
    secret_hash: bytes
    issued_by: Principal
    scopes: tuple[TokenScope, ...]
    created_s: int
    expires_s: int
    note: str = ""
    parent_id: str | None = None


def encode_access_token(token: AccessToken) -> bytes:
    """Encode `access-tokens/<id>`."""
    fields: dict[str, Any] = {
        "id": token.token_id,
        "sha256": token.secret_hash.hex(),
        "issued_by": str(token.issued_by),
        "scopes": encode_scopes(token.scopes),
        "created_unix_s": token.created_s,
        "expires_unix_s": token.expires_s,
        "note": token.note,
    }
    if token.parent_id is not None:
        fields["parent"] = token.parent_id
    return encode_node(fields)


def read_access_token(data: bytes, name: str) -> AccessToken:
    """Read `access-tokens/<id>`, where `name` is the id in the path.

    Fields that are not known refuse the node: a later version may mean less by it than this one
    would read, and nobody writes it anew.

    Raises:
        MetadataJsonError: the node is no token's.
    """
    document = read_node(data)
    try:
        token = AccessToken(
            token_id=take_field(document, "id", _check_id),
            secret_hash=take_field(document, "sha256", check_hash),
            issued_by=take_field(document, "issued_by", _read_principal),
            scopes=take_field(document, "scopes", read_scopes),
            created_s=take_field(document, "created_unix_s", check_whole),
            expires_s=take_field(document, "expires_unix_s", check_whole),
            note=take_field(document, "note", check_note),
            parent_id=take_field(document, "parent", _check_id) if "parent" in document else None,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise MetadataJsonError(f"the node is no token's: {error}") from error
    if document:
        raise MetadataJsonError(f"the node has fields that are not known: {sorted(document)[:3]}")
    if token.token_id != name:
        raise MetadataJsonError(f"it is the node of {token.token_id}")
    return token


def encode_scopes(scopes: Iterable[TokenScope]) -> list[dict[str, Any]]:
    """Scopes as nodes, requests and answers have them."""
    return [{"verbs": sorted(one.verbs), "target": str(one.on)} for one in scopes]


def read_scopes(value: object) -> tuple[TokenScope, ...]:
    """Scopes of a node or a request, 1 to 32.

    Raises:
        ValueError: they have another form.
    """
    if not isinstance(value, list) or not 1 <= len(value) <= SCOPE_COUNT_MAX:
        raise ValueError(f"a list of 1 to {SCOPE_COUNT_MAX} scopes is expected")
    return tuple(map(_read_scope, value))


def _read_scope(value: object) -> TokenScope:
    if not isinstance(value, dict) or value.keys() != {"verbs", "target"}:
        raise ValueError("a scope has verbs and a target, and nothing else")
    verbs, target = value["verbs"], check_text(value["target"])
    if not isinstance(verbs, list) or not all(isinstance(verb, str) for verb in verbs):
        raise ValueError("verbs are a list of texts")
    try:
        return parse_token_scope(verbs, target)
    except DuramenError as error:
        raise ValueError(error.detail) from None


def check_note(value: object) -> str:
    """A note: printable, 400 characters at most.

    Raises:
        ValueError: it is none.
    """
    text = check_text(value)
    if len(text) > NOTE_LENGTH_MAX or not text.isprintable():
        raise ValueError(f"no printable text of at most {NOTE_LENGTH_MAX} characters")
    return text


def _read_principal(value: object) -> Principal:
    try:
        return parse_principal(check_text(value))
    except DuramenError as error:
        raise ValueError(error.detail) from None


def _check_id(value: object) -> str:
    text = check_text(value)
    if not is_token_id(text):
        raise ValueError("no id of a token")
    return text


def check_hash(value: object) -> bytes:
    """SHA-256 as 64 hexadecimal digits.

    Raises:
        ValueError: it is none.
    """
    text = check_text(value)
    if not _HASH.fullmatch(text):
        raise ValueError("no SHA-256 in hexadecimal digits")
    return bytes.fromhex(text)
