"""Who a credential names: a principal, its groups, and what a token carries with it.

One text for each principal: a kind, and behind the first colon a name. What somebody else chose
(a subject, a group) comes last in it, and is compared as it is, so that no two credentials meet in
one text by folding or decoding. What a principal may do is no matter of this folder.

Called by whoever judges a credential, and where a proxy tells a sequencer who asks.
Source: docs/protocol/credentials.md "Who it is".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from duramen.core.rights.grants import Principal, PrincipalKind, parse_principal
from duramen.core.rights.token_scopes import TokenScope
from duramen.errors import DuramenError
from duramen.wire.nodes.fields import check_text, check_whole

GROUP_COUNT_MAX: Final = 128

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
    """Who calls, when the credential ends, and what it allows by itself.

    `ends_s` is the credential's own end, in seconds since 1970: that travels, and bounds what is
    made with it. `review_s` is when its issuer is to be asked about it again; None: never, before
    it ends. `scopes` come on top of what is granted to the principal and its groups; web tokens
    have none. `is_forwarded`: a proxy speaks for it, which has counted the call.
    """

    principal: Principal
    ends_s: int
    groups: tuple[Principal, ...] = ()
    scopes: tuple[TokenScope, ...] = ()
    review_s: int | None = None
    is_forwarded: bool = False

    @property
    def until_s(self) -> int:
        """Until when this process may believe it without asking again."""
        return self.ends_s if self.review_s is None else min(self.ends_s, self.review_s)

    @property
    def principals(self) -> tuple[Principal, ...]:
        """Itself, then its groups: all that a grant may be given to."""
        return (self.principal, *self.groups)


def encode_bearer(bearer: Bearer) -> dict[str, Any]:
    """Who calls, as a proxy tells a sequencer: when it asks an issuer again is its own matter, and
    what an access token allows the sequencer reads in its node."""
    return {
        "principal": str(bearer.principal),
        "until_unix_s": bearer.ends_s,
        "groups": [str(group) for group in bearer.groups],
        # Sequencers of before look for it, and take a token's from its node as well.
        "scopes": [],
    }


def read_bearer(value: object) -> Bearer:
    """The inverse of `encode_bearer`; it has no scopes, whatever stands there.

    Raises:
        DuramenError: `invalid_argument`, field `caller`.
    """
    try:
        if not isinstance(value, dict):
            raise TypeError("an object is expected")
        groups = value["groups"]
        if not isinstance(groups, list) or len(groups) > GROUP_COUNT_MAX:
            raise ValueError(f"groups: a list of {GROUP_COUNT_MAX} at most")
        principal, named = read_principals(
            check_text(value["principal"]), map(check_text, groups)
        )  # fmt: skip
        return Bearer(principal, check_whole(value["until_unix_s"]), named)
    except (KeyError, TypeError, ValueError, DuramenError) as error:
        raise DuramenError("invalid_argument", f"caller: {error}", field="caller") from error


def read_principals(
    principal: str, groups: Iterable[str]
) -> tuple[Principal, tuple[Principal, ...]]:
    """Who a process says that it speaks for, and its groups: as a credential could have named it.

    Raises:
        DuramenError: `invalid_argument`: no credential names anybody so.
    """
    caller = parse_principal(principal)
    if caller.kind is PrincipalKind.GROUP:
        raise _refuse(f"{caller} calls nobody: name who does")
    issuer = caller.name.partition("/")[0]
    named = tuple(map(parse_principal, groups))
    if named and caller.kind is not PrincipalKind.USER:
        raise _refuse(f"groups of {caller}: a user alone has some")
    for group in named:
        if group.kind is not PrincipalKind.GROUP or group.name.partition("/")[0] != issuer:
            raise _refuse(f"{group} is no group of {caller}: its issuer names them")
    return caller, named


def _refuse(detail: str) -> DuramenError:
    return DuramenError("invalid_argument", detail, field="caller")


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
