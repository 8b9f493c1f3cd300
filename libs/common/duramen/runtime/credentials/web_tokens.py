"""JSON web tokens, taken apart and judged against the issuer's row: all but whose key it is.

A compact JWS of one form. What its header does not need is refused rather than passed over, so no
token makes us follow, fetch or unpack anything. The clock comes from the caller; keys, caches and
what is fetched are others' matter. Nothing here is believed before `verify_token`.

Called by `web_bearers`. Source: docs/protocol/credentials.md "JSON web tokens".
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from duramen.core.rights.grants import Principal, is_account_name, is_group_name, is_visible
from duramen.runtime.credentials.encodings import EncodingError, decode_base64url, read_object
from duramen.runtime.credentials.issuers import Issuer, IssuerKind
from duramen.runtime.credentials.key_sets import VerifyingKey
from duramen.runtime.credentials.principals import (
    GROUP_COUNT_MAX,
    Bearer,
    CredentialRefusedError,
    name_group,
    name_service_account,
    name_user,
)

TOKEN_LENGTH_MAX: Final = 8_192
LIFE_S_MAX: Final = 86_400
SKEW_S_MAX: Final = 30

_PIECE_COUNT: Final = 3
_TYPES: Final = ("JWT", "at+jwt")
_HEADER_MEMBERS: Final = frozenset({"alg", "kid", "typ", "x5t", "x5t#S256"})
_ACCOUNT_PREFIX: Final = "system:serviceaccount:"
_ACCOUNT_CLAIM: Final = "kubernetes.io"
_DATE_S_MAX: Final = 253_402_300_799
"""The last second of the year 9999: later ones cannot be told in the log."""


class WebToken(NamedTuple):
    """A token taken apart, of which nothing is verified."""

    signed: bytes
    signature: bytes
    algorithm: str
    key_id: str
    has_type: bool
    issuer: str
    claims: Mapping[str, Any]


def take_web_token_apart(text: str) -> WebToken:
    """The parts of a token of the one form.

    Raises:
        CredentialRefusedError: it has another one.
    """
    if len(text) > TOKEN_LENGTH_MAX or not text.isascii():
        raise CredentialRefusedError(f"a web token of {len(text)} characters, or not of ASCII")
    pieces = text.split(".")
    if len(pieces) != _PIECE_COUNT:
        raise CredentialRefusedError(f"a web token of {len(pieces)} pieces")
    try:
        head, claims = (read_object(decode_base64url(piece)) for piece in pieces[:2])
        signature = decode_base64url(pieces[2])
    except EncodingError as error:
        raise CredentialRefusedError(f"a web token: {error}") from None
    others = head.keys() - _HEADER_MEMBERS
    if others:
        raise CredentialRefusedError(f"a web token with {min(others)!r} in its header")
    if "typ" in head and head["typ"] not in _TYPES:
        raise CredentialRefusedError(f"a web token of type {head['typ']!r}")
    algorithm, key_id, issuer = head.get("alg"), head.get("kid"), claims.get("iss")
    if not isinstance(algorithm, str) or not is_visible(key_id) or not isinstance(issuer, str):
        raise CredentialRefusedError("a web token without alg, kid and iss as texts")
    signed = f"{pieces[0]}.{pieces[1]}".encode()
    return WebToken(signed, signature, algorithm, str(key_id), "typ" in head, issuer, claims)


def judge_claims(token: WebToken, issuer: Issuer, now_s: float) -> Bearer:
    """Whom a token names, if its issuer signed it: that is not known here.

    Raises:
        CredentialRefusedError: it is not for us, not for now, or not of the issuer's form.
    """
    if token.algorithm not in issuer.algorithms:
        raise CredentialRefusedError(f"{issuer.name}: algorithm {token.algorithm!r}")
    if not token.has_type and issuer.kind is not IssuerKind.KUBERNETES:
        raise CredentialRefusedError(f"{issuer.name}: a web token without a type")
    audience = token.claims.get("aud")
    if audience not in (issuer.audience, [issuer.audience]):
        raise CredentialRefusedError(f"{issuer.name}: meant for {audience!r}")
    until_s = _judge_times(token.claims, issuer.name, now_s)
    subject = token.claims.get("sub")
    if not is_visible(subject):
        raise CredentialRefusedError(f"{issuer.name}: subject {subject!r}")
    if issuer.kind is IssuerKind.KUBERNETES:
        return Bearer(_read_account(issuer.name, str(subject), token.claims), until_s)
    groups = _read_groups(issuer, token.claims)
    return Bearer(name_user(issuer.name, str(subject)), until_s, groups)


def verify_token(token: WebToken, key: VerifyingKey) -> None:
    """See that the holder of a key has signed a token, by an algorithm that the key is for.

    Raises:
        CredentialRefusedError: somebody else has, or nobody.
    """
    if not key.verifies(token.algorithm, token.signature, token.signed):
        raise CredentialRefusedError("its signature is another key's, or another algorithm's")


def _judge_times(claims: Mapping[str, Any], issuer_name: str, now_s: float) -> int:
    """Until when a token may be believed, the clocks' difference included."""
    issued_s, expires_s = _read_time(claims, "iat"), _read_time(claims, "exp")
    begins_s = max(issued_s, _read_time(claims, "nbf") if "nbf" in claims else 0)
    if not 0 < expires_s - issued_s <= LIFE_S_MAX:
        raise CredentialRefusedError(f"{issuer_name}: it lives for {expires_s - issued_s} s")
    if begins_s > now_s + SKEW_S_MAX:
        raise CredentialRefusedError(
            f"{issuer_name}: not yet valid: it begins at {_format(begins_s)}, and this machine's "
            f"clock says {_format(int(now_s))}"
        )
    if now_s >= expires_s + SKEW_S_MAX:
        raise CredentialRefusedError(
            f"{issuer_name}: expired at {_format(expires_s)}, and this machine's clock says "
            f"{_format(int(now_s))}"
        )
    return expires_s + SKEW_S_MAX


def _read_time(claims: Mapping[str, Any], name: str) -> int:
    value = claims.get(name)
    # A bool is an int to isinstance.
    if type(value) is not int or not 0 <= value <= _DATE_S_MAX:
        raise CredentialRefusedError(f"{name} is no whole number of seconds: {value!r}")
    return value


def _format(unix_s: int) -> str:
    return f"{dt.datetime.fromtimestamp(unix_s, dt.UTC):%Y-%m-%d %H:%M:%SZ}"


def _read_groups(issuer: Issuer, claims: Mapping[str, Any]) -> tuple[Principal, ...]:
    groups = claims.get(issuer.groups_claim, [])
    if not isinstance(groups, list) or len(groups) > GROUP_COUNT_MAX:
        raise CredentialRefusedError(f"{issuer.name}: no list of {GROUP_COUNT_MAX} groups at most")
    for group in groups:
        if not is_group_name(group):
            raise CredentialRefusedError(f"{issuer.name}: a group {group!r}")
    return tuple(name_group(issuer.name, group) for group in dict.fromkeys(groups))


def _read_account(issuer_name: str, subject: str, claims: Mapping[str, Any]) -> Principal:
    """The service account, which stands in the token twice."""
    bound = claims.get(_ACCOUNT_CLAIM)
    account = bound.get("serviceaccount") if isinstance(bound, dict) else None
    if not isinstance(bound, dict) or not isinstance(account, dict):
        raise CredentialRefusedError(f"{issuer_name}: bound to no service account")
    names = bound.get("namespace"), account.get("name")
    pieces = subject.removeprefix(_ACCOUNT_PREFIX).split(":")
    if not subject.startswith(_ACCOUNT_PREFIX) or pieces != list(names) or "" in pieces:
        raise CredentialRefusedError(f"{issuer_name}: {subject!r} is not the account {names!r}")
    if not is_account_name("/".join(pieces)):
        raise CredentialRefusedError(f"{issuer_name}: no service account is called {subject!r}")
    return name_service_account(issuer_name, *pieces)
