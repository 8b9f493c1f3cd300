"""One process's chain of audit records: which number comes next, and whose digest it carries.

A record that has been numbered is in the chain: whoever could not keep it may not give its number
to another one, so what may be dropped is dropped before.

Called by `runtime.audit.trail`; read by `verification`.
Source: docs/protocol/audit.md "Chains".
"""

from __future__ import annotations

from typing import Final, NamedTuple

NO_DIGEST: Final = "0" * 64
"""What the first record of a chain carries in place of the digest before it."""


def find_node(chain: str) -> str:
    """Role and name of the node that makes a chain of this name."""
    return chain.rpartition("/")[0]


class ChainHead(NamedTuple):
    """The last record of a chain: the chain's name, its number from 0, its digest in hex."""

    chain: str
    n: int
    digest: str

    @property
    def node(self) -> str:
        """Whose chain it is, as `bookie/b-1`."""
        return find_node(self.chain)


class ChainLink(NamedTuple):
    """What a record's place in its chain is: name, number, and the digest of the one before."""

    chain: str
    n: int
    prev: str


class AuditChain:
    """Numbers the records of one process.

    Args:
        name: no other chain has it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._head: ChainHead | None = None

    def find_next(self) -> ChainLink:
        """The place of the next record."""
        if self._head is None:
            return ChainLink(self.name, 0, NO_DIGEST)
        return ChainLink(self.name, self._head.n + 1, self._head.digest)

    def advance(self, digest: str) -> ChainHead:
        """The next record is there, and has this digest."""
        self._head = ChainHead(self.name, self.find_next().n, digest)
        return self._head
