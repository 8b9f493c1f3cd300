"""A grant: a principal has a role on a scope. And the one text of each of these.

A text that is read has one meaning: nothing is decoded, folded, trimmed or normalised, so two texts
are one principal, or one scope, only if they are equal. Whether anybody of that name exists, or
what it names, is not asked here.

Called by `judgement`, `changes`, the codecs of nodes, and whoever takes a credential apart.
Source: docs/protocol/rights.md "Principals", docs/protocol/rights.md "Grants".
"""

from __future__ import annotations

import enum
import re
import unicodedata
from typing import Final, NamedTuple

from duramen.core.rights.verbs import GrantedRole
from duramen.errors import DuramenError
from duramen.texts import check_log_name, check_namespace

EVERYTHING: Final = "*"
SUBJECT_CHARACTERS_MAX: Final = 255
"""OpenID Connect allows a `sub` as many."""

TOKEN_ID_PATTERN: Final = "[a-z2-7]{16}"
"""80 bits in base32, lower case."""

_LABEL: Final = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_TOKEN: Final = re.compile(TOKEN_ID_PATTERN)
_WHOLE_TOKEN: Final = re.compile(r"(dur1_[a-z2-7]+)_[a-z2-7]+")
_ACCOUNT: Final = re.compile(
    rf"{_LABEL}/(?=.{{1,253}}\Z)[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?", re.ASCII
)
_SERVICE: Final = re.compile(r"[a-z]{1,32}/[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_ISSUER: Final = re.compile(r"[a-z](?:[a-z0-9-]{0,30}[a-z0-9])?", re.ASCII)


class PrincipalKind(enum.StrEnum):
    """By what a principal proves itself."""

    USER = "user"
    GROUP = "group"
    TOKEN = "token"
    SERVICE_ACCOUNT = "serviceaccount"
    SERVICE = "service"


_KINDS: Final = {kind.value: kind for kind in PrincipalKind}
_ROLES: Final = {role.value: role for role in GrantedRole}
"""A whole node is read at once, and an enum looks its members up ten times as slowly."""


class Principal(NamedTuple):
    """Who a grant is given to; made by `parse_principal`, which checks the name, or of parts that
    were checked by the functions below."""

    kind: PrincipalKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind.value}:{self.name}"


class GrantScope(NamedTuple):
    """What a grant is on. No namespace: the cluster with everything; no log: all of a namespace."""

    namespace: str | None = None
    log: str | None = None
    is_prefix: bool = False
    """Whether `log` is how the names begin, and not the name."""

    def __str__(self) -> str:
        if self.namespace is None:
            return EVERYTHING
        if self.log is None:
            return self.namespace
        return f"{self.namespace}/{self.log}{'*' if self.is_prefix else ''}"

    def covers(self, other: GrantScope) -> bool:
        """Whether all that `other` names, now or later, is of this scope, too."""
        if self.namespace is None:
            return True
        if self.namespace != other.namespace:
            return False
        if self.log is None:
            return True
        if self.is_prefix:
            return other.log is not None and other.log.startswith(self.log)
        return self == other


class Grant(NamedTuple):
    """Who may do what on which scope."""

    scope: GrantScope
    who: Principal
    role: GrantedRole

    def __str__(self) -> str:
        return f"{self.role} on {self.scope} to {self.who}"


class GivenGrant(NamedTuple):
    """A grant as it is stored: who gave it, and when."""

    grant: Grant
    by: Principal
    given_unix_ms: int


def parse_principal(text: str) -> Principal:
    """Read `<kind>:<name>`.

    Raises:
        DuramenError: `invalid_argument`, field `who`.
    """
    word, colon, name = text.partition(":")
    kind = _KINDS.get(word)
    if not colon or kind is None:
        kinds = ", ".join(f"{kind}:" for kind in PrincipalKind)
        raise _refuse("who", f"{_show(text)} names no principal: it begins with one of {kinds}")
    principal = Principal(kind, name)
    expected = _find_fault(principal)
    if expected is not None:
        raise _refuse("who", f"{_show(text)} names no principal: write {kind}:{expected}")
    return principal


def _show(text: str) -> str:
    """As it may be told: whoever gives a whole token by mistake finds its secret in no log."""
    return repr(_WHOLE_TOKEN.sub(r"\1_…", text)[:80])


def _find_fault(principal: Principal) -> str | None:
    """What the name should look like, unless it does."""
    name = principal.name
    issuer, _, rest = name.partition("/")
    match principal.kind:
        case PrincipalKind.USER:
            is_right = is_issuer_name(issuer) and is_visible(rest)
            return None if is_right else "ISSUER/SUBJECT, of 1 to 255 visible characters of ASCII"
        case PrincipalKind.GROUP:
            is_right = is_issuer_name(issuer) and is_group_name(rest)
            return None if is_right else "ISSUER/GROUP, of 1 to 255 printable characters in NFC"
        case PrincipalKind.TOKEN:
            return None if is_token_id(name) else "ID, of 16 letters a to z and digits 2 to 7"
        case PrincipalKind.SERVICE_ACCOUNT:
            is_right = is_issuer_name(issuer) and is_account_name(rest)
            return None if is_right else "ISSUER/NAMESPACE/NAME"
        case PrincipalKind.SERVICE:
            return None if _SERVICE.fullmatch(name) else "ROLE/NAME as in its certificate"


def is_issuer_name(text: str) -> bool:
    """Whether an issuer may have this short name."""
    return _ISSUER.fullmatch(text) is not None


def is_token_id(text: str) -> bool:
    """Whether this may be an access token's id; what else it holds, it is no path."""
    return _TOKEN.fullmatch(text) is not None


def check_token_id(text: str) -> str:
    """The id itself, if it may be an access token's.

    Raises:
        DuramenError: `invalid_argument`, field `id`.
    """
    if not is_token_id(text):
        # Who gives a whole token in its place finds no secret in a log.
        raise _refuse("id", f"{text[:16]!r}… is no token's id: 16 letters a to z, digits 2 to 7")
    return text


def is_account_name(text: str) -> bool:
    """Whether this may be Kubernetes' `namespace/name` of a service account."""
    return _ACCOUNT.fullmatch(text) is not None


def is_visible(value: object) -> bool:
    """Whether this is a text of 1 to 255 visible characters of ASCII, none of them a space."""
    return (
        isinstance(value, str)
        and 0 < len(value) <= SUBJECT_CHARACTERS_MAX
        and value.isascii()
        and value.isprintable()
        and " " not in value
    )


def is_group_name(value: object) -> bool:
    """Whether this may name a group: printable, in one form of Unicode, no space at an end."""
    # What is not printable, or a blank at an edge, would look like another group.
    return (
        isinstance(value, str)
        and 0 < len(value) <= SUBJECT_CHARACTERS_MAX
        and value.isprintable()
        and value == value.strip(" ")
        and unicodedata.is_normalized("NFC", value)
    )


def parse_scope(text: str) -> GrantScope:
    """Read `*`, `namespace`, `namespace/log` or `namespace/prefix*`.

    Raises:
        DuramenError: `invalid_argument`, field `scope`.
    """
    if text == EVERYTHING:
        return GrantScope()
    namespace, slash, log = text.partition("/")
    is_prefix = log.endswith("*")
    log = log.removesuffix("*")
    if slash and not log:
        raise _refuse("scope", f"{text[:80]!r}: all of a namespace is written {namespace!r}")
    try:
        check_namespace(namespace)
        if not slash:
            return GrantScope(namespace)
        # The beginning of a name is itself a legal name.
        return GrantScope(namespace, check_log_name(log), is_prefix)
    except DuramenError as error:
        forms = "write *, NAMESPACE, NAMESPACE/LOG or NAMESPACE/PREFIX*"
        raise _refuse("scope", f"{forms}: {error.detail[:400]}") from None


def parse_grant(who: str, role: str, scope: str) -> Grant:
    """A grant of the three texts that it is made of.

    Raises:
        DuramenError: `invalid_argument`, with the field that is at fault.
    """
    known = _ROLES.get(role)
    if known is None:
        raise _refuse("role", f"{role[:80]!r} is no role: {', '.join(GrantedRole)} are")
    grant = Grant(parse_scope(scope), parse_principal(who), known)
    if known.is_of_cluster and grant.scope != GrantScope():
        raise _refuse(
            "scope", f"{role} is given on {EVERYTHING} alone: what it allows is of no namespace"
        )
    return grant


def _refuse(field: str, detail: str) -> DuramenError:
    return DuramenError("invalid_argument", detail, field=field)
