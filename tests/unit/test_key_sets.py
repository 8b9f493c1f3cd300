"""JWK sets: which keys are taken, which are passed over, and which sets are refused whole.

Source: docs/protocol/credentials.md "Keys of issuers".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given
from hypothesis import strategies as st

from duramen.runtime.credentials.encodings import (
    EncodingError,
    decode_base64url,
    encode_base64url,
    read_object,
)
from duramen.runtime.credentials.key_sets import (
    KEY_COUNT_MAX,
    SET_BYTES_MAX,
    KeySetRefusedError,
    read_key_set,
)
from tests.unit.web_token_forge import (
    CORP_SET,
    EC,
    ED,
    RSA,
    SIGNERS,
    STRANGER,
    encode,
    sign,
    to_jwk,
    to_set,
    whole,
)

EC_ROW: Final = to_jwk(EC, "ec-1")
RSA_ROW: Final = to_jwk(RSA, "rsa-1")
ED_ROW: Final = to_jwk(ED, "ed-1")
BESIDE: Final = to_jwk(STRANGER, "beside")
MODULUS: Final = RSA.public_key().public_numbers().n


def without(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != name}


@pytest.mark.parametrize("algorithm", SIGNERS)
def test_a_key_verifies_by_its_own_algorithms_and_no_other(algorithm: str) -> None:
    keys = read_key_set(CORP_SET).keys
    key_id, private = SIGNERS[algorithm]
    signature = sign(algorithm, private, b"text")
    found = [
        (key.key_id, other)
        for key in keys.values()
        for other in (*SIGNERS, "none", "HS256", "")
        if key.verifies(other, signature, b"text")
    ]
    assert found == [(key_id, algorithm)]
    assert not keys[key_id].verifies(algorithm, signature, b"another text")
    assert not keys[key_id].verifies(algorithm, signature + b"\0", b"text")
    assert not keys[key_id].verifies(algorithm, b"", b"text")


def test_a_key_with_an_algorithm_is_for_that_one_alone() -> None:
    key = read_key_set(to_set(to_jwk(RSA, "rsa-1", alg="PS256"))).keys["rsa-1"]
    assert key.verifies("PS256", sign("PS256", RSA, b"x"), b"x")
    assert not key.verifies("RS256", sign("RS256", RSA, b"x"), b"x")


@pytest.mark.parametrize(
    "row",
    [
        EC_ROW | {"use": "sig", "key_ops": ["verify"], "alg": "ES256", "x5c": ["AA"]},
        RSA_ROW | {"alg": "RS256"},
        ED_ROW | {"alg": "EdDSA", "later": {"deep": 1}},
    ],
)  # fmt: skip
def test_keys_with_more_to_say_are_taken(row: dict[str, Any]) -> None:
    assert list(read_key_set(to_set(row)).keys) == [row["kid"]]


PASSED_OVER: Final[dict[str, dict[str, Any]]] = {
    "no kid": without(EC_ROW, "kid"),
    "kid that is a number": EC_ROW | {"kid": 1},
    "kid with a line end": EC_ROW | {"kid": "a\nb"},
    "kid of 256 letters": EC_ROW | {"kid": "k" * 256},
    "for encryption": RSA_ROW | {"use": "enc"},
    "use that is null": EC_ROW | {"use": None},
    "for signing alone": EC_ROW | {"key_ops": ["sign"]},
    "operations that are a text": EC_ROW | {"key_ops": "verify"},
    "another kind": EC_ROW | {"kty": "AKP"},
    "no kind": without(EC_ROW, "kty"),
    "kind of another case": EC_ROW | {"kty": "ec"},
    "P-384": EC_ROW | {"crv": "P-384"},
    "secp256k1": EC_ROW | {"crv": "secp256k1"},
    "no x": without(EC_ROW, "x"),
    "x that is padded": EC_ROW | {"x": EC_ROW["x"] + "="},
    "x of 31 bytes": EC_ROW | {"x": encode(b"x" * 31)},
    "x of 33 bytes": EC_ROW | {"x": encode(bytes(1) + b"x" * 32)},
    "not on the curve": EC_ROW | {"x": encode(bytes(31) + b"\1")},
    "the point of zeros": EC_ROW | {"x": encode(bytes(32)), "y": encode(bytes(32))},
    "ES384": EC_ROW | {"alg": "ES384"},
    "RSA-OAEP": RSA_ROW | {"alg": "RSA-OAEP"},
    "HS256 on a public key": RSA_ROW | {"alg": "HS256"},
    "alg that is a list": EC_ROW | {"alg": ["ES256"]},
    "RSA of 1,024 bits": to_jwk(rsa.generate_private_key(65_537, 1_024), "short"),
    "RSA of 4,097 bits": RSA_ROW | {"n": whole((1 << 4_096) + 1)},
    "RSA of 100,000 bits": RSA_ROW | {"n": whole((1 << 100_000) + 1)},
    "an even modulus": RSA_ROW | {"n": whole(MODULUS - 1)},
    "a modulus with zeros before it": RSA_ROW | {"n": encode(b"\0" + MODULUS.to_bytes(256))},
    "exponent 1": RSA_ROW | {"e": whole(1)},
    "exponent 3": RSA_ROW | {"e": whole(3)},
    "exponent of 2,048 bits": RSA_ROW | {"e": whole(MODULUS - 2)},
    "no exponent": without(RSA_ROW, "e"),
    "X25519": ED_ROW | {"crv": "X25519"},
    "Ed25519 of 31 bytes": ED_ROW | {"x": encode(b"x" * 31)},
}


@pytest.mark.parametrize("name", PASSED_OVER)
def test_a_key_that_is_not_for_us_is_passed_over_and_told(name: str) -> None:
    found = read_key_set(to_set(PASSED_OVER[name], BESIDE))
    assert list(found.keys) == ["beside"]
    assert len(found.passed_over) == 1
    assert found.passed_over[0].startswith("keys[0]: ")
    with pytest.raises(KeySetRefusedError, match=r"no key for signatures.*keys\[0\]"):
        read_key_set(to_set(PASSED_OVER[name]))


REFUSED: Final[dict[str, tuple[bytes, str]]] = {
    "a secret key": (to_set({"kty": "oct", "k": "AA", "kid": "a"}, BESIDE), "tells a secret"),
    "a secret key without its secret": (to_set({"kty": "oct", "kid": "a"}, BESIDE), "a secret"),
    "a private key": (to_set(EC_ROW | {"d": "AA"}, BESIDE), "tells a secret"),
    "a private key for encryption": (to_set(RSA_ROW | {"use": "enc", "p": "AA"}, BESIDE), "secret"),
    "two keys of one kid": (to_set(EC_ROW, BESIDE | {"kid": "ec-1"}), "the kid of another key"),
    "none": (to_set(), "it is empty"),
    "too many": (to_set(*[BESIDE] * (KEY_COUNT_MAX + 1)), "65 keys"),
    "too long": (CORP_SET.ljust(SET_BYTES_MAX + 1), "more than"),
    "a key": (orjson.dumps(EC_ROW), "no list"),
    "a list": (b"[]", "no JSON object"),
    "keys by name": (orjson.dumps({"keys": {"a": EC_ROW}}), "no list"),
    "keys that are texts": (orjson.dumps({"keys": ["a"]}), "no list"),
    "keys twice": (b'{"keys":[],' + CORP_SET[1:], "stands twice"),
    "PEM": (b"-----BEGIN PUBLIC KEY-----", "no JSON"),
    "nothing": (b"", "no JSON"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_set_that_is_wrong_as_a_whole_is_refused(name: str) -> None:
    content, complaint = REFUSED[name]
    with pytest.raises(KeySetRefusedError, match=complaint):
        read_key_set(content)


def test_a_key_is_known_again_by_what_it_is() -> None:
    first = read_key_set(to_set(EC_ROW)).keys["ec-1"]
    again = read_key_set(to_set(EC_ROW | {"use": "sig"})).keys["ec-1"]
    other = read_key_set(to_set(BESIDE | {"kid": "ec-1"})).keys["ec-1"]
    assert first.fingerprint == again.fingerprint != other.fingerprint


@given(st.binary(max_size=200))
def test_bytes_have_one_text(content: bytes) -> None:
    text = encode_base64url(content)
    assert decode_base64url(text) == content


@given(st.text(max_size=60))
def test_what_decodes_is_what_it_encodes_to(text: str) -> None:
    try:
        content = decode_base64url(text)
    except EncodingError:
        return
    assert encode_base64url(content) == text


@given(
    st.dictionaries(
        st.text(),
        st.recursive(
            st.none() | st.booleans() | st.integers(-(10**15), 10**15) | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=20,
        ),
    )
)
def test_an_object_is_read_as_it_was_written(value: dict[str, Any]) -> None:
    try:
        content = orjson.dumps(value)
    except TypeError:  # half of a surrogate
        return
    if content.count(b"[") + content.count(b"{") <= 256:
        assert read_object(content) == value


@given(st.binary(max_size=300))
def test_no_bytes_raise_anything_else(content: bytes) -> None:
    try:
        assert isinstance(read_object(content), dict)
    except EncodingError:
        return
