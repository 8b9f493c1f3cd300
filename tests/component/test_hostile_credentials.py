"""Credentials that some verifier takes: none is believed here, each costs little, all look alike.

Each is wrong in one thing, and well signed where it can be. Source: docs/protocol/credentials.md
"JSON web tokens", "API tokens", "Who it is".
"""

from __future__ import annotations

import hashlib
import hmac
import string
import time
from base64 import b64encode, urlsafe_b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import orjson
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from duramen.runtime.credentials.issuers import Issuer, IssuerKind, KeysFrom
from duramen.runtime.credentials.key_sets import read_key_set
from duramen.runtime.credentials.principals import Bearer, CredentialRefusedError
from duramen.runtime.credentials.web_tokens import (
    judge_claims,
    take_web_token_apart,
    verify_token,
)
from tests.component.credential_world import CredentialWorld, play
from tests.unit.base64_spellings import spare_bits
from tests.unit.web_token_forge import (
    AUDIENCE,
    CORP_SET,
    EC,
    ISSUER,
    K8S_AUDIENCE,
    NOW_S,
    RSA,
    SIGNERS,
    STRANGER,
    claim,
    encode,
    forge,
    forge_account,
    seal,
    sign,
    to_jwk,
)
from tests.waiting import wait_for

CPU_S_MAX: Final = 0.005
HEAD: Final = {"alg": "ES256", "kid": "ec-1", "typ": "JWT"}
OTHER_ISSUER: Final = {"iss": "https://other.example"}
ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Of P-256: a half that is as large names no signature."""


def mac(secret: bytes, algorithm: str = "HS256") -> str:
    signed = f"{encode(orjson.dumps(HEAD | {'alg': algorithm}))}.{encode(orjson.dumps(claim()))}"
    return f"{signed}.{encode(hmac.digest(secret, signed.encode(), hashlib.sha256))}"


def public_pem(key: Any = RSA) -> bytes:
    found: bytes = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return found


def change(number: int, how: Callable[[str], str], text: str = "") -> str:
    pieces = (text or forge()).split(".")
    pieces[number] = how(pieces[number])
    return ".".join(pieces)


def with_signature(signature: bytes) -> str:
    return change(2, lambda _: encode(signature))


def in_der() -> str:
    signed = forge().rpartition(".")[0]
    return f"{signed}.{encode(EC.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))}"


def raw(body: bytes) -> str:
    """Claims as they are written here, well signed."""
    return seal(orjson.dumps(HEAD), body)


def raw_time(exp: str) -> str:
    body = f'{{"iss":"{ISSUER}","aud":"{AUDIENCE}","sub":"alice","iat":{NOW_S},"exp":{exp}}}'
    return raw(body.encode())


def twice(name: str) -> str:
    """A claim that stands twice, the second time as it should be."""
    return raw(b'{"%s":"root",' % name.encode() + orjson.dumps(claim())[1:])


def standard_base64() -> str:
    """A token whose base64 has `+` or `/` where it should have `-` or `_`."""
    while True:
        text = forge()
        if "-" in text or "_" in text:
            return text.replace("-", "+").replace("_", "/")


WEB: Final[dict[str, Callable[[], str]]] = {
    "nothing": lambda: "",
    "dots": lambda: "..",
    "no token": lambda: "x",
    "one piece": lambda: forge().partition(".")[0],
    "two pieces": lambda: forge().rpartition(".")[0],
    "four pieces": lambda: f"{forge()}.AA",
    "five pieces, as encrypted ones": lambda: f"{forge()}.AA.AA",
    "no signature": lambda: change(2, lambda _: ""),
    "no claims": lambda: change(1, lambda _: ""),
    "JSON serialization": lambda: orjson.dumps({"payload": "", "signatures": []}).decode(),
    "alg none": lambda: forge({"alg": "none"}),
    "alg none, unsigned": lambda: change(2, lambda _: "", forge({"alg": "none"})),
    "alg None": lambda: change(2, lambda _: "", forge({"alg": "nOnE"})),
    "alg in lower case": lambda: forge({"alg": "es256"}),
    "alg with a space": lambda: forge({"alg": "ES256 "}),
    "no alg": lambda: forge({"alg": None}),
    "alg that is a list": lambda: forge({"alg": ["ES256"]}),
    "alg that is a number": lambda: forge({"alg": 256}),
    "HS256 by the public key in PEM": lambda: mac(public_pem(EC)),
    "HS256 by the public key of RSA": lambda: mac(public_pem()),
    "HS256 by the row of the set": lambda: mac(orjson.dumps(to_jwk(EC, "ec-1"))),
    "HS256 by nothing": lambda: mac(b""),
    "RS256 that is a hash": lambda: mac(public_pem(), "RS256"),
    "ES256K": lambda: forge({"alg": "ES256K"}),
    "ES384": lambda: forge({"alg": "ES384"}),
    "RS512": lambda: forge({"alg": "RS512"}, algorithm="RS256"),
    "ES256 with the RSA key's id": lambda: forge({"kid": "rsa-1"}),
    "RS256 with the curve's key": lambda: forge({"alg": "RS256"}),
    "EdDSA with the curve's key": lambda: forge({"alg": "EdDSA"}),
    "ES256 signed by RSA": lambda: forge({"kid": "rsa-1"}, key=RSA),
    "PS256 that is RS256": lambda: forge({"alg": "PS256"}, algorithm="RS256"),
    "RS256 that is PS256": lambda: forge({"alg": "RS256"}, algorithm="PS256"),
    "no kid": lambda: forge({"kid": None}),
    "unknown kid": lambda: forge({"kid": "ec-2"}),
    "empty kid": lambda: forge({"kid": ""}),
    "kid with a path": lambda: forge({"kid": "../../../../dev/null"}),
    "kid with a query": lambda: forge({"kid": "x' UNION SELECT 'secret"}),
    "kid that is a URL": lambda: forge({"kid": "https://evil.example/keys"}),
    "kid with a null": lambda: forge({"kid": "ec-1\0"}),
    "kid of another case": lambda: forge({"kid": "EC-1"}),
    "kid that is a list": lambda: forge({"kid": ["ec-1"]}),
    "kid that is an object": lambda: forge({"kid": {"ec-1": 1}}),
    "kid of 6,000 letters": lambda: forge({"kid": "k" * 6_000}),
    "kid of another issuer": lambda: forge({"kid": "ec-other"}, key=STRANGER),
    "another issuer's key under our kid": lambda: forge(key=STRANGER),
    "embedded key": lambda: forge({"jwk": to_jwk(STRANGER, "x")}, key=STRANGER),
    "embedded key beside a good one": lambda: forge({"jwk": to_jwk(EC, "ec-1")}),
    "URL of keys": lambda: forge({"jku": "https://evil.example/keys"}),
    "URL of a certificate": lambda: forge({"x5u": "https://evil.example/cert"}),
    "embedded certificate": lambda: forge({"x5c": [b64encode(b"x").decode()]}),
    "crit": lambda: forge({"crit": ["exp"]}),
    "empty crit": lambda: forge({"crit": []}),
    "unencoded payload": lambda: forge({"b64": False, "crit": ["b64"]}),
    "zip": lambda: forge({"zip": "DEF"}),
    "claims in the header": lambda: forge({"iss": ISSUER}),
    "no type": lambda: forge({"typ": None}),
    "type in lower case": lambda: forge({"typ": "jwt"}),
    "type of an identity": lambda: forge({"typ": "duramen-identity+jws"}),
    "type of a logout": lambda: forge({"typ": "logout+jwt"}),
    "type that is null": lambda: seal(
        b'{"alg":"ES256","kid":"ec-1","typ":null}', orjson.dumps(claim())
    ),
    "no audience": lambda: forge(body={"aud": None}),
    "another audience": lambda: forge(body={"aud": "duramen/other"}),
    "audience and a space": lambda: forge(body={"aud": f"{AUDIENCE} "}),
    "audience of another case": lambda: forge(body={"aud": AUDIENCE.upper()}),
    "audiences, ours among them": lambda: forge(body={"aud": [AUDIENCE, "account"]}),
    "our audience twice": lambda: forge(body={"aud": [AUDIENCE, AUDIENCE]}),
    "no audiences": lambda: forge(body={"aud": []}),
    "audience that is an object": lambda: forge(body={"aud": {AUDIENCE: 1}}),
    "audience of another cluster": lambda: forge(body={"aud": K8S_AUDIENCE}),
    "no issuer": lambda: forge(body={"iss": None}),
    "unknown issuer": lambda: forge(body={"iss": "https://evil.example"}),
    "issuer with a slash more": lambda: forge(body={"iss": f"{ISSUER}/"}),
    "issuer of another case": lambda: forge(body={"iss": ISSUER.upper()}),
    "issuer that is a list": lambda: forge(body={"iss": [ISSUER]}),
    "issuer that only begins so": lambda: forge(body={"iss": f"{ISSUER}.evil.example"}),
    "another listed issuer, by our key": lambda: forge(body=OTHER_ISSUER),
    "algorithm that this issuer does not use": lambda: forge(body=OTHER_ISSUER, algorithm="RS256"),
    "no subject": lambda: forge(body={"sub": None}),
    "empty subject": lambda: forge(body={"sub": ""}),
    "subject that is a number": lambda: forge(body={"sub": 0}),
    "subject with a line end": lambda: forge(body={"sub": "alice\n"}),
    "subject with a space": lambda: forge(body={"sub": "alice bob"}),
    "subject that looks alike": lambda: forge(body={"sub": "\u0430lice"}),
    "subject in full width": lambda: forge(body={"sub": "\uff41lice"}),
    "subject turned round": lambda: forge(body={"sub": "\u202eecila"}),
    "half of a surrogate": lambda: raw(
        orjson.dumps(claim(sub="X")).replace(b'"X"', b'"\\ud800"')
    ),
    "subject of 256 letters": lambda: forge(body={"sub": "a" * 256}),
    "no end": lambda: forge(body={"exp": None}),
    "no beginning": lambda: forge(body={"iat": None}),
    "ended": lambda: forge(body={"iat": NOW_S - 3_600, "exp": NOW_S - 30}),
    "far end": lambda: forge(body={"exp": NOW_S + 10**9}),
    "end after a day and a second": lambda: forge(body={"exp": NOW_S + 86_401}),
    "end before its beginning": lambda: forge(body={"exp": NOW_S - 1}),
    "end at its beginning": lambda: forge(body={"exp": NOW_S}),
    "made in the future": lambda: forge(body={"iat": NOW_S + 31}),
    "not before the future": lambda: forge(body={"nbf": NOW_S + 31}),
    "not before a text": lambda: forge(body={"nbf": "0"}),
    "not before true": lambda: forge(body={"nbf": True}),
    "end that is a text": lambda: raw_time(f'"{NOW_S + 60}"'),
    "end that is a fraction": lambda: raw_time(f"{NOW_S + 60}.5"),
    "end that is a whole fraction": lambda: raw_time(f"{NOW_S + 60}.0"),
    "end with an exponent": lambda: raw_time("2e9"),
    "end that is true": lambda: forge(body={"iat": 0, "exp": True}),
    "end that is null": lambda: raw_time("null"),
    "end below zero": lambda: raw_time("-1"),
    "end that is endless": lambda: raw_time("1e999"),
    "end that is Infinity": lambda: raw_time("Infinity"),
    "end that is NaN": lambda: raw_time("NaN"),
    "end of 5,000 digits": lambda: raw_time("9" * 5_000),
    "end of 17 digits": lambda: raw_time("9" * 17),
    "end beyond the calendar": lambda: raw_time("9" * 16),
    "groups that are a text": lambda: forge(body={"groups": "admins"}),
    "groups that are null": lambda: raw(orjson.dumps(claim() | {"groups": None})),
    "groups, one a number": lambda: forge(body={"groups": ["a", 1]}),
    "group with a space at its end": lambda: forge(body={"groups": ["admins "]}),
    "group of another form": lambda: forge(body={"groups": ["Caf\u0065\u0301"]}),
    "group that hides a letter": lambda: forge(body={"groups": ["ad\u200bmins"]}),
    "129 groups": lambda: forge(body={"groups": [str(number) for number in range(129)]}),
    "issuer twice": lambda: twice("iss"),
    "subject twice": lambda: twice("sub"),
    "alg twice": lambda: seal(
        b'{"alg":"none","alg":"ES256","kid":"ec-1","typ":"JWT"}', orjson.dumps(claim())
    ),
    "a member twice, deep inside": lambda: raw(
        b'{"x":[{"y":1,"\\u0079":2}],' + orjson.dumps(claim())[1:]
    ),
    "deep lists": lambda: raw(b"[" * 2_000 + b"]" * 2_000),
    "deep objects": lambda: raw(b'{"a":' * 900 + b"1" + b"}" * 900),
    "deep audience": lambda: forge(body={"aud": orjson.loads(b"[" * 250 + b"]" * 250)}),
    "no JSON": lambda: raw(b"\xff\xfe"),
    "UTF-16": lambda: raw(orjson.dumps(claim()).decode().encode("utf-16")),
    "a byte order mark": lambda: raw(b"\xef\xbb\xbf" + orjson.dumps(claim())),
    "something behind the JSON": lambda: raw(orjson.dumps(claim()) + b"{}"),
    "a list of claims": lambda: raw(b"[" + orjson.dumps(claim()) + b"]"),
    "a text of claims": lambda: raw(b'"claims"'),
    "single quotes": lambda: raw(orjson.dumps(claim()).replace(b'"', b"'")),
    "padded signature": lambda: f"{forge()}=",
    "signature with a line end": lambda: f"{forge()}\n",
    "signature with a space": lambda: f"{forge()} ",
    "signature with a letter that is none": lambda: change(2, lambda p: f"{p[:9]}*{p[9:]}"),
    "padded claims": lambda: change(1, lambda piece: f"{piece}=="),
    "line end in the claims": lambda: change(1, lambda piece: f"{piece[:8]}\n{piece[8:]}"),
    "spare bits in the signature": lambda: change(2, spare_bits),
    "spare bits in the header": lambda: change(0, spare_bits),
    "the other base64": standard_base64,
    "signature in DER": in_der,
    "signature of zeros": lambda: with_signature(bytes(64)),
    "no r": lambda: with_signature(bytes(32) + sign("ES256", EC, b"x")[32:]),
    "no s": lambda: with_signature(sign("ES256", EC, b"x")[:32] + bytes(32)),
    "r that is the order": lambda: with_signature(ORDER.to_bytes(32) * 2),
    "signature of 63 bytes": lambda: change(2, lambda p: encode(urlsafe_b64decode(p + "==")[:63])),
    "signature of 65 bytes": lambda: change(
        2, lambda p: encode(urlsafe_b64decode(p + "==") + b"\0")
    ),
    "signature of 96 bytes": lambda: with_signature(bytes(96)),
    "signature of something else": lambda: with_signature(sign("ES256", EC, b"x")),
    "RSA signature of zeros": lambda: change(
        2, lambda _: encode(bytes(256)), forge(algorithm="RS256")
    ),
    "RSA signature of one": lambda: change(
        2, lambda _: encode(bytes(255) + b"\1"), forge(algorithm="RS256")
    ),
    "EdDSA signature of zeros": lambda: change(
        2, lambda _: encode(bytes(64)), forge(algorithm="EdDSA")
    ),
    "other claims": lambda: change(1, lambda _: encode(orjson.dumps(claim(sub="root")))),
    "another header": lambda: change(0, lambda _: encode(orjson.dumps(HEAD | {"typ": "at+jwt"}))),
    "too long by a letter": lambda: forge().ljust(8_193, "A"),
    "claims of 9,000 letters": lambda: forge(body={"x": "a" * 9_000}),
    "a megabyte": lambda: "A" * (1 << 20),
    "a megabyte of dots": lambda: "." * (1 << 20),
    "8,000 dots": lambda: "." * 8_000,
    "letters that look alike": lambda: forge().replace("e", "\u0435"),
    "a null": lambda: f"{forge()}\0",
    "a surrogate": lambda: f"{forge()}\udc80",
    "two tokens": lambda: f"{forge()}, {forge()}",
    "an account whose two names differ": lambda: forge_account(
        {"sub": "system:serviceaccount:shop:root"}
    ),
    "an account of another namespace": lambda: forge_account(
        {"sub": "system:serviceaccount:kube-system:cart"}
    ),
    "an account without what binds it": lambda: forge_account({"kubernetes.io": None}),
    "an account with a text that binds it": lambda: forge_account({"kubernetes.io": "shop"}),
    "an account with an empty name": lambda: forge_account(
        {
            "sub": "system:serviceaccount:shop:",
            "kubernetes.io": {"namespace": "shop", "serviceaccount": {"name": ""}},
        }
    ),
    "an account with a slash": lambda: forge_account(
        {
            "sub": "system:serviceaccount:shop:a/b",
            "kubernetes.io": {"namespace": "shop", "serviceaccount": {"name": "a/b"}},
        }
    ),
    "a node of Kubernetes": lambda: forge_account({"sub": "system:node:n1"}),
    "an account's token for the API server": lambda: forge_account(
        {"aud": ["https://kubernetes.default.svc.cluster.local"]}
    ),
    "an account's token for us and the API server": lambda: forge_account(
        {"aud": [K8S_AUDIENCE, "https://kubernetes.default.svc.cluster.local"]}
    ),
    "an account's token for another cluster": lambda: forge_account({"aud": ["duramen/events/c2"]}),
    "an account's token of a year": lambda: forge_account({"exp": NOW_S + 365 * 86_400}),
}  # fmt: skip


def upper_once(text: str) -> str:
    """One letter of the secret in upper case."""
    secret = text[22:]
    letter = next(one for one in secret if one.isalpha())
    return text[:22] + secret.replace(letter, letter.upper(), 1)


A_SECRET: Final = "a" * 52
API: Final[dict[str, Callable[[str], str]]] = {
    "case of a letter changed": upper_once,
    "in upper case": lambda text: text.upper(),
    "another prefix": lambda text: "dur2_" + text[5:],
    "no prefix": lambda text: text[5:],
    "prefix in upper case": lambda text: "DUR1_" + text[5:],
    "another id": lambda text: "dur1_" + "a" * 16 + text[21:],
    "another secret": lambda text: text[:22] + A_SECRET,
    "the prefix alone": lambda text: text[:21],
    "no secret": lambda text: text[:22],
    "a secret too short": lambda text: text[:-1],
    "a secret too long": lambda text: text + "a",
    "padding": lambda text: text + "====",
    "a line end": lambda text: text + "\n",
    "a space before": lambda text: " " + text,
    "a space behind": lambda text: text + " ",
    "spare bits": lambda text: text[:-1] + chr(ord(text[-1]) + 1),
    "digits of another alphabet": lambda text: text[:22] + "\u0662" * 52,
    "digits that base32 has not": lambda text: text[:22] + "0" * 52,
    "full width": lambda text: text[:22] + "\uff41" * 52,
    "a dash instead": lambda text: text.replace("_", "-"),
    "its hash": lambda text: text[:22] + hashlib.sha256(text.encode()).hexdigest()[:52],
    "a path": lambda text: "dur1_../../cluster__" + text[22:],
    "one letter changed": lambda text: text[:30] + ("b" if text[30] == "a" else "a") + text[31:],
    "a megabyte": lambda text: text + "a" * (1 << 20),
    "quotes": lambda text: f'"{text}"',
    "a token and a web token": lambda text: f"{text}.{forge()}",
}  # fmt: skip
"""Of a token that is good: what is no token any more."""

HEADERS: Final[dict[str, Callable[[], list[str]]]] = {
    "none": list,
    "two": lambda: [f"Bearer {forge()}"] * 2,
    "an empty one": lambda: [""],
    "the scheme alone": lambda: ["Bearer"],
    "the scheme and a space": lambda: ["Bearer "],
    "no scheme": lambda: [forge()],
    "Basic": lambda: ["Basic " + b64encode(b"alice:x").decode()],
    "Basic with a token": lambda: [f"Basic {forge()}"],
    "two spaces": lambda: [f"Bearer  {forge()}"],
    "a tab": lambda: [f"Bearer\t{forge()}"],
    "a comma and another": lambda: [f"Bearer {forge()}, Bearer {forge()}"],
    "a space first": lambda: [f" Bearer {forge()}"],
    "a megabyte": lambda: ["Bearer " + "A" * (1 << 20)],
    "a scheme that only begins so": lambda: [f"BearerX {forge()}"],
}


async def refuse(world: CredentialWorld, values: list[str], now_s: float = NOW_S) -> None:
    """See that nobody is believed, by the one error, soon, and that nothing is kept."""
    costs_s = []
    for _ in range(3):
        began_s = time.thread_time()
        with pytest.raises(CredentialRefusedError) as refusal:
            await world.credentials.judge(values, now_s)
        costs_s.append(time.thread_time() - began_s)
        assert type(refusal.value) is CredentialRefusedError
        assert len(str(refusal.value)) <= 200
        assert str(refusal.value).isprintable(), "nobody writes lines into the log"
    assert min(costs_s) <= CPU_S_MAX
    assert world.web.statistics()["web_tokens"] == 0


@pytest.mark.parametrize("name", WEB)
def test_a_hostile_web_token_names_nobody(tmp_path: Path, name: str) -> None:
    async def scenario(world: CredentialWorld) -> None:
        await refuse(world, [f"Bearer {WEB[name]()}"])

    play(tmp_path, scenario)


@pytest.mark.parametrize("name", API)
def test_a_hostile_api_token_names_nobody(tmp_path: Path, name: str) -> None:
    async def scenario(world: CredentialWorld) -> None:
        text, token_id = await world.issue()
        await wait_for(lambda: world.knows(token_id))
        assert str((await world.judge(text)).principal) == f"token:{token_id}"
        await refuse(world, [f"Bearer {API[name](text)}"])

    play(tmp_path, scenario)


@pytest.mark.parametrize("name", HEADERS)
def test_a_hostile_header_names_nobody(tmp_path: Path, name: str) -> None:
    async def scenario(world: CredentialWorld) -> None:
        await refuse(world, HEADERS[name]())

    play(tmp_path, scenario)


def test_there_are_enough_of_them() -> None:
    assert len(WEB) + len(API) + len(HEADERS) >= 200


def test_what_they_were_made_from_is_good(tmp_path: Path) -> None:
    """Else the tables above would show nothing."""

    async def scenario(world: CredentialWorld) -> None:
        assert str((await world.judge(forge())).principal) == "user:corp/alice"
        account = await world.judge(forge_account())
        assert str(account.principal) == "serviceaccount:k8s/shop/cart"
        assert str((await world.judge(raw_time(str(NOW_S + 60)))).principal) == "user:corp/alice"
        other = forge({"kid": "ec-other"}, OTHER_ISSUER, key=STRANGER)
        assert str((await world.judge(other)).principal) == "user:other/alice"

    play(tmp_path, scenario)


@given(st.integers(0, 1_000), st.sampled_from(string.printable + "\u0130\u017f\u212a\0\x80"))
@settings(max_examples=400, deadline=None)
def test_no_letter_of_a_token_is_another_one(place: int, letter: str) -> None:
    """Whatever a token is changed to at one place, it is no token: not even one that means more."""
    good = GOOD[place % len(GOOD)]
    at = place % len(good)
    changed = good[:at] + letter + good[at + 1 :]
    if changed != good:
        with pytest.raises(CredentialRefusedError):
            judge_by(CORP, changed)
    assert str(judge_by(CORP, good).principal) == "user:corp/alice"


def judge_by(issuer: Issuer, text: str) -> Bearer:
    """What a process with this one issuer makes of a token, without what it keeps."""
    token = take_web_token_apart(text)
    if token.issuer != issuer.issuer:
        raise CredentialRefusedError("another issuer")
    bearer = judge_claims(token, issuer, NOW_S)
    key = KEYS.get(token.key_id)
    if key is None:
        raise CredentialRefusedError("another key")
    verify_token(token, key)
    return bearer


GOOD: Final = [forge(algorithm=algorithm) for algorithm in SIGNERS]
KEYS: Final = read_key_set(CORP_SET).keys
CORP: Final = Issuer(
    "corp", IssuerKind.OIDC, ISSUER, AUDIENCE, KeysFrom(), frozenset(SIGNERS), "groups"
)
