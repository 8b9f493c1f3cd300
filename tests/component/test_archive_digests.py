"""Identities of flexible segments, as the archive has them from the books of all nodes.

Nodes here answer reads of version 2 entry by entry; each can be silent, slow to take work, wrong or
in doubt. Source: docs/protocol/envelopes.md "Read: `POST /b/read`, version 2", R15, R24,
docs/protocol/archive.md "Flexible segments".
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import Final

import pytest

from duramen.core.flexible.property import ReplicationProperty
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.reading.replica_order import Place, ReplicaOrder
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, EntryId, Epoch, LogId, Member
from duramen.wire.flexible.filtered_answers import FilteredAnswer
from duramen.wire.flexible.filtered_reads import FilteredRange
from duramen_spark.archive.digests import DigestReader, SourceError
from tests.unit.flexible_segments import close, node

LAST: Final = EntryId(11)
NODES: Final = [node(name, f"k{index}") for index, name in enumerate("abcd")]
A, B, C, D = (Member(one.bookie, one.incarnation) for one in NODES)


@dataclass
class Book:
    """What a node has, and what it says of it."""

    entries: dict[int, int] = field(default_factory=dict)
    unvouched: set[int] = field(default_factory=set)
    statuses: list[BookieStatus] = field(default_factory=list)
    """What it answers first, before it tells anything; the last one stays."""
    step: int = 4
    """Entries that it looks at in one answer."""
    call_count: int = 0


class Nodes:
    """The bookies as `DigestReader` sees them."""

    def __init__(self) -> None:
        self.order = ReplicaOrder(Place("eu", "k0"), Random(1))
        self.books = {member: Book() for member in (A, B, C, D)}
        for entry in range(LAST + 2):  # one lies beyond the end
            for at in range(3):
                member = (A, B, C, D)[(entry + at) % 4]
                self.books[member].entries[entry] = identity(entry)

    async def read_filtered(
        self, member: Member, wanted: FilteredRange, timeout_us: int
    ) -> FilteredAnswer:
        assert wanted.is_digest and wanted.read_filter is None and wanted.bound == LAST
        book, asked = self.books[member], wanted.wanted
        book.call_count += 1
        await asyncio.sleep(0)
        if book.statuses:
            status = book.statuses[0] if len(book.statuses) == 1 else book.statuses.pop(0)
            if status is not BookieStatus.OK:
                return FilteredAnswer(status, NOTHING, NOTHING, False, 0, asked.first)
        following = EntryId(min(asked.last + 1, asked.first + book.step))
        told = [e for e in sorted(book.entries) if asked.first <= e < following]
        doubts = [(EntryId(e), EntryId(e)) for e in sorted(book.unvouched) if e < following]
        return FilteredAnswer(
            BookieStatus.OK, LAST, LAST, True, 0, following,
            digests=[(EntryId(e), book.entries[e]) for e in told if e not in book.unvouched],
            unvouched=doubts,
        )  # fmt: skip


def identity(entry: int) -> int:
    return 1_000 + entry


def make(**absent: tuple[tuple[int, int], ...]) -> FlexibleSegment:
    opened = FlexibleSegment.opened(
        LogId(7), Epoch(3), ReplicationProperty(3, 2), NODES, ack_mode="out_of_order",
        placement="strict", created_unix_ms=0, nonce="o",
    )  # fmt: skip
    return close(opened.marked("m"), LAST, **absent)  # type: ignore[arg-type]


def read(
    nodes: Nodes, segment: FlexibleSegment | None = None, first: int = 0, last: int = LAST
) -> list[tuple[EntryId, int]]:
    reader = DigestReader(nodes, segment or make(), EntryId(first), EntryId(last))
    return asyncio.run(reader.read())


def told(*entries: int) -> list[tuple[int, int]]:
    return [(entry, identity(entry)) for entry in entries]


def test_all_nodes_tell_what_their_waves_brought_them() -> None:
    nodes = Nodes()
    assert read(nodes) == told(*range(LAST + 1))
    assert read(nodes, first=3, last=5) == told(3, 4, 5)
    assert all(book.call_count == 4 for book in nodes.books.values())


@pytest.mark.parametrize(
    "status", [BookieStatus.UNREACHABLE, BookieStatus.GONE, BookieStatus.WRONG_INCARNATION]
)
def test_others_tell_what_one_does_not(status: BookieStatus) -> None:
    nodes = Nodes()
    nodes.books[B].statuses = [status]
    nodes.books[C].unvouched = {4}
    assert read(nodes) == told(*range(LAST + 1))


def test_one_that_is_overloaded_is_asked_again() -> None:
    nodes = Nodes()
    for book in nodes.books.values():
        book.statuses = [BookieStatus.OVERLOADED, BookieStatus.OK]
    assert read(nodes) == told(*range(LAST + 1))


def test_an_entry_that_nobody_tells_is_named() -> None:
    nodes = Nodes()
    for book in nodes.books.values():
        book.entries.pop(6, None)
    with pytest.raises(SourceError, match=r"e3: \[\(6, 6\)\]"):
        read(nodes)
    nodes = Nodes()
    for book in nodes.books.values():
        book.unvouched = {2}
    with pytest.raises(SourceError, match=r"\[\(2, 2\)\]"):
        read(nodes)


def test_two_identities_of_one_entry_stop_it() -> None:
    nodes = Nodes()
    nodes.books[D].entries[5] = 7
    with pytest.raises(SourceError, match="holds another entry e3n5"):
        read(nodes)


def test_what_lies_in_a_hole_or_is_lost_is_no_entry() -> None:
    nodes = Nodes()
    nodes.books[A].entries[3] = 7  # leftovers contradict each other
    assert read(nodes, make(holes=((3, 4),), lost=((8, 8),))) == told(0, 1, 2, 5, 6, 7, 9, 10, 11)
