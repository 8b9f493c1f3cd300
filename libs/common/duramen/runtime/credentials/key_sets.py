"""JWK sets: the public keys of an issuer, each for the algorithms that it is for, and no secrets.

A key verifies by what it is, never by what a token asks for: there is no way from a text of a
token to an algorithm that its key was not made for. Keys that are not for us are passed over; a
set that tells a secret is refused, whatever else is in it. Nothing here reads a file or a clock.

Called by `key_holder` and `web_tokens`.
Source: docs/protocol/credentials.md "Keys of issuers", "JSON web tokens".
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from duramen.core.rights.grants import is_visible
from duramen.runtime.credentials.encodings import EncodingError, decode_base64url, read_object

ALGORITHMS: Final = ("ES256", "PS256", "RS256", "EdDSA")
SET_BYTES_MAX: Final = 256 << 10
KEY_COUNT_MAX: Final = 64

_COORDINATE_BYTES: Final = 32
_RSA_BITS_MIN: Final = 2_048
_RSA_BITS_MAX: Final = 4_096
_RSA_EXPONENT: Final = 65_537
_SHA256: Final = hashes.SHA256()
_PSS: Final = padding.PSS(padding.MGF1(_SHA256), salt_length=_SHA256.digest_size)
_SECRET_MEMBERS: Final = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})

PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey | ed25519.Ed25519PublicKey


class KeySetRefusedError(Exception):
    """A text is no set of keys to believe; it says which key and why, without the key."""


class _NotOursError(Exception):
    """A key is well and good, and no use here."""


class VerifyingKey(NamedTuple):
    """A public key, the algorithms that it is for, and the SHA-256 by which it is known again."""

    key_id: str
    key: PublicKey
    algorithms: frozenset[str]
    fingerprint: bytes

    def verifies(self, algorithm: str, signature: bytes, signed: bytes) -> bool:
        """Whether the key's holder has signed this, by an algorithm that the key is for."""
        if algorithm not in self.algorithms:
            return False
        try:
            _VERIFY[algorithm](self.key, signature, signed)
        except InvalidSignature:
            return False
        return True


class KeySet(NamedTuple):
    """The keys of an issuer by their ids, and why others of its set were passed over."""

    keys: Mapping[str, VerifyingKey]
    passed_over: tuple[str, ...]


def read_key_set(content: bytes) -> KeySet:
    """The keys of a JWK set that are for signatures of a kind that is known here.

    Raises:
        KeySetRefusedError: it is no such set, tells a secret, names a key twice, or has none.
    """
    if len(content) > SET_BYTES_MAX:
        raise KeySetRefusedError(f"has more than {SET_BYTES_MAX} bytes")
    try:
        rows = read_object(content).get("keys")
    except EncodingError as error:
        raise KeySetRefusedError(f"is no JWK set: {error}") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise KeySetRefusedError("is no JWK set: it has no list of objects `keys`")
    if len(rows) > KEY_COUNT_MAX:
        raise KeySetRefusedError(f"has {len(rows)} keys, and {KEY_COUNT_MAX} are allowed")
    keys: dict[str, VerifyingKey] = {}
    passed_over = []
    for number, row in enumerate(rows):
        if row.get("kty") == "oct" or not _SECRET_MEMBERS.isdisjoint(row):
            raise KeySetRefusedError(f"keys[{number}] tells a secret: publish public keys alone")
        try:
            key = _read_key(row)
        except (_NotOursError, EncodingError) as error:
            passed_over.append(f"keys[{number}]: {error}")
            continue
        if key.key_id in keys:
            raise KeySetRefusedError(f"keys[{number}] has the kid of another key: give it its own")
        keys[key.key_id] = key
    if not keys:
        why = "; ".join(passed_over[:3]) or "it is empty"
        raise KeySetRefusedError(f"has no key for signatures that is known here: {why}")
    return KeySet(keys, tuple(passed_over))


# --- Reading a key -------------------------------------------------------------------------------


def _read_key(row: Mapping[str, Any]) -> VerifyingKey:
    key_id, operations = row.get("kid"), row.get("key_ops", ["verify"])
    if not is_visible(key_id):
        raise _NotOursError("no kid of 1 to 255 visible characters")
    if row.get("use", "sig") != "sig" or not isinstance(operations, list):
        raise _NotOursError("not for signatures")
    if "verify" not in operations:
        raise _NotOursError("not for verification")
    read = _READ.get(str(row.get("kty")))
    if read is None:
        raise _NotOursError("another kind of key")
    try:
        key, algorithms = read(row)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _NotOursError(str(error) or "no such key") from None
    wanted = row.get("alg")
    if wanted is not None:
        algorithms = algorithms & {str(wanted)}
    if not algorithms:
        raise _NotOursError("for another algorithm")
    spki = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert isinstance(key_id, str), "it is visible"
    return VerifyingKey(key_id, key, algorithms, hashlib.sha256(spki).digest())


def _read_ec(row: Mapping[str, Any]) -> tuple[PublicKey, frozenset[str]]:
    if row.get("crv") != "P-256":
        raise _NotOursError("another curve than P-256")
    x, y = (_read_bytes(row, name, _COORDINATE_BYTES) for name in ("x", "y"))
    numbers = ec.EllipticCurvePublicNumbers(int.from_bytes(x), int.from_bytes(y), ec.SECP256R1())
    return numbers.public_key(), frozenset({"ES256"})


def _read_rsa(row: Mapping[str, Any]) -> tuple[PublicKey, frozenset[str]]:
    modulus, exponent = (_read_number(row, name) for name in ("n", "e"))
    if not _RSA_BITS_MIN <= modulus.bit_length() <= _RSA_BITS_MAX or modulus % 2 == 0:
        raise _NotOursError(f"no modulus of {_RSA_BITS_MIN} to {_RSA_BITS_MAX} bits")
    if exponent != _RSA_EXPONENT:
        raise _NotOursError(f"another exponent than {_RSA_EXPONENT}")
    return rsa.RSAPublicNumbers(exponent, modulus).public_key(), frozenset({"RS256", "PS256"})


def _read_okp(row: Mapping[str, Any]) -> tuple[PublicKey, frozenset[str]]:
    if row.get("crv") != "Ed25519":
        raise _NotOursError("another curve than Ed25519")
    point = _read_bytes(row, "x", _COORDINATE_BYTES)
    return ed25519.Ed25519PublicKey.from_public_bytes(point), frozenset({"EdDSA"})


def _read_bytes(row: Mapping[str, Any], name: str, length: int | None = None) -> bytes:
    text = row.get(name)
    content = decode_base64url(text) if isinstance(text, str) else b""
    if not content or length not in (None, len(content)):
        raise _NotOursError(f"{name} is not as long as it should be")
    return content


def _read_number(row: Mapping[str, Any], name: str) -> int:
    content = _read_bytes(row, name)
    if content[0] == 0:
        raise _NotOursError(f"{name} begins with zeros")
    return int.from_bytes(content)


_READ: Final[Mapping[str, Callable[[Mapping[str, Any]], tuple[PublicKey, frozenset[str]]]]] = {
    "EC": _read_ec,
    "RSA": _read_rsa,
    "OKP": _read_okp,
}


# --- Verifying -----------------------------------------------------------------------------------


def _verify_es256(key: PublicKey, signature: bytes, signed: bytes) -> None:
    assert isinstance(key, ec.EllipticCurvePublicKey), "the key's algorithms say so"
    if len(signature) != 2 * _COORDINATE_BYTES:
        raise InvalidSignature
    halves = signature[:_COORDINATE_BYTES], signature[_COORDINATE_BYTES:]
    # Zeros, and numbers beyond the curve's order, are OpenSSL's to refuse; a test holds it.
    encoded = encode_dss_signature(*map(int.from_bytes, halves))
    key.verify(encoded, signed, ec.ECDSA(_SHA256))


def _verify_rs256(key: PublicKey, signature: bytes, signed: bytes) -> None:
    assert isinstance(key, rsa.RSAPublicKey), "the key's algorithms say so"
    key.verify(signature, signed, padding.PKCS1v15(), _SHA256)


def _verify_ps256(key: PublicKey, signature: bytes, signed: bytes) -> None:
    assert isinstance(key, rsa.RSAPublicKey), "the key's algorithms say so"
    key.verify(signature, signed, _PSS, _SHA256)


def _verify_eddsa(key: PublicKey, signature: bytes, signed: bytes) -> None:
    assert isinstance(key, ed25519.Ed25519PublicKey), "the key's algorithms say so"
    key.verify(signature, signed)


_VERIFY: Final[Mapping[str, Callable[[PublicKey, bytes, bytes], None]]] = {
    "ES256": _verify_es256,
    "RS256": _verify_rs256,
    "PS256": _verify_ps256,
    "EdDSA": _verify_eddsa,
}
