"""What a call does, in one word, and the roles that put such words together.

Each row of the public calls and each admin route has one verb. A role is a fixed set of them: what
it holds belongs to the format of the node that grants lie in, so that two processes never judge one
grant differently.

Called by `grants`, `judgement`, the table of public calls and admin routes.
Source: docs/protocol/rights.md "Verbs", docs/protocol/rights.md "Roles".
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final


class Verb(enum.StrEnum):
    """What a call does to its target; `bit` stands for it where sets are numbers."""

    bit: int

    def __new__(cls, word: str) -> Verb:
        """The next bit goes to each word."""
        verb = str.__new__(cls, word)
        verb._value_ = word
        verb.bit = 1 << len(cls.__members__)
        return verb

    APPEND = "append"
    READ = "read"
    LIST = "list"
    CREATE = "create"
    CONFIGURE = "configure"
    TRUNCATE = "truncate"
    END = "end"
    FENCE = "fence"
    ROLL = "roll"
    DELETE = "delete"
    GRANT = "grant"
    ARCHIVE = "archive"
    OBSERVE = "observe"
    OPERATE = "operate"


class GrantedRole(enum.StrEnum):
    """A set of verbs with a name; what an identity is called in its certificate is another role."""

    READER = "reader"
    PRODUCER = "producer"
    WRITER = "writer"
    OWNER = "owner"
    ARCHIVER = "archiver"
    MONITOR = "monitor"
    OPERATOR = "operator"

    @property
    def verbs(self) -> frozenset[Verb]:
        """What it holds."""
        return ROLE_VERBS[self]

    @property
    def is_of_cluster(self) -> bool:
        """Whether it is given on the whole cluster alone."""
        return bool(self.verbs & OF_CLUSTER)


OF_CLUSTER: Final = frozenset((Verb.OBSERVE, Verb.OPERATE))
"""Their target is always the cluster."""

_WRITER: Final = frozenset((
    Verb.APPEND, Verb.READ, Verb.LIST, Verb.CREATE, Verb.TRUNCATE, Verb.END, Verb.FENCE, Verb.ROLL,
))  # fmt: skip

ROLE_VERBS: Final[Mapping[GrantedRole, frozenset[Verb]]] = {
    GrantedRole.READER: frozenset((Verb.READ, Verb.LIST)),
    GrantedRole.PRODUCER: frozenset((Verb.APPEND, Verb.LIST)),
    GrantedRole.WRITER: _WRITER,
    GrantedRole.OWNER: _WRITER | {Verb.CONFIGURE, Verb.DELETE, Verb.GRANT},
    GrantedRole.ARCHIVER: frozenset((Verb.READ, Verb.LIST, Verb.ARCHIVE)),
    GrantedRole.MONITOR: frozenset((Verb.OBSERVE,)),
    GrantedRole.OPERATOR: frozenset((Verb.OBSERVE, Verb.OPERATE, Verb.LIST)),
}


def bits_of(role: GrantedRole) -> int:
    """The verbs of a role as one number."""
    return _ROLE_BITS[role]


_ROLE_BITS: Final = {role: sum(verb.bit for verb in verbs) for role, verbs in ROLE_VERBS.items()}
