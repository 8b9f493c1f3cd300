"""Certificates are judged by one form: each variant here is well signed, and wrong in one thing.

What TLS libraries make of them is `tests/component/test_identity_tls.py`'s matter.
Source: docs/protocol/identity.md "Certificates".
"""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from duramen.runtime.identity.certificates import (
    BACKDATED,
    LEAF_LIFE,
    LEAF_LIFE_MAX,
    PLACE_COUNT_MAX,
    UNREADABLE,
    Authority,
    Bundle,
    CertificateRefusedError,
    Places,
    issue_leaf,
    judge_anchor,
    judge_leaf,
    judge_list,
    list_revoked,
    make_authority,
    make_key,
    number_of,
    read_leaf,
    when_to_renew,
)
from duramen.runtime.identity.names import Role, make_identity
from tests.unit.identities import BOOKIE, DOMAIN, NOW, usage

CLIENT: Final = make_identity(DOMAIN, "client", "ann")
HERE: Final = Places(("bookie-0",), (ipaddress.ip_address("127.0.0.1"),))
SECOND: Final = dt.timedelta(seconds=1)

AUTHORITY: Final = make_authority(DOMAIN, NOW)
BUNDLE: Final = Bundle((AUTHORITY.certificate,), (list_revoked(AUTHORITY, {}, NOW),))
CLIENT_AUTH: Final = ExtendedKeyUsageOID.CLIENT_AUTH
SERVER_AUTH: Final = ExtendedKeyUsageOID.SERVER_AUTH


@dataclass
class Leaf:
    """What somebody may sign: a bookie's certificate, but for what is given."""

    authority: Authority = AUTHORITY
    key: Any = field(default_factory=make_key)
    begins: dt.datetime = NOW
    life: dt.timedelta = LEAF_LIFE
    basic: x509.BasicConstraints | None = x509.BasicConstraints(False, None)
    usage: x509.KeyUsage | None = usage(digital_signature=True)
    purposes: tuple[x509.ObjectIdentifier, ...] = (CLIENT_AUTH, SERVER_AUTH)
    called: tuple[x509.GeneralName, ...] = (x509.UniformResourceIdentifier(str(BOOKIE)),)

    def sign(self) -> x509.Certificate:
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")]))
            .issuer_name(self.authority.certificate.subject)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self.begins)
            .not_valid_after(self.begins + self.life)
        )
        extensions: list[x509.ExtensionType | None] = [self.basic, self.usage]
        extensions.append(x509.ExtendedKeyUsage(self.purposes) if self.purposes else None)
        extensions.append(x509.SubjectAlternativeName(self.called) if self.called else None)
        for extension in extensions:
            if extension is not None:
                builder = builder.add_extension(extension, critical=False)
        return builder.sign(self.authority.key, hashes.SHA256())


def judge(leaf: x509.Certificate, now: dt.datetime = NOW) -> object:
    return judge_leaf(leaf, BUNDLE, DOMAIN, now)


def test_what_is_issued_is_valid_from_a_little_before_until_its_end() -> None:
    for identity, places in ((BOOKIE, HERE), (CLIENT, Places())):
        leaf = issue_leaf(AUTHORITY, identity, make_key().public_key(), NOW, places=places)
        for now in (NOW - BACKDATED, NOW, NOW + LEAF_LIFE - SECOND):
            assert judge(leaf, now) == identity
        for now, cause in (
            (NOW - BACKDATED - SECOND, "not yet valid.*11:54:59"),
            (NOW + LEAF_LIFE, "expired"),
        ):
            with pytest.raises(CertificateRefusedError, match=cause):
                judge(leaf, now)
        life = LEAF_LIFE + BACKDATED
        assert when_to_renew(leaf) == NOW - BACKDATED + life * 2 / 3


def uri(text: str) -> x509.GeneralName:
    return x509.UniformResourceIdentifier(text)


WRONG: Final[dict[str, tuple[Callable[[], Leaf], str]]] = {
    "of another CA": (lambda: Leaf(make_authority(DOMAIN, NOW)), "no CA of ca.crt"),
    "of a CA of the same subject": (
        lambda: Leaf(AUTHORITY._replace(key=make_key())),
        "no CA of ca.crt",
    ),
    "not yet": (lambda: Leaf(begins=NOW + SECOND), "not yet valid"),
    "expired": (lambda: Leaf(begins=NOW - LEAF_LIFE), "has expired"),
    "for years": (lambda: Leaf(life=dt.timedelta(days=365)), "more than 90 days"),
    "another curve": (lambda: Leaf(key=ec.generate_private_key(ec.SECP384R1())), "P-256"),
    "RSA": (lambda: Leaf(key=rsa.generate_private_key(65_537, 2_048)), "P-256"),
    "a CA": (lambda: Leaf(basic=x509.BasicConstraints(True, None)), "CA's certificate"),
    "signs certificates": (
        lambda: Leaf(usage=usage(digital_signature=True, key_cert_sign=True)),
        "CA's certificate",
    ),
    "signs nothing": (lambda: Leaf(usage=usage(key_agreement=True)), "not for signatures"),
    "no key usage": (lambda: Leaf(usage=None), "KeyUsage"),
    "no purpose": (lambda: Leaf(purposes=()), "ExtendedKeyUsage"),
    "a node that only calls": (lambda: Leaf(purposes=(CLIENT_AUTH,)), "extended key usage"),
    "a further purpose": (
        lambda: Leaf(purposes=(CLIENT_AUTH, SERVER_AUTH, ExtendedKeyUsageOID.CODE_SIGNING)),
        "extended key usage",
    ),
    "a client that serves": (lambda: Leaf(called=(uri(str(CLIENT)),)), "extended key usage"),
    "a client with a host": (
        lambda: Leaf(purposes=(CLIENT_AUTH,), called=(uri(str(CLIENT)), x509.DNSName("bookie-0"))),
        "called by nobody",
    ),
    "nobody": (lambda: Leaf(called=(x509.DNSName("bookie-0"),)), "0 identities"),
    "no name at all": (lambda: Leaf(called=()), "SubjectAlternativeName"),
    "of another cluster": (
        lambda: Leaf(called=(uri(str(BOOKIE._replace(domain="f" * 32))),)),
        "of another cluster",
    ),
    "two": (lambda: Leaf(called=(uri(str(BOOKIE)), uri(str(BOOKIE)))), "2 identities"),
    "another form": (lambda: Leaf(called=(uri(f"{BOOKIE}/x"),)), "names no identity"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_differs_in_one_thing_is_refused(name: str) -> None:
    make, cause = WRONG[name]
    with pytest.raises(CertificateRefusedError, match=cause):
        judge(make().sign())


def test_what_cert_manager_issues_is_valid() -> None:
    assert judge(Leaf().sign()) == judge(Leaf(basic=None).sign()) == BOOKIE
    assert judge(Leaf(life=LEAF_LIFE_MAX).sign()) == BOOKIE


def test_a_leaf_is_refused_once_its_serial_is_listed_by_its_own_ca() -> None:
    other = make_authority(DOMAIN, NOW)
    leaf = Leaf().sign()
    anchors = (AUTHORITY.certificate, other.certificate)
    mine, theirs = (
        list_revoked(authority, {leaf.serial_number: NOW}, NOW) for authority in (AUTHORITY, other)
    )
    empty = list_revoked(AUTHORITY, {}, NOW)
    assert judge_leaf(leaf, Bundle(anchors, (empty, theirs)), DOMAIN, NOW) == BOOKIE
    with pytest.raises(CertificateRefusedError, match="is revoked"):
        judge_leaf(leaf, Bundle(anchors, (mine, theirs)), DOMAIN, NOW)
    forgotten = list_revoked(AUTHORITY, {leaf.serial_number: NOW}, NOW - dt.timedelta(days=100))
    assert forgotten.next_update_utc is not None and forgotten.next_update_utc < NOW
    with pytest.raises(CertificateRefusedError, match="is revoked"):
        judge_leaf(leaf, Bundle(anchors, (forgotten, theirs)), DOMAIN, NOW)


def test_the_number_of_a_list_grows_also_when_a_clock_went_back() -> None:
    first = list_revoked(AUTHORITY, {}, NOW)
    assert number_of(first) == NOW.timestamp() * 1_000
    earlier = list_revoked(AUTHORITY, {}, NOW - LEAF_LIFE, above=number_of(first))
    assert number_of(earlier) == number_of(first) + 1
    assert judge_list(earlier, BUNDLE) == AUTHORITY.certificate
    with pytest.raises(CertificateRefusedError, match="no CA of ca"):
        judge_list(list_revoked(make_authority(DOMAIN, NOW), {}, NOW), BUNDLE)


def test_a_ca_of_one_cluster_vouches_for_no_other() -> None:
    """Also where the other one trusts it, as after a copy of the wrong file."""
    abroad = BOOKIE._replace(domain="f" * 32)
    leaf = issue_leaf(AUTHORITY, abroad, make_key().public_key(), NOW)
    with pytest.raises(CertificateRefusedError, match="of another cluster"):
        judge_leaf(leaf, BUNDLE, abroad.domain, NOW)


def test_a_leaf_lives_no_longer_than_its_ca_and_a_ca_no_longer_than_its_parent() -> None:
    parent = make_authority(DOMAIN, NOW - dt.timedelta(days=3_600))
    child = make_authority(DOMAIN, NOW, parent)
    ends = parent.certificate.not_valid_after_utc
    assert child.certificate.not_valid_after_utc == ends
    late = ends - dt.timedelta(days=1)
    leaf = issue_leaf(child, BOOKIE, make_key().public_key(), late)
    assert leaf.not_valid_after_utc == ends
    assert judge_leaf(leaf, Bundle((child.certificate,)), DOMAIN, late) == BOOKIE
    # Who trusts the parent's other children trusts strangers.
    with pytest.raises(CertificateRefusedError, match="no CA of ca"):
        judge_leaf(leaf, Bundle((parent.certificate,)), DOMAIN, late)


def test_no_two_cas_of_a_cluster_have_one_subject() -> None:
    other = make_authority(DOMAIN, NOW).certificate
    assert other.subject != AUTHORITY.certificate.subject
    assert other.subject.rfc4514_string().endswith(f"CN={DOMAIN}")


def test_an_anchor_is_a_ca() -> None:
    judge_anchor(AUTHORITY.certificate)
    for other in (Leaf(), Leaf(basic=x509.BasicConstraints(True, None)), Leaf(usage=None)):
        with pytest.raises(CertificateRefusedError):
            judge_anchor(other.sign())


def test_whose_ca_is_not_in_its_time_is_not_valid() -> None:
    late = NOW + dt.timedelta(days=3_650)
    leaf = Leaf(begins=late, life=LEAF_LIFE).sign()
    with pytest.raises(CertificateRefusedError, match="has expired"):
        judge(leaf, late)


def test_bytes_that_no_parser_likes_are_refused_like_others() -> None:
    """A point that is not on the curve, a time that is none, an extension that is cut off."""
    der = Leaf().sign().public_bytes(Encoding.DER)
    refused_count = 0
    for at in range(0, len(der), 7):
        broken = der[:at] + bytes([der[at] ^ 0xFF]) + der[at + 1 :]
        try:
            leaf = x509.load_der_x509_certificate(broken)
        except UNREADABLE:
            continue
        with pytest.raises(CertificateRefusedError):
            judge(leaf)
        with contextlib.suppress(CertificateRefusedError):
            read_leaf(leaf)
        refused_count += 1
    assert refused_count > 20


def test_a_certificate_that_would_not_fit_a_header_is_not_made() -> None:
    key = make_key().public_key()
    identity = make_identity(DOMAIN, Role.READPROXY, "r" * 64)
    many = Places(tuple(f"h{number}" for number in range(PLACE_COUNT_MAX + 1)))
    long = Places(tuple(f"{'h' * 60}.{'i' * 60}.{number}" for number in range(PLACE_COUNT_MAX)))
    for places, cause in ((many, "more than 8 hosts"), (long, "1400 are allowed")):
        with pytest.raises(CertificateRefusedError, match=cause):
            issue_leaf(AUTHORITY, identity, key, NOW, places=places)
    fits = Places(long.names[:3], HERE.addresses)
    assert judge(issue_leaf(AUTHORITY, identity, key, NOW, places=fits)) == identity
