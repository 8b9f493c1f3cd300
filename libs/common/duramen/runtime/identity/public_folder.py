"""The folder of a public port's certificate: the leaf with its chain, its key, perhaps anchors.

Whoever clients trust has issued it: it names hosts, and is no identity of this cluster. The folder
of a node's identity serves, too; clients then trust the cluster's CA.

Called by `duramen.runtime.security.public_certificate`.
Source: docs/protocol/identity.md "Public ports".
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from duramen.runtime.identity.certificates import UNREADABLE, CertificateRefusedError, judge_time
from duramen.runtime.identity.folder import load_certificates, read_file
from duramen.runtime.identity.generations import (
    BUNDLE_FILE,
    KEY_FILE,
    LEAF_FILE,
    UnsettledError,
    read_settled,
    resolve,
)
from duramen.runtime.identity.names import IdentityError

_RSA_BITS_MIN: Final = 2_048
_CHAIN_COUNT_MAX: Final = 8


class HeldCertificate(NamedTuple):
    """What a public port shows; PEM, as it lay there. `anchors` is empty where there were none."""

    leaf: x509.Certificate
    chain: bytes
    key: bytes
    anchors: bytes


def read_public_folder(folder: Path, now: dt.datetime) -> HeldCertificate:
    """What a folder holds now: all files of one generation.

    Blocks for 2 s at most, where files are missing, half there or do not fit: somebody may be
    copying.

    Raises:
        IdentityError: a file is missing, too open, not readable, or nothing to show anybody.
    """
    return read_settled(lambda: _read_once(folder, now))


def _read_once(folder: Path, now: dt.datetime) -> HeldCertificate:
    place = resolve(folder)
    key = read_file(place / KEY_FILE, is_secret=True)
    chain = read_file(place / LEAF_FILE)
    anchors = _read_anchors(place / BUNDLE_FILE)
    if resolve(folder) != place:
        raise UnsettledError(f"{place} was replaced while it was read")
    leaf = _load_chain(place / LEAF_FILE, chain)
    if leaf.public_key() != _load_key(place / KEY_FILE, key):
        raise UnsettledError(
            f"{place / KEY_FILE} is not the key of {place / LEAF_FILE}: replace both at once"
        )
    try:
        judge_time(leaf, now)
    except CertificateRefusedError as error:
        raise IdentityError(f"{place / LEAF_FILE} {error}: {error.way_out}") from None
    return HeldCertificate(leaf, chain, key, anchors)


def _load_key(path: Path, content: bytes) -> object:
    """The public half of a key that every client of TLS 1.3 takes."""
    try:
        key = load_pem_private_key(content, password=None)
    except UNREADABLE:
        raise UnsettledError(f"{path} holds no key in PEM without a password") from None
    is_elliptic = isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(
        key.curve, ec.SECP256R1 | ec.SECP384R1
    )
    if not is_elliptic and not (
        isinstance(key, rsa.RSAPrivateKey) and key.key_size >= _RSA_BITS_MIN
    ):
        raise IdentityError(f"{path}: give a key on P-256 or P-384, or of RSA with 2,048 bits")
    return key.public_key()


def _load_chain(path: Path, content: bytes) -> x509.Certificate:
    """The first certificate, which names the hosts; the others are sent along."""
    try:
        chain = load_certificates(content)
    except UNREADABLE:
        raise UnsettledError(f"{path} holds no certificates in PEM") from None
    if len(chain) > _CHAIN_COUNT_MAX:
        raise IdentityError(f"{path} holds {len(chain)} certificates: {_CHAIN_COUNT_MAX} at most")
    leaf = chain[0]
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        hosts = [one for one in names if isinstance(one, x509.DNSName | x509.IPAddress)]
    except x509.ExtensionNotFound:
        hosts = []
    except UNREADABLE:
        raise IdentityError(f"{path}: the first certificate is not readable") from None
    if not hosts:
        raise IdentityError(
            f"{path}: the first certificate names no host as a subject alternative name, so no "
            "client takes it"
        )
    return leaf


def _read_anchors(path: Path) -> bytes:
    try:
        content = read_file(path)
    except UnsettledError:
        return b""
    try:
        load_certificates(content)
    except UNREADABLE:
        raise UnsettledError(f"{path} holds no certificates in PEM") from None
    return content
