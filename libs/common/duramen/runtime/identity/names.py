"""Identities as text: `spiffe://<cluster uuid>/<role>/<name>`.

One form and no other: nothing is decoded, folded or trimmed, so two texts are one identity only if
they are equal.

Called by `certificates`, the command line and whoever is to be somebody.
Source: docs/protocol/identity.md "Names".
"""

from __future__ import annotations

import enum
import re
from typing import Final, NamedTuple

SCHEME: Final = "spiffe://"
DOMAIN_PATTERN: Final = "[0-9a-f]{32}"
NAME_PATTERN: Final = "[A-Za-z0-9][A-Za-z0-9._-]{0,63}"


class Role(enum.StrEnum):
    """What an identity may be; nodes serve, the others only call."""

    BOOKIE = "bookie"
    SEQUENCER = "sequencer"
    WRITEPROXY = "writeproxy"
    READPROXY = "readproxy"
    ZOOKEEPER = "zookeeper"
    OPERATOR = "operator"
    ARCHIVE = "archive"
    MONITOR = "monitor"
    COREWRITER = "corewriter"
    COREREADER = "corereader"
    CLIENT = "client"

    @property
    def is_node(self) -> bool:
        """Whether others call it, so that its certificate is a server's as well."""
        return self in _NODES


_NODES: Final = frozenset(
    (Role.BOOKIE, Role.SEQUENCER, Role.WRITEPROXY, Role.READPROXY, Role.ZOOKEEPER)
)
_DNS_NAME: Final = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*",
    re.ASCII,
)
_FORM: Final = re.compile(
    f"{SCHEME}({DOMAIN_PATTERN})/({'|'.join(Role)})/({NAME_PATTERN})", re.ASCII
)


class InvalidIdentityError(ValueError):
    """A text, or a part of one, is no identity; the sentence says what is expected."""


class IdentityError(Exception):
    """A folder gives no identity; the text is one sentence that names the file and the way out."""


class Identity(NamedTuple):
    """One process or person, within one cluster: `domain` is the cluster's uuid."""

    domain: str
    role: Role
    name: str

    def __str__(self) -> str:
        return f"{SCHEME}{self.domain}/{self.role}/{self.name}"


def make_identity(domain: str, role: str, name: str) -> Identity:
    """An identity of parts that somebody gave.

    Raises:
        InvalidIdentityError: one of them cannot stand in an identity.
    """
    if role not in list(Role):
        raise InvalidIdentityError(f"{role!r} is no role: {', '.join(Role)} are")
    if not re.fullmatch(NAME_PATTERN, name, re.ASCII):
        raise InvalidIdentityError(
            f"{name!r} cannot be a name: up to 64 letters, digits, '.', '_' and '-' are expected, "
            "the first a letter or digit"
        )
    return Identity(make_domain(domain), Role(role), name)


def make_domain(text: str) -> str:
    """A cluster's uuid.

    Raises:
        InvalidIdentityError: it is none.
    """
    if not re.fullmatch(DOMAIN_PATTERN, text, re.ASCII):
        raise InvalidIdentityError(f"{text!r} is no cluster uuid: 32 digits 0-9a-f are expected")
    return text


def make_dns_name(text: str) -> str:
    """A name by which others call a node.

    Raises:
        InvalidIdentityError: it is none, or one with a wildcard.
    """
    if not _DNS_NAME.fullmatch(text):
        raise InvalidIdentityError(f"{text!r} is no DNS name in lower case, nor an address")
    return text


def parse_identity(text: str) -> Identity:
    """An identity as it stands in a certificate.

    Raises:
        InvalidIdentityError: it has another form.
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise InvalidIdentityError(f"{text!r} is no spiffe://<cluster uuid>/<role>/<name>")
    domain, role, name = found.groups()
    return Identity(domain, Role(role), name)
