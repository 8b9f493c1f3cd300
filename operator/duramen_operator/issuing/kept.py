"""The CA as it stands in its Secret: read, judged, and told apart from one that was lost.

Beside what a folder of `duramen ca` holds there is `course.json`: which of two CAs is the newer
one, and since when all other Secrets have followed the last step. A record (a ConfigMap) names the
CAs by their key identifiers. It is written after this Secret and before any certificate, so a
cluster whose record names a CA that is not here has lost it, and one without never had any.

Called by `course`. Pure. Source: docs/kubernetes/security.md "Who issues".
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Final, NamedTuple

import orjson
from cryptography import x509

from duramen.runtime.identity.certificates import (
    UNREADABLE,
    Authority,
    CertificateRefusedError,
    judge_time,
    name_domain,
)
from duramen.runtime.identity.folder import parse_bundle, parse_key
from duramen.runtime.identity.generations import AUTHORITY_KEY_FILE, BUNDLE_FILE, LIST_FILE
from duramen.runtime.identity.names import IdentityError
from duramen.runtime.identity.succession import (
    ISSUED_FILE,
    OTHER_KEY_FILE,
    Issued,
    Succession,
    decode_lines,
    encode_line,
)
from duramen_operator.issuing.secrets import Seen, SeenSecret, WantedCertificates
from duramen_operator.plan.cluster.nodes import CA

COURSE_FILE: Final = "course.json"
REPLACE: Final = "replace"
ISSUED_COUNT_MAX: Final = 2_500
"""Lines in the Secret: 300 bytes each, of the 1 MiB that a Secret may hold. A cluster of 600 pods
has 1,200 that have not ended; more come of Secrets that are damaged again and again. Whoever has
most loses its oldest first. What is cut off can no longer be revoked by its node's name, but by
another CA."""

_FILES: Final = (
    AUTHORITY_KEY_FILE,
    OTHER_KEY_FILE,
    BUNDLE_FILE,
    LIST_FILE,
    ISSUED_FILE,
    COURSE_FILE,
)


class Kept(NamedTuple):
    """What `CLUSTER-ca` holds.

    Attributes:
        issued: of certificates that have not ended, and of those that a list names.
        newer: the key identifier of the CA that takes the other one's place; "" there is one.
        followed: since when all Secrets hold what the last step made; None: not yet.
    """

    succession: Succession
    issued: tuple[Issued, ...] = ()
    newer: str = ""
    followed: dt.datetime | None = None

    def encode(self) -> dict[str, bytes | None]:
        """The items of the Secret; None: there is no such item."""
        followed = None if self.followed is None else self.followed.isoformat()
        items: dict[str, bytes | None] = dict.fromkeys(_FILES)
        items |= self.succession.encode()
        items[ISSUED_FILE] = b"".join(map(encode_line, self.issued))
        items[COURSE_FILE] = orjson.dumps({"newer": self.newer, "followed": followed})
        return items

    def prune(self, now: dt.datetime) -> Kept:
        """Without certificates that have ended, and that no list names: who revokes needs those."""
        named = self.succession.list_revoked()
        left = [one for one in self.issued if one.ends > now or one.serial in named]
        return self._replace(issued=tuple(_bound(left)))


def _bound(issued: list[Issued]) -> Iterator[Issued]:
    """The newest line of everybody, then everybody's second one, as many as there is room for.

    A Secret has a bound, and renewals must not end at it. What a node shows is its newest: it would
    be replaced without its line, and the line of that would push out another one's.
    """
    counts: Counter[str] = Counter()
    ranks = []
    for index in reversed(range(len(issued))):
        ranks.append((counts[issued[index].identity], -index))
        counts[issued[index].identity] += 1
    for index in sorted(-place for _, place in sorted(ranks)[:ISSUED_COUNT_MAX]):
        yield issued[index]


def read_kept(wanted: WantedCertificates, seen: Seen, now: dt.datetime) -> Kept | None:
    """The CA; None where there is to be a first one, or another one in place of a lost one.

    Raises:
        IdentityError: it is lost, strange, cannot be read, or its time is not now: nothing is
            issued until a person has acted.
    """
    secret = seen.secrets[CA]
    known = seen.recorded or _find_known(seen)
    is_asked = bool(known) and wanted.step.split() == [REPLACE, known[0]]
    if not any(secret.data.get(name) for name in _FILES):
        if known and not is_asked:
            raise IdentityError(
                f"the CA {known[0]} of this cluster is lost: the Secret {secret.name} is empty. "
                "Restore the Secret from a backup, or have another CA made, to which all nodes "
                f"are strangers until they have its certificates: duramen.io/ca: {REPLACE} "
                f"{known[0]}"
            )
        unread = sorted({*seen.missing} - seen.absent)
        if not known and unread:
            raise IdentityError(
                f"no CA is made before it is known that no other Secret trusts one: "
                f"{', '.join(unread)}"
            )
        return None
    kept = _parse(secret, now)
    first = kept.succession.signers[0]
    domain = name_domain(first.certificate)
    if domain != wanted.domain:
        raise IdentityError(
            f"the Secret {secret.name} holds the CA of the cluster {domain}, and this one is "
            f"{wanted.domain}: if that one is gone for good, empty its Secrets"
        )
    if seen.recorded and not _is_next(kept, seen.recorded) and not is_asked:
        raise IdentityError(
            f"the Secret {secret.name} holds the CA {', '.join(name_keys(kept.succession))}, and "
            f"the record says {', '.join(seen.recorded)}: restore the Secret as it was last, or "
            "have what it holds taken, to which nodes are strangers until they have its "
            f"certificates: duramen.io/ca: {REPLACE} {seen.recorded[0]}"
        )
    return kept


def name_keys(succession: Succession) -> tuple[str, ...]:
    """The key identifiers of the CAs, as the record names them."""
    return tuple(name_key(one.certificate) for one in succession.signers)


def name_key(certificate: x509.Certificate) -> str:
    """A CA's key identifier, in hexadecimal digits."""
    return x509.SubjectKeyIdentifier.from_public_key(certificate.public_key()).digest.hex()


def _is_next(kept: Kept, recorded: tuple[str, ...]) -> bool:
    """Whether this is what the record names, or one step ahead of it: announced, flipped, retired.

    The CA that the record names first issues everybody's certificates. A backup without it, or one
    that has another issue beside it, is of another time.
    """
    names = name_keys(kept.succession)
    if len(names) == 1:
        return names[0] == recorded[0]
    if len(recorded) == 1:
        return names == (recorded[0], kept.newer)
    return sorted(names) == sorted(recorded)


def _parse(secret: SeenSecret, now: dt.datetime) -> Kept:
    data: Mapping[str, bytes] = secret.data
    place = PurePath(f"Secret {secret.name}")
    bundle = parse_bundle(place, data.get(BUNDLE_FILE, b""), data.get(LIST_FILE), now)
    names = (AUTHORITY_KEY_FILE, OTHER_KEY_FILE)[: len(bundle.anchors)]
    keys = tuple(parse_key(place / name, data.get(name, b"")) for name in names)
    succession = Succession.join(place, bundle, keys)
    if len(bundle.anchors) > len(names):
        raise IdentityError(f"{place / BUNDLE_FILE} holds more than two CAs: restore the Secret")
    _judge_now(place, succession.signers[0], now)
    issued = decode_lines(data.get(ISSUED_FILE, b""), place / ISSUED_FILE)
    try:
        course = orjson.loads(data.get(COURSE_FILE, b"{}"))
        followed = course.get("followed")
        since = None if followed is None else dt.datetime.fromisoformat(followed)
        newer = str(course.get("newer", ""))
    except (ValueError, TypeError, AttributeError):
        raise IdentityError(f"{place / COURSE_FILE} cannot be read: restore the Secret") from None
    if len(keys) > 1 and newer not in name_keys(succession):
        raise IdentityError(f"{place / COURSE_FILE} names neither CA: restore the Secret")
    return Kept(succession, tuple(issued), newer if len(keys) > 1 else "", since)


def _judge_now(place: PurePath, first: Authority, now: dt.datetime) -> None:
    try:
        judge_time(first.certificate, now)
    except CertificateRefusedError as error:
        raise IdentityError(f"the CA of {place} {error}") from None


def _find_known(seen: Seen) -> tuple[str, ...]:
    """Without a record: the CA that other Secrets trust, as a backup may have left out two."""
    for which in sorted(seen.secrets):
        content = seen.secrets[which].data.get(BUNDLE_FILE)
        if which != CA and content:
            return tuple(_name_anchors(content)) or ("unknown",)
    return ()


def _name_anchors(content: bytes) -> Iterable[str]:
    try:
        return [name_key(one) for one in x509.load_pem_x509_certificates(content)]
    except UNREADABLE:
        return []
