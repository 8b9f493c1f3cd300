"""A CA that a person keeps in a folder: begun, asked for certificates, told what is revoked.

`ca.key`, `ca.crt` and `ca.crl` of one generation, and `issued.jsonl`, a line for each certificate.
What is revoked stands in the list itself and nowhere else. The folder belongs on a machine that
serves nothing; one command at a time changes it.

Called by `duramen ca`. Source: docs/protocol/identity.md "Certificates", "Replacing the CA".
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import orjson
from cryptography import x509

from duramen.runtime.folders import sync_folder
from duramen.runtime.identity.certificates import (
    LEAF_LIFE,
    NOWHERE,
    UNREADABLE,
    Authority,
    Bundle,
    CertificateRefusedError,
    Places,
    issue_leaf,
    list_revoked,
    make_authority,
    make_key,
    name_domain,
    number_of,
)
from duramen.runtime.identity.folder import (
    AUTHORITY_KEY_FILE,
    BUNDLE_FILE,
    LIST_FILE,
    HeldIdentity,
    encode_bundle,
    encode_key,
    read_bundle,
    read_key,
)
from duramen.runtime.identity.generations import (
    LINK,
    locked,
    resolve,
    write_generation,
)
from duramen.runtime.identity.names import Identity, IdentityError

ISSUED_FILE: Final = "issued.jsonl"


class Issued(NamedTuple):
    """A certificate that was issued."""

    serial: int
    identity: str
    ends: dt.datetime


class KeptAuthority:
    """The CA of a folder, open for one command.

    Attributes:
        domain: the uuid of its cluster.
        bundle: what its cluster trusts, with what it revoked so far.
    """

    def __init__(self, folder: Path, authority: Authority, bundle: Bundle) -> None:
        domain = name_domain(authority.certificate)
        if domain is None:
            subject = authority.certificate.subject.rfc4514_string()
            raise IdentityError(f"{folder} holds the CA {subject!r}, which is no cluster's")
        self.domain = domain
        self.bundle = bundle
        self._folder = folder
        self._authority = authority
        # Lines of a CA that was replaced stand in the same file.
        self._issuer = f"{authority.certificate.serial_number:x}"

    def issue(
        self,
        identity: Identity,
        now: dt.datetime,
        *,
        places: Places = NOWHERE,
        life: dt.timedelta = LEAF_LIFE,
    ) -> HeldIdentity:
        """A new key with a certificate; noted before it is given away.

        Raises:
            IdentityError: it would name too many places, or too long ones.
            OSError: it could not be noted, and does not count as issued.
        """
        assert identity.domain == self.domain, identity
        key = make_key()
        public = key.public_key()
        try:
            leaf = issue_leaf(self._authority, identity, public, now, places=places, life=life)
        except CertificateRefusedError as error:
            raise IdentityError(f"a certificate of {identity} {error}") from None
        self._note(Issued(leaf.serial_number, str(identity), leaf.not_valid_after_utc))
        return HeldIdentity(identity, key, leaf, self.bundle)

    def list_issued(self) -> list[Issued]:
        """Every certificate that this CA issued, in order.

        Raises:
            IdentityError: the file cannot be read.
        """
        path = self._folder / ISSUED_FILE
        try:
            whole, _, _torn = path.read_bytes().rpartition(b"\n")
            rows = [orjson.loads(line) for line in whole.splitlines()]
            return [
                Issued(
                    int(row["serial"], 16),
                    str(row["identity"]),
                    dt.datetime.fromisoformat(row["ends"]),
                )
                for row in rows
                if row["issuer"] == self._issuer
            ]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise IdentityError(f"{path} cannot be read: {error}") from None

    def list_revoked(self) -> dict[int, dt.datetime]:
        """Serial → since when, of its own list."""
        return {one.serial_number: one.revocation_date_utc for one in self.bundle.lists[0]}

    def revoke(self, serials: Iterable[int], now: dt.datetime) -> None:
        """Name further certificates in the list; those who trust it learn it from their folders.

        What has ended leaves the list, as far as it is known when it ends.

        Raises:
            IdentityError: the file of what was issued cannot be read.
            OSError: it could not be written; nothing is revoked.
        """
        mine, *others = self.bundle.lists
        ended = {one.serial for one in self.list_issued() if one.ends <= now}
        revoked = dict.fromkeys(serials, now) | self.list_revoked()
        kept = {serial: since for serial, since in revoked.items() if serial not in ended}
        renewed = list_revoked(self._authority, kept, now, above=number_of(mine))
        bundle = Bundle(self.bundle.anchors, (renewed, *others))
        write_generation(self._folder, _encode(self._authority, bundle))
        self.bundle = bundle

    def _note(self, line: Issued) -> None:
        fields = {
            "serial": f"{line.serial:x}",
            "identity": line.identity,
            "ends": line.ends.isoformat(),
            "issuer": self._issuer,
        }
        with (self._folder / ISSUED_FILE).open("ab+") as file:
            os.fchmod(file.fileno(), 0o600)
            file.seek(0)
            # A line that a loss of power cut short was given to nobody.
            file.truncate(file.read().rfind(b"\n") + 1)
            file.write(orjson.dumps(fields) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        sync_folder(self._folder)


def begin_authority(
    folder: Path,
    domain: str,
    now: dt.datetime,
    *,
    parent: Authority | None = None,
    is_replacing: bool = False,
) -> None:
    """Make a CA for the cluster of this uuid in a folder.

    Args:
        is_replacing: the one that is there was lost or stolen, and is trusted no more: nodes have
            to be stopped until they have certificates of the new one.

    Raises:
        IdentityError: a CA is there and is not to be replaced, or it is another cluster's.
        OSError: it cannot be written.
    """
    with locked(folder):
        _refuse_to_replace(folder, domain, is_replacing=is_replacing)
        authority = make_authority(domain, now, parent)
        bundle = Bundle((authority.certificate,), (list_revoked(authority, {}, now),))
        write_generation(folder, _encode(authority, bundle))


def read_authority(folder: Path, now: dt.datetime) -> Authority:
    """A CA of anybody's that may sign one of ours: `ca.key` and `ca.crt`.

    Raises:
        IdentityError: there is none, it is too open, its time is not now, or it may sign no CA.
    """
    place = resolve(folder)
    key, anchor = read_key(place / AUTHORITY_KEY_FILE), read_bundle(place, now).anchors[0]
    if anchor.public_key() != key.public_key():
        raise IdentityError(f"{place / AUTHORITY_KEY_FILE} is not the key of {place / BUNDLE_FILE}")
    basic = anchor.extensions.get_extension_for_class(x509.BasicConstraints).value
    if basic.path_length == 0:
        raise IdentityError(f"{place / BUNDLE_FILE} may sign no other CA (pathlen:0)")
    return Authority(key, anchor)


@contextmanager
def open_authority(folder: Path, now: dt.datetime) -> Iterator[KeptAuthority]:
    """The CA of a folder; no other command changes it meanwhile.

    Raises:
        IdentityError: there is none, it is too open, or its time is not now.
    """
    if not folder.is_dir():
        raise IdentityError(f"{folder} holds no CA: `duramen ca init` makes one")
    with locked(folder):
        place = resolve(folder)
        key = read_key(place / AUTHORITY_KEY_FILE)
        bundle = read_bundle(place, now)
        if bundle.anchors[0].public_key() != key.public_key() or not bundle.lists:
            raise IdentityError(
                f"{place / AUTHORITY_KEY_FILE} is not the key of the first certificate in "
                f"{place / BUNDLE_FILE}, or {place / LIST_FILE} is missing: restore all three"
            )
        yield KeptAuthority(folder, Authority(key, bundle.anchors[0]), bundle)


def read_former_domain(folder: Path) -> str | None:
    """The uuid of the cluster whose CA lies in a folder, if that can be read."""
    try:
        content = (resolve(folder) / BUNDLE_FILE).read_bytes()
        return name_domain(x509.load_pem_x509_certificates(content)[0])
    except (*UNREADABLE, OSError, IdentityError):
        return None


def _encode(authority: Authority, bundle: Bundle) -> dict[str, bytes]:
    return {AUTHORITY_KEY_FILE: encode_key(authority.key), **encode_bundle(bundle)}


def _refuse_to_replace(folder: Path, domain: str, *, is_replacing: bool) -> None:
    names = (AUTHORITY_KEY_FILE, BUNDLE_FILE, ISSUED_FILE, LINK)
    if not any(os.path.lexists(folder / name) for name in names):
        return
    if not is_replacing:
        raise IdentityError(
            f"{folder} holds a CA already: `--replace` makes another one that trusts nothing of it"
        )
    former = read_former_domain(folder)
    if former not in (None, domain):
        raise IdentityError(f"{folder} holds the CA of the cluster {former}, not of {domain}")
