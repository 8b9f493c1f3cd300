"""The CAs of a cluster as a value: who issues, who is trusted, and each step to the next value.

Nothing here is stored, and nothing waits: whoever keeps the keys (a folder, a Secret) judges when a
step may be taken, takes it, and stores what comes out. Lines of what was issued are encoded here
too, so that every keeper notes the same.

Called by `authority` and by the operator of Kubernetes.
Source: docs/protocol/identity.md "Replacing the CA".
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from pathlib import PurePath
from typing import Final, NamedTuple, Self

import orjson
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from duramen.runtime.identity.certificates import (
    Authority,
    Bundle,
    Key,
    list_anchors,
    list_revoked,
    make_authority,
    number_of,
)
from duramen.runtime.identity.folder import encode_bundle, encode_key
from duramen.runtime.identity.generations import AUTHORITY_KEY_FILE, BUNDLE_FILE, LIST_FILE
from duramen.runtime.identity.names import IdentityError

ISSUED_FILE: Final = "issued.jsonl"
OTHER_KEY_FILE: Final = "other.key"
ANNOUNCED_FOR: Final = dt.timedelta(days=1)
"""So long a CA is known before it issues: who is not seen has time to hear of it."""


class Issued(NamedTuple):
    """A certificate that was issued, and by which CA: its serial, in hexadecimal digits."""

    serial: int
    identity: str
    ends: dt.datetime
    issuer: str
    begins: dt.datetime | None = None
    """None where an older line does not say it."""


class Succession(NamedTuple):
    """The CA of a cluster, or two while one takes the place of the other.

    Attributes:
        signers: those whose keys are here, as they stand in the bundle: the first one issues.
        bundle: what the cluster trusts, with what was revoked so far.
    """

    signers: tuple[Authority, ...]
    bundle: Bundle

    @classmethod
    def begin(cls, domain: str, now: dt.datetime, parent: Authority | None = None) -> Self:
        """A first CA, with an empty list."""
        authority = make_authority(domain, now, parent)
        lists = (list_revoked(authority, {}, now),)
        return cls((authority,), Bundle((authority.certificate,), lists))

    @classmethod
    def join(cls, place: PurePath, bundle: Bundle, keys: tuple[Key, ...]) -> Self:
        """What was read, put together again.

        Args:
            place: what people are told, where it does not fit.

        Raises:
            IdentityError: keys and certificates do not fit, or lists are missing.
        """
        if not keys or not _is_pair(keys[0], bundle.anchors[0]) or not bundle.lists:
            raise IdentityError(
                f"{place / AUTHORITY_KEY_FILE} is not the key of the first certificate in "
                f"{place / BUNDLE_FILE}, or {place / LIST_FILE} is missing: restore all three"
            )
        if len(keys) > 1 and not _is_pair(keys[1], bundle.anchors[1]):
            raise IdentityError(
                f"{place / OTHER_KEY_FILE} is not the key of the second certificate in "
                f"{place / BUNDLE_FILE}: restore both"
            )
        signers = [Authority(key, one) for key, one in zip(keys, bundle.anchors, strict=False)]
        return cls(tuple(signers), bundle)

    def announce(self, domain: str, now: dt.datetime, parent: Authority | None = None) -> Self:
        """With a second CA, which is trusted and issues nothing yet."""
        assert len(self.bundle.anchors) == 1, "a third one would be trusted"
        other = make_authority(domain, now, parent)
        anchors = *self.bundle.anchors, other.certificate
        lists = *self.bundle.lists, list_revoked(other, {}, now)
        return type(self)((*self.signers, other), Bundle(anchors, lists))

    def flip(self) -> Self:
        """The other one issues."""
        assert len(self.signers) == 2, "there is no other"
        bundle = Bundle(self.bundle.anchors[::-1], self.bundle.lists[::-1])
        return type(self)(self.signers[::-1], bundle)

    def retire(self) -> Self:
        """Without the one that does not issue."""
        bundle = Bundle(self.bundle.anchors[:1], self.bundle.lists[:1])
        return type(self)(self.signers[:1], bundle)

    def list_revoked(self) -> dict[int, dt.datetime]:
        """Serial → since when, of the lists of the CAs which are here."""
        own = self.bundle.lists[: len(self.signers)]
        return {row.serial_number: row.revocation_date_utc for one in own for row in one}

    def revoke(self, issued: Iterable[Issued], serials: Iterable[int], now: dt.datetime) -> Self:
        """With further certificates in the lists.

        One that is not known is named in each. What has ended leaves them, as far as it is known
        when it ends.
        """
        issued, wanted = tuple(issued), set(serials)
        ended = {one.serial for one in issued if one.ends <= now}
        issuers = {one.serial: one.issuer for one in issued}
        lists = list(self.bundle.lists)
        for index, signer in enumerate(self.signers):
            known = (None, name_authority(signer))
            mine = {serial for serial in wanted if issuers.get(serial) in known}
            before = {one.serial_number: one.revocation_date_utc for one in lists[index]}
            revoked = dict.fromkeys(mine, now) | before
            kept = {serial: since for serial, since in revoked.items() if serial not in ended}
            lists[index] = list_revoked(signer, kept, now, above=number_of(lists[index]))
        return type(self)(self.signers, Bundle(self.bundle.anchors, tuple(lists)))

    def encode(self) -> dict[str, bytes]:
        """The files of it, keys included."""
        names = (AUTHORITY_KEY_FILE, OTHER_KEY_FILE)
        keys = {name: encode_key(one.key) for name, one in zip(names, self.signers, strict=False)}
        return keys | encode_bundle(self.bundle)


def name_authority(authority: Authority) -> str:
    """What a CA is called in lines of what was issued."""
    return list_anchors(Bundle((authority.certificate,)))[0]


def note(leaf: x509.Certificate, what: str, issuer: Authority) -> Issued:
    """The line of a certificate. `what`: the identity, or what it is instead."""
    ends, begins = leaf.not_valid_after_utc, leaf.not_valid_before_utc
    return Issued(leaf.serial_number, what, ends, name_authority(issuer), begins)


def encode_line(line: Issued) -> bytes:
    """A line of the file of what was issued."""
    fields = {
        "serial": f"{line.serial:x}",
        "identity": line.identity,
        "ends": line.ends.isoformat(),
        "issuer": line.issuer,
    }
    if line.begins is not None:
        fields["begins"] = line.begins.isoformat()
    return orjson.dumps(fields) + b"\n"


def decode_lines(content: bytes, path: PurePath) -> list[Issued]:
    """The lines of such a file, in order; one that was cut short was given to nobody.

    Raises:
        IdentityError: they cannot be read.
    """
    whole, _, _torn = content.rpartition(b"\n")
    try:
        return [_decode(orjson.loads(line)) for line in whole.splitlines()]
    except (ValueError, KeyError, TypeError) as error:
        raise IdentityError(f"{path} cannot be read: {error}") from None


def _decode(row: dict[str, str]) -> Issued:
    begins = row.get("begins")
    return Issued(
        int(row["serial"], 16),
        str(row["identity"]),
        dt.datetime.fromisoformat(row["ends"]),
        row["issuer"],
        None if begins is None else dt.datetime.fromisoformat(begins),
    )


def _is_pair(key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> bool:
    return certificate.public_key() == key.public_key()
