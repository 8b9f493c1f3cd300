"""The header by which a caller names itself to one receiver, made and verified.

A compact JWS whose only key is that of the leaf it carries. There is one encoding of each header:
what does not encode back to itself is refused, so nothing hides in spellings. Clocks come from the
caller; nothing here is kept (`callers` keeps what was verified).

Called by `callers`. Source: docs/protocol/identity.md "The caller's header".
"""

from __future__ import annotations

import datetime as dt
from base64 import b64decode, b64encode
from typing import Any, Final, NamedTuple

import orjson
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)
from cryptography.hazmat.primitives.serialization import Encoding

from duramen.runtime.credentials.encodings import (
    EncodingError,
    decode_base64url,
    encode_base64url,
)
from duramen.runtime.identity.certificates import (
    UNREADABLE,
    Bundle,
    CertificateRefusedError,
    Key,
    judge_leaf,
)
from duramen.runtime.identity.names import Identity

HEADER_BYTES_MAX: Final = 3_000
FOR_CLIENT_BYTES_MAX: Final = 12_288
"""With `for`: the claims of a web token, of which groups are the most, have fewer."""

GROUP_COUNT_MAX: Final = 128
LIFE_S_MAX: Final = 300
SKEW_S_MAX: Final = 300
"""Between the clocks of a caller and a receiver: a node whose clock is off keeps its logs, so it
must be heard."""

_TYPE: Final = "duramen-identity+jws"
_PIECE_COUNT: Final = 3
_COORDINATE_BYTES: Final = 32
_CURVE: Final = ec.ECDSA(hashes.SHA256())


class CallerRefusedError(Exception):
    """A header names nobody; why is for the receiver's own log, never for the answer.

    Attributes:
        is_late: the two clocks are too far apart, so the answer says the receiver's time.
    """

    def __init__(self, text: str, *, is_late: bool = False) -> None:
        super().__init__(text)
        self.is_late = is_late


class NamedClient(NamedTuple):
    """The client in whose name a proxy calls; `groups` as the principal's issuer calls them."""

    principal: str
    groups: tuple[str, ...]
    until_s: int


class Caller(NamedTuple):
    """Who calls, and until when its header says so, in seconds since 1970.

    `leaf_until_s` is when its certificate ends, and `client` in whose name it calls, if not in its
    own.
    """

    identity: Identity
    until_s: float
    leaf_until_s: float
    client: NamedClient | None = None


class Parts(NamedTuple):
    """A header taken apart, of which nothing is verified yet."""

    signed: bytes
    leaf_der: bytes
    signature: bytes
    audience: str
    issued_s: int
    expires_s: int
    client: NamedClient | None


def make_header(
    key: Key,
    leaf: x509.Certificate,
    audience: Identity,
    now: dt.datetime,
    client: NamedClient | None = None,
) -> str:
    """A header for one receiver, from this second on, for all the life that one may have."""
    issued_s = int(now.timestamp())
    head = _format_head(b64encode(leaf.public_bytes(Encoding.DER)).decode())
    body = _format_body(str(audience), issued_s + LIFE_S_MAX, issued_s, client)
    signed = b".".join((_encode(head), _encode(body)))
    signature = b"".join(
        number.to_bytes(_COORDINATE_BYTES)
        for number in decode_dss_signature(key.sign(signed, _CURVE))
    )
    header = b".".join((signed, _encode(signature))).decode()
    assert len(header) <= _most_bytes(client), "a leaf's size is bounded, and a token's"
    return header


def take_apart(header: str) -> Parts:
    """The parts of a header of the one form.

    Raises:
        CallerRefusedError: it has another one.
    """
    if len(header) > FOR_CLIENT_BYTES_MAX or not header.isascii():
        raise CallerRefusedError(f"a header of {len(header)} characters")
    pieces = header.encode().split(b".")
    if len(pieces) != _PIECE_COUNT:
        raise CallerRefusedError(f"a header of {len(pieces)} pieces")
    protected, payload, signature = map(_decode, pieces)
    head, body = _parse(protected), _parse(payload)
    chain = head.get("x5c")
    der = chain[0] if isinstance(chain, list) and len(chain) == 1 else None
    if not isinstance(der, str) or _format_head(der) != protected:
        raise CallerRefusedError("another kind of token")
    audience, expires_s, issued_s = (body.get(name) for name in ("aud", "exp", "iat"))
    client = _read_client(body["for"]) if "for" in body else None
    if len(header) > _most_bytes(client):
        raise CallerRefusedError(f"a header of {len(header)} characters")
    # A bool is an int to isinstance.
    if (
        not isinstance(audience, str)
        or type(expires_s) is not int
        or type(issued_s) is not int
        or _format_body(audience, expires_s, issued_s, client) != payload
    ):
        raise CallerRefusedError("other claims")
    signed = b".".join(pieces[:2])
    return Parts(signed, _decode_chain(der), signature, audience, issued_s, expires_s, client)


def judge_times(parts: Parts, now_s: float) -> None:
    """See that a header is alive now.

    Raises:
        CallerRefusedError: it lives too long, or not now.
    """
    if not 0 < parts.expires_s - parts.issued_s <= LIFE_S_MAX:
        raise CallerRefusedError(f"it lives for {parts.expires_s - parts.issued_s} s")
    if parts.issued_s > now_s + SKEW_S_MAX or now_s >= parts.expires_s + SKEW_S_MAX:
        raise CallerRefusedError(
            f"it holds from {parts.issued_s} to {parts.expires_s}, and here it is {now_s:.0f}",
            is_late=True,
        )


def read_caller_leaf(
    der: bytes, domain: str, bundle: Bundle, now: dt.datetime
) -> tuple[x509.Certificate, Identity]:
    """The leaf of a header and whose it is, once it is found valid and of this cluster.

    Raises:
        CallerRefusedError: it is no certificate, not valid, or a stranger's.
    """
    try:
        leaf = x509.load_der_x509_certificate(der)
        return leaf, judge_leaf(leaf, bundle, domain, now)
    except (*UNREADABLE, CertificateRefusedError) as error:
        raise CallerRefusedError(f"its certificate: {error}") from None


def verify_signature(parts: Parts, leaf: x509.Certificate) -> None:
    """See that the holder of a leaf's key has made a header.

    Raises:
        CallerRefusedError: somebody else has.
    """
    if len(parts.signature) != 2 * _COORDINATE_BYTES:
        raise CallerRefusedError(f"a signature of {len(parts.signature)} bytes")
    key = leaf.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey), "the leaf was judged"
    halves = parts.signature[:_COORDINATE_BYTES], parts.signature[_COORDINATE_BYTES:]
    try:
        key.verify(encode_dss_signature(*map(int.from_bytes, halves)), parts.signed, _CURVE)
    except InvalidSignature:
        raise CallerRefusedError("its signature is another key's") from None


def _encode(content: bytes) -> bytes:
    return encode_base64url(content).encode()


def _decode(piece: bytes) -> bytes:
    try:
        content = decode_base64url(piece.decode())
    except EncodingError as error:
        raise CallerRefusedError(str(error)) from None
    if not piece:
        raise CallerRefusedError("an empty piece")
    return content


def _decode_chain(text: str) -> bytes:
    """Standard base64, as `x5c` has it."""
    try:
        content = b64decode(text, validate=True)
    except ValueError:
        content = b""
    if not text or b64encode(content).decode() != text:
        raise CallerRefusedError("no canonical base64")
    return content


def _format_head(der: str) -> bytes:
    return orjson.dumps({"alg": "ES256", "typ": _TYPE, "x5c": [der]})


def _format_body(audience: str, expires_s: int, issued_s: int, client: NamedClient | None) -> bytes:
    if client is None:
        return orjson.dumps({"aud": audience, "exp": expires_s, "iat": issued_s})
    named = {"groups": client.groups, "principal": client.principal, "until": client.until_s}
    return orjson.dumps({"aud": audience, "exp": expires_s, "for": named, "iat": issued_s})


def _most_bytes(client: NamedClient | None) -> int:
    return HEADER_BYTES_MAX if client is None else FOR_CLIENT_BYTES_MAX


def _read_client(value: object) -> NamedClient:
    """The member `for`; that it has no other members shows when it is encoded again."""
    found = value if isinstance(value, dict) else {}
    principal, groups, until_s = (found.get(name) for name in ("principal", "groups", "until"))
    if (
        not isinstance(principal, str)
        or not isinstance(groups, list)
        or len(groups) > GROUP_COUNT_MAX
        or not all(isinstance(group, str) for group in groups)
        or type(until_s) is not int
    ):
        raise CallerRefusedError("a client of another form")
    return NamedClient(principal, tuple(groups), until_s)


def _parse(content: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise CallerRefusedError("no JSON object")
    return value
