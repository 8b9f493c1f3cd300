"""An issuer as cert-manager has them, without cert-manager: signs what a Certificate asks for.

It does what cert-manager's CA issuer does with the fields that are used: a new key, the subject and
the names as asked, the usages and no others, `ca.crt` of the issuer's present CA. A leaf begins at
the moment and says nothing of being no CA, which is the least that may come. `mount` puts a pod's
volume into a folder as a kubelet does.

Used by `test_requests`. Source: docs/kubernetes/security.md "cert-manager".
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from duramen.runtime.identity.certificates import Authority
from duramen.runtime.identity.folder import encode_key

_PURPOSES: Final = {
    "server auth": ExtendedKeyUsageOID.SERVER_AUTH,
    "client auth": ExtendedKeyUsageOID.CLIENT_AUTH,
}
_DURATION: Final = re.compile(r"(\d+)h(\d+)m0s")


def make_issuer(name: str, now: dt.datetime) -> Authority:
    """A CA that names no cluster, as people make one for cert-manager."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    usage = {"key_cert_sign": True, "crl_sign": True, "digital_signature": True}
    certificate = (
        _begin(subject, subject, key.public_key(), now, dt.timedelta(days=365))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_make_usage(**usage), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Authority(key, certificate)


def sign(manifest: Mapping[str, Any], issuer: Authority, now: dt.datetime) -> dict[str, bytes]:
    """What cert-manager writes into the Secret of this Certificate."""
    asked = manifest["spec"]
    private = asked["privateKey"]
    assert (private["algorithm"], private["size"]) == ("ECDSA", 256)
    key = ec.generate_private_key(ec.SECP256R1())
    called = [
        *map(x509.UniformResourceIdentifier, asked.get("uris", ())),
        *map(x509.DNSName, asked.get("dnsNames", ())),
    ]
    usages = list(asked["usages"])
    usages.remove("digital signature")
    leaf = (
        _begin(
            _name(asked), issuer.certificate.subject, key.public_key(), now, read_duration(asked)
        )
        .add_extension(_make_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([_PURPOSES[one] for one in usages]), critical=False)
        .add_extension(x509.SubjectAlternativeName(called), critical=False)
        .sign(issuer.key, hashes.SHA256())
    )
    return {
        "tls.crt": leaf.public_bytes(Encoding.PEM),
        "tls.key": encode_key(key),
        "ca.crt": encode_anchors(issuer),
    }


def encode_anchors(*issuers: Authority) -> bytes:
    """Their certificates."""
    return b"".join(one.certificate.public_bytes(Encoding.PEM) for one in issuers)


def read_duration(asked: Mapping[str, Any], field: str = "duration") -> dt.timedelta:
    """A duration as Go spells it."""
    found = _DURATION.fullmatch(asked[field])
    assert found is not None, asked[field]
    return dt.timedelta(hours=int(found[1]), minutes=int(found[2]))


def mount(
    volume: Mapping[str, Any],
    secrets: Mapping[str, Mapping[str, bytes]],
    maps: Mapping[str, Mapping[str, bytes]],
    folder: Path,
) -> Path:
    """A projected volume as a kubelet makes it: a generation, a link to it, and links into that.

    Raises:
        KeyError: something is missing that is not optional, so the pod would wait.
    """
    generation = folder / "..generation"
    for source in volume["projected"]["sources"]:
        kind, objects = ("secret", secrets) if "secret" in source else ("configMap", maps)
        chosen = source[kind]
        if chosen.get("optional") and chosen["name"] not in objects:
            continue
        for item in chosen["items"]:
            if chosen.get("optional") and item["key"] not in objects[chosen["name"]]:
                continue
            path = generation / item["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(0o600)
            path.write_bytes(objects[chosen["name"]][item["key"]])
    (folder / "..data").symlink_to(generation.name)
    for entry in generation.iterdir():
        (folder / entry.name).symlink_to(f"..data/{entry.name}")
    return folder


def _name(asked: Mapping[str, Any]) -> x509.Name:
    subject = asked.get("subject", {})
    fields = (
        (NameOID.ORGANIZATION_NAME, subject.get("organizations", ())),
        (NameOID.ORGANIZATIONAL_UNIT_NAME, subject.get("organizationalUnits", ())),
        (NameOID.COMMON_NAME, (asked["commonName"],)),
    )
    return x509.Name([x509.NameAttribute(oid, text) for oid, texts in fields for text in texts])


def _begin(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: dt.datetime,
    life: dt.timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + life)
    )


def _make_usage(
    *, digital_signature: bool, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature, key_cert_sign=key_cert_sign, crl_sign=crl_sign,
        content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
