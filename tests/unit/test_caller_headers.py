"""The header by which a node names itself: who is believed, who is not, and what is kept of it.

Each hostile header is one that some verifier of tokens takes. None is believed, and none leaves a
row behind. Source: docs/protocol/identity.md "The caller's header".
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from typing import Any, Final

import orjson
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from duramen.runtime.identity.callers import (
    FIRST_COUNT_PER_LEAF,
    ROW_COUNT_MAX,
    ROW_COUNT_PER_LEAF,
    Callers,
    OwnHeaders,
    TooManyHeadersError,
)
from duramen.runtime.identity.certificates import (
    LEAF_LIFE,
    Key,
    list_revoked,
    make_authority,
    make_key,
)
from duramen.runtime.identity.header import (
    HEADER_BYTES_MAX,
    LIFE_S_MAX,
    SKEW_S_MAX,
    CallerRefusedError,
)
from duramen.runtime.identity.names import make_identity
from tests.unit.base64_spellings import spare_bits
from tests.unit.callers import (
    AUTHORITY,
    BUNDLE,
    CALLER,
    HELD,
    KEY,
    NOW_S,
    OTHER,
    RECEIVER,
    after,
    hold,
)
from tests.unit.identities import DOMAIN, NOW


def encode(content: bytes) -> str:
    return urlsafe_b64encode(content).rstrip(b"=").decode()


def der(leaf: x509.Certificate = HELD.leaf) -> str:
    return b64encode(leaf.public_bytes(Encoding.DER)).decode()


def sign(signed: str, key: Key = KEY) -> bytes:
    numbers = decode_dss_signature(key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
    return b"".join(number.to_bytes(32) for number in numbers)


def forge(
    head: dict[str, Any] | None = None, body: dict[str, Any] | None = None, *, key: Key = KEY
) -> str:
    """A header of ours, but for the fields that are given; well signed."""
    whole = {"alg": "ES256", "typ": "duramen-identity+jws", "x5c": [der()]} | (head or {})
    claims = {"aud": str(RECEIVER), "exp": NOW_S + 300, "iat": NOW_S} | (body or {})
    left = {name: value for name, value in whole.items() if value is not None}
    kept = {name: value for name, value in claims.items() if value is not None}
    return seal(orjson.dumps(left), orjson.dumps(kept), key)


def seal(head: bytes, body: bytes, key: Key = KEY) -> str:
    signed = f"{encode(head)}.{encode(body)}"
    return f"{signed}.{encode(sign(signed, key))}"


def test_a_header_is_believed_by_the_one_that_it_is_meant_for() -> None:
    header = OwnHeaders(HELD).give(RECEIVER, NOW)
    assert header == forge()[: len(header.rpartition(".")[0])] + header[header.rindex(".") :]
    callers = Callers(RECEIVER, BUNDLE)
    assert callers.find(header, NOW).identity == CALLER
    assert callers.find(header, after(1)).identity == CALLER
    assert callers.statistics()["verified"] == 1, "the second call is one look"
    assert Callers(RECEIVER, BUNDLE).find(forge(), NOW).identity == CALLER
    with pytest.raises(CallerRefusedError, match="meant for"):
        Callers(OTHER, BUNDLE).find(header, NOW)


def replace_piece(number: int, change: Callable[[str], str]) -> str:
    pieces = forge().split(".")
    pieces[number] = change(pieces[number])
    return ".".join(pieces)


def hmac_by_public_key() -> str:
    head = {"alg": "HS256", "typ": "duramen-identity+jws", "x5c": [der()]}
    body = {"aud": str(RECEIVER), "exp": NOW_S + 300, "iat": NOW_S}
    signed = f"{encode(orjson.dumps(head))}.{encode(orjson.dumps(body))}"
    secret = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return f"{signed}.{encode(hmac.digest(secret, signed.encode(), hashlib.sha256))}"


def der_signature() -> str:
    signed = forge().rpartition(".")[0]
    return f"{signed}.{encode(KEY.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))}"


STRANGER: Final = make_authority(DOMAIN, NOW)
ABROAD: Final = make_identity("f" * 32, "sequencer", "sequencer-0")

HOSTILE: Final[dict[str, Callable[[], str]]] = {
    "nothing": lambda: "",
    "no token": lambda: "x",
    "two pieces": lambda: forge().rpartition(".")[0],
    "four pieces": lambda: forge() + ".AA",
    "no signature": lambda: forge().rpartition(".")[0] + ".",
    "alg none": lambda: forge({"alg": "none"}),
    "alg none, unsigned": lambda: forge({"alg": "none"}).rpartition(".")[0] + ".",
    "alg of another case": lambda: forge({"alg": "es256"}),
    "HS256 by the public key": hmac_by_public_key,
    "another type": lambda: forge({"typ": "JWT"}),
    "no type": lambda: forge({"typ": None}),
    "embedded key": lambda: forge({"jwk": {"kty": "EC"}}),
    "url of a key": lambda: forge({"x5u": "https://a.example/key.pem"}),
    "url of keys": lambda: forge({"jku": "https://a.example/keys"}),
    "kid with a path": lambda: forge({"kid": "../../dev/null"}),
    "crit": lambda: forge({"crit": ["exp"]}),
    "zip": lambda: forge({"zip": "DEF"}),
    "no certificate": lambda: forge({"x5c": []}),
    "two certificates": lambda: forge({"x5c": [der(), der(AUTHORITY.certificate)]}),
    "a certificate that is text": lambda: forge({"x5c": der()}),
    "a certificate in the other base64": lambda: forge({"x5c": [encode(b"\xfb\xff" * 9)]}),
    "a padded certificate": lambda: forge({"x5c": [der() + "===="]}),
    "a certificate and more": lambda: forge(
        {"x5c": [b64encode(HELD.leaf.public_bytes(Encoding.DER) + b"x").decode()]}
    ),
    "the CA itself": lambda: forge({"x5c": [der(AUTHORITY.certificate)]}, key=AUTHORITY.key),
    "a stranger's certificate": lambda: forge({"x5c": [der(hold(by=STRANGER).leaf)]}),
    "another cluster's": lambda: forge({"x5c": [der(hold(ABROAD).leaf)]}),
    "another one's certificate": lambda: forge({"x5c": [der(hold(OTHER, make_key()).leaf)]}),
    "another key": lambda: forge(key=make_key()),
    "a signature in DER": der_signature,
    "a padded signature": lambda: forge() + "=",
    "a signature with a line end": lambda: forge() + "\n",
    "a longer signature": lambda: replace_piece(2, lambda _: encode(sign("x") + b"x")),
    "a signature of zeros": lambda: replace_piece(2, lambda _: encode(bytes(64))),
    "spare bits in the signature": lambda: replace_piece(2, spare_bits),
    "spare bits in the claims": lambda: replace_piece(1, spare_bits),
    "changed claims": lambda: replace_piece(
        1, lambda _: encode(orjson.dumps({"aud": str(OTHER), "exp": NOW_S + 300, "iat": NOW_S}))
    ),
    "no audience": lambda: forge(body={"aud": None}),
    "another audience": lambda: forge(body={"aud": str(OTHER)}),
    "audiences": lambda: forge(body={"aud": [str(RECEIVER)]}),
    "an audience and more": lambda: forge(body={"aud": f"{RECEIVER} "}),
    "no end": lambda: forge(body={"exp": None}),
    "no beginning": lambda: forge(body={"iat": None}),
    "a far end": lambda: forge(body={"exp": NOW_S + 10**9}),
    "an end before its beginning": lambda: forge(body={"exp": NOW_S - 1}),
    "an end that is no number": lambda: forge(body={"exp": str(NOW_S + 300)}),
    "an end that is a fraction": lambda: forge(body={"exp": NOW_S + 300.5}),
    "an end that is true": lambda: forge(body={"iat": 0, "exp": True}),
    "an endless number": lambda: seal(
        orjson.dumps({"alg": "ES256", "typ": "duramen-identity+jws", "x5c": [der()]}),
        b'{"aud":"%s","exp":1e999,"iat":0}' % str(RECEIVER).encode(),
    ),
    "past": lambda: forge(body={"iat": NOW_S - 600, "exp": NOW_S - 300}),
    "far ahead": lambda: forge(body={"iat": NOW_S + 301, "exp": NOW_S + 601}),
    "more claims": lambda: forge(body={"sub": "root"}),
    "in place of a client": lambda: forge(body={"for": "root"}),
    "a key twice": lambda: seal(
        b'{"alg":"none","alg":"ES256","typ":"duramen-identity+jws","x5c":["%s"]}' % der().encode(),
        orjson.dumps({"aud": str(RECEIVER), "exp": NOW_S + 300, "iat": NOW_S}),
    ),
    "keys in another order": lambda: seal(
        orjson.dumps({"typ": "duramen-identity+jws", "alg": "ES256", "x5c": [der()]}),
        orjson.dumps({"iat": NOW_S, "aud": str(RECEIVER), "exp": NOW_S + 300}),
    ),
    "spaces in the JSON": lambda: seal(
        orjson.dumps(
            {"alg": "ES256", "typ": "duramen-identity+jws", "x5c": [der()]},
            option=orjson.OPT_INDENT_2,
        ),
        orjson.dumps({"aud": str(RECEIVER), "exp": NOW_S + 300, "iat": NOW_S}),
    ),
    "deep JSON": lambda: seal(b"[" * 900 + b"]" * 900, b"{}"),
    "no JSON": lambda: seal(b"\xff", b"{}"),
    "a list": lambda: seal(b"[]", b"[]"),
    "too long": lambda: forge() + "A" * HEADER_BYTES_MAX,
    "a megabyte": lambda: "A" * (1 << 20),
    "letters that look alike": lambda: forge().replace("e", "\u0435"),
    "a null": lambda: forge() + "\0",
    "two headers": lambda: f"{forge()}, {forge()}",
    "JSON serialization": lambda: orjson.dumps({"payload": "", "signatures": []}).decode(),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_header_is_not_believed_and_leaves_nothing(name: str) -> None:
    callers = Callers(RECEIVER, BUNDLE)
    with pytest.raises(CallerRefusedError):
        callers.find(HOSTILE[name](), NOW)
    told = callers.statistics()
    assert (told["callers"], told["headers"], told["refused"]) == (0, 0, 1)


def test_there_are_enough_hostile_ones() -> None:
    assert len(HOSTILE) >= 60


def test_a_revoked_leaf_is_not_believed_any_more_once_its_list_is_known() -> None:
    callers, header = Callers(RECEIVER, BUNDLE), forge()
    assert callers.find(header, NOW).identity == CALLER
    revoked = list_revoked(AUTHORITY, {HELD.leaf.serial_number: NOW}, NOW)
    callers.trust(BUNDLE._replace(lists=(revoked,)))
    with pytest.raises(CallerRefusedError, match="is revoked"):
        callers.find(header, NOW)


@pytest.mark.parametrize("off_s", [-SKEW_S_MAX + 1, 0, SKEW_S_MAX])
def test_clocks_may_differ_by_minutes(off_s: int) -> None:
    """Whose clock is off keeps its session and its logs: it has to be heard."""
    header = OwnHeaders(HELD).give(RECEIVER, after(off_s))
    assert Callers(RECEIVER, BUNDLE).find(header, NOW).identity == CALLER


def test_a_caller_goes_by_the_clock_of_who_refused_it() -> None:
    own, callers = OwnHeaders(HELD), Callers(RECEIVER, BUNDLE)
    hours_ahead = after(3 * 3_600)
    with pytest.raises(CallerRefusedError) as refusal:
        callers.find(own.give(RECEIVER, hours_ahead), NOW)
    assert refusal.value.is_late
    own.shift(RECEIVER, NOW_S, hours_ahead)
    assert callers.find(own.give(RECEIVER, hours_ahead), NOW).identity == CALLER


def test_a_header_is_sent_for_half_of_its_life_and_believed_for_all_of_it() -> None:
    own, callers = OwnHeaders(HELD), Callers(RECEIVER, BUNDLE)
    first = own.give(RECEIVER, NOW)
    assert own.give(RECEIVER, after(LIFE_S_MAX / 2 - 1)) == first
    assert own.give(RECEIVER, after(LIFE_S_MAX / 2)) != first
    assert own.give(OTHER, NOW) != first
    last_s = LIFE_S_MAX + SKEW_S_MAX - 1
    assert callers.find(first, after(last_s)).identity == CALLER
    with pytest.raises(CallerRefusedError):
        callers.find(first, after(last_s + 1))
    assert callers.statistics()["headers"] == 0


def test_a_leaf_that_ends_takes_its_headers_with_it() -> None:
    callers = Callers(RECEIVER, BUNDLE)
    end = NOW + LEAF_LIFE
    header = OwnHeaders(HELD).give(RECEIVER, end - dt.timedelta(seconds=10))
    assert callers.find(header, end - dt.timedelta(seconds=1)).identity == CALLER
    with pytest.raises(CallerRefusedError, match="has expired"):
        callers.find(header, end)


def test_a_renewed_certificate_makes_other_headers() -> None:
    own = OwnHeaders(HELD)
    first = own.give(RECEIVER, NOW)
    own.renew(hold(key=make_key()))
    second = own.give(RECEIVER, NOW)
    callers = Callers(RECEIVER, BUNDLE)
    assert first != second
    assert {callers.find(header, NOW).identity for header in (first, second)} == {CALLER}
    assert not own.forget(RECEIVER, first), "another one was made meanwhile"
    assert own.give(RECEIVER, after(1)) == second
    assert own.forget(RECEIVER, second)
    assert own.give(RECEIVER, after(1)) != second


def test_who_makes_many_headers_pushes_out_its_own_and_is_held_up() -> None:
    callers = Callers(RECEIVER, BUNDLE)
    honest = OwnHeaders(hold(OTHER, make_key())).give(RECEIVER, NOW)
    callers.find(honest, NOW)
    for count in range(FIRST_COUNT_PER_LEAF):
        callers.find(forge(body={"exp": NOW_S + 1 + count}), NOW)
    with pytest.raises(TooManyHeadersError):
        callers.find(forge(), NOW)
    assert callers.statistics()["headers"] == ROW_COUNT_PER_LEAF + 1
    verified = callers.statistics()["verified"]
    assert callers.find(honest, NOW).identity == OTHER
    assert callers.statistics()["verified"] == verified, "its row is there"
    assert callers.find(forge(), after(1)).identity == CALLER, "one a second is its due"


def test_what_a_thief_of_a_leaf_sends_costs_its_holder_nothing() -> None:
    """A leaf is no secret: each receiver has it."""
    callers = Callers(RECEIVER, BUNDLE)
    callers.find(forge(), NOW)
    for number in range(2 * FIRST_COUNT_PER_LEAF):
        with pytest.raises(CallerRefusedError, match="another key"):
            callers.find(forge(body={"exp": NOW_S + 1 + number}, key=make_key()), NOW)
    assert callers.find(forge(body={"exp": NOW_S + 299}), NOW).identity == CALLER


def test_the_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ROW_COUNT_MAX == 4_096
    monkeypatch.setattr("duramen.runtime.identity.callers.ROW_COUNT_MAX", 5)
    callers = Callers(RECEIVER, BUNDLE)
    headers = []
    for number in range(9):
        identity = make_identity(DOMAIN, "readproxy", f"r{number}")
        headers.append(OwnHeaders(hold(identity, make_key())).give(RECEIVER, NOW))
        callers.find(headers[0], NOW)
        callers.find(headers[-1], NOW)
    assert callers.statistics()["headers"] == callers.statistics()["callers"] == 5
    verified = callers.statistics()["verified"]
    callers.find(headers[0], NOW)
    assert callers.statistics()["verified"] == verified, "the one used last stays"
