"""The node of an API token: the hash of its text, what it may do, for whom, and until when.

Written once and never changed: who revokes a token removes its node. So a reader that has read a
name need not read it again.

Called by the table of tokens and by whoever issues one.
Source: docs/protocol/metadata.md "Nodes", docs/protocol/credentials.md "API tokens".
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from duramen.wire.nodes.fields import (
    MetadataJsonError,
    check_text,
    check_whole,
    encode_node,
    read_node,
    take_field,
)

SCOPE_COUNT_MAX: Final = 32
VERB_COUNT_MAX: Final = 32
TEXT_LENGTH_MAX: Final = 400
"""Characters of a target, an issuer's principal and a note: of a namespace and a log's name 319."""

ID_PATTERN: Final = "[a-z2-7]{16}"
"""80 bits in base32, lower case."""

HASH_BYTES: Final = 32

_VERB: Final = re.compile("[a-z]{1,16}")
_HASH: Final = re.compile(f"[0-9a-f]{{{2 * HASH_BYTES}}}")
_ID: Final = re.compile(ID_PATTERN)


class Scope(NamedTuple):
    """What may be done, and to what.

    `target` is `*`, `namespace`, `namespace/prefix*` or `namespace/log`. A verb that nobody knows
    opens nothing.
    """

    verbs: frozenset[str]
    target: str


@dataclass(frozen=True, slots=True)
class AccessToken:
    """An API token as it is kept: its secret is not in it.

    `parent_id` is the token that it was made with, if it was. Times are in seconds since 1970.
    """

    token_id: str
    secret_hash: bytes
    issued_by: str
    scopes: tuple[Scope, ...]
    created_s: int
    expires_s: int
    note: str = ""
    parent_id: str | None = None


def is_token_id(text: str) -> bool:
    """Whether this may be a token's id; what else it holds, it is no path."""
    return _ID.fullmatch(text) is not None


def is_verbs(verbs: Collection[str]) -> bool:
    """Whether these may be the verbs of a scope."""
    return 1 <= len(verbs) <= VERB_COUNT_MAX and all(map(_VERB.fullmatch, verbs))


def encode_access_token(token: AccessToken) -> bytes:
    """Encode `access-tokens/<id>`."""
    fields: dict[str, Any] = {
        "id": token.token_id,
        "sha256": token.secret_hash.hex(),
        "issued_by": token.issued_by,
        "scopes": [{"verbs": sorted(one.verbs), "target": one.target} for one in token.scopes],
        "created_unix_s": token.created_s,
        "expires_unix_s": token.expires_s,
        "note": token.note,
    }
    if token.parent_id is not None:
        fields["parent"] = token.parent_id
    return encode_node(fields)


def read_access_token(data: bytes) -> AccessToken:
    """Read `access-tokens/<id>`.

    Fields that are not known refuse the node: a later version may mean less by it than this one
    would read, and nobody writes it anew.

    Raises:
        MetadataJsonError: the node is no token's.
    """
    document = read_node(data)
    try:
        token = AccessToken(
            token_id=take_field(document, "id", _check_id),
            secret_hash=take_field(document, "sha256", _check_hash),
            issued_by=take_field(document, "issued_by", _check_short),
            scopes=take_field(document, "scopes", _read_scopes),
            created_s=take_field(document, "created_unix_s", check_whole),
            expires_s=take_field(document, "expires_unix_s", check_whole),
            note=take_field(document, "note", _check_short),
            parent_id=take_field(document, "parent", _check_id) if "parent" in document else None,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise MetadataJsonError(f"the node is no token's: {error}") from error
    if document:
        raise MetadataJsonError(f"the node has fields that are not known: {sorted(document)[:3]}")
    return token


def _read_scopes(value: object) -> tuple[Scope, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= SCOPE_COUNT_MAX:
        raise ValueError(f"1 to {SCOPE_COUNT_MAX} scopes are expected")
    return tuple(map(_read_scope, value))


def _read_scope(value: object) -> Scope:
    if not isinstance(value, dict) or value.keys() != {"verbs", "target"}:
        raise ValueError("a scope has verbs and a target")
    verbs = value["verbs"]
    if not isinstance(verbs, list) or not all(isinstance(verb, str) for verb in verbs):
        raise ValueError("verbs are a list of texts")
    if not is_verbs(verbs):
        raise ValueError(f"1 to {VERB_COUNT_MAX} verbs are expected, words in lower case")
    return Scope(frozenset(verbs), _check_short(value["target"]))


def _check_short(value: object) -> str:
    text = check_text(value)
    if len(text) > TEXT_LENGTH_MAX or not text.isprintable():
        raise ValueError(f"no printable text of at most {TEXT_LENGTH_MAX} characters")
    return text


def _check_id(value: object) -> str:
    text = check_text(value)
    if not is_token_id(text):
        raise ValueError("no id of a token")
    return text


def _check_hash(value: object) -> bytes:
    text = check_text(value)
    if not _HASH.fullmatch(text):
        raise ValueError("no SHA-256 in hexadecimal digits")
    return bytes.fromhex(text)
