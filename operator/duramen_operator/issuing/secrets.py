"""What stands in the Secrets of a cluster, what they ought to hold, and how one is changed.

Values alone. Their text never shows what a Secret holds, so that no log and no traceback does.

Called by the modules beside it. Source: docs/kubernetes/security.md "Which key lies where".
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Final, NamedTuple

from duramen.runtime.identity.generations import KEY_FILE, LEAF_FILE
from duramen_operator.plan.cluster.nodes import PUBLIC, SECRET_OF_ROLE, SOLE_IDENTITIES, Node

ROLE_OF_SECRET: Final = {which: role for role, which in SECRET_OF_ROLE.items()}
LEAF_SECRETS: Final = (*ROLE_OF_SECRET, PUBLIC, *SOLE_IDENTITIES)
"""Those that hold certificates, in the order in which they are written."""


class SeenSecret(NamedTuple):
    """A Secret at one moment."""

    name: str
    uid: str
    version: str
    data: Mapping[str, bytes]

    def __repr__(self) -> str:
        return f"<Secret {self.name} at {self.version}: {', '.join(sorted(self.data))}>"


class Seen(NamedTuple):
    """What is there of a cluster's certificates.

    Attributes:
        secrets: those that are there, by the words of `nodes.SECRETS`.
        missing: why others could not be read, for people, by the same words.
        absent: those of `missing` that are not there; of the others nobody knows what they hold.
        recorded: the key identifiers of the CAs that the record names, the one that issues first;
            empty: there is no record.
        record_state: uid and resourceVersion of that record; None: there is none.
    """

    secrets: Mapping[str, SeenSecret]
    missing: Mapping[str, str] = {}
    recorded: tuple[str, ...] = ()
    absent: frozenset[str] = frozenset()
    record_state: tuple[str, str] | None = None


class WantedCertificates(NamedTuple):
    """What a cluster is to have.

    Attributes:
        domain: its uuid.
        public_hosts: how clients call the proxies.
        step: what a person asks for by the annotation `duramen.io/ca`; "" nothing.
        revoked: and by `duramen.io/revoke`.
    """

    domain: str
    nodes: tuple[Node, ...]
    public_hosts: tuple[str, ...]
    step: str = ""
    revoked: str = ""


class SecretWrite(NamedTuple):
    """A merge patch of a Secret, if it still is as it was seen. None: that item goes."""

    name: str
    uid: str
    version: str
    data: Mapping[str, bytes | None]

    def __repr__(self) -> str:
        return f"<write of Secret {self.name} at {self.version}: {', '.join(sorted(self.data))}>"


class RecordWrite(NamedTuple):
    """The record of the cluster's CAs reads so from now on, if it still is as it was seen."""

    authorities: tuple[str, ...]
    state: tuple[str, str] | None = None


Write = SecretWrite | RecordWrite


class Life(NamedTuple):
    """A certificate that stands in a Secret and is valid."""

    which: str
    name: str
    begins: dt.datetime
    ends: dt.datetime


class Items(NamedTuple):
    """What the three items of a certificate are called in its Secret."""

    leaf: str
    key: str


def name_items(node: str | None) -> Items:
    """Of a node in the Secret of its role; None: the only one of its Secret."""
    prefix = "" if node is None else f"{node}."
    return Items(f"{prefix}{LEAF_FILE}", f"{prefix}{KEY_FILE}")


def diff(
    seen: SeenSecret, wanted: Mapping[str, bytes | None] | Mapping[str, bytes]
) -> SecretWrite | None:
    """The write after which a Secret holds this; None where it does. Other items stay."""
    changed = {name: value for name, value in wanted.items() if seen.data.get(name) != value}
    return SecretWrite(seen.name, seen.uid, seen.version, changed) if changed else None
