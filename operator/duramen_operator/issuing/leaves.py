"""Judges the certificates of one Secret, and makes those that it lacks.

A certificate stays if it is what we would issue: of the CA, noted, its key beside it, for this node
and these hosts. It is *due* when two thirds of its life are over, or another CA issues by now; that
may wait for its turn. What is missing or not valid may not.

Called by `course`. Pure, but for new keys. Source: docs/protocol/identity.md "Certificates".
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from duramen.runtime.identity.certificates import (
    BACKDATED,
    NOWHERE,
    UNREADABLE,
    Authority,
    Bundle,
    CertificateRefusedError,
    Key,
    Places,
    issue_leaf,
    issue_public_leaf,
    judge_issue,
    judge_leaf,
    make_key,
    when_to_renew,
)
from duramen.runtime.identity.folder import encode_bundle, encode_key, parse_key
from duramen.runtime.identity.names import Identity, IdentityError, make_identity
from duramen.runtime.identity.succession import Issued, Succession, note
from duramen_operator.issuing.kept import Kept
from duramen_operator.issuing.secrets import (
    ROLE_OF_SECRET,
    Life,
    SecretWrite,
    Seen,
    SeenSecret,
    WantedCertificates,
    diff,
    name_items,
)
from duramen_operator.plan.cluster.nodes import PUBLIC, SOLE_IDENTITIES

TURN: Final = dt.timedelta(minutes=2)
"""What kubelets need to hand a Secret on: one role has its new certificates before the next."""


class LeafPlace(NamedTuple):
    """A certificate that a Secret is to hold. `node` None: it is the only one there.
    `identity` None: it is the public port's."""

    node: str | None
    name: str
    identity: Identity | None
    places: Places


class Holding(NamedTuple):
    """A Secret with its places, and what stands in them.

    Attributes:
        lives: what is valid, by the place's name.
        due: places of which the certificate is to be another one, when it is their turn.
        lacking: places without a valid one.
        gone: items of nodes that are no more and whose certificates have ended.
        is_following: it holds the bundle, and nothing of a CA that does not issue.
    """

    which: str
    seen: SeenSecret
    places: tuple[LeafPlace, ...]
    lives: dict[str, Life]
    due: tuple[LeafPlace, ...]
    lacking: tuple[LeafPlace, ...]
    gone: tuple[str, ...]
    is_following: bool


def list_places(wanted: WantedCertificates, which: str) -> tuple[LeafPlace, ...]:
    """What a Secret is to hold."""
    if which == PUBLIC:
        return (LeafPlace(None, PUBLIC, None, parse_places(wanted.public_hosts)),)
    if which in SOLE_IDENTITIES:
        return (LeafPlace(None, which, make_identity(wanted.domain, which, which), NOWHERE),)
    role = ROLE_OF_SECRET[which]
    return tuple(
        LeafPlace(
            node.name,
            node.name,
            make_identity(wanted.domain, role, node.name),
            parse_places(node.hosts),
        )
        for node in wanted.nodes
        if node.role == role
    )


def parse_places(hosts: Iterable[str]) -> Places:
    """Hosts as a certificate names them, none twice."""
    names, addresses = [], []
    for host in dict.fromkeys(hosts):
        try:
            addresses.append(ipaddress.ip_address(host))
        except ValueError:
            names.append(host)
    return Places(tuple(names), tuple(addresses))


def judge(
    which: str, seen: Seen, wanted: WantedCertificates, kept: Kept, now: dt.datetime
) -> Holding:
    """What a Secret holds of what it is to hold."""
    secret, places = seen.secrets[which], list_places(wanted, which)
    noted = {one.serial for one in kept.issued}
    signers, bundle = kept.succession
    lives, due, lacking = {}, [], []
    is_following = diff(secret, encode_bundle(bundle)) is None
    for place in places:
        leaf = _find_leaf(secret, place, bundle, noted, now)
        if leaf is None:
            lacking.append(place)
            continue
        lives[place.name] = Life(
            which, place.name, leaf.not_valid_before_utc, leaf.not_valid_after_utc
        )
        is_former = leaf.issuer != signers[0].certificate.subject
        is_following = is_following and not is_former
        if is_former or now >= when_to_renew(leaf):
            due.append(place)
    gone = tuple(_list_gone(secret, places, bundle, now))
    return Holding(
        which, secret, places, lives, tuple(due), tuple(lacking), gone, is_following and not lacking
    )


def choose_turn(holdings: Iterable[Holding], now: dt.datetime) -> str | None:
    """The Secret whose due certificates are made now: the first, if none was just renewed.

    A certificate that begins in time to come is of a clock that was off, and keeps nobody waiting.
    """
    holdings = tuple(holdings)
    waiting = [one.which for one in holdings if one.due]
    made = [life.begins + BACKDATED for one in holdings for life in one.lives.values()]
    is_quiet = not any(dt.timedelta(0) <= now - moment < TURN for moment in made)
    return waiting[0] if waiting and is_quiet else None


def fill(
    holding: Holding, chosen: Iterable[LeafPlace], kept: Succession, now: dt.datetime
) -> tuple[SecretWrite | None, list[Issued]]:
    """The write by which a Secret holds bundle and certificates, and the lines to note before it.

    Raises:
        IdentityError: a node has names that no certificate can hold.
    """
    items: dict[str, bytes | None] = {**encode_bundle(kept.bundle)}
    items |= dict.fromkeys(holding.gone)
    lines = []
    signer = kept.signers[0]
    for place in chosen:
        key = make_key()
        leaf = _issue(signer, place, key, now)
        lines.append(note(leaf, str(place.identity or PUBLIC), signer))
        names = name_items(place.node)
        items[names.leaf] = leaf.public_bytes(Encoding.PEM)
        items[names.key] = encode_key(key)
    return diff(holding.seen, items), lines


def _issue(signer: Authority, place: LeafPlace, key: Key, now: dt.datetime) -> x509.Certificate:
    public = key.public_key()
    if place.identity is None:
        return issue_public_leaf(signer, place.name, place.places, public, now)
    try:
        return issue_leaf(signer, place.identity, public, now, places=place.places)
    except CertificateRefusedError as error:
        raise IdentityError(f"a certificate of {place.name} {error}") from None


def _find_leaf(
    seen: SeenSecret, place: LeafPlace, bundle: Bundle, noted: set[int], now: dt.datetime
) -> x509.Certificate | None:
    """What stands in a place; None where it is not what we would issue."""
    names = name_items(place.node)
    path = PurePath(seen.name)
    try:
        leaf = x509.load_pem_x509_certificates(seen.data.get(names.leaf, b""))[0]
        key = parse_key(path / names.key, seen.data.get(names.key, b""))
        judge_issue(leaf, bundle, now)
        is_ours = (
            leaf.public_key() == key.public_key()
            and leaf.serial_number in noted
            and _read_identity(leaf, place, bundle, now) == place.identity
            and _read_places(leaf) == place.places
        )
    except (*UNREADABLE, IdentityError, CertificateRefusedError, x509.ExtensionNotFound):
        return None
    return leaf if is_ours else None


def _read_identity(
    leaf: x509.Certificate, place: LeafPlace, bundle: Bundle, now: dt.datetime
) -> Identity | None:
    if place.identity is None:
        return None
    return judge_leaf(leaf, bundle, place.identity.domain, now)


def _read_places(leaf: x509.Certificate) -> Places:
    called = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = called.get_values_for_type(x509.IPAddress)
    found = [
        one for one in addresses if isinstance(one, ipaddress.IPv4Address | ipaddress.IPv6Address)
    ]
    return Places(tuple(called.get_values_for_type(x509.DNSName)), tuple(found))


def _list_gone(
    seen: SeenSecret, places: tuple[LeafPlace, ...], bundle: Bundle, now: dt.datetime
) -> Iterator[str]:
    """Items of nodes that are no more: a pod that is still ending goes on until its certificate
    has."""
    mine = {name for place in places for name in name_items(place.node)}
    for name in sorted(seen.data):
        node, mark, _ = name.rpartition(".tls.")
        if not mark or name in mine or name not in name_items(node):
            continue
        try:
            judge_issue(
                x509.load_pem_x509_certificates(seen.data.get(name_items(node).leaf, b""))[0],
                bundle,
                now,
            )
        except (*UNREADABLE, CertificateRefusedError):
            yield name
