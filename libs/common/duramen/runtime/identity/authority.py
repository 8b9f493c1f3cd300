"""A CA that a person keeps in a folder: begun, asked for certificates, told what is revoked.

`ca.key`, `ca.crt` and `ca.crl` of one generation, and `issued.jsonl`, a line for each certificate.
While one CA takes the place of another there are two, and `other.key` is that of the second. What
is revoked stands in the lists themselves and nowhere else. The folder belongs on a machine that
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
    BACKDATED,
    LEAF_LIFE,
    NOWHERE,
    UNREADABLE,
    Authority,
    Bundle,
    CertificateRefusedError,
    Places,
    issue_leaf,
    list_anchors,
    list_revoked,
    make_authority,
    make_key,
    name_domain,
    number_of,
)
from duramen.runtime.identity.folder import (
    HeldIdentity,
    encode_bundle,
    encode_key,
    read_bundle,
    read_key,
)
from duramen.runtime.identity.generations import (
    AUTHORITY_KEY_FILE,
    BUNDLE_FILE,
    LINK,
    LIST_FILE,
    locked,
    resolve,
    write_generation,
)
from duramen.runtime.identity.names import Identity, IdentityError

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


class KeptAuthority:
    """The CA of a folder, open for one command.

    Attributes:
        domain: the uuid of its cluster.
        bundle: what its cluster trusts, with what it revoked so far.
    """

    def __init__(self, folder: Path, signers: tuple[Authority, ...], bundle: Bundle) -> None:
        domain = name_domain(signers[0].certificate)
        if domain is None:
            subject = signers[0].certificate.subject.rfc4514_string()
            raise IdentityError(f"{folder} holds the CA {subject!r}, which is no cluster's")
        self.domain = domain
        self.bundle = bundle
        self._folder = folder
        self._signers = signers
        """Those whose keys are here, as they stand in the bundle: the first one issues."""

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
            leaf = issue_leaf(self._signers[0], identity, public, now, places=places, life=life)
        except CertificateRefusedError as error:
            raise IdentityError(f"a certificate of {identity} {error}") from None
        self._note(
            Issued(
                leaf.serial_number, str(identity), leaf.not_valid_after_utc, _name(self._signers[0])
            )
        )
        return HeldIdentity(identity, key, leaf, self.bundle)

    def list_issued(self) -> list[Issued]:
        """Every certificate that the CAs which are here issued, in order.

        Raises:
            IdentityError: the file cannot be read.
        """
        path = self._folder / ISSUED_FILE
        # Lines of a CA that was replaced stand in the same file.
        names = {_name(signer) for signer in self._signers}
        try:
            whole, _, _torn = path.read_bytes().rpartition(b"\n")
            rows = [orjson.loads(line) for line in whole.splitlines()]
            return [
                Issued(
                    int(row["serial"], 16),
                    str(row["identity"]),
                    dt.datetime.fromisoformat(row["ends"]),
                    row["issuer"],
                )
                for row in rows
                if row["issuer"] in names
            ]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise IdentityError(f"{path} cannot be read: {error}") from None

    def list_revoked(self) -> dict[int, dt.datetime]:
        """Serial → since when, of the lists of the CAs which are here."""
        own = self.bundle.lists[: len(self._signers)]
        return {row.serial_number: row.revocation_date_utc for one in own for row in one}

    def revoke(self, serials: Iterable[int], now: dt.datetime) -> None:
        """Name further certificates in the lists; who trusts them learns it from its folder.

        One that is not known is named in each. What has ended leaves them, as far as it is known
        when it ends.

        Raises:
            IdentityError: the file of what was issued cannot be read.
            OSError: it could not be written; nothing is revoked.
        """
        issued = self.list_issued()
        ended = {one.serial for one in issued if one.ends <= now}
        issuers = {one.serial: one.issuer for one in issued}
        wanted = set(serials)
        lists = list(self.bundle.lists)
        for index, signer in enumerate(self._signers):
            mine = {serial for serial in wanted if issuers.get(serial) in (None, _name(signer))}
            before = {one.serial_number: one.revocation_date_utc for one in lists[index]}
            revoked = dict.fromkeys(mine, now) | before
            kept = {serial: since for serial, since in revoked.items() if serial not in ended}
            lists[index] = list_revoked(signer, kept, now, above=number_of(lists[index]))
        self._write(self._signers, Bundle(self.bundle.anchors, tuple(lists)))

    # --- Replacing -------------------------------------------------------------------------------

    def announce(self, now: dt.datetime, parent: Authority | None = None) -> None:
        """Make a second CA, which is trusted and issues nothing yet.

        Raises:
            IdentityError: there are two already.
            OSError: it could not be written; nothing has changed.
        """
        if len(self.bundle.anchors) > 1:
            raise IdentityError(f"{self._folder} holds two CAs already: retire the second one")
        other = make_authority(self.domain, now, parent)
        anchors = *self.bundle.anchors, other.certificate
        lists = *self.bundle.lists, list_revoked(other, {}, now)
        self._write((*self._signers, other), Bundle(anchors, lists))

    def switch(self, now: dt.datetime, *, is_known_everywhere: bool = False) -> None:
        """Issue by the other CA from now on. What the first issued stays valid.

        Args:
            is_known_everywhere: every process uses the bundle of both, though it is not a day old.

        Raises:
            IdentityError: there is no other one, or it was announced less than a day ago.
            OSError: it could not be written; nothing has changed.
        """
        first, second = self._see_two()
        first_begins, begins = (one.certificate.not_valid_before_utc for one in (first, second))
        known_at = begins + BACKDATED + ANNOUNCED_FOR
        # Back to the older one: whoever trusts the newer one has known that one before.
        if begins >= first_begins and now < known_at and not is_known_everywhere:
            raise IdentityError(
                f"the other CA in {self._folder} was announced less than a day ago: whoever does "
                f"not trust it yet would meet strangers. Wait until {known_at:%Y-%m-%d %H:%M UTC}, "
                "or see that every process uses the bundle, and say --now"
            )
        flip = slice(None, None, -1)
        self._write((second, first), Bundle(self.bundle.anchors[flip], self.bundle.lists[flip]))

    def retire(self, now: dt.datetime, *, is_wanted_now: bool = False) -> None:
        """Trust the CA that does not issue no more.

        Args:
            is_wanted_now: also if somebody has a certificate of it.

        Raises:
            IdentityError: there is no other one, or what it issued has not ended.
            OSError: it could not be written; nothing has changed.
        """
        first, second = self._see_two()
        over = self.list_revoked()
        left = [
            one
            for one in self.list_issued()
            if one.issuer == _name(second) and one.ends > now and one.serial not in over
        ]
        if left and not is_wanted_now:
            last = max(left, key=lambda one: one.ends)
            raise IdentityError(
                f"{len(left)} certificates of the CA that would go are valid still, {last.identity}"
                f" until {last.ends:%Y-%m-%d %H:%M UTC}: issue anew to all and wait, revoke what "
                "is not used, or say --now: who has none of the other CA is a stranger then"
            )
        self._write((first,), Bundle(self.bundle.anchors[:1], self.bundle.lists[:1]))

    def _see_two(self) -> tuple[Authority, Authority]:
        if len(self._signers) != 2:
            raise IdentityError(f"{self._folder} holds one CA: `duramen ca announce` makes another")
        first, second = self._signers
        return first, second

    def _write(self, signers: tuple[Authority, ...], bundle: Bundle) -> None:
        write_generation(self._folder, _encode(signers, bundle))
        self._signers, self.bundle = signers, bundle

    def _note(self, line: Issued) -> None:
        fields = {
            "serial": f"{line.serial:x}",
            "identity": line.identity,
            "ends": line.ends.isoformat(),
            "issuer": line.issuer,
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
        write_generation(folder, _encode((authority,), bundle))


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
        signers = [Authority(key, bundle.anchors[0])]
        if len(bundle.anchors) > 1:
            signers.append(_read_other(place, bundle.anchors[1]))
        yield KeptAuthority(folder, tuple(signers), bundle)


def read_former_domain(folder: Path) -> str | None:
    """The uuid of the cluster whose CA lies in a folder, if that can be read."""
    try:
        content = (resolve(folder) / BUNDLE_FILE).read_bytes()
        return name_domain(x509.load_pem_x509_certificates(content)[0])
    except (*UNREADABLE, OSError, IdentityError):
        return None


def _read_other(place: Path, anchor: x509.Certificate) -> Authority:
    key = read_key(place / OTHER_KEY_FILE)
    if anchor.public_key() != key.public_key():
        raise IdentityError(
            f"{place / OTHER_KEY_FILE} is not the key of the second certificate in "
            f"{place / BUNDLE_FILE}: restore both"
        )
    return Authority(key, anchor)


def _name(authority: Authority) -> str:
    return list_anchors(Bundle((authority.certificate,)))[0]


def _encode(signers: tuple[Authority, ...], bundle: Bundle) -> dict[str, bytes]:
    names = (AUTHORITY_KEY_FILE, OTHER_KEY_FILE)
    keys = {name: encode_key(one.key) for name, one in zip(names, signers, strict=False)}
    return keys | encode_bundle(bundle)


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
