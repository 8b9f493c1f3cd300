"""Whole ledgers, read through filters at a real bookie, beside what was stored in them.

Each ledger is made by chance: blocks of one copyset, entries without envelope, some settled, some
unreadable, some stored again, a restart. Then it is asked for in all ways, each until `next` is its
end: what comes together has to be what the page says. Not here: single answers
(`test_filtered_reads`). Source: docs/protocol/envelopes.md "Read: `POST /b/read`, version 2".
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from duramen.client.bookie_client import BookieClient
from duramen.core.flexible.sending import ReadFilter, has_to_send
from duramen.ids import NOTHING, BookieId, EntryId, Member, NodeNumber
from duramen.runtime.stores.memory_store import MemoryTree
from duramen.wire.bookie_calls import Add, ReadRange, ServiceClass
from duramen.wire.entry import check_entry
from duramen.wire.flexible.envelope import Envelope, parse_content
from duramen.wire.flexible.filtered_answers import FilteredAnswer
from duramen.wire.flexible.filtered_reads import FilteredRange
from duramen.wire.repair_calls import Source
from tests.component.bookie_world import LEDGER, OK, Bookie, add, entry, keep, run, running, store

SPAN = 90
OWN = NodeNumber(1)
SERVICES = [ServiceClass.CATCH_UP_READ, ServiceClass.TAIL_READ, ServiceClass.RECOVERY]


class Told(NamedTuple):
    """What all answers to one question say together."""

    sent: list[int]
    unvouched: set[int]
    envelopes: dict[int, Envelope]
    end: int


class Ledger:
    """What was stored in a bookie, and what of it cannot be read."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.held: dict[int, Envelope | None] = {}
        self.unknown: set[int] = set()

    def make(self, numbers: list[int]) -> Iterator[Add]:
        """Rows with blocks of one copyset; some entries have no envelope."""
        named: tuple[int, ...] = ()
        block: int | None = None
        for number in numbers:
            if not named or self.rng.random() < 0.2:
                named = tuple(self.rng.sample(range(5), self.rng.randint(1, 3)))
                block = number if self.rng.random() < 0.7 else None
            if self.rng.random() < 0.1:
                self.held[number] = None
                yield add(number, recovery=True)
            else:
                row = store(number, *named, block=block, recovery=True)
                self.held[number] = parse_content(bytes(row.envelope)[:-4])
                yield row
            self.unknown.discard(number)

    async def fill(self, bookie: Bookie) -> None:
        """Some entries, most of which are settled; then more, and some of those before again."""
        some = [number for number in range(SPAN) if self.rng.random() < 0.7]
        await keep(bookie, *self.make(some[: self.rng.randint(0, len(some))]))
        await bookie.service.running_upkeep().settling.settle_all()
        self.lose(bookie)
        again = [number for number in some if number in self.unknown and self.rng.random() < 0.5]
        rest = [number for number in some if number not in self.held]
        await keep(bookie, *self.make(sorted([*again, *rest])))
        self.lose(bookie)

    def lose(self, bookie: Bookie) -> None:
        """The bookie finds out that it cannot read some entries."""
        for number in sorted(self.held.keys() - self.unknown):
            if self.rng.random() < 0.1:
                bookie.service.running_core().on_unreadable(LEDGER, EntryId(number))
                self.unknown.add(number)

    def look(self, bookie: Bookie) -> None:
        """Settling reads each entry again: what turns out to be good is no more in doubt."""
        core = bookie.service.running_core()
        ranges = core.list_unknown(LEDGER, EntryId(0), EntryId(SPAN))
        found = {number for first, last in ranges for number in range(first, last + 1)}
        assert found <= self.unknown
        self.unknown = found

    def draw_row(self) -> FilteredRange:
        rng = self.rng
        first = rng.randrange(SPAN)
        up = frozenset(NodeNumber(n) for n in range(5) if rng.random() < 0.6)
        blocks = {e.block for e in self.held.values() if e is not None and e.block is not None}
        senders = {block: NodeNumber(rng.randrange(5)) for block in sorted(blocks)[:4]}
        wanted = ReadRange(
            LEDGER, EntryId(first), EntryId(rng.randint(first, SPAN + 4)),
            rng.choice([0, 300, 1 << 20]), service=rng.choice(SERVICES),
        )  # fmt: skip
        return FilteredRange(
            wanted,
            filter_number=rng.randrange(9),
            bound=EntryId(rng.choice([NOTHING, SPAN // 2, SPAN + 9])),
            read_filter=ReadFilter(up, senders) if rng.random() < 0.7 else None,
            own=OWN if rng.random() < 0.9 else None,
            with_envelopes=True,
            is_digest=rng.random() < 0.4,
        )

    def expect(self, row: FilteredRange) -> Told:
        last = min(row.wanted.last, row.bound) if row.is_cut else row.wanted.last
        looked = range(row.wanted.first, last + 1)
        sent = [
            number
            for number in looked
            if number in self.held and number not in self.unknown
            if has_to_send(row.read_filter, self.held[number], row.own)
        ]
        envelopes = {number: found for number in sent if (found := self.held[number]) is not None}
        return Told(sent, {n for n in looked if n in self.unknown}, envelopes, last + 1)


async def ask_whole(client: BookieClient, source: Source, row: FilteredRange) -> Told:
    """Ask on until the end of what may be shown."""
    told = Told([], set(), {}, 0)
    while True:
        (answer,) = await client.read_filtered(source, [row])
        if answer.status is not OK:
            return told._replace(end=answer.next)
        told.sent.extend(list_told(answer))
        for first, last in answer.unvouched:
            told.unvouched.update(range(first, last + 1))
        told.envelopes.update({int(number): one for number, one in answer.envelopes.items()})
        assert answer.next > row.wanted.first
        if answer.next > row.wanted.last:
            return told._replace(end=answer.next)
        row = row._replace(wanted=row.wanted._replace(first=answer.next))


def list_told(answer: FilteredAnswer) -> list[int]:
    """The entries of an answer, each of which is what was stored."""
    for number, body in answer.entries:
        assert bytes(body) == entry(number)
    for number, identity in answer.digests or ():
        assert identity == check_entry(entry(number)).crc
    return [number for number, _ in (answer.digests or answer.entries)]


@pytest.mark.parametrize("seed", range(4))
def test_what_is_told_of_a_ledger_is_what_was_stored_in_it(tmp_path: Path, seed: int) -> None:
    ledger = Ledger(random.Random(seed))

    async def ask(bookie: Bookie) -> None:
        client = BookieClient()
        source = Source(Member(BookieId("b1"), bookie.incarnation), bookie.service.data_url)
        for _ in range(25):
            row = ledger.draw_row()
            expected = ledger.expect(row)
            found = await ask_whole(client, source, row)
            assert found == expected._replace(end=max(expected.end, row.wanted.first)), row
        await client.close()

    async def scenario() -> None:
        tree = MemoryTree()
        async with running(tmp_path, tree) as bookie:
            await ledger.fill(bookie)
            await ask(bookie)
            await bookie.service.running_upkeep().settling.settle_all()
            assert not bookie.service.running_core().hot_entries(LEDGER)
            ledger.look(bookie)
            await ask(bookie)
        async with running(tmp_path, tree) as bookie:
            ledger.look(bookie)
            await ask(bookie)

    run(scenario)
