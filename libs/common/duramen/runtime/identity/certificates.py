"""X.509 as an identity needs it: certificates are made here, and judged here, by one set of rules.

A leaf hangs from its cluster's CA directly, and has exactly the form that `issue_leaf` gives it, or
that cert-manager gives it when asked for the same. Anything else is refused, also where its
signature is good. Nothing here reads a clock or a file; times are aware of their zone.

Called by `authority` and `folder`. Source: docs/protocol/identity.md "Certificates".
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import re
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from duramen.runtime.identity.names import (
    DOMAIN_PATTERN,
    Identity,
    InvalidIdentityError,
    parse_identity,
)

LEAF_LIFE: Final = dt.timedelta(days=7)
LEAF_LIFE_MAX: Final = dt.timedelta(days=90)
CA_LIFE: Final = dt.timedelta(days=3650)
BACKDATED: Final = dt.timedelta(minutes=5)
"""Clocks that differ by less agree that a new certificate is valid."""

LIST_LIFE: Final = dt.timedelta(days=90)
"""Until the next update of a revocation list; past it the list still counts."""

LEAF_BYTES_MAX: Final = 1_400
"""A leaf travels in a header of each first call, for which 3,000 bytes are enough then."""

PLACE_COUNT_MAX: Final = 8

Key = ec.EllipticCurvePrivateKey
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

E = TypeVar("E", bound=x509.ExtensionType)


UNREADABLE: Final = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
"""What the parser raises over bytes that somebody else chose, when it comes to them."""


class CertificateRefusedError(Exception):
    """A certificate is not to be trusted; the text says why, without naming the certificate.

    Attributes:
        way_out: what its holder may do.
    """

    def __init__(self, text: str, way_out: str = "issue another one") -> None:
        super().__init__(text)
        self.way_out = way_out


class Authority(NamedTuple):
    """A CA's key and certificate."""

    key: Key
    certificate: x509.Certificate


class Places(NamedTuple):
    """What others call a node: their clients compare it with its certificate."""

    names: tuple[str, ...] = ()
    addresses: tuple[Address, ...] = ()


NOWHERE: Final = Places()


class Bundle(NamedTuple):
    """What a process trusts: its cluster's CA, or two while one replaces the other, and what they
    revoked."""

    anchors: tuple[x509.Certificate, ...]
    lists: tuple[x509.CertificateRevocationList, ...] = ()


# --- Making --------------------------------------------------------------------------------------


def make_key() -> Key:
    """A new key, on the one curve."""
    return ec.generate_private_key(ec.SECP256R1())


def make_authority(domain: str, now: dt.datetime, parent: Authority | None = None) -> Authority:
    """A CA for the cluster of this uuid: signed by itself, or by a parent. It is the anchor."""
    key = make_key()
    # No two CAs have one subject: TLS libraries and ZooKeeper tell anchors apart by it.
    digest = x509.SubjectKeyIdentifier.from_public_key(key.public_key()).digest
    subject = _make_name((NameOID.COMMON_NAME, domain), (NameOID.SERIAL_NUMBER, digest.hex()))
    ends = now + CA_LIFE
    if parent is None:
        issuer, signing_key = subject, key
    else:
        issuer, signing_key = parent.certificate.subject, parent.key
        ends = min(ends, parent.certificate.not_valid_after_utc)
    certificate = (
        _begin(key.public_key(), signing_key, now, ends)
        .subject_name(subject)
        .issuer_name(issuer)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_AUTHORITY_USAGE, critical=True)
        .add_extension(x509.SubjectKeyIdentifier(digest), critical=False)
        .sign(signing_key, hashes.SHA256())
    )
    return Authority(key, certificate)


def issue_leaf(
    authority: Authority,
    identity: Identity,
    public_key: ec.EllipticCurvePublicKey,
    now: dt.datetime,
    *,
    places: Places = NOWHERE,
    life: dt.timedelta = LEAF_LIFE,
) -> x509.Certificate:
    """A certificate for a key: it lives as long as asked, and no longer than its CA.

    Raises:
        CertificateRefusedError: it would name too many places, or too long ones.
    """
    assert life <= LEAF_LIFE_MAX, life
    assert identity.role.is_node or places == NOWHERE, "whom nobody calls has no place"
    if len(places.names) + len(places.addresses) > PLACE_COUNT_MAX:
        raise CertificateRefusedError(f"would name more than {PLACE_COUNT_MAX} hosts")
    subject = _make_name(
        (NameOID.ORGANIZATION_NAME, identity.domain),
        (NameOID.ORGANIZATIONAL_UNIT_NAME, identity.role),
        (NameOID.COMMON_NAME, identity.name),
    )
    called = [
        x509.UniformResourceIdentifier(str(identity)),
        *map(x509.DNSName, places.names),
        *map(x509.IPAddress, places.addresses),
    ]
    ends = min(now + life, authority.certificate.not_valid_after_utc)
    leaf = (
        _begin(public_key, authority.key, now, ends)
        .subject_name(subject)
        .issuer_name(authority.certificate.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_LEAF_USAGE, critical=True)
        .add_extension(_purposes_of(identity), critical=False)
        .add_extension(x509.SubjectAlternativeName(called), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    size_bytes = len(leaf.public_bytes(Encoding.DER))
    if size_bytes > LEAF_BYTES_MAX:
        raise CertificateRefusedError(
            f"would have {size_bytes} bytes, and {LEAF_BYTES_MAX} are allowed: name fewer hosts"
        )
    return leaf


def issue_public_leaf(
    authority: Authority,
    name: str,
    places: Places,
    public_key: ec.EllipticCurvePublicKey,
    now: dt.datetime,
) -> x509.Certificate:
    """A server's certificate for a public port: it names hosts, and is nobody's identity.

    Args:
        name: what people see; nobody compares it.
        places: any number of hosts, as it stands in no header.
    """
    called = [*map(x509.DNSName, places.names), *map(x509.IPAddress, places.addresses)]
    assert called, "whom no client calls needs no certificate"
    ends = min(now + LEAF_LIFE, authority.certificate.not_valid_after_utc)
    purposes = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    return (
        _begin(public_key, authority.key, now, ends)
        .subject_name(_make_name((NameOID.COMMON_NAME, name)))
        .issuer_name(authority.certificate.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_LEAF_USAGE, critical=True)
        .add_extension(purposes, critical=False)
        .add_extension(x509.SubjectAlternativeName(called), critical=False)
        .sign(authority.key, hashes.SHA256())
    )


def list_revoked(
    authority: Authority, revoked: Mapping[int, dt.datetime], now: dt.datetime, *, above: int = 0
) -> x509.CertificateRevocationList:
    """What a CA revoked, and when, by serial. TLS libraries want every field of it.

    Args:
        above: the number of the list before. A list has the number of its millisecond, or the next
            one: so a CA that comes back from a backup goes on.
    """
    number = max(int(now.timestamp() * 1_000), above + 1)
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.certificate.subject)
        .last_update(now - BACKDATED)
        .next_update(now + LIST_LIFE)
        .add_extension(x509.CRLNumber(number), critical=False)
        .add_extension(_identify(authority.key), critical=False)
    )
    for serial, since in sorted(revoked.items()):
        one = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(since)
        builder = builder.add_revoked_certificate(one.build())
    return builder.sign(authority.key, hashes.SHA256())


# --- Judging -------------------------------------------------------------------------------------


def judge_anchor(anchor: x509.Certificate) -> None:
    """See that a certificate of a bundle may be an anchor, when its time is.

    Raises:
        CertificateRefusedError: it is none.
    """
    if not _is_authority(anchor) or not _find(anchor, x509.KeyUsage).key_cert_sign:
        raise CertificateRefusedError("is no CA's certificate")
    _judge_key(anchor)


def name_domain(anchor: x509.Certificate) -> str | None:
    """The cluster whose CA this is, as `make_authority` names it; None: it was made otherwise."""
    names = anchor.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    text = str(names[0].value) if len(names) == 1 else ""
    return text if re.fullmatch(DOMAIN_PATTERN, text, re.ASCII) else None


def judge_leaf(leaf: x509.Certificate, bundle: Bundle, domain: str, now: dt.datetime) -> Identity:
    """Whose certificate this is: of this cluster, trusted now, not revoked, of the one form.

    Raises:
        CertificateRefusedError: it is not to be trusted.
    """
    anchor = judge_issue(leaf, bundle, now)
    identity = read_leaf(leaf)
    if identity.domain != domain or name_domain(anchor) not in (None, domain):
        raise CertificateRefusedError(f"is of another cluster than {domain}: {identity}")
    return identity


def judge_issue(leaf: x509.Certificate, bundle: Bundle, now: dt.datetime) -> x509.Certificate:
    """The anchor of a certificate of any form that is trusted now, and not revoked.

    Raises:
        CertificateRefusedError: it is not to be trusted.
    """
    anchor = next((anchor for anchor in bundle.anchors if _is_issued_by(leaf, anchor)), None)
    if anchor is None:
        raise CertificateRefusedError("is issued by no CA of ca.crt")
    judge_time(anchor, now)
    judge_time(leaf, now)
    for revoked in bundle.lists:
        if _is_list_of(revoked, anchor) and revoked.get_revoked_certificate_by_serial_number(
            leaf.serial_number
        ):
            raise CertificateRefusedError("is revoked")
    return anchor


def read_leaf(leaf: x509.Certificate) -> Identity:
    """The identity in a leaf of the one form, whoever issued it.

    Raises:
        CertificateRefusedError: it has another form.
    """
    _judge_key(leaf)
    usage = _find(leaf, x509.KeyUsage)
    if _is_authority(leaf) or usage.key_cert_sign:
        raise CertificateRefusedError("is a CA's certificate")
    if not usage.digital_signature:
        raise CertificateRefusedError("is not for signatures")
    if leaf.not_valid_after_utc - leaf.not_valid_before_utc > LEAF_LIFE_MAX + BACKDATED:
        raise CertificateRefusedError(f"is valid for more than {LEAF_LIFE_MAX.days} days")
    called = _find(leaf, x509.SubjectAlternativeName)
    uris = called.get_values_for_type(x509.UniformResourceIdentifier)
    if len(uris) != 1:
        raise CertificateRefusedError(f"names {len(uris)} identities, and one is expected")
    try:
        identity = parse_identity(uris[0])
    except InvalidIdentityError as error:
        raise CertificateRefusedError(f"names no identity: {error}") from None
    if set(_find(leaf, x509.ExtendedKeyUsage)) != set(_purposes_of(identity)):
        raise CertificateRefusedError(f"has not the extended key usage of a {identity.role}")
    if not identity.role.is_node and len(list(called)) != 1:
        raise CertificateRefusedError(f"names a host, and a {identity.role} is called by nobody")
    return identity


def judge_list(revoked: x509.CertificateRevocationList, bundle: Bundle) -> x509.Certificate:
    """Whose list this is. TLS libraries stop over a list without a number or key identifier.

    Raises:
        CertificateRefusedError: it is no anchor's, or lacks a field.
    """
    for anchor in bundle.anchors:
        if _is_list_of(revoked, anchor):
            _find(revoked, x509.CRLNumber)
            _find(revoked, x509.AuthorityKeyIdentifier)
            return anchor
    raise CertificateRefusedError("is signed by no CA of ca.crt")


def number_of(revoked: x509.CertificateRevocationList) -> int:
    """The number of a list that was judged; it grows from list to list."""
    return _find(revoked, x509.CRLNumber).crl_number


def judge_time(certificate: x509.Certificate, now: dt.datetime) -> None:
    """See that this is within a certificate's life.

    Raises:
        CertificateRefusedError: it is not, with both times: one clock may be off.
    """
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begins:
        raise CertificateRefusedError(
            f"is not yet valid: it begins at {begins:%Y-%m-%d %H:%M:%SZ}, and this machine's clock "
            f"says {now:%Y-%m-%d %H:%M:%SZ}",
            _TIME_WAY_OUT,
        )
    if now >= ends:
        raise CertificateRefusedError(
            f"has expired at {ends:%Y-%m-%d %H:%M:%SZ}, and this machine's clock says "
            f"{now:%Y-%m-%d %H:%M:%SZ}",
            _TIME_WAY_OUT,
        )


def list_anchors(bundle: Bundle) -> list[str]:
    """What people tell CAs apart by: their serials, in hexadecimal digits."""
    return [f"{anchor.serial_number:x}" for anchor in bundle.anchors]


def find_issuer(leaf: x509.Certificate, bundle: Bundle) -> str | None:
    """The serial of the CA that issued a certificate; None: it is none of the bundle's."""
    found = (one for one in bundle.anchors if _is_issued_by(leaf, one))
    return next((f"{one.serial_number:x}" for one in found), None)


def when_to_renew(leaf: x509.Certificate) -> dt.datetime:
    """The end of the first two thirds of its life."""
    begins, ends = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    return begins + (ends - begins) * 2 / 3


# --- Parts ---------------------------------------------------------------------------------------


def _make_usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


_TIME_WAY_OUT: Final = "if that clock is right, issue another one"
_AUTHORITY_USAGE: Final = _make_usage(is_authority=True)
_LEAF_USAGE: Final = _make_usage(is_authority=False)


def _begin(
    public_key: ec.EllipticCurvePublicKey,
    signing_key: Key,
    now: dt.datetime,
    ends: dt.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(ends)
        .add_extension(_identify(signing_key), critical=False)
    )


def _identify(key: Key) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())


def _make_name(*parts: tuple[x509.ObjectIdentifier, str]) -> x509.Name:
    return x509.Name([x509.NameAttribute(kind, text) for kind, text in parts])


def _purposes_of(identity: Identity) -> x509.ExtendedKeyUsage:
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if identity.role.is_node:
        purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
    return x509.ExtendedKeyUsage(purposes)


def _is_authority(certificate: x509.Certificate) -> bool:
    """What says nothing about it is none (RFC 5280, 4.2.1.9); cert-manager's leaves may not."""
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False
    except UNREADABLE:
        raise CertificateRefusedError("has no readable extensions") from None


def _judge_key(certificate: x509.Certificate) -> None:
    try:
        key = certificate.public_key()
    except UNREADABLE:
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise CertificateRefusedError("has no key on the curve P-256")


def _is_issued_by(leaf: x509.Certificate, anchor: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(anchor)
    except (InvalidSignature, *UNREADABLE):
        return False
    return True


def _is_list_of(revoked: x509.CertificateRevocationList, anchor: x509.Certificate) -> bool:
    key = anchor.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey), "an anchor was judged"
    return revoked.issuer == anchor.subject and revoked.is_signature_valid(key)


def _find(holder: x509.Certificate | x509.CertificateRevocationList, kind: type[E]) -> E:
    try:
        return holder.extensions.get_extension_for_class(kind).value
    except (x509.ExtensionNotFound, *UNREADABLE):
        raise CertificateRefusedError(f"has no readable extension {kind.__name__}") from None
