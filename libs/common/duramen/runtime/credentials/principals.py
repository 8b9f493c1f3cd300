"""Who a credential names: a principal, its groups, and what a token carries with it.

One text for each principal: a kind, and behind the first colon a name. What somebody else chose
(a subject, a group) comes last in it, and is compared as it is, so that no two credentials meet in
one text by folding or decoding. What a principal may do is no matter of this folder.

Called by whoever judges a credential. Source: docs/protocol/credentials.md "Who it is".
"""

from __future__ import annotations

import unicodedata
from typing import Final, NamedTuple

from duramen.core.rights.grants import Principal, PrincipalKind
from duramen.wire.nodes.access_tokens import Scope

NAME_LENGTH_MAX: Final = 255
"""Characters of a subject, by OpenID Connect; of a group and a key's id as well."""

CHALLENGE: Final = 'Bearer realm="duramen"'
"""`WWW-Authenticate` of every refusal: it says what is wanted, and nothing of what was wrong."""

_REASON_LENGTH_MAX: Final = 200


class CredentialRefusedError(Exception):
    """A credential names nobody: 401, with `CHALLENGE` and without this text, which is for the log.

    The text is cut to 200 characters, and holds nothing that a log would take for another line.
    """

    def __init__(self, reason: str) -> None:
        shown = "".join(one if one.isprintable() else "?" for one in reason[:_REASON_LENGTH_MAX])
        super().__init__(shown)


class NothingKnownError(CredentialRefusedError):
    """Nobody can be known now, whatever is shown: 503, since a 401 has a good credential thrown
    away."""


class Bearer(NamedTuple):
    """Who calls, until when that may be believed, and what the credential itself allows.

    `until_s` is in seconds since 1970. `scopes` come on top of what is granted to the principal
    and its groups; web tokens have none.
    """

    principal: Principal
    until_s: int
    groups: tuple[Principal, ...] = ()
    scopes: tuple[Scope, ...] = ()


def name_user(issuer_name: str, subject: str) -> Principal:
    """The user whom an issuer of this short name calls so."""
    return Principal(PrincipalKind.USER, f"{issuer_name}/{subject}")


def name_group(issuer_name: str, group: str) -> Principal:
    """The group that an issuer of this short name calls so."""
    return Principal(PrincipalKind.GROUP, f"{issuer_name}/{group}")


def name_service_account(issuer_name: str, namespace: str, account: str) -> Principal:
    """A service account of the Kubernetes whose API server has this short name."""
    return Principal(PrincipalKind.SERVICE_ACCOUNT, f"{issuer_name}/{namespace}/{account}")


def name_token(token_id: str) -> Principal:
    """An API token, which stands for itself."""
    return Principal(PrincipalKind.TOKEN, token_id)


def is_visible(value: object) -> bool:
    """Whether this is a text of 1 to 255 visible characters of ASCII, none of them a space."""
    return (
        isinstance(value, str)
        and 0 < len(value) <= NAME_LENGTH_MAX
        and value.isascii()
        and value.isprintable()
        and " " not in value
    )


def is_group_name(value: object) -> bool:
    """Whether this may name a group: printable, in one form of Unicode, no space at an end."""
    return (
        isinstance(value, str)
        and 0 < len(value) <= NAME_LENGTH_MAX
        and value.isprintable()
        and value == value.strip()
        and unicodedata.is_normalized("NFC", value)
    )
