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
    make_key,
    name_domain,
)
from duramen.runtime.identity.folder import HeldIdentity, read_bundle, read_key
from duramen.runtime.identity.generations import (
    AUTHORITY_KEY_FILE,
    BUNDLE_FILE,
    LINK,
    locked,
    resolve,
    write_generation,
)
from duramen.runtime.identity.names import Identity, IdentityError
from duramen.runtime.identity.succession import (
    ANNOUNCED_FOR,
    ISSUED_FILE,
    OTHER_KEY_FILE,
    Issued,
    Succession,
    decode_lines,
    encode_line,
    name_authority,
    note,
)


class KeptAuthority:
    """The CA of a folder, open for one command.

    Attributes:
        domain: the uuid of its cluster.
    """

    def __init__(self, folder: Path, kept: Succession) -> None:
        first = kept.signers[0].certificate
        domain = name_domain(first)
        if domain is None:
            subject = first.subject.rfc4514_string()
            raise IdentityError(f"{folder} holds the CA {subject!r}, which is no cluster's")
        self.domain = domain
        self._folder = folder
        self._kept = kept

    @property
    def bundle(self) -> Bundle:
        """What its cluster trusts, with what it revoked so far."""
        return self._kept.bundle

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
        key, signer = make_key(), self._kept.signers[0]
        try:
            leaf = issue_leaf(signer, identity, key.public_key(), now, places=places, life=life)
        except CertificateRefusedError as error:
            raise IdentityError(f"a certificate of {identity} {error}") from None
        self._note(note(leaf, str(identity), signer))
        return HeldIdentity(identity, key, leaf, self.bundle)

    def list_issued(self) -> list[Issued]:
        """Every certificate that the CAs which are here issued, in order.

        Raises:
            IdentityError: the file cannot be read.
        """
        path = self._folder / ISSUED_FILE
        # Lines of a CA that was replaced stand in the same file.
        names = set(map(name_authority, self._kept.signers))
        try:
            lines = decode_lines(path.read_bytes(), path)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise IdentityError(f"{path} cannot be read: {error}") from None
        return [line for line in lines if line.issuer in names]

    def list_revoked(self) -> dict[int, dt.datetime]:
        """Serial → since when, of the lists of the CAs which are here."""
        return self._kept.list_revoked()

    def revoke(self, serials: Iterable[int], now: dt.datetime) -> None:
        """Name further certificates in the lists; who trusts them learns it from its folder.

        One that is not known is named in each. What has ended leaves them, as far as it is known
        when it ends.

        Raises:
            IdentityError: the file of what was issued cannot be read.
            OSError: it could not be written; nothing is revoked.
        """
        self._write(self._kept.revoke(self.list_issued(), serials, now))

    # --- Replacing -------------------------------------------------------------------------------

    def announce(self, now: dt.datetime, parent: Authority | None = None) -> None:
        """Make a second CA, which is trusted and issues nothing yet.

        Raises:
            IdentityError: there are two already.
            OSError: it could not be written; nothing has changed.
        """
        if len(self.bundle.anchors) > 1:
            raise IdentityError(f"{self._folder} holds two CAs already: retire the second one")
        self._write(self._kept.announce(self.domain, now, parent))

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
        self._write(self._kept.flip())

    def retire(self, now: dt.datetime, *, is_wanted_now: bool = False) -> None:
        """Trust the CA that does not issue no more.

        Args:
            is_wanted_now: also if somebody has a certificate of it.

        Raises:
            IdentityError: there is no other one, or what it issued has not ended.
            OSError: it could not be written; nothing has changed.
        """
        _, second = self._see_two()
        over = self.list_revoked()
        left = [
            one
            for one in self.list_issued()
            if one.issuer == name_authority(second) and one.ends > now and one.serial not in over
        ]
        if left and not is_wanted_now:
            last = max(left, key=lambda one: one.ends)
            raise IdentityError(
                f"{len(left)} certificates of the CA that would go are valid still, {last.identity}"
                f" until {last.ends:%Y-%m-%d %H:%M UTC}: issue anew to all and wait, revoke what "
                "is not used, or say --now: who has none of the other CA is a stranger then"
            )
        self._write(self._kept.retire())

    def _see_two(self) -> tuple[Authority, Authority]:
        if len(self._kept.signers) != 2:
            raise IdentityError(f"{self._folder} holds one CA: `duramen ca announce` makes another")
        first, second = self._kept.signers
        return first, second

    def _write(self, kept: Succession) -> None:
        write_generation(self._folder, kept.encode())
        self._kept = kept

    def _note(self, line: Issued) -> None:
        with (self._folder / ISSUED_FILE).open("ab+") as file:
            os.fchmod(file.fileno(), 0o600)
            file.seek(0)
            # A line that a loss of power cut short was given to nobody.
            file.truncate(file.read().rfind(b"\n") + 1)
            file.write(encode_line(line))
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
        write_generation(folder, Succession.begin(domain, now, parent).encode())


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
        # The key comes first: who may not have it need not hear what else is wrong.
        keys = [read_key(place / AUTHORITY_KEY_FILE)]
        bundle = read_bundle(place, now)
        if len(bundle.anchors) > 1:
            keys.append(read_key(place / OTHER_KEY_FILE))
        yield KeptAuthority(folder, Succession.join(place, bundle, tuple(keys)))


def read_former_domain(folder: Path) -> str | None:
    """The uuid of the cluster whose CA lies in a folder, if that can be read."""
    try:
        content = (resolve(folder) / BUNDLE_FILE).read_bytes()
        return name_domain(x509.load_pem_x509_certificates(content)[0])
    except (*UNREADABLE, OSError, IdentityError):
        return None


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
