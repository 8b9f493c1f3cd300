"""What a pull makes of sources and of its own bookie when they misbehave, without a network.

The client, the pace and the place where copies go are made up; the rest of a pull is the real one.
`test_repair_calls` pulls between real bookies.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from duramen.core.bookie import BookieCore
from duramen.core.status import BookieStatus
from duramen.ids import BookieId, EntryId, Epoch, Incarnation, LogId, Member, ledger_of
from duramen.units import MIB
from duramen.wire.bookie_calls import Add, ReadAnswer, ReadRange
from duramen.wire.repair_calls import Pull, Source
from duramen_bookie.repair.pulling import Puller
from duramen_bookie.upkeep.pacing import Pace

LEDGER = ledger_of(LogId(9), Epoch(1))
SOURCE = Source(Member(BookieId("b1"), Incarnation("b" * 32)), "http://made-up")
HANG_S = 30.0
"""A bound on a hang, not a promise."""


class Sources:
    """Answers every range with the same entries, wanted or not."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = numbers

    async def read(self, _: Source, ranges: Sequence[ReadRange], __: int) -> list[ReadAnswer]:
        entries = [(EntryId(number), b"entry %d" % number) for number in self._numbers]
        ok = BookieStatus.OK
        return [ReadAnswer(ok, EntryId(9), EntryId(9), False, entries) for _ in ranges]


class Copies:
    """Where copies go; answers each with one status."""

    def __init__(self, status: BookieStatus) -> None:
        self.status = status
        self.stored: list[int] = []

    async def store(self, adds: Sequence[Add], _: str) -> list[BookieStatus]:
        self.stored += [add.entry_id for add in adds]
        return [self.status] * len(adds)


async def find_as_named(source: Source) -> Source | None:
    return source


def make_puller(numbers: Sequence[int], copies: Copies) -> Puller:
    client: Any = Sources(numbers)
    core = BookieCore(Incarnation("a" * 32))
    return Puller(core, client, find_as_named, copies.store, Pace(MIB))


def test_what_nobody_asked_for_is_not_stored() -> None:
    copies = Copies(BookieStatus.OK)

    async def scenario() -> None:
        wanted = Pull(LEDGER, [(EntryId(2), EntryId(3))], [SOURCE], EntryId(9), MIB)
        answer = await make_puller([1, 2, 3, 9], copies).pull(wanted)
        assert (answer.status, answer.copied_count) == (BookieStatus.OK, 2)

    asyncio.run(scenario())
    assert copies.stored == [2, 3]


def test_a_bookie_without_room_is_not_asked_beyond_the_pulls_time() -> None:
    copies = Copies(BookieStatus.OVERLOADED)

    async def scenario() -> None:
        add = Add(LEDGER, EntryId(0), EntryId(-1), b"entry", is_recovery=True)
        async with asyncio.timeout(HANG_S):
            found = await make_puller([], copies).store([add], deadline_us=0)
        assert found == [(0, BookieStatus.OVERLOADED)]

    asyncio.run(scenario())
    assert copies.stored == [0], "it was tried once"
