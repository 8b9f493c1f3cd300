"""Whether the records of an audit log hang together: which are changed, missing or out of order.

Records come one by one, in the log's order; what is found about each is told at once, and what is
open at the end by `list_open`. Doubles are of no harm: a process repeats what may have been stored.
Holds one row for each chain, and the digests of the last records to know doubles by.

Called by `duramen audit verify`. Source: docs/protocol/audit.md "What a check finds".
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from typing import Final, NamedTuple

from duramen.core.audit.chain import NO_DIGEST, ChainHead, ChainLink

KNOWN_COUNT_MAX: Final = 65_536
"""Digests that are kept: a double comes within so many records of the first one."""


class ChainFlaw(enum.StrEnum):
    """What may be wrong."""

    CHANGED = "changed"
    MISSING = "missing"
    OUT_OF_ORDER = "out of order"


class ChainFinding(NamedTuple):
    """One flaw, and what it is about."""

    flaw: ChainFlaw
    chain: str | None
    detail: str


class CheckedRecord(NamedTuple):
    """What the check needs of a record whose own digest agrees.

    `node` made the chain; `former` is what a first record names; `is_end`: nothing comes behind.
    """

    link: ChainLink
    digest: str
    node: str
    former: ChainHead | None = None
    is_end: bool = False


class _Chain:
    __slots__ = ("has_follower", "head", "is_ended", "node")

    def __init__(self, node: str, head: ChainHead) -> None:
        self.node = node
        self.head = head
        self.is_ended = False
        self.has_follower = False


class ChainCheck:
    """One pass over the log.

    Args:
        is_whole: it begins where the log began; else the first chain of each node may begin in the
            middle.
    """

    def __init__(self, *, is_whole: bool) -> None:
        self._is_whole = is_whole
        self._chains: dict[str, _Chain] = {}
        self._nodes: set[str] = set()
        self._known: OrderedDict[tuple[str, int], str] = OrderedDict()
        self.record_count = 0
        self.double_count = 0

    def refuse(self, why: str) -> ChainFinding:
        """What lies here is no record, or not the one that it was."""
        self.record_count += 1
        return ChainFinding(ChainFlaw.CHANGED, None, why)

    def add(self, record: CheckedRecord) -> list[ChainFinding]:
        """What is wrong with a record, or before it."""
        self.record_count += 1
        link = record.link
        key = link.chain, link.n
        if (known := self._known.get(key)) is not None:
            return self._see_again(link, is_same=known == record.digest)
        chain = self._chains.get(link.chain)
        if chain is not None and link.n <= chain.head.n:
            return [
                ChainFinding(ChainFlaw.OUT_OF_ORDER, link.chain, f"record {link.n} comes too late")
            ]
        self._known[key] = record.digest
        if len(self._known) > KNOWN_COUNT_MAX:
            self._known.popitem(last=False)
        found = self._begin(record) if chain is None else _follow(chain, link)
        row = self._chains.setdefault(
            link.chain, _Chain(record.node, ChainHead(*key, record.digest))
        )
        row.head = ChainHead(*key, record.digest)
        row.is_ended = record.is_end
        self._nodes.add(record.node)
        return found

    def list_open(self) -> list[ChainHead]:
        """The last record of each chain of which later ones may be missing."""
        rows = self._chains.values()
        return [row.head for row in rows if not row.is_ended and not row.has_follower]

    def list_heads(self) -> list[ChainHead]:
        """The last record of every chain."""
        return [row.head for row in self._chains.values()]

    def _see_again(self, link: ChainLink, *, is_same: bool) -> list[ChainFinding]:
        if is_same:
            self.double_count += 1
            return []
        return [ChainFinding(ChainFlaw.CHANGED, link.chain, f"there are two records {link.n}")]

    def _begin(self, record: CheckedRecord) -> list[ChainFinding]:
        """The first record of a chain that is seen."""
        link = record.link
        if link.n > 0:
            if not self._is_whole and record.node not in self._nodes:
                return []
            return [
                ChainFinding(
                    ChainFlaw.MISSING, link.chain, f"records 0 to {link.n - 1} are missing"
                )
            ]
        found = []
        if link.prev != NO_DIGEST:
            found.append(
                ChainFinding(ChainFlaw.CHANGED, link.chain, "a first record has none before it")
            )
        if record.former is not None:
            found += self._compare_former(record.former, record)
        return found

    def _compare_former(self, named: ChainHead, naming: CheckedRecord) -> list[ChainFinding]:
        """What a first record says of the chain before it."""
        former = self._chains.get(named.chain)
        if former is None and not self._is_whole and naming.node not in self._nodes:
            return []
        if named.node != naming.node:
            return self._compare_foreign(named, naming.link.chain)
        if former is None:
            return [
                ChainFinding(ChainFlaw.MISSING, named.chain, f"records 0 to {named.n} are missing")
            ]
        former.has_follower = True
        if former.head == named:
            return []
        first, last = former.head.n + 1, named.n
        if first <= last:
            return [
                ChainFinding(
                    ChainFlaw.MISSING, named.chain, f"records {first} to {last} are missing"
                )
            ]
        detail = f"its follower names another last record: {last}, and not {former.head.n}"
        return [ChainFinding(ChainFlaw.CHANGED, named.chain, detail)]

    def _compare_foreign(self, named: ChainHead, naming: str) -> list[ChainFinding]:
        """What a chain that names another node's is worth: nothing to that one.

        A node whose id was changed names a record that is there. Whoever stole a key may name what
        he likes: the other chain neither ends by it, nor misses anything.
        """
        chain = self._chains.get(named.chain)
        if chain is not None and chain.head == named:
            return []
        if self._known.get((named.chain, named.n)) == named.digest:
            return []
        detail = f"it follows another node's record that is not there: {named.n} of {named.chain}"
        return [ChainFinding(ChainFlaw.MISSING, naming, detail)]


def _follow(chain: _Chain, link: ChainLink) -> list[ChainFinding]:
    """What lies between the last record that was seen and this one."""
    head = chain.head
    found = []
    if chain.is_ended or chain.has_follower:
        found.append(
            ChainFinding(ChainFlaw.CHANGED, link.chain, f"record {link.n} comes behind the end")
        )
    if link.n > head.n + 1:
        gap = f"records {head.n + 1} to {link.n - 1} are missing"
        found.append(ChainFinding(ChainFlaw.MISSING, link.chain, gap))
    elif link.prev != head.digest:
        detail = f"record {link.n} follows another record {head.n} than the one that is there"
        found.append(ChainFinding(ChainFlaw.CHANGED, link.chain, detail))
    return found
