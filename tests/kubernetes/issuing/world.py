"""The Secrets of one cluster in memory, written by an issuer that may die behind any write.

After each write it is asked what has to hold at every moment: whoever has a certificate finds its
anchor beside it, nobody has one that is not noted, and nobody has any before the record names its
CA.

Used by the tests of this folder. Source: docs/kubernetes/security.md "Who issues".
"""

from __future__ import annotations

import datetime as dt
from pathlib import PurePath
from typing import Final

from cryptography import x509

from duramen.runtime.identity.certificates import judge_issue, judge_leaf
from duramen.runtime.identity.folder import parse_bundle, parse_key
from duramen.runtime.identity.succession import ISSUED_FILE, decode_lines
from duramen_operator.issuing.course import Issuance, plan_issuance
from duramen_operator.issuing.kept import name_key
from duramen_operator.issuing.leaves import list_places
from duramen_operator.issuing.secrets import (
    LEAF_SECRETS,
    RecordWrite,
    Seen,
    SeenSecret,
    WantedCertificates,
    Write,
    name_items,
)
from duramen_operator.plan.cluster.nodes import CA, SECRETS, Node

DOMAIN: Final = "0123456789abcdef" * 2
NOW: Final = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
DAY: Final = dt.timedelta(days=1)
MINUTE: Final = dt.timedelta(minutes=1)


class Conflict(Exception):
    """Somebody else has written that Secret since it was seen."""


def make_node(role: str, index: int) -> Node:
    """A pod as the plan lists it."""
    name = f"main-{role}-{index}"
    return Node(role, name, (f"{name}.main-{role}", f"{name}.main-{role}.here.svc"))


def want(
    bookies: int = 2, step: str = "", revoked: str = "", domain: str = DOMAIN
) -> WantedCertificates:
    """A small cluster."""
    nodes = [make_node("bookie", index) for index in range(bookies)]
    nodes += [make_node(role, 0) for role in ("sequencer", "zookeeper", "writeproxy", "readproxy")]
    return WantedCertificates(
        domain, tuple(nodes), ("main-writeproxy", "logs.example.org"), step, revoked
    )


class World:
    """What the API server holds."""

    def __init__(self) -> None:
        self.now = NOW
        self.wanted = want()
        self.secrets: dict[str, dict[str, bytes]] = {which: {} for which in SECRETS}
        self.recorded: tuple[str, ...] = ()
        self._versions = dict.fromkeys(SECRETS, 1)
        self.is_whole = True
        """Whether no hand has meddled since the last whole pass."""

    def see(self) -> Seen:
        """What an operator reads now."""
        return Seen(
            {
                which: SeenSecret(f"main-{which}", "uid", str(self._versions[which]), dict(data))
                for which, data in self.secrets.items()
            },
            {
                which: f"there is no Secret main-{which}"
                for which in SECRETS
                if which not in self.secrets
            },
            self.recorded,
            frozenset({*SECRETS} - {*self.secrets}),
        )

    def plan(self, seen: Seen | None = None) -> Issuance:
        """What an operator would do."""
        return plan_issuance(self.wanted, seen or self.see(), self.now)

    def do(self, writes: tuple[Write, ...], most: int | None = None) -> None:
        """Write in order; dies behind `most` of them.

        Raises:
            Conflict: a Secret has changed meanwhile; what stood before it is written.
        """
        for write in writes[:most]:
            if isinstance(write, RecordWrite):
                self.recorded = write.authorities
                continue
            which = write.name.removeprefix("main-")
            if write.version != str(self._versions[which]):
                raise Conflict(which)
            self.change(which, dict(write.data))
            if which != CA:
                self.see_held(which)

    def change(self, which: str, items: dict[str, bytes | None]) -> None:
        """A merge patch of a Secret, by whomever."""
        held = self.secrets[which]
        for name, value in items.items():
            if value is None:
                held.pop(name, None)
            else:
                held[name] = value
        self._versions[which] += 1

    def settle(self, passes: int = 40) -> Issuance:
        """Passes, 3 minutes apart, until there is nothing to write."""
        for _ in range(passes):
            issuance = self.plan()
            if not issuance.writes:
                due = [name for name in LEAF_SECRETS if name in self.secrets and self.is_due(name)]
                if not due:
                    return issuance
            self.do(issuance.writes)
            self.now += 3 * MINUTE
        raise AssertionError(f"it writes again and again: {self.plan()}")

    def is_due(self, which: str) -> bool:
        """Whether a certificate there is past two thirds of its life, or of the former CA."""
        first = self.anchors()[0]
        return any(
            leaf.issuer != first.subject
            or self.now
            >= leaf.not_valid_before_utc
            + (leaf.not_valid_after_utc - leaf.not_valid_before_utc) * 2 / 3
            for leaf in self.leaves(which).values()
        )

    def anchors(self, which: str = CA) -> list[x509.Certificate]:
        """Of one Secret."""
        return x509.load_pem_x509_certificates(self.secrets[which]["ca.crt"])

    def authorities(self) -> tuple[str, ...]:
        """The key identifiers of the CAs that are kept."""
        return tuple(map(name_key, self.anchors()))

    def leaves(self, which: str) -> dict[str, x509.Certificate]:
        """What stands in the places of a Secret."""
        data = self.secrets[which]
        return {
            place.name: x509.load_pem_x509_certificates(data[name_items(place.node).leaf])[0]
            for place in list_places(self.wanted, which)
        }

    def noted(self) -> set[int]:
        """Serials of what was issued, as the CA's Secret has them."""
        content = self.secrets[CA].get(ISSUED_FILE, b"")
        return {line.serial for line in decode_lines(content, PurePath(ISSUED_FILE))}

    def see_held(self, which: str) -> None:
        """What has to hold of a Secret behind each write of the operator's."""
        data, place = self.secrets[which], PurePath(which)
        bundle = parse_bundle(place, data["ca.crt"], data["ca.crl"], self.now)
        assert {name_key(one) for one in bundle.anchors} <= set(self.recorded)
        for found in list_places(self.wanted, which):
            names = name_items(found.node)
            leaf = x509.load_pem_x509_certificates(data[names.leaf])[0]
            assert leaf.serial_number in self.noted(), "given away, and nobody knows"
            assert parse_key(place, data[names.key]).public_key() == leaf.public_key()
            judge_issue(leaf, bundle, self.now)
            if found.identity is not None:
                assert judge_leaf(leaf, bundle, DOMAIN, self.now) == found.identity
