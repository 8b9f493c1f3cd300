"""The folder an identity lies in: read as one generation, judged whole, and written as one.

`tls.crt`, `tls.key`, `ca.crt` and, where anything was revoked, `ca.crl`: the names of Kubernetes
and cert-manager. Whatever is wrong is refused with one sentence that names the file and the way
out.

Called by the command line, and by services at their start.
Source: docs/protocol/identity.md "The folder".
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import stat
from pathlib import Path, PurePath
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from duramen.runtime.identity.certificates import (
    NOWHERE,
    UNREADABLE,
    Bundle,
    CertificateRefusedError,
    Key,
    Places,
    judge_anchor,
    judge_leaf,
    judge_list,
    judge_time,
    read_leaf,
    when_to_renew,
)
from duramen.runtime.identity.generations import (
    AUTHORITY_KEY_FILE,
    BUNDLE_FILE,
    KEY_FILE,
    LEAF_FILE,
    LIST_FILE,
    UnsettledError,
    locked,
    read_settled,
    resolve,
    write_generation,
)
from duramen.runtime.identity.names import Identity, IdentityError

ANCHOR_COUNT_MAX: Final = 4
_FILE_BYTES_MAX: Final = 1 << 20
_CERTIFICATE_MARK: Final = b"-----BEGIN CERTIFICATE-----"
_LIST_MARK: Final = b"-----BEGIN X509 CRL-----"


class HeldIdentity(NamedTuple):
    """An identity with what proves it, as it was read."""

    identity: Identity
    key: Key
    leaf: x509.Certificate
    bundle: Bundle

    @property
    def renew_at(self) -> dt.datetime:
        """When another certificate should lie there."""
        return when_to_renew(self.leaf)


# --- Reading -------------------------------------------------------------------------------------


def read_folder(folder: Path, now: dt.datetime) -> HeldIdentity:
    """What a folder holds now: all files of one generation.

    Blocks for 2 s at most, where files are missing, half there or do not fit: somebody may be
    copying.

    Raises:
        IdentityError: a file is missing, too open, not readable, or not to be trusted.
    """
    return read_settled(lambda: _read_once(folder, now))


def _read_once(folder: Path, now: dt.datetime) -> HeldIdentity:
    place = resolve(folder)
    # The key comes first: who may not have it need not hear what else is wrong.
    key = read_key(place / KEY_FILE)
    bundle = read_bundle(place, now)
    leaf = _load_leaf(place / LEAF_FILE)
    if resolve(folder) != place:
        # The list may have gone before the leaf, and then looks as though there were none.
        raise UnsettledError(f"{place} was replaced while it was read")
    if leaf.public_key() != key.public_key():
        raise UnsettledError(
            f"{place / KEY_FILE} is not the key of {place / LEAF_FILE}: replace both at once"
        )
    try:
        identity = read_leaf(leaf)
        judge_leaf(leaf, bundle, identity.domain, now)
    except CertificateRefusedError as error:
        raise IdentityError(f"{place / LEAF_FILE} {error}: {error.way_out}") from None
    return HeldIdentity(identity, key, leaf, bundle)


def read_bundle(place: Path, now: dt.datetime) -> Bundle:
    """What is trusted: the anchors of `ca.crt` and the lists of `ca.crl`, if there is one.

    Raises:
        IdentityError: as `read_folder`.
    """
    anchors = read_file(place / BUNDLE_FILE)
    try:
        lists = read_file(place / LIST_FILE)
    except UnsettledError:
        lists = None
    return parse_bundle(place, anchors, lists, now)


def parse_bundle(
    place: PurePath, anchors_pem: bytes, lists_pem: bytes | None, now: dt.datetime
) -> Bundle:
    """A bundle of what its two files hold; None: there is no file of lists.

    Args:
        place: where they lie, for what people are told.

    Raises:
        IdentityError: it is not to be trusted.
    """
    path = place / BUNDLE_FILE
    try:
        anchors = tuple(load_certificates(anchors_pem))
    except UNREADABLE:
        raise UnsettledError(f"{path} holds no certificates in PEM") from None
    if not 1 <= len(anchors) <= ANCHOR_COUNT_MAX:
        raise IdentityError(
            f"{path} holds {len(anchors)} certificates: 1 to {ANCHOR_COUNT_MAX} are expected"
        )
    for anchor in anchors:
        try:
            judge_anchor(anchor)
        except CertificateRefusedError as error:
            subject = anchor.subject.rfc4514_string()
            raise IdentityError(f"{path}: {subject!r} {error}: take it out") from None
    if len({anchor.subject for anchor in anchors}) < len(anchors):
        raise IdentityError(f"{path} holds two certificates with one subject: give CAs other names")
    _see_one_in_time(path, anchors, now)
    bundle = Bundle(anchors)
    if lists_pem is None:
        return bundle
    return bundle._replace(lists=_parse_lists(place / LIST_FILE, lists_pem, bundle))


def read_key(path: Path) -> Key:
    """A key that nobody else may read.

    Raises:
        IdentityError: it is too open, or no such key.
    """
    return parse_key(path, read_file(path, is_secret=True))


def parse_key(path: PurePath, content: bytes) -> Key:
    """A key of what its file holds.

    Raises:
        IdentityError: it is no such key.
    """
    try:
        key = load_pem_private_key(content, password=None)
    except UNREADABLE:
        raise UnsettledError(f"{path} holds no key in PEM without a password") from None
    if not isinstance(key, Key) or not isinstance(key.curve, ec.SECP256R1):
        raise IdentityError(f"{path} holds no key on the curve P-256")
    return key


def _see_one_in_time(
    path: PurePath, anchors: tuple[x509.Certificate, ...], now: dt.datetime
) -> None:
    """An anchor whose time is over, or has not come, harms only what it issued."""
    refusals = []
    for anchor in anchors:
        try:
            return judge_time(anchor, now)
        except CertificateRefusedError as error:
            refusals.append(error)
    subject = anchors[0].subject.rfc4514_string()
    raise IdentityError(
        f"{path}: {subject!r} {refusals[0]}: if that clock is right, replace the CA"
    )


def _parse_lists(
    path: PurePath, content: bytes, bundle: Bundle
) -> tuple[x509.CertificateRevocationList, ...]:
    """One list for each anchor, in their order."""
    try:
        found = list(map(x509.load_pem_x509_crl, _split_lists(content)))
        lists = {judge_list(revoked, bundle): revoked for revoked in found}
    except UNREADABLE:
        raise UnsettledError(f"{path} holds no revocation lists in PEM") from None
    except CertificateRefusedError as error:
        raise UnsettledError(f"{path}: a list {error}") from None
    if len(found) != len(lists) or len(lists) != len(bundle.anchors):
        raise UnsettledError(
            f"{path} holds {len(found)} lists for {len(bundle.anchors)} CAs: one of each is "
            "expected, and may be empty"
        )
    return tuple(lists[anchor] for anchor in bundle.anchors)


def _split_lists(content: bytes) -> list[bytes]:
    return [_LIST_MARK + block for block in content.split(_LIST_MARK)[1:]] or [content]


def _load_leaf(path: Path) -> x509.Certificate:
    try:
        return load_certificates(read_file(path))[0]
    except UNREADABLE:
        raise UnsettledError(f"{path} holds no certificate in PEM") from None


def load_certificates(content: bytes) -> list[x509.Certificate]:
    """The certificates of a file in PEM, at least one.

    Raises:
        ValueError: there is none, or the last one is half there: the library passes over that.
    """
    found = x509.load_pem_x509_certificates(content)
    if len(found) < content.count(_CERTIFICATE_MARK):
        raise ValueError("a certificate is not whole")
    return found


def read_file(path: Path, *, is_secret: bool = False) -> bytes:
    """What a file of such a folder holds; nobody else may read a secret.

    Raises:
        UnsettledError: it is missing.
        IdentityError: it cannot be read, is too open, or too long.
    """
    try:
        with path.open("rb") as file:
            if is_secret:
                judge_mode(path, os.fstat(file.fileno()))
            content = file.read(_FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise UnsettledError(f"{path} is missing") from None
    except OSError as error:
        raise IdentityError(f"{path}: {error.strerror}") from None
    if len(content) > _FILE_BYTES_MAX:
        raise IdentityError(f"{path} has more than {_FILE_BYTES_MAX} bytes")
    return content


def judge_mode(path: Path, found: os.stat_result) -> None:
    """See that a key is its owner's. A kubelet hands it to a group of the process (`fsGroup`).

    Raises:
        IdentityError: others may read it, or have given it.
    """
    if found.st_uid not in (0, os.geteuid()):
        raise IdentityError(f"{path} belongs to another user: chown it to the one who starts this")
    is_handed_on = found.st_uid == 0 and found.st_gid in {*os.getgroups()} - {os.getegid()}
    allowed = stat.S_IRWXU | (stat.S_IRGRP if is_handed_on else 0)
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o777 & ~allowed:
        raise IdentityError(
            f"{path} may be read by others (mode {mode:04o}): chmod 600 it, or mount its Secret "
            "with defaultMode 0400"
        )


def read_former_places(folder: Path, identity: Identity) -> Places:
    """The hosts that the certificate which lies there names, if it is of this identity."""
    try:
        leaf = _load_leaf(resolve(folder) / LEAF_FILE)
        if read_leaf(leaf) != identity:
            return NOWHERE
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (IdentityError, CertificateRefusedError, x509.ExtensionNotFound):
        return NOWHERE
    return Places(
        tuple(names.get_values_for_type(x509.DNSName)),
        tuple(
            address
            for address in names.get_values_for_type(x509.IPAddress)
            if isinstance(address, ipaddress.IPv4Address | ipaddress.IPv6Address)
        ),
    )


# --- Writing -------------------------------------------------------------------------------------


def write_folder(folder: Path, held: HeldIdentity) -> None:
    """Put another generation of an identity into its folder; makes the folder, mode 0700.

    Raises:
        IdentityError: somebody else's identity lies there, or a CA, or others may write there.
        OSError: it cannot be written; the generation before still counts.
    """
    _refuse_authority(folder)
    with locked(folder):
        former = _find_former(folder)
        if former not in (None, held.identity):
            raise IdentityError(f"{folder} is of {former}: give another folder")
        leaf = held.leaf.public_bytes(Encoding.PEM)
        files = {KEY_FILE: encode_key(held.key), LEAF_FILE: leaf}
        write_generation(folder, files | encode_bundle(held.bundle))


def write_bundle(folder: Path, domain: str, bundle: Bundle, now: dt.datetime) -> None:
    """Put what is trusted into the folder of an identity, whose key and certificate stay.

    Raises:
        IdentityError: no identity of this cluster lies there; or, though it was written, its
            certificate is not valid under this bundle.
        OSError: it cannot be written; the generation before still counts.
    """
    _refuse_authority(folder)
    with locked(folder):
        place = resolve(folder)
        leaf = _load_leaf(place / LEAF_FILE)
        try:
            identity = read_leaf(leaf)
        except CertificateRefusedError as error:
            raise IdentityError(f"{place / LEAF_FILE} {error}") from None
        if identity.domain != domain:
            raise IdentityError(f"{folder} is of {identity}, of another cluster")
        files = {name: read_file(place / name) for name in (KEY_FILE, LEAF_FILE)}
        write_generation(folder, files | encode_bundle(bundle))
    try:
        judge_leaf(leaf, bundle, domain, now)
    except CertificateRefusedError as error:
        raise IdentityError(
            f"{folder} knows it now, and {identity} {error}: {error.way_out}"
        ) from None


def encode_bundle(bundle: Bundle) -> dict[str, bytes]:
    """The files of a bundle; without lists there is no file of lists."""
    files = {BUNDLE_FILE: b"".join(one.public_bytes(Encoding.PEM) for one in bundle.anchors)}
    if bundle.lists:
        files[LIST_FILE] = b"".join(one.public_bytes(Encoding.PEM) for one in bundle.lists)
    return files


def encode_key(key: Key) -> bytes:
    """A key as PEM, PKCS #8 without a password."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _refuse_authority(folder: Path) -> None:
    """Before the folder is locked: who issues holds the lock of its CA's."""
    if os.path.lexists(folder / AUTHORITY_KEY_FILE):
        raise IdentityError(f"{folder} holds a CA: give another folder")


def _find_former(folder: Path) -> Identity | None:
    """Whose identity lies there, whatever became of it; None where none can be read."""
    try:
        return read_leaf(_load_leaf(resolve(folder) / LEAF_FILE))
    except (IdentityError, CertificateRefusedError):
        return None
