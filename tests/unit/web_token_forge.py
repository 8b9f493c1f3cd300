"""Web tokens made to order: keys of every algorithm, JWK sets of them, and tokens well signed.

`forge` makes a good token but for what it is given, so that a test changes one thing. Used by tests
of this layer and of components. Source: docs/protocol/credentials.md "JSON web tokens".
"""

from __future__ import annotations

import time
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from typing import Any, Final

import orjson
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

NOW_S: Final = int(time.time())
LIFE_S: Final = 12 * 3_600
"""Of a good token: a run of all tests begins at `NOW_S`, and is not over in an hour."""
ISSUER: Final = "https://login.example.com/realms/corp"
AUDIENCE: Final = "duramen/events"
K8S_ISSUER: Final = "https://kubernetes.default.svc.cluster.local"
K8S_AUDIENCE: Final = "duramen/events/c1"

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey

EC: Final = ec.generate_private_key(ec.SECP256R1())
RSA: Final = rsa.generate_private_key(65_537, 2_048)
ED: Final = ed25519.Ed25519PrivateKey.generate()
STRANGER: Final = ec.generate_private_key(ec.SECP256R1())
"""A key of nobody's, or of another issuer's."""

SIGNERS: Final[Mapping[str, tuple[str, PrivateKey]]] = {
    "ES256": ("ec-1", EC),
    "RS256": ("rsa-1", RSA),
    "PS256": ("rsa-1", RSA),
    "EdDSA": ("ed-1", ED),
}
"""Algorithm → the id and key that `forge` signs with."""


def encode(content: bytes) -> str:
    return urlsafe_b64encode(content).rstrip(b"=").decode()


def whole(number: int) -> str:
    return encode(number.to_bytes((number.bit_length() + 7) // 8))


def to_jwk(key: PrivateKey, key_id: str, **more: Any) -> dict[str, Any]:
    """The public half of a key as a row of a set."""
    if isinstance(key, ec.EllipticCurvePrivateKey):
        point = key.public_key().public_numbers()
        x, y = (encode(number.to_bytes(32)) for number in (point.x, point.y))
        return {"kty": "EC", "crv": "P-256", "x": x, "y": y, "kid": key_id} | more
    if isinstance(key, rsa.RSAPrivateKey):
        numbers = key.public_key().public_numbers()
        n, e = whole(numbers.n), whole(numbers.e)
        return {"kty": "RSA", "n": n, "e": e, "kid": key_id} | more
    point_bytes = key.public_key().public_bytes_raw()
    return {"kty": "OKP", "crv": "Ed25519", "x": encode(point_bytes), "kid": key_id} | more


def to_set(*rows: Mapping[str, Any]) -> bytes:
    return orjson.dumps({"keys": rows})


CORP_SET: Final = to_set(to_jwk(EC, "ec-1"), to_jwk(RSA, "rsa-1"), to_jwk(ED, "ed-1"))


def sign(algorithm: str, key: PrivateKey, signed: bytes) -> bytes:
    if isinstance(key, ec.EllipticCurvePrivateKey):
        halves = decode_dss_signature(key.sign(signed, ec.ECDSA(hashes.SHA256())))
        return b"".join(half.to_bytes(32) for half in halves)
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return key.sign(signed)
    if algorithm == "PS256":
        pss = padding.PSS(padding.MGF1(hashes.SHA256()), salt_length=32)
        return key.sign(signed, pss, hashes.SHA256())
    return key.sign(signed, padding.PKCS1v15(), hashes.SHA256())


def claim(**more: Any) -> dict[str, Any]:
    """The claims of a good token, but for those given; None leaves one out."""
    good = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "iat": NOW_S, "exp": NOW_S + LIFE_S}
    return {name: value for name, value in (good | more).items() if value is not None}


def forge(
    head: Mapping[str, Any] | None = None,
    body: Mapping[str, Any] | None = None,
    *,
    algorithm: str = "ES256",
    key: PrivateKey | None = None,
) -> str:
    """A good token, but for the members that are given; None leaves one out. Well signed."""
    key_id, own = SIGNERS[algorithm]
    header = {"alg": algorithm, "kid": key_id, "typ": "JWT"} | dict(head or {})
    kept = {name: value for name, value in header.items() if value is not None}
    return seal(orjson.dumps(kept), orjson.dumps(claim(**(body or {}))), algorithm, key or own)


def seal(head: bytes, body: bytes, algorithm: str = "ES256", key: PrivateKey = EC) -> str:
    """A token of these two texts, signed."""
    signed = f"{encode(head)}.{encode(body)}"
    return f"{signed}.{encode(sign(algorithm, key, signed.encode()))}"


def forge_account(
    body: Mapping[str, Any] | None = None, head: Mapping[str, Any] | None = None
) -> str:
    """A token as Kubernetes' API server makes it: without a type, the account in it twice."""
    good = {
        "iss": K8S_ISSUER,
        "aud": [K8S_AUDIENCE],
        "sub": "system:serviceaccount:shop:cart",
        "nbf": NOW_S,
        "jti": "1",
        "kubernetes.io": {
            "namespace": "shop",
            "serviceaccount": {"name": "cart", "uid": "u1"},
            "pod": {"name": "cart-0", "uid": "u2"},
        },
    }
    return forge({"typ": None, **(head or {})}, good | dict(body or {}), algorithm="RS256")
